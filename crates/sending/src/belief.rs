//! A sender's estimates about its path at one moment, as a line of a trace.

use std::fmt::Write;

use crate::Time;

/// Why a sender does not send now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Waits {
    /// The sender has nothing to send.
    #[default]
    Idle,
    /// The sender waits until the pacing rate allows the next packet.
    Pace,
    /// The sender waits until an ACK makes room in the cwnd.
    Window,
    /// The sender waits until the peer's receive buffer has room.
    Buffer,
}

impl Waits {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Pace => "pace",
            Self::Window => "window",
            Self::Buffer => "buffer",
        }
    }
}

/// A sender's estimates at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Belief {
    /// Phase of the congestion control: `starting`, `checking`, `draining`, `cruising` or `looking`.
    pub phase: &'static str,
    /// Smoothed RTT (RFC 9002, section 5.3); `None` before the first sample.
    pub smooth: Option<Time>,
    /// Variation of the RTT.
    pub variation: Time,
    /// The last RTT sample.
    pub latest: Time,
    /// Minimum RTT.
    pub base: Option<Time>,
    /// Jitter allowance: how much longer than the minimum an RTT may be before that counts as a queue.
    pub held_up: Time,
    /// Delivery rate in bytes a second.
    pub rate: Option<f64>,
    /// Pacing rate in bytes a second; `None` if only the cwnd limits.
    pub pace: Option<f64>,
    /// Congestion window in bytes.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes acknowledged so far.
    pub delivered: u64,
    /// Bytes that have counted as lost so far.
    pub lost: u64,
    /// Path loss: the fraction of packets that the path loses however fast they are sent.
    pub path_loss: f64,
    /// Packet threshold of loss: a packet is lost if one at least this many numbers later was acknowledged.
    pub reordering_packets: u64,
    /// Time threshold of loss: a packet is lost if a later one was acknowledged and this time has passed
    /// since it was sent.
    pub reordering_time: Time,
    /// Why the sender does not send now.
    pub waits: Waits,
}

impl Belief {
    /// A JSON object in one line. Times are in seconds, rates in bytes a second. `at`: time since the link
    /// was made.
    #[must_use]
    pub fn json(&self, at: Time) -> String {
        let mut out = format!("{{\"at\":{:.6},\"phase\":\"{}\"", at.as_secs_f64(), self.phase);
        let mut number = |name: &str, value: Option<f64>| {
            // Writing to a string cannot fail.
            let _ = match value.filter(|value| value.is_finite()) {
                Some(value) => write!(out, ",\"{name}\":{}", (value * 1e6).round() / 1e6),
                None => write!(out, ",\"{name}\":null"),
            };
        };
        let seconds = |time: Time| Some(time.as_secs_f64());
        number("rtt", self.smooth.and_then(seconds));
        number("rtt_variation", seconds(self.variation));
        number("rtt_latest", self.smooth.and(seconds(self.latest)));
        number("rtt_min", self.base.and_then(seconds));
        number("jitter_allowance", seconds(self.held_up));
        number("delivery_rate", self.rate);
        number("pacing_rate", self.pace);
        number("window", Some(self.window as f64));
        number("in_flight", Some(self.in_flight as f64));
        number("delivered", Some(self.delivered as f64));
        number("lost", Some(self.lost as f64));
        number("path_loss", Some(self.path_loss));
        number("reordering_packets", Some(self.reordering_packets as f64));
        number("reordering_time", seconds(self.reordering_time));
        let _ = write!(out, ",\"waits\":\"{}\"}}", self.waits.name());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_every_field() {
        let belief = Belief {
            phase: "cruising",
            smooth: None,
            variation: Time::from_millis(50),
            latest: Time::from_millis(100),
            base: Some(Time::from_micros(40_123)),
            held_up: Time::ZERO,
            rate: Some(1.25e6),
            pace: None,
            window: 44_800,
            in_flight: 1_400,
            delivered: 5,
            lost: 7,
            path_loss: 0.1,
            reordering_packets: 3,
            reordering_time: Time::from_millis(112),
            waits: Waits::Pace,
        };
        assert_eq!(
            belief.json(Time::from_millis(1_500)),
            "{\"at\":1.500000,\"phase\":\"cruising\",\"rtt\":null,\"rtt_variation\":0.05,\"rtt_latest\":null,\
             \"rtt_min\":0.040123,\"jitter_allowance\":0,\"delivery_rate\":1250000,\"pacing_rate\":null,\
             \"window\":44800,\"in_flight\":1400,\"delivered\":5,\"lost\":7,\"path_loss\":0.1,\"reordering_packets\":3,\
             \"reordering_time\":0.112,\"waits\":\"pace\"}"
        );
    }
}
