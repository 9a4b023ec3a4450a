//! The race of the printed rule, over a pretend device.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use thalweg_verbs::pretend::{Behaviour, Fabric, Pretend};
use thalweg_verbs::Remote;
use thalweg_wire::{checksum, ChunkHeader, LayoutHash};

use super::*;
use crate::words::record;

const LENGTH: u64 = 3_000;

/// A receiver, and the sender's end of its pair.
struct Ends {
    device: Arc<dyn Device>,
    receiver: Printed,
    outbox: Outbox,
    sender: Box<dyn Pair>,
    ring: Remote,
}

fn step(pair: &mut Box<dyn Pair>, done: &mut Vec<Done>) {
    let _ = pair.poll(&mut Context::from_waker(Waker::noop()), done);
}

impl Ends {
    fn new(seed: u64) -> Self {
        let behaviour = Behaviour { seed, ..Behaviour::default() };
        let device: Arc<dyn Device> = Arc::new(Pretend::new(&Arc::new(Fabric::default()), behaviour));
        let (mut sender, mut pair) = (device.pair(NOTES).unwrap(), device.pair(NOTES).unwrap());
        sender.connect(&pair.endpoint()).unwrap();
        pair.connect(&sender.endpoint()).unwrap();
        let ring = Arena::new(RECORD as u64).unwrap();
        device.register(&ring).unwrap();
        pair.post(0, Work::Open(ring.claim(ring.range()).unwrap().into())).unwrap();
        let mut opened = Vec::new();
        (0..20).for_each(|_| step(&mut pair, &mut opened));
        let Some(Done::Opened(_, ring)) = opened.pop() else { panic!("no ring") };
        let pool = Arc::new(Pool::new(device.clone()));
        let receiver = Printed::new(device.clone(), pool, (pair, ring.key, ring.address as usize));
        Self { device, receiver, outbox: Outbox::new().0, sender, ring }
    }

    /// Commits what was written.
    fn commit(&mut self, number: u64) {
        let arena = Arena::new(RECORD as u64).unwrap();
        self.device.register(&arena).unwrap();
        arena.claim(arena.range()).unwrap().copy_from_slice(&record(number));
        let bytes = vec![arena.lend(arena.range()).unwrap()];
        self.sender.post(99, Work::Note { bytes, to: self.ring, note: 0 }).unwrap();
        (0..20).for_each(|_| step(&mut self.sender, &mut Vec::new()));
    }

    fn drive(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..20 {
            self.receiver.drive(&mut context, &self.outbox).unwrap();
        }
    }

    /// Offers a chunk, has it granted, and begins to write it with its header.
    fn write(&mut self, number: u64) {
        let bytes: Vec<u8> = (0..LENGTH).map(|at| (at * 7 % 251 + number) as u8).collect();
        let length = LENGTH as u32;
        let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length };
        let header = FrameHeader::chunk(chunk, checksum(&bytes));
        self.receiver.handle_word(Word::Offer { number, header }, &self.outbox).unwrap();
        let (number, header) = self.receiver.next_offer(u64::MAX).unwrap();
        self.receiver.grant(number, header, None, &self.outbox).unwrap();
        self.drive();
        let said = self.outbox.said();
        let [Word::Grant { to, .. }] = said[..] else { panic!("{said:?}") };
        let mut all = Piece { number, range: Range::new(0, LENGTH), checksum: 0 }.encode().to_vec();
        all.extend(bytes);
        let arena = Arena::new(all.len() as u64).unwrap();
        self.device.register(&arena).unwrap();
        arena.claim(arena.range()).unwrap().copy_from_slice(&all);
        let bytes = vec![arena.lend(arena.range()).unwrap()];
        self.sender.post(number, Work::Write { bytes, to }).unwrap();
    }
}

/// The header is there before the end of its own piece now and then: the printed rule takes bytes that are not there. The
/// checksum says so, and what lands late lands in memory that nobody uses.
#[test]
fn a_header_may_come_before_the_end_of_its_piece() {
    let mut outcomes = [0, 0];
    for seed in 0..60 {
        let mut ends = Ends::new(seed);
        ends.write(0);
        let mut done = Vec::new();
        for _ in 0..20 {
            step(&mut ends.sender, &mut done);
            ends.drive();
        }
        assert!(matches!(done[..], [Done::Written(0)]), "{done:?}");
        assert!(ends.receiver.next_came().is_none(), "handed on before all was sent");
        ends.commit(0);
        ends.drive();
        let came = ends.receiver.next_came().unwrap();
        outcomes[usize::from(came.header.verify(&came.bytes).is_ok())] += 1;
        assert!(ends.receiver.is_settled() && ends.receiver.runs.is_empty());
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

/// Memory is used again, and the header of the chunk before is not taken for this one's.
#[test]
fn an_old_header_is_not_taken() {
    let mut ends = Ends::new(1);
    for number in 0..5 {
        ends.write(number);
        ends.drive();
        assert!(ends.receiver.runs.values().all(|run| !run.seen), "nothing was written yet");
        let mut done = Vec::new();
        (0..20).for_each(|_| step(&mut ends.sender, &mut done));
        ends.commit(number);
        ends.drive();
        let Came { header, bytes, landing, .. } = ends.receiver.next_came().unwrap();
        assert_eq!(header.verify(&bytes), Ok(()));
        drop(bytes);
        ends.receiver.done(LENGTH, landing);
    }
}

#[test]
fn what_is_withdrawn_is_closed() {
    let mut ends = Ends::new(2);
    ends.write(0);
    ends.receiver.handle_word(Word::Withdraw { number: 0, committed: false }, &ends.outbox).unwrap();
    assert!(!ends.receiver.is_settled(), "its memory is open");
    ends.drive();
    assert!(ends.receiver.is_settled() && ends.receiver.next_came().is_none());
}
