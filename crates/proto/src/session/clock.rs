//! Converts times of a client's clock to the server's clock.

use thalweg_wire::control::Interval;

use crate::{Span, Time};

/// Converts a client's interval to the server's clock, and keeps it within `within`. The client's clock may
/// be wrong, or the client may lie. `offset` is the server's clock minus the client's, in microseconds.
///
/// The measured offset is wrong by up to the delay of a message on a busy host, and that error moves both
/// ends alike. So an interval that reaches beyond `within` is moved as a whole. It becomes shorter only if it
/// does not fit.
pub(crate) fn on_our_clock(at: Interval, offset: i64, within: Span) -> Span {
    let possible = within.end.saturating_sub(within.start);
    let length = Time::from_micros(at.end.saturating_sub(at.start)).min(possible);
    let start = Time::from_micros(at.start.saturating_add_signed(offset));
    let start = start.clamp(within.start, within.start + (possible - length));
    Span { start, end: start + length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_rng::Rng;

    const MS: u64 = 1000;

    fn seen(start: u64, end: u64, offset: i64) -> (u64, u64) {
        let within = Span { start: Time::from_millis(100), end: Time::from_millis(200) };
        let Span { start, end } = on_our_clock(Interval { start: start * MS, end: end * MS }, offset, within);
        (start.as_millis() as u64, end.as_millis() as u64)
    }

    #[test]
    fn an_interval_is_moved_by_the_offset() {
        assert_eq!(seen(5, 25, 120 * 1000), (125, 145));
        assert_eq!(seen(1125, 1145, -1_000_000), (125, 145));
    }

    #[test]
    fn an_impossible_interval_keeps_its_length_as_far_as_possible() {
        assert_eq!(seen(0, 20, 190 * 1000), (180, 200), "its end is not ahead of us");
        assert_eq!(seen(0, 20, 90 * 1000), (100, 120), "nor its start before the round");
        assert_eq!(seen(0, 500, 150 * 1000), (100, 200));
        assert_eq!(seen(20, 0, 150 * 1000), (170, 170), "an end before the start");
    }

    #[test]
    fn no_interval_reaches_beyond_its_limits() {
        let mut rng = Rng::new(&[7]);
        for case in 0..10_000 {
            // Values of all sizes, so that they are near to each other in some cases and far apart in others.
            let mut draw = || rng.draw() >> (rng.draw() % 64);
            let (start, end, offset, from, long) =
                (draw(), draw(), draw() as i64, draw() >> 20, draw() >> 20);
            let within = Span { start: Time::from_micros(from), end: Time::from_micros(from + long) };
            let span = on_our_clock(Interval { start, end }, offset.wrapping_mul([1, -1][case % 2]), within);
            assert!(within.start <= span.start && span.start <= span.end && span.end <= within.end);
        }
    }
}
