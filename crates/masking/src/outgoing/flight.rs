//! Records which bytes to the client are in flight, acknowledged, or lost.
//!
//! Each transmission has a number. A segment is lost if a later transmission has arrived, and enough other
//! transmissions or enough time lie between the two (RACK, RFC 8985, in the form of RFC 9002 section 6.1). So
//! a lost retransmission is detected as well.

use std::collections::{BTreeSet, VecDeque};

use thalweg_wire::{Range, Ranges};

use crate::Time;
use thalweg_sending::{AckSample, Delivery, Stamp, Trips};

/// Bytes of the stream in one segment. The FIN counts as one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentRange {
    pub range: Range,
    pub fin: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    UnderWay,
    /// A SACK block has acknowledged the segment.
    Kept,
    Lost,
}

/// A segment that was sent and that no cumulative ACK covers yet.
#[derive(Debug)]
struct Sent {
    part: SentRange,
    /// Time and number of the latest transmission.
    at: Time,
    number: u64,
    /// Whether the segment was sent more than once. Then its ACK gives no RTT sample (Karn and Partridge
    /// 1987).
    again: bool,
    state: State,
    stamp: Stamp,
}

#[derive(Debug)]
pub(super) struct Flight {
    /// Segments that no cumulative ACK covers, by offset.
    sent: VecDeque<Sent>,
    /// Number of each transmission that is neither acknowledged nor lost yet, and an offset in its segment.
    /// Outdated entries are removed when they reach the front.
    open: VecDeque<(u64, u64)>,
    transmissions: u64,
    /// The newest transmission that has been acknowledged.
    newest: Option<u64>,
    /// Ranges acknowledged by SACK.
    kept: Ranges,
    /// First offsets of lost segments.
    lost: BTreeSet<u64>,
    under_way: u64,
    /// Segments in flight.
    segments: u64,
    lost_bytes: u64,
    pub trips: Trips,
    pub delivery: Delivery,
    /// When the next segment counts as lost, unless an ACK arrives earlier.
    pub loss_at: Option<Time>,
}

impl Flight {
    pub fn new() -> Self {
        Self {
            sent: VecDeque::new(),
            open: VecDeque::new(),
            transmissions: 0,
            newest: None,
            kept: Ranges::new(),
            lost: BTreeSet::new(),
            under_way: 0,
            segments: 0,
            lost_bytes: 0,
            trips: Trips::new(),
            delivery: Delivery::default(),
            loss_at: None,
        }
    }

    /// Bytes in flight.
    pub fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Number of segments in flight.
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// Number of separate ranges that SACK blocks have acknowledged.
    #[cfg(test)]
    pub fn ranges(&self) -> usize {
        self.kept.count()
    }

    /// Whether anything has to be retransmitted.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Records that new bytes are sent.
    pub fn send(&mut self, now: Time, part: SentRange) {
        let stamp = self.delivery.sent(now, self.segments == 0);
        let number = self.number(part.range.start);
        self.sent.push_back(Sent { part, at: now, number, again: false, state: State::UnderWay, stamp });
        self.count(part, 1);
    }

    /// Retransmits the first lost segment.
    pub fn repair(&mut self, now: Time) -> Option<SentRange> {
        let start = self.lost.pop_first()?;
        self.send_again(now, self.index(start))
    }

    /// Retransmits the last segment in flight. Its ACK shows which segments before it are lost (tail loss
    /// probe, RFC 8985 section 7).
    pub fn probe(&mut self, now: Time) -> Option<SentRange> {
        let index = self.sent.iter().rposition(|sent| sent.state == State::UnderWay)?;
        let part = self.sent[index].part;
        self.count(part, -1);
        self.send_again(now, index)
    }

    fn send_again(&mut self, now: Time, index: usize) -> Option<SentRange> {
        let stamp = self.delivery.sent(now, self.segments == 0);
        let number = self.number(self.sent.get(index)?.part.range.start);
        let sent = self.sent.get_mut(index)?;
        (sent.at, sent.number, sent.again, sent.state, sent.stamp) =
            (now, number, true, State::UnderWay, stamp);
        let part = sent.part;
        self.count(part, 1);
        Some(part)
    }

    fn number(&mut self, place: u64) -> u64 {
        self.transmissions += 1;
        self.open.push_back((self.transmissions, place));
        self.transmissions
    }

    /// Adds a segment to the counts of bytes and segments in flight (`by` is 1), or subtracts it (-1).
    fn count(&mut self, part: SentRange, by: i64) {
        self.under_way = self.under_way.saturating_add_signed(by * part.range.len() as i64);
        self.segments = self.segments.saturating_add_signed(by);
    }

    /// Index of the first segment that ends after `place`.
    fn index(&self, place: u64) -> usize {
        self.sent.partition_point(|sent| sent.part.range.end <= place)
    }

    /// Processes a cumulative ACK of `una` with SACK `blocks`. Returns a sample for the rate controller if
    /// the ACK acknowledges new data. `least` is the minimum RTT.
    pub fn acknowledged(
        &mut self,
        now: Time,
        una: u64,
        blocks: &[Range],
        least: Option<Time>,
    ) -> Option<AckSample> {
        let (before, lost_before) = (self.delivery.delivered(), self.lost_bytes);
        let mut trip = None;
        for &block in blocks.iter().filter(|block| block.start > una) {
            self.keep(now, block, &mut trip);
        }
        self.pass(now, una, &mut trip);
        if let Some((_, trip)) = trip {
            self.trips.measured(trip);
        }
        self.detect(now);
        let delivered = self.delivery.delivered();
        if delivered == before {
            return None;
        }
        self.trips.answered();
        let bytes = delivered - before;
        let fates = (bytes, self.lost_bytes - lost_before);
        let (under_way, trip, measured) =
            (self.under_way, trip.map(|(_, trip)| trip), self.delivery.measure(least));
        Some(AckSample { now, bytes, fates, delivered, under_way, trip, measured })
    }

    /// Processes a SACK block. An honest receiver reports no more ranges than there are segments, so ignore
    /// the block if there are more.
    fn keep(&mut self, now: Time, block: Range, trip: &mut Option<(u64, Time)>) {
        if self.kept.count() > self.sent.len() {
            return;
        }
        for fresh in self.kept.insert(block) {
            let mut index = self.index(fresh.start);
            while let Some(sent) = self.sent.get(index).filter(|sent| sent.part.range.start < fresh.end) {
                if sent.state != State::Kept && self.kept.covers(sent.part.range) {
                    self.mark_acknowledged(now, index, trip);
                    self.sent[index].state = State::Kept;
                }
                index += 1;
            }
        }
    }

    /// Processes the cumulative ACK.
    fn pass(&mut self, now: Time, una: u64, trip: &mut Option<(u64, Time)>) {
        self.kept.trim(una);
        while let Some(first) = self.sent.front().filter(|first| first.part.range.start < una) {
            if first.part.range.end > una {
                self.cut(una);
                break;
            }
            if first.state != State::Kept {
                self.mark_acknowledged(now, 0, trip);
            }
            self.sent.pop_front();
        }
    }

    /// Handles a cumulative ACK inside a segment. Ordinary receivers never send one.
    fn cut(&mut self, una: u64) {
        let Some(first) = self.sent.front_mut() else { return };
        let acknowledged = una - first.part.range.start;
        match first.state {
            State::UnderWay => self.under_way = self.under_way.saturating_sub(acknowledged),
            State::Lost => {
                self.lost.remove(&first.part.range.start);
                self.lost.insert(una);
            }
            State::Kept => {}
        }
        first.part.range.start = una;
    }

    /// Notes that a segment was acknowledged. If it was sent only once and has the highest number of all such
    /// segments, `trip` becomes its number and RTT.
    fn mark_acknowledged(&mut self, now: Time, index: usize, trip: &mut Option<(u64, Time)>) {
        let Some(sent) = self.sent.get(index) else { return };
        let (part, at, number, stamp) = (sent.part, sent.at, sent.number, sent.stamp);
        let (took, known) = (now.saturating_sub(at), !sent.again);
        match sent.state {
            State::UnderWay => self.count(part, -1),
            State::Lost => {
                self.lost.remove(&part.range.start);
                self.trips.reordered(self.newest.unwrap_or(number).saturating_sub(number));
                self.trips.late(took);
            }
            State::Kept => return,
        }
        self.delivery.arrived(now, part.range.len(), at, stamp);
        // An ACK that arrives too soon after a retransmission is for the first transmission.
        let believed = known || self.trips.smooth().is_some_and(|smooth| took >= smooth / 2);
        if believed {
            self.newest = self.newest.max(Some(number));
        }
        if known && trip.is_none_or(|(latest, _)| number > latest) {
            *trip = Some((number, took));
        }
    }

    /// Marks segments as lost after later ones were acknowledged, or after their time has passed.
    pub fn detect(&mut self, now: Time) {
        self.loss_at = None;
        let Some(newest) = self.newest else { return };
        let (packets, late) = (self.trips.packets(), self.trips.time_threshold());
        while let Some(&(number, place)) = self.open.front() {
            let index = self.index(place);
            let open = self.sent.get(index).filter(|s| s.number == number && s.state == State::UnderWay);
            if let Some(sent) = open {
                let due = sent.at + late;
                if number >= newest {
                    return;
                }
                if number + packets > newest && due > now {
                    self.loss_at = Some(due);
                    return;
                }
                self.lose(index);
            }
            self.open.pop_front();
        }
    }

    fn lose(&mut self, index: usize) {
        let Some(sent) = self.sent.get_mut(index).filter(|sent| sent.state == State::UnderWay) else {
            return;
        };
        sent.state = State::Lost;
        let part = sent.part;
        self.lost.insert(part.range.start);
        self.lost_bytes += part.range.len();
        self.count(part, -1);
    }

    /// Marks the first segment as lost.
    pub fn lose_first(&mut self) {
        self.lose(0);
    }

    /// Marks everything in flight as lost. Returns true if the first segment was already acknowledged by
    /// SACK: then the receiver may have dropped that data (RFC 2018 section 8).
    pub fn lose_all(&mut self) -> bool {
        (0..self.sent.len()).for_each(|index| self.lose(index));
        self.sent.front().is_some_and(|first| first.state == State::Kept)
    }

    /// Forgets everything: nothing counts as sent.
    pub fn clear(&mut self) {
        self.sent.clear();
        self.open.clear();
        self.lost.clear();
        self.kept = Ranges::new();
        (self.under_way, self.segments, self.loss_at) = (0, 0, None);
    }
}
