//! The sums ("cells") of one tensor's elements within one stripe, and their place in the stripe's memory.

use std::ops::Range;

use fearless_simd::Level;
use thalweg_wire::Dtype;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::kernels::{self, Fixed};
use crate::weights::Weighted;
use crate::{reference, Precision};

/// The sums of each tensor begin at a multiple of this many bytes: a cache line.
pub const SUMS_ALIGN: usize = 64;

/// In what form the sums of a tensor are stored. It depends on the dtype and the precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CellFormat {
    F32,
    F64,
    /// Fixed point, two words for each sum (see [`crate::exact`]): first all first words, then all second
    /// words.
    Fixed,
    /// The largest integers so far, in the tensor's own type of this many bytes.
    Largest(usize),
}

impl CellFormat {
    fn of(dtype: Dtype, precision: Precision) -> Self {
        match (dtype, precision) {
            _ if !dtype.is_float() => Self::Largest(dtype.size() as usize),
            (_, Precision::Exact) => Self::Fixed,
            (Dtype::F64, _) | (_, Precision::F64) => Self::F64,
            _ => Self::F32,
        }
    }

    /// Bytes of one word of a sum, and how many words a sum has.
    fn words(self) -> (usize, usize) {
        match self {
            Self::F32 => (4, 1),
            Self::F64 => (8, 1),
            Self::Fixed => (8, 2),
            Self::Largest(size) => (size, 1),
        }
    }
}

/// Where the sums of some elements are in the memory of their stripe.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    format: CellFormat,
    /// First byte, a multiple of [`SUMS_ALIGN`].
    start: usize,
    /// One past its last byte.
    pub(crate) end: usize,
    elements: usize,
}

impl Place {
    /// The first aligned place from byte `at` on.
    pub(crate) fn from(at: usize, dtype: Dtype, precision: Precision, elements: usize) -> Self {
        let (format, start) = (CellFormat::of(dtype, precision), at.next_multiple_of(SUMS_ALIGN));
        let (size, words) = format.words();
        Self { format, start, end: start + elements * size * words, elements }
    }

    /// Where the words of some elements' sums are: one range for each word of a sum.
    pub(crate) fn words(&self, elements: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (size, words) = self.format.words();
        let (start, all) = (self.start, self.elements * size);
        (0..words).map(move |word| {
            let first = start + word * all;
            first + elements.start * size..first + elements.end * size
        })
    }

    /// The sums at this place, to be read.
    pub(crate) fn cells<'a>(&self, memory: &'a [u8]) -> Cells<'a> {
        let bytes = &memory[self.start..self.end];
        match self.format {
            CellFormat::F32 => Cells::F32(numbers(bytes)),
            CellFormat::F64 => Cells::F64(numbers(bytes)),
            CellFormat::Fixed => {
                let (whole, part) = numbers(bytes).split_at(self.elements);
                Cells::Fixed { whole, part }
            }
            CellFormat::Largest(_) => Cells::Largest(bytes),
        }
    }

    /// The sums at this place, to be changed.
    pub(crate) fn cells_mut<'a>(&self, memory: &'a mut [u8]) -> CellsMut<'a> {
        let bytes = &mut memory[self.start..self.end];
        match self.format {
            CellFormat::F32 => CellsMut::F32(numbers_mut(bytes)),
            CellFormat::F64 => CellsMut::F64(numbers_mut(bytes)),
            CellFormat::Fixed => {
                let (whole, part) = numbers_mut(bytes).split_at_mut(self.elements);
                CellsMut::Fixed(Fixed { whole, part })
            }
            CellFormat::Largest(_) => CellsMut::Largest(bytes),
        }
    }
}

const ALIGNED: &str = "sums begin at multiples of 64 bytes of memory that is aligned";

fn numbers<T: FromBytes + Immutable>(bytes: &[u8]) -> &[T] {
    <[T]>::ref_from_bytes(bytes).expect(ALIGNED)
}

fn numbers_mut<T: FromBytes + IntoBytes>(bytes: &mut [u8]) -> &mut [T] {
    <[T]>::mut_from_bytes(bytes).expect(ALIGNED)
}

/// Sums, in the format that dtype and precision ask for. What they hold before the first contribution means nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cells<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    Fixed { whole: &'a [i64], part: &'a [i64] },
    Largest(&'a [u8]),
}

/// Like [`Cells`], but mutable.
#[derive(Debug)]
pub(crate) enum CellsMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    Fixed(Fixed<'a>),
    Largest(&'a mut [u8]),
}

impl CellsMut<'_> {
    /// Folds whole elements. The first one is element `at`. `fresh`: nothing was folded into these elements
    /// before, so overwrite their sums.
    pub(crate) fn fold(self, level: Level, dtype: Dtype, at: usize, bytes: &[u8], weight: f64, fresh: bool) {
        let size = dtype.size() as usize;
        let range = at..at + bytes.len() / size;
        let wide = dtype == Dtype::F64;
        match self {
            Self::F32(cells) => kernels::fold_narrow(level, dtype, &mut cells[range], bytes, weight, fresh),
            Self::F64(cells) if wide => kernels::fold_wide(level, &mut cells[range], bytes, weight, fresh),
            Self::F64(cells) => kernels::fold_narrow(level, dtype, &mut cells[range], bytes, weight, fresh),
            Self::Fixed(cells) => {
                kernels::fold_fixed(level, dtype, cells.within(range), bytes, weight, fresh);
            }
            Self::Largest(cells) => {
                kernels::fold_largest(level, dtype, &mut cells[in_bytes(range, size)], bytes, fresh);
            }
        }
    }

    /// Adds the sums of the elements `range` of `other`, which has the same dtype and precision. `fresh`:
    /// overwrite instead.
    pub(crate) fn merge(
        self,
        level: Level,
        dtype: Dtype,
        range: Range<usize>,
        other: Cells<'_>,
        fresh: bool,
    ) {
        match (self, other) {
            (Self::F32(cells), Cells::F32(other)) => {
                kernels::merge(level, &mut cells[range.clone()], &other[range], fresh);
            }
            (Self::F64(cells), Cells::F64(other)) => {
                kernels::merge(level, &mut cells[range.clone()], &other[range], fresh);
            }
            (Self::Fixed(cells), Cells::Fixed { whole, part }) => {
                let other = (&whole[range.clone()], &part[range.clone()]);
                kernels::merge_fixed(level, cells.within(range), other, fresh);
            }
            (Self::Largest(cells), Cells::Largest(other)) => {
                let range = in_bytes(range, dtype.size() as usize);
                kernels::fold_largest(level, dtype, &mut cells[range.clone()], &other[range], fresh);
            }
            _ => debug_assert!(false, "accumulators of one layout and precision have the same cells"),
        }
    }
}

impl Cells<'_> {
    /// Writes the means of the elements from number `at` on. `weight` is the sum of their weights.
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

    /// The first of the elements `range` whose mean is not finite, and that mean. Fixed-point sums are always
    /// finite. So are their means, since these are no larger than the values that were folded.
    pub(crate) fn not_finite(
        &self,
        level: Level,
        dtype: Dtype,
        range: Range<usize>,
        weight: f64,
    ) -> Option<(usize, f64)> {
        // A mean grows with the magnitude of its sum. So if the mean of the largest sum is finite, all are.
        let peak = match self {
            Self::F32(cells) => {
                let peak = kernels::peak_f32(level, &cells[range.clone()]);
                Cells::F32(&[peak]).mean(level, dtype, 0, weight)
            }
            Self::F64(cells) => {
                let peak = kernels::peak_f64(level, &cells[range.clone()]);
                Cells::F64(&[peak]).mean(level, dtype, 0, weight)
            }
            Self::Fixed { .. } | Self::Largest(_) => return None,
        };
        if peak.is_finite() {
            return None;
        }
        let means = range.map(|at| (at, self.mean(level, dtype, at, weight)));
        means.into_iter().find(|(_, mean)| !mean.is_finite())
    }

    /// Whether the elements `range` may be the sums of the contributions of `part`, each below `limit`, and
    /// have finite means. If all merged sums pass this check, their common mean is finite too, since it is no
    /// larger than the largest of their means.
    pub(crate) fn fit(
        self,
        level: Level,
        dtype: Dtype,
        mut range: Range<usize>,
        part: &Weighted,
        limit: f64,
    ) -> bool {
        // Twice the limit, since sums are rounded.
        let (largest, weight) = (2.0 * limit * f64::from(part.contributions), part.weight());
        let peak = match self {
            Self::F32(cells) => f64::from(kernels::peak_f32(level, &cells[range.clone()])),
            Self::F64(cells) => kernels::peak_f64(level, &cells[range.clone()]),
            Self::Fixed { whole, part: fraction } => {
                let cells = (&whole[range.clone()], &fraction[range.clone()]);
                let most = Cells::Fixed { whole: &[part.magnitude as i64], part: &[0] };
                let small = most.mean(level, dtype, 0, weight).is_finite();
                return kernels::fixed_fit(level, cells, part.magnitude)
                    && (small || range.all(|at| self.mean(level, dtype, at, weight).is_finite()));
            }
            Self::Largest(_) => return true,
        };
        peak <= largest && self.not_finite(level, dtype, range, weight).is_none()
    }

    /// The mean of one element, rounded to its type.
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
        /// Dividing in f32 must give the same bits as in f64, and must not be used for weights that are no
        /// f32.
        #[test]
        fn means_are_rounded_once(sum in any::<f32>(), samples in 1..1_u64 << 30, quarters in any::<bool>()) {
            let weight = samples as f64 / if quarters { 4.0 } else { 1.0 };
            let mut bytes = [0; 4];
            Cells::F32(&[sum]).write_mean(Level::new(), Dtype::F32, 0, &mut bytes, weight);
            let expected = (f64::from(sum) / weight) as f32;
            let found = f32::from_le_bytes(bytes);
            prop_assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
        }
    }
}
