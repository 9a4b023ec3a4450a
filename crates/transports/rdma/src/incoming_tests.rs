//! Tests of `incoming` over a pretend device, with a sender that breaks the rules.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::task::Waker;

use thalweg_arena::Arena;
use thalweg_transport::ErrorKind;
use thalweg_verbs::pretend::{connected, settle, step};
use thalweg_verbs::Fault;
use thalweg_wire::{checksum, Range};

use super::*;
use crate::ends::{extent, verify, Ends, PLACE};
use crate::extent::Extent;
use crate::words::record;
use crate::{GRANTS, NOTES};

/// Bytes of a chunk.
const LENGTH: u32 = PLACE / 3;

fn ends(seed: u64) -> Ends<Incoming> {
    Ends::new(seed, SLOTS * RECORD, |device, pool, pair| Incoming::new(device, pool, vec![pair]))
}

impl Ends<Incoming> {
    fn offer(&mut self, number: u64, extent: Extent) -> Result<()> {
        self.receiver.handle_word(Word::Offer { number, extent }, &self.outbox)
    }

    /// Offers a chunk, and has it granted. Returns the granted memory.
    fn granted(&mut self, number: u64) -> Remote {
        self.offer(number, extent(LENGTH)).unwrap();
        let (number, part) = self.receiver.next_offer(u64::MAX).unwrap();
        // Grant the middle third of the memory.
        let granted = Range::new(LENGTH.into(), 2 * u64::from(LENGTH));
        let claim = self.place.claim(granted).unwrap();
        self.receiver.grant(number, part, vec![Some(claim)], &self.outbox).unwrap();
        self.poll().unwrap();
        let address = self.receiver.grants[&number].address;
        let State::Open { key } = self.receiver.grants[&number].state else { panic!("not open") };
        Remote { address, key }
    }

    fn write(&mut self, byte: u8, to: Remote) {
        let bytes = self.bytes(&vec![byte; LENGTH as usize]);
        self.sender.post(1, Work::Write { bytes, to }).unwrap();
    }

    /// Writes the commit record of a chunk that consists of sevens to a slot of the ring. `note` is the slot
    /// that the immediate data names.
    fn note(&mut self, number: u64, slot: usize, note: u32) {
        let sum = checksum(&[7; LENGTH as usize]);
        let bytes = self.bytes(&record(number, sum));
        let to = Remote { address: self.first.address + (slot * RECORD) as u64, ..self.first };
        self.sender.post(2, Work::Note { bytes, to, note }).unwrap();
        settle(&mut self.sender);
    }
}

/// A sender that writes after its chunk was committed reaches no memory, neither before nor after the sink
/// has the bytes.
#[test]
fn a_write_after_the_grant_was_revoked_changes_no_byte() {
    for seed in 0..30 {
        let mut ends = ends(seed);
        let to = ends.granted(0);
        ends.write(7, to);
        ends.note(0, 0, 0);
        ends.poll().unwrap();
        let came = ends.receiver.arrivals.next().unwrap();
        assert_eq!(verify(&came), Ok(()));
        ends.write(9, to);
        assert!(matches!(settle(&mut ends.sender)[..], [.., Done::Lost(Fault::Access)]));
        assert_eq!(verify(&came), Ok(()), "a late write");
    }
}

/// A write that is in flight while the grant is withdrawn may have landed in part. Once the place is free, no
/// more of the write may land there.
#[test]
fn a_write_under_way_lands_nowhere_once_its_place_is_free() {
    let mut cut_short = 0;
    for seed in 0..50 {
        let mut ends = ends(seed);
        let to = ends.granted(0);
        ends.write(7, to);
        (0..2).for_each(|_| step(&mut ends.sender, &mut Vec::new()));
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
        let mut ends = ends(1);
        let to = ends.granted(0);
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
    // Forge, in turn, the number of a grant that was never made, a number of the far future, the number of a
    // chunk already taken, and a slot out of range.
    for (number, slot) in [(1, 0), (u64::MAX, 3), (0, 1), (0, SLOTS + 1)] {
        let mut ends = ends(2);
        let to = ends.granted(0);
        ends.write(7, to);
        ends.note(0, 0, 0);
        ends.poll().unwrap();
        ends.receiver.arrivals.next().unwrap();
        ends.note(number, slot.min(SLOTS - 1), slot as u32);
        assert_eq!(ends.poll().unwrap_err().kind(), ErrorKind::Corrupt, "{number} in {slot}");
    }
}

#[test]
fn words_out_of_order_end_the_link() {
    let mut ends = ends(3);
    ends.granted(0);
    let extent = extent(LENGTH);
    assert!(ends.offer(0, extent).is_err(), "offered twice");
    assert!(ends.offer(5, extent).is_err(), "numbers were left out");
    let ready = Word::Ready { number: 1 };
    assert!(ends.receiver.handle_word(ready, &ends.outbox).is_err(), "the extent has one part");
    assert!(ends.receiver.handle_withdraw(1, false).is_err(), "never offered");
    let endpoint = ends.sender.endpoint();
    assert!(ends.receiver.handle_renew(0, 0, &endpoint, &ends.outbox).is_err(), "an old pair");
    assert!(ends.receiver.handle_renew(1, 1, &endpoint, &ends.outbox).is_err(), "a pair that is not there");
    let too_many = (1..).find(|&number| ends.offer(number, extent).is_err()).unwrap();
    assert!(too_many <= 2 * GRANTS as u64 + 1, "{too_many} offers wait");
}

/// A chunk may be withdrawn while the sink is asked for its place.
#[test]
fn what_is_withdrawn_while_it_is_placed_is_granted_nothing() {
    let mut ends = ends(4);
    for number in 0..2 * GRANTS as u64 {
        ends.offer(number, extent(LENGTH)).unwrap();
        let (_, part) = ends.receiver.next_offer(u64::MAX).unwrap();
        ends.receiver.handle_withdraw(number, false).unwrap();
        let claim = ends.place.claim(Range::new(0, LENGTH.into())).unwrap();
        ends.receiver.grant(number, part, vec![Some(claim)], &ends.outbox).unwrap();
        ends.poll().unwrap();
        assert!(ends.receiver.grants.is_empty() && ends.receiver.is_settled());
    }
    assert!(ends.place.claim(ends.place.range()).is_ok(), "a place is held");
}

/// The sender commits a chunk, withdraws its update, and sends a message. The message waits for that chunk,
/// in whatever order the commit record and the withdrawal arrive.
#[test]
fn what_was_committed_is_under_way_until_it_has_come() {
    for seed in 0..20 {
        for before in 0..4 {
            let mut ends = ends(seed);
            let to = ends.granted(0);
            ends.write(7, to);
            ends.note(0, 0, 0);
            let mut context = Context::from_waker(Waker::noop());
            for step in 0..200 {
                if step == before {
                    ends.receiver.handle_withdraw(0, true).unwrap();
                }
                ends.receiver.poll(&mut context, &ends.outbox).unwrap();
                let there = ends.receiver.arrivals.len() > 0;
                assert!(
                    step < before || there || !ends.receiver.is_settled(),
                    "a message overtakes at {step}"
                );
            }
            assert!(ends.receiver.arrivals.next().is_some() && ends.receiver.is_settled());
        }
    }
}

/// A receiver with two pairs. The sender's end of the first one is gone.
fn two_pairs(seed: u64) -> Ends<Incoming> {
    Ends::new(seed, SLOTS * RECORD, |device, pool, pair| {
        let ring = Arena::new((SLOTS * RECORD) as u64).unwrap();
        device.register(&ring).unwrap();
        let (_, mut first) = connected(&*device, &*device, NOTES).unwrap();
        first.post(0, Work::Open(ring.claim(ring.range()).unwrap().into())).unwrap();
        let Some(Done::Opened(_, at)) = settle(&mut first).pop() else { panic!("nothing is open") };
        Incoming::new(device, pool, vec![(first, at.key, at.address as usize), pair])
    })
}

/// The grant is open to the first pair, and the record comes over the second: the bytes may not be there.
#[test]
fn a_record_over_another_pair_ends_the_link() {
    let mut ends = two_pairs(5);
    ends.granted(0);
    assert_eq!(ends.receiver.grants[&0].pair, 0);
    let said = ends.outbox.said();
    assert!(matches!(said[..], [Word::Grant { number: 0, pair: 0, .. }]), "{said:?}");
    ends.note(0, 0, 0);
    assert_eq!(ends.poll().unwrap_err().kind(), ErrorKind::Corrupt);
}

/// The device reports the loss of both pairs, and the sender replaces the second one first. Until then nothing is granted:
/// a grant to a lost pair would wait for the sender.
#[test]
fn a_pair_that_the_device_has_lost_is_granted_nothing() {
    let mut ends = two_pairs(6);
    assert!(ends.receiver.may_grant());
    assert_eq!(ends.fabric.cut(), 3, "one end of the first pair, and both of the second");
    ends.poll().unwrap();
    let said = ends.outbox.said();
    let broken = [Word::Broken { pair: 0, epoch: 0 }, Word::Broken { pair: 1, epoch: 0 }];
    assert_eq!((said.as_slice(), ends.receiver.may_grant()), (&broken[..], false));
    let renew = |pair: u8, ends: &mut Ends<Incoming>| {
        let endpoint = ends.device.pair(NOTES).unwrap().endpoint();
        ends.receiver.handle_word(Word::Renew { pair, epoch: 1, endpoint }, &ends.outbox).unwrap();
        ends.poll().unwrap();
    };
    renew(1, &mut ends);
    ends.granted(0);
    assert_eq!(ends.receiver.grants[&0].pair, 1, "granted to a lost pair");
    assert_eq!(ends.receiver.least_loaded(), Some(1));
    renew(0, &mut ends);
    assert_eq!(ends.receiver.least_loaded(), Some(0));
}
