//! Sums in lent memory.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{cuts, layouts, slice, update, Random};
use proptest::prelude::*;
use thalweg_arena::{Arena, Claim};
use thalweg_fold::{Accumulator, FoldError, LentMemory, Precision, Replacement, SumsHead, SUMS_ALIGN};
use thalweg_wire::{Dtype, Layout, Range};

const ALL: [Precision; 3] = [Precision::F32, Precision::F64, Precision::Exact];

/// Cuts a claim into parts, one after the other.
fn parts(mut claim: Claim) -> impl FnMut(usize) -> Option<LentMemory> {
    move |bytes| claim.split_to(bytes as u64).map(|part| Box::new(part) as LentMemory)
}

/// An arena that holds exactly the sums, filled with arbitrary bytes.
fn memory(layout: &Layout, precision: Precision) -> Arena {
    let arena = Arena::new(Accumulator::bytes_needed(layout, precision)).unwrap();
    arena.claim(arena.range()).unwrap().fill(0xa5);
    arena
}

fn within(layout: &Arc<Layout>, precision: Precision, memory: &Arena) -> Accumulator {
    let claim = memory.claim(memory.range()).unwrap();
    Accumulator::within(layout.clone(), precision, parts(claim)).unwrap()
}

fn finish(accumulator: &Accumulator) -> Vec<u8> {
    let mut out = vec![0x55; accumulator.layout().bytes() as usize];
    accumulator.finish(&mut out, Replacement::KeepLocal).unwrap();
    out
}

fn fold_some(accumulator: &Accumulator, seed: u64) {
    let layout = accumulator.layout();
    let mut random = Random::new(seed);
    for client in 0..1 + random.below(4) {
        let bytes = update(layout, seed ^ (client + 1));
        for range in cuts(&mut random, layout.bytes(), 8) {
            if random.below(6) > 0 {
                accumulator.fold(range.start, slice(&bytes, range), 1.0 + client as f64).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// The place of the sums changes no bit, in several rounds. Another process can merge what is there.
    #[test]
    fn lent_memory_gives_the_same_bits(layout in layouts(), seed in any::<u64>()) {
        let layout = Arc::new(layout);
        for precision in ALL {
            let arena = memory(&layout, precision);
            let (own, lent) = (Accumulator::new(layout.clone(), precision), within(&layout, precision, &arena));
            prop_assert_eq!(own.cells_bytes(), arena.len());
            for round in 0..2 {
                own.reset();
                lent.reset();
                fold_some(&own, seed ^ round);
                fold_some(&lent, seed ^ round);
                prop_assert!(finish(&lent) == finish(&own));
                prop_assert_eq!(lent.export().unwrap(), own.export().unwrap());
            }
            let head = SumsHead::decode(&lent.head().unwrap().encode()).unwrap();
            // Nothing is written for a model without elements.
            let writes = arena.len() > 0;
            prop_assert_eq!(arena.lend(arena.range()).is_err(), writes, "the accumulator writes there");
            drop(lent);
            let cells = arena.lend(arena.range()).unwrap();
            let elsewhere = Accumulator::new(layout.clone(), precision);
            elsewhere.merge_sums(&head, &cells).unwrap();
            prop_assert!(finish(&elsewhere) == finish(&own));
        }
    }
}

#[test]
fn the_bytes_needed_are_those_of_the_sums() {
    let tensors =
        [("w", Dtype::F32, vec![1 << 20]), ("h", Dtype::BF16, vec![1 << 20]), ("n", Dtype::U8, vec![5])];
    let layout = Layout::pack(tensors).unwrap();
    let align = SUMS_ALIGN as u64;
    for (precision, cell) in [(Precision::F32, 4), (Precision::F64, 8), (Precision::Exact, 16)] {
        assert_eq!(Accumulator::bytes_needed(&layout, precision), (2 << 20) * cell + align);
    }
    assert_eq!(Accumulator::bytes_needed(&Layout::pack([("e", Dtype::F32, vec![0])]).unwrap(), ALL[0]), 0);
}

#[test]
fn memory_that_does_not_do_is_refused() {
    let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![40_000])]).unwrap());
    let needed = Accumulator::bytes_needed(&layout, Precision::F32);
    let arena = Arena::new(needed + 8).unwrap();
    let try_in = |range| {
        let claim = arena.claim(range).unwrap();
        Accumulator::within(layout.clone(), Precision::F32, parts(claim)).map(drop)
    };
    assert_eq!(try_in(Range::new(0, needed)), Ok(()));
    assert_eq!(try_in(Range::new(8, needed + 8)), Ok(()), "a multiple of 8 does");
    let last = (needed - (128 << 10)) as usize;
    assert_eq!(try_in(Range::new(0, needed - 1)), Err(FoldError::Memory { found: 0, bytes: last }));
    let refused = try_in(Range::new(4, needed + 4)).unwrap_err();
    assert!(refused == FoldError::Misaligned && refused.to_string().contains("multiples of 64"), "{refused}");
    let longer = |bytes: usize| Some(Box::new(vec![0_u8; bytes + 1]) as LentMemory);
    let refused = Accumulator::within(layout.clone(), Precision::F32, longer).unwrap_err();
    assert!(refused.to_string().contains("bytes_needed"), "{refused}");
    assert!(arena.claim(arena.range()).is_ok(), "what was refused is given back");
}
