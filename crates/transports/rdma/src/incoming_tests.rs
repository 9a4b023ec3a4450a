//! A sender that breaks the rules, over a pretend device.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use thalweg_arena::Arena;
use thalweg_verbs::pretend::{Behaviour, Fabric, Pretend};
use thalweg_verbs::Fault;
use thalweg_wire::{checksum, ChunkHeader, LayoutHash, Range};

use super::*;
use crate::words::record;
use crate::GRANTS;
use thalweg_transport::ErrorKind;

const LENGTH: u32 = 5_000;

/// A receiver, and the sender's end of its pair.
struct Ends {
    device: Arc<dyn Device>,
    receiver: Incoming,
    outbox: Outbox,
    sender: Box<dyn Pair>,
    ring: Remote,
    /// Memory that chunks are granted a part of.
    place: Arena,
}

fn settle(pair: &mut Box<dyn Pair>) -> Vec<Done> {
    let (mut done, mut context) = (Vec::new(), Context::from_waker(Waker::noop()));
    for _ in 0..200 {
        let _ = pair.poll(&mut context, &mut done);
    }
    done
}

impl Ends {
    fn new(seed: u64) -> Self {
        let behaviour = Behaviour { seed, ..Behaviour::default() };
        let device: Arc<dyn Device> = Arc::new(Pretend::new(&Arc::new(Fabric::default()), behaviour));
        let (mut sender, mut pair) = (device.pair(NOTES).unwrap(), device.pair(NOTES).unwrap());
        sender.connect(&pair.endpoint()).unwrap();
        pair.connect(&sender.endpoint()).unwrap();
        let ring = Arena::new((SLOTS * RECORD) as u64).unwrap();
        device.register(&ring).unwrap();
        let memory = Memory::new(vec![ring.claim(ring.range()).unwrap()]).unwrap();
        pair.post(0, Work::Open(memory)).unwrap();
        let Some(Done::Opened(_, remote)) = settle(&mut pair).pop() else { panic!("no ring") };
        let pool = Arc::new(Pool::new(device.clone()));
        let at = (pair, remote.key, ring.as_ptr() as usize);
        let receiver = Incoming::new(device.clone(), pool, at);
        let place = Arena::new(3 * u64::from(LENGTH)).unwrap();
        Self { device, receiver, outbox: Outbox::new().0, sender, ring: remote, place }
    }

    fn poll(&mut self) -> Result<()> {
        let mut context = Context::from_waker(Waker::noop());
        (0..200).try_for_each(|_| self.receiver.poll(&mut context, &self.outbox))
    }

    /// Offers a chunk of these bytes, and has it granted.
    fn granted(&mut self, number: u64, byte: u8) -> Remote {
        let chunk =
            ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length: LENGTH };
        let header = FrameHeader::chunk(chunk, checksum(&vec![byte; LENGTH as usize]));
        self.receiver.handle_offer(number, header).unwrap();
        let (number, header) = self.receiver.next_offer(u64::MAX).unwrap();
        // The middle third of it.
        let granted = Range::new(LENGTH.into(), 2 * u64::from(LENGTH));
        let claim = self.place.claim(granted).unwrap();
        self.receiver.grant(number, header, Some(claim), &self.outbox).unwrap();
        self.poll().unwrap();
        let address = self.receiver.grants[&number].address as u64;
        let State::Open { key } = self.receiver.grants[&number].state else { panic!("not open") };
        Remote { address, key }
    }

    /// Bytes in memory that the sender's device knows.
    fn bytes(&self, bytes: &[u8]) -> bytes::Bytes {
        let arena = Arena::new(bytes.len() as u64).unwrap();
        self.device.register(&arena).unwrap();
        arena.claim(arena.range()).unwrap().copy_from_slice(bytes);
        arena.lend(arena.range()).unwrap()
    }

    fn write(&mut self, byte: u8, to: Remote) {
        let bytes = vec![self.bytes(&vec![byte; LENGTH as usize])];
        self.sender.post(1, Work::Write { bytes, to }).unwrap();
    }

    fn note(&mut self, number: u64, slot: u32) {
        let bytes = vec![self.bytes(&record(number))];
        let at = u64::from(slot) * RECORD as u64;
        let to = Remote { address: self.ring.address + at, ..self.ring };
        self.sender.post(2, Work::Note { bytes, to, note: slot }).unwrap();
    }
}

/// The bytes that a sender writes when its chunk is committed land nowhere: not before the sink has them, not after.
#[test]
fn a_write_after_the_grant_was_revoked_changes_no_byte() {
    for seed in 0..30 {
        let mut ends = Ends::new(seed);
        let to = ends.granted(0, 7);
        ends.write(7, to);
        ends.note(0, 0);
        drop(settle(&mut ends.sender));
        ends.poll().unwrap();
        let came = ends.receiver.next_came().unwrap();
        assert_eq!(came.header.verify(&came.bytes), Ok(()));
        ends.write(9, to);
        assert!(matches!(settle(&mut ends.sender)[..], [.., Done::Lost(Fault::Access)]));
        assert_eq!(came.header.verify(&came.bytes), Ok(()), "a late write");
    }
}

/// One that is under way while the grant is withdrawn may have landed in part; nothing lands once the place is free.
#[test]
fn a_write_under_way_lands_nowhere_once_its_place_is_free() {
    let mut cut_short = 0;
    for seed in 0..50 {
        let mut ends = Ends::new(seed);
        let to = ends.granted(0, 7);
        ends.write(7, to);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            let _ = ends.sender.poll(&mut context, &mut Vec::new());
        }
        ends.receiver.handle_withdraw(0, false).unwrap();
        ends.poll().unwrap();
        let mut place = ends.place.claim(ends.place.range()).unwrap();
        let came = place.iter().filter(|&&byte| byte == 7).count();
        cut_short += u32::from(came > 0 && came < LENGTH as usize);
        place.fill(3);
        drop(settle(&mut ends.sender));
        assert!(place.iter().all(|&byte| byte == 3), "a late write");
    }
    assert!(cut_short > 0, "no write was withdrawn half-way");
}

/// A key reaches the memory of its grant, and no byte beside it.
#[test]
fn forged_keys_and_addresses_reach_nothing_else() {
    for (offset, key) in [(0, 1), (1, 0), (u64::from(LENGTH), 0), (u64::MAX - 9, 0)] {
        let mut ends = Ends::new(1);
        let to = ends.granted(0, 7);
        ends.write(9, Remote { address: to.address.wrapping_add(offset), key: to.key + key });
        assert!(settle(&mut ends.sender).iter().any(|done| matches!(done, Done::Lost(Fault::Access))));
        ends.receiver.stop();
        let place = ends.place.lend(ends.place.range()).unwrap();
        let granted = u64::from(LENGTH)..2 * u64::from(LENGTH);
        let touched = |(at, _): &(u64, &u8)| key > 0 || !granted.contains(at);
        assert!((0..).zip(place.iter()).filter(touched).all(|(_, &byte)| byte == 0), "{offset} {key}");
    }
}

#[test]
fn records_of_what_is_not_granted_end_the_link() {
    // An old one that was left in its slot, one of the future, one that was taken, and a slot that there is not.
    for (number, slot) in [(1, 0), (u64::MAX, 3), (0, 1), (0, SLOTS as u32 + 1)] {
        let mut ends = Ends::new(2);
        let to = ends.granted(0, 7);
        ends.write(7, to);
        ends.note(0, 0);
        drop(settle(&mut ends.sender));
        ends.poll().unwrap();
        ends.receiver.next_came().unwrap();
        let bytes = vec![ends.bytes(&record(number))];
        let slot_of = u64::from(slot.min(SLOTS as u32 - 1));
        let to = Remote { address: ends.ring.address + slot_of * RECORD as u64, ..ends.ring };
        ends.sender.post(3, Work::Note { bytes, to, note: slot }).unwrap();
        drop(settle(&mut ends.sender));
        assert_eq!(ends.poll().unwrap_err().kind(), ErrorKind::Corrupt, "{number} in {slot}");
    }
}

#[test]
fn words_out_of_order_end_the_link() {
    let mut ends = Ends::new(3);
    ends.granted(0, 7);
    let header = ends.receiver.grants[&0].header;
    assert!(ends.receiver.handle_offer(0, header).is_err(), "offered twice");
    assert!(ends.receiver.handle_offer(5, header).is_err(), "numbers were left out");
    assert!(ends.receiver.handle_withdraw(1, false).is_err(), "never offered");
    let endpoint = ends.sender.endpoint();
    assert!(ends.receiver.handle_renew(0, &endpoint, &ends.outbox).is_err(), "an old pair");
    let too_many = (1..).find(|&number| ends.receiver.handle_offer(number, header).is_err()).unwrap();
    assert!(too_many <= 2 * GRANTS as u64 + 1, "{too_many} offers wait");
}

/// A chunk may be withdrawn while the sink is asked for its place.
#[test]
fn what_is_withdrawn_while_it_is_placed_is_granted_nothing() {
    let mut ends = Ends::new(4);
    let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length: LENGTH };
    let header = FrameHeader::chunk(chunk, 0);
    for number in 0..2 * GRANTS as u64 {
        ends.receiver.handle_offer(number, header).unwrap();
        let (_, header) = ends.receiver.next_offer(u64::MAX).unwrap();
        ends.receiver.handle_withdraw(number, false).unwrap();
        let claim = ends.place.claim(Range::new(0, LENGTH.into())).unwrap();
        ends.receiver.grant(number, header, Some(claim), &ends.outbox).unwrap();
        ends.poll().unwrap();
        assert!(ends.receiver.grants.is_empty() && ends.receiver.is_settled());
    }
    assert!(ends.place.claim(ends.place.range()).is_ok(), "a place is held");
}

/// A message that was sent after a chunk was committed and its update stopped waits for that chunk, whenever the record and
/// the withdrawal come.
#[test]
fn what_was_committed_is_under_way_until_it_has_come() {
    for seed in 0..20 {
        for before in 0..4 {
            let mut ends = Ends::new(seed);
            let to = ends.granted(0, 7);
            ends.write(7, to);
            ends.note(0, 0);
            drop(settle(&mut ends.sender));
            let mut context = Context::from_waker(Waker::noop());
            for step in 0..200 {
                if step == before {
                    ends.receiver.handle_withdraw(0, true).unwrap();
                }
                ends.receiver.poll(&mut context, &ends.outbox).unwrap();
                let there = !ends.receiver.came.is_empty();
                assert!(
                    step < before || there || !ends.receiver.is_settled(),
                    "a message overtakes at {step}"
                );
            }
            assert!(ends.receiver.next_came().is_some() && ends.receiver.is_settled());
        }
    }
}
