//! The incoming stream: what has come, what waits for reordered packets, what is repaired, what is masked.
//!
//! A gap opens where a segment comes before those in front of it. It *waits* (nothing is said of it to the sender)
//! for as long as reordering may explain it; then it is *masked*: acknowledged, reported, and remembered so that late
//! data still fills it. A critical gap is *held*: the acknowledgement stays in front of it, and selective
//! acknowledgements show it (RFC 2018), so that the sender repairs it. Up to the first waiting gap the stream is
//! *visible*: acknowledgements speak of that part only, and in it masked holes count as received.

use std::collections::{BTreeMap, VecDeque};

use thalweg_wire::Range;

use super::policy::{Excess, Policy, Verdict};
use super::reordering::Reordering;
use super::sequence::before;
use crate::Time;

/// A part of the stream below the highest byte seen that has neither come nor been masked.
#[derive(Debug, Clone, Copy)]
struct Gap {
    range: Range,
    /// When it opened, or was filled in part.
    since: Time,
    /// Segments that had come by then. Those of the packet that opened it count as one: if one of them has overtaken what
    /// is missing, all have.
    seen: u64,
    clocks: Clocks,
    held: bool,
    /// Whether budgets have counted it as lost.
    counted: bool,
}

/// A hole that late data may still fill, or, once it is forgotten, tells how late it is by.
#[derive(Debug, Clone, Copy)]
struct Mask {
    end: u64,
    /// As of the gap that it was.
    clocks: Clocks,
    since: Time,
    seen: u64,
}

/// The sender's clock, where it has one: 0 otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clocks {
    /// As last seen before a segment: what fills a gap that this one opens cannot be older.
    pub before: u32,
    /// As of the segment: what fills the gap and is newer was sent again.
    pub now: u32,
}

/// A segment that fills something.
#[derive(Debug, Clone, Copy)]
struct Seen {
    now: Time,
    /// Segments that had come by then.
    before: u64,
    clock: u32,
    /// It fills something held.
    repairs: bool,
}

/// How long a gap waits before it counts as a hole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub time: Time,
    pub packets: Option<u32>,
    /// The longest that it may wait where packets are seen to come that late.
    pub most: Time,
}

/// What came of a segment's bytes.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    /// Bytes that were not there before, and whether they fill a hole that was reported.
    pub pieces: Vec<(Range, bool)>,
    /// It opened a gap, or filled some of one.
    pub moved_gaps: bool,
    /// The first of its bytes that had come before.
    pub duplicate: Option<Range>,
}

/// What came of waiting.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    /// Holes to be reported.
    pub holes: Vec<Range>,
    /// Gaps that are held from now on.
    pub held: bool,
    /// Where too much is lost.
    pub refused: Option<Excess>,
}

/// Why a segment is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyGaps;

#[derive(Debug)]
pub(super) struct Stream {
    highest: u64,
    gaps: VecDeque<Gap>,
    most_gaps: usize,
    /// By their beginnings.
    masks: BTreeMap<u64, Mask>,
    most_masks: usize,
    reordering: Reordering,
    /// What comes later than that was sent again.
    latest: Time,
    /// Late data before this is not wanted any longer, and only tells how late it is.
    forgotten: u64,
    segments: u64,
    pub fin: Option<u64>,
    pub policy: Policy,
    /// Bytes that came, each counted once.
    pub delivered: u64,
    /// Bytes that are masked and have not come.
    pub missing: u64,
    /// Bytes of holes that were held and then came.
    pub repaired: u64,
    /// Bytes that filled holes already reported.
    pub late: u64,
    pub duplicate: u64,
}

impl Stream {
    pub fn new(policy: Policy, most_gaps: usize, most_masks: usize, latest: Time) -> Self {
        Self {
            highest: 0,
            gaps: VecDeque::new(),
            most_gaps: most_gaps.max(1),
            masks: BTreeMap::new(),
            most_masks,
            reordering: Reordering::default(),
            latest,
            forgotten: 0,
            segments: 0,
            fin: None,
            policy,
            delivered: 0,
            missing: 0,
            repaired: 0,
            late: 0,
            duplicate: 0,
        }
    }

    /// One past the highest byte that has come.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// One past the last byte that may be acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.gaps.front().map_or(self.highest, |gap| gap.range.start)
    }

    /// Up to where acknowledgements say anything.
    pub fn visible(&self) -> u64 {
        self.gaps.iter().find(|gap| !gap.held).map_or(self.highest, |gap| gap.range.start)
    }

    /// Whether the sender has to repair something.
    pub fn holding(&self) -> bool {
        self.gaps.iter().any(|gap| gap.held)
    }

    /// Whether everything before the end has come or is masked.
    pub fn is_complete(&self) -> bool {
        self.fin.is_some_and(|end| self.acknowledged() >= end)
    }

    /// The sender's clock before a masked hole that `range` touches.
    pub fn floor(&self, range: Range) -> Option<u32> {
        let gap = self.gaps.iter().find(|gap| !gap.range.intersect(range).is_empty());
        self.masks_in(range).next().map(|(_, mask)| mask.clocks.before).or(gap.map(|gap| gap.clocks.before))
    }

    fn masks_in(&self, range: Range) -> impl Iterator<Item = (Range, Mask)> + '_ {
        let first = self.masks.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        let among = self.masks.range(first..range.end.max(first));
        among
            .map(|(&start, &mask)| (Range::new(start, mask.end), mask))
            .filter(move |(hole, _)| !hole.intersect(range).is_empty())
    }

    /// Takes the bytes of a segment, in so many pieces on the network.
    pub fn arrive(
        &mut self,
        now: Time,
        range: Range,
        segments: u32,
        clocks: Clocks,
    ) -> Result<Arrival, TooManyGaps> {
        let mut arrival = Arrival::default();
        if (range.start > self.highest || self.splits(range)) && self.gaps.len() >= self.most_gaps {
            return Err(TooManyGaps);
        }
        let before = self.segments;
        self.segments += u64::from(segments.max(1));
        if range.start > self.highest {
            let gap = Gap {
                range: Range::new(self.highest, range.start),
                since: now,
                seen: self.segments - 1,
                clocks,
                held: false,
                counted: false,
            };
            self.sort(gap);
            arrival.moved_gaps = true;
        }
        let old = range.intersect(Range::new(0, self.highest));
        if !old.is_empty() {
            // Of a segment that is sent again one part may fill what was held, and another what was not.
            let repairs = self.gaps.iter().any(|gap| gap.held && !gap.range.intersect(old).is_empty());
            let seen = Seen { now, before, clock: clocks.now, repairs };
            let first = self.fill_gaps(seen, old, &mut arrival) | self.fill_masks(seen, old, &mut arrival);
            if first {
                self.wait_behind(old.end, now);
            }
            arrival.pieces.sort_unstable();
            arrival.duplicate = self.not_in(old, &arrival.pieces);
        }
        if range.end > self.highest {
            let new = Range::new(range.start.max(self.highest), range.end);
            self.highest = range.end;
            self.delivered += new.len();
            if !new.is_empty() {
                arrival.pieces.push((new, false));
            }
        }
        Ok(arrival)
    }

    /// Whether `range` leaves something of a gap on either side. What a sender repairs first never does.
    fn splits(&self, range: Range) -> bool {
        let first = self.gaps.partition_point(|gap| gap.range.end <= range.start);
        let inside = |gap: &Gap| gap.range.start < range.start && range.end < gap.range.end;
        !range.is_empty() && self.gaps.get(first).is_some_and(inside)
    }

    /// The first part of `old` that is not among `pieces`, which rise.
    fn not_in(&mut self, old: Range, pieces: &[(Range, bool)]) -> Option<Range> {
        let fresh: u64 = pieces.iter().map(|(piece, _)| piece.len()).sum();
        self.duplicate += old.len() - fresh;
        let mut start = old.start;
        for (piece, _) in pieces {
            if piece.start > start {
                return Some(Range::new(start, piece.start));
            }
            start = piece.end;
        }
        (start < old.end).then(|| Range::new(start, old.end))
    }

    /// Appends a gap, its critical parts held. A split may pass the bound on gaps by the caller's own ranges.
    fn sort(&mut self, gap: Gap) {
        for (range, critical) in self.policy.pieces(gap.range) {
            self.gaps.push_back(Gap { range, held: critical, ..gap });
        }
    }

    /// What is left of a gap of which a part has come waits anew: what is in front of that part has only now been
    /// overtaken, and what is behind it is on its way, as the segments in front of it were. Whether something came for the
    /// first time that others had overtaken.
    fn fill_gaps(&mut self, seen: Seen, old: Range, arrival: &mut Arrival) -> bool {
        let mut first = false;
        let mut at = self.gaps.partition_point(|gap| gap.range.end <= old.start);
        while let Some(&gap) = self.gaps.get(at) {
            let part = gap.range.intersect(old);
            if part.is_empty() {
                break;
            }
            arrival.pieces.push((part, false));
            arrival.moved_gaps = true;
            self.delivered += part.len();
            if gap.held {
                self.repaired += part.len();
            }
            // Without the sender's clock what fills a held gap is taken for its repair.
            if !gap.held || seen.clock != 0 {
                first |= self.overtaken(seen, gap.since, gap.seen, gap.clocks);
            }
            self.gaps.remove(at);
            let left = Range::new(gap.range.start, part.start);
            let right = Range::new(part.end, gap.range.end);
            for (rest, count) in [(right, self.segments), (left, self.segments - 1)] {
                if !rest.is_empty() {
                    self.gaps.insert(at, Gap { range: rest, since: seen.now, seen: count, ..gap });
                }
            }
            at += usize::from(!left.is_empty());
        }
        first
    }

    /// Gaps behind `offset` wait anew: what was sent before them is still coming.
    fn wait_behind(&mut self, offset: u64, now: Time) {
        let behind = self.gaps.partition_point(|gap| gap.range.start < offset);
        for gap in self.gaps.range_mut(behind..).filter(|gap| !gap.held) {
            (gap.since, gap.seen) = (now, self.segments);
        }
    }

    /// Notes that a segment came late for a gap, and says so, unless it was sent again.
    fn overtaken(&mut self, seen: Seen, since: Time, count: u64, clocks: Clocks) -> bool {
        let first = if seen.clock == 0 { !seen.repairs } else { !before(clocks.now, seen.clock) };
        if first {
            self.reordering.filled(
                seen.now.saturating_sub(since),
                seen.before.saturating_sub(count),
                self.latest,
            );
        }
        first
    }

    fn fill_masks(&mut self, seen: Seen, old: Range, arrival: &mut Arrival) -> bool {
        let mut first = false;
        let touched: Vec<(Range, Mask)> = self.masks_in(old).collect();
        for (hole, mask) in touched {
            let part = hole.intersect(old);
            first |= self.overtaken(seen, mask.since, mask.seen, mask.clocks);
            self.masks.remove(&hole.start);
            for rest in [Range::new(hole.start, part.start), Range::new(part.end, hole.end)] {
                if !rest.is_empty() {
                    self.masks.insert(rest.start, Mask { end: rest.end, ..mask });
                }
            }
            let wanted = Range::new(part.start.max(self.forgotten).min(part.end), part.end);
            if wanted.is_empty() {
                continue;
            }
            self.delivered += wanted.len();
            self.late += wanted.len();
            self.missing -= wanted.len();
            arrival.pieces.push((wanted, true));
        }
        // What is left of a mask may be two.
        while self.masks.len() > self.most_masks {
            self.masks.pop_first();
        }
        first
    }

    /// Late bytes were still wanted.
    pub fn filled(&mut self, part: Range) {
        self.policy.filled(part);
    }

    /// Masks or holds the gaps that have waited long enough.
    pub fn resolve(&mut self, now: Time, patience: Patience) -> Resolved {
        let mut resolved = Resolved::default();
        let patience = self.reordering.patience(patience);
        self.drop_masks(now);
        let mut at = 0;
        while let Some(&gap) = self.gaps.get(at) {
            let later = self.segments.saturating_sub(gap.seen);
            let enough = patience.packets.is_some_and(|most| later >= u64::from(most));
            if gap.held || (!enough && now < gap.since + patience.time) {
                at += 1;
                continue;
            }
            match self.policy.judge(gap.range, self.highest, gap.counted) {
                Verdict::Mask => {
                    self.gaps.remove(at);
                    self.missing += gap.range.len();
                    self.reordering.hole();
                    self.remember(&gap);
                    resolved.holes.push(gap.range);
                }
                Verdict::Repair => {
                    self.gaps[at] = Gap { held: true, counted: true, ..gap };
                    resolved.held = true;
                    at += 1;
                }
                Verdict::Refuse(excess) => {
                    self.gaps[at].counted = true;
                    resolved.refused = Some(excess);
                    return resolved;
                }
            }
        }
        resolved
    }

    fn remember(&mut self, gap: &Gap) {
        if self.most_masks == 0 {
            return;
        }
        if self.masks.len() >= self.most_masks {
            self.masks.pop_first();
        }
        let &Gap { range, since, seen, clocks, .. } = gap;
        self.masks.insert(range.start, Mask { end: range.end, clocks, since, seen });
    }

    /// When the next gap will have waited long enough.
    pub fn deadline(&self, patience: Patience) -> Option<Time> {
        let patience = self.reordering.patience(patience);
        self.gaps.iter().filter(|gap| !gap.held).map(|gap| gap.since + patience.time).min()
    }

    /// Changes what may be lost; gaps are sorted anew, but for those whose repairs are on their way: blocks up to `told`
    /// have been reported.
    pub fn change(&mut self, told: u64, change: impl FnOnce(&mut Policy)) {
        change(&mut self.policy);
        for gap in std::mem::take(&mut self.gaps) {
            if gap.held && gap.range.end < told {
                self.gaps.push_back(gap);
            } else {
                self.sort(gap);
            }
        }
    }

    /// Late data before `offset` is not wanted any longer.
    pub fn forget(&mut self, offset: u64) {
        self.forgotten = self.forgotten.max(offset.min(self.acknowledged()));
        self.policy.forget(self.forgotten);
    }

    /// Drops masks that late data is neither wanted for nor expected in.
    fn drop_masks(&mut self, now: Time) {
        while let Some(first) = self.masks.first_entry() {
            let mask = first.get();
            if mask.end > self.forgotten || now <= mask.since + self.latest {
                break;
            }
            first.remove();
        }
    }

    /// What has come beyond the acknowledgement and may be said, rising (RFC 2018).
    pub fn blocks(&self) -> Vec<Range> {
        let visible = self.visible();
        let held: Vec<Range> =
            self.gaps.iter().map(|gap| gap.range).take_while(|r| r.start < visible).collect();
        let ends = held.iter().skip(1).map(|gap| gap.start).chain([visible]);
        held.iter().zip(ends).map(|(gap, end)| Range::new(gap.end, end)).filter(|r| !r.is_empty()).collect()
    }

    /// Gaps and masks in memory.
    pub fn tables(&self) -> (usize, usize) {
        (self.gaps.len(), self.masks.len())
    }
}
