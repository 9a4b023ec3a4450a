//! Opens a round with its tasks, and closes it with its outcome.

use std::time::Duration;

use super::super::arrivals::Arrival;
use super::super::costs::at_rate;
use super::super::machine::{Machine, Range2, Standing};
use super::super::tasks::{dealt, Leaves, Task};
use super::super::{Levels, Outcome};
use super::{Engine, Event, Round};
use crate::reuse::WorkerRole;
use crate::{leaves_for, share, Plan, Scaling, Split, Time, Top, UPDATE};

impl Engine<'_> {
    pub(super) fn open(&mut self, round: u32, plan: &Plan, arrivals: &[Arrival], draws: u32) {
        let mut come = vec![0_u32; self.machines.len()];
        arrivals.iter().for_each(|arrival| come[arrival.node as usize] += 1);
        let used = (0..).zip(&come).filter(|(_, &come)| come > 0).map(|(node, _)| node).collect();
        let outcome = Outcome {
            round,
            counted: arrivals.len() as u32,
            nodes_used: come.iter().filter(|&&come| come > 0).count() as u32,
            arrival: arrivals[arrivals.len() - 1].at - arrivals[0].at,
            draws,
            ..Outcome::default()
        };
        self.round =
            Round { open: self.now, used, outcome, policy: Some(plan.top.clone()), ..Round::default() };
        self.scale(plan);
        for (node, &come) in (0..).zip(&come) {
            let leaves = self.lay_out(node, come);
            self.round.leaves.push(leaves);
        }
        self.open_tops(&plan.top);
        arrivals.iter().for_each(|arrival| self.at(arrival.at, Event::Arrived { node: arrival.node }));
    }

    /// Starts and ends workers as planned. With the autoscaler, that decides instead.
    pub(super) fn scale(&mut self, plan: &Plan) {
        if self.config.scaling == Scaling::Knative {
            return;
        }
        for tree in &plan.trees {
            self.machines[tree.node as usize].leaves = tree.leaves;
            if self.is_cold() {
                continue; // the first update starts them
            }
            (0..tree.start).for_each(|_| self.start(tree.node, WorkerRole::Leaf));
            (0..tree.stop).for_each(|_| self.end_idle(tree.node, WorkerRole::Leaf));
        }
    }

    /// Makes the tasks of a node that gets this many updates.
    pub(super) fn lay_out(&mut self, node: u32, come: u32) -> Leaves {
        let first = self.round.tasks.len();
        if come == 0 {
            return Leaves { first, end: first, ..Leaves::default() };
        }
        let flat = self.scenario.switches.levels == Levels::Flat;
        let ranges = self.config.split == Split::Ranges && !flat;
        let workers = self.config.workers.max(1);
        let (bytes, fixed) = (self.scenario.bytes, self.config.scaling == Scaling::Fixed);
        if ranges {
            for part in 0..workers {
                let range = share(bytes, part, workers);
                self.round.tasks.push(Task::new(node, WorkerRole::Leaf, range.end - range.start, come));
            }
        } else {
            let wanted = leaves_for(u64::from(come) * UPDATE, self.config.inputs);
            let (leaves, each) = match (flat, fixed) {
                (true, _) => (1, None),
                (_, true) => (workers.min(come), None),
                _ => (wanted, Some(self.config.inputs.max(1))),
            };
            let goals = dealt(come, leaves, each);
            self.round
                .tasks
                .extend(goals.into_iter().map(|goal| Task::new(node, WorkerRole::Leaf, bytes, goal)));
        }
        let end = self.round.tasks.len();
        let has_middle = !ranges && end - first > 1;
        let middle = has_middle.then_some(end);
        if has_middle {
            self.round.tasks.push(Task::new(node, WorkerRole::Middle, bytes, (end - first) as u32));
        }
        let left = if has_middle { 1 } else { (end - first) as u32 };
        Leaves { first, end, ranges, round: fixed && !ranges, come: 0, middle, left }
    }

    /// Makes the top's tasks, if the top's place is already known.
    pub(super) fn open_tops(&mut self, top: &Top) {
        let (nodes, bytes) = (self.round.used.len() as u32, self.scenario.bytes);
        match top {
            Top::Node { node } => {
                let own = self.round.used == [*node];
                if !(own && self.config.reuse) {
                    self.make_top(*node, bytes, nodes);
                }
            }
            Top::Sharded { .. } => {
                for (part, node) in (0..nodes).zip(self.round.used.clone()) {
                    let range = share(bytes, part, nodes);
                    self.make_top(node, range.end - range.start, nodes);
                }
            }
            Top::FirstFinished | Top::Nowhere => {}
        }
    }

    pub(super) fn make_top(&mut self, node: u32, bytes: u64, inputs: u32) {
        let first = self.round.tasks.len();
        let parts = if self.config.split == Split::Ranges { self.config.workers.max(1) } else { 1 };
        for part in 0..parts {
            let range = share(bytes, part, parts);
            self.round.tasks.push(Task::new(node, WorkerRole::Top, range.end - range.start, inputs));
        }
        self.round.left += parts;
        self.round.tops.push((node, Range2(first, first + parts as usize)));
    }

    pub(super) fn close(&mut self, arrivals: &[Arrival]) -> Outcome {
        let finish = at_rate(self.scenario.bytes, self.costs().finish);
        let done = self.round.done.unwrap_or(self.now).saturating_add(finish);
        self.now = done;
        let spread_end = self.spread_end();
        let bytes_peak = self.round.peak;
        let open = self.round.open;
        let lived: Duration = self
            .machines
            .iter()
            .flat_map(|machine| &machine.workers)
            .filter(|worker| worker.standing != Standing::Ended)
            .map(|worker| done.saturating_sub(worker.since.max(open)))
            .sum();
        if self.is_cold() {
            self.machines.iter_mut().for_each(Machine::end_all);
        }
        let reuse = self.config.reuse;
        for machine in &mut self.machines {
            machine.workers.iter_mut().filter(|_| reuse).for_each(|worker| worker.role = WorkerRole::Leaf);
        }
        let top = self.round.tops.first().map(|(node, _)| *node).or(self.round.used.first().copied());
        let sharded = self.round.tops.len() > 1;
        let mut outcome = std::mem::take(&mut self.round.outcome);
        outcome.top = top.filter(|_| !sharded);
        outcome.completion = done.saturating_sub(arrivals[0].at);
        outcome.spread = spread_end.saturating_sub(done);
        outcome.worker_seconds += lived;
        outcome.peak_bytes = bytes_peak;
        self.now = spread_end;
        outcome
    }

    /// Sends the new model to all nodes with updates. Returns when the last one has it.
    ///
    /// In each step every top sends to a different node, so that no link waits for another.
    pub(super) fn spread_end(&self) -> Time {
        let (used, bytes) = (&self.round.used, self.scenario.bytes);
        let from: Vec<u32> = match self.round.tops.len() {
            0 => used.first().copied().into_iter().collect(),
            _ => self.round.tops.iter().map(|(node, _)| *node).collect(),
        };
        let parts = from.len() as u32;
        let mut last = self.now;
        let mut free = vec![(self.now, self.now); self.machines.len()];
        for turn in 0..used.len() {
            for (part, &source) in (0..parts).zip(&from) {
                let target = used[(part as usize + turn) % used.len()];
                if target != source {
                    let range = share(bytes, part, parts);
                    let begin = free[source as usize].0.max(free[target as usize].1);
                    let end = begin.saturating_add(self.on_link(source, target, range.end - range.start));
                    (free[source as usize].0, free[target as usize].1) = (end, end);
                    last = last.max(end);
                }
            }
        }
        last
    }

    /// Updates the state for the next decision.
    pub(super) fn remember(&mut self, plan: Plan) {
        for (client, home) in self.state.clients.iter_mut().zip(&plan.homes) {
            client.home = *home;
        }
        if plan.planned {
            self.state.planned = plan.next.checked_sub(self.config.every);
            for tree in plan.trees {
                let node = &mut self.state.nodes[tree.node as usize];
                (node.estimate, node.needs) = (Some(tree.estimate), tree.needs);
            }
        }
        for (node, machine) in self.state.nodes.iter_mut().zip(&self.machines) {
            (node.workers, node.last_message) = (machine.count(WorkerRole::Leaf), self.now);
        }
    }
}
