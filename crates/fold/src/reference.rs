//! The plain reference of folding: one element at a time, in f64. Tests compare the fast code with it.

use std::sync::OnceLock;

use half::{bf16, f16};
use thalweg_wire::{Dtype, Layout, Tensor};

use crate::{FoldError, Replacement};

/// Converts one float element to f64, exactly. 0 for types that are no floats.
///
/// `bytes` are the bytes of the element, little-endian.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> f64 {
    let word = word(bytes);
    match dtype {
        Dtype::F64 => f64::from_bits(word),
        Dtype::F32 => f64::from(f32::from_bits(word as u32)),
        Dtype::F16 => f16::from_bits(word as u16).to_f64(),
        Dtype::BF16 => bf16::from_bits(word as u16).to_f64(),
        Dtype::F8E4M3 if word & 0x7f == 0x7f => f64::NAN,
        Dtype::F8E4M3 => small(word, 3, 7),
        // The bits of an F8E5M2 are the upper byte of an f16.
        Dtype::F8E5M2 => f16::from_bits((word as u16) << 8).to_f64(),
        _ => 0.0,
    }
}

/// Sign, exponent and mantissa of an 8-bit float, by the textbook formula.
fn small(code: u64, mantissa_bits: u32, bias: i32) -> f64 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = (code & 0x7f) >> mantissa_bits;
    let mantissa = (code & ((1 << mantissa_bits) - 1)) as f64 / f64::from(1 << mantissa_bits);
    match exponent {
        0 => sign * mantissa * 2_f64.powi(1 - bias),
        _ => sign * (1.0 + mantissa) * 2_f64.powi(exponent as i32 - bias),
    }
}

/// Writes `value` to a float element: the nearest number of its type, ties to the even code. Too large a
/// value becomes infinity. In `F8_E4M3`, which has no infinity, it becomes +-448. Elements of other types do
/// not change.
pub fn encode(dtype: Dtype, value: f64, element: &mut [u8]) {
    match dtype {
        Dtype::F64 => element.copy_from_slice(&value.to_le_bytes()),
        Dtype::F32 => element.copy_from_slice(&(value as f32).to_le_bytes()),
        Dtype::F16 | Dtype::BF16 | Dtype::F8E4M3 | Dtype::F8E5M2 => {
            let sign = u64::from(value.is_sign_negative()) << (8 * element.len() - 1);
            let code = nearest(dtype, value.abs()) | sign;
            element.copy_from_slice(&code.to_le_bytes()[..element.len()]);
        }
        _ => (),
    }
}

/// The code of the number nearest to `magnitude`, found in the table of all numbers.
fn nearest(dtype: Dtype, magnitude: f64) -> u64 {
    let numbers = numbers(dtype);
    if magnitude.is_nan() {
        return if dtype == Dtype::F8E4M3 { 0x7f } else { (numbers.len() as u64 - 1) | 1 };
    }
    let above = numbers.partition_point(|&n| n < magnitude);
    if above == 0 || above == numbers.len() {
        return above.min(numbers.len() - 1) as u64;
    }
    let middle = (numbers[above - 1] + numbers[above]) / 2.0;
    let up = magnitude > middle || magnitude == middle && above % 2 == 0;
    (if up { above } else { above - 1 }) as u64
}

/// All numbers >= 0 of a float type of 1 or 2 bytes. The index is the code. If the type has infinity, that is
/// the last one. Its value in the table is the power of two at which it would come next.
fn numbers(dtype: Dtype) -> &'static [f64] {
    static TABLES: [OnceLock<Vec<f64>>; 4] = [const { OnceLock::new() }; 4];
    let (table, infinity, bias) = match dtype {
        Dtype::F16 => (0, 0x7c00_u64, 16),
        Dtype::BF16 => (1, 0x7f80, 128),
        Dtype::F8E5M2 => (2, 0x7c, 16),
        _ => (3, 0x7f, 0),
    };
    TABLES[table].get_or_init(|| {
        let mut all: Vec<f64> = (0..infinity).map(|code| decode(dtype, &code.to_le_bytes())).collect();
        if bias > 0 {
            all.push(2_f64.powi(bias));
        }
        all
    })
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// The larger of two integers of a type; both and the result are the type's bits. Of booleans: whether either
/// is true.
fn larger(dtype: Dtype, a: u64, b: u64) -> u64 {
    let unused = 64 - 8 * dtype.size() as u32;
    let signed = |bits: u64| (bits << unused) as i64;
    match dtype {
        Dtype::Bool => u64::from(a != 0 || b != 0),
        Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 if signed(a) > signed(b) => a,
        Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 => b,
        _ => a.max(b),
    }
}

/// The contributions that one element has received so far.
#[derive(Debug, Clone, Copy)]
struct Sum {
    total: f64,
    weight: f64,
    largest: Option<u64>,
}

impl Sum {
    /// The neutral element of addition: -0 changes no number that is added to it, not even -0.
    const NOTHING: Sum = Sum { total: -0.0, weight: 0.0, largest: None };

    fn add(&mut self, dtype: Dtype, element: &[u8], weight: f64) {
        if weight == 0.0 {
            return;
        }
        if dtype.is_float() {
            self.total += weight * decode(dtype, element);
        } else {
            let bits = word(element);
            self.largest = Some(larger(dtype, self.largest.unwrap_or(bits), bits));
        }
        self.weight += weight;
    }

    fn write(&self, dtype: Dtype, element: &mut [u8], repair: Replacement) {
        if repair == Replacement::Complement && self.weight > 0.0 {
            let mut with_own = *self;
            // An integer's own value counts, whatever its weight.
            let rest = (1.0 - self.weight).max(if dtype.is_float() { 0.0 } else { 1.0 });
            with_own.add(dtype, element, rest);
            return with_own.write(dtype, element, Replacement::KeepLocal);
        }
        match (self.largest, repair) {
            (Some(bits), _) => element.copy_from_slice(&bits.to_le_bytes()[..element.len()]),
            (None, _) if self.weight > 0.0 => encode(dtype, self.total / self.weight, element),
            (None, Replacement::KeepLocal | Replacement::Complement) => (),
            (None, Replacement::Zero) => element.fill(0),
        }
    }
}

/// Weighted sums of updates in f64, one element at a time. [`crate::Accumulator`] computes the same faster.
#[derive(Debug, Clone)]
pub struct Plain<'a> {
    layout: &'a Layout,
    sums: Vec<Vec<Sum>>,
}

impl<'a> Plain<'a> {
    /// Creates empty sums.
    pub fn new(layout: &'a Layout) -> Self {
        let sums = layout.tensors().iter().map(|t| vec![Sum::NOTHING; t.elements() as usize]).collect();
        Self { layout, sums }
    }

    /// Adds the elements all of whose bytes are in `offset..offset + bytes.len()`.
    pub fn fold(&mut self, offset: u64, bytes: &[u8], weight: f64) {
        for (tensor, sums) in self.layout.tensors().iter().zip(&mut self.sums) {
            for (sum, place) in sums.iter_mut().zip(places(tensor)) {
                if place.start >= offset && place.end <= offset + bytes.len() as u64 {
                    let element = &bytes[(place.start - offset) as usize..(place.end - offset) as usize];
                    sum.add(tensor.dtype, element, weight);
                }
            }
        }
    }

    /// Writes the means into `global`, which has the bytes of the whole update.
    pub fn finish(&self, global: &mut [u8], repair: Replacement) {
        for (tensor, sums) in self.layout.tensors().iter().zip(&self.sums) {
            for (sum, place) in sums.iter().zip(places(tensor)) {
                sum.write(tensor.dtype, &mut global[place.start as usize..place.end as usize], repair);
            }
        }
    }

    /// The weight of each element of a tensor. `tensor` is its index.
    pub fn weights(&self, tensor: usize) -> Vec<f64> {
        self.sums[tensor].iter().map(|s| s.weight).collect()
    }
}

/// The range of bytes of each element.
fn places(tensor: &Tensor) -> impl Iterator<Item = std::ops::Range<u64>> {
    let (offset, size) = (tensor.offset, tensor.dtype.size());
    (0..tensor.elements()).map(move |i| offset + i * size..offset + (i + 1) * size)
}

/// The weighted mean of complete updates: lazy aggregation (LIFL section 5.4).
///
/// Each update has the bytes of the whole layout, and a weight. The mean is written to `out`, which has the
/// same size. If all weights are 0, `out` does not change. This is the reference: plain rather than fast.
///
/// # Errors
/// [`FoldError::Part`] if an update or `out` does not have the size of the layout, [`FoldError::Weight`] if a
/// weight is negative or not finite.
pub fn mean(layout: &Layout, updates: &[(&[u8], f64)], out: &mut [u8]) -> Result<(), FoldError> {
    let mut sizes = updates.iter().map(|(bytes, _)| bytes.len() as u64).chain([out.len() as u64]);
    if let Some(found) = sizes.find(|&size| size != layout.bytes()) {
        return Err(FoldError::Part { offset: 0, found, bytes: layout.bytes() });
    }
    if let Some(&(_, weight)) = updates.iter().find(|(_, w)| !(w.is_finite() && *w >= 0.0)) {
        return Err(FoldError::Weight(weight));
    }
    for tensor in layout.tensors() {
        for place in places(tensor).map(|p| p.start as usize..p.end as usize) {
            let mut sum = Sum::NOTHING;
            for (bytes, weight) in updates {
                sum.add(tensor.dtype, &bytes[place.clone()], *weight);
            }
            sum.write(tensor.dtype, &mut out[place], Replacement::KeepLocal);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(decode(Dtype::F8E4M3, &[0x7e]), 448.0);
        assert_eq!(decode(Dtype::F8E4M3, &[0x81]), -2_f64.powi(-9));
        assert_eq!(decode(Dtype::F8E5M2, &[0x7b]), 57_344.0);
        assert_eq!(coded(Dtype::F16, 1.0), 0x3c00);
        assert_eq!(coded(Dtype::F16, 65_520.0), 0x7c00);
        assert_eq!(coded(Dtype::F16, 65_519.9), 0x7bff);
        assert_eq!(coded(Dtype::BF16, -1.0), 0xbf80);
        assert_eq!(coded(Dtype::F8E4M3, 1.0625), 0x38, "a tie goes to the even code");
        assert_eq!(coded(Dtype::F8E4M3, 1e300), 0x7e);
        assert_eq!(coded(Dtype::F8E5M2, -1e300), 0xfc);
        assert!(decode(Dtype::BF16, &coded(Dtype::BF16, f64::NAN).to_le_bytes()[..2]).is_nan());
    }

    fn coded(dtype: Dtype, value: f64) -> u64 {
        let mut bytes = [0; 8];
        encode(dtype, value, &mut bytes[..dtype.size() as usize]);
        word(&bytes)
    }

    #[test]
    fn larger_knows_signs() {
        assert_eq!(larger(Dtype::I8, 0xff, 0x01), 0x01);
        assert_eq!(larger(Dtype::U8, 0xff, 0x01), 0xff);
        assert_eq!(larger(Dtype::Bool, 0, 7), 1);
        assert_eq!(larger(Dtype::U64, u64::MAX, 1), u64::MAX);
        assert_eq!(larger(Dtype::I64, u64::MAX, 1), 1);
    }

    #[test]
    fn the_mean_is_weighted() {
        let layout = Layout::pack([("w", Dtype::F32, vec![2])]).unwrap();
        let update = |a: f32, b: f32| [a.to_le_bytes(), b.to_le_bytes()].concat();
        let (a, b) = (update(1.0, -2.0), update(5.0, 2.0));
        let mut out = update(9.0, 9.0);
        mean(&layout, &[(&a, 3.0), (&b, 1.0)], &mut out).unwrap();
        assert_eq!(out, update(2.0, -1.0));
        mean(&layout, &[], &mut out).unwrap();
        assert_eq!(out, update(2.0, -1.0));
        assert!(mean(&layout, &[(&a[..7], 1.0)], &mut out).is_err());
        assert!(mean(&layout, &[(&a, -1.0)], &mut out).is_err());
    }
}
