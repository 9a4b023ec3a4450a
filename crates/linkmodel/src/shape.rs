//! The properties of one direction of a link.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The largest delay or jitter, in seconds.
const LONGEST: f64 = 3600.0;
/// The largest correlation. With more, a chain hardly changes.
const CLOSEST: f64 = 0.99;
/// The shortest default queue, in bytes.
const SHORTEST_QUEUE: f64 = 65_536.0;
/// Length of the default queue as a time at the link's rate, in seconds.
const LONGEST_QUEUE: f64 = 0.1;

/// One direction of a link. A property that is left out is that of an ideal link: no limit, no delay, no
/// loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Rate in bits per second, counted in IP packets; `None` for no limit.
    pub rate: Option<u64>,
    /// One-way delay in seconds.
    pub delay: f64,
    /// Maximum jitter in seconds: it is added to or subtracted from the delay, uniformly distributed.
    pub jitter: f64,
    /// Correlation of a packet's jitter with the previous packet's, 0 to 0.99.
    pub delay_correlation: f64,
    /// Whether packets keep their order in spite of jitter and `reorder`. If false, jitter lets packets
    /// overtake others, as with `tc`.
    pub keep_order: bool,
    /// Probability that a packet is lost, 0 to 1.
    pub loss: f64,
    /// Correlation of a packet's loss with the previous packet's, 0 to 0.99.
    pub loss_correlation: f64,
    /// Losses in bursts, which replace `loss`.
    pub burst: Option<Burst>,
    /// Probability that a packet skips the delay, 0 to 1.
    pub reorder: f64,
    /// Correlation of a packet's reordering with the previous packet's, 0 to 0.99.
    pub reorder_correlation: f64,
    /// Probability that a packet arrives twice, 0 to 1.
    pub duplicate: f64,
    /// Correlation of a packet's duplication with the previous packet's, 0 to 0.99.
    pub duplicate_correlation: f64,
    /// Maximum number of bytes in the queue of a link with a rate.
    pub queue_bytes: Option<u64>,
    /// Maximum number of packets in the queue of a link with a rate.
    pub queue_packets: Option<u64>,
    /// Whether the link is down: it drops every packet.
    pub down: bool,
}

/// The Gilbert-Elliott model of bursts (Gilbert 1960, Elliott 1963; tc-netem(8), "gemodel"): at each moment,
/// the link is in a good or a bad state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Probability, at each packet, that the link changes from good to bad.
    pub enter: f64,
    /// Probability, at each packet, that the link changes from bad to good. Bad states last 1 / leave packets
    /// on average.
    pub leave: f64,
    /// Probability that a packet is lost while the link is bad.
    #[serde(default = "one")]
    pub loss_bad: f64,
    /// Probability that a packet is lost while the link is good.
    #[serde(default)]
    pub loss_good: f64,
}

fn one() -> f64 {
    1.0
}

/// The impossible value of a shape.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{key} is {value}; {allowed}")]
pub struct ShapeError {
    /// Key of the value.
    pub key: &'static str,
    /// The value that was set.
    pub value: String,
    /// Says which values are allowed.
    pub allowed: &'static str,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            rate: None,
            delay: 0.0,
            jitter: 0.0,
            delay_correlation: 0.0,
            keep_order: false,
            loss: 0.0,
            loss_correlation: 0.0,
            burst: None,
            reorder: 0.0,
            reorder_correlation: 0.0,
            duplicate: 0.0,
            duplicate_correlation: 0.0,
            queue_bytes: None,
            queue_packets: None,
            down: false,
        }
    }
}

impl Shape {
    /// Checks the shape. An error names the first impossible value.
    pub fn check(&self) -> Result<(), ShapeError> {
        let burst = self.burst.unwrap_or(Burst { enter: 0.0, leave: 0.0, loss_bad: 0.0, loss_good: 0.0 });
        let probabilities = [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("burst.enter", burst.enter),
            ("burst.leave", burst.leave),
            ("burst.loss_bad", burst.loss_bad),
            ("burst.loss_good", burst.loss_good),
        ];
        let correlations = [
            ("delay_correlation", self.delay_correlation),
            ("loss_correlation", self.loss_correlation),
            ("reorder_correlation", self.reorder_correlation),
            ("duplicate_correlation", self.duplicate_correlation),
        ];
        let times = [("delay", self.delay), ("jitter", self.jitter)];
        within(&probabilities, 1.0, "a probability is from 0 to 1")?;
        within(&correlations, CLOSEST, "a correlation is from 0 to 0.99")?;
        within(&times, LONGEST, "a time is from 0 to 3600 seconds")?;
        let counts =
            [("rate", self.rate), ("queue_bytes", self.queue_bytes), ("queue_packets", self.queue_packets)];
        if let Some((key, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return Err(error(
                key,
                0,
                "leave it out for no limit; use down = true for a link that carries nothing",
            ));
        }
        if self.burst.is_some() && (self.loss > 0.0 || self.loss_correlation > 0.0) {
            return Err(error("loss", self.loss, "losses come in bursts or one by one; leave one out"));
        }
        if burst.enter > 0.0 && burst.leave <= 0.0 {
            return Err(error("burst.leave", burst.leave, "a burst that begins must end"));
        }
        Ok(())
    }

    /// Maximum number of bytes in the queue: `queue_bytes`, else 100 ms of the rate but at least 64 KiB.
    /// `None` if only packets are limited.
    pub fn queue_limit(&self) -> Option<u64> {
        let by_default =
            || (LONGEST_QUEUE * self.rate.unwrap_or_default() as f64 / 8.0).max(SHORTEST_QUEUE) as u64;
        self.queue_bytes.or_else(|| self.queue_packets.is_none().then(by_default))
    }
}

fn within(values: &[(&'static str, f64)], most: f64, allowed: &'static str) -> Result<(), ShapeError> {
    match values.iter().find(|(_, value)| !(0.0..=most).contains(value)) {
        Some((key, value)) => Err(error(key, value, allowed)),
        None => Ok(()),
    }
}

fn error(key: &'static str, value: impl ToString, allowed: &'static str) -> ShapeError {
    ShapeError { key, value: value.to_string(), allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_shapes_are_named() {
        let burst = Burst { enter: 0.1, leave: 0.0, loss_bad: 1.0, loss_good: 0.0 };
        let shapes = [
            (Shape { loss: 1.5, ..Shape::default() }, "loss"),
            (Shape { delay: -1.0, ..Shape::default() }, "delay"),
            (Shape { jitter: f64::NAN, ..Shape::default() }, "jitter"),
            (Shape { loss_correlation: 1.0, ..Shape::default() }, "loss_correlation"),
            (Shape { rate: Some(0), ..Shape::default() }, "rate"),
            (Shape { queue_packets: Some(0), ..Shape::default() }, "queue_packets"),
            (Shape { burst: Some(burst), ..Shape::default() }, "burst.leave"),
            (Shape { burst: Some(Burst { leave: 0.5, ..burst }), loss: 0.1, ..Shape::default() }, "loss"),
        ];
        for (shape, key) in shapes {
            assert_eq!(shape.check().unwrap_err().key, key);
        }
        assert_eq!(Shape::default().check(), Ok(()));
    }

    #[test]
    fn a_queue_is_100_ms_unless_said() {
        let shape = |rate| Shape { rate: Some(rate), ..Shape::default() };
        assert_eq!(shape(100_000_000).queue_limit(), Some(1_250_000));
        assert_eq!(shape(1_000_000).queue_limit(), Some(65_536));
        assert_eq!(Shape { queue_bytes: Some(9), ..shape(1) }.queue_limit(), Some(9));
        assert_eq!(Shape { queue_packets: Some(9), ..shape(1) }.queue_limit(), None);
    }
}
