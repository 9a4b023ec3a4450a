//! The sums of one tensor's elements within one stripe.

use std::ops::Range;

use fearless_simd::Level;
use thalweg_wire::Dtype;

use crate::kernels::{self, Fixed};
use crate::{reference, Precision};

/// Sums, in the form that dtype and precision ask for. What they hold before the first contribution means nothing.
#[derive(Debug)]
pub(crate) enum Cells {
    F32(Vec<f32>),
    F64(Vec<f64>),
    /// The two words of each sum, see [`crate::exact`].
    Fixed {
        whole: Vec<i64>,
        part: Vec<i64>,
    },
    /// The largest integers so far, in the tensor's own bytes.
    Largest(Vec<u8>),
}

impl Cells {
    /// Zeroed pages that the kernel hands out on first touch, so the first round is slower than the next ones. Huge
    /// pages would help, but asking for them takes an allocator of one's own, and with it unsafe code.
    pub(crate) fn new(dtype: Dtype, precision: Precision, elements: usize) -> Self {
        match (dtype, precision) {
            _ if !dtype.is_float() => Self::Largest(vec![0; elements * dtype.size() as usize]),
            (_, Precision::Exact) => Self::Fixed { whole: vec![0; elements], part: vec![0; elements] },
            (Dtype::F64, _) | (_, Precision::F64) => Self::F64(vec![0.0; elements]),
            _ => Self::F32(vec![0.0; elements]),
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::F32(cells) => size_of_val(cells.as_slice()),
            Self::F64(cells) => size_of_val(cells.as_slice()),
            Self::Fixed { whole, part } => size_of_val(whole.as_slice()) + size_of_val(part.as_slice()),
            Self::Largest(cells) => cells.len(),
        }
    }

    /// Folds whole elements, the first of which is number `at`; `fresh` if nothing was folded there before.
    pub(crate) fn fold(
        &mut self,
        level: Level,
        dtype: Dtype,
        at: usize,
        bytes: &[u8],
        weight: f64,
        fresh: bool,
    ) {
        let size = dtype.size() as usize;
        let range = at..at + bytes.len() / size;
        let wide = dtype == Dtype::F64;
        match self {
            Self::F32(cells) => kernels::fold_narrow(level, dtype, &mut cells[range], bytes, weight, fresh),
            Self::F64(cells) if wide => kernels::fold_wide(level, &mut cells[range], bytes, weight, fresh),
            Self::F64(cells) => kernels::fold_narrow(level, dtype, &mut cells[range], bytes, weight, fresh),
            Self::Fixed { whole, part } => {
                let cells = Fixed { whole: &mut whole[range.clone()], part: &mut part[range] };
                kernels::fold_fixed(level, dtype, cells, bytes, weight, fresh);
            }
            Self::Largest(cells) => {
                kernels::fold_largest(level, dtype, &mut cells[in_bytes(range, size)], bytes, fresh);
            }
        }
    }

    /// Adds the sums of elements `range` of `other`, which has the same dtype and precision.
    pub(crate) fn merge(
        &mut self,
        level: Level,
        dtype: Dtype,
        range: Range<usize>,
        other: &Cells,
        fresh: bool,
    ) {
        match (self, other) {
            (Self::F32(cells), Self::F32(other)) => {
                kernels::merge(level, &mut cells[range.clone()], &other[range], fresh);
            }
            (Self::F64(cells), Self::F64(other)) => {
                kernels::merge(level, &mut cells[range.clone()], &other[range], fresh);
            }
            (Self::Fixed { whole, part }, Self::Fixed { whole: more, part: rest }) => {
                let cells = Fixed { whole: &mut whole[range.clone()], part: &mut part[range.clone()] };
                kernels::merge_fixed(level, cells, (&more[range.clone()], &rest[range]), fresh);
            }
            (Self::Largest(cells), Self::Largest(other)) => {
                let range = in_bytes(range, dtype.size() as usize);
                kernels::fold_largest(level, dtype, &mut cells[range.clone()], &other[range], fresh);
            }
            _ => debug_assert!(false, "accumulators of one layout and precision have the same cells"),
        }
    }

    /// Writes the means of the elements from number `at` on, whose weights sum up to `weight`.
    pub(crate) fn write_mean(&self, level: Level, dtype: Dtype, at: usize, bytes: &mut [u8], weight: f64) {
        let size = dtype.size() as usize;
        let range = at..at + bytes.len() / size;
        let single = weight as f32;
        match self {
            Self::F32(cells) if dtype == Dtype::F32 && f64::from(single) == weight => {
                kernels::mean_f32(level, &cells[range], bytes, single);
            }
            Self::F32(cells) => kernels::mean_narrow(level, dtype, &cells[range], bytes, weight),
            Self::F64(cells) if dtype == Dtype::F64 => {
                kernels::mean_wide(level, &cells[range], bytes, weight)
            }
            Self::F64(cells) => kernels::mean_narrow(level, dtype, &cells[range], bytes, weight),
            Self::Fixed { whole, part } => {
                kernels::mean_fixed(level, dtype, (&whole[range.clone()], &part[range]), bytes, weight);
            }
            Self::Largest(cells) => bytes.copy_from_slice(&cells[in_bytes(range, size)]),
        }
    }

    /// The first of elements `range` whose mean is not finite, and the mean. Fixed-point sums are finite, and so are
    /// their means: no larger than what was folded.
    pub(crate) fn not_finite(
        &self,
        level: Level,
        dtype: Dtype,
        range: Range<usize>,
        weight: f64,
    ) -> Option<(usize, f64)> {
        // A mean rises with the magnitude of its sum: only if the largest is not finite is any.
        let peak = match self {
            Self::F32(cells) => Self::F32(vec![kernels::peak_f32(level, &cells[range.clone()])]),
            Self::F64(cells) => Self::F64(vec![kernels::peak_f64(level, &cells[range.clone()])]),
            Self::Fixed { .. } | Self::Largest(_) => return None,
        };
        if peak.mean(level, dtype, 0, weight).is_finite() {
            return None;
        }
        let means = range.map(|at| (at, self.mean(level, dtype, at, weight)));
        means.into_iter().find(|(_, mean)| !mean.is_finite())
    }

    /// One element's mean, as it is written.
    fn mean(&self, level: Level, dtype: Dtype, at: usize, weight: f64) -> f64 {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..dtype.size() as usize];
        self.write_mean(level, dtype, at, bytes, weight);
        reference::decode(dtype, bytes)
    }
}

fn in_bytes(range: Range<usize>, size: usize) -> Range<usize> {
    range.start * size..range.end * size
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The shortcut of dividing in f32 shows in no bit, and is not taken for weights that are no f32.
        #[test]
        fn means_are_rounded_once(sum in any::<f32>(), samples in 1..1_u64 << 30, quarters in any::<bool>()) {
            let weight = samples as f64 / if quarters { 4.0 } else { 1.0 };
            let mut bytes = [0; 4];
            Cells::F32(vec![sum]).write_mean(Level::new(), Dtype::F32, 0, &mut bytes, weight);
            let expected = (f64::from(sum) / weight) as f32;
            let found = f32::from_le_bytes(bytes);
            prop_assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
        }
    }
}
