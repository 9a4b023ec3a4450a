//! A node that has nodes below it: for the world above a node, and a world of its own for the nodes below.

use serde_json::json;
use thalweg_proto::{Time, TopKind, TreePlan};
use thalweg_wire::tree::Request;

use super::nodes::{weight, Answered, BYTES};
use super::world::{check_names, plan, End, TreeWorld};
use crate::common::network::Path;
use crate::common::SECOND;

/// The nodes below a middle node, and their clients.
pub type Below = &'static [(&'static str, &'static [&'static str])];

/// A middle node's process.
pub struct Middle {
    name: &'static str,
    nodes: Below,
    path: Path,
    seed: u64,
    world: TreeWorld,
    /// The time of the world above when this world's clock began.
    zero: Time,
    alive: bool,
    is_open: bool,
    /// The parent's task that the round is for.
    task: Option<u32>,
}

impl Middle {
    /// A middle node whose nodes have joined it. `path` is the path of each of them.
    pub fn new(name: &'static str, nodes: Below, seed: u64, path: Path) -> Self {
        let world = TreeWorld::over(seed, nodes, |_| path);
        Self { name, nodes, path, seed, world, zero: Time::ZERO, alive: true, is_open: false, task: None }
    }

    /// The world of the nodes below.
    pub fn world(&mut self) -> &mut TreeWorld {
        &mut self.world
    }

    pub fn open(&mut self) {
        self.is_open = true;
    }

    pub fn kill(&mut self) {
        self.alive = false;
    }

    /// Starts the process anew. It is not open, and the nodes below join it anew.
    pub fn restart(&mut self, now: Time) {
        let seed = self.seed + 1;
        *self = Self { zero: now, ..Self::new(self.name, self.nodes, seed, self.path) };
    }

    /// Nothing happens below for this time.
    pub fn pause(&mut self, time: Time) {
        self.zero += time;
    }

    pub fn next_time(&self) -> Option<Time> {
        let next = self.world.next_time().filter(|_| self.alive)?;
        Some(self.zero + next)
    }

    pub fn is_due(&self, now: Time) -> bool {
        self.next_time().is_some_and(|at| at <= now)
    }

    /// Lets the next thing happen below. Returns the answer to the parent's task if the round is over with it.
    pub fn step(&mut self) -> Option<(u32, Answered)> {
        self.world.step(self.world.tasks.now + 1000 * SECOND);
        self.answer()
    }

    fn answer(&mut self) -> Option<(u32, Answered)> {
        let end = self.world.take_end()?;
        let task = self.task.take()?;
        let End::Over { counting, .. } = &end else { panic!("a middle node's round does not fail: {end:?}") };
        check_names(&end);
        let participants: Vec<_> = self
            .clients()
            .into_iter()
            .map(|client| {
                let state = if counting.contains(client) { "whole" } else { "lost" };
                json!({ "client": client, "state": state, "samples": weight(client) })
            })
            .collect();
        let held = !counting.is_empty();
        let outcome = json!({ "round": self.world.number, "participants": participants, "failure": null });
        let head = json!({ "outcome": outcome, "held": held, "clients": self.clients() });
        let sums = held.then(|| self.world.sums());
        Some((task, Ok((head, sums, if held { BYTES } else { 0 }))))
    }

    fn clients(&self) -> Vec<&'static str> {
        self.nodes.iter().flat_map(|(_, clients)| clients.iter().copied()).collect()
    }

    /// Takes a request of the parent. Returns the answer, unless it is to come later.
    pub fn request(&mut self, now: Time, task: u32, request: Request) -> Option<Answered> {
        if !self.is_open {
            return Some(Ok((json!({ "unopened": true }), None, 0)));
        }
        match request {
            Request::Round { round, only, .. } => {
                let only = only.map(|only| only[self.name].iter().cloned().collect());
                self.task = Some(task);
                // Its own clock may be behind while nothing happens below.
                self.world.tasks.now = self.world.tasks.now.max(now.saturating_sub(self.zero));
                self.world.begin(TreePlan { only, ..plan(round, TopKind::Middle) });
                self.answer().map(|(_, answer)| answer)
            }
            Request::Wait { .. } => Some(Ok((json!({ "clients": self.clients() }), None, 0))),
            request => Some(Err(format!("a middle node was asked for {request:?}"))),
        }
    }
}
