//! Layouts, updates and chunkings for the tests, all from seeds.
#![allow(dead_code, clippy::unwrap_used)]

use proptest::prelude::*;
use thalweg_fold::reference;
use thalweg_rng::Rng;
use thalweg_wire::{Dtype, Layout, Range};

/// A seeded sequence of random numbers.
pub struct Random(Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Rng::seeded(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.draw()
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// About -1 to 1.
    pub fn value(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Up to six tensors of any dtypes. Some are so large that they span several stripes.
pub fn layouts() -> impl Strategy<Value = Layout> {
    let elements = prop_oneof![4 => 0..300_u64, 1 => Just(1_u64), 1 => 17_000..20_000_u64];
    prop::collection::vec((0..Dtype::ALL.len(), elements), 1..6).prop_map(|tensors| {
        let named = tensors
            .into_iter()
            .enumerate()
            .map(|(i, (dtype, n))| (format!("t{i}"), Dtype::ALL[dtype], vec![n]));
        Layout::pack(named).unwrap()
    })
}

/// The bytes of an update: floats between about -8 and 8, integers with any bits.
pub fn update(layout: &Layout, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; layout.bytes() as usize];
    for tensor in layout.tensors() {
        let (start, end) = (tensor.offset as usize, tensor.range().end as usize);
        for element in bytes[start..end].chunks_exact_mut(tensor.dtype.size() as usize) {
            match tensor.dtype {
                dtype if dtype.is_float() => reference::encode(dtype, 8.0 * random.value(), element),
                Dtype::Bool => element[0] = random.below(2) as u8,
                _ => element.copy_from_slice(&random.next().to_le_bytes()[..element.len()]),
            }
        }
    }
    bytes
}

/// The same with all floats positive. It shows how large rounding errors may be.
pub fn magnitudes(layout: &Layout, update: &[u8]) -> Vec<u8> {
    let mut bytes = update.to_vec();
    for tensor in layout.tensors().iter().filter(|t| t.dtype.is_float()) {
        let (start, end) = (tensor.offset as usize, tensor.range().end as usize);
        for element in bytes[start..end].chunks_exact_mut(tensor.dtype.size() as usize) {
            element[tensor.dtype.size() as usize - 1] &= 0x7f;
        }
    }
    bytes
}

/// Cuts `0..total` at random places. Some of them are at odd bytes.
pub fn cuts(random: &mut Random, total: u64, most: u64) -> Vec<Range> {
    let mut borders: Vec<u64> = (0..random.below(most)).map(|_| random.below(total + 1)).collect();
    borders.iter_mut().for_each(|b| *b = if *b % 3 == 0 { *b } else { *b / 64 * 64 });
    borders.extend([0, total]);
    borders.sort_unstable();
    borders.windows(2).map(|pair| Range::new(pair[0], pair[1])).collect()
}

pub fn slice(bytes: &[u8], range: Range) -> &[u8] {
    &bytes[range.start as usize..range.end as usize]
}

/// The values of a float tensor within an update's bytes.
pub fn values(layout: &Layout, tensor: usize, bytes: &[u8]) -> Vec<f64> {
    let tensor = &layout.tensors()[tensor];
    let elements = slice(bytes, tensor.range()).chunks_exact(tensor.dtype.size() as usize);
    elements.map(|e| reference::decode(tensor.dtype, e)).collect()
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn as_f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
