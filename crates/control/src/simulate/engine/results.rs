//! What happens with a task's result, and the links between nodes.

use std::time::Duration;

use super::super::costs::at_rate;
use super::super::machine::{Range2, Transfer, Work};
use super::{Engine, Event};
use crate::reuse::WorkerRole;
use crate::{share, Top};

impl Engine<'_> {
    pub(super) fn finished(&mut self, at: usize) {
        let (node, role) = (self.round.tasks[at].node, self.round.tasks[at].role);
        if let Some(worker) = self.round.tasks[at].worker.take() {
            self.rest(node, worker);
        }
        if role == WorkerRole::Top {
            self.round.left -= 1;
            self.round.done = self.round.done.or((self.round.left == 0).then_some(self.now));
            return;
        }
        let leaves = &mut self.round.leaves[node as usize];
        match leaves.middle.filter(|_| role == WorkerRole::Leaf) {
            Some(middle) => {
                let (core, delay) =
                    self.costs().between_workers(self.scenario.bytes, &self.scenario.switches);
                self.move_to(node, core, delay, Range2(middle, middle + 1));
            }
            None => {
                leaves.left -= 1;
                if leaves.left == 0 {
                    self.node_finished(node);
                }
            }
        }
    }

    /// A node has its sums: it sends them to the top.
    pub(super) fn node_finished(&mut self, node: u32) {
        let nodes = self.round.used.len() as u32;
        let is_first = self.round.policy == Some(Top::FirstFinished) && self.round.tops.is_empty();
        if is_first && !(nodes == 1 && self.config.reuse) {
            // With reuse, the first worker to finish becomes the top and already has its own sums.
            self.make_top(node, self.scenario.bytes, nodes - u32::from(self.config.reuse));
            if self.config.reuse {
                return;
            }
        }
        if self.round.tops.is_empty() {
            // The node's own worker is the top, and has nothing more to add.
            self.round.done = Some(self.now);
            return;
        }
        let is_alone = self.round.tops.iter().all(|(top, _)| *top == node);
        let core = match self.scenario.switches.side_process && !is_alone {
            true => at_rate(self.scenario.bytes, self.costs().side),
            false => Duration::ZERO,
        };
        if core > Duration::ZERO {
            self.submit(node, Work::Out { node }, core);
        } else {
            self.send(node);
        }
    }

    /// Sends a node's sums to the top, or a share to each of several tops. It starts with the next top, so
    /// that no two nodes send to the same one at the same time.
    pub(super) fn send(&mut self, node: u32) {
        let bytes = self.scenario.sums_bytes.unwrap_or(self.scenario.bytes);
        let tops = self.round.tops.clone();
        let parts = tops.len() as u32;
        let own = tops.iter().position(|(top, _)| *top == node).unwrap_or(0);
        for turn in 1..=tops.len() {
            let place = (own + turn) % tops.len();
            let (top, to) = tops[place];
            let range = share(bytes, place as u32, parts);
            let size = range.end - range.start;
            if top == node {
                let (core, delay) = self.costs().between_workers(size, &self.scenario.switches);
                self.move_to(node, core, delay, to);
                continue;
            }
            let transfer = Transfer { from: node, node: top, to, bytes: size };
            self.machines[node as usize].outbox.push_back(transfer);
        }
        self.transmit(node);
    }

    /// Begins a node's first transfer whose receiver is free, if the node itself is not sending.
    pub(super) fn transmit(&mut self, from: u32) {
        let machine = &self.machines[from as usize];
        let is_free = |transfer: &Transfer| !self.machines[transfer.node as usize].is_receiving;
        let Some(place) = machine.outbox.iter().position(is_free).filter(|_| !machine.is_sending) else {
            return;
        };
        let Some(transfer) = self.machines[from as usize].outbox.remove(place) else { return };
        self.machines[from as usize].is_sending = true;
        self.machines[transfer.node as usize].is_receiving = true;
        self.round.outcome.bytes_between += transfer.bytes;
        self.after(self.on_link(from, transfer.node, transfer.bytes), Event::Received { transfer });
    }

    pub(super) fn received(&mut self, transfer: Transfer) {
        self.machines[transfer.from as usize].is_sending = false;
        self.machines[transfer.node as usize].is_receiving = false;
        let (core, delay) = self.costs().to_worker(transfer.bytes, &self.scenario.switches);
        self.move_to(transfer.node, core, delay, transfer.to);
        // Let the last sender go first, then the other nodes, because the receiver is free now.
        self.transmit(transfer.from);
        (0..self.machines.len() as u32).for_each(|node| self.transmit(node));
    }

    /// Time of a transfer, at the rate of the slower end.
    pub(super) fn on_link(&self, from: u32, to: u32, bytes: u64) -> Duration {
        let rates = [from, to].map(|node| self.machines[node as usize].rate);
        let rate = rates.into_iter().filter(|&rate| rate > 0).min().unwrap_or(0);
        at_rate(bytes.saturating_mul(8), rate)
    }
}
