//! Calculates when the next frame may leave a link of a given rate. It has no clock: times are relative to a
//! common start.

use std::time::Duration;

use crate::Rate;

/// Frames leave one after the other, each when its last bit would have left a link of that rate.
///
/// Idle time is not saved up. A sender that was woken late (timers are coarse) may catch up by at most 1 ms
/// of the rate or one frame, whichever is more. That is the greatest burst.
#[derive(Debug, Clone)]
pub struct Pacer {
    rate: Rate,
    free: Duration,
    woken: Duration,
}

impl Pacer {
    /// Creates the pacer of an idle link.
    pub const fn new(rate: Rate) -> Self {
        Self { rate, free: Duration::ZERO, woken: Duration::ZERO }
    }

    /// Books a frame of `bytes` bytes at `now`, which has been ready since `ready`. Returns when it has left.
    /// If a sender sends several frames in a row, each is ready when the one before has left. Every other
    /// frame is ready since [`Pacer::ready`].
    pub fn book(&mut self, now: Duration, ready: Duration, bytes: u64) -> Duration {
        let time = self.rate.time_for(bytes);
        let slack = time.max(Duration::from_millis(1));
        let start = self.free.max(ready.min(now)).max(now.saturating_sub(slack));
        self.free = start.saturating_add(time);
        self.free
    }

    /// Notes that a sender that waited until its frame had left was woken at `now`.
    pub fn woken(&mut self, now: Duration) {
        self.woken = now;
    }

    /// When a frame that comes at `now` became ready. If the last sender was woken late, that is earlier than
    /// `now` by the same delay.
    pub fn ready(&self, now: Duration) -> Duration {
        now.saturating_sub(self.woken.saturating_sub(self.free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// 8 Mbit/s is one byte in a microsecond.
    fn pacer() -> Pacer {
        Pacer::new(Rate::bits_per_second(8_000_000))
    }

    #[test]
    fn frames_leave_one_behind_the_other() {
        let mut pacer = pacer();
        assert_eq!(pacer.book(MS, MS, 2000), 3 * MS);
        assert_eq!(pacer.book(MS, MS, 1000), 4 * MS);
        assert_eq!(pacer.book(2 * MS, 2 * MS, 1000), 5 * MS);
    }

    #[test]
    fn an_idle_link_saves_up_nothing() {
        let mut pacer = pacer();
        pacer.book(MS, MS, 1000);
        assert_eq!(pacer.book(500 * MS, 500 * MS, 1000), 501 * MS);
    }

    #[test]
    fn a_late_sender_catches_up() {
        let mut pacer = pacer();
        let mut due = Duration::ZERO;
        for _ in 0..1000 {
            let woken = due + MS; // each time the timer is a millisecond late
            due = pacer.book(woken, due, 5000);
        }
        assert_eq!(due, 5000 * MS);
    }

    #[test]
    fn late_frames_of_several_senders_catch_up_too() {
        let mut pacer = pacer();
        let mut now = Duration::ZERO;
        for _ in 0..1000 {
            now = pacer.book(now, pacer.ready(now), 5000) + MS;
            pacer.woken(now);
        }
        assert_eq!(now, 5001 * MS);
        assert_eq!(pacer.book(now + 100 * MS, pacer.ready(now + 100 * MS), 5000), now + 104 * MS);
    }

    #[test]
    fn a_burst_is_at_most_one_frame_or_a_millisecond() {
        let mut pacer = pacer();
        let due = pacer.book(MS, MS, 100);
        let late = 1000 * MS;
        let through = (0..100).map(|_| pacer.book(late, due, 100)).filter(|due| *due <= late).count();
        assert_eq!(through, 10); // 10 frames of 100 bytes are 1 ms
        let mut pacer = self::pacer();
        assert!(pacer.book(late, Duration::ZERO, 50_000) <= late);
        assert!(pacer.book(late, Duration::ZERO, 50_000) > late);
    }
}
