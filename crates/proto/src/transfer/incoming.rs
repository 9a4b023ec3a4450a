//! The receiver's end of a parcel: what has arrived, what to ask for again, and when the parcel is complete.

use std::collections::VecDeque;
use std::sync::Arc;

use thalweg_wire::control::MAX_HOLES;
use thalweg_wire::{ChunkHeader, Range, Ranges, Tolerance};

use super::{Fit, Reassembly};
use crate::{Span, Time};

/// How long the receiver waits for more chunks after an End, and after each later chunk, if the link does not
/// keep the order.
const SETTLE: Time = Time::from_millis(50);

/// Which bytes of a parcel may stay missing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rule {
    /// Whether stand-ins replace missing bytes, as far as `tolerance` allows. If not, every byte must arrive.
    pub stands_in: bool,
    /// How much of each tensor may be lost.
    pub tolerance: Arc<Tolerance>,
}

impl Rule {
    /// The holes for which stand-ins are not allowed, so these bytes must arrive.
    pub fn owed(&self, holes: &Ranges) -> Ranges {
        if self.stands_in {
            self.tolerance.owed(holes)
        } else {
            holes.clone()
        }
    }

    /// Why a parcel with these holes is refused, if it is. Either more of a tensor was lost than is allowed,
    /// or at the deadline bytes are missing that must arrive.
    pub fn too_lossy(&self, holes: &Ranges, at_deadline: bool) -> Option<String> {
        if let Some((limit, lost)) = self.tolerance.refused(holes) {
            let (of, most) = (limit.range.len(), limit.refuse);
            return Some(format!(
                "lost {lost} of the {of} bytes of {:?}, of which {most} may be",
                limit.tensor
            ));
        }
        let owed = if at_deadline { self.tolerance.owed(holes) } else { Ranges::new() };
        let first = owed.iter().next()?;
        let (_, limit) = self.tolerance.touched(first).next()?;
        Some(format!(
            "lacked {} bytes at the deadline that must come, first of {:?}",
            owed.bytes(),
            limit.tensor
        ))
    }
}

/// The receiver's next step after an End, or after the wait that follows an End.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait: chunks may still arrive.
    Wait,
    /// Ask for these ranges again.
    Ask(Ranges),
    /// Use the parcel: all that must arrive is here. Stand-ins replace these holes.
    Here(Ranges),
}

/// A parcel that is received. It outlives its link: bytes that have arrived are kept.
#[derive(Debug, Clone)]
pub struct Incoming {
    reassembly: Reassembly,
    /// Whether the link keeps the order of messages and chunks.
    ordered: bool,
    /// Whether the End of the first grant on this link is still to come. That grant asks for the parcel, or
    /// for what was missing when the link was made anew. Ends arrive in the order of their grants.
    first: bool,
    /// The later grants on this link, which ask for lost ranges again, until their Ends arrive.
    again: VecDeque<Ranges>,
    /// The receiver looks for losses next when at most this many bytes are still to come.
    look: u64,
    /// When the wait for chunks after an End is over.
    settle: Option<Time>,
}

impl Incoming {
    /// A parcel of `total` bytes, of which nothing has arrived.
    pub(crate) fn new(total: u64) -> Self {
        Self {
            reassembly: Reassembly::new(total),
            ordered: false,
            first: false,
            again: VecDeque::new(),
            look: 0,
            settle: None,
        }
    }

    /// Notes that a link begins to carry the parcel, or its missing ranges.
    pub(crate) fn begin(&mut self, ordered: bool) {
        let look = self.reassembly.total() / 2;
        (self.ordered, self.first, self.look, self.settle) = (ordered, true, look, None);
        self.again.clear();
    }

    /// The ranges that have arrived.
    pub(crate) fn reassembly(&self) -> &Reassembly {
        &self.reassembly
    }

    /// The ranges that have arrived, for changes.
    pub(crate) fn reassembly_mut(&mut self) -> &mut Reassembly {
        &mut self.reassembly
    }

    /// How a chunk fits what has arrived. Called when the chunk's first bytes arrive.
    pub(crate) fn fit(&mut self, now: Time, range: Range) -> Fit {
        self.reassembly.touch(now);
        let fit = self.reassembly.fit(range);
        if fit == Fit::Nothing {
            self.reassembly.duplicate();
        }
        fit
    }

    /// Notes that a chunk was stored. Returns its new ranges.
    pub(crate) fn store(&mut self, now: Time, range: Range) -> Vec<Range> {
        let fresh = self.reassembly.store(now, range);
        self.trails(now);
        fresh
    }

    /// Prolongs the wait for chunks after an End, since one has arrived. Ends the wait if the parcel is
    /// whole.
    pub(crate) fn trails(&mut self, now: Time) {
        if self.settle.is_some() {
            self.settle = Some(now + if self.reassembly.is_whole() { Time::ZERO } else { SETTLE });
        }
    }

    /// When the caller must call [`Incoming::conclude`], because the wait for chunks after an End is over.
    pub(crate) fn settle(&self) -> Option<Time> {
        self.settle
    }

    /// Whether the End of the first grant on this link is still to come.
    pub(crate) fn is_first(&self) -> bool {
        self.first
    }

    /// Stops waiting for this parcel.
    pub(crate) fn stop(&mut self) {
        self.settle = None;
    }

    /// Notes the End of a grant. Returns whether the caller can conclude now. If not, chunks may still
    /// arrive, and [`Incoming::settle`] says until when to wait.
    pub(crate) fn ended(&mut self, now: Time) -> bool {
        if !std::mem::take(&mut self.first) {
            self.again.pop_front();
        }
        let over = self.ordered || self.reassembly.is_whole();
        self.settle = (!over).then_some(now + SETTLE);
        over
    }

    /// Decides what follows when everything that was asked for was sent: use the parcel, or ask for missing
    /// ranges.
    pub(crate) fn conclude(&mut self, now: Time, rule: &Rule) -> Step {
        self.settle = None;
        if self.reassembly.is_folding() {
            // Whether the parcel is whole is unknown until the folds are done.
            self.settle = Some(now + SETTLE);
            return Step::Wait;
        }
        let holes = self.reassembly.holes();
        let owed = rule.owed(&holes);
        if owed.is_empty() {
            return Step::Here(holes);
        }
        self.ask(&owed).map_or(Step::Wait, Step::Ask)
    }

    /// Records a request for those of the `owed` ranges that were not asked for yet, and returns them.
    fn ask(&mut self, owed: &Ranges) -> Option<Ranges> {
        let mut requested = Ranges::new();
        self.again.iter().flat_map(Ranges::iter).for_each(|range| _ = requested.insert(range));
        let fresh: Ranges = owed.iter().flat_map(|hole| requested.missing_in(hole)).collect();
        let wanted = fresh.first(MAX_HOLES);
        if wanted.is_empty() {
            return None;
        }
        self.again.push_back(wanted.clone());
        Some(wanted)
    }

    /// Looks for losses while the parcel arrives, and returns the lost ranges to ask for. It looks when half
    /// of the parcel has arrived, then half of the rest, and so on. So hardly more is missing at the End than
    /// the last round trip lost.
    ///
    /// On an ordered link, a range is lost if other bytes of its chunk have arrived. A chunk that is missing
    /// altogether may be on its way over another connection of the link. `grid`: bytes of a chunk.
    pub(crate) fn lost(&mut self, chunk: &ChunkHeader, grid: u32, rule: &Rule) -> Option<Ranges> {
        let left = self.reassembly.total().saturating_sub(chunk.offset);
        if !self.ordered || !self.first || left > self.look {
            return None;
        }
        self.look = left / 2;
        let owed = rule.owed(&self.reassembly.holes());
        let before = owed.within(Range::new(0, chunk.offset));
        let lost = before.flat_map(|hole| begun(hole, u64::from(grid).max(1))).collect();
        self.ask(&lost)
    }

    /// When the first and the last byte arrived.
    pub(crate) fn span(&self) -> Option<Span> {
        self.reassembly.span()
    }
}

/// The parts of a hole that lie in chunks of which other bytes have arrived. Chunks begin at multiples of
/// `grid` bytes.
fn begun(hole: Range, grid: u64) -> impl Iterator<Item = Range> {
    let first = hole.start.checked_next_multiple_of(grid).unwrap_or(u64::MAX).min(hole.end);
    let last = (hole.end - hole.end % grid).max(first);
    [Range::new(hole.start, first), Range::new(last, hole.end)].into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(all: &[(u64, u64)]) -> Ranges {
        all.iter().map(|&(start, end)| Range::new(start, end)).collect()
    }

    fn half(ordered: bool) -> Incoming {
        let mut incoming = Incoming::new(100);
        incoming.begin(ordered);
        incoming.store(Time::ZERO, Range::new(0, 50));
        incoming
    }

    #[test]
    fn what_did_not_come_is_asked_for_once() {
        let (mut incoming, rule) = (half(true), Rule::default());
        assert!(incoming.ended(Time::ZERO));
        assert_eq!(incoming.conclude(Time::ZERO, &rule), Step::Ask(ranges(&[(50, 100)])));
        assert_eq!(incoming.conclude(Time::ZERO, &rule), Step::Wait, "it is on its way");
        incoming.store(Time::ZERO, Range::new(50, 90));
        assert!(incoming.ended(Time::ZERO));
        assert_eq!(incoming.conclude(Time::ZERO, &rule), Step::Ask(ranges(&[(90, 100)])), "lost again");
        incoming.store(Time::ZERO, Range::new(90, 100));
        assert!(incoming.ended(Time::ZERO));
        assert_eq!(incoming.conclude(Time::ZERO, &rule), Step::Here(Ranges::new()));
    }

    #[test]
    fn without_order_chunks_may_trail_behind_an_end() {
        let mut incoming = half(false);
        assert!(!incoming.ended(Time::ZERO));
        assert_eq!(incoming.settle(), Some(SETTLE));
        incoming.store(SETTLE / 2, Range::new(50, 60));
        assert_eq!(incoming.settle(), Some(SETTLE / 2 + SETTLE));
        incoming.store(SETTLE, Range::new(60, 100));
        assert_eq!(incoming.settle(), Some(SETTLE), "it is whole");
        assert_eq!(incoming.conclude(SETTLE, &Rule::default()), Step::Here(Ranges::new()));
        assert_eq!(incoming.settle(), None);
    }

    #[test]
    fn something_may_stand_in_for_what_did_not_come() {
        let mut incoming = half(true);
        incoming.ended(Time::ZERO);
        let rule = Rule { stands_in: true, tolerance: Arc::default() };
        assert_eq!(incoming.conclude(Time::ZERO, &rule), Step::Here(ranges(&[(50, 100)])));
    }

    #[test]
    fn a_new_link_asks_anew() {
        let (mut incoming, rule) = (half(true), Rule::default());
        incoming.ended(Time::ZERO);
        incoming.conclude(Time::ZERO, &rule);
        incoming.begin(true);
        assert!(incoming.ended(Time::ZERO));
        assert_eq!(incoming.conclude(Time::ZERO, &rule), Step::Ask(ranges(&[(50, 100)])));
    }
}
