//! The receiver's end of a parcel: what has come of it, what is asked for again, and when it is all there.

use std::collections::VecDeque;
use std::sync::Arc;

use thalweg_wire::control::MAX_HOLES;
use thalweg_wire::{ChunkHeader, Range, Ranges, Tolerance};

use super::{Fit, Reassembly};
use crate::{Span, Time};

/// How long chunks may trail behind an End where a link does not keep their order.
const SETTLE: Time = Time::from_millis(50);

/// What may be missing of a parcel.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rule {
    /// Something stands in for what did not come, as far as `tolerance` allows it; else everything has to come.
    pub stands_in: bool,
    pub tolerance: Arc<Tolerance>,
}

impl Rule {
    /// What of a parcel's holes nothing may stand in for.
    pub fn owed(&self, holes: &Ranges) -> Ranges {
        if self.stands_in {
            self.tolerance.owed(holes)
        } else {
            holes.clone()
        }
    }

    /// Why a parcel with these holes is refused, if it is: more of a tensor was lost than may be, or at the deadline
    /// something is missing that must not.
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

/// What an End, or the time after it, means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing yet: chunks may still come.
    Wait,
    /// These ranges have to be granted again.
    Ask(Ranges),
    /// It is here but for these holes, for which something stands in.
    Here(Ranges),
}

/// A parcel on its way in. It outlives its link: what has come stays.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    came: Reassembly,
    /// Whether its link keeps the order of messages and chunks.
    ordered: bool,
    /// What is granted, each until its End comes: they come in that order. First the parcel itself, or what was missing of
    /// it when its link was made anew.
    first: bool,
    /// Then what was lost of it, and is asked for again.
    again: VecDeque<Ranges>,
    /// Bytes of it that are still to come when it is looked for losses next.
    look: u64,
    /// When chunks no longer trail behind its End.
    settle: Option<Time>,
}

impl Incoming {
    /// Of `total` bytes nothing has come.
    pub fn new(total: u64) -> Self {
        Self {
            came: Reassembly::new(total),
            ordered: false,
            first: false,
            again: VecDeque::new(),
            look: 0,
            settle: None,
        }
    }

    /// A link begins to carry it, or what is missing of it.
    pub fn begin(&mut self, ordered: bool) {
        let look = self.came.total() / 2;
        (self.ordered, self.first, self.look, self.settle) = (ordered, true, look, None);
        self.again.clear();
    }

    /// What has come of it.
    pub fn came(&self) -> &Reassembly {
        &self.came
    }

    /// What has come of it, to note what comes.
    pub fn came_mut(&mut self) -> &mut Reassembly {
        &mut self.came
    }

    /// How a chunk fits into it. The first bytes of the chunk are here.
    pub fn fit(&mut self, now: Time, range: Range) -> Fit {
        self.came.touch(now);
        let fit = self.came.fit(range);
        if fit == Fit::Nothing {
            self.came.duplicate();
        }
        fit
    }

    /// A chunk is in its place; returns what of it is new.
    pub fn store(&mut self, now: Time, range: Range) -> Vec<Range> {
        let fresh = self.came.store(now, range);
        self.trails(now);
        fresh
    }

    /// Chunks that trail behind its End are waited for a while longer, unless it is whole now.
    pub fn trails(&mut self, now: Time) {
        if self.settle.is_some() {
            self.settle = Some(now + if self.came.is_whole() { Time::ZERO } else { SETTLE });
        }
    }

    /// When it is to be concluded, since no more chunks trail behind.
    pub fn settle(&self) -> Option<Time> {
        self.settle
    }

    /// Nothing of it is waited for any more.
    pub fn stop(&mut self) {
        self.settle = None;
    }

    /// The End of a grant has come. Returns whether it can be concluded now; else chunks may trail behind.
    pub fn ended(&mut self, now: Time) -> bool {
        if !std::mem::take(&mut self.first) {
            self.again.pop_front();
        }
        let over = self.ordered || self.came.is_whole();
        self.settle = (!over).then_some(now + SETTLE);
        over
    }

    /// All that was asked for was sent: either it is here, or what must come is asked for.
    pub fn conclude(&mut self, now: Time, rule: &Rule) -> Step {
        self.settle = None;
        if self.came.is_folding() {
            // Whether it is whole is not known yet.
            self.settle = Some(now + SETTLE);
            return Step::Wait;
        }
        let holes = self.came.holes();
        let owed = rule.owed(&holes);
        if owed.is_empty() {
            return Step::Here(holes);
        }
        self.ask(&owed).map_or(Step::Wait, Step::Ask)
    }

    /// What of this has not been asked for; it then is.
    fn ask(&mut self, owed: &Ranges) -> Option<Ranges> {
        let mut asked = Ranges::new();
        self.again.iter().flat_map(Ranges::iter).for_each(|range| _ = asked.insert(range));
        let fresh: Ranges = owed.iter().flat_map(|hole| asked.missing_in(hole)).collect();
        let wanted = fresh.first(MAX_HOLES);
        if wanted.is_empty() {
            return None;
        }
        self.again.push_back(wanted.clone());
        Some(wanted)
    }

    /// While it comes, what was lost of it so far is asked for: when half of it has come, half of the rest, and so on, so
    /// that at its end hardly more is to be asked for than was lost in the last round trip.
    ///
    /// Where a link keeps the order, what is missing of a chunk of which something has come is lost. One that is missing
    /// altogether may be on its way by another connection. `grid`: bytes of a chunk.
    pub fn lost(&mut self, chunk: &ChunkHeader, grid: u32, rule: &Rule) -> Option<Ranges> {
        let left = self.came.total().saturating_sub(chunk.offset);
        if !self.ordered || !self.first || left > self.look {
            return None;
        }
        self.look = left / 2;
        let owed = rule.owed(&self.came.holes());
        let before = owed.within(Range::new(0, chunk.offset));
        let lost = before.flat_map(|hole| begun(hole, u64::from(grid).max(1))).collect();
        self.ask(&lost)
    }

    /// When its first and last byte came.
    pub fn span(&self) -> Option<Span> {
        self.came.span()
    }
}

/// The parts of a hole that are of chunks, so many bytes apart, of which something has come.
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
