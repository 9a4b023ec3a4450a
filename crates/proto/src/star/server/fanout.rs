//! Sends the global model to the clients.

use thalweg_wire::control::{Content, Control, Interval, Parcel, Tracked};
use thalweg_wire::Ranges;

use super::{on_our_clock, Action, Duty, LinkId, Model, Server};
use crate::star::Round;
use crate::transfer::Outgoing;
use crate::{Fanout, Liveness, Span, Time};

impl Server {
    /// Takes one client into the round, and sends it the Offer. Returns its link.
    pub(super) fn enlist(&mut self, now: Time, sender: u32) -> Option<LinkId> {
        let number = self.round.as_ref()?.plan.number;
        if self.roster.member(sender).is_some_and(|member| self.is_late_for(&member.name, number)) {
            return None;
        }
        let round = self.round.as_mut()?;
        let member = self.roster.member_mut(sender).filter(|m| m.own.duty == Duty::Idle)?;
        let link = member.link?;
        if !round.assign(now, sender, &member.name, member.instance) {
            return None;
        }
        member.own.duty = Duty::Round;
        member.own.answer = None;
        let layout = self.config.layout.hash();
        let version = round.plan.version;
        member.own.gets_difference = version.is_some_and(|version| version.follows(member.own.held));
        let content = version.map_or(Content::Whole(layout), |version| {
            let (is_difference, checksum) = (member.own.gets_difference, version.checksum);
            Content::Tracked(Tracked { layout, is_difference, checksum })
        });
        let model = Parcel {
            number: round.plan.number,
            pushed: true,
            head: round.plan.config.clone().into_bytes(),
            content,
            same_as: None,
            weight: 0.0,
            deadline: None,
        };
        self.roster.send(link, Control::Offer(model));
        let in_order = self.roster.link(link).is_some_and(|served| served.session.in_order);
        if in_order && self.round.as_ref().is_some_and(Round::invites) {
            let wanted = Ranges::full(self.config.layout.bytes());
            self.roster.send(link, Control::Grant { parcel: number, wanted });
        }
        Some(link)
    }

    /// Takes a late or returning client into the round, and sends it the model. `holes`: the ranges that it
    /// lacks; `None`: all.
    pub(super) fn assign(&mut self, now: Time, sender: u32, holes: Option<Ranges>) {
        let Some(link) = self.enlist(now, sender) else { return };
        if holes.is_some() {
            if let Some(part) = self.round.as_mut().and_then(|r| r.part_mut(sender)) {
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

    /// Sends the model to the next client in turn, unless it is being sent to another.
    fn next_turn(&mut self, now: Time) {
        while self.turn.is_none() {
            let Some((link, wanted)) = self.turns.pop_front() else { return };
            if self.roster.link(link).is_some() {
                self.turn = Some(link);
                self.send_to(now, vec![link], wanted);
            }
        }
    }

    /// Notes that the model was sent on this link, or will not be. The next client's turn comes.
    pub(super) fn end_turn(&mut self, now: Time, link: LinkId) {
        if self.turn.take_if(|turn| *turn == link).is_some() {
            self.next_turn(now);
        }
    }

    /// Cancels all turns: this round's model is sent to no more clients.
    pub(super) fn end_turns(&mut self) {
        self.turn = None;
        self.turns.clear();
    }

    fn send_to(&mut self, now: Time, links: Vec<LinkId>, wanted: Ranges) {
        let Some(round) = self.round.as_ref().map(|r| r.plan.number) else { return };
        for &link in &links {
            self.roster.on_link(link, |served| {
                served.own = Some(Model { round, since: now, out: Outgoing::pushed() });
                served.count_anew();
                served.download = Some(Liveness::new(now, served.session.silence));
            });
        }
        let (differences, whole): (Vec<_>, Vec<_>) =
            links.into_iter().partition(|&link| self.gets_difference(link));
        for (links, difference) in [(whole, false), (differences, true)] {
            if !links.is_empty() {
                let wanted = wanted.clone();
                self.roster.act(Action::SendParcel { links, parcel: round, difference, wanted });
            }
        }
    }

    /// Whether the client on this link gets the round's model as a difference.
    fn gets_difference(&self, link: LinkId) -> bool {
        let member = self.roster.member_at(link).and_then(|sender| self.roster.member(sender));
        member.is_some_and(|member| member.own.gets_difference)
    }

    /// Handles that the model, or ranges of it, were sent on this link; `Err` says why not.
    pub(super) fn model_sent(&mut self, now: Time, link: LinkId, round: u32, outcome: Result<Span, String>) {
        let sent = self.roster.on_link(link, |served| {
            let model = served.own.as_mut().filter(|model| model.round == round && model.out.is_sending())?;
            let span = outcome.as_ref().map_or(Span { start: model.since, end: now }, |span| *span);
            let ends = model.out.sent(round, span);
            Some((span, ends, served.carried_down()))
        });
        let Some((span, ends, carried)) = sent.flatten() else { return };
        let Some(sender) = self.roster.member_at(link) else { return };
        if let Some(part) = self.part(sender, round) {
            part.down.carry(carried);
            part.down.extend_send(span);
        }
        if outcome.is_ok() {
            ends.for_each(|end| self.roster.send(link, end));
        }
        self.send_next(now, link);
        self.end_turn(now, link);
    }

    /// Handles a client's Grant: it lacks ranges of the round's model.
    pub(super) fn resend(&mut self, now: Time, link: LinkId, round: u32, holes: &Ranges) {
        if self.round.as_ref().is_some_and(|r| r.plan.number == round && !r.is_exported()) {
            self.roster.on_link(link, |served| {
                let fresh = || Model { round, since: now, out: Outgoing::default() };
                let model = served.own.get_or_insert_with(fresh);
                if model.round != round {
                    *model = fresh();
                }
                model.out.grant(holes);
            });
            self.send_next(now, link);
        }
    }

    /// Sends the ranges of the model that a client has granted, unless others are being sent to it.
    fn send_next(&mut self, now: Time, link: LinkId) {
        let next = self.roster.on_link(link, |served| {
            let model = served.own.as_mut()?;
            let wanted = model.out.next()?;
            model.since = now;
            let round = model.round;
            served.count_anew();
            Some((round, wanted))
        });
        if let Some((parcel, wanted)) = next.flatten() {
            let difference = self.gets_difference(link);
            self.roster.act(Action::SendParcel { links: vec![link], parcel, difference, wanted });
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
        if self.part(sender, round).is_none() {
            return;
        }
        let again = self.roster.resent_down(sender);
        if let Some(part) = self.part(sender, round) {
            part.down.retransmitted(again);
        }
        let Some(current) = self.round.as_mut().filter(|r| r.plan.number == round) else { return };
        let found = self.roster.on_link(link, |served| {
            served.download = None;
            served.offset
        });
        let Some(offset) = found else { return };
        let span = on_our_clock(at, offset, Span { start: current.started, end: now });
        current.received(now, sender, span, faults);
        let held = current.plan.version.filter(|_| faults.1 == 0).map(|version| version.number);
        if let Some(member) = self.roster.member_mut(sender) {
            member.own.held = held;
        }
    }
}
