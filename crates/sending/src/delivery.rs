//! Estimates the delivery rate (Cheng et al., draft-cheng-iccrg-delivery-rate-estimation).

use crate::Time;

/// State of the estimate at the time when a packet was sent.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    /// Number of bytes that were acknowledged before the packet was sent.
    pub delivered: u64,
    /// When the last of these bytes were acknowledged.
    delivered_at: Time,
    /// When the first packet of this flight was sent.
    first: Time,
    /// Whether the application limited the rate: it had less to send than the window allowed.
    idle: bool,
}

/// A sample of the delivery rate.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Bytes a second.
    pub rate: f64,
    /// Whether the application limited the rate. If so, the path's rate may be higher.
    pub idle: bool,
    /// Bytes delivered when the newest acknowledged packet was sent.
    pub before: u64,
}

/// State of the estimate of one connection.
#[derive(Debug, Default)]
pub struct Delivery {
    delivered: u64,
    delivered_at: Time,
    first: Time,
    /// Samples are limited by the application until more than this many bytes are delivered.
    idle_until: u64,
    newest: Option<(Time, Stamp)>,
}

impl Delivery {
    /// Records that a packet is sent. `alone`: nothing else is in flight.
    pub fn sent(&mut self, now: Time, alone: bool) -> Stamp {
        if alone {
            (self.first, self.delivered_at) = (now, now);
        }
        let Self { delivered, delivered_at, first, .. } = *self;
        Stamp { delivered, delivered_at, first, idle: self.idle_until > 0 }
    }

    /// Records that the application has less to send than the window allows, while `under_way` bytes are in
    /// flight.
    pub fn idle(&mut self, under_way: u64) {
        self.idle_until = (self.delivered + under_way).max(1);
    }

    /// Counts a newly acknowledged packet. `sent` is its send time, and `stamp` the result of [`Self::sent`]
    /// for it.
    pub fn arrived(&mut self, now: Time, bytes: u64, sent: Time, stamp: Stamp) {
        self.delivered += bytes;
        self.delivered_at = now;
        if self.newest.is_none_or(|(at, _)| sent >= at) {
            self.newest = Some((sent, stamp));
        }
    }

    /// Bytes that have been acknowledged so far.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Measures the delivery rate. Call it once for each ACK, after [`Self::arrived`] for all its packets.
    ///
    /// The rate is a number of bytes divided by an interval. The bytes are those acknowledged since the
    /// newest packet of this ACK was sent. The interval is the longer one of two: the time in which the
    /// sender sent them, and the time in which their ACKs arrived. ACKs may arrive in a burst, so their time
    /// alone may be too short. `None` if the interval is shorter than the minimum RTT `least`.
    pub fn measure(&mut self, least: Option<Time>) -> Option<Measured> {
        let (sent, stamp) = self.newest.take()?;
        self.first = sent;
        if self.delivered > self.idle_until {
            self.idle_until = 0;
        }
        let sending = sent.saturating_sub(stamp.first);
        let acknowledging = self.delivered_at.saturating_sub(stamp.delivered_at);
        let interval = sending.max(acknowledging);
        if interval.is_zero() || least.is_some_and(|least| interval < least) {
            return None;
        }
        let rate = (self.delivered - stamp.delivered) as f64 / interval.as_secs_f64();
        Some(Measured { rate, idle: stamp.idle, before: stamp.delivered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = Time::from_millis(1);

    #[test]
    fn acknowledgements_that_come_at_once_do_not_make_the_path_faster() {
        let mut delivery = Delivery::default();
        let sent: Vec<_> = (0..10).map(|n| (n * MS, delivery.sent(n * MS, n == 0))).collect();
        for &(at, stamp) in &sent {
            delivery.arrived(50 * MS, 1_000, at, stamp);
        }
        let first = delivery.measure(Some(10 * MS)).unwrap();
        assert!((first.rate - 10_000.0 / 0.05).abs() < 1.0, "{first:?}");
        // The next flight is sent over 9 ms and acknowledged at once. The interval is shorter than the
        // minimum RTT.
        let sent: Vec<_> = (0..10).map(|n| ((50 + n) * MS, delivery.sent((50 + n) * MS, false))).collect();
        for &(at, stamp) in &sent {
            delivery.arrived(61 * MS, 1_000, at, stamp);
        }
        assert!(delivery.measure(Some(60 * MS)).is_none(), "less than a round trip");
    }

    #[test]
    fn packets_sent_while_application_limited_give_limited_samples() {
        let mut delivery = Delivery::default();
        delivery.idle(0);
        let few = delivery.sent(MS, true);
        delivery.arrived(11 * MS, 500, MS, few);
        assert!(delivery.measure(None).unwrap().idle);
        let more = delivery.sent(12 * MS, true);
        delivery.arrived(22 * MS, 500, 12 * MS, more);
        let measured = delivery.measure(None).unwrap();
        assert!(!measured.idle && measured.before == 500, "{measured:?}");
    }
}
