//! Partial updates, elements that are cut, and contributions that are refused.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{as_f32s, f32s, update};
use thalweg_fold::{Accumulator, FoldError, Precision, Replacement, MAX_RUNS, STRIPE_BYTES};
use thalweg_wire::{Dtype, Layout, Range};

fn accumulator(elements: u64) -> Accumulator {
    Accumulator::new(Arc::new(Layout::pack([("w", Dtype::F32, vec![elements])]).unwrap()), Precision::F32)
}

#[test]
fn each_element_is_the_mean_over_those_who_sent_it() {
    let accumulator = accumulator(4);
    accumulator.fold(0, &f32s(&[1.0, 1.0]), 1.0).unwrap();
    accumulator.fold(4, &f32s(&[5.0, 5.0]), 3.0).unwrap();
    let mut global = f32s(&[9.0; 4]);
    let summary = accumulator.finish(&mut global, Replacement::KeepLocal).unwrap();
    assert_eq!(as_f32s(&global), [1.0, 4.0, 5.0, 9.0]);
    assert_eq!(summary.uncovered_bytes, 4);
    let coverage = &summary.tensors[0];
    assert_eq!((coverage.fraction(), coverage.least_weight(), coverage.mean_weight()), (0.75, 0.0, 2.0));
    accumulator.finish(&mut global, Replacement::Zero).unwrap();
    assert_eq!(as_f32s(&global), [1.0, 4.0, 5.0, 0.0]);
}

#[test]
fn cut_elements_are_left_out() {
    let accumulator = accumulator(4);
    let bytes = f32s(&[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(accumulator.fold(1, &bytes[1..15], 1.0), Ok(Range::new(4, 12)));
    assert!(accumulator.fold(5, &bytes[5..7], 1.0).unwrap().is_empty());
    assert!(accumulator.fold(9, &[], 1.0).unwrap().is_empty());
    let mut global = f32s(&[9.0; 4]);
    let summary = accumulator.finish(&mut global, Replacement::KeepLocal).unwrap();
    assert_eq!(as_f32s(&global), [9.0, 2.0, 3.0, 9.0]);
    assert_eq!((summary.uncovered_bytes, summary.tensors[0].mean_weight()), (8, 0.5));
}

#[test]
fn a_weight_of_zero_is_no_participant() {
    let layout = Arc::new(Layout::pack([("n", Dtype::U8, vec![1]), ("w", Dtype::F32, vec![1])]).unwrap());
    let accumulator = Accumulator::new(layout.clone(), Precision::F32);
    assert!(accumulator.fold(0, &update(&layout, 1), 0.0).unwrap().is_empty());
    let mut global = vec![3; layout.bytes() as usize];
    assert_eq!(accumulator.finish(&mut global, Replacement::KeepLocal).unwrap().uncovered_bytes, 5);
    assert_eq!(global, [3; 68]);
}

#[test]
fn what_does_not_fit_is_refused_with_a_hint() {
    let accumulator = accumulator(100);
    let says = |error: FoldError, words: &str| assert!(error.to_string().contains(words), "{error}");
    says(accumulator.fold(300, &[0; 101], 1.0).unwrap_err(), "layout hashes");
    says(accumulator.fold(u64::MAX, &[0; 2], 1.0).unwrap_err(), "layout hashes");
    says(accumulator.fold(0, &[0; 4], f64::NAN).unwrap_err(), "samples");
    says(accumulator.finish(&mut [0; 399], Replacement::Zero).unwrap_err(), "400 bytes");
    says(accumulator.finish_part(64, &mut [0; 336], Replacement::Zero).unwrap_err(), "multiple");
    says(accumulator.merge(&accumulator).unwrap_err(), "twice");
    says(
        accumulator.merge(&self::accumulator(99)).unwrap_err(),
        "w is float32 [100] here and float32 [99] there",
    );
    let wide = Accumulator::new(accumulator.layout().clone(), Precision::F64);
    says(accumulator.merge(&wide).unwrap_err(), "f32 and f64");
}

#[test]
fn an_empty_layout_is_no_trouble() {
    let layout = Arc::new(Layout::pack([("none", Dtype::F32, vec![0])]).unwrap());
    let accumulator = Accumulator::new(layout, Precision::Exact);
    assert!(accumulator.fold(0, &[], 1.0).unwrap().is_empty());
    assert!(accumulator.parts(4).is_empty());
    let summary = accumulator.finish_and_reset(&mut [], Replacement::Zero).unwrap();
    assert_eq!((summary.uncovered_bytes, summary.tensors[0].fraction()), (0, 1.0));
}

#[test]
fn crumbs_are_refused_before_they_fill_the_memory() {
    let layout = Layout::pack([("w", Dtype::U8, vec![2 * STRIPE_BYTES])]).unwrap();
    let accumulator = Accumulator::new(Arc::new(layout), Precision::F32);
    let crumbs = (0..STRIPE_BYTES).step_by(2);
    let error = crumbs.map(|at| accumulator.fold(at, &[1], 1.0)).find_map(Result::err).unwrap();
    assert_eq!(error, FoldError::Fragmented { offset: 0 });
    assert!(error.to_string().contains("64 bytes or more"));
    // A large chunk whose first border would be one too many must not change any stripe.
    let start = MAX_RUNS as u64 + 3;
    let rest = vec![2; (STRIPE_BYTES + 100 - start) as usize];
    accumulator.fold(start, &rest, 1.0).unwrap_err();
    let mut global = vec![9; 2 * STRIPE_BYTES as usize];
    let summary = accumulator.finish(&mut global, Replacement::KeepLocal).unwrap();
    assert!(global.iter().all(|&byte| byte == 1 || byte == 9));
    assert!(summary.tensors[0].covered < MAX_RUNS as u64);
    // Chunks that need no new border still fit. In a new round there is room again.
    accumulator.fold(0, &vec![4; 2 * STRIPE_BYTES as usize], 1.0).unwrap();
    accumulator.reset();
    accumulator.fold(1, &[1], 1.0).unwrap();
}

#[test]
fn memory_is_as_stated() {
    let layout = Layout::pack([
        ("w", Dtype::F32, vec![1 << 20]),
        ("h", Dtype::BF16, vec![1 << 20]),
        ("n", Dtype::U8, vec![1 << 20]),
    ]);
    let layout = Arc::new(layout.unwrap());
    for (precision, bytes) in [(Precision::F32, 9), (Precision::F64, 17), (Precision::Exact, 33)] {
        let found = Accumulator::new(layout.clone(), precision).memory_bytes();
        let expected = bytes << 20;
        assert!(found >= expected && found < expected + expected / 100, "{precision:?} {found}");
    }
}
