//! Tracks which ranges of one parcel have arrived, and when.

use thalweg_wire::{Range, Ranges};

use crate::{Span, Time};

/// How a chunk fits the ranges that have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// None of its bytes are here, so it may be received in place.
    New,
    /// Some of its bytes are here, and must not be overwritten.
    Part,
    /// All of its bytes are here or not expected, or it reaches beyond the parcel.
    Nothing,
}

/// The received ranges of one parcel.
#[derive(Debug, Clone)]
pub struct Reassembly {
    /// Bytes of the whole parcel.
    total: u64,
    /// The ranges that the sender sends; `None` if it sends all.
    part: Option<Ranges>,
    /// The ranges that have arrived and count.
    received: Ranges,
    /// The ranges that are being folded. They count once the fold has succeeded.
    folding: Ranges,
    /// Chunks that arrived more than once.
    duplicates: u64,
    /// Chunks that arrived damaged.
    corrupt: u64,
    /// When the first and the last byte arrived.
    span: Option<Span>,
}

impl Reassembly {
    /// A parcel of `total` bytes, of which nothing has arrived.
    pub fn new(total: u64) -> Self {
        Self {
            total,
            part: None,
            received: Ranges::new(),
            folding: Ranges::new(),
            duplicates: 0,
            corrupt: 0,
            span: None,
        }
    }

    /// Sets the ranges that the sender sends. Other ranges are not accepted.
    pub fn expect(&mut self, part: Ranges) {
        self.part = Some(part);
    }

    /// The ranges that the sender sends; `None` if it sends all.
    pub fn part(&self) -> Option<&Ranges> {
        self.part.as_ref()
    }

    /// Sets the ranges that the sender sends, as [`Reassembly::expect`]; `None`: all. More than before may be
    /// missing then.
    pub fn expect_all(&mut self, part: Option<Ranges>) {
        self.part = part;
    }

    /// Bytes that the sender sends.
    pub fn expected(&self) -> u64 {
        self.part.as_ref().map_or(self.total, Ranges::bytes)
    }

    /// Bytes of the whole parcel.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How the chunk of `range` fits.
    pub fn fit(&self, range: Range) -> Fit {
        if range.is_empty() || range.end > self.total {
            return Fit::Nothing;
        }
        let missing = self.unknown_in(range);
        if missing.is_empty() {
            Fit::Nothing
        } else if missing.first() == Some(&range) {
            Fit::New
        } else {
            Fit::Part
        }
    }

    /// The parts of `range` that are expected and not received.
    fn missing_in(&self, range: Range) -> Vec<Range> {
        match &self.part {
            None => self.received.missing_in(range),
            Some(part) => part.within(range).flat_map(|range| self.received.missing_in(range)).collect(),
        }
    }

    /// The parts of `range` that are expected, not received and not being folded.
    fn unknown_in(&self, range: Range) -> Vec<Range> {
        let missing = self.missing_in(range);
        if self.folding.is_empty() {
            return missing;
        }
        missing.into_iter().flat_map(|part| self.folding.missing_in(part)).collect()
    }

    /// Notes that the chunk of `range` has arrived. Returns its new parts, which the caller must fold and
    /// then pass to [`Reassembly::settle`].
    pub fn fold(&mut self, now: Time, range: Range) -> Vec<Range> {
        if range.end > self.total {
            return Vec::new();
        }
        let fresh = self.unknown_in(range);
        if fresh.is_empty() {
            self.duplicates += 1;
        }
        fresh.iter().for_each(|part| _ = self.folding.insert(*part));
        self.touch(now);
        fresh
    }

    /// Ends the folding of parts that [`Reassembly::fold`] returned. They are received if `folded`; else they
    /// are missing again.
    pub fn settle(&mut self, parts: &[Range], folded: bool) {
        for part in parts {
            self.folding = self.folding.iter().flat_map(|range| without(range, *part)).collect();
            if folded {
                self.received.insert(*part);
            }
        }
    }

    /// Whether any range is being folded.
    pub fn is_folding(&self) -> bool {
        !self.folding.is_empty()
    }

    /// Notes that the chunk of `range` was stored. Returns its new parts.
    pub fn store(&mut self, now: Time, range: Range) -> Vec<Range> {
        if range.end > self.total {
            return Vec::new();
        }
        let fresh = self.missing_in(range);
        fresh.iter().for_each(|part| _ = self.received.insert(*part));
        if fresh.is_empty() {
            self.duplicates += 1;
        }
        self.touch(now);
        fresh
    }

    /// Notes that bytes are arriving.
    pub fn touch(&mut self, now: Time) {
        let span = self.span.get_or_insert(Span { start: now, end: now });
        span.end = span.end.max(now);
    }

    /// Counts a chunk that arrived damaged.
    pub fn corrupt(&mut self) {
        self.corrupt += 1;
    }

    /// Counts a chunk that was not needed.
    pub fn duplicate(&mut self) {
        self.duplicates += 1;
    }

    /// The received ranges.
    pub fn received(&self) -> &Ranges {
        &self.received
    }

    /// The expected ranges that were not received.
    pub fn holes(&self) -> Ranges {
        match &self.part {
            None => self.received.holes(self.total),
            Some(_) => self.missing_in(Range::new(0, self.total)).into_iter().collect(),
        }
    }

    /// Whether all expected bytes were received.
    pub fn is_whole(&self) -> bool {
        self.received.bytes() == self.expected()
    }

    /// Received bytes.
    pub fn bytes(&self) -> u64 {
        self.received.bytes()
    }

    /// Fraction of the expected bytes that was received, 0 to 1.
    pub fn fraction(&self) -> f64 {
        if self.expected() == 0 {
            return 1.0;
        }
        self.received.bytes() as f64 / self.expected() as f64
    }

    /// Counts of chunks that arrived more than once, and of chunks that arrived damaged.
    pub fn faults(&self) -> (u64, u64) {
        (self.duplicates, self.corrupt)
    }

    /// When the first and the last byte arrived.
    pub fn span(&self) -> Option<Span> {
        self.span
    }
}

/// The parts of `range` that are outside of `other`.
fn without(range: Range, other: Range) -> impl Iterator<Item = Range> {
    let parts = [
        Range::new(range.start, range.end.min(other.start)),
        Range::new(range.start.max(other.end), range.end),
    ];
    parts.into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_new_from_part_from_known() {
        let mut update = Reassembly::new(100);
        assert_eq!(update.fit(Range::new(0, 10)), Fit::New);
        assert_eq!(update.store(Time::from_secs(1), Range::new(0, 10)), [Range::new(0, 10)]);
        assert_eq!(update.fit(Range::new(5, 15)), Fit::Part);
        assert_eq!(update.fit(Range::new(2, 8)), Fit::Nothing);
        assert_eq!(update.fit(Range::new(90, 101)), Fit::Nothing, "beyond the end");
        assert_eq!(update.store(Time::from_secs(3), Range::new(5, 15)), [Range::new(10, 15)]);
        assert_eq!(update.span(), Some(Span { start: Time::from_secs(1), end: Time::from_secs(3) }));
        assert_eq!(update.holes().iter().collect::<Vec<_>>(), [Range::new(15, 100)]);
    }

    #[test]
    fn what_is_being_folded_counts_only_when_that_is_done() {
        let mut update = Reassembly::new(100);
        assert_eq!(update.fold(Time::ZERO, Range::new(0, 60)), [Range::new(0, 60)]);
        assert_eq!((update.bytes(), update.is_folding()), (0, true));
        assert_eq!(update.fit(Range::new(10, 20)), Fit::Nothing, "it is not folded twice");
        assert_eq!(update.fit(Range::new(50, 70)), Fit::Part);
        assert_eq!(update.fold(Time::ZERO, Range::new(50, 100)), [Range::new(60, 100)]);
        update.settle(&[Range::new(0, 60)], false);
        assert_eq!(update.fit(Range::new(0, 60)), Fit::New, "it was not folded");
        update.settle(&[Range::new(60, 100)], true);
        assert_eq!((update.bytes(), update.is_folding()), (40, false));
        assert_eq!(update.fold(Time::ZERO, Range::new(60, 100)), []);
        assert_eq!(update.faults(), (1, 0));
    }

    #[test]
    fn of_what_is_sent_in_part_nothing_else_is_missed_or_taken() {
        let mut update = Reassembly::new(100);
        update.expect([Range::new(0, 20), Range::new(80, 100)].into_iter().collect());
        assert_eq!((update.expected(), update.total()), (40, 100));
        assert_eq!(update.fit(Range::new(20, 80)), Fit::Nothing);
        assert_eq!(update.fit(Range::new(10, 30)), Fit::Part);
        assert_eq!(update.fold(Time::ZERO, Range::new(10, 90)), [Range::new(10, 20), Range::new(80, 90)]);
        update.settle(&[Range::new(10, 20), Range::new(80, 90)], true);
        assert_eq!(update.store(Time::ZERO, Range::new(0, 30)), [Range::new(0, 10)]);
        assert_eq!((update.holes().bytes(), update.is_whole(), update.fraction()), (10, false, 0.75));
        update.store(Time::ZERO, Range::new(50, 100));
        assert!(update.is_whole() && update.holes().is_empty());
    }

    #[test]
    fn counts_faults_and_ends_whole() {
        let mut update = Reassembly::new(10);
        update.store(Time::ZERO, Range::new(0, 10));
        update.store(Time::ZERO, Range::new(0, 10));
        update.corrupt();
        assert_eq!(update.faults(), (1, 1));
        assert!(update.is_whole());
        assert!(Reassembly::new(0).is_whole());
    }
}
