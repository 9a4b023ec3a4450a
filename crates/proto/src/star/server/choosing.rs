//! Which of the connected clients take part in a round.

use super::{Duty, Server, State};
use crate::star::choice::lot;
use crate::star::order::by_name;
use crate::star::round::Participant;
use crate::{Choice, Round, Time};

impl Server {
    /// The clients that may be taken into the round now, in the order of their names: all that are ready.
    /// With a choice by lot, only as many as there is room for.
    pub(super) fn candidates(&self, now: Time) -> Vec<u32> {
        let Some(round) = &self.round else { return Vec::new() };
        let number = round.plan.number;
        // If another server selects the updates, a client that came back without its model begins anew.
        let is_back = |part: &Participant| round.is_selected_elsewhere() && part.state == State::Lost;
        let ready = |sender: &u32| round.part(*sender).is_none_or(is_back);
        let members = self.roster.members().iter();
        let members = members.filter(|(s, m)| m.link.is_some() && m.own.duty == Duty::Idle && ready(s));
        let members = members.filter(|(_, m)| !self.is_late_for(&m.name, number));
        let mut named: Vec<(&str, u32)> = members.map(|(&sender, m)| (m.name.as_str(), sender)).collect();
        if let Choice::ByLot { seed } = round.plan.choice {
            named.sort_by_cached_key(|(name, _)| (lot(seed, round.plan.number, name), *name));
            named.truncate(round.room(now));
        }
        named.sort_by(|(one, _), (other, _)| by_name(one, other));
        named.into_iter().map(|(_, sender)| sender).collect()
    }

    /// With a choice by lot: gives the places of clients that will not come back to the next lots.
    pub(super) fn replace(&mut self, now: Time) {
        let has_room = |round: &Round| round.plan.choice != Choice::ByName && round.room(now) > 0;
        let open = self.round.as_ref().is_some_and(|round| has_room(round) && !round.is_overdue(now));
        if !open || self.roster.is_finished() {
            return;
        }
        for sender in self.candidates(now) {
            self.assign(now, sender, None);
        }
    }
}
