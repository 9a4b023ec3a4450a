//! A masking receiver's estimates about a connection, as a line of a trace. Senders of `udp` and `ltp` write
//! more fields, by the same names.

use std::fmt::Write;

use thalweg_masking::{Stats, Time};

/// A JSON object in one line. Times are in seconds, rates in bytes a second. `at`: time since the connection
/// began.
pub(crate) fn json(at: Time, stats: &Stats) -> String {
    let phase = if stats.ramping { "starting" } else { "cruising" };
    let mut out = format!("{{\"at\":{:.6},\"phase\":\"{phase}\"", at.as_secs_f64());
    let rtt = stats.rtt.map(|rtt| rtt.as_secs_f64());
    let rate = Some(stats.rate).filter(|rate| *rate > 0.0 && rate.is_finite());
    for (name, value) in [("rtt_min", rtt), ("delivery_rate", rate)] {
        // Writing to a string cannot fail.
        let _ = match value {
            Some(value) => write!(out, ",\"{name}\":{}", (value * 1e6).round() / 1e6),
            None => write!(out, ",\"{name}\":null"),
        };
    }
    let lost = stats.missing + stats.repaired;
    let _ = write!(out, ",\"window\":{},\"delivered\":{},\"lost\":{lost}}}", stats.window, stats.delivered);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_is_known() {
        let stats = Stats { delivered: 9, missing: 2, repaired: 3, window: 4, ..Stats::default() };
        assert_eq!(
            json(Time::from_millis(1_500), &stats),
            "{\"at\":1.500000,\"phase\":\"cruising\",\"rtt_min\":null,\"delivery_rate\":null,\"window\":4,\"delivered\":9,\
             \"lost\":5}"
        );
        let stats = Stats { rtt: Some(Time::from_millis(40)), rate: 1.25e6, ramping: true, ..stats };
        let line = json(Time::ZERO, &stats);
        assert!(line.contains("\"starting\",\"rtt_min\":0.04,\"delivery_rate\":1250000,"), "{line}");
    }
}
