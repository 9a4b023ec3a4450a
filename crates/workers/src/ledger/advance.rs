//! The steps that follow from the ledger's state: which updates to give to workers, when to commit, what to
//! release.

use super::{Action, Ledger, Order, Update, MOST_DEATHS};

impl Ledger {
    pub(super) fn drop_update(&mut self, sequence: u32, outcome: Result<(), String>) {
        self.queue.retain(|&waits| waits != sequence);
        if let Some(update) = self.updates.remove(&sequence) {
            self.actions.push_back(Action::Release { sequence });
            if !update.is_done {
                self.actions.push_back(Action::Done { sequence, outcome });
            }
        }
    }

    pub(super) fn tell(&mut self, worker: usize, order: Order) {
        let task = self.workers[worker].task;
        self.actions.push_back(Action::Tell { worker, task, order });
    }

    pub(super) fn give(&mut self, worker: usize, sequence: u32) {
        let Some(update) = self.updates.get(&sequence) else { return };
        let order = Order::Fold { sequence, name: update.name, weight: update.weight };
        self.workers[worker].given.insert(sequence);
        self.tell(worker, order);
    }

    /// Gives a worker again all updates that it has not committed, in order.
    pub(super) fn give_again(&mut self, worker: usize) {
        let is_its = |update: &Update| update.is_given && update.workers.contains(&worker);
        let all = self.updates.iter().filter(|(_, update)| is_its(update)).map(|(&sequence, _)| sequence);
        let wanted: Vec<u32> = all.filter(|&sequence| !self.workers[worker].has(sequence)).collect();
        wanted.into_iter().for_each(|sequence| self.give(worker, sequence));
    }

    pub(super) fn is_committing(&self) -> bool {
        self.workers.iter().any(|worker| worker.commit_requested || worker.has_committed)
    }

    pub(super) fn is_folded(&self, update: &Update, sequence: u32) -> bool {
        update.is_given && update.workers.iter().all(|&worker| self.workers[worker].has(sequence))
    }

    /// Takes every step that the current state allows. Fails the round if no step can end it.
    pub(super) fn advance(&mut self) {
        if self.failed.is_none() {
            self.take_steps();
            self.fail_if_stuck();
        }
    }

    /// Fails the round if a worker has work and is not started again.
    pub(super) fn fail_if_stuck(&mut self) {
        let is_stuck = |&worker: &usize| !self.is_wanted(worker) && self.has_work(worker);
        if let Some(worker) = (0..self.workers.len()).find(is_stuck) {
            self.fail(format!("worker {worker} died {MOST_DEATHS} times without having folded anything"));
        }
    }

    fn take_steps(&mut self) {
        loop {
            self.finish_updates();
            if !self.is_commit_due {
                self.give_queued();
                self.is_commit_due = self.is_closing;
            }
            if !self.is_commit_due || !self.commit() {
                return;
            }
        }
    }

    pub(super) fn give_queued(&mut self) {
        while let Some(sequence) = self.queue.pop_front() {
            let Some(update) = self.updates.get_mut(&sequence) else { continue };
            update.is_given = true;
            for worker in update.workers.clone() {
                if self.workers[worker].is_alive {
                    self.give(worker, sequence);
                }
            }
        }
    }

    /// Marks updates as done once all their workers have folded them. At most `reserve` updates that are done
    /// may stay in the pool; one more makes a commit due.
    pub(super) fn finish_updates(&mut self) {
        let mut done = self.updates.values().filter(|update| update.is_done).count();
        let mut fresh = Vec::new();
        for (&sequence, update) in &self.updates {
            if update.is_done || !self.is_folded(update, sequence) {
                continue;
            }
            if done >= self.reserve {
                self.is_commit_due = true;
                break;
            }
            done += 1;
            fresh.push(sequence);
        }
        for sequence in fresh {
            if let Some(update) = self.updates.get_mut(&sequence) {
                update.is_done = true;
                self.actions.push_back(Action::Done { sequence, outcome: Ok(()) });
            }
        }
    }

    /// Orders all workers to commit once they have folded everything they were given. `true` if all have
    /// committed.
    pub(super) fn commit(&mut self) -> bool {
        if !self
            .updates
            .iter()
            .all(|(&sequence, update)| !update.is_given || self.is_folded(update, sequence))
        {
            return false;
        }
        let parts: Vec<usize> = (0..self.workers.len()).filter(|&worker| self.is_part(worker)).collect();
        for &worker in &parts {
            let of = &mut self.workers[worker];
            if of.is_alive && !of.commit_requested && !of.has_committed {
                of.commit_requested = true;
                self.tell(worker, Order::Commit);
            }
        }
        if !parts.iter().all(|&worker| self.workers[worker].has_committed) {
            return false;
        }
        self.release_committed();
        true
    }

    pub(super) fn release_committed(&mut self) {
        self.commits += 1;
        let all: Vec<u32> = self.updates.iter().filter(|(_, u)| u.is_given).map(|(&s, _)| s).collect();
        // Release slots first: a caller that `Done` notifies may want a slot at once.
        for &sequence in &all {
            self.actions.push_back(Action::Release { sequence });
        }
        for sequence in all {
            if self.updates.remove(&sequence).is_some_and(|update| !update.is_done) {
                self.actions.push_back(Action::Done { sequence, outcome: Ok(()) });
            }
        }
        for worker in &mut self.workers {
            worker.in_base.clear();
            worker.has_committed = false;
        }
        self.is_commit_due = false;
        if self.is_closing && self.queue.is_empty() {
            self.is_closing = false;
            self.gather();
        }
    }
}
