//! A node in a round whose root admits updates: it tells of those that have arrived, and folds what is admitted. After
//! a batch it keeps the other updates for the next one.

use std::collections::BTreeSet;

use serde_json::json;
use thalweg_proto::Time;
use thalweg_wire::tree::{Admit, Arrival};

use super::nodes::{bit, weight, Happens, Mask, Nodes, BYTES};
use crate::common::SECOND;

/// How long a node waits for clients that are away, until the root has enough updates.
pub const OUTAGE: Time = Time::from_secs(100);

/// What a node has of a round.
#[derive(Default)]
pub struct Batch {
    /// The round and the batch.
    at: (u32, u32),
    task: u32,
    drawn: Vec<String>,
    arrivals: Vec<Arrival>,
    /// Clients that train.
    training: BTreeSet<String>,
    /// Updates that are not folded.
    waiting: Vec<String>,
    /// Clients that never deliver.
    silent: BTreeSet<String>,
    admitted: BTreeSet<String>,
    /// The clients whose updates were folded in this batch.
    folded: BTreeSet<String>,
    refused: BTreeSet<String>,
    is_last: bool,
    /// Whether the root has enough updates, or clients have been away for too long.
    is_done_waiting: bool,
    is_over: bool,
}

impl Nodes {
    pub(super) fn begin_batch(
        &mut self,
        now: Time,
        index: usize,
        (task, round, number): (u32, u32, u32),
        drawn: Vec<String>,
    ) {
        let before = self.processes[index].batch.take().filter(|batch| batch.at.0 == round && number > 1);
        let before = before.unwrap_or_default();
        let known = |client: &String| {
            [&before.training, &before.silent].iter().any(|all| all.contains(client))
                || before.waiting.contains(client)
        };
        let fresh: Vec<String> = drawn.iter().filter(|client| !known(client)).cloned().collect();
        let arrivals = before.waiting.iter().map(|client| Arrival(client.clone(), true)).collect();
        let mut batch = Batch {
            at: (round, number),
            task,
            drawn,
            arrivals,
            training: before.training,
            waiting: before.waiting,
            silent: before.silent,
            ..Batch::default()
        };
        for client in fresh {
            self.asked.push(client.clone());
            if self.rng.chance(self.absent) {
                self.failing.insert(client.clone());
                batch.silent.insert(client);
            } else {
                batch.training.insert(client.clone());
                let at = now + self.rng.time(SECOND);
                self.at(at, index, Happens::Arrives { round, client });
            }
        }
        if !batch.silent.is_empty() {
            self.at(now + OUTAGE, index, Happens::OutageEnds { at: batch.at });
        }
        self.processes[index].batch = Some(batch);
        self.settle_batch(index);
    }

    pub(super) fn client_arrives(&mut self, index: usize, round: u32, client: String) {
        let Some(batch) = self.processes[index].batch.as_mut().filter(|batch| batch.at.0 == round) else {
            return;
        };
        if batch.training.remove(&client) {
            batch.waiting.push(client.clone());
            batch.arrivals.push(Arrival(client, true));
        }
        self.settle_batch(index);
    }

    pub(super) fn outage_ends(&mut self, index: usize, at: (u32, u32)) {
        if let Some(batch) = self.processes[index].batch.as_mut().filter(|batch| batch.at == at) {
            batch.is_done_waiting = true;
        }
        self.settle_batch(index);
    }

    /// Folds what is admitted, answers the root, and ends the batch if that is due.
    pub(super) fn settle_batch(&mut self, index: usize) {
        let requests = std::mem::take(&mut self.processes[index].early);
        let Some(mut batch) = self.processes[index].batch.take() else {
            self.processes[index].early = requests;
            return;
        };
        for (_, admit) in requests.iter().filter(|(_, admit)| (admit.round, admit.batch) == batch.at) {
            if !batch.is_over {
                batch.admitted.extend(admit.clients.iter().cloned());
                batch.is_last |= admit.last;
                batch.is_done_waiting |= admit.enough;
            }
        }
        for client in std::mem::take(&mut batch.waiting) {
            if !batch.admitted.contains(&client) || batch.is_over {
                batch.waiting.push(client);
            } else if self.rng.chance(self.unfoldable) {
                batch.arrivals.push(Arrival(client.clone(), false));
                self.failing.insert(client.clone());
                batch.refused.insert(client);
            } else {
                batch.folded.insert(client);
            }
        }
        let is_waiting = !batch.silent.is_empty() && !batch.is_done_waiting;
        let is_done = batch.training.is_empty() && batch.waiting.is_empty() && !is_waiting;
        let ends = !batch.is_over && (batch.is_last || is_done);
        batch.is_over |= ends;
        for (task, admit) in requests {
            match self.news(&batch, &admit) {
                Some(news) => self.answer_root(index, task, Ok((json!({ "arrivals": news }), None, 0))),
                None => self.processes[index].early.push((task, admit)),
            }
        }
        if ends {
            self.answer_batch(index, &batch);
        }
        self.processes[index].batch = Some(batch);
    }

    fn news<'a>(&self, batch: &'a Batch, admit: &Admit) -> Option<&'a [Arrival]> {
        if (admit.round, admit.batch) != batch.at {
            return None;
        }
        let news = batch.arrivals.get(admit.seen..).unwrap_or_default();
        (batch.is_over || !news.is_empty()).then_some(if batch.is_over { &[] } else { news })
    }

    fn answer_batch(&mut self, index: usize, batch: &Batch) {
        let state = |client: &String| match client {
            _ if batch.folded.contains(client) => "whole",
            _ if batch.refused.contains(client) => "rejected",
            _ if batch.training.contains(client) || batch.waiting.contains(client) => "late",
            _ => "lost",
        };
        let participants: Vec<_> = batch
            .drawn
            .iter()
            .map(|client| json!({ "client": client, "state": state(client), "samples": weight(client) }))
            .collect();
        let sums: Mask = batch.folded.iter().map(|client| bit(client)).sum();
        let held = sums != 0;
        let outcome = json!({ "round": batch.at.0, "participants": participants, "failure": null });
        let clients = self.processes[index].clients.clone();
        let head = json!({ "outcome": outcome, "held": held, "clients": clients });
        let bytes = if held { BYTES } else { 0 };
        self.answer_root(index, batch.task, Ok((head, held.then_some(sums), bytes)));
    }
}
