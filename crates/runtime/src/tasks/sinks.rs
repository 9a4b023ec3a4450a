//! Sinks for the chunks of results (server) and tasks (client).

use std::sync::Arc;

use thalweg_proto::{ChunkReceiver, ClientMachine, Fit, LinkId, ServerMachine, TaskPlace};
use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, WireError};

use super::client::Worker;
use super::server::Tasks;
use crate::engine::{store, Dialer, Hub, Scratch};
use crate::lock;

/// The sink of a server's link: it receives results.
pub(crate) struct ResultSink {
    pub hub: Arc<Hub<Tasks>>,
    pub link: LinkId,
    pub ordered: bool,
    pub scratch: Scratch,
}

impl Sink for ResultSink {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        match lock(&self.hub.machine).place(self.hub.now(), self.link, chunk) {
            TaskPlace::Nothing => None,
            TaskPlace::Part { .. } => Some(self.scratch.take(chunk.length as usize)),
            TaskPlace::New { task, sender, total } => {
                self.hub.policy.store.claim(task, sender, Some(total), chunk.range()).map(Target::Place)
            }
        }
    }

    fn begun(&self, chunk: &ChunkHeader) {
        lock(&self.hub.machine).begun(self.hub.now(), self.link, chunk);
    }

    fn progress(&self, bytes: u64) {
        lock(&self.hub.machine).progress(self.hub.now(), self.link, bytes);
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        if outcome.is_ok() {
            let weight = || lock(&self.hub.machine).weight_of(self.link, chunk);
            self.hub.policy.judge(chunk, target.bytes(), weight);
        }
        // Only a known result has chunks in scratch buffers. Once a result was taken, further chunks of it
        // are not wanted.
        let claim = |range| self.hub.policy.store.claim(chunk.round, chunk.sender, None, range);
        let mut due = !self.ordered;
        let stored = |ok| {
            let mut machine = lock(&self.hub.machine);
            let fresh = machine.stored(self.hub.now(), self.link, chunk, ok);
            due |= machine.has_action();
            fresh
        };
        store(chunk, &target, outcome.is_ok(), claim, stored);
        self.scratch.give_back(target);
        // On a link without order, a chunk that arrives after the result's end may complete it.
        if due {
            self.hub.wake();
        }
    }
}

/// The sink of a client's link: it receives tasks.
pub(crate) struct TaskSink {
    pub dialer: Arc<Dialer<Worker>>,
    pub ordered: bool,
    pub scratch: Scratch,
}

impl Sink for TaskSink {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let (fit, total) = lock(&self.dialer.machine).fit(self.dialer.now(), chunk);
        match fit {
            Fit::Nothing => None,
            Fit::Part => Some(self.scratch.take(chunk.length as usize)),
            Fit::New => {
                let arena = self.dialer.policy.arena(chunk.round, Some(total))?;
                arena.claim(chunk.range()).ok().map(Target::Place)
            }
        }
    }

    fn begun(&self, chunk: &ChunkHeader) {
        lock(&self.dialer.machine).begun(self.dialer.now(), chunk);
    }

    fn progress(&self, bytes: u64) {
        lock(&self.dialer.machine).progress(self.dialer.now(), bytes);
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        let claim = |range| self.dialer.policy.arena(chunk.round, None)?.claim(range).ok();
        let stored = |ok| lock(&self.dialer.machine).stored(self.dialer.now(), chunk, ok);
        store(chunk, &target, outcome.is_ok(), claim, stored);
        self.scratch.give_back(target);
        if !self.ordered {
            self.dialer.wake(); // a chunk that arrives after the task's end may complete it
        }
    }
}
