//! Tests of `assembling` over a pretend device: senders that do not wait until the slot is emptied.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use thalweg_verbs::pretend::settle;
use thalweg_verbs::Work;

use super::*;
use crate::ends::{extent, verify, Ends};

const LENGTH: u64 = 3_000;
const PIECE: u64 = 1_000;

fn ends(seed: u64) -> Ends<Assembling> {
    Ends::new(seed, RECORD + LENGTH as usize, Assembling::new)
}

/// The bytes of every chunk.
fn bytes() -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 7 % 251) as u8).collect()
}

impl Ends<Assembling> {
    /// Offers a chunk, and checks that it is granted.
    fn granted(&mut self, number: u64) {
        let extent = extent(LENGTH as u32);
        self.receiver.handle_word(Word::Offer { number, extent }, &self.outbox).unwrap();
        let (number, part) = self.receiver.next_offer(u64::MAX).unwrap();
        self.receiver.grant(number, part, vec![None], &self.outbox).unwrap();
        assert_eq!(self.outbox.said(), [Word::Grant { number, pair: ONLY, to: self.first }]);
    }

    fn write(&mut self, number: u64, start: u64, flip: u8) {
        let range = Range::new(start, start + PIECE);
        let bytes = &bytes()[range.start as usize..range.end as usize];
        let mut all = Piece { number, range, checksum: checksum(bytes) }.encode().to_vec();
        all.extend(bytes.iter().map(|byte| byte ^ flip));
        let bytes = self.bytes(&all);
        self.sender.post(1, Work::Note { bytes, to: self.first, note: 0 }).unwrap();
        settle(&mut self.sender);
    }

    fn sum(&mut self, number: u64) {
        let sum = Word::Sum { number, sum: checksum(&bytes()) };
        self.receiver.handle_word(sum, &self.outbox).unwrap();
    }

    /// Asks the receiver which ranges are missing, and returns the ranges of its answer.
    fn missing(&mut self, number: u64) -> Vec<(u64, u64)> {
        self.receiver.handle_word(Word::Sent { number }, &self.outbox).unwrap();
        self.poll().unwrap();
        let range = |word| match word {
            Word::Missing { number: of, range } if of == number => (range.start, range.end),
            other => panic!("{other:?}"),
        };
        self.outbox.said().into_iter().map(range).collect()
    }
}

#[test]
fn what_is_written_over_before_it_is_read_is_missing_and_said_to_be() {
    let mut ends = ends(1);
    ends.granted(0);
    ends.write(0, 0, 0);
    ends.write(0, 1_000, 0);
    ends.poll().unwrap();
    assert_eq!(ends.missing(0), [(0, 1_000), (2_000, 3_000)]);
    ends.write(0, 2_000, 0);
    ends.poll().unwrap();
    assert_eq!(ends.missing(0), [(0, 1_000)]);
    ends.write(0, 0, 0);
    ends.poll().unwrap();
    assert_eq!(ends.missing(0), [], "all bytes are there");
    assert!(ends.receiver.arrivals.next().is_none(), "the checksum is not there");
    ends.sum(0);
    let came = ends.receiver.arrivals.next().unwrap();
    assert_eq!((&came.bytes[0][..], came.copies), (&bytes()[..], 1));
    assert_eq!(verify(&came), Ok(()));
}

/// A piece is ignored if it is damaged, belongs to another chunk, reaches beyond its chunk, or overlaps bytes
/// that are there.
#[test]
fn pieces_that_do_not_fit_change_nothing() {
    let mut ends = ends(2);
    ends.granted(0);
    let written = [(0, 0, 1), (1, 0, 0), (0, 1_000, 0), (0, 1_500, 0), (0, 1_000, 3)];
    for (number, start, flip) in written {
        ends.write(number, start, flip);
        ends.poll().unwrap();
    }
    assert_eq!(ends.missing(0), [(0, 1_000), (2_000, 3_000)]);
    ends.write(0, 0, 0);
    ends.poll().unwrap();
    ends.write(0, 2_000, 0);
    ends.sum(0);
    ends.poll().unwrap();
    let came = ends.receiver.arrivals.next().unwrap();
    assert_eq!(came.bytes[0][..], bytes()[..]);
}

/// The sender must know how many notes are unread, whatever the pieces are.
#[test]
fn the_sender_is_told_how_many_notes_were_read() {
    let mut ends = ends(4);
    for read in 1..=2 * NOTES as u32 {
        ends.write(0, 0, 0);
        ends.poll().unwrap();
        let told = if read % NOTED == 0 { vec![Word::Noted { count: NOTED }] } else { vec![] };
        assert_eq!(ends.outbox.said(), told, "{read} notes were read");
    }
}

#[test]
fn withdrawn_chunks_give_their_memory_back() {
    let mut ends = ends(3);
    for number in 0..2 * GRANTS as u64 {
        ends.granted(number);
        ends.write(number, 0, 0);
        let withdrawn = Word::Withdraw { number, committed: false };
        ends.receiver.handle_word(withdrawn, &ends.outbox).unwrap();
        ends.poll().unwrap();
        ends.outbox.said();
        assert!(ends.receiver.runs.is_empty() && ends.receiver.arrivals.next().is_none());
    }
    let late = Word::Withdraw { number: u64::MAX, committed: false };
    assert!(ends.receiver.handle_word(late, &ends.outbox).is_err(), "never offered");
}
