//! How much may be in flight, and when the next piece leaves. It uses [`thalweg_sending`], with pieces for
//! packets.

use thalweg_sending::{AckSample, Delivery, Pacer, Rate, Stamp};

use crate::cut::Size;
use crate::Time;

/// Pieces in the initial window of a sender with one pair.
const INITIAL: u64 = 4;

/// How much is in flight at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flight {
    /// As many bytes as the path delivers in one round trip. They are paced.
    Window,
    /// One piece at a time. The next piece leaves after this piece's completion (FedRDMA, section 3.1) and
    /// after this delay (section 3.2).
    One(Time),
    /// All granted pieces at once.
    All,
}

/// A piece in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    at: Time,
    stamp: Stamp,
    bytes: u64,
    /// When the piece's completion is expected; `None` while the pace is unknown.
    due: Option<Time>,
}

/// Whether a piece may leave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    Now,
    At(Time),
    /// Not before a completion.
    Wait,
}

#[derive(Debug)]
pub(crate) struct Window {
    flight: Flight,
    /// How many pairs share the initial window.
    pairs: u64,
    pub size: Size,
    rate: Rate,
    delivery: Delivery,
    pacer: Pacer,
    under_way: u64,
    /// With one piece at a time: when the next piece may leave.
    next: Time,
    /// When the path will have carried all bytes sent so far, at the pace.
    due: Time,
}

impl Window {
    /// The window of one of `pairs` pairs, which share the initial window as far as one piece each allows.
    pub(crate) fn new(flight: Flight, pairs: u64) -> Self {
        let (size, initial) = (Size::new(), INITIAL / pairs.max(1));
        Self {
            flight,
            pairs,
            rate: Rate::new(size.bytes(), initial.max(1)),
            size,
            delivery: Delivery::default(),
            pacer: Pacer::new(Time::ZERO),
            under_way: 0,
            next: Time::ZERO,
            due: Time::ZERO,
        }
    }

    /// Starts with new estimates and shorter pieces, after a pair was lost.
    pub(crate) fn restart(&mut self) {
        let mut fresh = Self::new(self.flight, self.pairs);
        fresh.size.late();
        *self = fresh;
    }

    pub(crate) fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Bytes that may be in flight.
    pub(crate) fn bytes(&self) -> u64 {
        match self.flight {
            Flight::Window => self.rate.window().max(self.size.bytes()),
            Flight::One(_) => 1,
            Flight::All => u64::MAX,
        }
    }

    /// Whether a piece of `bytes` bytes may leave. One piece may always be in flight.
    pub(crate) fn permit(&mut self, now: Time, bytes: u64) -> Permit {
        if self.under_way > 0 && self.under_way.saturating_add(bytes) > self.bytes() {
            return Permit::Wait;
        }
        let at = match self.flight {
            Flight::One(_) => self.next,
            Flight::All => now,
            Flight::Window => self.rate.pace().map_or(now, |pace| self.pacer.at(now, pace, bytes as f64)),
        };
        if at > now {
            Permit::At(at)
        } else {
            Permit::Now
        }
    }

    pub(crate) fn sent(&mut self, now: Time, bytes: u64) -> Sent {
        let stamp = self.delivery.sent(now, self.under_way == 0);
        self.under_way += bytes;
        self.pacer.sent(bytes);
        let lasts = self.rate.pace().map(|pace| Time::from_secs_f64(bytes as f64 / pace));
        let due = lasts.map(|lasts| {
            self.due = self.due.max(now) + lasts;
            self.due
        });
        Sent { at: now, stamp, bytes, due }
    }

    /// There was nothing to send although the window had room. Rate samples of this time are
    /// application-limited.
    pub(crate) fn idle(&mut self) {
        self.delivery.idle(self.under_way);
    }

    pub(crate) fn done(&mut self, now: Time, sent: Sent) {
        self.under_way -= sent.bytes;
        if let Flight::One(delay) = self.flight {
            self.next = now + delay;
        }
        self.delivery.arrived(now, sent.bytes, sent.at, sent.stamp);
        let sample = AckSample {
            now,
            bytes: sent.bytes,
            fates: (sent.bytes, 0), // the device retransmits by itself
            delivered: self.delivery.delivered(),
            under_way: self.under_way,
            trip: Some(now.saturating_sub(sent.at)),
            measured: self.delivery.measure(self.rate.base()),
        };
        self.rate.on_ack(&sample);
        if let (Some(due), Some(base), Some(pace)) = (sent.due, self.rate.base(), self.rate.pace()) {
            if now > due + base + base / 2 {
                self.size.late();
            } else {
                self.size.in_time(pace);
            }
            self.rate.carry(self.size.bytes());
        }
    }

    /// The pair was lost, so this piece will not complete.
    pub(crate) fn lost(&mut self, sent: Sent) {
        self.under_way -= sent.bytes;
    }
}
