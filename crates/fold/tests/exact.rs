//! Fixed-point sums: they have the same bits in any order, and never overflow silently.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{as_f32s, f32s, update, Random};
use thalweg_fold::{Accumulator, FoldError, Precision, Replacement, EXACT_MAX_PRODUCT, EXACT_MAX_SUM};
use thalweg_wire::{Dtype, Layout, Range, Ranges};

fn layout(elements: u64) -> Arc<Layout> {
    Arc::new(Layout::pack([("before", Dtype::F16, vec![40]), ("w", Dtype::F32, vec![elements])]).unwrap())
}

fn finish(accumulator: &Accumulator) -> Vec<u8> {
    let mut out = vec![0; accumulator.layout().bytes() as usize];
    accumulator.finish(&mut out, Replacement::KeepLocal).unwrap();
    out
}

/// All permutations of `0..n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(n - 1);
    shorter
        .iter()
        .flat_map(|order| {
            (0..n).map(move |at| {
                let mut order = order.clone();
                order.insert(at, n - 1);
                order
            })
        })
        .collect()
}

/// Five clients whose f32 sums depend on the order.
fn clients(layout: &Layout) -> Vec<(Vec<u8>, f64)> {
    [0.1, 1.0 / 3.0, 123.0, 77.7, 600.0].iter().zip(1..).map(|(w, seed)| (update(layout, seed), *w)).collect()
}

fn folded(layout: &Arc<Layout>, precision: Precision, order: &[usize]) -> Vec<u8> {
    let accumulator = Accumulator::new(layout.clone(), precision);
    let clients = clients(layout);
    for &client in order {
        accumulator.fold(0, &clients[client].0, clients[client].1).unwrap();
    }
    finish(&accumulator)
}

#[test]
fn all_120_orders_of_5_clients_give_the_same_bits() {
    let layout = layout(3000);
    let orders = permutations(5);
    assert_eq!(orders.len(), 120);
    let first = folded(&layout, Precision::Exact, &orders[0]);
    assert!(orders.iter().all(|order| folded(&layout, Precision::Exact, order) == first));
    let f32_first = folded(&layout, Precision::F32, &orders[0]);
    let differ = orders.iter().any(|order| folded(&layout, Precision::F32, order) != f32_first);
    assert!(differ, "these clients would not show an order that matters");
}

#[test]
fn random_trees_of_5_clients_give_the_same_bits() {
    let layout = layout(40_000);
    let expected = folded(&layout, Precision::Exact, &[0, 1, 2, 3, 4]);
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut nodes: Vec<Accumulator> = Vec::new();
        for (bytes, weight) in clients(&layout) {
            let node = Accumulator::new(layout.clone(), Precision::Exact);
            node.fold(0, &bytes, weight).unwrap();
            nodes.push(node);
        }
        while nodes.len() > 1 {
            let child = nodes.swap_remove(random.below(nodes.len() as u64) as usize);
            nodes[random.below(nodes.len() as u64 + 1) as usize % nodes.len()].merge(&child).unwrap();
        }
        assert!(finish(&nodes[0]) == expected, "tree {seed}");
    }
}

#[test]
fn values_out_of_range_are_refused_and_change_nothing() {
    let layout = layout(70_000);
    let accumulator = Accumulator::new(layout.clone(), Precision::Exact);
    let good = update(&layout, 1);
    accumulator.fold(0, &good, 2.0).unwrap();
    let before = finish(&accumulator);
    let mut bad = update(&layout, 2);
    let at = 128 + 4 * 69_000;
    for (value, weight) in [(1e12_f32, 4000.0), (-3.4e38, 1.0), (EXACT_MAX_PRODUCT as f32, 1.0)] {
        bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let error = accumulator.fold(0, &bad, weight).unwrap_err();
        let FoldError::Capacity { tensor, .. } = &error else { panic!("{error}") };
        assert_eq!(tensor, "w");
        let text = error.to_string();
        assert!(text.contains("power of two") && text.contains("f64"), "{text}");
    }
    for value in [f32::NAN, f32::NEG_INFINITY] {
        bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let FoldError::NotFinite(defect) = accumulator.fold(0, &bad, 1.0).unwrap_err() else { panic!() };
        assert_eq!((defect.tensor.as_str(), defect.element), ("w", 69_000));
    }
    assert_eq!(finish(&accumulator), before);
}

#[test]
fn honest_clients_fit_however_many_they_are() {
    let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![3])]).unwrap());
    let accumulator = Accumulator::new(layout, Precision::Exact);
    let bytes = f32s(&[60_000.0, -60_000.0, 1e-9]);
    for _ in 0..10_000 {
        accumulator.fold(0, &bytes, 600.0).unwrap();
    }
    assert_eq!(as_f32s(&finish(&accumulator)), [60_000.0, -60_000.0, 1e-9]);
}

#[test]
fn sums_take_what_they_can_hold_and_refuse_more() {
    let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![70_000])]).unwrap());
    let accumulator = Accumulator::new(layout.clone(), Precision::Exact);
    let most = EXACT_MAX_PRODUCT as f32 * (1.0 - f32::EPSILON);
    let small = f32s(&[1.0; 70_000]);
    let mut large = small.clone();
    large[70_000 * 4 - 8..].copy_from_slice(&f32s(&[most, -most]));
    let fit = (EXACT_MAX_SUM / f64::from(most)) as u32;
    // Most updates arrive in chunks. None may be refused because it was cut often.
    for _ in 0..fit {
        for (index, chunk) in large.chunks(28_000).enumerate() {
            accumulator.fold(28_000 * index as u64, chunk, 1.0).unwrap();
        }
    }
    let before = finish(&accumulator);
    assert_eq!(as_f32s(&before)[69_998..], [most, -most]);
    let refused = accumulator.fold(0, &large, 1.0).unwrap_err();
    assert!(
        matches!(refused, FoldError::Sums { .. }) && refused.to_string().contains("fold in f64"),
        "{refused}"
    );
    let all = Ranges::full(layout.bytes());
    assert_eq!(accumulator.fold_ranges(&large, &all, 1.0), Err(refused.clone()));
    let other = Accumulator::new(layout.clone(), Precision::Exact);
    other.fold(0, &large, 1.0).unwrap();
    assert_eq!(accumulator.merge(&other), Err(refused));
    assert!(finish(&accumulator) == before, "the first stripe, which had room, has nothing of it");
    accumulator.fold(0, &small[..200_000], 1.0).unwrap();
    accumulator.reset();
    accumulator.fold(0, &large, 1.0).unwrap();
    assert!(finish(&accumulator) == large);
}

#[test]
fn a_check_refuses_what_a_fold_would() {
    let layout = layout(1000);
    let good = update(&layout, 1);
    for precision in [Precision::F32, Precision::F64, Precision::Exact] {
        let accumulator = Accumulator::new(layout.clone(), precision);
        assert_eq!(accumulator.check(0, &good, 600.0), Ok(()));
        assert_eq!(accumulator.check(0, &good, 0.0), Ok(()));
        assert!(matches!(accumulator.check(8, &good, 1.0), Err(FoldError::OutOfRange { .. })));
        assert!(matches!(accumulator.check(0, &good, 2_f64.powi(41)), Err(FoldError::Weight(_))));
        for value in [f32::NAN, f32::INFINITY] {
            let mut bad = good.clone();
            bad[128 + 400..][..4].copy_from_slice(&value.to_le_bytes());
            let FoldError::NotFinite(defect) = accumulator.check(0, &bad, 1.0).unwrap_err() else { panic!() };
            assert_eq!((defect.tensor.as_str(), defect.element), ("w", 100));
            // An element that the range cuts is not folded.
            assert_eq!(accumulator.check(0, &bad[..530], 1.0), Ok(()));
        }
    }
    let over = |precision, value: f64, weight: f64| {
        let layout = Arc::new(Layout::pack([("d", Dtype::F64, vec![1])]).unwrap());
        let refused = Accumulator::new(layout, precision).check(0, &value.to_le_bytes(), weight);
        matches!(refused, Err(FoldError::Capacity { .. }))
    };
    for (precision, limit) in [
        (Precision::F32, 2_f64.powi(100)),
        (Precision::F64, 2_f64.powi(1000)),
        (Precision::Exact, EXACT_MAX_PRODUCT),
    ] {
        assert_eq!(precision.limit(), limit);
        assert!(over(precision, limit / 4.0, 4.0) && over(precision, -limit / 4.0, 4.0));
        assert!(!over(precision, limit / 4.0, 3.999));
    }
}

#[test]
fn several_ranges_are_folded_all_or_none() {
    for precision in [Precision::F32, Precision::Exact] {
        let layout = layout(70_000);
        let good = update(&layout, 1);
        let ranges: Ranges = [(0, 40), (64, 70), (131, 140_000), (200_000, layout.bytes())]
            .map(|(a, b)| Range::new(a, b))
            .into_iter()
            .collect();
        let accumulator = Accumulator::new(layout.clone(), precision);
        accumulator.fold_ranges(&good, &ranges, 3.0).unwrap();
        let single = Accumulator::new(layout.clone(), precision);
        for range in ranges.iter() {
            let bytes = &good[range.start as usize..range.end as usize];
            single.fold(range.start, bytes, 3.0).unwrap();
        }
        assert!(finish(&accumulator) == finish(&single));
        assert_eq!(accumulator.weights(), single.weights());
        assert!(matches!(accumulator.fold_ranges(&good[1..], &ranges, 1.0), Err(FoldError::Part { .. })));
        // The last of them cannot be folded.
        let mut bad = good.clone();
        let at = bad.len() - 4;
        bad[at..].copy_from_slice(&f32::MAX.to_le_bytes());
        let refused = match precision {
            Precision::Exact => accumulator.fold_ranges(&bad, &ranges, 1.0),
            _ => accumulator.fold_ranges(&bad, &fragments(layout.bytes()), 1.0),
        };
        assert!(
            matches!(refused, Err(FoldError::Capacity { .. } | FoldError::Fragmented { .. })),
            "{refused:?}"
        );
        assert!(finish(&accumulator) == finish(&single), "nothing of it was added");
    }
}

/// The contribution covers all of the first stripe, and too many pieces of the second.
fn fragments(bytes: u64) -> Ranges {
    let pieces = (131_072..bytes - 8).step_by(24).map(|at| Range::new(at, at + 4));
    [Range::new(0, 131_072)].into_iter().chain(pieces).collect()
}

#[test]
fn a_mean_that_is_not_finite_is_never_written() {
    let layout =
        Arc::new(Layout::pack([("v", Dtype::F16, vec![70_000]), ("w", Dtype::F32, vec![500])]).unwrap());
    for value in [f32::MAX, f32::NAN, f32::NEG_INFINITY] {
        let accumulator = Accumulator::new(layout.clone(), Precision::F32);
        let mut bytes = update(&layout, 3);
        let at = layout.tensors()[1].offset as usize + 4 * 77;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        // Fold without a check, as a careless caller would.
        accumulator.fold(0, &bytes, 2_f64.powi(30)).unwrap();
        let mut global = vec![7; bytes.len()];
        let refused = accumulator.finish(&mut global, Replacement::KeepLocal).unwrap_err();
        let FoldError::Mean { tensor, element, mean } = &refused else { panic!("{refused}") };
        assert_eq!((tensor.as_str(), *element), ("w", 77));
        assert!(!mean.is_finite() && refused.to_string().contains("\"w\", element 77"), "{refused}");
        assert!(global.iter().all(|&byte| byte == 7), "the model is as it was");
        accumulator.reset();
        accumulator.fold(0, &update(&layout, 3), 1.0).unwrap();
        accumulator.finish(&mut global, Replacement::KeepLocal).unwrap();
    }
}

#[test]
fn the_resolution_is_as_stated() {
    let layout = Arc::new(Layout::pack([("w", Dtype::F64, vec![1])]).unwrap());
    let accumulator = Accumulator::new(layout, Precision::Exact);
    let values = [0.1_f64, 0.2, -0.3, 1e-3];
    let weight = 250.0;
    for value in values {
        accumulator.fold(0, &value.to_le_bytes(), weight).unwrap();
    }
    let mean = f64::from_le_bytes(finish(&accumulator).try_into().unwrap());
    let expected = values.iter().sum::<f64>() / 4.0;
    assert!((mean - expected).abs() <= 4.0 * 2_f64.powi(-53) / (4.0 * weight) + 1e-16);
}
