//! The first end of a stream changes its address, as the hub and the pipes handle that, in virtual time.

use super::*;
use crate::control::cookie::proof;
use crate::control::packet::Id;

pub(super) const ID: Id = [0; 16];

/// The addresses that the first end has, one after the other.
pub(super) fn address(number: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 4000 + number))
}

impl World {
    /// A packet arrives at an end. Packets to an old address of the first end are lost.
    pub(super) fn arrive(&mut self, to: usize, packet: &[u8], address: SocketAddr) {
        if to == 0 && Some(address) == self.forger {
            self.forged.1 += packet.len();
        }
        if to == 0 && address != self.home {
            return;
        }
        let Some((_, decoded)) = Packet::decode(packet) else { panic!("an end sent what does not decode") };
        let now = self.now;
        match decoded {
            Packet::Segment { segment, bytes } if to == 0 || address == self.peer.get() => {
                self.ends[to].handle(now, &segment, bytes);
            }
            Packet::Segment { .. } => {
                if let Some(cookie) = self.peer.challenge(&self.cookies, now, address, &ID) {
                    self.carry(1, &Packet::Challenge { cookie }, address);
                }
            }
            Packet::Challenge { cookie } => {
                self.post(0, &Packet::Answer { cookie, proof: proof(None, &cookie) });
                let trip = self.ends[0].round_trip().unwrap_or(INITIAL_PAUSE);
                if self.moved.is_none_or(|at| now >= at + trip) {
                    self.moved = Some(now);
                    self.ends[0].path_changed(now, None);
                }
            }
            Packet::Answer { cookie, .. } => {
                if let Some(trip) = self.peer.answered(&self.cookies, now, address, &ID, &cookie) {
                    self.ends[1].path_changed(now, Some(trip));
                }
            }
            other => panic!("no end sends {other:?}"),
        }
    }

    /// What the second end has received.
    fn read(&mut self) -> Vec<u8> {
        let (mut read, mut buffer) = (Vec::new(), [0; 5000]);
        while let Some(count) = self.ends[1].read(&mut buffer) {
            read.extend_from_slice(&buffer[..count]);
        }
        read
    }

    /// Sends a long text up, and moves the first end to the next address each time when so much has arrived.
    /// Returns for each move how long it took until the second end knew.
    fn upload(&mut self, text: &[u8], moves: &[usize]) -> Vec<Duration> {
        let (mut written, mut read, mut found) = (0, Vec::new(), Vec::new());
        let (mut next, mut since) = (moves.iter().peekable(), None);
        while read.len() < text.len() {
            written += self.ends[0].write(&text[written..]);
            read.extend(self.read());
            if self.peer.get() == self.home {
                found.extend(since.take().map(|since| self.now - since));
            }
            if next.next_if(|at| read.len() >= **at).is_some() {
                self.home = address(self.home.port() - 3999);
                since = Some(self.now);
            }
            assert!(self.step() && self.now < 10_000 * SECOND, "{} of {} bytes", read.len(), text.len());
        }
        assert_eq!(read, text);
        found
    }
}

const LONG: usize = 400_000;

/// A NAT gives the client another port in the middle of a transfer, or the client changes networks.
#[test]
fn a_stream_follows_its_client_within_a_few_round_trips() {
    for one_way in [100, 1_000, 20_000, 500_000, 5_000_000].map(Duration::from_micros) {
        for (loss, trips) in [(0.0, 4), (0.3, 12)] {
            for seed in 0..4 {
                let mut world = World::new(Network::new(loss, one_way), seed);
                let found = world.upload(&text(LONG, 1), &[LONG / 4, LONG / 2]);
                assert_eq!((found.len(), world.peer.get()), (2, world.home));
                // A segment is sent again each 10 ms at most.
                let limit = (2 * one_way).max(Duration::from_millis(20)) * trips + Duration::from_millis(100);
                assert!(found.iter().all(|after| *after <= limit), "{found:?} at {loss} over {one_way:?}");
            }
        }
    }
}

/// A move costs what was in flight, and nothing that has arrived.
#[test]
fn a_move_sends_little_again() {
    let repeated = |moves: &[usize]| {
        let mut world = World::new(Network::new(0.0, Duration::from_millis(20)), 1);
        world.upload(&text(LONG, 1), moves);
        world.ends[0].repeated()
    };
    let (without, with) = (repeated(&[]), repeated(&[LONG / 2]));
    assert!(with - without < 200, "{without} segments were sent again, and with a move {with}");
}

/// A client that only receives has nothing to send again. A sign of life shows where it is.
#[test]
fn a_client_that_only_waits_is_found() {
    for one_way in [1, 20, 2_000].map(Duration::from_millis) {
        let mut world = World::new(Network::new(0.2, one_way), 1);
        world.ends[0].keep_alive(Duration::ZERO);
        let (all, mut written, mut read, mut buffer) = (text(LONG, 1), 0, Vec::new(), [0; 5000]);
        while read.len() < LONG {
            written += world.ends[1].write(&all[written..]);
            while let Some(count) = world.ends[0].read(&mut buffer) {
                read.extend_from_slice(&buffer[..count]);
            }
            if read.len() > LONG / 4 {
                world.home = address(1);
            }
            assert!(world.step() && world.now < 1_000 * SECOND);
        }
        assert_eq!((world.peer.get(), read), (address(1), all));
    }
}

/// The client's address changes again before the server knows the first new one.
#[test]
fn a_client_that_moves_twice_in_a_row_is_found_at_the_last_place() {
    for seed in 0..8 {
        let one_way = Duration::from_millis(100);
        let mut world = World::new(Network::new(0.2, one_way), seed);
        let (all, mut written) = (text(LONG, 2), 0);
        let mut read = Vec::new();
        let mut go_on = |world: &mut World| {
            written += world.ends[0].write(&all[written..]);
            assert!(world.step());
            read.extend(world.read());
            read.len()
        };
        while go_on(&mut world) < LONG / 8 {}
        for number in [1, 2, 1, 3] {
            world.home = address(number);
            let until = world.now + one_way * u32::from(number) / 2;
            while world.now < until {
                go_on(&mut world);
            }
        }
        let moved = world.now;
        while world.peer.get() != address(3) {
            go_on(&mut world);
        }
        assert!(world.now - moved < 3 * SECOND, "{:?}", world.now - moved);
        while go_on(&mut world) < LONG {}
        assert_eq!(read, all);
    }
}

/// Somebody sends a copy of each packet from his own address. He gets no more bytes than he sends, and moves nothing.
#[test]
fn a_forged_address_moves_no_stream() {
    for (loss, seed) in [(0.0, 1), (0.3, 2)] {
        let mut world = World::new(Network::new(loss, Duration::from_millis(20)), seed);
        let forger = SocketAddr::from(([10, 6, 6, 6], 666));
        world.forger = Some(forger);
        let found = world.upload(&text(LONG, 3), &[LONG / 2]);
        assert!(found.len() == 1 && found[0] < SECOND, "{found:?}");
        assert_eq!(world.peer.get(), world.home, "the client's own move counts");
        assert!(world.forged.0 > LONG / 2 && world.forged.1 > 0, "{:?}", world.forged);
        assert!(world.forged.1 <= world.forged.0, "{:?}", world.forged);
    }
}
