//! Tests that the pretend device keeps the promises of verbs, in whatever order it runs its steps.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::sync::Arc;

use thalweg_arena::Arena;
use thalweg_verbs::pretend::{connected, settle, step, Behaviour, Fabric, Pretend};
use thalweg_verbs::{Device, Done, Fault, Memory, Pair, Remote, Work};
use thalweg_wire::Range;

const LENGTH: u64 = 10_000;
/// Maximum number of unread notes of an end.
const NOTES: u32 = 4;

struct Ends {
    source: Arena,
    target: Arena,
    from: Box<dyn Pair>,
    to: Box<dyn Pair>,
}

fn ends(behaviour: Behaviour) -> Ends {
    let fabric = Arc::new(Fabric::default());
    let (a, b) = (Pretend::new(&fabric, behaviour), Pretend::new(&fabric, Behaviour::default()));
    let (source, target) = (Arena::new(LENGTH).unwrap(), Arena::new(LENGTH).unwrap());
    source.claim(source.range()).unwrap().fill(7);
    a.register(&source).unwrap();
    b.register(&target).unwrap();
    let (from, to) = connected(&a, &b, NOTES as usize).unwrap();
    Ends { source, target, from, to }
}

impl Ends {
    /// Lets the peer write to the whole target.
    fn open(&mut self) -> Remote {
        let memory = Memory::new(vec![self.target.claim(self.target.range()).unwrap()]).unwrap();
        self.to.post(1, Work::Open(memory)).unwrap();
        match settle(&mut self.to).pop() {
            Some(Done::Opened(1, remote)) => remote,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, id: u64, range: Range, to: Remote) {
        let bytes = vec![self.source.lend(range).unwrap()];
        let to = Remote { address: to.address + range.start, ..to };
        self.from.post(id, Work::Write { bytes, to }).unwrap();
    }

    fn written(&self) -> usize {
        self.target.lend(self.target.range()).unwrap().iter().filter(|&&byte| byte == 7).count()
    }
}

#[test]
fn a_note_comes_when_all_before_it_is_there() {
    for seed in 0..50 {
        let mut ends = ends(Behaviour { seed, delay: 0.5, ..Behaviour::default() });
        let remote = ends.open();
        for (id, start) in (0..).zip((0..LENGTH).step_by(1_000)) {
            ends.write(id, Range::new(start, start + 1_000), remote);
        }
        let bytes = ends.source.lend(Range::new(0, 1)).unwrap();
        ends.from.post(99, Work::Note { bytes: vec![bytes], to: remote, note: 5 }).unwrap();
        assert_eq!(settle(&mut ends.from).len(), 11);
        assert!(matches!(settle(&mut ends.to)[..], [Done::Noted(5)]));
        let mut last = [0; 1_000];
        assert!(ends.to.peek(remote.key, 9_000, &mut last) && last == [7; 1_000]);
        ends.to.post(2, Work::Close { key: remote.key }).unwrap();
        drop(settle(&mut ends.to));
        assert_eq!(ends.written(), LENGTH as usize);
    }
}

/// A device answers a note for which no receive is posted with RNR, and the sender's device tries again.
#[test]
fn a_note_waits_until_the_peer_has_room() {
    let mut ends = ends(Behaviour::default());
    let remote = ends.open();
    for note in 0..NOTES + 2 {
        let bytes = vec![ends.source.lend(Range::new(0, 1)).unwrap()];
        ends.from.post(note.into(), Work::Note { bytes, to: remote, note }).unwrap();
    }
    let numbers = |done: Vec<Done>| -> Vec<u32> {
        let number = |done| match done {
            Done::Written(id) => id as u32,
            Done::Noted(note) => note,
            other => panic!("{other:?}"),
        };
        done.into_iter().map(number).collect()
    };
    for expected in [0..NOTES, NOTES..NOTES + 2, 0..0] {
        assert_eq!(numbers(settle(&mut ends.from)), expected.clone().collect::<Vec<_>>());
        assert_eq!(numbers(settle(&mut ends.to)), expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_write_after_revocation_changes_no_byte() {
    let mut cut_short = 0;
    for seed in 0..50 {
        let mut ends = ends(Behaviour { seed, ..Behaviour::default() });
        let remote = ends.open();
        ends.write(0, Range::new(0, LENGTH), remote);
        // The write is in flight, and may have landed in part.
        (0..2).for_each(|_| step(&mut ends.from, &mut Vec::new()));
        ends.to.post(2, Work::Close { key: remote.key }).unwrap();
        drop(settle(&mut ends.to));
        let before = ends.written();
        let lost = settle(&mut ends.from);
        assert_eq!(ends.written(), before, "a late write");
        let whole = before == LENGTH as usize;
        assert!(whole || matches!(lost[..], [.., Done::Lost(Fault::Access)]), "{lost:?}");
        cut_short += u32::from(before > 0 && !whole);
    }
    assert!(cut_short > 0, "no write was revoked half-way");
}

#[test]
fn keys_reach_their_memory_alone() {
    for (offset, key) in [(1, 0), (0, 1), (u64::MAX - 5, 0)] {
        let mut ends = ends(Behaviour::default());
        let remote = ends.open();
        let forged = Remote { address: remote.address.wrapping_add(offset), key: remote.key + key };
        let bytes = vec![ends.source.lend(ends.source.range()).unwrap()];
        ends.from.post(0, Work::Write { bytes, to: forged }).unwrap();
        assert!(settle(&mut ends.from).iter().any(|done| matches!(done, Done::Lost(Fault::Access))));
    }
}

#[test]
fn faults_come_when_they_are_told_to_and_memory_is_given_back() {
    for fault in [Fault::Retries, Fault::Flushed, Fault::Access] {
        let mut ends = ends(Behaviour { faults: vec![(1, fault)], ..Behaviour::default() });
        let remote = ends.open();
        ends.write(0, Range::new(0, 100), remote);
        ends.write(1, Range::new(100, 200), remote);
        let done = settle(&mut ends.from);
        assert!(matches!(done[..], [Done::Written(0), Done::Lost(lost)] if lost == fault), "{done:?}");
        assert!(ends.from.break_off().is_empty());
        assert!(ends.source.claim(ends.source.range()).is_ok(), "it still holds what it was to write");
        let open = ends.to.break_off();
        assert_eq!(open.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [remote.key]);
        drop(open);
        assert!(ends.target.claim(ends.target.range()).is_ok());
    }
}

/// A pair may be lost before it does anything. The memory that it was to open comes back.
#[test]
fn a_pair_that_is_lost_at_once_opens_nothing() {
    let fabric = Arc::new(Fabric::default());
    let target = Arena::new(LENGTH).unwrap();
    let behaviour = Behaviour { lost_at_once: vec![3], ..Behaviour::default() };
    let device = Pretend::new(&fabric, behaviour);
    device.register(&target).unwrap();
    let (_from, mut to) = connected(&device, &device, 1).unwrap();
    assert_eq!(to.endpoint().number, 3);
    assert!(settle(&mut to).is_empty(), "it has nothing to do yet");
    to.post(1, Work::Open(target.claim(target.range()).unwrap().into())).unwrap();
    let done = settle(&mut to);
    assert!(matches!(done[..], [Done::Lost(Fault::Flushed)]), "{done:?}");
    drop(to.break_off());
    assert!(target.claim(target.range()).is_ok());
}

/// A device puts acknowledged bytes into memory, whatever happens to the pair.
#[test]
fn acknowledged_bytes_are_there_when_the_pair_is_broken_off() {
    for seed in 0..50 {
        let mut ends =
            ends(Behaviour { seed, delay: 0.3, faults: vec![(1, Fault::Retries)], ..Behaviour::default() });
        let remote = ends.open();
        ends.write(0, Range::new(0, 5_000), remote);
        ends.write(1, Range::new(5_000, LENGTH), remote);
        let done = settle(&mut ends.from);
        assert!(matches!(done[..], [Done::Written(0), Done::Lost(Fault::Retries)]), "{done:?}");
        drop(ends.to.break_off());
        assert_eq!(ends.written(), 5_000);
    }
}

#[test]
fn memory_is_registered_once_and_within_the_limit() {
    let fabric = Arc::new(Fabric::default());
    let device = Pretend::new(&fabric, Behaviour { locked: 10_000, ..Behaviour::default() });
    let (first, second) = (Arena::new(8_000).unwrap(), Arena::new(8_000).unwrap());
    device.register(&first).unwrap();
    device.register(&first).unwrap();
    assert_eq!(device.registered(), 8_000);
    assert!(device.register(&second).unwrap_err().to_string().contains("ulimit -l"));
    let mut pair = device.pair(1).unwrap();
    let bytes = vec![second.lend(second.range()).unwrap()];
    let work = Work::Write { bytes, to: Remote { address: 0, key: 0 } };
    assert!(pair.post(0, work).unwrap_err().to_string().contains("not registered"));
    drop(first);
    assert_eq!(device.registered(), 0);
}
