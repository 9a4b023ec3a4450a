//! Stand-ins for missing elements, compared with the formulas, one element at a time.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{as_f32s, f32s, layouts, slice, update, Random};
use proptest::prelude::*;
use thalweg_fold::{reference, Accumulator, FoldError, Policy, Precision, Replacement};
use thalweg_wire::{Dtype, Layout, Range, Ranges, Tensor};

const ALL: &[Policy] = &[
    Policy::Renormalise,
    Policy::KeepLocal,
    Policy::Zero,
    Policy::Last,
    Policy::Rescale,
    #[cfg(feature = "baselines")]
    Policy::FedcommLegacy,
];

fn holes(random: &mut Random, total: u64) -> Ranges {
    let mut holes = Ranges::new();
    for _ in 0..random.below(6) {
        let start = random.below(total.max(1));
        let end = (start + 1 + random.below(total / 3 + 1)).min(total);
        holes.insert(Range::new(start, end));
    }
    holes
}

/// The bytes of element `index`.
fn place(tensor: &Tensor, index: u64) -> Range {
    let start = tensor.offset + index * tensor.dtype.size();
    Range::new(start, start + tensor.dtype.size())
}

fn received(holes: &Ranges, tensor: &Tensor, index: u64) -> bool {
    let place = place(tensor, index);
    holes.iter().all(|hole| hole.end <= place.start || place.end <= hole.start)
}

/// What `policy` makes of a tensor, one element at a time. `None` for elements without a stand-in.
fn plain(
    policy: Policy,
    layout: &Layout,
    tensor: &Tensor,
    holes: &Ranges,
    all: [&[u8]; 3],
) -> Vec<Option<Vec<u8>>> {
    let [update, global, last] = all;
    let of = |bytes: &[u8], index| slice(bytes, place(tensor, index)).to_vec();
    let floats = || layout.tensors().iter().filter(|t| t.dtype.is_float());
    let count: u64 = floats().map(|t| t.elements()).sum();
    let here: u64 =
        floats().map(|t| (0..t.elements()).filter(|&i| received(holes, t, i)).count() as u64).sum();
    let shifted: Vec<u64> = (0..tensor.elements()).filter(|&i| received(holes, tensor, i)).collect();
    let one = |index: u64| {
        let here_too = received(holes, tensor, index);
        match policy {
            Policy::FedcommLegacy if shifted.is_empty() => Some(of(global, index)),
            Policy::FedcommLegacy => Some(
                shifted.get(index as usize).map_or(vec![0; tensor.dtype.size() as usize], |&i| of(update, i)),
            ),
            Policy::Rescale if here_too && tensor.dtype.is_float() => {
                let (own, value) = (of(global, index), of(update, index));
                let (g, v) = (reference::decode(tensor.dtype, &own), reference::decode(tensor.dtype, &value));
                let mut out = value.clone();
                if here < count {
                    reference::encode(tensor.dtype, g + (v - g) * (count as f64 / here as f64), &mut out);
                }
                Some(out)
            }
            _ if here_too => Some(of(update, index)),
            Policy::Renormalise => None,
            Policy::KeepLocal | Policy::Rescale => Some(of(global, index)),
            Policy::Zero => Some(vec![0; tensor.dtype.size() as usize]),
            Policy::Last => Some(of(last, index)),
        }
    };
    (0..tensor.elements()).map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// For any types and any holes, including holes that cut elements.
    #[test]
    fn stands_in_as_the_table_says(layout in layouts(), seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let holes = holes(&mut random, layout.bytes());
        let (sent, global, last) = (update(&layout, seed ^ 1), update(&layout, seed ^ 2), update(&layout, seed ^ 3));
        for &policy in ALL {
            let mut filled = sent.clone();
            // What is in a hole does not matter.
            for hole in holes.iter() {
                filled[hole.start as usize..hole.end as usize].fill(0xa5);
            }
            let folded = policy.fill(&layout, &mut filled, &holes, &global, Some(&last)).unwrap();
            for tensor in layout.tensors() {
                let expected = plain(policy, &layout, tensor, &holes, [&sent, &global, &last]);
                for (index, expected) in (0..).zip(expected) {
                    let place = place(tensor, index);
                    prop_assert_eq!(folded.covers(place), expected.is_some(), "{:?} {} {}", policy, tensor.name, index);
                    if let Some(expected) = expected {
                        prop_assert_eq!(slice(&filled, place), &expected[..], "{:?} {} {}", policy, tensor.name, index);
                    }
                }
            }
        }
    }

    /// The mean over several clients that lost different parts equals that of the plain sums.
    #[test]
    fn the_mean_is_over_what_stands_in(seed in any::<u64>(), elements in 1..400_u64) {
        let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![elements])]).unwrap());
        let tensor = &layout.tensors()[0];
        let global = update(&layout, seed);
        for &policy in ALL {
            let mut random = Random::new(seed ^ 77);
            let accumulator = Accumulator::new(layout.clone(), Precision::F64);
            let mut sums = vec![(0.0, 0.0); elements as usize];
            for client in 1..5_u64 {
                let (weight, holes) = (client as f64 * 10.0, holes(&mut random, layout.bytes()));
                let (sent, last) = (update(&layout, seed ^ client), update(&layout, seed ^ (client << 8)));
                for (sum, element) in
                    sums.iter_mut().zip(plain(policy, &layout, tensor, &holes, [&sent, &global, &last]))
                {
                    if let Some(element) = element {
                        sum.0 += weight * reference::decode(Dtype::F32, &element);
                        sum.1 += weight;
                    }
                }
                let mut filled = sent.clone();
                for range in policy.fill(&layout, &mut filled, &holes, &global, Some(&last)).unwrap().iter() {
                    accumulator.fold(range.start, slice(&filled, range), weight).unwrap();
                }
            }
            let mut mean = global.clone();
            accumulator.finish(&mut mean, Replacement::KeepLocal).unwrap();
            let own = as_f32s(&global);
            for ((found, (sum, weight)), own) in as_f32s(&mean).into_iter().zip(sums).zip(own) {
                let expected = if weight > 0.0 { (sum / weight) as f32 } else { own };
                prop_assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{:?}", policy);
            }
        }
    }
}

#[cfg(not(feature = "baselines"))]
#[test]
fn a_build_without_baselines_refuses_the_legacy_of_fedcomm() {
    let layout = Layout::pack([("w", Dtype::F32, vec![2])]).unwrap();
    let mut update = f32s(&[1.0, 2.0]);
    let holes: Ranges = [Range::new(0, 4)].into_iter().collect();
    let refused = Policy::FedcommLegacy.fill(&layout, &mut update, &holes, &f32s(&[9.0, 9.0]), None);
    assert_eq!(refused, Err(FoldError::Baseline));
    assert_eq!(as_f32s(&update), [1.0, 2.0], "nothing changed");
}

#[cfg(feature = "baselines")]
#[test]
fn the_legacy_of_fedcomm_is_what_its_code_did() {
    let layout = Layout::pack([("a", Dtype::F32, vec![6]), ("b", Dtype::F32, vec![2])]).unwrap();
    let second = layout.tensors()[1].offset;
    let pad = |a: &[f32], b: &[f32]| {
        let mut bytes = vec![0; layout.bytes() as usize];
        bytes[..24].copy_from_slice(&f32s(a));
        bytes[second as usize..][..8].copy_from_slice(&f32s(b));
        bytes
    };
    let global = pad(&[9.0; 6], &[8.0; 2]);
    let mut update = pad(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[7.0, 7.5]);
    let holes: Ranges = [Range::new(8, 16), Range::new(second, second + 8)].into_iter().collect();
    Policy::FedcommLegacy.fill(&layout, &mut update, &holes, &global, None).unwrap();
    // The third and fourth value are lost, so the fifth and sixth move up. A tensor that was lost completely
    // does not change.
    assert_eq!(as_f32s(&update[..24]), [1.0, 2.0, 5.0, 6.0, 0.0, 0.0]);
    assert_eq!(as_f32s(&update[second as usize..][..8]), [8.0, 8.0]);
}

#[test]
fn without_a_last_update_the_global_model_stands_in_and_sizes_are_checked() {
    let layout = Layout::pack([("w", Dtype::F32, vec![2])]).unwrap();
    let (global, mut update) = (f32s(&[9.0, 9.0]), f32s(&[1.0, 2.0]));
    let holes: Ranges = [Range::new(5, 6)].into_iter().collect();
    Policy::Last.fill(&layout, &mut update, &holes, &global, None).unwrap();
    assert_eq!(as_f32s(&update), [1.0, 9.0], "an element that is cut is missing");
    for (short, global, last) in [(4, 8, 8), (8, 4, 8), (8, 8, 12)] {
        let refused =
            Policy::Zero.fill(&layout, &mut vec![1; short], &holes, &vec![0; global], Some(&vec![0; last]));
        assert!(matches!(refused, Err(FoldError::Part { bytes: 8, .. })), "{refused:?}");
    }
}
