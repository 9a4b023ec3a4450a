//! Tests that reads over the pretend device keep the promises of verbs, in whatever order it runs its steps.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::sync::Arc;

use thalweg_arena::Arena;
use thalweg_verbs::pretend::{connected, settle, step, Behaviour, Fabric, Pretend};
use thalweg_verbs::{Device, Done, Fault, Pair, Remote, Work};
use thalweg_wire::Range;

const LENGTH: u64 = 10_000;

/// The two ends of a pair: one lends memory, the other reads it.
struct Ends {
    source: Arena,
    target: Arena,
    lender: Box<dyn Pair>,
    reader: Box<dyn Pair>,
}

fn ends(behaviour: Behaviour) -> Ends {
    let fabric = Arc::new(Fabric::default());
    let (a, b) = (Pretend::new(&fabric, Behaviour::default()), Pretend::new(&fabric, behaviour));
    let (source, target) = (Arena::new(LENGTH).unwrap(), Arena::new(LENGTH).unwrap());
    let mut bytes = source.claim(source.range()).unwrap();
    (0..).zip(bytes.iter_mut()).for_each(|(at, byte)| *byte = (at % 251) as u8);
    drop(bytes);
    a.register(&source).unwrap();
    b.register(&target).unwrap();
    let (lender, reader) = connected(&a, &b, 4).unwrap();
    Ends { source, target, lender, reader }
}

impl Ends {
    /// Lends these bytes to the peer.
    fn lend(&mut self, range: Range) -> Remote {
        self.lender.post(1, Work::Lend(self.source.lend(range).unwrap())).unwrap();
        match settle(&mut self.lender).pop() {
            Some(Done::Opened(1, remote)) => remote,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, id: u64, range: Range, from: Remote) {
        let into = self.target.claim(range).unwrap();
        let from = Remote { address: from.address.wrapping_add(range.start), ..from };
        self.reader.post(id, Work::Read { into, from }).unwrap();
    }
}

/// However many reads are in flight, they complete in order, each with all of its bytes.
#[test]
fn what_is_read_is_what_was_lent() {
    for (seed, reads) in (0..40).zip([1, 2, 16].into_iter().cycle()) {
        let mut ends = ends(Behaviour { seed, delay: 0.3, reads, ..Behaviour::default() });
        let from = ends.lend(Range::new(0, LENGTH));
        for (id, start) in (0..).zip((0..LENGTH).step_by(1_000)) {
            ends.read(id, Range::new(start, start + 1_000), from);
        }
        let mut done = Vec::new();
        for id in 0..10 {
            while done.is_empty() {
                step(&mut ends.reader, &mut done);
            }
            let Done::Read(which, into) = done.remove(0) else { panic!("no read") };
            assert_eq!((which, into.range().start), (id, id * 1_000));
            assert_eq!(into[..], ends.source.lend(into.range()).unwrap()[..]);
        }
    }
}

/// The lender may end a loan at any time. After that none of its bytes are read.
#[test]
fn nothing_is_read_once_it_is_lent_no_more() {
    let mut cut_short = 0;
    for seed in 0..50 {
        let mut ends = ends(Behaviour { seed, ..Behaviour::default() });
        let from = ends.lend(Range::new(0, LENGTH));
        ends.read(0, Range::new(0, LENGTH), from);
        let mut done = Vec::new();
        (0..2).for_each(|_| step(&mut ends.reader, &mut done));
        ends.lender.post(2, Work::Close { key: from.key }).unwrap();
        let closed = settle(&mut ends.lender);
        assert!(matches!(&closed[..], [Done::Closed(2, memory)] if memory.len() == 0), "{closed:?}");
        ends.source.claim(ends.source.range()).unwrap().fill(255);
        done.extend(settle(&mut ends.reader));
        drop(ends.reader.break_off());
        let read = ends.target.lend(ends.target.range()).unwrap();
        assert!(!read.contains(&255), "a late read");
        cut_short += u32::from(matches!(done[..], [Done::Lost(Fault::Access)]));
    }
    assert!(cut_short > 0, "nothing was taken back half-way");
}

#[test]
fn keys_reach_the_bytes_that_were_lent_alone() {
    for (offset, key) in [(1, 0), (0, 1), (u64::MAX - 5, 0), (u64::MAX, 0)] {
        let mut ends = ends(Behaviour::default());
        let from = ends.lend(Range::new(2_000, 3_000));
        let forged = Remote { address: from.address.wrapping_add(offset), key: from.key + key };
        ends.read(0, Range::new(0, 1_000), Remote { address: forged.address, ..forged });
        let done = settle(&mut ends.reader);
        assert!(matches!(done[..], [Done::Lost(Fault::Access)]), "{offset} {key}: {done:?}");
    }
    // Memory that is open to writes cannot be read, and lent memory cannot be written.
    let mut ends = ends(Behaviour::default());
    let from = ends.lend(Range::new(0, LENGTH));
    let bytes = vec![ends.target.lend(Range::new(0, 10)).unwrap()];
    ends.reader.post(0, Work::Write { bytes, to: from }).unwrap();
    assert!(settle(&mut ends.reader).iter().any(|done| matches!(done, Done::Lost(Fault::Access))));
}

#[test]
fn what_was_to_be_read_into_is_given_back_when_the_pair_is_lost() {
    for fault in [Fault::Retries, Fault::Flushed] {
        for at in 0..4 {
            let mut ends = ends(Behaviour { seed: at, faults: vec![(at, fault)], ..Behaviour::default() });
            let from = ends.lend(Range::new(0, LENGTH));
            for (id, start) in (0..).zip((0..4_000).step_by(1_000)) {
                ends.read(id, Range::new(start, start + 1_000), from);
            }
            let done = settle(&mut ends.reader);
            assert!(matches!(done[..], [.., Done::Lost(lost)] if lost == fault), "{done:?}");
            let late = ends.target.claim(Range::new(9_000, LENGTH)).unwrap();
            ends.reader.post(9, Work::Read { into: late, from }).unwrap();
            let given = ends.reader.break_off();
            assert!(given.iter().all(|(key, _)| *key == 0));
            assert_eq!(given.len() + done.len() - 1, 5, "each read has ended or is given back");
            drop((done, given));
            assert!(ends.target.claim(ends.target.range()).is_ok());
        }
    }
}

/// A peer that is gone answers nothing.
#[test]
fn a_read_from_a_peer_that_is_gone_is_lost() {
    let mut ends = ends(Behaviour::default());
    let from = ends.lend(Range::new(0, LENGTH));
    drop(ends.lender.break_off());
    assert!(ends.source.claim(ends.source.range()).is_ok(), "it is still lent");
    ends.read(0, Range::new(0, 10), from);
    assert!(matches!(settle(&mut ends.reader)[..], [Done::Lost(Fault::Retries)]));
}
