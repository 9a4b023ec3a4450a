//! Tests of `printed` over a pretend device: the race in the receiver's rule as the FedRDMA-E paper prints it
//! (section 3.2).
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::task::Waker;

use thalweg_verbs::pretend::{settle, step};
use thalweg_wire::checksum;

use super::*;
use crate::ends::{extent, verify, Ends};
use crate::words::record;

const LENGTH: u64 = 3_000;

fn ends(seed: u64) -> Ends<Printed> {
    Ends::new(seed, RECORD, Printed::new)
}

/// The bytes of a chunk.
fn bytes(number: u64) -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 7 % 251 + number) as u8).collect()
}

impl Ends<Printed> {
    /// Writes the commit record of a chunk.
    fn commit(&mut self, number: u64) {
        let bytes = self.bytes(&record(number, checksum(&bytes(number))));
        self.sender.post(99, Work::Note { bytes, to: self.first, note: 0 }).unwrap();
        settle(&mut self.sender);
    }

    fn drive(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..20 {
            self.receiver.drive(&mut context, &self.outbox).unwrap();
        }
    }

    /// Offers a chunk, has it granted, and posts one write of its header and bytes.
    fn write(&mut self, number: u64) {
        let extent = extent(LENGTH as u32);
        self.receiver.handle_word(Word::Offer { number, extent }, &self.outbox).unwrap();
        let (number, part) = self.receiver.next_offer(u64::MAX).unwrap();
        self.receiver.grant(number, part, vec![None], &self.outbox).unwrap();
        self.drive();
        let said = self.outbox.said();
        let [Word::Grant { to, .. }] = said[..] else { panic!("{said:?}") };
        let mut all = Piece { number, range: Range::new(0, LENGTH), checksum: 0 }.encode().to_vec();
        all.extend(bytes(number));
        let bytes = self.bytes(&all);
        self.sender.post(number, Work::Write { bytes, to }).unwrap();
    }
}

/// The receiver sometimes sees a piece's header before the rest of the piece has been written. The rule as
/// the paper prints it then copies the bytes too early, and the chunk's checksum detects this. The bytes that
/// are written later land in memory that nobody uses.
#[test]
fn a_header_may_come_before_the_end_of_its_piece() {
    let mut outcomes = [0, 0];
    for seed in 0..60 {
        let mut ends = ends(seed);
        ends.write(0);
        let mut done = Vec::new();
        for _ in 0..20 {
            step(&mut ends.sender, &mut done);
            ends.drive();
        }
        assert!(matches!(done[..], [Done::Written(0)]), "{done:?}");
        assert!(ends.receiver.arrivals.next().is_none(), "handed on before all was sent");
        ends.commit(0);
        ends.drive();
        let came = ends.receiver.arrivals.next().unwrap();
        outcomes[usize::from(verify(&came).is_ok())] += 1;
        assert!(ends.receiver.is_settled() && ends.receiver.runs.is_empty());
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

/// The receiver reuses memory. It must not take the previous chunk's header for the header of this chunk.
#[test]
fn an_old_header_is_not_taken() {
    let mut ends = ends(1);
    for number in 0..5 {
        ends.write(number);
        ends.drive();
        assert!(ends.receiver.runs.values().all(|run| !run.seen), "nothing was written yet");
        settle(&mut ends.sender);
        ends.commit(number);
        ends.drive();
        let came = ends.receiver.arrivals.next().unwrap();
        assert_eq!(verify(&came), Ok(()));
        let Came { bytes, landing, .. } = came;
        drop(bytes);
        ends.receiver.arrivals.done(LENGTH, landing);
    }
}

#[test]
fn what_is_withdrawn_is_closed() {
    let mut ends = ends(2);
    ends.write(0);
    ends.receiver.handle_word(Word::Withdraw { number: 0, committed: false }, &ends.outbox).unwrap();
    assert!(!ends.receiver.is_settled(), "its memory is open");
    ends.drive();
    assert!(ends.receiver.is_settled() && ends.receiver.arrivals.next().is_none());
}
