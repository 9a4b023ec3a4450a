//! What a sender believes about its path, for a trace.

use std::fmt::Write;

use crate::Time;

/// Why a sender does not send now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Waits {
    /// It has nothing to send.
    #[default]
    Idle,
    /// Until the pacing rate allows the next packet.
    Pace,
    /// Until an acknowledgement makes room in the congestion window.
    Window,
    /// Until the peer's receive buffer has room.
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

/// What a sender believes at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Belief {
    /// Phase of the congestion control: `starting`, `checking`, `draining`, `cruising` or `looking`.
    pub phase: &'static str,
    /// Smoothed RTT, its variation, and the last sample (RFC 9002, section 5.3).
    pub smooth: Option<Time>,
    /// The variation of the RTT.
    pub variation: Time,
    /// The last RTT sample.
    pub latest: Time,
    /// Minimum RTT, and what an RTT may have beyond it because of the path's jitter.
    pub base: Option<Time>,
    /// What jitter may add to the minimum RTT before that counts as a queue.
    pub held_up: Time,
    /// Delivery rate in bytes a second.
    pub rate: Option<f64>,
    /// Pacing rate in bytes a second; `None` if only the window limits.
    pub pace: Option<f64>,
    /// Most bytes in flight.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes acknowledged in all.
    pub delivered: u64,
    /// Bytes that count as lost, in all.
    pub lost: u64,
    /// The share of loss that is made up for.
    pub path_loss: f64,
    /// A packet is lost if one this many numbers later has come, or if this time has passed and a later one
    /// has come.
    pub reordering_packets: u64,
    /// The time threshold of loss.
    pub reordering_time: Time,
    /// Why it does not send.
    pub waits: Waits,
}

impl Belief {
    /// A JSON object in one line, without its end: times in seconds, rates in bytes a second. `at`: time
    /// since the link was made.
    #[must_use]
    pub fn json(&self, at: Time) -> String {
        let mut out = format!("{{\"at\":{:.6},\"phase\":\"{}\"", at.as_secs_f64(), self.phase);
        let mut number = |name: &str, value: Option<f64>| {
            // A string grows.
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
