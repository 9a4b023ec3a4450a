//! Senders that do not wait for the slot to be emptied, over a pretend device.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use thalweg_arena::Arena;
use thalweg_verbs::pretend::{Behaviour, Fabric, Pretend};
use thalweg_wire::{ChunkHeader, LayoutHash};

use super::*;

const LENGTH: u64 = 3_000;
const PIECE: u64 = 1_000;

/// A receiver, and the sender's end of its pair.
struct Ends {
    device: Arc<dyn Device>,
    receiver: Assembling,
    outbox: Outbox,
    sender: Box<dyn Pair>,
    slot: Remote,
    bytes: Vec<u8>,
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
        let arena = Arena::new(RECORD as u64 + LENGTH).unwrap();
        device.register(&arena).unwrap();
        pair.post(0, Work::Open(arena.claim(arena.range()).unwrap().into())).unwrap();
        let Some(Done::Opened(_, slot)) = settle(&mut pair).pop() else { panic!("no slot") };
        let pool = Arc::new(Pool::new(device.clone()));
        let receiver = Assembling::new(device.clone(), pool, (pair, slot.key, arena.as_ptr() as usize));
        let bytes = (0..LENGTH).map(|at| (at * 7 % 251) as u8).collect();
        Self { device, receiver, outbox: Outbox::new().0, sender, slot, bytes }
    }

    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        (0..200).for_each(|_| self.receiver.poll(&mut context, &self.outbox).unwrap());
    }

    /// Offers a chunk, and has it granted.
    fn granted(&mut self, number: u64) {
        let length = LENGTH as u32;
        let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length };
        let header = FrameHeader::chunk(chunk, checksum(&self.bytes));
        self.receiver.handle_word(Word::Offer { number, header }, &self.outbox).unwrap();
        let (number, header) = self.receiver.next_offer(u64::MAX).unwrap();
        self.receiver.grant(number, header, None, &self.outbox).unwrap();
        assert_eq!(self.outbox.said(), [Word::Grant { number, to: self.slot }]);
    }

    fn write(&mut self, number: u64, start: u64, flip: u8) {
        let range = Range::new(start, start + PIECE);
        let bytes = &self.bytes[range.start as usize..range.end as usize];
        let mut all = Piece { number, range, checksum: checksum(bytes) }.encode().to_vec();
        all.extend(bytes.iter().map(|byte| byte ^ flip));
        let arena = Arena::new(all.len() as u64).unwrap();
        self.device.register(&arena).unwrap();
        arena.claim(arena.range()).unwrap().copy_from_slice(&all);
        let bytes = vec![arena.lend(arena.range()).unwrap()];
        self.sender.post(1, Work::Note { bytes, to: self.slot, note: 0 }).unwrap();
        settle(&mut self.sender);
    }

    /// What the receiver says is missing.
    fn missing(&mut self, number: u64) -> Vec<(u64, u64)> {
        self.receiver.handle_word(Word::Sent { number }, &self.outbox).unwrap();
        self.poll();
        let range = |word| match word {
            Word::Missing { number: of, range } if of == number => (range.start, range.end),
            other => panic!("{other:?}"),
        };
        self.outbox.said().into_iter().map(range).collect()
    }
}

#[test]
fn what_is_written_over_before_it_is_read_is_missing_and_said_to_be() {
    let mut ends = Ends::new(1);
    ends.granted(0);
    ends.write(0, 0, 0);
    ends.write(0, 1_000, 0);
    ends.poll();
    assert_eq!(ends.missing(0), [(0, 1_000), (2_000, 3_000)]);
    ends.write(0, 2_000, 0);
    ends.poll();
    assert_eq!(ends.missing(0), [(0, 1_000)]);
    ends.write(0, 0, 0);
    ends.poll();
    assert_eq!(ends.missing(0), [], "it has come");
    let came = ends.receiver.next_came().unwrap();
    assert_eq!((&came.bytes[..], came.copies), (&ends.bytes[..], 1));
    assert_eq!(came.header.verify(&came.bytes), Ok(()));
}

/// A piece that is damaged, of another chunk, or beyond its chunk changes nothing that is there.
#[test]
fn pieces_that_do_not_fit_change_nothing() {
    let mut ends = Ends::new(2);
    ends.granted(0);
    let written = [(0, 0, 1), (1, 0, 0), (0, 1_000, 0), (0, 1_500, 0), (0, 1_000, 3)];
    for (number, start, flip) in written {
        ends.write(number, start, flip);
        ends.poll();
    }
    assert_eq!(ends.missing(0), [(0, 1_000), (2_000, 3_000)]);
    ends.write(0, 0, 0);
    ends.poll();
    ends.write(0, 2_000, 0);
    ends.poll();
    let came = ends.receiver.next_came().unwrap();
    assert_eq!(came.bytes[..], ends.bytes[..]);
}

#[test]
fn withdrawn_chunks_give_their_memory_back() {
    let mut ends = Ends::new(3);
    for number in 0..2 * GRANTS as u64 {
        ends.granted(number);
        ends.write(number, 0, 0);
        let withdrawn = Word::Withdraw { number, committed: false };
        ends.receiver.handle_word(withdrawn, &ends.outbox).unwrap();
        ends.poll();
        assert!(ends.receiver.runs.is_empty() && ends.receiver.next_came().is_none());
    }
    let late = Word::Withdraw { number: u64::MAX, committed: false };
    assert!(ends.receiver.handle_word(late, &ends.outbox).is_err(), "never offered");
}
