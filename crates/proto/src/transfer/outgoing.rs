//! The sender's end of a parcel. It answers grants one after the other, each with an End.

use thalweg_wire::control::{Control, Interval};
use thalweg_wire::Ranges;

use super::Span;
use crate::micros;

/// A parcel that is sent, in the ranges that the receiver grants.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// How many grants the bytes that are being sent answer.
    sending: u32,
    /// The ranges of grants that arrived since then.
    waiting: Ranges,
    /// How many grants these were.
    grants: u32,
}

impl Outgoing {
    /// A parcel whose chunks are sent without a grant. The whole parcel is being sent now.
    pub fn pushed() -> Self {
        Self { sending: 1, ..Self::default() }
    }

    /// Adds a grant: the receiver wants these ranges.
    pub fn grant(&mut self, wanted: &Ranges) {
        wanted.iter().for_each(|range| _ = self.waiting.insert(range));
        self.grants = self.grants.saturating_add(1);
    }

    /// The ranges to send next. `None` if something is being sent, or no grant waits.
    pub fn next(&mut self) -> Option<Ranges> {
        if self.sending > 0 || self.grants == 0 {
            return None;
        }
        self.sending = std::mem::take(&mut self.grants);
        Some(std::mem::take(&mut self.waiting))
    }

    /// Notes that the ranges of this parcel were sent in this time. Returns the Ends to send: one for each
    /// grant that the ranges answered.
    pub fn sent(&mut self, parcel: u32, span: Span) -> impl Iterator<Item = Control> {
        let sent = interval(span);
        (0..std::mem::take(&mut self.sending)).map(move |_| Control::End { parcel, sent })
    }

    /// Whether ranges are being sent.
    pub fn is_sending(&self) -> bool {
        self.sending > 0
    }

    /// Whether a grant waits to be answered.
    pub fn is_granted(&self) -> bool {
        self.grants > 0
    }

    /// Forgets all grants, because the link has ended.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// A span as messages carry it.
pub(crate) fn interval(span: Span) -> Interval {
    Interval { start: micros(span.start), end: micros(span.end) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::Range;

    fn ends(out: &mut Outgoing) -> usize {
        out.sent(1, Span::default()).count()
    }

    fn ranges(all: &[(u64, u64)]) -> Ranges {
        all.iter().map(|&(start, end)| Range::new(start, end)).collect()
    }

    #[test]
    fn what_is_granted_meanwhile_is_sent_together_and_each_grant_has_its_end() {
        let mut out = Outgoing::default();
        assert_eq!(out.next(), None);
        out.grant(&ranges(&[(0, 100)]));
        assert_eq!(out.next(), Some(ranges(&[(0, 100)])));
        out.grant(&ranges(&[(10, 20)]));
        out.grant(&ranges(&[(15, 30)]));
        assert_eq!(out.next(), None, "one at a time");
        assert_eq!(ends(&mut out), 1);
        assert_eq!(out.next(), Some(ranges(&[(10, 30)])));
        assert_eq!(ends(&mut out), 2);
        assert_eq!((ends(&mut out), out.next()), (0, None));
    }

    #[test]
    fn a_pushed_parcel_is_being_sent_from_the_start() {
        let mut out = Outgoing::pushed();
        out.grant(&ranges(&[(0, 8)]));
        assert!(out.is_sending());
        assert_eq!((out.next(), ends(&mut out)), (None, 1));
        assert_eq!(out.next(), Some(ranges(&[(0, 8)])));
        out.forget();
        assert_eq!((out.is_sending(), out.next()), (false, None));
    }
}
