//! Two ends of a stream over a seeded network in virtual time: it loses, reorders, repeats and delays. The first
//! end may change its address.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use proptest::prelude::*;
use thalweg_rng::Rng;

use super::*;
use crate::control::cookie::Cookies;
use crate::control::packet::Packet;
use crate::moving::PeerAddress;

#[path = "moving_tests.rs"]
mod moving;

const SECOND: Duration = Duration::from_secs(1);

/// How the network treats packets. It is the same in both directions.
#[derive(Debug, Clone, Copy)]
struct Network {
    loss: f64,
    /// Fraction of the packets that arrive twice.
    twice: f64,
    one_way: Duration,
    /// Maximum extra delay of a packet. It makes packets overtake each other.
    jitter: Duration,
}

impl Network {
    fn new(loss: f64, one_way: Duration) -> Self {
        Self { loss, twice: 0.0, one_way, jitter: Duration::ZERO }
    }
}

/// A packet on its way: when it arrives, its number, the end that gets it, its bytes, and the address of the first
/// end that it comes from or goes to.
type InFlight = (Duration, u64, usize, Vec<u8>, SocketAddr);

/// Both ends, and the packets between them.
struct World {
    network: Network,
    rng: Rng,
    now: Duration,
    ends: [Stream; 2],
    packets: BinaryHeap<Reverse<InFlight>>,
    count: u64,
    /// The address of the first end.
    home: SocketAddr,
    /// The second end is the listener's: the first end's address as it knows it.
    peer: PeerAddress,
    cookies: Cookies,
    /// When the first end last learned that it has moved.
    moved: Option<Duration>,
    /// An address from which somebody sends a copy of each packet of the first end.
    forger: Option<SocketAddr>,
    /// Bytes that were sent from the forger's address, and to it.
    forged: (usize, usize),
}

impl World {
    fn new(network: Network, seed: u64) -> Self {
        let trip = Some(2 * network.one_way);
        let ends = [Stream::new(Duration::ZERO, trip), Stream::new(Duration::ZERO, trip)];
        let (packets, rng) = (BinaryHeap::new(), Rng::new(&[seed]));
        let home = moving::address(0);
        Self {
            network,
            rng,
            now: Duration::ZERO,
            ends,
            packets,
            count: 0,
            home,
            peer: PeerAddress::new(home, Duration::ZERO),
            cookies: Cookies::new("test").unwrap(),
            moved: None,
            forger: None,
            forged: (0, 0),
        }
    }

    fn send(&mut self) {
        for end in 0..2 {
            while let Some((segment, bytes)) = self.ends[end].poll_transmit(self.now) {
                self.post(end, &Packet::Segment { segment, bytes: &bytes });
            }
        }
    }

    /// Sends a packet from this end: the first end sends from its address, the second to the one that it knows.
    fn post(&mut self, from: usize, packet: &Packet<'_>) {
        let address = if from == 0 { self.home } else { self.peer.get() };
        self.carry(from, packet, address);
        if let Some(forger) = self.forger.filter(|_| from == 0) {
            self.forged.0 += self.carry(from, packet, forger);
        }
    }

    fn carry(&mut self, from: usize, packet: &Packet<'_>, address: SocketAddr) -> usize {
        let (packet, mut carried) = (packet.encode(&moving::ID), 0);
        let copies = 1 + u64::from(self.rng.hits(self.network.twice));
        for _ in 0..copies {
            let late = self.network.jitter.mul_f64(self.rng.unit());
            if !self.rng.hits(self.network.loss) {
                self.count += 1;
                let at = self.now + self.network.one_way + late;
                self.packets.push(Reverse((at, self.count, 1 - from, packet.clone(), address)));
                carried += packet.len();
            }
        }
        carried
    }

    /// Goes on to the next event. False if nothing would ever happen again.
    fn step(&mut self) -> bool {
        self.send();
        let timer = self.ends.iter().filter_map(Stream::poll_timeout).min();
        let arrival = self.packets.peek().map(|Reverse((at, ..))| *at);
        let Some(next) = timer.into_iter().chain(arrival).min() else { return false };
        self.now = self.now.max(next);
        while self.packets.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, to, packet, address))) = self.packets.pop() else { break };
            self.arrive(to, &packet, address);
        }
        true
    }

    /// Sends `texts` from each end to the other, and ends both directions. Returns when the last byte was read.
    fn exchange(&mut self, texts: [&[u8]; 2], limit: Duration) -> Duration {
        let (mut written, mut read) = ([0, 0], [Vec::new(), Vec::new()]);
        let mut done = [false; 2];
        let mut finished = Duration::ZERO;
        while !done.iter().all(|&done| done) {
            for end in 0..2 {
                written[end] += self.ends[end].write(&texts[end][written[end]..]);
                let mut buffer = [0; 5000];
                while let Some(count) = self.ends[end].read(&mut buffer) {
                    read[end].extend_from_slice(&buffer[..count]);
                    if count == 0 || read[end].len() >= texts[1 - end].len() {
                        finished = self.now;
                        done[end] = true;
                        break;
                    }
                }
            }
            assert!(done == [true; 2] || self.step(), "both ends wait for each other at {:?}", self.now);
            assert!(
                self.now < limit,
                "{:?} of {:?} bytes in {limit:?}",
                read.each_ref().map(Vec::len),
                written
            );
        }
        assert_eq!((&read[1][..], &read[0][..]), (texts[0], texts[1]));
        self.ends.iter_mut().for_each(Stream::close);
        while !self.ends.iter().all(Stream::is_delivered) {
            assert!(self.step() && self.now < 2 * limit, "an end is never acknowledged");
        }
        assert!(self.ends.iter().all(Stream::peer_has_ended));
        finished
    }
}

fn text(length: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(&[seed, 7]);
    (0..length).map(|_| rng.draw() as u8).collect()
}

/// About the bytes of a TLS handshake and a first message, in each direction.
const FEW: usize = 3000;

#[test]
fn a_handshake_gets_through_whatever_is_lost() {
    for (loss, seconds) in [(0.0, 0.2), (0.5, 2.0), (0.7, 6.0), (0.8, 20.0)] {
        for seed in 0..20 {
            let mut world = World::new(Network::new(loss, Duration::from_millis(20)), seed);
            let took = world.exchange([&text(FEW, 1), &text(FEW, 2)], 60 * SECOND);
            assert!(took.as_secs_f64() < seconds, "{took:?} at {loss}, seed {seed}");
        }
    }
}

#[test]
fn a_message_takes_a_few_round_trips_on_every_path() {
    for one_way in [5, 1_000, 50_000, 1_000_000, 10_000_000].map(Duration::from_micros) {
        for (loss, trips) in [(0.0, 2.0), (0.3, 6.0), (0.6, 12.0)] {
            for seed in 0..10 {
                let mut world = World::new(Network::new(loss, one_way), seed);
                let took = world.exchange([&text(FEW, 1), &text(100, 2)], 10_000 * SECOND);
                let limit = 2.0 * trips * one_way.as_secs_f64() + 2.0 * loss;
                assert!(took.as_secs_f64() <= limit, "{took:?} over {one_way:?} at {loss}, seed {seed}");
            }
        }
    }
}

#[test]
fn nothing_is_sent_twice_over_a_path_that_loses_nothing_once_that_is_known() {
    let mut world = World::new(Network::new(0.0, Duration::from_millis(20)), 1);
    let bytes = text(400_000, 3);
    world.exchange([&bytes, b"well"], 60 * SECOND);
    let [sender, receiver] = &world.ends;
    assert!(
        sender.repeated() < 40 && receiver.repeated() < 10,
        "{} {}",
        sender.repeated(),
        receiver.repeated()
    );
}

/// A reader that pauses stops the sender, and the packet that reopens the window may be lost.
#[test]
fn a_reader_that_pauses_is_waited_for() {
    let mut world = World::new(Network::new(0.5, Duration::from_millis(5)), 9);
    let bytes = text(200_000, 4);
    let mut written = 0;
    while world.now < 100 * SECOND {
        written += world.ends[0].write(&bytes[written..]);
        assert!(world.step(), "the sender has given up");
    }
    let held = world.ends[1].incoming.len() + world.ends[1].early.values().map(Vec::len).sum::<usize>();
    assert!(held <= RECEIVE_WINDOW.0 as usize + MAX_SEGMENT_BYTES, "{held} bytes");
    let sent = world.count;
    while world.now < 200 * SECOND {
        assert!(world.step());
    }
    assert!(world.count - sent < 2_000, "{} packets in 100 s", world.count - sent);
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    while read.len() < bytes.len() {
        written += world.ends[0].write(&bytes[written..]);
        while let Some(count) = world.ends[1].read(&mut buffer) {
            read.extend_from_slice(&buffer[..count]);
        }
        assert!(world.step() && world.now < 400 * SECOND, "{} of {} bytes", read.len(), bytes.len());
    }
    assert_eq!(read, bytes);
}

/// While a path is down, a packet is sent now and then. Once the path is back, the stream continues soon.
#[test]
fn an_outage_of_minutes_is_a_pause() {
    let mut world = World::new(Network::new(1.0, Duration::from_millis(20)), 5);
    world.ends[0].write(b"before");
    while world.now < 360 * SECOND {
        assert!(world.step());
    }
    assert!(world.ends[0].repeated() < 2_000, "{} packets", world.ends[0].repeated());
    world.network.loss = 0.0;
    let (back, mut buffer) = (world.now, [0; 10]);
    while world.ends[1].read(&mut buffer) != Some(6) {
        assert!(world.step());
    }
    assert!(world.now - back < Duration::from_millis(300), "{:?}", world.now - back);
}

fn any_segment() -> impl Strategy<Value = (Segment, Vec<u8>)> {
    let near = || prop_oneof![0..5_000_u64, any::<u64>()];
    let numbers = (near(), near(), any::<u32>(), any::<u32>(), any::<Option<u32>>());
    let counts = (0..100_u32, 0..100_u32, any::<u32>());
    let ranges = prop::array::uniform4((0..5_000_u32, prop_oneof![0..5_000_u32, any::<u32>()]));
    (numbers, counts, ranges, any::<bool>(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(
        |((offset, ack, window, time, echo), (sent, seen, received), ranges, ends, bytes)| {
            let segment = Segment { offset, ack, window, time, echo, sent, seen, received, ends, ranges };
            (segment, if ends { Vec::new() } else { bytes })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_bytes_come_once_and_in_order_over_any_network(
        loss in 0.0..0.8, twice in 0.0..0.5, micros in 5..500_000_u64, late in 0..200_u64,
        lengths in (0..20_000_usize, 0..3_000_usize), seed in any::<u64>(),
    ) {
        let (one_way, jitter) = (Duration::from_micros(micros), Duration::from_millis(late));
        let mut world = World::new(Network { loss, twice, one_way, jitter }, seed);
        world.exchange([&text(lengths.0, 1), &text(lengths.1, 2)], 3_600 * SECOND);
    }

    /// A hostile peer that knows the id can break its own stream, and nothing else: no panic, no memory
    /// without bound, no endless loop.
    #[test]
    fn whatever_a_peer_sends_does_no_harm(
        segments in prop::collection::vec(any_segment(), 0..60), seed in any::<u64>(),
    ) {
        let mut stream = Stream::new(Duration::ZERO, None);
        stream.write(&text(30_000, seed));
        let (mut now, mut buffer) = (Duration::ZERO, [0; 64]);
        for (segment, bytes) in segments {
            now += Duration::from_millis(seed % 50);
            stream.handle(now, &segment, &bytes);
            let sent = std::iter::from_fn(|| stream.poll_transmit(now)).take(1_000).count();
            prop_assert!(sent < 1_000);
            let held = stream.incoming.len() + stream.early.values().map(Vec::len).sum::<usize>();
            prop_assert!(held <= 2 * RECEIVE_WINDOW.0 as usize, "{} bytes", held);
            stream.read(&mut buffer);
        }
    }
}
