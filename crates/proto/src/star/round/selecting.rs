//! Which of the updates that have arrived are folded, in a round with more clients than it counts updates.
//!
//! An update that has arrived whole waits in the staging area until it is selected. A server that stands alone
//! selects the first ones, as many as the round's goal. At a node of a tree, the root names the clients whose
//! updates are folded. A round of the tree may then have several batches at a node. A batch ends when the root has
//! closed it and the named updates are folded: its updates are exported as sums. All other clients go on, and the
//! node keeps their updates. So if another node is lost with its sums, the root can still have these updates folded
//! in a further batch.

use std::collections::BTreeSet;

use thalweg_wire::tree::{Admit, Arrival};

use super::{Deferred, Ending, Participant, Round, RoundPlan};
use crate::star::{Outcome, State};
use crate::Time;

/// Which whole updates are folded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Selection {
    /// The first ones, as many as the round's goal.
    #[default]
    First,
    /// Those that [`Server::admit`](crate::Server::admit) names.
    Named {
        /// The batch's number in the round, from 1.
        batch: u32,
    },
}

/// What is known of the present batch, if updates are named.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The clients whose updates are folded.
    named: BTreeSet<String>,
    /// Whether no other clients will be named.
    is_closed: bool,
    /// Whether the root has said to wait only for the grace for clients that are away.
    has_enough: bool,
    /// What happened to updates in this batch.
    arrivals: Vec<Arrival>,
    /// Whether the batch is over, and its updates were exported.
    is_exported: bool,
}

impl Round {
    /// Whether another server selects the updates.
    pub(crate) fn is_selected_elsewhere(&self) -> bool {
        self.plan.selection != Selection::First
    }

    /// Keeps a whole staged update until it is selected.
    pub(crate) fn wait_for_selection(&mut self, staged: Deferred) {
        self.note_arrival(staged.sender, true);
        self.waiting.push(staged);
    }

    fn note_arrival(&mut self, sender: u32, can_fold: bool) {
        if let Some(part) = self.parts.get(&sender) {
            self.batch.arrivals.push(Arrival(part.client.clone(), can_fold));
        }
    }

    /// Notes that an update was refused. If it had been named, the root learns that it does not count.
    pub(super) fn note_refusal(&mut self, sender: u32) {
        if self.parts.get(&sender).is_some_and(|part| self.batch.named.contains(&part.client)) {
            self.note_arrival(sender, false);
        }
    }

    /// Takes the updates that are to be folded now from those that wait.
    pub(crate) fn take_selected(&mut self) -> Vec<Deferred> {
        if self.batch.is_exported {
            return Vec::new();
        }
        match self.plan.selection {
            Selection::First => {
                let room = self.limit().saturating_sub(self.selected()).min(self.waiting.len());
                self.waiting.drain(..room).collect()
            }
            Selection::Named { .. } => {
                let (parts, named) = (&self.parts, &self.batch.named);
                let is_named = |staged: &Deferred| {
                    parts.get(&staged.sender).is_some_and(|part| named.contains(&part.client))
                };
                let all = std::mem::take(&mut self.waiting);
                let (selected, waiting) = all.into_iter().partition(is_named);
                self.waiting = waiting;
                selected
            }
        }
    }

    /// How many updates were selected so far.
    fn selected(&self) -> usize {
        self.tally.of(&[State::Whole, State::Partial, State::Staged]) - self.waiting.len()
    }

    /// How many updates a round with a goal counts at most.
    fn limit(&self) -> usize {
        let RoundPlan { goal, expected, .. } = self.plan;
        if goal < expected {
            goal as usize
        } else {
            usize::MAX
        }
    }

    /// Whether no further update will be selected before those that are selected already are folded.
    pub(super) fn is_selection_over(&self) -> bool {
        match self.plan.selection {
            Selection::First => self.selected() >= self.limit(),
            Selection::Named { .. } => self.batch.is_closed,
        }
    }

    /// Whether a sender's staged update waits to be selected.
    pub(super) fn waits_for_selection(&self, sender: u32) -> bool {
        self.waiting.iter().any(|staged| staged.sender == sender)
    }

    /// How many updates are in sums that earlier batches have exported.
    pub(super) fn exported(&self) -> usize {
        self.exported.len()
    }

    /// Whether the present batch is over: its updates were exported, and no further batch has begun.
    pub(crate) fn is_exported(&self) -> bool {
        self.batch.is_exported
    }

    /// Whether the round is at this batch of this round of a tree.
    pub(crate) fn is_at(&self, number: u32, batch: u32) -> bool {
        self.plan.number == number && self.plan.selection == Selection::Named { batch }
    }

    /// Applies a request of the root: the clients whose updates are folded, whether the batch is closed, and whether it
    /// waits only for the grace. Requests may arrive out of order, so none takes anything back.
    pub(crate) fn admit(&mut self, admit: &Admit) {
        if !self.batch.is_exported {
            self.batch.named.extend(admit.clients.iter().cloned());
            self.batch.is_closed |= admit.last;
            self.batch.has_enough |= admit.enough;
        }
    }

    /// Ends the batch with the updates that were named so far.
    pub(crate) fn end_selection(&mut self) {
        self.batch.is_closed |= !self.batch.is_exported;
    }

    /// Whether the round has enough updates. At a node of a tree only the root knows.
    pub(super) fn has_enough(&self) -> bool {
        match self.plan.selection {
            Selection::First => {
                let updates = self.tally.of(&[State::Whole, State::Partial, State::Staged]);
                updates >= self.plan.enough.max(1) as usize
            }
            Selection::Named { .. } => self.batch.has_enough,
        }
    }

    /// The arrivals of this batch, but for the first `seen`.
    pub(crate) fn arrivals(&self, seen: usize) -> &[Arrival] {
        self.batch.arrivals.get(seen..).unwrap_or_default()
    }

    /// How a batch ends; `None` if it goes on. `whole`: the updates that it has folded.
    pub(super) fn batch_ending(&self, now: Time, whole: usize, may_get_more: bool) -> Option<Ending> {
        if self.batch.is_closed && self.batch.named.is_empty() {
            let number = self.plan.number;
            return Some(Ending::Failed(format!(
                "the root admitted no update of this node in round {number}"
            )));
        }
        // The root decides about updates that wait.
        let is_open = !self.waiting.is_empty() && !self.is_overdue(now) || may_get_more;
        (self.batch.is_closed || !is_open).then(|| self.settle(whole, self.is_overdue(now)))
    }

    /// Ends a batch: returns its outcome. Its updates are in the sums that are exported now. Clients that are receiving
    /// the model leave the round, and are returned too.
    pub(crate) fn export(&mut self, now: Time, ending: &Ending) -> (Outcome, Vec<u32>) {
        let is_new = |(sender, _): &(&u32, &Participant)| !self.exported.contains(sender);
        let parts = self.parts.iter().filter(is_new).map(|(_, part)| part.clone()).collect();
        let outcome = self.outcome_of(parts, now, ending);
        self.exported.extend(self.parts.iter().filter(|(_, part)| part.is_in()).map(|(sender, _)| *sender));
        self.batch.is_exported = true;
        let lacks_model = self.parts.iter().filter(|(_, part)| part.state == State::Receiving);
        let leaving: Vec<u32> = lacks_model.map(|(sender, _)| *sender).collect();
        for &sender in &leaving {
            if let Some(part) = self.parts.remove(&sender) {
                self.tally.leave(sender, part.state);
            }
            self.credits.release(sender);
        }
        (outcome, leaving)
    }

    /// Whether a round with this plan goes on with the updates that this one has not folded.
    pub(crate) fn is_continued_by(&self, plan: &RoundPlan) -> bool {
        let is_later = matches!(plan.selection, Selection::Named { batch } if batch > 1);
        self.is_exported() && is_later && self.plan.number == plan.number
    }

    /// Begins a further batch. The plan's clients are those that still have to deliver, and new ones.
    pub(crate) fn resume(&mut self, now: Time, plan: RoundPlan) {
        let settled = self.parts.values().filter(|part| part.is_settled()).count();
        let expected = plan.expected.saturating_add(u32::try_from(settled).unwrap_or(u32::MAX));
        // The deadline is the round's, and not the batch's.
        let left = self.deadline().map(|at| at.saturating_sub(now));
        let deadline = left.into_iter().chain(plan.deadline).min();
        self.plan = RoundPlan { expected, goal: expected, deadline, ..plan };
        (self.started, self.batch) = (now, Batch::default());
        let waiting: Vec<u32> = self.waiting.iter().map(|staged| staged.sender).collect();
        waiting.into_iter().for_each(|sender| self.note_arrival(sender, true));
    }

    /// Takes over a staged update of the round before, which has not been folded.
    pub(crate) fn adopt_staged(&mut self, staged: Deferred) {
        if let Some(weight) = self.parts.get(&staged.sender).map(Participant::counted_weight) {
            let since = staged.since.max(self.started);
            self.wait_for_selection(Deferred { weight, since, ..staged });
        }
    }

    /// The staged updates that wait to be selected, and that leave this round.
    pub(crate) fn take_waiting(&mut self) -> Vec<Deferred> {
        std::mem::take(&mut self.waiting)
    }
}
