//! `Replacement::Complement`: the own model gets the weight that is missing to 1, for each element.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{as_f32s, cuts, f32s, layouts, slice, update, values, Random};
use proptest::prelude::*;
use thalweg_fold::reference::Plain;
use thalweg_fold::{Accumulator, FoldError, Precision, Replacement};
use thalweg_wire::{Dtype, Layout, Range};

/// A chunk of a neighbour's model, and its weight.
#[derive(Clone)]
struct Chunk {
    neighbour: usize,
    range: Range,
    weight: f64,
}

/// Three neighbours with the weights of a graph, an own model, and the chunks that arrived. A fifth of the
/// chunks did not arrive.
fn mixing(layout: &Layout, seed: u64) -> (Vec<Vec<u8>>, Vec<u8>, Vec<Chunk>) {
    let mut random = Random::new(seed);
    let neighbours: Vec<Vec<u8>> = (0..3).map(|n| update(layout, seed ^ (n + 1))).collect();
    let mut chunks = Vec::new();
    for (neighbour, weight) in [0.25, 1.0 / 3.0, 0.2].into_iter().enumerate() {
        for range in cuts(&mut random, layout.bytes(), 12) {
            if random.below(5) > 0 {
                chunks.push(Chunk { neighbour, range, weight });
            }
        }
    }
    random.shuffle(&mut chunks);
    (neighbours, update(layout, !seed), chunks)
}

fn mixed(
    layout: &Arc<Layout>,
    precision: Precision,
    neighbours: &[Vec<u8>],
    own: &[u8],
    chunks: &[Chunk],
) -> Vec<u8> {
    let sums = Accumulator::new(layout.clone(), precision);
    for chunk in chunks {
        let bytes = slice(&neighbours[chunk.neighbour], chunk.range);
        sums.fold(chunk.range.start, bytes, chunk.weight).unwrap();
    }
    let mut out = own.to_vec();
    sums.finish(&mut out, Replacement::Complement).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares with the plain reference, in every precision.
    #[test]
    fn is_the_sum_and_what_is_missing_of_the_own_model(layout in layouts(), seed in any::<u64>()) {
        let layout = Arc::new(layout);
        let (neighbours, own, chunks) = mixing(&layout, seed);
        let mut plain = Plain::new(&layout);
        for chunk in &chunks {
            plain.fold(chunk.range.start, slice(&neighbours[chunk.neighbour], chunk.range), chunk.weight);
        }
        let mut expected = own.clone();
        plain.finish(&mut expected, Replacement::Complement);
        for precision in [Precision::F32, Precision::F64, Precision::Exact] {
            let found = mixed(&layout, precision, &neighbours, &own, &chunks);
            for (index, tensor) in layout.tensors().iter().enumerate() {
                let place = tensor.offset as usize..tensor.range().end as usize;
                if !tensor.dtype.is_float() {
                    prop_assert_eq!(&found[place.clone()], &expected[place], "{}", tensor.dtype);
                    continue;
                }
                // Tolerance: one unit in the last place of the dtype for values up to 8, and rounding of f32
                // sums.
                let step = match tensor.dtype {
                    Dtype::F64 if precision == Precision::F32 => 1e-5,
                    Dtype::F64 => 1e-12,
                    Dtype::F32 => 1e-5,
                    Dtype::F16 => 1e-2,
                    Dtype::BF16 => 0.07,
                    _ => 1.01,
                };
                let pairs = values(&layout, index, &found).into_iter();
                for (found, expected) in pairs.zip(values(&layout, index, &expected)) {
                    prop_assert!((found - expected).abs() <= step, "{found} {expected} {}", tensor.dtype);
                }
            }
        }
    }

    /// Exact sums give the same bits in whatever order the chunks arrive.
    #[test]
    fn exact_bits_do_not_depend_on_the_order(layout in layouts(), seed in any::<u64>()) {
        let layout = Arc::new(layout);
        let (neighbours, own, mut chunks) = mixing(&layout, seed);
        let first = mixed(&layout, Precision::Exact, &neighbours, &own, &chunks);
        for other in 0..4 {
            Random::new(seed ^ other).shuffle(&mut chunks);
            prop_assert!(mixed(&layout, Precision::Exact, &neighbours, &own, &chunks) == first);
        }
    }
}

#[test]
fn weights_sum_to_one_at_every_element() {
    // An element that all nodes have alike keeps its value, whatever has arrived of it.
    let layout = Arc::new(Layout::pack([("w", Dtype::F64, vec![20_000])]).unwrap());
    let same: Vec<u8> = (0..20_000).flat_map(|_| 1.0_f64.to_le_bytes()).collect();
    for seed in 0..20 {
        let (_, _, chunks) = mixing(&layout, seed);
        let neighbours = vec![same.clone(); 3];
        for precision in [Precision::F64, Precision::Exact] {
            let found = mixed(&layout, precision, &neighbours, &same, &chunks);
            let off = values(&layout, 0, &found).into_iter().map(|v| (v - 1.0).abs()).fold(0.0, f64::max);
            assert!(off <= 4.0 * f64::EPSILON, "{off} with {precision:?}");
        }
    }
}

fn one_tensor(dtype: Dtype, elements: u64) -> Arc<Layout> {
    Arc::new(Layout::pack([("w", dtype, vec![elements])]).unwrap())
}

#[test]
fn a_chunk_that_did_not_come_counts_for_the_own_one() {
    let sums = Accumulator::new(one_tensor(Dtype::F32, 4), Precision::F32);
    sums.fold(0, &f32s(&[4.0, 4.0, 4.0, 4.0]), 0.25).unwrap();
    sums.fold(8, &f32s(&[8.0, 8.0]), 0.5).unwrap();
    let mut own = f32s(&[2.0, 1.0, 0.0, 12.0]);
    sums.finish_and_reset(&mut own, Replacement::Complement).unwrap();
    assert_eq!(as_f32s(&own), [2.5, 1.75, 5.0, 8.0]);
    sums.finish(&mut own, Replacement::Complement).unwrap();
    assert_eq!(as_f32s(&own), [2.5, 1.75, 5.0, 8.0], "nothing came: nothing changes");
}

#[test]
fn more_weight_than_one_leaves_none_for_the_own_model() {
    let sums = Accumulator::new(one_tensor(Dtype::F32, 1), Precision::F32);
    sums.fold(0, &f32s(&[4.0]), 1.0).unwrap();
    sums.fold(0, &f32s(&[8.0]), 1.0).unwrap();
    let mut own = f32s(&[100.0]);
    sums.finish(&mut own, Replacement::Complement).unwrap();
    assert_eq!(as_f32s(&own), [6.0]);
}

#[test]
fn of_integers_the_largest_counts_the_own_one_too() {
    let sums = Accumulator::new(one_tensor(Dtype::U8, 3), Precision::F32);
    sums.fold(0, &[9, 1], 1.0).unwrap();
    let mut own = [5, 5, 5];
    sums.finish(&mut own, Replacement::Complement).unwrap();
    assert_eq!(own, [9, 5, 5]);
}

#[test]
fn an_own_model_that_is_not_finite_is_refused_and_stays() {
    let sums = Accumulator::new(one_tensor(Dtype::F32, 2), Precision::Exact);
    sums.fold(0, &f32s(&[1.0, 1.0]), 0.5).unwrap();
    let mut own = f32s(&[1.0, f32::INFINITY]);
    let before = own.clone();
    let refused = sums.finish(&mut own, Replacement::Complement).unwrap_err();
    assert!(matches!(refused, FoldError::NotFinite(_)), "{refused}");
    assert_eq!(own, before);
}
