//! Folds the updates that are selected, and carries out what the root of a tree decides about the others.
//!
//! With [`Selection::Named`] the root of a tree names the clients whose updates this server folds. See
//! [`Selection`] for why a batch that is over leaves the other clients at work. They learn that the round is over
//! when the root has the mean ([`Server::confirm`]), or begins another round.

use thalweg_wire::tree::{Admit, Arrival};

use super::{Duty, RoundAction, Selection, Server};
use crate::{Ending, Time};

impl Server {
    /// Names clients whose updates are folded in a batch. Returns the batch's arrivals that the root does not know; an
    /// empty list if the batch is over. `None`: there is no news yet, or the batch has not begun.
    ///
    /// It does no harm to call this again with the same request.
    pub fn admit(&mut self, now: Time, admit: &Admit) -> Option<Vec<Arrival>> {
        let at = (admit.round, admit.batch);
        if let Some(round) = self.round.as_mut().filter(|round| round.is_at(at.0, at.1)) {
            round.admit(admit);
            self.advance(now);
        }
        if at <= self.ended_batch {
            return Some(Vec::new());
        }
        let round = self.round.as_ref().filter(|round| round.is_at(at.0, at.1))?;
        let news = round.arrivals(admit.seen).to_vec();
        (!news.is_empty()).then_some(news)
    }

    /// Ends a batch of a round with the updates that were named so far, because the root does not wait for it.
    pub fn end_selection(&mut self, now: Time) {
        if self.is_selected_elsewhere() {
            if let Some(round) = &mut self.round {
                round.end_selection();
            }
            self.advance(now);
        }
    }

    /// Whether another server selects the updates of this round.
    pub(super) fn is_selected_elsewhere(&self) -> bool {
        self.round.as_ref().is_some_and(|round| round.is_selected_elsewhere())
    }

    /// Has the updates folded that are selected now.
    pub(super) fn fold_selected(&mut self) {
        let Some(round) = &mut self.round else { return };
        for staged in round.take_selected() {
            if self.config.lazy {
                round.defer(staged);
            } else {
                self.roster.want(staged.fold());
            }
        }
    }

    /// Ends a batch. Clients that have the model go on with their updates.
    pub(super) fn end_batch(&mut self, now: Time, ending: &Ending) {
        let Some(round) = &mut self.round else { return };
        let number = round.plan.number;
        if let Selection::Named { batch } = round.plan.selection {
            self.ended_batch = (number, batch);
        }
        let (outcome, leaving) = round.export(now, ending);
        self.end_turns();
        for sender in leaving {
            if self.roster.member(sender).is_some_and(|member| member.own.duty == Duty::Round) {
                self.set_duty(sender, Duty::Behind);
                self.close_part(sender, number, None);
            }
        }
        self.roster.want(RoundAction::Arrived);
        self.roster.want(RoundAction::Ended(Box::new(outcome)));
    }

    /// Ends a round whose last batch is over. Nothing of its other updates counts.
    pub fn drop_exported(&mut self) {
        if self.round.as_ref().is_some_and(|round| round.is_exported()) {
            let now = self.advanced;
            self.leave_round(now);
        }
    }
}
