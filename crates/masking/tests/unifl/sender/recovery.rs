//! Loss detection of a sender, and when it undoes a reduction: the states Recovery and Loss of Linux.

use thalweg_masking::Time;

use super::super::congestion::Congestion;
use super::{Sender, Sent};

/// A segment counts as lost if this many segments after it are SACKed.
const REORDERING: u64 = 3;

/// What to restore if a reduction turns out to be unnecessary.
#[derive(Debug, Clone)]
pub(super) struct Recovery {
    /// One past the last byte that had been sent when it began.
    pub high: u64,
    pub before: Congestion,
    /// Number of retransmissions that were not reported as duplicates.
    pub needed: u32,
    pub timeout: bool,
}

impl Sender {
    /// Runs the retransmission timer, if it is due.
    pub fn expired(&mut self, now: Time) {
        if !self.connected || self.deadline.is_none_or(|at| at > now) {
            return;
        }
        let waited = self.estimator.timeout();
        self.estimator.expired();
        self.deadline = Some(now + self.estimator.timeout());
        if self.sent.is_empty() {
            return;
        }
        self.tally.timeouts += 1;
        self.tally.waited += waited;
        // Only once for each lost window (`tcp_enter_loss`).
        let before = match self.recovery.take() {
            Some(recovery) if recovery.high > self.una && (!recovery.timeout || self.tries > 0) => {
                recovery.before
            }
            _ => {
                let before = self.congestion.clone();
                self.congestion.reduce();
                before
            }
        };
        self.tries += 1;
        self.congestion.window = 1.0;
        self.sent.iter_mut().filter(|s| !s.sacked).for_each(|s| (s.lost, s.again) = (true, false));
        self.recovery = Some(Recovery { high: self.next, before, needed: 0, timeout: true });
    }

    /// Whether a retransmission may still be in flight (`tcp_any_retrans_done`).
    fn is_repairing(&self) -> bool {
        self.sent.front().is_some_and(|s| s.ever) || self.sent.iter().any(Sent::is_repair)
    }

    /// Ends the recovery, since it is over or was unnecessary.
    pub(super) fn leave(&mut self, ack: u64, advanced: bool, echo: Option<u32>, duplicate: bool) {
        let Some(recovery) = self.recovery.clone() else {
            self.stamp = self.stamp.filter(|_| self.is_repairing());
            return;
        };
        let delayed = match (self.stamp, echo) {
            (Some(first), Some(echo)) => (echo.wrapping_sub(first) as i32) < 0,
            (first, _) => first.is_none() && self.sack,
        };
        let whole = ack >= recovery.high;
        // A partial ACK undoes the reduction only if no other retransmission is in flight, except after a
        // timeout (`tcp_try_undo_partial`, `tcp_try_undo_loss`).
        let enough = whole || recovery.timeout || !self.sent.iter().any(Sent::is_repair);
        if duplicate || (advanced && delayed && enough) {
            self.tally.undone += 1;
            let window = self.congestion.window.max(recovery.before.window);
            self.congestion = recovery.before;
            self.congestion.window = window;
            if recovery.timeout || !whole {
                self.sent.iter_mut().for_each(|s| s.lost = false);
            }
            self.recovery = None;
        } else if whole {
            self.recovery = None;
        }
    }

    /// A loss begins a recovery. Only the timer detects a lost retransmission.
    pub(super) fn enter(&mut self) {
        let highest = self.sent.iter().rev().find(|s| s.sacked).map(|s| s.start);
        if let Some(highest) = highest {
            let enough = self.sent.iter().filter(|s| s.sacked).count() as u64 >= REORDERING;
            let far = REORDERING * self.segment - self.segment;
            for s in self.sent.iter_mut().filter(|s| !s.sacked && !s.ever && !s.lost) {
                s.lost = enough && s.end + far <= highest;
            }
        } else if !self.sack && self.duplicates == REORDERING {
            self.sent.front_mut().into_iter().for_each(|first| (first.lost, first.again) = (true, false));
        }
        if self.recovery.is_some() || !self.sent.iter().any(|s| s.lost && !s.sacked) {
            return;
        }
        self.stamp = self.stamp.filter(|_| self.is_repairing());
        self.tally.reductions += 1;
        let before = self.congestion.clone();
        self.congestion.reduce();
        self.recovery = Some(Recovery { high: self.next, before, needed: 0, timeout: false });
    }
}
