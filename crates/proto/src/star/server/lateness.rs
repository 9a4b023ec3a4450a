//! Clients that are still at work when their round ends, and whose updates count in a later round.
//!
//! With [`ServerConfig::stale`](super::ServerConfig::stale) the server does not tell such a client that its
//! round is over. The client continues to train, and sends its update under the number of the round whose
//! model it has. Between rounds its participation is in [`Server::late`]. The next round takes it over: the
//! client takes one of that round's places, gets no new model, and its update counts with a smaller weight.

use thalweg_wire::control::Control;

use super::{Duty, Server};
use crate::{State, Time};

impl Server {
    /// Takes the late clients into the round that begins. Tells those that are too late that their round is
    /// over.
    pub(super) fn adopt_late(&mut self, now: Time) {
        let limit = self.config.stale;
        let mut sent = Vec::new();
        for (sender, part) in std::mem::take(&mut self.late) {
            let Some(round) = &mut self.round else { return };
            let parcel = part.parcel;
            if round.plan.number.saturating_sub(parcel) > limit {
                self.forget_late(sender, parcel);
                continue;
            }
            if part.is_all_sent && part.state == State::Sending {
                sent.push((sender, parcel));
            }
            round.adopt(sender, part);
        }
        let staged = std::mem::take(&mut self.late_staged);
        if let Some(round) = &mut self.round {
            staged.into_iter().for_each(|staged| round.adopt_staged(staged));
        }
        for (sender, parcel) in sent {
            if let Some(link) = self.roster.link_of(sender) {
                self.conclude(now, link, sender, parcel);
            }
        }
    }

    /// Tells a client that its update cannot count any more.
    fn forget_late(&mut self, sender: u32, parcel: u32) {
        if let Some(round) = &mut self.round {
            round.credits.release(sender);
        }
        self.roster.want(super::RoundAction::Unstage { sender });
        self.set_duty(sender, Duty::Behind);
        if let Some(link) = self.roster.link_of(sender) {
            self.roster.on_link(link, |served| served.upload = None);
            self.roster.send(link, Control::Closed { parcel });
        }
    }

    /// Between rounds: drops what has arrived of a late client's update. The client takes part in the next
    /// round like all others.
    pub(super) fn drop_late(&mut self, sender: u32) {
        if self.late.remove(&sender).is_some() {
            self.late_staged.retain(|staged| staged.sender != sender);
            if self.rates.holds(sender) {
                self.roster.want(super::RoundAction::Unstage { sender });
            }
            self.rates.release(sender);
        }
    }

    /// Between rounds: notes that a late client's update is ready. It gets its grant in the next round.
    pub(super) fn offered_late(&mut self, now: Time, sender: u32, weight: f64, metrics: String) {
        let Some(part) = self.late.get_mut(&sender) else { return };
        if matches!(part.state, State::Training | State::Offered | State::Sending) {
            (part.weight, part.metrics) = (weight, metrics);
            (part.state, part.since) = (State::Offered, now);
            self.rates.request(sender);
        }
    }

    /// Between rounds: notes that a late client's link has ended.
    pub(super) fn lost_late(&mut self, now: Time, sender: u32, reason: &str) {
        let Some(part) = self.late.get_mut(&sender) else { return };
        if matches!(part.state, State::Lost | State::Staged) {
            return;
        }
        (part.state, part.since, part.reason) = (State::Lost, now, Some(reason.into()));
        if !self.rates.holds(sender) {
            self.rates.release(sender); // a client without a link must not be granted a place
        }
    }

    /// Between rounds: notes that a late client is back.
    pub(super) fn back_late(&mut self, now: Time, sender: u32) {
        if let Some(part) = self.late.get_mut(&sender).filter(|part| part.state == State::Lost) {
            (part.state, part.since, part.reason, part.departed) = (State::Training, now, None, false);
        }
    }
}
