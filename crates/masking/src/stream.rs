//! The incoming stream: which bytes have arrived, and the state of each gap between them.
//!
//! A gap opens when a segment arrives and bytes in front of it are missing. The gap *waits* as long as
//! reordering may explain it. Meanwhile the receiver does not report it to the sender. After that the gap is
//! a hole, and the policy decides what happens. The receiver acknowledges a *masked* hole, reports it to the
//! application, and remembers it so that late data can still fill it. The cumulative ACK stops in front of a
//! *held* hole, and SACK blocks show it (RFC 2018), so that the sender retransmits it. Gaps in critical
//! ranges are held at once.
//!
//! The stream is *visible* up to the first waiting gap. ACKs describe that part only, and masked holes in it
//! count as received.

use std::collections::{BTreeMap, VecDeque};

use thalweg_wire::Range;

use super::policy::{Excess, Policy, Verdict};
use super::reordering::Reordering;
use super::sequence::before;
use crate::Time;

/// A range below the highest byte seen that has neither arrived nor been masked.
#[derive(Debug, Clone, Copy)]
struct Gap {
    range: Range,
    /// When the gap opened, or when its reordering timer last restarted.
    since: Time,
    /// Number of segments that had arrived when the gap opened or its timer restarted. All segments of the
    /// superpacket that opened the gap count as one: if one of them has overtaken the missing ones, all have.
    seen: u64,
    clocks: Clocks,
    held: bool,
    /// Whether budgets have counted the gap as lost.
    counted: bool,
}

/// A masked hole that late data may still fill. Even if the application no longer wants that data, its
/// arrival still shows how late reordered segments come.
#[derive(Debug, Clone, Copy)]
struct Mask {
    end: u64,
    /// These three are copied from the gap that became this hole.
    clocks: Clocks,
    since: Time,
    seen: u64,
}

/// The sender's timestamps (TSval) around a gap; 0 if the flow has no timestamps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clocks {
    /// The newest timestamp before the segment that opened the gap. Data with an older timestamp cannot fill
    /// the gap.
    pub before: u32,
    /// The timestamp of the segment that opened the gap. Data with a newer timestamp was retransmitted.
    pub now: u32,
}

/// A segment that fills gaps or masked holes.
#[derive(Debug, Clone, Copy)]
struct Filling {
    now: Time,
    /// Number of segments that had arrived before this segment.
    before: u64,
    /// The segment's timestamp (TSval), or 0.
    clock: u32,
    /// Whether the segment fills a held hole.
    repairs: bool,
}

/// How long a gap waits before it is a hole: until one of the two limits is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReorderWindow {
    pub time: Time,
    /// Number of segments that arrive after the gap; `None` for no such limit.
    pub packets: Option<u32>,
    /// The longest wait on a path that reorders.
    pub most: Time,
}

/// Result of an arrived segment.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    /// Ranges that have arrived for the first time. The flag says whether the range fills a masked hole.
    pub pieces: Vec<(Range, bool)>,
    /// Whether the segment opened a gap, or filled a part of a gap.
    pub moved_gaps: bool,
    /// The first range of the segment that had already arrived.
    pub duplicate: Option<Range>,
}

/// Result of [`Stream::resolve`].
#[derive(Debug, Default)]
pub(super) struct Resolved {
    /// Newly masked holes. The caller reports them to the application.
    pub holes: Vec<Range>,
    /// Whether new holes are held.
    pub held: bool,
    /// The budget that was exceeded, if any. The caller ends the flow.
    pub refused: Option<Excess>,
}

/// The stream dropped the segment, because it would have opened too many gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyGaps;

#[derive(Debug)]
pub(super) struct Stream {
    highest: u64,
    gaps: VecDeque<Gap>,
    most_gaps: usize,
    /// Masked holes that are remembered, by their first offset.
    masks: BTreeMap<u64, Mask>,
    most_masks: usize,
    reordering: Reordering,
    /// The longest delay that counts as reordering. Data that fills a gap later was retransmitted.
    latest: Time,
    /// Offset before which the application wants no late data. Such data only updates the reordering
    /// estimate.
    forgotten: u64,
    segments: u64,
    pub fin: Option<u64>,
    pub policy: Policy,
    /// Bytes that have arrived, each counted once.
    pub delivered: u64,
    /// Masked bytes that have not arrived.
    pub missing: u64,
    /// Bytes of held holes that have arrived.
    pub repaired: u64,
    /// Late bytes that filled masked holes.
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

    /// One past the highest byte that has arrived.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// One past the last byte that may be acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.gaps.front().map_or(self.highest, |gap| gap.range.start)
    }

    /// End of the visible part, which acknowledgements describe.
    pub fn visible(&self) -> u64 {
        self.gaps.iter().find(|gap| !gap.held).map_or(self.highest, |gap| gap.range.start)
    }

    /// Whether any hole is held, so that the sender has to retransmit.
    pub fn holding(&self) -> bool {
        self.gaps.iter().any(|gap| gap.held)
    }

    /// Whether the FIN has arrived, and every byte before it has arrived or is masked.
    pub fn is_complete(&self) -> bool {
        self.fin.is_some_and(|end| self.acknowledged() >= end)
    }

    /// The oldest timestamp (TSval) that data for the gap or masked hole at `range` can have.
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

    /// Processes the bytes of a packet, which was `segments` segments on the network.
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
            // One part of a retransmitted segment may fill a held hole, and another part a masked one.
            let repairs = self.gaps.iter().any(|gap| gap.held && !gap.range.intersect(old).is_empty());
            let seen = Filling { now, before, clock: clocks.now, repairs };
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

    /// Whether `range` splits a gap in two. An honest sender retransmits a hole from its first byte, which
    /// does not split the gap.
    fn splits(&self, range: Range) -> bool {
        let first = self.gaps.partition_point(|gap| gap.range.end <= range.start);
        let inside = |gap: &Gap| gap.range.start < range.start && range.end < gap.range.end;
        !range.is_empty() && self.gaps.get(first).is_some_and(inside)
    }

    /// The first part of `old` that is not among `pieces`, which are in ascending order.
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

    /// Appends a gap, split into critical and other parts. The critical parts are held at once. The split may
    /// exceed the bound on gaps, by at most the number of ranges that the application set.
    fn sort(&mut self, gap: Gap) {
        for (range, critical) in self.policy.pieces(gap.range) {
            self.gaps.push_back(Gap { range, held: critical, ..gap });
        }
    }

    /// Fills gaps with `old`. If part of a gap arrives, the reordering timer restarts for the rest. Bytes in
    /// front of the part have only now been overtaken, and bytes behind it may still be in flight. Returns
    /// whether reordered data arrived, which was sent only once.
    fn fill_gaps(&mut self, seen: Filling, old: Range, arrival: &mut Arrival) -> bool {
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
            // Without timestamps, data that fills a held gap counts as a retransmission.
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

    /// Restarts the reordering timers of the waiting gaps behind `offset`, since reordered data still
    /// arrives.
    fn wait_behind(&mut self, offset: u64, now: Time) {
        let behind = self.gaps.partition_point(|gap| gap.range.start < offset);
        for gap in self.gaps.range_mut(behind..).filter(|gap| !gap.held) {
            (gap.since, gap.seen) = (now, self.segments);
        }
    }

    /// Returns whether a segment that fills a gap was reordered, and not retransmitted. If it was reordered,
    /// records how late it arrived.
    fn overtaken(&mut self, seen: Filling, since: Time, count: u64, clocks: Clocks) -> bool {
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

    fn fill_masks(&mut self, seen: Filling, old: Range, arrival: &mut Arrival) -> bool {
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
        // Splitting may leave two parts of a mask, so check the bound here too.
        while self.masks.len() > self.most_masks {
            self.masks.pop_first();
        }
        first
    }

    /// Notes that the application could still use these late bytes, so budgets stop counting them.
    pub fn filled(&mut self, part: Range) {
        self.policy.filled(part);
    }

    /// Masks or holds the gaps that have waited long enough.
    pub fn resolve(&mut self, now: Time, reorder_window: ReorderWindow) -> Resolved {
        let mut resolved = Resolved::default();
        let reorder_window = self.reordering.reorder_window(reorder_window);
        self.drop_masks(now);
        let mut at = 0;
        while let Some(&gap) = self.gaps.get(at) {
            let later = self.segments.saturating_sub(gap.seen);
            let enough = reorder_window.packets.is_some_and(|most| later >= u64::from(most));
            if gap.held || (!enough && now < gap.since + reorder_window.time) {
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
    pub fn deadline(&self, reorder_window: ReorderWindow) -> Option<Time> {
        let reorder_window = self.reordering.reorder_window(reorder_window);
        self.gaps.iter().filter(|gap| !gap.held).map(|gap| gap.since + reorder_window.time).min()
    }

    /// Changes the loss policy, and judges open gaps again. Held gaps before `shown` stay held: SACK blocks
    /// have shown them to the sender, which is retransmitting them.
    pub fn change(&mut self, shown: u64, change: impl FnOnce(&mut Policy)) {
        change(&mut self.policy);
        for gap in std::mem::take(&mut self.gaps) {
            if gap.held && gap.range.end < shown {
                self.gaps.push_back(gap);
            } else {
                self.sort(gap);
            }
        }
    }

    /// Notes that the application needs no late data before `offset`.
    pub fn forget(&mut self, offset: u64) {
        self.forgotten = self.forgotten.max(offset.min(self.acknowledged()));
        self.policy.forget(self.forgotten);
    }

    /// Forgets the first masked holes, if the application does not want their data and reordering can no
    /// longer deliver it.
    fn drop_masks(&mut self, now: Time) {
        while let Some(first) = self.masks.first_entry() {
            let mask = first.get();
            if mask.end > self.forgotten || now <= mask.since + self.latest {
                break;
            }
            first.remove();
        }
    }

    /// SACK blocks (RFC 2018), ascending: what has arrived between the cumulative ACK and the visible end.
    pub fn blocks(&self) -> Vec<Range> {
        let visible = self.visible();
        let held: Vec<Range> =
            self.gaps.iter().map(|gap| gap.range).take_while(|r| r.start < visible).collect();
        let ends = held.iter().skip(1).map(|gap| gap.start).chain([visible]);
        held.iter().zip(ends).map(|(gap, end)| Range::new(gap.end, end)).filter(|r| !r.is_empty()).collect()
    }

    /// Number of open gaps, and of masked holes that are remembered.
    pub fn tables(&self) -> (usize, usize) {
        (self.gaps.len(), self.masks.len())
    }
}
