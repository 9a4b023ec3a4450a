//! Several updates in one pass, and sums of parts of updates. Both give the same bits as folding one complete
//! update after the other.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{cuts, f32s, layouts, update, Random};
use proptest::prelude::*;
use thalweg_arena::{Arena, Claim};
use thalweg_fold::{
    Accumulator, Contribution, FoldError, LentMemory, Precision, Refusal, Replacement, SumsHead, STRIPE_BYTES,
};
use thalweg_wire::{Dtype, Layout, Range, Ranges};

const ALL: [Precision; 3] = [Precision::F32, Precision::F64, Precision::Exact];

/// The ranges of an update that have arrived, and its weight.
struct Update {
    bytes: Vec<u8>,
    received: Ranges,
    weight: f64,
}

impl Update {
    fn contribution(&self) -> Contribution<'_> {
        Contribution { bytes: &self.bytes, received: &self.received, weight: self.weight }
    }
}

fn updates(layout: &Layout, seed: u64) -> Vec<Update> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for client in 0..random.below(7) {
        let received = if random.below(2) == 0 {
            Ranges::full(layout.bytes())
        } else {
            let cut = cuts(&mut random, layout.bytes(), 12);
            cut.into_iter().filter(|_| random.below(4) > 0).collect()
        };
        let weight = [0.0, 0.1, 1.0 / 3.0, 600.0][random.below(4) as usize];
        all.push(Update { bytes: update(layout, seed ^ (client + 1)), received, weight });
    }
    all
}

fn contributions(updates: &[Update]) -> Vec<Contribution<'_>> {
    updates.iter().map(Update::contribution).collect()
}

fn pieces(mut claim: Claim) -> impl FnMut(usize) -> Option<LentMemory> {
    move |bytes| claim.split_to(bytes as u64).map(|part| Box::new(part) as LentMemory)
}

fn finish(accumulator: &Accumulator) -> Vec<u8> {
    let mut out = vec![0x55; accumulator.layout().bytes() as usize];
    accumulator.finish(&mut out, Replacement::KeepLocal).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// In any precision, and in passes of any size.
    #[test]
    fn one_pass_gives_the_bits_of_one_by_one(layout in layouts(), seed in any::<u64>(), pass in 1..5_usize) {
        let layout = Arc::new(layout);
        let updates = updates(&layout, seed);
        for precision in ALL {
            let (single, many) = (Accumulator::new(layout.clone(), precision), Accumulator::new(layout.clone(), precision));
            for update in &updates {
                single.fold_ranges(&update.bytes, &update.received, update.weight).unwrap();
            }
            for together in updates.chunks(pass) {
                many.fold_many(&contributions(together), Range::new(0, layout.bytes())).unwrap();
            }
            prop_assert!(finish(&many) == finish(&single));
            prop_assert_eq!(many.export().unwrap(), single.export().unwrap());
        }
    }

    /// Several processes each sum up a part of all updates. The result is that of one process that sums up
    /// everything. Another process takes over the sums in place, and continues.
    #[test]
    fn parts_are_those_of_the_whole(layout in layouts(), seed in any::<u64>(), count in 1..4_usize) {
        let layout = Arc::new(layout);
        let (first, second) = (updates(&layout, seed), updates(&layout, !seed));
        for precision in ALL {
            let whole = Accumulator::new(layout.clone(), precision);
            for update in first.iter().chain(&second) {
                whole.fold_ranges(&update.bytes, &update.received, update.weight).unwrap();
            }
            let mut mean = vec![0x55; layout.bytes() as usize];
            for part in Accumulator::parts_of(&layout, count) {
                let arena = Arena::new(Accumulator::bytes_needed_of(&layout, precision, part)).unwrap();
                let within = || {
                    let claim = arena.claim(arena.range()).unwrap();
                    Accumulator::within_part(layout.clone(), precision, part, pieces(claim)).unwrap()
                };
                let worker = within();
                worker.fold_many(&contributions(&first), part).unwrap();
                let head = SumsHead::decode(&worker.head().unwrap().encode()).unwrap();
                drop(worker);
                let next = within();
                next.adopt(&head).unwrap();
                next.fold_many(&contributions(&second), part).unwrap();
                next.check_part(part).unwrap();
                next.finish_part(part.start, &mut mean[part.start as usize..part.end as usize], Replacement::KeepLocal).unwrap();
            }
            prop_assert!(mean == finish(&whole));
        }
    }
}

fn layout_of(elements: u64) -> Arc<Layout> {
    Arc::new(Layout::pack([("w", Dtype::F32, vec![elements])]).unwrap())
}

#[test]
fn what_is_refused_leaves_no_trace_and_has_a_number() {
    let layout = layout_of(100_000);
    let good = f32s(&vec![1.0; 100_000]);
    let mut bad = good.clone();
    bad[399_996..].copy_from_slice(&f32::NAN.to_le_bytes());
    let received = Ranges::full(400_000);
    let of = |bytes| Contribution { bytes, received: &received, weight: 1.0 };
    let exact = Accumulator::new(layout.clone(), Precision::Exact);
    let all = Range::new(0, layout.bytes());
    let Refusal { update, error } = exact.fold_many(&[of(&good), of(&good), of(&bad)], all).unwrap_err();
    assert!(update == 2 && matches!(error, FoldError::NotFinite(_)), "{error}");
    assert!(exact.weight_runs().unwrap().is_empty());
    let short = exact.fold_many(&[of(&good), of(&good[4..])], all).unwrap_err();
    assert!(short.update == 1 && matches!(short.error, FoldError::Part { .. }), "{short}");
    assert_eq!(exact.fold_many(&[of(&good), of(&good)], all), Ok(()));
    assert_eq!(exact.weight_runs().unwrap()[0].contributions, 2);
}

/// Each update alone fits. Together they would overflow exact sums.
#[test]
fn room_is_that_of_all_together() {
    let layout = layout_of(64);
    let large = f32s(&[2_f32.powi(50); 64]);
    let received = Ranges::full(256);
    let exact = Accumulator::new(layout, Precision::Exact);
    let (all, of) = (Range::new(0, 256), Contribution { bytes: &large, received: &received, weight: 1.0 });
    for _ in 0..3 * (1 << 7) {
        exact.fold_many(&[of; 8], all).unwrap();
    }
    let mut folded = 3 * (1 << 10);
    while exact.fold_many(&[of; 3], all).is_ok() {
        folded += 3;
    }
    assert_eq!(exact.weight_runs().unwrap()[0].contributions, folded);
    let refused = exact.fold_many(&[of; 3], all).unwrap_err();
    assert!(matches!(refused.error, FoldError::Sums { .. }) && refused.update > 0, "{refused}");
}

#[test]
fn a_part_takes_nothing_beyond_itself() {
    let layout = layout_of(100_000);
    let part = Range::new(STRIPE_BYTES, 2 * STRIPE_BYTES);
    let within = |part| {
        let arena = Arena::new(Accumulator::bytes_needed_of(&layout, Precision::F32, part)).unwrap();
        let claim = arena.claim(arena.range()).unwrap();
        Accumulator::within_part(layout.clone(), Precision::F32, part, pieces(claim))
    };
    let accumulator = within(part).unwrap();
    let update = f32s(&vec![1.0; 100_000]);
    for range in [
        Range::new(0, 8),
        Range::new(STRIPE_BYTES - 8, STRIPE_BYTES + 8),
        Range::new(2 * STRIPE_BYTES, 2 * STRIPE_BYTES + 8),
    ] {
        let bytes = &update[range.start as usize..range.end as usize];
        assert!(matches!(accumulator.fold(range.start, bytes, 1.0), Err(FoldError::OutOfRange { .. })));
    }
    assert!(matches!(accumulator.check_part(Range::new(0, STRIPE_BYTES)), Err(FoldError::Part { .. })));
    assert!(
        within(Range::new(64, STRIPE_BYTES)).is_err() && within(Range::new(0, 4 * STRIPE_BYTES)).is_err()
    );
    let other = within(Range::new(0, STRIPE_BYTES)).unwrap();
    assert!(matches!(accumulator.merge(&other), Err(FoldError::Layout(_))));
    other.fold(0, &update[..8], 1.0).unwrap();
    let refused = accumulator.adopt(&other.head().unwrap()).unwrap_err();
    assert!(matches!(refused, FoldError::Damaged(_)), "{refused}");
    assert!(
        accumulator.adopt(&other.export().unwrap().head).is_err(),
        "sums that were written out lie elsewhere"
    );
}
