//! Calculates, packet by packet, when a frame has left a link and when it arrives. It has no clock: times are
//! relative to a common start.

use std::time::Duration;

use thalweg_linkmodel::{Cause, Fate, Pipe, Shape, ShapeError};

/// Bytes of an IP packet, and the bytes in it of the headers of IPv4 and TCP with timestamps.
const PACKET: u64 = 1500;
const HEADERS: u64 = 52;
/// After this many rounds of retransmission, a frame counts as lost for ever.
const MOST_ROUNDS: u32 = 1000;
/// A frame that comes this soon after an update was handed over is from the same sender: it sends one update
/// at a time, and had to wait.
const AT_ONCE: Duration = Duration::from_millis(5);
/// If a timer is late by up to this much, the lane still keeps its rate.
const SLACK: Duration = Duration::from_millis(5);

/// When a frame crosses the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing {
    /// When its first bit leaves.
    pub begun: Duration,
    /// When its last bit has left, so that the next frame can start.
    pub through: Duration,
    /// When it arrives. `None` if it never does.
    pub due: Option<Duration>,
    /// Whether it arrives a second time.
    pub twice: bool,
}

/// The fate of the packets of a frame.
#[derive(Default)]
struct Packets {
    /// Number of packets sent, including retransmissions.
    sent: u64,
    /// The longest delay of any of them.
    travel: Duration,
    /// Number of round trips that losses cost.
    rounds: u32,
    twice: bool,
    lost: bool,
}

/// One direction of a link, for frames of many packets.
///
/// Each packet of a frame goes through the same [`Pipe`] that the packet relay uses. The frame arrives with
/// its last packet. A sender waits until the link is free, so no queue is ever full. Reliable frames arrive
/// in order. A lost packet of such a frame costs what it would cost TCP with fast retransmission: its bytes
/// again, and a round trip. Any other frame is lost if one of its packets is.
#[derive(Debug)]
pub struct Lane {
    rate: Option<u64>,
    pipe: Pipe,
    round_trip: Duration,
    /// When the link has sent everything so far.
    free: Duration,
    /// The latest arrival so far.
    latest: Duration,
    /// When the last update was handed over, and when its sender could have had the next frame ready if
    /// timers were exact.
    returned: Option<(Duration, Duration)>,
}

impl Lane {
    /// Creates a direction of `shape`. The opposite direction has a delay of `back` seconds. An impossible
    /// shape is an error.
    pub fn new(shape: &Shape, back: f64, seed: u64, stream: u64) -> Result<Self, ShapeError> {
        let round_trip = seconds(shape.delay + back);
        let pipe = Pipe::new(Shape { rate: None, ..shape.clone() }, seed, stream)?;
        let (free, latest, returned) = (Duration::ZERO, Duration::ZERO, None);
        Ok(Self { rate: shape.rate, pipe, round_trip, free, latest, returned })
    }

    /// When a frame that comes at `now` became ready: `now`, or earlier if its sender had to wait for its
    /// last update.
    pub fn ready(&self, now: Duration) -> Duration {
        let waited = |&(at, ready): &(Duration, Duration)| (now <= at + AT_ONCE).then_some(ready);
        self.returned.as_ref().and_then(waited).unwrap_or(now)
    }

    /// An update was handed over at `now`. Its sender could have had the next frame ready since `ready`.
    pub fn returned(&mut self, now: Duration, ready: Duration) {
        self.returned = Some((now, ready));
    }

    /// Sends a frame of `bytes` bytes that has been ready since `ready`.
    pub fn send(&mut self, now: Duration, ready: Duration, bytes: u64, reliable: bool) -> Crossing {
        let packets = bytes.div_ceil(PACKET - HEADERS).max(1);
        let Packets { sent, travel, rounds, twice, lost } = self.offer(now, packets, reliable);
        // The last packet is only as long as it must be. Retransmissions count as whole packets.
        let wire = (sent - packets) * PACKET + bytes + packets * HEADERS;
        // Compensate for late timers. But a sender that was blocked for longer must not send a burst.
        let begun = self.free.max(ready.min(now)).max(now.saturating_sub(self.round_trip + SLACK));
        self.free = begun.saturating_add(self.time_for(wire));
        let arrival = self.free.saturating_add(travel).saturating_add(self.round_trip.saturating_mul(rounds));
        let due = if reliable { arrival.max(self.latest) } else { arrival };
        if reliable && !lost {
            self.latest = due;
        }
        Crossing { begun, through: self.free, due: (!lost).then_some(due), twice: twice && !reliable }
    }

    /// Sends the packets of a frame through the pipe. If the frame is reliable, sends lost ones again.
    fn offer(&mut self, now: Duration, packets: u64, reliable: bool) -> Packets {
        let mut all = Packets::default();
        let mut left = packets;
        while left > 0 && !all.lost {
            let offered = std::mem::take(&mut left);
            all.sent += offered;
            for _ in 0..offered {
                match self.pipe.offer(now, PACKET as usize) {
                    Fate::Passes(pass) => {
                        all.travel = all.travel.max(pass.due.saturating_sub(now));
                        all.twice |= pass.twice;
                    }
                    Fate::Dropped(Cause::Down) => all.lost = true,
                    Fate::Dropped(_) => left += 1,
                }
            }
            all.lost |= left > 0 && (!reliable || all.rounds == MOST_ROUNDS);
            all.rounds += u32::from(left > 0);
        }
        all
    }

    fn time_for(&self, bytes: u64) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| seconds(bytes as f64 * 8.0 / rate as f64))
    }
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn shape() -> Shape {
        Shape::default()
    }

    fn lane(shape: &Shape) -> Lane {
        Lane::new(shape, shape.delay, 1, 2).unwrap()
    }

    /// 12 Mbit/s is one packet in a millisecond.
    fn twelve() -> Shape {
        Shape { rate: Some(12_000_000), ..shape() }
    }

    #[test]
    fn a_frame_takes_the_time_of_its_packets() {
        let mut lane = lane(&Shape { delay: 0.02, ..twelve() });
        let first = lane.send(MS, MS, 10 * 1448, true);
        assert_eq!(first, Crossing { begun: MS, through: 11 * MS, due: Some(31 * MS), twice: false });
        let small = lane.send(MS, MS, 1448 / 2 - 26, true);
        assert_eq!(small.through, 11 * MS + MS / 2, "a part of a packet takes a part of its time");
    }

    #[test]
    fn frames_leave_one_behind_the_other_and_idle_time_is_not_saved_up() {
        let mut lane = lane(&twelve());
        assert_eq!(lane.send(MS, MS, 1448, true).through, 2 * MS);
        assert_eq!(lane.send(MS, MS, 1448, true).through, 3 * MS);
        assert_eq!(lane.send(500 * MS, 500 * MS, 1448, true).through, 501 * MS);
    }

    #[test]
    fn late_timers_do_not_lower_the_rate() {
        let mut lane = lane(&twelve());
        let mut through = Duration::ZERO;
        for _ in 0..1000 {
            through = lane.send(through + 2 * MS, through, 4 * 1448, true).through;
        }
        assert_eq!(through, 4000 * MS);
    }

    #[test]
    fn a_sender_that_was_held_up_does_not_burst() {
        let mut lane = lane(&twelve());
        assert_eq!(lane.send(1000 * MS, MS, 1448, true).through, 1000 * MS - SLACK + MS);
    }

    #[test]
    fn a_call_right_after_another_was_ready_when_that_had_been_sent() {
        let mut lane = lane(&Shape { delay: 0.02, ..twelve() });
        let first = lane.send(MS, lane.ready(MS), 1448, true);
        let back = first.due.unwrap();
        lane.returned(back, first.through);
        let second = lane.send(back, lane.ready(back), 1448, true);
        assert_eq!(second.due, Some(back + MS), "one packet behind, not a delay behind");
        assert_eq!(lane.ready(back + 6 * MS), back + 6 * MS);
    }

    #[test]
    fn on_a_reliable_transport_a_loss_costs_its_bytes_and_a_round_trip() {
        let lossy = Shape { loss: 0.1, delay: 0.02, ..twelve() };
        let mut lane = lane(&lossy);
        let (mut at, mut late, mut resent) = (Duration::ZERO, 0, 0);
        let frames = 20_000;
        for _ in 0..frames {
            let crossing = lane.send(at, at, 1448, true);
            let packets = (crossing.through - at).as_millis() as u64;
            let trips = packets - 1; // each frame is one packet, so each loss is a round
            late += u64::from(trips > 0);
            resent += trips;
            let least = crossing.through + 20 * MS + 40 * MS * trips as u32;
            assert!(crossing.due.unwrap() >= least);
            at = crossing.through + 1000 * MS; // nobody is waited for
        }
        // Each transmission is lost with 0.1: 1/9 of resent packets a frame, standard error below 0.003.
        let mean = resent as f64 / frames as f64;
        assert!((mean - 1.0 / 9.0).abs() < 0.01, "{mean}");
        assert!((late as f64 / frames as f64 - 0.1).abs() < 0.01);
    }

    #[test]
    fn on_a_reliable_transport_frames_arrive_in_order() {
        let wild = Shape { loss: 0.05, delay: 0.02, jitter: 0.02, duplicate: 0.2, ..twelve() };
        let mut lane = lane(&wild);
        let crossings: Vec<Crossing> = (0..2000).map(|_| lane.send(MS, MS, 1000, true)).collect();
        assert!(crossings.windows(2).all(|w| w[0].due <= w[1].due && w[0].through < w[1].through));
        assert!(crossings.iter().all(|c| !c.twice && c.due.is_some()));
    }

    #[test]
    fn on_another_a_frame_is_lost_with_any_of_its_packets() {
        let lossy = Shape { loss: 0.01, ..shape() };
        let mut lane = lane(&lossy);
        let frames = 20_000;
        let lost = (0..frames).filter(|_| lane.send(MS, MS, 10 * 1448, false).due.is_none()).count();
        let expected = 1.0 - 0.99_f64.powi(10);
        assert!((lost as f64 / f64::from(frames) - expected).abs() < 0.01, "{lost}");
    }

    #[test]
    fn on_another_frames_may_overtake_and_repeat() {
        let wild = Shape { delay: 0.02, jitter: 0.02, duplicate: 0.2, ..twelve() };
        let mut lane = lane(&wild);
        let crossings: Vec<Crossing> = (0..500).map(|_| lane.send(MS, MS, 1000, false)).collect();
        assert!(crossings.windows(2).any(|w| w[0].due > w[1].due));
        assert!(crossings.iter().any(|c| c.twice));
    }

    #[test]
    fn what_is_down_or_always_lost_never_comes() {
        for nothing in [Shape { down: true, ..shape() }, Shape { loss: 1.0, ..shape() }] {
            assert_eq!(lane(&nothing).send(MS, MS, 1, true).due, None);
            assert_eq!(lane(&nothing).send(MS, MS, 1, false).due, None);
        }
    }

    #[test]
    fn a_seed_repeats() {
        let lossy = Shape { loss: 0.1, delay: 0.01, jitter: 0.01, ..twelve() };
        let run = |seed| {
            let mut lane = Lane::new(&lossy, 0.01, seed, 0).unwrap();
            (0..100).map(|_| lane.send(MS, MS, 3000, true)).collect::<Vec<_>>()
        };
        assert!(run(3) == run(3) && run(3) != run(4));
    }
}
