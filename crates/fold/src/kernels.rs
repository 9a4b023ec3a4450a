//! The loops over elements. Each loop is compiled for plain SSE2 and for AVX2 (or NEON), and one version is
//! chosen at run time.
//!
//! Multiplication and addition always round separately (no fused multiply-add). So the instruction set of a
//! machine does not change any bit of the result.

use fearless_simd::{dispatch, Level};
use thalweg_wire::Dtype;

use crate::exact;
use crate::floats::{Bf16, Float, F16, F32, F64, F8E4M3, F8E5M2};

/// A running sum: f32 or f64.
pub(crate) trait Cell<V>: Copy {
    /// The contribution of an element.
    fn term(value: V, weight: f64) -> Self;
    fn plus(self, other: Self) -> Self;
    fn value(self) -> f64;
}

impl Cell<f32> for f32 {
    #[inline(always)]
    fn term(value: f32, weight: f64) -> f32 {
        value * weight as f32
    }
    #[inline(always)]
    fn plus(self, other: f32) -> f32 {
        self + other
    }
    #[inline(always)]
    fn value(self) -> f64 {
        f64::from(self)
    }
}

impl<V: Into<f64>> Cell<V> for f64 {
    #[inline(always)]
    fn term(value: V, weight: f64) -> f64 {
        value.into() * weight
    }
    #[inline(always)]
    fn plus(self, other: f64) -> f64 {
        self + other
    }
    #[inline(always)]
    fn value(self) -> f64 {
        self
    }
}

/// Runs `$kernel` with the type of `$dtype`, for types whose elements fit f32.
macro_rules! by_narrow_type {
    ($level:expr, $dtype:expr, $kernel:ident, $cell:tt, $arguments:tt) => {
        match $dtype {
            Dtype::F32 => by_narrow_type!(@run $level, $kernel, F32, $cell, $arguments),
            Dtype::F16 => by_narrow_type!(@run $level, $kernel, F16, $cell, $arguments),
            Dtype::BF16 => by_narrow_type!(@run $level, $kernel, Bf16, $cell, $arguments),
            Dtype::F8E4M3 => by_narrow_type!(@run $level, $kernel, F8E4M3, $cell, $arguments),
            Dtype::F8E5M2 => by_narrow_type!(@run $level, $kernel, F8E5M2, $cell, $arguments),
            _ => debug_assert!(false, "{} has cells of another kind", $dtype),
        }
    };
    (@run $level:expr, $kernel:ident, $type:ty, $cell:tt, $arguments:tt) => {
        dispatch!($level, _simd => $kernel::<$type, $cell> $arguments)
    };
}

/// Like [`by_narrow_type`], but for f64 too.
macro_rules! by_type {
    ($level:expr, $dtype:expr, $kernel:ident, $arguments:tt) => {
        match $dtype {
            Dtype::F64 => dispatch!($level, _simd => $kernel::<F64> $arguments),
            Dtype::F32 => dispatch!($level, _simd => $kernel::<F32> $arguments),
            Dtype::F16 => dispatch!($level, _simd => $kernel::<F16> $arguments),
            Dtype::BF16 => dispatch!($level, _simd => $kernel::<Bf16> $arguments),
            Dtype::F8E4M3 => dispatch!($level, _simd => $kernel::<F8E4M3> $arguments),
            Dtype::F8E5M2 => dispatch!($level, _simd => $kernel::<F8E5M2> $arguments),
            _ => debug_assert!(false, "{} has cells of another kind", $dtype),
        }
    };
}

/// Adds `weight` times each element to its cell. `fresh`: overwrites the cell instead, whatever it holds.
pub(crate) fn fold_narrow<C: Cell<f32>>(
    level: Level,
    dtype: Dtype,
    cells: &mut [C],
    bytes: &[u8],
    weight: f64,
    fresh: bool,
) {
    by_narrow_type!(level, dtype, combine, C, (cells, bytes, weight, fresh));
}

/// Like [`fold_narrow`], for f64 elements.
pub(crate) fn fold_wide<C: Cell<f64>>(level: Level, cells: &mut [C], bytes: &[u8], weight: f64, fresh: bool) {
    dispatch!(level, _simd => combine::<F64, C>(cells, bytes, weight, fresh));
}

#[inline(always)]
fn combine<F: Float, C: Cell<F::Value>>(cells: &mut [C], bytes: &[u8], weight: f64, fresh: bool) {
    let pairs = cells.iter_mut().zip(bytes.chunks_exact(F::SIZE));
    if fresh {
        pairs.for_each(|(cell, element)| *cell = C::term(F::read(element), weight));
    } else {
        pairs.for_each(|(cell, element)| *cell = cell.plus(C::term(F::read(element), weight)));
    }
}

/// Writes cells divided by `weight` as elements.
pub(crate) fn mean_narrow<C: Cell<f32>>(
    level: Level,
    dtype: Dtype,
    cells: &[C],
    bytes: &mut [u8],
    weight: f64,
) {
    by_narrow_type!(level, dtype, divide, C, (cells, bytes, weight));
}

/// Like [`mean_narrow`], for f64 elements.
pub(crate) fn mean_wide<C: Cell<f64>>(level: Level, cells: &[C], bytes: &mut [u8], weight: f64) {
    dispatch!(level, _simd => divide::<F64, C>(cells, bytes, weight));
}

#[inline(always)]
fn divide<F: Float, C: Cell<F::Value>>(cells: &[C], bytes: &mut [u8], weight: f64) {
    for (cell, element) in cells.iter().zip(bytes.chunks_exact_mut(F::SIZE)) {
        F::write(cell.value() / weight, element);
    }
}

/// Like [`mean_narrow`], from f32 to f32 with a weight that is an f32. Dividing in f32 gives the same bits as
/// dividing in f64 and rounding to f32, since f64 has more than twice the digits. It is twice as fast.
pub(crate) fn mean_f32(level: Level, cells: &[f32], bytes: &mut [u8], weight: f32) {
    dispatch!(level, _simd => divide_f32(cells, bytes, weight));
}

#[inline(always)]
fn divide_f32(cells: &[f32], bytes: &mut [u8], weight: f32) {
    for (cell, element) in cells.iter().zip(bytes.chunks_exact_mut(4)) {
        element.copy_from_slice(&(cell / weight).to_le_bytes());
    }
}

/// Adds the cells of `other` to cells. `fresh`: overwrites them instead.
pub(crate) fn merge<C: Cell<f32>>(level: Level, cells: &mut [C], other: &[C], fresh: bool) {
    if fresh {
        cells.copy_from_slice(other);
    } else {
        dispatch!(level, _simd => add(cells, other));
    }
}

#[inline(always)]
fn add<C: Cell<f32>>(cells: &mut [C], other: &[C]) {
    for (cell, other) in cells.iter_mut().zip(other) {
        *cell = cell.plus(*other);
    }
}

/// Fixed-point sums: the first words and the second words.
#[derive(Debug)]
pub(crate) struct Fixed<'a> {
    pub(crate) whole: &'a mut [i64],
    pub(crate) part: &'a mut [i64],
}

impl<'a> Fixed<'a> {
    /// The cells of some elements.
    pub(crate) fn within(self, elements: std::ops::Range<usize>) -> Self {
        Self { whole: &mut self.whole[elements.clone()], part: &mut self.part[elements] }
    }
}

/// Like [`fold_narrow`], for fixed-point cells and floats of any type.
pub(crate) fn fold_fixed(
    level: Level,
    dtype: Dtype,
    cells: Fixed<'_>,
    bytes: &[u8],
    weight: f64,
    fresh: bool,
) {
    by_type!(level, dtype, combine_fixed, (cells, bytes, weight, fresh));
}

#[inline(always)]
fn combine_fixed<F: Float>(cells: Fixed<'_>, bytes: &[u8], weight: f64, fresh: bool) {
    let words = cells.whole.iter_mut().zip(cells.part.iter_mut());
    let pairs = words.zip(bytes.chunks_exact(F::SIZE));
    if fresh {
        pairs.for_each(|((whole, part), element)| {
            (*whole, *part) = exact::first(F::read(element).into() * weight);
        });
    } else {
        pairs.for_each(|((whole, part), element)| {
            (*whole, *part) = exact::plus((*whole, *part), F::read(element).into() * weight);
        });
    }
}

/// Like [`merge`], for fixed-point cells.
pub(crate) fn merge_fixed(level: Level, cells: Fixed<'_>, other: (&[i64], &[i64]), fresh: bool) {
    if fresh {
        cells.whole.copy_from_slice(other.0);
        cells.part.copy_from_slice(other.1);
    } else {
        dispatch!(level, _simd => add_fixed(cells, other));
    }
}

#[inline(always)]
fn add_fixed(cells: Fixed<'_>, other: (&[i64], &[i64])) {
    let words = cells.whole.iter_mut().zip(cells.part.iter_mut());
    for ((whole, part), (&more, &rest)) in words.zip(other.0.iter().zip(other.1)) {
        (*whole, *part) = exact::both((*whole, *part), (more, rest));
    }
}

/// Whether all cells are valid sums (see [`exact`]) with an absolute value of at most `magnitude`.
pub(crate) fn fixed_fit(level: Level, cells: (&[i64], &[i64]), magnitude: u64) -> bool {
    dispatch!(level, _simd => all_fit(cells, magnitude as i64))
}

#[inline(always)]
fn all_fit(cells: (&[i64], &[i64]), magnitude: i64) -> bool {
    let words = cells.0.iter().zip(cells.1);
    words.fold(true, |all, (&whole, &part)| all & exact::is_sum((whole, part), magnitude))
}

/// Like [`mean_narrow`], for fixed-point cells and floats of any type.
pub(crate) fn mean_fixed(level: Level, dtype: Dtype, cells: (&[i64], &[i64]), bytes: &mut [u8], weight: f64) {
    by_type!(level, dtype, divide_fixed, (cells, bytes, weight));
}

#[inline(always)]
fn divide_fixed<F: Float>(cells: (&[i64], &[i64]), bytes: &mut [u8], weight: f64) {
    let words = cells.0.iter().zip(cells.1);
    for ((&whole, &part), element) in words.zip(bytes.chunks_exact_mut(F::SIZE)) {
        F::write(exact::value((whole, part)) / weight, element);
    }
}

/// The largest absolute value of any sum. NaN if any sum is NaN.
pub(crate) fn peak_f32(level: Level, cells: &[f32]) -> f32 {
    f32::from_bits(dispatch!(level, _simd => highest_32(cells)) as u32)
}

/// As [`peak_f32`].
pub(crate) fn peak_f64(level: Level, cells: &[f64]) -> f64 {
    f64::from_bits(dispatch!(level, _simd => highest_64(cells)) as u64)
}

// Without the sign, the bits of a float grow with its magnitude, and those of infinity and NaN are above all
// others.
#[inline(always)]
fn highest_32(cells: &[f32]) -> i32 {
    cells.iter().map(|cell| cell.to_bits() as i32 & i32::MAX).fold(0, |most, bits| most.max(bits))
}

#[inline(always)]
fn highest_64(cells: &[f64]) -> i64 {
    cells.iter().map(|cell| cell.to_bits() as i64 & i64::MAX).fold(0, |most, bits| most.max(bits))
}

/// Keeps the larger of each two integers. Cells and elements both have the type's own bytes. Booleans become
/// 0 or 1.
pub(crate) fn fold_largest(level: Level, dtype: Dtype, cells: &mut [u8], bytes: &[u8], fresh: bool) {
    match dtype {
        Dtype::Bool if fresh => dispatch!(level, _simd => set_truth(cells, bytes)),
        _ if fresh => cells.copy_from_slice(bytes),
        Dtype::Bool => dispatch!(level, _simd => or_truth(cells, bytes)),
        Dtype::I64 => dispatch!(level, _simd => largest_i64(cells, bytes)),
        Dtype::I32 => dispatch!(level, _simd => largest_i32(cells, bytes)),
        Dtype::I16 => dispatch!(level, _simd => largest_i16(cells, bytes)),
        Dtype::I8 => dispatch!(level, _simd => largest_i8(cells, bytes)),
        Dtype::U64 => dispatch!(level, _simd => largest_u64(cells, bytes)),
        Dtype::U32 => dispatch!(level, _simd => largest_u32(cells, bytes)),
        Dtype::U16 => dispatch!(level, _simd => largest_u16(cells, bytes)),
        Dtype::U8 => dispatch!(level, _simd => largest_u8(cells, bytes)),
        _ => debug_assert!(false, "{dtype} is averaged"),
    }
}

#[inline(always)]
fn set_truth(cells: &mut [u8], bytes: &[u8]) {
    cells.iter_mut().zip(bytes).for_each(|(cell, byte)| *cell = u8::from(*byte != 0));
}

#[inline(always)]
fn or_truth(cells: &mut [u8], bytes: &[u8]) {
    cells.iter_mut().zip(bytes).for_each(|(cell, byte)| *cell |= u8::from(*byte != 0));
}

macro_rules! largest {
    ($($name:ident: $type:ty;)*) => {$(
        #[inline(always)]
        fn $name(cells: &mut [u8], bytes: &[u8]) {
            const SIZE: usize = size_of::<$type>();
            let read = |bytes: &[u8]| {
                let mut word = [0; SIZE];
                word.copy_from_slice(bytes);
                <$type>::from_le_bytes(word)
            };
            for (cell, element) in cells.chunks_exact_mut(SIZE).zip(bytes.chunks_exact(SIZE)) {
                let larger = read(cell).max(read(element));
                cell.copy_from_slice(&larger.to_le_bytes());
            }
        }
    )*};
}
largest! {
    largest_i64: i64; largest_i32: i32; largest_i16: i16; largest_i8: i8;
    largest_u64: u64; largest_u32: u32; largest_u16: u16; largest_u8: u8;
}
