//! Receives updates chunk by chunk, until each is complete or refused.

use thalweg_wire::control::{Control, Interval};
use thalweg_wire::ChunkHeader;

use super::{on_our_clock, LinkId, Partial, Place, RoundAction, Server, State, Stored};
use crate::star::round::{Deferred, Participant};
use crate::transfer::Step;
use crate::{Fit, Span, Time};

impl Server {
    /// Decides where the driver puts a chunk.
    pub fn place(&mut self, now: Time, link: LinkId, chunk: &ChunkHeader) -> Place {
        let Some((sender, part)) = self.uploading(link, chunk) else { return Place::Nothing };
        let weight = part.weight;
        match part.incoming.fit(now, chunk.range()) {
            Fit::New => Place::New { sender, weight },
            Fit::Part => Place::Part { sender, weight },
            Fit::Nothing => Place::Nothing,
        }
    }

    /// Foresees the place of a chunk before any of its bytes arrive. `None` unless all of it is new. It changes
    /// no state, because the chunk may never arrive.
    pub fn foresee(&mut self, link: LinkId, chunk: &ChunkHeader) -> Option<Place> {
        let (sender, part) = self.uploading(link, chunk)?;
        let weight = part.weight;
        let fit = part.incoming.reassembly().fit(chunk.range());
        (fit == Fit::New).then_some(Place::New { sender, weight })
    }

    /// Reports that the first bytes of a chunk have arrived. The driver asks for its place later, when it
    /// knows the chunk's length.
    pub fn begun(&mut self, now: Time, link: LinkId, chunk: &ChunkHeader) {
        if let Some((_, part)) = self.uploading(link, chunk) {
            part.incoming.reassembly_mut().touch(now);
        }
    }

    fn uploading(&mut self, link: LinkId, chunk: &ChunkHeader) -> Option<(u32, &mut Participant)> {
        let ours = chunk.job == self.config.job && chunk.layout == self.config.layout.hash();
        let sender = self.roster.member_at(link).filter(|&s| ours && s == chunk.sender)?;
        let part = self.part(sender, chunk.round)?;
        (part.state == State::Sending).then_some((sender, part))
    }

    /// Reports that a chunk was received intact (`Ok`), damaged (`Err(None)`), or with values that no update
    /// may have (`Err(reason)`). A chunk that cuts an element is refused, because a part of an element has no
    /// meaning.
    ///
    /// Returns the ranges that the driver must use. It must do so before it handles the round's end.
    pub fn stored(
        &mut self,
        now: Time,
        link: LinkId,
        chunk: &ChunkHeader,
        outcome: Result<(), Option<String>>,
    ) -> Option<Stored> {
        let cut = outcome.is_ok().then(|| self.cut(chunk)).flatten();
        let outcome = cut.map_or(outcome, |reason| Err(Some(reason)));
        let (keep, waits) = (self.config.partial == Partial::Keep, self.waits);
        let (sender, part) = self.uploading(link, chunk)?;
        let weight = part.weight;
        match outcome {
            // The round waits for running folds before it ends. New ones would keep it waiting for ever.
            Ok(()) if keep && waits => None,
            Ok(()) if keep => {
                let fresh = part.incoming.reassembly_mut().fold(now, chunk.range());
                Some(Stored { sender, weight, fresh })
            }
            Ok(()) => {
                let fresh = part.incoming.store(now, chunk.range());
                self.look_for_losses(link, sender, chunk);
                Some(Stored { sender, weight, fresh })
            }
            Err(None) => {
                part.incoming.reassembly_mut().corrupt();
                None
            }
            Err(Some(reason)) => {
                self.reject(now, sender, chunk.round, &reason);
                self.advance(now);
                None
            }
        }
    }

    /// Why a chunk that begins or ends inside an element is refused; `None` if it does not.
    fn cut(&self, chunk: &ChunkHeader) -> Option<String> {
        let (range, tensor) = (chunk.range(), self.config.layout.cut_by(chunk.range())?);
        Some(format!(
            "sent a chunk of bytes {}..{}, which cuts an element of tensor {:?}; cut at multiples of 8 bytes, as chunks of \
             the size that the server says are",
            range.start, range.end, tensor.name
        ))
    }

    /// Asks for lost ranges, if it is time to look for them. If the server waits for chunks after an End,
    /// sets the link's timer to the end of that wait.
    pub(super) fn look_for_losses(&mut self, link: LinkId, sender: u32, chunk: &ChunkHeader) {
        let (grid, rule) = (self.config.chunk, self.rule.clone());
        let Some(part) = self.part(sender, chunk.round) else { return };
        let (lost, settle) = (part.incoming.lost(chunk, grid, &rule), part.incoming.settle());
        if let Some(wanted) = lost {
            self.roster.send(link, Control::Grant { parcel: chunk.round, wanted });
        }
        if settle.is_some() {
            self.roster.wake(link, settle);
        }
    }

    pub(super) fn end(&mut self, now: Time, link: LinkId, sender: u32, round: u32, sent: Interval) {
        let started = self.round.as_ref().map_or(now, |r| r.started);
        if self.part(sender, round).is_none_or(|part| part.state != State::Sending) {
            return;
        }
        let counted = self.roster.on_link(link, |served| (served.offset, served.carried_up()));
        let again = self.roster.resent_up(sender);
        let Some(((offset, carried), part)) = counted.zip(self.part(sender, round)) else { return };
        part.up.carry(carried);
        part.up.retransmitted(again);
        part.up.extend_send(on_our_clock(sent, offset, Span { start: started, end: now }));
        let (over, settle) = (part.incoming.ended(now), part.incoming.settle());
        self.roster.wake(link, settle);
        if over {
            self.conclude(now, link, sender, round);
        }
    }

    /// Handles a client's count of retransmissions. If the update's round is over, the count goes to its next
    /// transfer.
    pub(super) fn counted(&mut self, sender: u32, round: u32) {
        if self.part(sender, round).is_none() {
            return;
        }
        let again = self.roster.resent_up(sender);
        if let Some(part) = self.part(sender, round) {
            part.up.retransmitted(again);
        }
    }

    pub(super) fn settle(&mut self, now: Time, link: LinkId) {
        let Some(sender) = self.roster.member_at(link) else { return };
        if let Some(parcel) = self.parcel_of(sender) {
            self.conclude(now, link, sender, parcel);
        }
    }

    /// Called when a client has sent all granted ranges. Either the update is complete, perhaps with
    /// stand-ins for holes, or the server asks for missing ranges, or it refuses the update because too much
    /// was lost.
    pub(super) fn conclude(&mut self, now: Time, link: LinkId, sender: u32, number: u32) {
        let (at_deadline, rule) = (self.ends_updates(now), self.rule.clone());
        let is_between = self.round.is_none();
        let Some(part) = self.part(sender, number) else { return };
        // A late update counts in the next round, which decides about it when it begins.
        part.is_all_sent = is_between;
        if is_between {
            return;
        }
        let reassembly = part.incoming.reassembly();
        if !reassembly.is_folding() {
            if let Some(reason) = rule.too_lossy(&reassembly.holes(), at_deadline) {
                return self.reject(now, sender, number, &reason);
            }
        }
        let (step, weight) = (part.incoming.conclude(now, &rule), part.counted_weight());
        let settle = part.incoming.settle();
        self.roster.wake(link, settle);
        match step {
            Step::Wait => {}
            Step::Ask(wanted) => self.roster.send(link, Control::Grant { parcel: number, wanted }),
            Step::Here(holes) => {
                self.roster.on_link(link, |served| served.upload = None);
                if let Some(round) = &mut self.round {
                    round.arrived(now, sender);
                }
                let staged = Deferred { sender, weight, since: now, holes };
                match (self.config.partial, &mut self.round) {
                    (Partial::Discard, Some(round)) => {
                        round.wait_for_selection(staged);
                        self.roster.want(RoundAction::Arrived);
                        self.fold_selected();
                    }
                    (Partial::Discard, None) => {}
                    (Partial::Keep, _) => self.answer(sender, number, Ok(())),
                }
            }
        }
    }

    /// Whether updates that are being sent end now, because the deadline has passed and stand-ins replace
    /// missing bytes. If so, the driver must call [`Self::observe`] before [`Self::timeout`], so that the
    /// links' counters are up to date.
    pub fn ends_updates(&self, now: Time) -> bool {
        self.config.stand_in.is_some() && self.round.as_ref().is_some_and(|round| round.is_overdue(now))
    }

    /// At the deadline, concludes the updates that are being sent with the bytes that have arrived.
    pub(super) fn conclude_overdue(&mut self, now: Time) {
        let Some(round) = self.round.as_ref().filter(|_| self.ends_updates(now)) else { return };
        self.waits |= round.is_folding();
        let begun = |part: &Participant| {
            let reassembly = part.incoming.reassembly();
            part.state == State::Sending && reassembly.bytes() > 0 && !reassembly.is_folding()
        };
        let late = round.parts().iter().filter(|(_, part)| begun(part));
        let late: Vec<(u32, u32)> = late.map(|(&sender, part)| (sender, part.parcel)).collect();
        for (sender, number) in late {
            let Some(link) = self.roster.link_of(sender) else { continue };
            let Some(carried) = self.roster.on_link(link, |served| served.carried_up()) else { continue };
            if let Some(part) = self.part(sender, number) {
                part.up.carry(carried);
            }
            self.conclude(now, link, sender, number);
        }
    }
}
