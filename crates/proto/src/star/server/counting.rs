//! Decides which updates count. An update, or a part of it, counts only after its fold has succeeded.
//!
//! A staged update is accepted when it has been folded. With [`Partial::Keep`](crate::Partial::Keep) each
//! chunk counts when it has been folded. An update that cannot be folded is rejected. The client gets the
//! reason at once, or when it comes back. A round waits for running folds before it ends, since they change
//! its results.

use thalweg_wire::control::{Control, MAX_HOLES};
use thalweg_wire::{ChunkHeader, Range, Ranges};

use super::{Answer, Duty, LinkId, Server};
use crate::star::round::Participant;
use crate::{Partial, RoundAction, State, Time};

impl Server {
    /// Reports that a client's whole staged update was folded. `Err` says why none of it was.
    pub fn folded(&mut self, now: Time, sender: u32, outcome: Result<(), String>) {
        let Some(round) = &mut self.round else { return };
        if round.part(sender).is_none_or(|part| part.state != State::Staged) || round.is_deferred(sender) {
            return;
        }
        let number = round.part(sender).map_or(round.plan.number, |part| part.parcel);
        match outcome {
            Ok(()) => {
                round.folded(now, sender);
                self.answer(sender, number, Ok(()));
            }
            Err(reason) => self.reject(now, sender, number, &reason),
        }
        self.advance(now);
    }

    /// Reports that all ranges that [`Server::stored`] returned for a chunk were folded. `Err` says why none
    /// of them was.
    pub fn kept(
        &mut self,
        now: Time,
        link: LinkId,
        chunk: &ChunkHeader,
        fresh: &[Range],
        outcome: Result<(), String>,
    ) {
        let (sender, number) = (chunk.sender, chunk.round);
        let Some(part) = self.part(sender, number) else { return };
        part.incoming.reassembly_mut().settle(fresh, outcome.is_ok());
        let idle = !part.incoming.reassembly().is_folding();
        match outcome {
            Ok(()) => {
                part.incoming.trails(now);
                self.look_for_losses(link, sender, chunk);
            }
            Err(reason) => {
                self.reject(now, sender, number, &reason);
                self.advance(now);
            }
        }
        if idle && self.waits {
            self.advance(now);
        }
    }

    /// Refuses an update. The server needs no more of it.
    pub(super) fn reject(&mut self, now: Time, sender: u32, round: u32, reason: &str) {
        self.drop_staging_of(sender);
        if let Some(current) = &mut self.round {
            current.reject(now, sender, reason);
            if current.is_selected_elsewhere() {
                self.roster.want(RoundAction::Arrived);
            }
        }
        self.answer(sender, round, Err(reason.into()));
        if self.round.is_none() {
            self.drop_late(sender);
        }
    }

    /// Tells the process that sent the update its result, at once or when it is back. The result does not
    /// concern another process of the same client.
    pub(super) fn answer(&mut self, sender: u32, round: u32, verdict: Result<(), String>) {
        let (partial, is_accepted) = (self.config.partial, verdict.is_ok());
        let part = self.part(sender, round).map(|part| (part.instance, counted(part, partial, is_accepted)));
        let Some((instance, counted)) = part else { return };
        let withheld = self.round.as_ref().filter(|_| self.config.withhold).map(|round| round.plan.number);
        let Some(member) = self.roster.member_mut(sender).filter(|m| instance == m.instance) else {
            return;
        };
        let withheld = withheld.filter(|_| is_accepted);
        let answer = Answer { round, verdict, counted, withheld };
        member.own.answer = Some(answer.clone());
        self.set_duty(sender, Duty::Idle);
        if let Some(part) = self.part(sender, round) {
            part.incoming.stop();
        }
        let Some(link) = self.roster.link_of(sender) else { return };
        self.roster.on_link(link, |served| served.upload = None);
        self.roster.wake(link, None);
        self.send_answer(link, answer);
    }

    pub(super) fn send_answer(&mut self, link: LinkId, answer: Answer) {
        let Answer { round, verdict, counted, withheld } = answer;
        if withheld.is_some() {
            return;
        }
        if let Some(got) = counted {
            self.roster.send(link, Control::Have { parcel: round, got });
        }
        let message = match verdict {
            Ok(()) => Control::Accepted { parcel: round },
            Err(reason) => Control::Rejected { parcel: round, reason },
        };
        self.roster.send(link, message);
    }

    /// Repeats the result to a client whose update was accepted or refused. A client whose update is being
    /// folded gets it later. Returns false if the update was not received.
    pub(super) fn answered(&mut self, sender: u32, round: u32) -> bool {
        let verdict = match self.part(sender, round).map(|p| (p.state, p.reason.clone())) {
            Some((State::Whole | State::Partial, _)) => Ok(()),
            Some((State::Rejected, reason)) => Err(reason.unwrap_or_default()),
            Some((State::Staged, _)) => return true,
            _ => return false,
        };
        self.answer(sender, round, verdict);
        true
    }

    /// Whether the connected process of this client is the one that takes part in the round.
    pub(super) fn takes_part(&self, sender: u32, round: u32) -> bool {
        let instance = self.roster.member(sender).map(|member| member.instance);
        let part = self.round.as_ref().map_or_else(|| self.late.get(&sender), |r| r.part(sender));
        part.is_some_and(|part| part.parcel == round && instance == Some(part.instance))
    }
}

/// The ranges of an update that count. `None` if an accepted update counts completely, or a refused one not
/// at all. A message can name a limited number of ranges. If there are more, the shortest gaps between them
/// are left out.
pub(super) fn counted(part: &Participant, partial: Partial, is_accepted: bool) -> Option<Ranges> {
    let reassembly = part.incoming.reassembly();
    let counts = is_accepted || (partial == Partial::Keep && reassembly.bytes() > 0);
    let is_part = counts && !(is_accepted && reassembly.is_whole());
    is_part.then(|| reassembly.holes().longest(MAX_HOLES - 1).holes(reassembly.total()))
}
