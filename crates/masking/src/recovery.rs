//! A model of the sender's recovery: it predicts which acknowledgement ends it, and so undoes the reduction.
//!
//! A recovery lasts until all is acknowledged that had been sent when it began (RFC 6675 section 5,
//! `RecoveryPoint`). The acknowledgement that ends it echoes a timestamp from before the retransmissions, so
//! the sender undoes its reduction. A partial acknowledgement must not do that: Linux would then assume that
//! the path reorders, forget its loss marks, and wait a quarter of a round trip or more before it marks
//! anything as lost again (`tcp_try_undo_partial`, RFC 8985 section 6.2).

use super::sequence::before;

/// What is known of the current recovery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovery {
    /// Our clock when the sender was told of the loss. For a recovery that follows another: when that one may
    /// have ended at the earliest, and at the latest. Data that echoes less than the first was sent before this
    /// recovery. A retransmission that echoes at least the second was sent in it.
    told: (u32, u32),
    /// One past the last byte acknowledged then.
    from: u64,
    /// Lower and upper bound of the recovery point: one past the last byte that had certainly been sent at its
    /// beginning, and that may have been.
    surely: u64,
    perhaps: u64,
    /// The timestamp of the first retransmission that has come.
    repaired: Option<u32>,
    /// If it may have ended: our clock, and one past the highest byte, at the first acknowledgement that may
    /// have ended it.
    over: Option<(u32, u64)>,
    /// It follows another recovery without a pause.
    follows: bool,
}

impl Recovery {
    /// Starts tracking a sender: our timestamp, its ACK, its highest byte.
    pub fn new(told: u32, from: u64, highest: u64) -> Self {
        Self {
            told: (told, told),
            from,
            surely: highest,
            perhaps: highest,
            repaired: None,
            over: None,
            follows: false,
        }
    }

    /// A segment up to `end` has come. `fills`: it is a retransmission.
    pub fn came(&mut self, (value, echo): (u32, u32), end: u64, fills: bool) {
        // Data that echoes the very tick was sent before too, if it comes before any retransmission. Not so if
        // this recovery follows another that was undone: then the sender has sent a burst.
        let same = !self.follows && echo == self.told.0 && self.repaired.is_none() && !fills;
        if before(echo, self.told.0) || same {
            self.surely = self.surely.max(end);
        } else if fills && self.repaired.is_none() && !before(echo, self.told.1) {
            self.repaired = Some(value);
        }
        // Within one clock tick, either may have been sent first.
        if self.repaired.is_none_or(|first| !before(first.wrapping_add(1), value)) {
            self.perhaps = self.perhaps.max(end);
        }
    }

    /// Whether an ACK up to `acknowledged` may end it, or repeats one that may have done so.
    pub fn may_end(&mut self, clock: u32, acknowledged: u64, highest: u64) -> bool {
        if acknowledged > self.from && acknowledged < self.surely {
            return false;
        }
        if acknowledged >= self.surely {
            self.over.get_or_insert((clock, highest));
        }
        true
    }

    /// The recovery after an ACK up to `acknowledged`, when all before `highest` has come. If it is over and
    /// something is `missing`, the next one begins.
    pub fn after(self, clock: u32, acknowledged: u64, highest: u64, missing: bool) -> Option<Self> {
        let Some((first, come)) = self.over.filter(|_| acknowledged >= self.perhaps) else {
            return Some(self);
        };
        let next = Self::new(first, acknowledged, come);
        missing.then_some(Self { told: (first, clock), perhaps: highest, follows: true, ..next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our clock is at 100 when the sender is told of a hole, and it hears of that at 120; what it sends comes at 140. A
    /// thousand bytes come in a tick of both clocks, which show the same.
    fn at(clock: u32) -> ((u32, u32), u64) {
        ((clock - 20, clock - 40), u64::from(clock) * 1000)
    }

    fn told() -> Recovery {
        let mut recovery = Recovery::new(100, 90_000, 100_000);
        for clock in 101..150 {
            let (clocks, end) = at(clock);
            if clock == 140 {
                recovery.came(clocks, 91_000, true);
            }
            recovery.came(clocks, end, false);
        }
        recovery
    }

    #[test]
    fn it_ends_with_what_was_sent_before_it_began() {
        let mut recovery = told();
        let ends: Vec<bool> = [90_000, 91_000, 138_999, 139_000, 141_000, 149_000]
            .iter()
            .map(|&acknowledged| recovery.may_end(150, acknowledged, 149_000))
            .collect();
        assert_eq!(ends, [true, false, false, true, true, true]);
        // The first of its repairs was sent when the clock was at 120, or 121.
        assert!(recovery.after(151, 140_999, 150_000, true).is_some_and(|same| same.over.is_some()));
        assert!(recovery.after(151, 141_000, 150_000, false).is_none());
    }

    #[test]
    fn what_is_missing_then_begins_the_next() {
        let mut recovery = told();
        assert!(recovery.may_end(150, 139_500, 149_000));
        let mut next = recovery.after(155, 141_000, 154_000, true).unwrap();
        // All that has come by then may have been sent before.
        assert_eq!((next.surely, next.perhaps), (149_000, 154_000));
        // The acknowledgement may be lost, and is repeated.
        assert!(next.may_end(156, 141_000, 155_000) && !next.may_end(156, 142_000, 155_000));
        // A repair of the one before says nothing of this one.
        next.came((129, 149), 120_000, true);
        assert_eq!(next.repaired, None);
        for clock in 156..200 {
            let (clocks, end) = at(clock);
            if clock == 195 {
                next.came(clocks, 143_000, true);
            }
            next.came(clocks, end, false);
        }
        // It may have begun with the first that may have ended the one before, or with the last. What echoes the tick of the
        // first may have been sent after it.
        assert!(!next.may_end(200, 188_999, 199_000) && next.may_end(200, 189_000, 199_000));
        assert!(next.after(200, 195_999, 199_000, true).is_some_and(|same| same.over.is_some()));
        assert!(next.after(200, 196_000, 199_000, false).is_none());
    }
}
