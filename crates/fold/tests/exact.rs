//! Fixed-point sums: the same bits whatever the order, and no silent overflow.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{as_f32s, f32s, update, Random};
use thalweg_fold::{Accumulator, FoldError, Precision, Repair, EXACT_MAX_CONTRIBUTIONS, EXACT_MAX_PRODUCT};
use thalweg_wire::{Dtype, Layout};

fn layout(elements: u64) -> Arc<Layout> {
    Arc::new(Layout::pack([("before", Dtype::F16, vec![40]), ("w", Dtype::F32, vec![elements])]).unwrap())
}

fn finish(accumulator: &Accumulator) -> Vec<u8> {
    let mut out = vec![0; accumulator.layout().bytes() as usize];
    accumulator.finish(&mut out, Repair::KeepLocal).unwrap();
    out
}

/// All orders of `0..n`.
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

/// Five clients whose f32 sums do depend on the order.
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
    for (value, weight) in [(40_000.0_f32, 1000.0), (-3.4e38, 1.0), (EXACT_MAX_PRODUCT as f32, 1.0)] {
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
fn as_many_contributions_as_promised_fit_and_more_are_refused() {
    let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![2])]).unwrap());
    let accumulator = Accumulator::new(layout, Precision::Exact);
    let most = EXACT_MAX_PRODUCT as f32 * (1.0 - f32::EPSILON);
    let bytes = f32s(&[most, -most]);
    for _ in 0..EXACT_MAX_CONTRIBUTIONS {
        accumulator.fold(0, &bytes, 1.0).unwrap();
    }
    assert_eq!(as_f32s(&finish(&accumulator)), [most, -most]);
    accumulator.fold(0, &bytes, 1.0).unwrap();
    let mut out = [7; 8];
    let error = accumulator.finish(&mut out, Repair::KeepLocal).unwrap_err();
    assert_eq!(error, FoldError::Contributions { offset: 0, found: EXACT_MAX_CONTRIBUTIONS + 1 });
    assert_eq!(out, [7; 8]);
    accumulator.reset();
    accumulator.fold(0, &bytes, 1.0).unwrap();
    assert_eq!(as_f32s(&finish(&accumulator)), [most, -most]);
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
    assert!((mean - expected).abs() <= 4.0 * 2_f64.powi(-27) / (4.0 * weight) + 1e-16);
}
