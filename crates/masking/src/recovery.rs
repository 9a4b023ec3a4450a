//! A model of the sender's loss recovery. It predicts which ACK ends the recovery.
//!
//! A recovery lasts until the receiver has acknowledged all bytes that had been sent when it began (RFC 6675
//! section 5, `RecoveryPoint`). The ACK that ends it echoes a timestamp from before the retransmissions, so
//! the sender undoes the reduction of its window (Eifel, RFC 3522). A partial ACK must not echo such a
//! timestamp. Linux would then assume that the path reorders, forget its loss marks, and wait a quarter of a
//! round trip or more before it marks anything as lost again (`tcp_try_undo_partial`, RFC 8985 section 6.2).

use super::sequence::before;

/// The receiver's knowledge about the sender's current recovery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovery {
    /// The earliest and the latest value of our clock at which this recovery can have begun. They are equal
    /// if it began with our report of a loss. If it follows another recovery, they are the values of our
    /// clock at the first and at the last ACK that may have ended the other one. Data whose TSecr is below
    /// the earliest value was sent before this recovery. A retransmission whose TSecr is at least the latest
    /// value was sent in this recovery.
    began: (u32, u32),
    /// One past the last byte acknowledged when this recovery began.
    from: u64,
    /// Bounds of the recovery point. When the recovery began, the sender had certainly sent all bytes before
    /// `surely`, and at most those before `perhaps`.
    surely: u64,
    perhaps: u64,
    /// The TSval of the first retransmission that has arrived.
    repaired: Option<u32>,
    /// Set once an ACK may have ended the recovery: our clock, and one past the highest byte, at the first
    /// such ACK.
    over: Option<(u32, u64)>,
    /// Whether this recovery follows another one without a pause.
    follows: bool,
}

impl Recovery {
    /// Starts tracking a recovery. `clock`: our clock when we report the loss. `from`: one past the last byte
    /// acknowledged. `highest`: one past the highest byte that has arrived.
    pub fn new(clock: u32, from: u64, highest: u64) -> Self {
        Self {
            began: (clock, clock),
            from,
            surely: highest,
            perhaps: highest,
            repaired: None,
            over: None,
            follows: false,
        }
    }

    /// Processes a segment up to `end` with its TSval and TSecr. `fills`: it is a retransmission.
    pub fn arrived(&mut self, (value, echo): (u32, u32), end: u64, fills: bool) {
        // Data whose TSecr equals our loss-report timestamp also predates the recovery, unless a
        // retransmission has arrived. This does not hold if the recovery follows another one: after the undo
        // of that one, the sender has sent a burst.
        let same = !self.follows && echo == self.began.0 && self.repaired.is_none() && !fills;
        if before(echo, self.began.0) || same {
            self.surely = self.surely.max(end);
        } else if fills && self.repaired.is_none() && !before(echo, self.began.1) {
            self.repaired = Some(value);
        }
        // If both TSvals are within one tick, this segment may have been sent before the retransmission.
        if self.repaired.is_none_or(|first| !before(first.wrapping_add(1), value)) {
            self.perhaps = self.perhaps.max(end);
        }
    }

    /// Whether an ACK up to `acknowledged` may end the recovery; false for a partial ACK. An ACK that makes
    /// no progress counts too: it repeats the previous ACK, which may have ended the previous recovery.
    pub fn may_end(&mut self, clock: u32, acknowledged: u64, highest: u64) -> bool {
        if acknowledged > self.from && acknowledged < self.surely {
            return false;
        }
        if acknowledged >= self.surely {
            self.over.get_or_insert((clock, highest));
        }
        true
    }

    /// The sender's recovery after an ACK up to `acknowledged`, when `highest` is one past the highest byte
    /// that has arrived. `None` if the sender is in no recovery. If this one is over and something is
    /// `missing`, the next one begins.
    pub fn after(self, clock: u32, acknowledged: u64, highest: u64, missing: bool) -> Option<Self> {
        let Some((first_clock, first_highest)) = self.over.filter(|_| acknowledged >= self.perhaps) else {
            return Some(self);
        };
        let next = Self::new(first_clock, acknowledged, first_highest);
        missing.then_some(Self { began: (first_clock, clock), perhaps: highest, follows: true, ..next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// We report a hole when our clock shows 100. The report reaches the sender at 120, and what the sender
    /// then sends arrives at 140. Both clocks show the same, and a thousand bytes arrive in each tick.
    fn at(clock: u32) -> ((u32, u32), u64) {
        ((clock - 20, clock - 40), u64::from(clock) * 1000)
    }

    fn recovering() -> Recovery {
        let mut recovery = Recovery::new(100, 90_000, 100_000);
        for clock in 101..150 {
            let (clocks, end) = at(clock);
            if clock == 140 {
                recovery.arrived(clocks, 91_000, true);
            }
            recovery.arrived(clocks, end, false);
        }
        recovery
    }

    #[test]
    fn it_ends_with_what_was_sent_before_it_began() {
        let mut recovery = recovering();
        let ends: Vec<bool> = [90_000, 91_000, 138_999, 139_000, 141_000, 149_000]
            .iter()
            .map(|&acknowledged| recovery.may_end(150, acknowledged, 149_000))
            .collect();
        assert_eq!(ends, [true, false, false, true, true, true]);
        // The sender sent its first retransmission when the clock showed 120 or 121.
        assert!(recovery.after(151, 140_999, 150_000, true).is_some_and(|same| same.over.is_some()));
        assert!(recovery.after(151, 141_000, 150_000, false).is_none());
    }

    #[test]
    fn what_is_missing_then_begins_the_next() {
        let mut recovery = recovering();
        assert!(recovery.may_end(150, 139_500, 149_000));
        let mut next = recovery.after(155, 141_000, 154_000, true).unwrap();
        // All data that has arrived so far may have been sent before the second recovery began.
        assert_eq!((next.surely, next.perhaps), (149_000, 154_000));
        // The ACK that ended the first recovery may be lost, so its repetition counts too.
        assert!(next.may_end(156, 141_000, 155_000) && !next.may_end(156, 142_000, 155_000));
        // A retransmission from the first recovery says nothing about the second.
        next.arrived((129, 149), 120_000, true);
        assert_eq!(next.repaired, None);
        for clock in 156..200 {
            let (clocks, end) = at(clock);
            if clock == 195 {
                next.arrived(clocks, 143_000, true);
            }
            next.arrived(clocks, end, false);
        }
        // The second recovery began with the first or with the last ACK that may have ended the first
        // recovery. Data that echoes the first ACK's timestamp may have been sent after the second recovery
        // began.
        assert!(!next.may_end(200, 188_999, 199_000) && next.may_end(200, 189_000, 199_000));
        assert!(next.after(200, 195_999, 199_000, true).is_some_and(|same| same.over.is_some()));
        assert!(next.after(200, 196_000, 199_000, false).is_none());
    }
}
