//! The sender's end of a parcel: grants are answered one after the other, each with an End.

use thalweg_wire::Ranges;

/// A parcel on its way out.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// How many grants are being answered by what is sent now.
    sending: u32,
    /// What was granted meanwhile, by how many grants.
    waiting: Ranges,
    grants: u32,
}

impl Outgoing {
    /// A parcel whose chunks are sent without a grant: they are being sent now.
    pub fn pushed() -> Self {
        Self { sending: 1, ..Self::default() }
    }

    /// The receiver wants these ranges.
    pub fn grant(&mut self, wanted: &Ranges) {
        wanted.iter().for_each(|range| _ = self.waiting.insert(range));
        self.grants = self.grants.saturating_add(1);
    }

    /// What to send next, unless something is being sent, or nothing is granted.
    pub fn next(&mut self) -> Option<Ranges> {
        if self.sending > 0 || self.grants == 0 {
            return None;
        }
        self.sending = std::mem::take(&mut self.grants);
        Some(std::mem::take(&mut self.waiting))
    }

    /// What was to be sent has been sent. Returns how many grants that answered: as many Ends are to be said.
    pub fn sent(&mut self) -> u32 {
        std::mem::take(&mut self.sending)
    }

    /// Whether anything is being sent.
    pub fn is_sending(&self) -> bool {
        self.sending > 0
    }

    /// Whether something is granted that waits to be sent.
    pub fn is_granted(&self) -> bool {
        self.grants > 0
    }

    /// The link has ended: nothing is granted any more.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::Range;

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
        assert_eq!(out.sent(), 1);
        assert_eq!(out.next(), Some(ranges(&[(10, 30)])));
        assert_eq!(out.sent(), 2);
        assert_eq!((out.sent(), out.next()), (0, None));
    }

    #[test]
    fn a_pushed_parcel_is_being_sent_from_the_start() {
        let mut out = Outgoing::pushed();
        out.grant(&ranges(&[(0, 8)]));
        assert!(out.is_sending());
        assert_eq!((out.next(), out.sent()), (None, 1));
        assert_eq!(out.next(), Some(ranges(&[(0, 8)])));
        out.forget();
        assert_eq!((out.is_sending(), out.next()), (false, None));
    }
}
