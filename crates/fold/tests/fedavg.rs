//! Eager, lazy and hierarchical aggregation give FedAvg's mean (LIFL sections 2.1 and 5.4).

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{as_f32s, cuts, f32s, slice, update, Random};
use thalweg_fold::{mean, Accumulator, Precision, Replacement};
use thalweg_wire::{Dtype, Layout};

const ELEMENTS: u64 = 50_000;

fn layout() -> Arc<Layout> {
    Arc::new(Layout::pack([("w", Dtype::F32, vec![ELEMENTS])]).unwrap())
}

/// Folds every update in chunks that arrive interleaved and out of order.
fn eager(precision: Precision, updates: &[(Vec<u8>, f64)]) -> Vec<u8> {
    let layout = layout();
    let accumulator = Accumulator::new(layout.clone(), precision);
    let mut random = Random::new(7);
    let mut chunks: Vec<_> = (0..updates.len())
        .flat_map(|client| cuts(&mut random, layout.bytes(), 9).into_iter().map(move |range| (client, range)))
        .map(|(client, range)| (client, thalweg_wire::Range::new(range.start / 4 * 4, range.end / 4 * 4)))
        .collect();
    random.shuffle(&mut chunks);
    for (client, range) in chunks {
        let (bytes, weight) = &updates[client];
        assert_eq!(accumulator.fold(range.start, slice(bytes, range), *weight).unwrap(), range);
    }
    let mut global = vec![0; layout.bytes() as usize];
    let summary = accumulator.finish(&mut global, Replacement::KeepLocal).unwrap();
    assert_eq!((summary.uncovered_bytes, summary.tensors[0].fraction()), (0, 1.0));
    global
}

fn lazy(updates: &[(Vec<u8>, f64)]) -> Vec<u8> {
    let layout = layout();
    let borrowed: Vec<(&[u8], f64)> = updates.iter().map(|(u, w)| (u.as_slice(), *w)).collect();
    let mut out = vec![0; layout.bytes() as usize];
    mean(&layout, &borrowed, &mut out).unwrap();
    out
}

/// A published eager aggregator works like this: on each arrival it adds the update times its samples,
/// divided by the samples so far, as if that were the total.
fn running_total_rule(updates: &[(Vec<u8>, f64)]) -> Vec<f64> {
    let mut sums = vec![0.0; ELEMENTS as usize];
    let mut samples = 0.0;
    for (bytes, weight) in updates {
        samples += weight;
        for (sum, value) in sums.iter_mut().zip(as_f32s(bytes)) {
            *sum += f64::from(value) * weight / samples;
        }
    }
    sums
}

fn constant(value: f32) -> Vec<u8> {
    f32s(&vec![value; ELEMENTS as usize])
}

#[test]
fn four_equal_clients_give_exactly_fedavg_eager_and_lazy() {
    let layout = layout();
    let updates: Vec<_> = (1..=4).map(|seed| (update(&layout, seed), 600.0)).collect();
    let expected = lazy(&updates);
    assert_eq!(eager(Precision::F64, &updates), expected);
    let clients: Vec<Vec<f32>> = updates.iter().map(|(bytes, _)| as_f32s(bytes)).collect();
    for precision in [Precision::F32, Precision::Exact] {
        for (index, (found, expected)) in
            as_f32s(&eager(precision, &updates)).into_iter().zip(as_f32s(&expected)).enumerate()
        {
            let largest = clients.iter().map(|c| c[index].abs()).fold(0.0, f32::max);
            assert!(
                (found - expected).abs() <= 8.0 * f32::EPSILON * largest,
                "{precision:?}: {found} {expected}"
            );
        }
    }
}

#[test]
fn the_running_total_rule_is_2_083_times_fedavg_and_ours_is_once() {
    for (counts, wrong) in [
        ([25.0, 25.0, 25.0, 25.0], 2.0833),
        ([100.0, 10.0, 10.0, 10.0], 1.2510),
        ([10.0, 10.0, 10.0, 100.0], 2.6026),
    ] {
        let updates: Vec<_> = counts.iter().map(|&count| (constant(1.0), count)).collect();
        assert_eq!(as_f32s(&lazy(&updates))[0], 1.0);
        for precision in [Precision::F32, Precision::F64, Precision::Exact] {
            assert!(as_f32s(&eager(precision, &updates)).iter().all(|&mean| mean == 1.0));
        }
        let ratio = running_total_rule(&updates)[0];
        assert!((ratio - wrong).abs() < 1e-3, "{counts:?} give {ratio}");
    }
}

#[test]
fn one_client_gives_its_own_bits() {
    let layout = Arc::new(Layout::pack(Dtype::ALL.iter().map(|d| (d.name(), *d, vec![333]))).unwrap());
    let bytes = update(&layout, 3);
    // -0 must stay -0.
    let mut bytes_with_zero = bytes.clone();
    bytes_with_zero[..8].copy_from_slice(&(-0.0_f64).to_le_bytes());
    for precision in [Precision::F32, Precision::F64] {
        let accumulator = Accumulator::new(layout.clone(), precision);
        accumulator.fold(0, &bytes_with_zero, 1.0).unwrap();
        let mut global = vec![0; bytes.len()];
        accumulator.finish_and_reset(&mut global, Replacement::KeepLocal).unwrap();
        for tensor in layout.tensors() {
            assert_eq!(slice(&global, tensor.range()), slice(&bytes_with_zero, tensor.range()), "{tensor:?}");
        }
    }
}

#[test]
fn threads_that_fold_at_once_lose_nothing() {
    let layout = layout();
    let updates: Vec<_> = (1..=8).map(|seed| (update(&layout, seed), 10.0 + seed as f64)).collect();
    let expected = eager(Precision::Exact, &updates);
    let accumulator = Accumulator::new(layout.clone(), Precision::Exact);
    for _ in 0..5 {
        std::thread::scope(|scope| {
            for (bytes, weight) in &updates {
                let (accumulator, layout) = (&accumulator, &layout);
                scope.spawn(move || {
                    let mut random = Random::new(*weight as u64);
                    let mut chunks = cuts(&mut random, layout.bytes(), 30);
                    random.shuffle(&mut chunks);
                    for range in chunks {
                        let range = thalweg_wire::Range::new(range.start / 4 * 4, range.end / 4 * 4);
                        accumulator.fold(range.start, slice(bytes, range), *weight).unwrap();
                    }
                });
            }
        });
        let mut global = vec![0; layout.bytes() as usize];
        accumulator.finish_and_reset(&mut global, Replacement::KeepLocal).unwrap();
        assert!(global == expected);
    }
}

#[test]
fn accumulators_that_merge_crosswise_do_not_wait_for_each_other() {
    let layout = layout();
    let (a, b) = (Accumulator::new(layout.clone(), Precision::F64), Accumulator::new(layout, Precision::F64));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..20_000).for_each(|_| a.merge(&b).unwrap()));
        scope.spawn(|| (0..20_000).for_each(|_| b.merge(&a).unwrap()));
    });
}

#[test]
fn integers_take_the_maximum_of_the_participants() {
    let layout = Layout::pack([
        ("i64", Dtype::I64, vec![2]),
        ("u64", Dtype::U64, vec![2]),
        ("i8", Dtype::I8, vec![2]),
        ("bool", Dtype::Bool, vec![3]),
        ("hole", Dtype::I32, vec![1]),
    ])
    .unwrap();
    let layout = Arc::new(layout);
    let client = |big: [u64; 2], small: [u8; 2], truth: [u8; 3]| {
        let mut bytes = vec![0; layout.bytes() as usize];
        let word = [big[0].to_le_bytes(), big[1].to_le_bytes()].concat();
        bytes[..16].copy_from_slice(&word);
        bytes[64..80].copy_from_slice(&word);
        bytes[128..130].copy_from_slice(&small);
        bytes[192..195].copy_from_slice(&truth);
        bytes
    };
    let a = client([u64::MAX, 5], [0x80, 0x7f], [0, 7, 0]);
    let b = client([3, i64::MIN as u64], [0xff, 0x01], [0, 0, 2]);
    for precision in [Precision::F32, Precision::Exact] {
        let (left, right) =
            (Accumulator::new(layout.clone(), precision), Accumulator::new(layout.clone(), precision));
        left.fold(0, &a[..195], 1.0).unwrap();
        right.fold(0, &b[..195], 1e6).unwrap();
        left.merge(&right).unwrap();
        let mut global = vec![9; layout.bytes() as usize];
        left.finish(&mut global, Replacement::KeepLocal).unwrap();
        let word = |at: usize| u64::from_le_bytes(global[at..at + 8].try_into().unwrap());
        assert_eq!((word(0), word(8)), (3, 5), "signed: -1 < 3");
        assert_eq!((word(64), word(72)), (u64::MAX, i64::MIN as u64), "unsigned");
        assert_eq!(global[128..130], [0xff, 0x7f], "signed: -1 > -128");
        assert_eq!(global[192..195], [0, 1, 1]);
        assert_eq!(global[256..260], [9; 4], "nobody sent it");
        assert_eq!(global[130..192], [9; 62], "padding");
    }
}
