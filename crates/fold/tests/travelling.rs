//! Sums that are sent elsewhere. They give the same bits wherever they are merged, and damaged ones change
//! nothing.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{cuts, f32s, layouts, slice, update, Random};
use proptest::prelude::*;
use thalweg_fold::{
    Accumulator, FoldError, Precision, Replacement, Sums, SumsHead, WeightRun, MAX_CONTRIBUTIONS, MAX_RUNS,
    STRIPE_BYTES,
};
use thalweg_wire::{Dtype, Layout, Range};

const ALL: [Precision; 3] = [Precision::F32, Precision::F64, Precision::Exact];

fn finish(accumulator: &Accumulator) -> Vec<u8> {
    let mut out = vec![0x55; accumulator.layout().bytes() as usize];
    accumulator.finish(&mut out, Replacement::KeepLocal).unwrap();
    out
}

/// What another process gets: bytes, at any address.
fn sent(sums: &Sums, shift: usize) -> (SumsHead, Vec<u8>) {
    let bytes = sums.head.encode();
    let mut cells = vec![0xee; shift];
    cells.extend(&sums.cells);
    (SumsHead::decode(&bytes).unwrap(), cells)
}

/// Chunks of up to five clients. Their weights have sums that no f64 holds exactly. A sixth of the chunks
/// never arrives.
fn chunks(layout: &Layout, seed: u64) -> Vec<(Range, Vec<u8>, f64)> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for client in 0..1 + random.below(5) {
        let bytes = update(layout, seed ^ (client + 1));
        let weight = [0.1, 1.0 / 3.0, 7e9, 600.0, 1e-9][random.below(5) as usize];
        for range in cuts(&mut random, layout.bytes(), 8) {
            if random.below(6) > 0 {
                all.push((range, slice(&bytes, range).to_vec(), weight));
            }
        }
    }
    random.shuffle(&mut all);
    all
}

/// The weights without the bounds of magnitudes, which depend on the tree.
fn weights(accumulator: &Accumulator) -> Vec<(Range, u32, u128)> {
    accumulator.weight_runs().unwrap().iter().map(|run| (run.bytes, run.contributions, run.units)).collect()
}

fn one(precision: Precision) -> (Arc<Layout>, Accumulator) {
    let tensors = [("n", Dtype::I16, vec![50]), ("w", Dtype::F32, vec![70_000]), ("d", Dtype::F64, vec![9])];
    let layout = Arc::new(Layout::pack(tensors).unwrap());
    let accumulator = Accumulator::new(layout.clone(), precision);
    accumulator.fold(0, &update(&layout, 1), 0.3).unwrap();
    accumulator.fold(64, &update(&layout, 2)[64..200_000], 5.0).unwrap();
    (layout, accumulator)
}

#[test]
fn only_parts_of_whole_stripes_are_cut() {
    let (layout, accumulator) = one(Precision::Exact);
    let Sums { head, cells } = accumulator.export().unwrap();
    let whole = Range::new(0, layout.bytes());
    let (same, place) = Accumulator::cut_sums(&layout, &head, &cells, whole).unwrap();
    assert_eq!((same, place), (head.clone(), 0..cells.len()));
    let cut = |part, cells: &[u8]| Accumulator::cut_sums(&layout, &head, cells, part);
    assert!(matches!(cut(Range::new(0, 64), &cells), Err(FoldError::Part { .. })));
    assert!(matches!(cut(Range::new(0, layout.bytes() + 1), &cells), Err(FoldError::Part { .. })));
    assert!(matches!(cut(whole, &cells[1..]), Err(FoldError::Cells { .. })));
    let other = Layout::pack([("w", Dtype::F32, vec![70_001])]).unwrap();
    let found = Accumulator::cut_sums(&other, &head, &cells, Range::new(0, other.bytes()));
    assert!(matches!(found, Err(FoldError::Layout(_))));
    assert!(Accumulator::of_part(layout.clone(), Precision::F32, Range::new(1, layout.bytes())).is_err());
    // Sums of one part cannot be merged by an accumulator of another part.
    let half = Range::new(0, STRIPE_BYTES);
    let (of_half, place) = cut(half, &cells).unwrap();
    let top =
        Accumulator::of_part(layout.clone(), Precision::Exact, Range::new(STRIPE_BYTES, layout.bytes()))
            .unwrap();
    assert!(top.merge_sums(&of_half, &cells[place]).is_err());
}

/// A head with arbitrary content and a valid checksum.
fn forged(head: &SumsHead, change: impl FnOnce(&mut Vec<u8>)) -> SumsHead {
    let mut bytes = head.encode();
    bytes.truncate(bytes.len() - 4);
    change(&mut bytes);
    let sum = thalweg_wire::checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    SumsHead::decode(&bytes).unwrap()
}

/// The same head without the checksum of the cells.
fn unread(head: &SumsHead) -> SumsHead {
    forged(head, |bytes| {
        bytes[7] = 0;
        bytes[24..28].fill(0);
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any tree of processes gives the same exact sums as one accumulator: means, weights, and the cells
    /// themselves.
    #[test]
    fn any_tree_of_exports_gives_the_same_bits(layout in layouts(), seed in any::<u64>()) {
        let layout = Arc::new(layout);
        let chunks = chunks(&layout, seed);
        let single = Accumulator::new(layout.clone(), Precision::Exact);
        let mut nodes: Vec<Accumulator> = (0..4).map(|_| Accumulator::new(layout.clone(), Precision::Exact)).collect();
        let mut random = Random::new(!seed);
        for (range, bytes, weight) in &chunks {
            single.fold(range.start, bytes, *weight).unwrap();
            nodes[random.below(4) as usize].fold(range.start, bytes, *weight).unwrap();
        }
        while nodes.len() > 1 {
            let child = nodes.swap_remove(random.below(nodes.len() as u64) as usize);
            let parent = random.below(nodes.len() as u64) as usize;
            let shift = random.below(9) as usize;
            let (head, cells) = sent(&child.export().unwrap(), shift);
            nodes[parent].merge_sums(&head, &cells[shift..]).unwrap();
        }
        prop_assert!(finish(&nodes[0]) == finish(&single));
        prop_assert_eq!(weights(&nodes[0]), weights(&single));
        prop_assert!(nodes[0].export().unwrap().cells == single.export().unwrap().cells);
    }

    /// Sums are cut into parts, and each part is merged where it is summed up. The bits are the same as if
    /// all were merged in one place.
    #[test]
    fn parts_of_sums_come_to_the_same_bits(layout in layouts(), seed in any::<u64>(), count in 1..6_usize) {
        let layout = Arc::new(layout);
        let single = Accumulator::new(layout.clone(), Precision::Exact);
        let nodes: Vec<Accumulator> = (0..3).map(|_| Accumulator::new(layout.clone(), Precision::Exact)).collect();
        let mut random = Random::new(!seed);
        for (range, bytes, weight) in chunks(&layout, seed) {
            single.fold(range.start, &bytes, weight).unwrap();
            nodes[random.below(3) as usize].fold(range.start, &bytes, weight).unwrap();
        }
        let mut model = vec![0x55; layout.bytes() as usize];
        for part in Accumulator::parts_of(&layout, count) {
            let top = Accumulator::of_part(layout.clone(), Precision::Exact, part).unwrap();
            for node in &nodes {
                let Sums { head, cells } = node.export().unwrap();
                let (head, place) = Accumulator::cut_sums(&layout, &head, &cells, part).unwrap();
                top.merge_sums(&SumsHead::decode(&head.encode()).unwrap(), &cells[place]).unwrap();
            }
            let bytes = &mut model[part.start as usize..part.end as usize];
            top.finish_part(part.start, bytes, Replacement::KeepLocal).unwrap();
        }
        prop_assert!(model == finish(&single));
    }

    /// In any precision, merging from bytes gives the same as merging from memory.
    #[test]
    fn bytes_merge_as_memory_does(layout in layouts(), seed in any::<u64>(), shift in 0..9_usize) {
        let layout = Arc::new(layout);
        for precision in ALL {
            let make = |seed| {
                let accumulator = Accumulator::new(layout.clone(), precision);
                // An earlier round leaves sums behind that have no meaning.
                accumulator.fold(0, &update(&layout, 9), 3.0).unwrap();
                accumulator.reset();
                for (range, bytes, weight) in chunks(&layout, seed) {
                    accumulator.fold(range.start, &bytes, weight).unwrap();
                }
                accumulator
            };
            let (here, there, child) = (make(seed), make(seed), make(seed ^ 0x7777));
            here.merge(&child).unwrap();
            let (head, cells) = sent(&child.export().unwrap(), shift);
            there.merge_sums(&head, &cells[shift..]).unwrap();
            prop_assert!(finish(&there) == finish(&here));
            prop_assert_eq!(weights(&there), weights(&here));
            let alone = Accumulator::new(layout.clone(), precision);
            alone.merge_sums(&head, &cells[shift..]).unwrap();
            prop_assert_eq!(alone.export().unwrap(), child.export().unwrap());
        }
    }

    /// If anything in the head or the cells is changed, nothing is merged.
    #[test]
    fn damaged_sums_change_nothing(seed in any::<u64>(), which in 0..3_usize, of_cells in any::<bool>()) {
        let (_, child) = one(ALL[which]);
        let (_, parent) = one(ALL[which]);
        let before = (finish(&parent), parent.weight_runs().unwrap());
        let mut random = Random::new(seed);
        let Sums { head, mut cells } = child.export().unwrap();
        let mut bytes = head.encode();
        let hit = if of_cells { &mut cells } else { &mut bytes };
        match random.below(3) {
            0 => {
                let at = random.below(hit.len() as u64) as usize;
                hit[at] ^= 1 << random.below(8);
            }
            1 => hit.truncate(random.below(hit.len() as u64) as usize),
            _ => hit.push(0),
        }
        let merged = SumsHead::decode(&bytes).and_then(|head| parent.merge_sums(&head, &cells));
        prop_assert!(matches!(merged, Err(FoldError::Damaged(_) | FoldError::Cells { .. })), "{:?}", merged);
        prop_assert_eq!((finish(&parent), parent.weight_runs().unwrap()), before);
    }

    /// Any bytes are a head or give an error. Any head and cells are merged completely or refused, without a
    /// panic.
    #[test]
    fn hostile_heads_and_cells_are_merged_whole_or_not_at_all(seed in any::<u64>(), which in 0..3_usize) {
        let (layout, child) = one(ALL[which]);
        let (_, parent) = one(ALL[which]);
        let before = (finish(&parent), parent.weight_runs().unwrap());
        let mut random = Random::new(seed);
        let Sums { head, mut cells } = unchecked(&child);
        let mut bytes = head.encode();
        bytes.truncate(bytes.len() - 4);
        for _ in 0..random.below(4) {
            let at = 32 + random.below(bytes.len() as u64 - 32) as usize;
            bytes[at] = [0, 0xff, random.next() as u8][random.below(3) as usize];
        }
        for _ in 0..random.below(4) {
            let at = random.below(cells.len() as u64) as usize;
            cells[at] = random.next() as u8;
        }
        let sum = thalweg_wire::checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        match SumsHead::decode(&bytes).and_then(|head| parent.merge_sums(&head, &cells)) {
            Ok(()) => drop(parent.finish(&mut vec![0; layout.bytes() as usize], Replacement::Zero).unwrap()),
            Err(_) => prop_assert_eq!((finish(&parent), parent.weight_runs().unwrap()), before),
        }
    }
}

fn unchecked(accumulator: &Accumulator) -> Sums {
    let Sums { head, cells } = accumulator.export().unwrap();
    Sums { head: unread(&head), cells }
}

#[test]
fn foreign_sums_are_refused() {
    let (_, child) = one(Precision::Exact);
    let sums = child.export().unwrap();
    let other = Arc::new(Layout::pack([("w", Dtype::F32, vec![70_000])]).unwrap());
    let refused = Accumulator::new(other, Precision::Exact).merge_sums(&sums.head, &sums.cells).unwrap_err();
    assert!(matches!(refused, FoldError::Layout(_)) && refused.to_string().contains("hash"), "{refused}");
    let refused = one(Precision::F32).1.merge_sums(&sums.head, &sums.cells).unwrap_err();
    assert_eq!(refused, FoldError::Precision { ours: "f32", theirs: "exact" });
    let bytes = child.cells_bytes();
    let short = child.merge_sums(&sums.head, &sums.cells[8..]).unwrap_err();
    assert_eq!(short, FoldError::Cells { found: bytes - 8, bytes });
    let lie = forged(&sums.head, |head| head[16] ^= 64);
    assert!(matches!(child.merge_sums(&lie, &sums.cells), Err(FoldError::Cells { .. })));
    assert!(matches!(child.export_into(&mut [0; 64]), Err(FoldError::Cells { found: 64, .. })));
}

#[test]
fn ranges_of_weight_lie_within_the_layout_and_between_elements() {
    let (layout, child) = one(Precision::F32);
    let sums = child.export().unwrap();
    let last = 32 + 44 * (sums.head.runs().len() - 1);
    for end in [layout.bytes() + 8, layout.bytes() - 1] {
        let lie = forged(&sums.head, |head| head[last + 8..last + 16].copy_from_slice(&end.to_le_bytes()));
        let refused = child.merge_sums(&lie, &sums.cells).unwrap_err();
        assert!(refused.to_string().contains("ends beyond the layout or within an element"), "{refused}");
    }
}

#[test]
fn sums_no_contribution_comes_to_are_refused() {
    for precision in ALL {
        let (_, child) = one(precision);
        let (_, parent) = one(precision);
        let before = finish(&parent);
        let good = unchecked(&child);
        // The first stripe is valid, the second is not.
        let values: &[[u8; 8]] = match precision {
            Precision::F32 => &[pair(f32::NAN), pair(f32::INFINITY), pair(-(2_f32.powi(103)))],
            Precision::F64 => {
                &[f64::NAN.to_le_bytes(), f64::NEG_INFINITY.to_le_bytes(), 2_f64.powi(1003).to_le_bytes()]
            }
            Precision::Exact => &[(1_i64 << 40).to_le_bytes(), i64::MIN.to_le_bytes()],
        };
        let first =
            good.cells.len() * 3 / 4 / 64 * 64 - if precision == Precision::Exact { 200_000 } else { 0 };
        for value in values {
            let mut cells = good.cells.clone();
            cells[first..first + 8].copy_from_slice(value);
            let refused = parent.merge_sums(&good.head, &cells).unwrap_err();
            assert!(refused.to_string().contains("larger than its contributions"), "{precision:?} {refused}");
            assert!(finish(&parent) == before);
        }
        parent.merge_sums(&good.head, &good.cells).unwrap();
    }
}

fn pair(value: f32) -> [u8; 8] {
    [value.to_le_bytes(), value.to_le_bytes()].concat().try_into().unwrap()
}

/// The sums are possible for their contributions, but exceed what the tensor's type can hold.
#[test]
fn sums_whose_mean_is_not_finite_are_refused() {
    let layout = Arc::new(Layout::pack([("h", Dtype::F16, vec![80_000])]).unwrap());
    let most = [0xff, 0x7b].repeat(80_000); // 65504, the largest f16
    for precision in ALL {
        let child = Accumulator::new(layout.clone(), precision);
        for weight in [0.1, 2_f64.powi(-30), 3.0, 1e6] {
            child.fold(0, &most, weight).unwrap();
        }
        let mut sums = unchecked(&child);
        let parent = Accumulator::new(layout.clone(), precision);
        parent.merge_sums(&sums.head, &sums.cells).unwrap();
        assert!(finish(&parent) == most, "{precision:?}: the largest are no lie");
        // Twice as much in the last element. With exact sums, its first word is before all second words of
        // its stripe.
        let (from_end, twice) = match precision {
            Precision::F32 => (4, (2e6_f32 * 65504.0).to_le_bytes().to_vec()),
            Precision::F64 => (8, (2e6 * 65504.0_f64).to_le_bytes().to_vec()),
            Precision::Exact => (8 * (80_000 - 65_536) + 8, (65_700_000_000_i64).to_le_bytes().to_vec()),
        };
        let at = sums.cells.len() - from_end;
        sums.cells[at..at + twice.len()].copy_from_slice(&twice);
        let refused = parent.merge_sums(&sums.head, &sums.cells).unwrap_err();
        assert!(refused.to_string().contains("contributions can make it"), "{precision:?} {refused}");
        assert!(finish(&parent) == most);
    }
}

#[test]
fn what_exact_sums_cannot_hold_is_refused_also_from_afar() {
    let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![70_000])]).unwrap());
    let full = Accumulator::new(layout.clone(), Precision::Exact);
    let large = f32s(&vec![2_f32.powi(50); 70_000]);
    for _ in 0..1 << 11 {
        full.fold(4 * 60_000, &large[4 * 60_000..], 1.0).unwrap();
    }
    let sums = full.export().unwrap();
    assert_eq!(sums.head.runs()[0].magnitude, 1 << 61);
    let parent = Accumulator::new(layout, Precision::Exact);
    parent.merge_sums(&sums.head, &sums.cells).unwrap();
    parent.merge_sums(&sums.head, &sums.cells).unwrap();
    let before = finish(&parent);
    assert_eq!(parent.merge_sums(&sums.head, &sums.cells), Err(FoldError::Sums { offset: STRIPE_BYTES }));
    assert_eq!(parent.merge(&full), Err(FoldError::Sums { offset: STRIPE_BYTES }));
    assert!(finish(&parent) == before);
}

#[test]
fn contributions_that_cannot_be_counted_are_refused() {
    let (_, child) = one(Precision::F64);
    let good = child.export().unwrap();
    let most = MAX_CONTRIBUTIONS;
    let many = WeightRun { contributions: most, units: u128::from(most) << 60, ..good.head.runs()[0] };
    let lie = forged(&good.head, |head| {
        head.truncate(32);
        head[28..32].copy_from_slice(&1_u32.to_le_bytes());
        head.extend(many.bytes.start.to_le_bytes());
        head.extend(many.bytes.end.to_le_bytes());
        head.extend(many.contributions.to_le_bytes());
        head.extend(0_u64.to_le_bytes());
        head.extend(many.units.to_le_bytes());
    });
    assert_eq!(lie.contributions(), most);
    assert_eq!(child.merge_sums(&lie, &good.cells), Err(FoldError::Contributions { offset: 0 }));
    child.merge_sums(&good.head, &good.cells).unwrap();
}

/// Ten thousand clients in a hundred branches: the weight and the mean are exact.
#[test]
fn ten_thousand_honest_clients_fit_a_tree() {
    let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![3])]).unwrap());
    let root = Accumulator::new(layout.clone(), Precision::Exact);
    let bytes = f32s(&[60_000.0, -60_000.0, 1e-9]);
    for _ in 0..100 {
        let branch = Accumulator::new(layout.clone(), Precision::Exact);
        (0..100).for_each(|_| assert!(branch.fold(0, &bytes, 600.1).is_ok()));
        let (head, cells) = sent(&branch.export().unwrap(), 0);
        root.merge_sums(&head, &cells).unwrap();
    }
    assert_eq!(finish(&root), bytes);
    let runs = root.weight_runs().unwrap();
    let units = (600.1 * 2_f64.powi(60)) as u128 * 10_000;
    assert_eq!((runs.len(), runs[0].contributions, runs[0].units), (1, 10_000, units));
    assert_eq!(root.weights().unwrap(), [(Range::new(0, 12), runs[0].weight())]);
}

#[test]
fn too_many_ranges_of_weight_are_refused_also_when_merged() {
    let layout = Arc::new(Layout::pack([("w", Dtype::U8, vec![STRIPE_BYTES])]).unwrap());
    let crumbs = |first: u64| {
        let accumulator = Accumulator::new(layout.clone(), Precision::F32);
        let starts = (first..).step_by(4).take(MAX_RUNS / 2 - 2);
        starts.for_each(|at| assert!(accumulator.fold(at, &[3], 1.0).is_ok()));
        accumulator
    };
    let (parent, child, same) = (crumbs(1), crumbs(3), crumbs(1));
    let before = finish(&parent);
    let sums = child.export().unwrap();
    assert_eq!(parent.merge_sums(&sums.head, &sums.cells), Err(FoldError::Fragmented { offset: 0 }));
    assert_eq!(parent.merge(&child), Err(FoldError::Fragmented { offset: 0 }));
    assert!(finish(&parent) == before);
    parent.merge(&same).unwrap();
    let sums = same.export().unwrap();
    parent.merge_sums(&sums.head, &sums.cells).unwrap();
    assert_eq!(parent.weight_runs().unwrap()[0].contributions, 3);
}

#[test]
fn sums_of_nothing_are_merged_too() {
    let layout = Arc::new(Layout::pack([("none", Dtype::F32, vec![0])]).unwrap());
    let empty = Accumulator::new(layout, Precision::F32);
    let sums = empty.export().unwrap();
    assert_eq!((sums.cells.len(), sums.head.runs().len(), sums.head.contributions()), (0, 0, 0));
    empty.merge_sums(&sums.head, &sums.cells).unwrap();
    let (_, child) = one(Precision::Exact);
    child.reset();
    let sums = child.export().unwrap();
    assert!(sums.cells.iter().all(|&byte| byte == 0) && sums.head.runs().is_empty());
}
