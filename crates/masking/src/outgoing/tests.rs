//! Tests of the sending side: a stream over an emulated path, to a receiver that acknowledges as hosts do.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::collections::BTreeMap;

use thalweg_wire::Ranges;

use super::*;
use thalweg_linkmodel::{Fate, Pipe, Shape};
use thalweg_rng::Rng;

const MS: Time = Time::from_millis(1);
const SEGMENT: u64 = 1448;
const HEADERS: usize = 52;
const BUFFER: usize = 4 << 20;
/// Bits a second.
const RATE: u64 = 100_000_000;
const MIB: u64 = 1 << 20;

/// A path of 100 Mbit/s with an RTT of 40 ms. Its queue holds one bandwidth-delay product.
fn link() -> Shape {
    Shape { rate: Some(RATE), delay: 0.02, queue_bytes: Some(500_000), ..Shape::default() }
}

fn content(offset: u64) -> u8 {
    (offset * 31 % 251) as u8
}

/// How long the receiver delays an ACK.
const DELAY: Time = Time::from_millis(5);

enum Event {
    Data(Range),
    Ack(u64, Vec<Range>),
    /// A delayed ACK is due, unless another segment has arrived since.
    Waited(usize),
}

/// What sending a stream took.
#[derive(Debug, PartialEq, Eq)]
struct Sent {
    took: Time,
    /// Bytes sent, including retransmissions.
    bytes: u64,
    pieces: usize,
}

struct World {
    out: Outgoing,
    now: Time,
    down: Pipe,
    up: Pipe,
    events: BTreeMap<(Time, u64), Event>,
    count: u64,
    received: Ranges,
    /// Segments per ACK.
    together: usize,
    waiting: usize,
    arrivals: usize,
    sack: bool,
    /// Maximum number of bytes in one polled piece. The segments of a piece cross the path one by one.
    most: usize,
    pieces: usize,
    bytes: u64,
}

impl World {
    fn new(down: Shape, seed: u64) -> Self {
        let up = Shape { delay: down.delay, ..Shape::default() };
        let mut out = Outgoing::new(Time::ZERO, BUFFER, SEGMENT);
        out.opened(Time::ZERO, 16 << 20);
        out.measured(Time::from_secs_f64(2.0 * down.delay));
        Self {
            out,
            now: Time::ZERO,
            down: Pipe::new(down, seed, 0).unwrap(),
            up: Pipe::new(up, seed, 1).unwrap(),
            events: BTreeMap::new(),
            count: 0,
            received: Ranges::new(),
            together: 2,
            waiting: 0,
            arrivals: 0,
            sack: true,
            most: 0,
            pieces: 0,
            bytes: 0,
        }
    }

    fn over(&mut self, pipe: fn(&mut Self) -> &mut Pipe, bytes: usize, event: Event) {
        let now = self.now;
        if let Fate::Passes(pass) = pipe(self).offer(now, bytes) {
            self.count += 1;
            self.events.insert((pass.due, self.count), event);
        }
    }

    fn flush(&mut self) {
        while let Some(piece) = self.out.poll(self.now, self.most) {
            let (first, second) = self.out.bytes(piece);
            let data: Vec<u8> = first.iter().chain(second).copied().collect();
            assert!(data.iter().zip(piece.offset..).all(|(&byte, offset)| byte == content(offset)));
            assert_eq!(data.len(), piece.length);
            assert!(piece.length <= self.most.max(SEGMENT as usize));
            self.bytes += piece.length as u64;
            self.pieces += 1;
            let (mut at, end) = (piece.offset, piece.offset + piece.length as u64);
            loop {
                let next = end.min(at + SEGMENT);
                let range = Range::new(at, next + u64::from(piece.fin && next == end));
                self.over(|world| &mut world.down, HEADERS + (next - at) as usize, Event::Data(range));
                at = next;
                if at == end {
                    break;
                }
            }
        }
    }

    fn arrive(&mut self, range: Range) {
        let fresh = !self.received.insert(range).is_empty();
        let whole = self.received.count() == 1 && self.received.covers(Range::new(0, 1));
        (self.waiting, self.arrivals) = (self.waiting + 1, self.arrivals + 1);
        // The receiver acknowledges an out-of-order segment or a duplicate at once (RFC 5681 section 4.2).
        if self.waiting < self.together && fresh && whole {
            self.count += 1;
            self.events.insert((self.now + DELAY, self.count), Event::Waited(self.arrivals));
        } else {
            self.acknowledge(range);
        }
    }

    fn acknowledge(&mut self, range: Range) {
        self.waiting = 0;
        let una = self.received.next(0).filter(|first| first.start == 0).map_or(0, |first| first.end);
        let latest = self.received.next(range.start).filter(|block| block.start > una);
        let others = self.received.iter().filter(|block| block.start > una && Some(*block) != latest);
        let blocks = latest.into_iter().chain(others).take(if self.sack { 3 } else { 0 }).collect();
        self.over(|world| &mut world.up, HEADERS, Event::Ack(una, blocks));
    }

    /// Runs until `total` bytes and the FIN are acknowledged. `None` if that takes more than a minute.
    fn run(mut self, total: u64) -> Option<Sent> {
        let mut written = 0;
        while !self.out.is_done() {
            let room = BUFFER as u64 - self.out.unacknowledged();
            let piece: Vec<u8> = (written..total.min(written + room)).map(content).collect();
            written += self.out.write(&piece) as u64;
            if written == total {
                self.out.close();
            }
            self.flush();
            let timer = self.out.poll_timeout();
            let next = self.events.keys().next().map(|&(at, _)| at);
            self.now = [timer, next].into_iter().flatten().min()?.max(self.now);
            assert!(!self.out.handle_timeout(self.now, 15), "gave up");
            while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
                match entry.remove() {
                    Event::Data(range) => self.arrive(range),
                    Event::Ack(offset, blocks) if offset >= self.out.una() => {
                        let plain = blocks.is_empty();
                        self.out.acknowledged(self.now, Ack { offset, blocks: &blocks, plain });
                    }
                    Event::Waited(arrivals) if arrivals == self.arrivals => {
                        self.acknowledge(Range::new(0, 0))
                    }
                    Event::Ack(..) | Event::Waited(_) => {}
                }
            }
            if self.now > Time::from_secs(60) {
                return None;
            }
        }
        assert_eq!(self.received.bytes(), total + 1);
        Some(Sent { took: self.now, bytes: self.bytes, pieces: self.pieces })
    }
}

/// Transmission time of `bytes` on the link in seconds, with headers and with retransmissions of lost
/// packets.
fn ideal(bytes: u64, loss: f64) -> f64 {
    bytes as f64 * 8.0 / RATE as f64 * (1.0 + HEADERS as f64 / SEGMENT as f64) / (1.0 - loss)
}

#[test]
fn fills_a_path_whatever_it_loses() {
    for (loss, most, again) in [(0.0, 1.35, 1.001), (0.01, 1.4, 1.02), (0.05, 1.5, 1.07)] {
        let total = 10 * MIB;
        let sent = World::new(Shape { loss, ..link() }, 7).run(total).unwrap();
        let times = sent.took.as_secs_f64() / ideal(total, loss);
        assert!(times < most, "loss {loss}: {times} times the ideal");
        let share = sent.bytes as f64 / total as f64;
        assert!(share < again, "loss {loss}: {share} sent of what there was");
    }
}

#[test]
fn one_acknowledgement_for_many_segments_does_not_slow_down() {
    let total = 10 * MIB;
    let mut world = World::new(link(), 7);
    world.together = 44;
    let sent = world.run(total).unwrap();
    assert!(sent.took.as_secs_f64() < 1.5 * ideal(total, 0.0), "{sent:?}");
}

#[test]
fn superpackets_change_nothing_but_their_number() {
    for loss in [0.0, 0.01] {
        let world = |most| World { most, ..World::new(Shape { loss, ..link() }, 7) };
        let (one, many) = (world(0).run(4 * MIB).unwrap(), world(60_000).run(4 * MIB).unwrap());
        assert!(many.pieces < one.pieces, "{many:?} {one:?}");
        assert_eq!(Sent { pieces: 0, ..many }, Sent { pieces: 0, ..one }, "loss {loss}");
    }
}

#[test]
fn reordering_is_not_taken_for_loss_for_long() {
    let total = 10 * MIB;
    let sent = World::new(Shape { jitter: 0.002, ..link() }, 7).run(total).unwrap();
    assert!(sent.took.as_secs_f64() < 1.5 * ideal(total, 0.0), "{sent:?}");
    assert!(sent.bytes < total * 102 / 100, "{sent:?}");
}

#[test]
fn a_receiver_without_selective_acknowledgements_gets_everything() {
    let mut world = World::new(Shape { loss: 0.002, ..link() }, 7);
    world.sack = false;
    let sent = world.run(MIB).unwrap();
    assert!(sent.took < Time::from_secs(10), "{sent:?}");
}

#[test]
fn small_messages_do_not_slow_down_what_follows() {
    let mut world = World::new(link(), 7);
    for n in 0..40_u64 {
        let message: Vec<u8> = (70 * n..70 * (n + 1)).map(content).collect();
        assert_eq!(world.out.write(&message), 70);
        world.flush();
        world.now += 40 * MS;
        world.out.acknowledged(world.now, Ack { offset: 70 * (n + 1), blocks: &[], plain: true });
    }
    let pace = world.out.rate.pace().unwrap();
    assert!(pace >= (INITIAL * SEGMENT) as f64 / 0.04, "{pace} bytes a second");
}

#[test]
fn a_lost_tail_is_sent_again_before_the_timeout() {
    let mut out = Outgoing::new(Time::ZERO, BUFFER, SEGMENT);
    out.opened(Time::ZERO, 1 << 20);
    out.measured(100 * MS);
    out.write(&vec![0; 3 * SEGMENT as usize]);
    let offsets = |out: &mut Outgoing, now| -> Vec<u64> {
        std::iter::from_fn(|| out.poll(now, 0)).map(|piece| piece.offset).collect()
    };
    assert_eq!(offsets(&mut out, Time::ZERO), [0, SEGMENT, 2 * SEGMENT]);
    assert_eq!(out.poll_timeout(), Some(200 * MS));
    assert!(!out.handle_timeout(200 * MS, 15));
    assert_eq!(offsets(&mut out, 200 * MS), [2 * SEGMENT]);
    // The probe is acknowledged by SACK, so RACK takes the first two segments for lost by their age.
    let last = [Range::new(2 * SEGMENT, 3 * SEGMENT)];
    out.acknowledged(300 * MS, Ack { offset: 0, blocks: &last, plain: false });
    assert_eq!(offsets(&mut out, 300 * MS), [0, SEGMENT]);
}

#[test]
fn after_a_timeout_one_segment_finds_out_whether_the_path_is_back() {
    let mut out = Outgoing::new(Time::ZERO, BUFFER, SEGMENT);
    out.opened(Time::ZERO, 1 << 20);
    out.measured(10 * MS);
    out.write(&vec![0; 8 * SEGMENT as usize]);
    let mut now = Time::ZERO;
    let (mut tries, mut offsets) = (0, Vec::new());
    loop {
        offsets.extend(std::iter::from_fn(|| out.poll(now, 0)).map(|piece| piece.offset / SEGMENT));
        now = out.poll_timeout().unwrap();
        if out.handle_timeout(now, 3) {
            break;
        }
        tries += 1;
    }
    // Each segment is sent once, the last one again as a probe, and the first one at each timeout.
    assert_eq!(offsets, [0, 1, 2, 3, 4, 5, 6, 7, 7, 0, 0, 0]);
    assert_eq!(tries, 4);
    // The probe waits 20 ms. The timeouts that follow take 200, 400, 800 and 1,600 ms.
    assert_eq!(now, 3020 * MS);
    out.acknowledged(now, Ack { offset: SEGMENT, blocks: &[], plain: true });
    assert!(out.poll(now, 0).is_some_and(|piece| piece.offset == SEGMENT));
    assert!(out.poll(now, 0).is_some(), "more than one again");
}

#[test]
fn what_was_kept_may_be_dropped_again() {
    let mut out = Outgoing::new(Time::ZERO, BUFFER, SEGMENT);
    out.opened(Time::ZERO, 1 << 20);
    out.measured(10 * MS);
    out.write(&vec![0; 4 * SEGMENT as usize]);
    while out.poll(Time::ZERO, 0).is_some() {}
    let kept = [Range::new(SEGMENT, 4 * SEGMENT)];
    out.acknowledged(10 * MS, Ack { offset: 0, blocks: &kept, plain: false });
    assert_eq!(out.poll(10 * MS, 0).unwrap().offset, 0);
    // The first segment arrives. But the receiver no longer reports what it had kept, so it may have dropped
    // that.
    out.acknowledged(20 * MS, Ack { offset: SEGMENT, blocks: &[], plain: true });
    let mut offsets = Vec::new();
    while out.una() < 4 * SEGMENT {
        let now = out.poll_timeout().unwrap();
        assert!(!out.handle_timeout(now, 15));
        while let Some(piece) = out.poll(now, 0) {
            offsets.push(piece.offset);
            out.acknowledged(now + MS, Ack { offset: piece.offset + SEGMENT, blocks: &[], plain: true });
        }
    }
    assert_eq!(offsets, [SEGMENT, 2 * SEGMENT, 3 * SEGMENT]);
}

#[test]
fn what_a_hostile_receiver_claims_is_bounded() {
    let mut out = Outgoing::new(Time::ZERO, BUFFER, SEGMENT);
    out.opened(Time::ZERO, 1 << 20);
    out.measured(10 * MS);
    out.write(&vec![0; 100 * SEGMENT as usize]);
    while out.poll(Time::ZERO, 0).is_some() {}
    for n in 1..10_000 {
        let blocks = [Range::new(2 * n, 2 * n + 1)];
        out.acknowledged(n as u32 * MS / 100, Ack { offset: 0, blocks: &blocks, plain: false });
    }
    assert!(out.flight.ranges() <= INITIAL as usize + 1, "{}", out.flight.ranges());
    // A cumulative ACK in the middle of a segment.
    out.acknowledged(200 * MS, Ack { offset: 3 * SEGMENT - 7, blocks: &[], plain: true });
    let now = 200 * MS;
    assert!(std::iter::from_fn(|| out.poll(now, 0)).all(|piece| piece.offset + 7 >= 3 * SEGMENT));
}

#[test]
fn everything_arrives_over_any_path() {
    for seed in 0..100 {
        let mut rng = Rng::new(&[seed]);
        let sack = rng.hits(0.5);
        let loss = rng.unit() * if sack { 0.2 } else { 0.02 };
        let (jitter, duplicate) = (0.005 * rng.unit(), 0.05 * rng.unit());
        let mut world = World::new(Shape { loss, jitter, duplicate, ..link() }, seed);
        world.up = Pipe::new(Shape { loss, ..world.up.shape().clone() }, seed, 1).unwrap();
        (world.sack, world.together) = (sack, 1 + rng.up_to(50) as usize);
        assert!(world.run(1 + rng.up_to(200_000)).is_some(), "seed {seed}: not in a minute");
    }
}
