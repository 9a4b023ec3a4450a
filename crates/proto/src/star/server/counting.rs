//! What counts: only the outcome of a fold says that an update, or a part of it, is in the mean.
//!
//! An update that was staged is accepted once it was folded. With [`Partial::Keep`](crate::Partial::Keep) each chunk
//! counts once it was folded. What cannot be folded is rejected, and the client hears the reason; if it is away, it
//! hears when it comes back. A round does not end while a fold is under way whose outcome would change it.

use thalweg_wire::control::Control;
use thalweg_wire::{ChunkHeader, Range};

use super::{Duty, LinkId, Server};
use crate::{State, Time};

impl Server {
    /// The staged update of a client was folded, all of it, or `Err` says why none of it was.
    pub fn folded(&mut self, now: Time, sender: u32, outcome: Result<(), String>) {
        let Some(round) = &mut self.round else { return };
        if round.part(sender).is_none_or(|part| part.state != State::Staged) || round.is_deferred(sender) {
            return;
        }
        let number = round.plan.number;
        match outcome {
            Ok(()) => {
                round.folded(now, sender);
                self.answer(sender, number, Ok(()));
            }
            Err(reason) => self.reject(now, sender, number, &reason),
        }
        self.advance(now);
    }

    /// What [`Server::stored`] gave out of a chunk was folded on arrival, all of it, or `Err` says why none of it was.
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
        part.incoming.came_mut().settle(fresh, outcome.is_ok());
        let idle = !part.incoming.came().is_folding();
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

    /// The update is refused, and nothing more of it is wanted.
    pub(super) fn reject(&mut self, now: Time, sender: u32, round: u32, reason: &str) {
        self.drop_staging_of(sender);
        if let Some(current) = &mut self.round {
            current.reject(now, sender, reason);
        }
        self.answer(sender, round, Err(reason.into()));
    }

    /// Tells the process that sent the update how it fared, at once or when it is back. Another process of the same
    /// client has nothing to do with it.
    pub(super) fn answer(&mut self, sender: u32, round: u32, verdict: Result<(), String>) {
        let instance = self.part(sender, round).map(|part| part.instance);
        let Some(member) = self.roster.member_mut(sender).filter(|m| instance == Some(m.instance)) else {
            return;
        };
        member.own.verdict = Some((round, verdict.clone()));
        self.set_duty(sender, Duty::Idle);
        if let Some(part) = self.part(sender, round) {
            part.incoming.stop();
        }
        let Some(link) = self.roster.link_of(sender) else { return };
        self.roster.on_link(link, |served| served.upload = None);
        self.roster.wake(link, None);
        self.tell(link, round, verdict);
    }

    pub(super) fn tell(&mut self, link: LinkId, round: u32, verdict: Result<(), String>) {
        let message = match verdict {
            Ok(()) => Control::Accepted { parcel: round },
            Err(reason) => Control::Rejected { parcel: round, reason },
        };
        self.roster.send(link, message);
    }

    /// Tells a client again whose update counts, or was refused. One whose update is being folded hears later, whatever it
    /// says meanwhile. `false` if its update has not come.
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

    /// Whether the process that is connected is the one that has this part in the round.
    pub(super) fn takes_part(&self, sender: u32, round: u32) -> bool {
        let instance = self.roster.member(sender).map(|member| member.instance);
        let current = self.round.as_ref().filter(|r| r.plan.number == round);
        current.and_then(|r| r.part(sender)).is_some_and(|part| instance == Some(part.instance))
    }
}
