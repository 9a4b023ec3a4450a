//! How much may be in flight, and when the next piece leaves: [`thalweg_sending`], with pieces for packets.

use thalweg_sending::{Delivery, Heard, Pacer, Rate, Stamp};

use crate::cut::Size;
use crate::Time;

/// Pieces of the initial window.
const INITIAL: u64 = 4;

/// How much is in flight at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flight {
    /// As much as the path delivers in a round trip, paced.
    Window,
    /// One piece: the next leaves when its completion has come (FedRDMA, section 3.1). So much later, if said (the delay
    /// of section 3.2).
    One(Time),
    /// All that is granted.
    All,
}

/// A piece in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    at: Time,
    stamp: Stamp,
    bytes: u64,
    /// When its completion is due, if the pace is known.
    due: Option<Time>,
}

/// What the sender may do.
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
    pub size: Size,
    rate: Rate,
    delivery: Delivery,
    pacer: Pacer,
    under_way: u64,
    /// One piece at a time: when the next may leave.
    next: Time,
    /// When all that was sent is due.
    due: Time,
}

impl Window {
    pub(crate) fn new(flight: Flight) -> Self {
        let size = Size::new();
        Self {
            flight,
            rate: Rate::new(size.bytes(), INITIAL),
            size,
            delivery: Delivery::default(),
            pacer: Pacer::new(Time::ZERO),
            under_way: 0,
            next: Time::ZERO,
            due: Time::ZERO,
        }
    }

    /// Begins anew on another path, with shorter pieces.
    pub(crate) fn restart(&mut self) {
        let mut fresh = Self::new(self.flight);
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

    /// Whether a piece of `bytes` may leave. One may always be in flight.
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

    /// There was nothing to send, though something might have been sent.
    pub(crate) fn idle(&mut self) {
        self.delivery.idle(self.under_way);
    }

    pub(crate) fn done(&mut self, now: Time, sent: Sent) {
        self.under_way -= sent.bytes;
        if let Flight::One(delay) = self.flight {
            self.next = now + delay;
        }
        self.delivery.arrived(now, sent.bytes, sent.at, sent.stamp);
        let heard = Heard {
            now,
            bytes: sent.bytes,
            fates: (sent.bytes, 0), // the device sends again by itself
            delivered: self.delivery.delivered(),
            under_way: self.under_way,
            trip: Some(now.saturating_sub(sent.at)),
            measured: self.delivery.measure(self.rate.base()),
        };
        self.rate.heard(&heard);
        if let (Some(due), Some(base), Some(pace)) = (sent.due, self.rate.base(), self.rate.pace()) {
            if now > due + base + base / 2 {
                self.size.late();
            } else {
                self.size.in_time(pace);
            }
            self.rate.carry(self.size.bytes());
        }
    }

    /// A piece will never be done.
    pub(crate) fn lost(&mut self, sent: Sent) {
        self.under_way -= sent.bytes;
    }
}
