//! How long peers wait for each other: one rule for all machines and transports, in round trips of the path.
//!
//! A peer counts as gone after a number of round trips without a sign of it, and not before a floor that the
//! job sets ([`silence`]). Before the path is measured, its round trip may be up to [`LONGEST_ROUND_TRIP`].
//! A peer that answers late is slow, not gone.

use std::time::Duration;

/// The longest round trip of a path that is not measured yet.
pub const LONGEST_ROUND_TRIP: Duration = Duration::from_secs(20);
/// Round trips of an attempt to connect: TCP's, TLS's, up to two of the transport's own first words, and one for
/// a packet that is lost.
const CONNECTING: u32 = 5;
/// Round trips from a link until a peer is let in: the challenge and the answer, and one for a lost packet.
const GREETING: u32 = 2;
/// Round trips of a TCP handshake, or of the answer to one message: its own, and one for a packet that is lost.
const ANSWER: u32 = 2;
/// Round trips without a sign of a peer after which it counts as gone. It answers within one, and says
/// something of its own accord in each; the others are for lost packets and a busy peer.
const SILENT: u32 = 4;
/// Round trips of an established link without a sign of the peer or progress of its transfer. A sender over TCP is
/// silent for up to three until it sends a lost packet again (RFC 6298, section 2: SRTT + 4 RTTVAR), and its slow
/// start from one segment takes up to four until a TLS record of 16 KiB is whole. One is for the way there and for
/// the report back, two are for the pause between reports and a busy peer.
const STALLED: u32 = 10;
/// Pause before a repetition, in quarters of a round trip. The answer to what was sent takes four; the fifth is for
/// a round trip that varies and for a busy peer.
const REPEATED: u32 = 5;

/// Maximum time of one attempt to connect, handshake included.
pub const CONNECT: Duration = trips(CONNECTING);
/// Maximum time from a link until the peer says who it is, and until it answers that.
pub const GREET: Duration = trips(GREETING);
/// Maximum time until a peer answers one message, or a TCP handshake, over a path that is not measured.
pub const ANSWERED: Duration = trips(ANSWER);
/// How long a peer may give no sign where the path to it cannot be measured, since a broker or a library is
/// between.
pub const UNMEASURED_SILENCE: Duration = trips(SILENT);
/// Maximum time from a peer's first packet until it has proved who it is.
pub const ADMISSION: Duration = trips(CONNECTING + GREETING);

const fn trips(count: u32) -> Duration {
    Duration::from_secs(LONGEST_ROUND_TRIP.as_secs() * count as u64)
}

/// How long a peer may give no sign before it counts as gone: `floor`, or more on a path with a long
/// `round_trip`. A round trip counts as [`LONGEST_ROUND_TRIP`] at most: it is one sample, which a peer can make
/// longer by answering late.
pub fn silence(floor: Duration, round_trip: Duration) -> Duration {
    floor.max(round_trip.min(LONGEST_ROUND_TRIP) * SILENT)
}

/// How long an established link may bring no sign of its peer and no progress of a transfer: `floor`, or more on a
/// path with a long `round_trip`. Bulk bytes and messages go over one connection of TCP, so both wait while that
/// recovers from a lost packet. A round trip counts as [`LONGEST_ROUND_TRIP`] at most.
pub fn stall(floor: Duration, round_trip: Duration) -> Duration {
    floor.max(round_trip.min(LONGEST_ROUND_TRIP) * STALLED)
}

/// Pause before something that the peer has not acknowledged is sent again: `floor`, or more on a path with a long
/// `round_trip`, so that nothing is repeated whose acknowledgement is on its way. A round trip counts as
/// [`LONGEST_ROUND_TRIP`] at most.
pub fn repetition(floor: Duration, round_trip: Duration) -> Duration {
    floor.max(round_trip.min(LONGEST_ROUND_TRIP) * REPEATED / 4)
}

/// Maximum time of one attempt to connect by an end that gives up after `timeout` anyway. It leaves a part of
/// that for saying why the attempt failed.
pub fn attempt(timeout: Duration) -> Duration {
    CONNECT.min(timeout.saturating_mul(3) / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_follows_the_path_above_the_floor() {
        let floor = Duration::from_secs(10);
        for (micros, seconds) in [(0, 10), (10, 10), (2_500_000, 10), (10_000_000, 40), (20_000_000, 80)] {
            assert_eq!(silence(floor, Duration::from_micros(micros)), Duration::from_secs(seconds));
        }
        assert_eq!(
            silence(floor, Duration::MAX),
            Duration::from_secs(80),
            "a peer that answers late stretches it"
        );
        assert_eq!(silence(Duration::MAX, floor), Duration::MAX);
    }

    #[test]
    fn a_link_waits_until_tcp_has_recovered_from_a_lost_packet() {
        let floor = Duration::from_secs(10);
        for (millis, seconds) in [(0, 10), (40, 10), (1_000, 10), (4_000, 40), (10_000, 100), (60_000, 200)] {
            assert_eq!(stall(floor, Duration::from_millis(millis)), Duration::from_secs(seconds));
        }
        assert_eq!(stall(Duration::MAX, floor), Duration::MAX);
    }

    #[test]
    fn repetitions_follow_the_path_above_the_floor() {
        let [floor, second] = [Duration::from_millis(50), Duration::from_secs(1)];
        assert_eq!(repetition(floor, Duration::from_micros(10)), floor);
        assert_eq!(repetition(floor, second), 5 * second / 4);
        assert_eq!(repetition(floor, Duration::MAX), 25 * second, "whatever a peer claims");
    }

    #[test]
    fn an_attempt_ends_before_the_whole_timeout() {
        assert_eq!(attempt(Duration::from_secs(60)), Duration::from_secs(45));
        assert_eq!(attempt(Duration::MAX), CONNECT);
        assert_eq!(attempt(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn every_limit_allows_the_round_trips_that_it_is_for() {
        assert!(
            CONNECT > 4 * LONGEST_ROUND_TRIP
                && GREET > LONGEST_ROUND_TRIP
                && ANSWERED > LONGEST_ROUND_TRIP
                && ADMISSION >= CONNECT + GREET
                && UNMEASURED_SILENCE == silence(Duration::ZERO, LONGEST_ROUND_TRIP)
        );
    }
}
