//! How the global model gets to the clients.

use thalweg_wire::control::{Control, Interval};
use thalweg_wire::Ranges;

use super::clock::on_our_clock;
use super::{download_traffic, retransmitted, sum, Action, Duty, LinkId, Server};
use crate::{micros, Fanout, Liveness, Span, Time};

impl Server {
    /// Takes one client into the round; returns its link.
    pub(super) fn enlist(&mut self, now: Time, sender: u32) -> Option<LinkId> {
        let round = self.round.as_mut()?;
        let member = self.members.get_mut(&sender).filter(|m| m.duty == Duty::Idle)?;
        let link = member.link?;
        if !round.assign(now, sender, &member.name, member.instance) {
            return None;
        }
        member.duty = Duty::Round;
        member.verdict = None;
        let (number, config) = (round.plan.number, round.plan.config.clone());
        self.send(link, Control::Begin { round: number, config });
        Some(link)
    }

    /// Takes a late or returning client in; `holes`: what it lacks of the model, `None` all of it.
    pub(super) fn assign(&mut self, now: Time, sender: u32, holes: Option<Ranges>) {
        let Some(link) = self.enlist(now, sender) else { return };
        if holes.is_some() {
            if let Some(part) = self.round.as_mut().and_then(|r| r.parts.get_mut(&sender)) {
                part.down.resumed += 1;
            }
        }
        let wanted = holes.unwrap_or_else(|| Ranges::full(self.config.layout.bytes()));
        self.send_model(now, vec![link], wanted);
    }

    pub(super) fn send_model(&mut self, now: Time, links: Vec<LinkId>, wanted: Ranges) {
        if self.round.as_ref().is_none_or(|r| r.plan.fanout == Fanout::Concurrent) {
            return self.send_to(now, links, wanted);
        }
        self.turns.retain(|(link, _)| !links.contains(link));
        self.turns.extend(links.into_iter().map(|link| (link, wanted.clone())));
        self.next_turn(now);
    }

    /// The model goes to the next one in turn, if nobody else's is being sent.
    fn next_turn(&mut self, now: Time) {
        while self.turn.is_none() {
            let Some((link, wanted)) = self.turns.pop_front() else { return };
            if self.links.contains_key(&link) {
                self.turn = Some(link);
                self.send_to(now, vec![link], wanted);
            }
        }
    }

    /// The model has been sent to this link, or will not be.
    pub(super) fn end_turn(&mut self, now: Time, link: LinkId) {
        if self.turn.take_if(|turn| *turn == link).is_some() {
            self.next_turn(now);
        }
    }

    /// Nobody is sent this round's model any more.
    pub(super) fn end_turns(&mut self) {
        self.turn = None;
        self.turns.clear();
    }

    fn send_to(&mut self, now: Time, links: Vec<LinkId>, wanted: Ranges) {
        let Some(round) = self.round.as_ref().map(|r| r.plan.number) else { return };
        for link in &links {
            if let Some(state) = self.links.get_mut(link) {
                state.sending = Some((round, now));
                state.base = state.traffic;
                state.download = Some(Liveness::new(now, self.config.liveness));
            }
        }
        if !links.is_empty() {
            self.actions.push_back(Action::SendUpdate { links, round, wanted });
        }
    }

    /// The model, or the part of it asked for, has been sent, or `Err` why not.
    pub fn sent(&mut self, now: Time, link: LinkId, round: u32, outcome: Result<Span, String>) {
        let Some(state) = self.links.get_mut(&link) else { return };
        let Some((_, since)) = state.sending.take_if(|(number, _)| *number == round) else { return };
        let Some(sender) = state.sender else { return };
        let again = retransmitted(state.traffic, state.base);
        let span = outcome.as_ref().map_or(Span { start: since, end: now }, |span| *span);
        let carried = download_traffic(state);
        if let Some(part) = self.part(sender, round) {
            part.down.carry(carried);
            part.down.retransmissions = sum(part.down.retransmissions, again);
            part.down.extend_send(span);
        }
        if outcome.is_ok() {
            let sent = Interval { start: micros(span.start), end: micros(span.end) };
            self.send(link, Control::End { round, sent, retransmissions: again });
        }
        self.end_turn(now, link);
        self.advance(now);
    }

    pub(super) fn resend(&mut self, now: Time, link: LinkId, round: u32, holes: Ranges) {
        let current = self.round.as_ref().is_some_and(|r| r.plan.number == round);
        let Some(state) = self.links.get_mut(&link) else { return };
        if current && state.sending.is_none() {
            state.sending = Some((round, now));
            state.base = state.traffic;
            self.actions.push_back(Action::SendUpdate { links: vec![link], round, wanted: holes });
        }
    }

    pub(super) fn received(
        &mut self,
        now: Time,
        link: LinkId,
        sender: u32,
        round: u32,
        at: Interval,
        faults: (u64, u64),
    ) {
        let Some(current) = self.round.as_mut().filter(|r| r.plan.number == round) else { return };
        let Some(state) = self.links.get_mut(&link) else { return };
        state.download = None;
        let span = on_our_clock(at, state.offset, Span { start: current.started, end: now });
        current.received(now, sender, span, faults);
    }
}
