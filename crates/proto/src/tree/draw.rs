//! Draws the clients that take part in a round, so that it counts exactly the wanted updates.
//!
//! If as many clients take part as updates count, it first draws so many clients, and then as many as the updates that
//! are still missing. The nodes run one round for each batch of drawn clients, and the next batch is drawn only after the
//! top has the sums of the batch before. So a round never counts too many updates, and no client trains twice.
//!
//! If more clients take part, the root says which of their updates count (`admitting`), and clients that have not
//! delivered go on in the next batch.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thalweg_wire::tree::Request;

use super::round::{Part, Stage, TreeRound};
use crate::star::lot;
use crate::Time;

/// How long a node waits for clients that are away before it says which are there.
const LOOK: Time = Time::from_millis(200);

/// How many updates a round counts, and which clients take part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Draw {
    /// How many updates the round counts.
    pub goal: u32,
    /// How many clients take part, at least as many as the goal; `None`: all.
    pub clients: Option<u32>,
    /// The job's seed. With the round's number and a client's name it determines that client's lot.
    pub seed: u64,
    /// No batch begins after this time, in microseconds, but the first; `None`: no limit.
    pub deadline: Option<u64>,
    /// How long clients that are away may take to come back if no other can be drawn, in microseconds.
    pub grace: u64,
}

impl Draw {
    /// Whether more clients take part than updates count.
    pub(super) fn has_spare_clients(&self) -> bool {
        self.clients.is_none_or(|clients| clients > self.goal)
    }
}

/// The state of a draw.
pub(super) struct Drawing {
    draw: Draw,
    asked: BTreeSet<String>,
    began: Time,
    /// Since when clients could be drawn: the end of the last batch.
    waiting: Time,
    /// The request that is not over: for the clients that are there, or for the rounds of a batch.
    pub ask: Option<u32>,
    /// Whether `ask` is a batch.
    is_batch: bool,
    /// When to draw again.
    pub timer: Option<Time>,
    is_done: bool,
}

impl Drawing {
    pub fn new(now: Time, draw: Draw) -> Self {
        Self {
            draw,
            asked: BTreeSet::new(),
            began: now,
            waiting: now,
            ask: None,
            is_batch: false,
            timer: None,
            is_done: false,
        }
    }

    pub fn goal(&self) -> usize {
        self.draw.goal as usize
    }

    /// Whether only some of the clients take part.
    pub fn draws_clients(&self) -> bool {
        self.draw.clients.is_some()
    }
}

impl TreeRound {
    /// Asks all nodes which clients are there.
    pub(super) fn look(&mut self) {
        self.ask_who_is_there(Time::ZERO);
    }

    fn ask_who_is_there(&mut self, within: Time) {
        let here = self.here();
        let ask = self.ask(Request::Wait { seconds: within.as_secs_f64() }, here);
        if let Some(drawing) = &mut self.drawing {
            (drawing.ask, drawing.is_batch) = (Some(ask), false);
        }
    }

    /// Goes on with the draw. Returns whether it is over.
    pub(super) fn drawn(&mut self, now: Time) -> bool {
        loop {
            let Some(drawing) = &self.drawing else { return true };
            if drawing.is_done {
                return true;
            }
            let is_batch = drawing.is_batch;
            if drawing.ask.is_some_and(|ask| !self.is_answered(ask))
                || !self.parts.iter().all(Part::is_settled)
            {
                return false;
            }
            let Some(drawing) = &mut self.drawing else { return true };
            if drawing.timer.is_some_and(|timer| timer > now) {
                return false;
            }
            drawing.timer = None;
            if is_batch {
                drawing.waiting = now;
                if self.missing() == 0 || self.is_late(now) {
                    return self.end_draw();
                }
                self.ask_who_is_there(Time::ZERO);
                continue;
            }
            if self.missing() == 0 || self.is_late(now) {
                return self.end_draw();
            }
            let batch = self.draw_batch();
            if !batch.is_empty() {
                self.begin_batch(batch);
                continue;
            }
            if self.waits_in_vain(now) {
                return self.end_draw();
            }
            self.ask_who_is_there(LOOK);
            if let Some(drawing) = &mut self.drawing {
                drawing.timer = Some(now + LOOK);
            }
            return false;
        }
    }

    fn end_draw(&mut self) -> bool {
        if let Some(drawing) = &mut self.drawing {
            drawing.is_done = true;
        }
        true
    }

    /// How many updates the round still lacks.
    fn missing(&self) -> usize {
        let counted: usize =
            self.parts.iter().filter(|part| part.counts()).map(|part| part.counting.len()).sum();
        let goal = self.drawing.as_ref().map_or(0, Drawing::goal);
        goal.saturating_sub(counted)
    }

    /// Whether no batch may begin any more.
    fn is_late(&self, now: Time) -> bool {
        let Some(drawing) = &self.drawing else { return true };
        let deadline = drawing.draw.deadline.map(Time::from_micros);
        !self.parts.is_empty() && deadline.is_some_and(|limit| now >= drawing.began + limit)
    }

    /// Whether nobody is left who could be drawn, or those who could be are away for too long.
    fn waits_in_vain(&self, now: Time) -> bool {
        let Some(drawing) = &self.drawing else { return true };
        let mut all = self.nodes.iter().flat_map(|node| &node.clients);
        now >= drawing.waiting + Time::from_micros(drawing.draw.grace)
            || all.all(|client| self.ended.contains(client) || drawing.asked.contains(client))
    }

    /// The clients that are drawn now, by node.
    fn draw_batch(&mut self) -> BTreeMap<String, Vec<String>> {
        let (missing, number) = (self.missing(), self.plan.number);
        let mut batch = self.take_going_on();
        let Some(drawing) = &mut self.drawing else { return BTreeMap::new() };
        let Draw { goal, clients, .. } = drawing.draw;
        let going_on: usize = batch.values().map(Vec::len).sum();
        let wanted = clients.map_or(usize::MAX, |clients| missing + clients.saturating_sub(goal) as usize);
        let mut lots = Vec::new();
        for node in self.nodes.iter().filter(|node| node.loss.is_none()) {
            if self.admitting.as_ref().is_some_and(|admitting| admitting.is_refusing(&node.name)) {
                continue;
            }
            let connected: BTreeSet<&String> = node.connected.iter().collect();
            // If all take part, their nodes wait for those that are away.
            let is_there = |client: &&String| match clients {
                Some(_) => connected.contains(client),
                None => !self.ended.contains(*client),
            };
            for client in node.clients.iter().filter(is_there) {
                if !drawing.asked.contains(client) {
                    lots.push((lot(drawing.draw.seed, number, client), client.clone(), node.name.clone()));
                }
            }
        }
        lots.sort();
        for (_, client, node) in lots.into_iter().take(wanted.saturating_sub(going_on)) {
            drawing.asked.insert(client.clone());
            batch.entry(node).or_default().push(client);
        }
        batch
    }

    fn begin_batch(&mut self, batch: BTreeMap<String, Vec<String>>) {
        let nodes: Vec<String> = batch.keys().cloned().collect();
        let ask = self.ask_for_rounds(nodes, false, Some(batch.clone()));
        let first = self.parts.len();
        for (node, clients) in batch {
            self.parts.push(Part::new(&node, clients, Some(ask), Stage::Asked));
        }
        if self.admitting.is_some() {
            self.begin_admitting(first..self.parts.len());
        }
        if let Some(drawing) = &mut self.drawing {
            (drawing.ask, drawing.is_batch) = (Some(ask), true);
        }
    }
}
