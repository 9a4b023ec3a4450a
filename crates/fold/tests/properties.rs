//! Compares the fast code with the plain reference, for any dtypes, layouts, chunks, orders, holes and trees.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{cuts, layouts, magnitudes, slice, update, values, Random};
use proptest::prelude::*;
use thalweg_fold::reference::Plain;
use thalweg_fold::{Accumulator, Precision, Replacement, Summary};
use thalweg_wire::{Dtype, Layout, Range};

/// A chunk of a client's update to fold.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    client: usize,
    range: Range,
    weight: f64,
}

struct Case {
    updates: Vec<Vec<u8>>,
    chunks: Vec<Chunk>,
    local: Vec<u8>,
}

impl Case {
    /// One to four clients, with weights that are multiples of 1/4. A sixth of their chunks never arrives.
    fn new(layout: &Layout, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let clients = 1 + random.below(4) as usize;
        let updates = (0..clients).map(|c| update(layout, seed ^ (c as u64 + 1))).collect();
        let mut chunks = Vec::new();
        for client in 0..clients {
            let weight = (1 + random.below(4000)) as f64 / 4.0;
            for range in cuts(&mut random, layout.bytes(), 12) {
                if random.below(6) > 0 {
                    chunks.push(Chunk { client, range, weight });
                }
            }
        }
        random.shuffle(&mut chunks);
        Self { updates, chunks, local: update(layout, !seed) }
    }

    fn bytes(&self, chunk: &Chunk) -> &[u8] {
        slice(&self.updates[chunk.client], chunk.range)
    }

    fn fold_into(&self, accumulator: &Accumulator, chunks: &[Chunk]) {
        for chunk in chunks {
            let folded = accumulator.fold(chunk.range.start, self.bytes(chunk), chunk.weight).unwrap();
            assert!(folded.start >= chunk.range.start || folded.is_empty());
            assert!(folded.end <= chunk.range.end || folded.is_empty());
        }
    }

    fn plain<'a>(&self, layout: &'a Layout) -> Plain<'a> {
        let mut plain = Plain::new(layout);
        for chunk in &self.chunks {
            plain.fold(chunk.range.start, self.bytes(chunk), chunk.weight);
        }
        plain
    }

    fn expected(&self, layout: &Layout, repair: Replacement) -> Vec<u8> {
        let mut out = self.local.clone();
        self.plain(layout).finish(&mut out, repair);
        out
    }

    fn finished(&self, accumulator: &Accumulator, repair: Replacement) -> (Vec<u8>, Summary) {
        let mut out = self.local.clone();
        let summary = accumulator.finish(&mut out, repair).unwrap();
        (out, summary)
    }

    /// The mean of the updates' absolute values. The allowed rounding error is a fraction of it.
    fn sizes(&self, layout: &Layout) -> Vec<u8> {
        let updates = self.updates.iter().map(|u| magnitudes(layout, u)).collect();
        let case = Case { updates, chunks: self.chunks.clone(), local: magnitudes(layout, &self.local) };
        case.expected(layout, Replacement::KeepLocal)
    }
}

/// Relative distance of neighbouring numbers, and the smallest number.
fn grain(dtype: Dtype) -> (f64, f64) {
    let (mantissa, least) = match dtype {
        Dtype::F64 => (52, -1074),
        Dtype::F32 => (23, -149),
        Dtype::F16 => (10, -24),
        Dtype::BF16 => (7, -133),
        Dtype::F8E4M3 => (3, -9),
        _ => (2, -16),
    };
    (2_f64.powi(-mantissa), 2_f64.powi(least))
}

/// Checks that bytes are equal up to rounding. The tolerance is `relative` (in steps of the dtype) times the
/// sum of the magnitudes, plus `absolute`, plus one step of the dtype.
fn assert_close(layout: &Layout, case: &Case, found: &[u8], relative: impl Fn(f64) -> f64, absolute: f64) {
    let expected = case.expected(layout, Replacement::KeepLocal);
    let sizes = case.sizes(layout);
    for (index, tensor) in layout.tensors().iter().enumerate() {
        if !tensor.dtype.is_float() {
            assert_eq!(slice(found, tensor.range()), slice(&expected, tensor.range()));
            continue;
        }
        let (step, least) = grain(tensor.dtype);
        let all = values(layout, index, found).into_iter().zip(values(layout, index, &expected));
        for ((found, expected), size) in all.zip(values(layout, index, &sizes)) {
            let bound = relative(step) * size + absolute + step * expected.abs() + least;
            assert!(
                (found - expected).abs() <= bound,
                "{tensor:?}: {found} instead of {expected} +- {bound}"
            );
        }
    }
}

fn check_summary(layout: &Layout, case: &Case, summary: &Summary) {
    let plain = case.plain(layout);
    let mut uncovered = 0;
    for (index, (tensor, coverage)) in layout.tensors().iter().zip(&summary.tensors).enumerate() {
        let weights = plain.weights(index);
        let covered = weights.iter().filter(|&&w| w > 0.0).count();
        let least = weights.iter().copied().reduce(f64::min).unwrap_or(0.0);
        let mean = weights.iter().sum::<f64>() / (weights.len().max(1) as f64);
        assert_eq!((coverage.elements, coverage.covered), (weights.len() as u64, covered as u64));
        assert_eq!(coverage.least_weight(), least);
        assert!((coverage.mean_weight() - mean).abs() < 1e-9 * mean.max(1.0));
        uncovered += (weights.len() - covered) as u64 * tensor.dtype.size();
    }
    assert_eq!(summary.uncovered_bytes, uncovered);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn f64_sums_are_the_reference_bit_by_bit(layout in layouts(), seed in any::<u64>(), zero in any::<bool>()) {
        let repair = if zero { Replacement::Zero } else { Replacement::KeepLocal };
        let case = Case::new(&layout, seed);
        let accumulator = Accumulator::new(Arc::new(layout.clone()), Precision::F64);
        // Run it twice, since the second round must not see the first.
        for _ in 0..2 {
            case.fold_into(&accumulator, &case.chunks);
            let (found, summary) = case.finished(&accumulator, repair);
            prop_assert!(found == case.expected(&layout, repair));
            check_summary(&layout, &case, &summary);
            accumulator.reset();
        }
    }

    #[test]
    fn f32_sums_are_close(layout in layouts(), seed in any::<u64>()) {
        let case = Case::new(&layout, seed);
        let accumulator = Accumulator::new(Arc::new(layout.clone()), Precision::F32);
        case.fold_into(&accumulator, &case.chunks);
        let (found, summary) = case.finished(&accumulator, Replacement::KeepLocal);
        // There are three roundings for each client: weight times value, the sum, and the mean.
        assert_close(&layout, &case, &found, |_| 12.0 * 2_f64.powi(-24), 0.0);
        check_summary(&layout, &case, &summary);
    }

    #[test]
    fn exact_sums_are_close_and_the_same_bits_in_any_order_and_tree(layout in layouts(), seed in any::<u64>()) {
        let case = Case::new(&layout, seed);
        let shared = Arc::new(layout.clone());
        let flat = Accumulator::new(shared.clone(), Precision::Exact);
        case.fold_into(&flat, &case.chunks);
        let (found, summary) = case.finished(&flat, Replacement::KeepLocal);
        let least_weight = case.chunks.iter().map(|c| c.weight).fold(f64::INFINITY, f64::min);
        assert_close(&layout, &case, &found, |_| 1e-15, 4.0 * 2_f64.powi(-53) / least_weight);
        check_summary(&layout, &case, &summary);

        let tree = tree_of(&case, &shared, Precision::Exact, seed);
        prop_assert!(case.finished(&tree, Replacement::KeepLocal) == (found, summary));
    }

    #[test]
    fn any_tree_gives_the_same_mean(layout in layouts(), seed in any::<u64>(), wide in any::<bool>()) {
        let case = Case::new(&layout, seed);
        let (precision, bits) = if wide { (Precision::F64, 52) } else { (Precision::F32, 23) };
        let tree = tree_of(&case, &Arc::new(layout.clone()), precision, seed);
        let (found, summary) = case.finished(&tree, Replacement::KeepLocal);
        assert_close(&layout, &case, &found, |_| 12.0 * 2_f64.powi(-bits - 1), 0.0);
        check_summary(&layout, &case, &summary);
    }

    #[test]
    fn a_tree_of_means_and_weights_gives_the_same_mean(layout in layouts(), seed in any::<u64>()) {
        let case = Case::new(&layout, seed);
        let shared = Arc::new(layout.clone());
        let top = Accumulator::new(shared.clone(), Precision::F64);
        for half in case.chunks.chunks(case.chunks.len() / 2 + 1) {
            let middle = Accumulator::new(shared.clone(), Precision::F64);
            case.fold_into(&middle, half);
            let (means, _) = case.finished(&middle, Replacement::Zero);
            for (range, weight) in middle.weights().unwrap() {
                prop_assert_eq!(top.fold(range.start, slice(&means, range), weight).unwrap(), range);
            }
        }
        let (found, summary) = case.finished(&top, Replacement::KeepLocal);
        check_summary(&layout, &case, &summary);
        // The means of the branches were rounded to each tensor's own type.
        assert_close(&layout, &case, &found, |step| step + 2_f64.powi(-50), 0.0);
    }

    #[test]
    fn parts_finish_as_the_whole(layout in layouts(), seed in any::<u64>(), threads in 1..5_usize) {
        let case = Case::new(&layout, seed);
        let accumulator = Accumulator::new(Arc::new(layout.clone()), Precision::F32);
        case.fold_into(&accumulator, &case.chunks);
        let (expected, whole) = case.finished(&accumulator, Replacement::Zero);
        let mut found = case.local.clone();
        let mut summaries = Vec::new();
        for part in accumulator.parts(threads) {
            let out = &mut found[part.start as usize..part.end as usize];
            summaries.push(accumulator.finish_part(part.start, out, Replacement::Zero).unwrap());
        }
        prop_assert!(summaries.len() <= threads && found == expected);
        if let Some(mut sum) = summaries.pop() {
            summaries.iter().for_each(|s| sum.merge(s));
            prop_assert_eq!(&sum.tensors.iter().map(|t| (t.elements, t.covered)).collect::<Vec<_>>(),
                &whole.tensors.iter().map(|t| (t.elements, t.covered)).collect::<Vec<_>>());
            prop_assert_eq!(sum.uncovered_bytes, whole.uncovered_bytes);
        }
    }
}

/// Deals the chunks in another order to four accumulators, and merges these in a random tree.
fn tree_of(case: &Case, layout: &Arc<Layout>, precision: Precision, seed: u64) -> Accumulator {
    let mut random = Random::new(seed ^ 0x5555);
    let mut chunks = case.chunks.clone();
    random.shuffle(&mut chunks);
    let mut nodes: Vec<Accumulator> = (0..4).map(|_| Accumulator::new(layout.clone(), precision)).collect();
    for chunk in &chunks {
        let leaf = random.below(4) as usize;
        case.fold_into(&nodes[leaf], std::slice::from_ref(chunk));
    }
    while nodes.len() > 1 {
        let child = nodes.swap_remove(random.below(nodes.len() as u64) as usize);
        let parent = random.below(nodes.len() as u64) as usize;
        nodes[parent].merge(&child).unwrap();
    }
    nodes.remove(0)
}
