//! Measures how long eight queued updates take in one pass, compared with one after the other. Prints one
//! JSON line on stdout.
//!
//! `cargo run --release -p thalweg-fold --example many_bench [MEGABYTES [REPETITIONS]]`
//!
//! One thread folds f32 into f32 sums in an arena, as a worker does. Each update has memory of its own, so
//! that reading one does not bring another into the cache. Both ways take turns in each repetition.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, Contribution, LentMemory, Precision};
use thalweg_wire::{Dtype, Layout, Range, Ranges};

const UPDATES: usize = 8;

fn sums(layout: &Arc<Layout>) -> Accumulator {
    let arena = Arena::new(Accumulator::bytes_needed(layout, Precision::F32)).unwrap();
    let mut claim = arena.claim(arena.range()).unwrap();
    let cut = |bytes| claim.split_to(bytes as u64).map(|part| Box::new(part) as LentMemory);
    Accumulator::within(layout.clone(), Precision::F32, cut).unwrap()
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>().unwrap());
    let bytes = arguments.next().unwrap_or(232) * 1_000_000;
    let repetitions = arguments.next().unwrap_or(5);
    let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![bytes / 4])]).unwrap());
    let updates: Vec<Vec<u8>> = (0..UPDATES).map(|i| vec![0x3c - i as u8; layout.bytes() as usize]).collect();
    let (all, received) = (Range::new(0, layout.bytes()), Ranges::full(layout.bytes()));
    let of = |bytes| Contribution { bytes, received: &received, weight: 0.5 };
    let together: Vec<Contribution<'_>> = updates.iter().map(|bytes| of(bytes)).collect();
    let (single, many) = (sums(&layout), sums(&layout));
    let (mut one_by_one, mut one_pass) = (Vec::new(), Vec::new());
    // The first repetition does not count, since it touches the memory for the first time.
    for turn in 0..=repetitions {
        let singly = seconds(|| {
            for update in &together {
                single.fold_many(black_box(&[*update]), all).unwrap();
            }
        });
        let jointly = seconds(|| many.fold_many(black_box(&together), all).unwrap());
        if turn > 0 {
            one_by_one.push(singly);
            one_pass.push(jointly);
        }
    }
    let ratios = one_pass.iter().zip(&one_by_one).map(|(pass, single)| pass / single).collect();
    println!(
        r#"{{"bytes":{bytes},"repetitions":{repetitions},"one_by_one_ms":{:.1},"one_pass_ms":{:.1},"ratio":{:.3}}}"#,
        median(one_by_one) * 1e3,
        median(one_pass) * 1e3,
        median(ratios),
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
