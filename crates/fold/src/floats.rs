//! Converts bytes of float elements to numbers and back. The code has no branches and tables, so loops over
//! it are vectorised.
//!
//! Writing rounds once, from the f64 mean to the element's type: to the nearest value, ties to even.

/// A float element type: how to read one and how to write one.
pub(crate) trait Float {
    /// Bytes of an element.
    const SIZE: usize;
    /// The narrower of f32 and f64 that can hold every element exactly.
    type Value: Into<f64>;
    /// Reads `SIZE` little-endian bytes.
    fn read(bytes: &[u8]) -> Self::Value;
    /// Writes `value` into `SIZE` bytes, rounded.
    fn write(value: f64, bytes: &mut [u8]);
}

pub(crate) struct F64;
pub(crate) struct F32;
/// Float types of 16 or 8 bits, except bf16. They have `MANTISSA` bits of mantissa and the exponent bias
/// `BIAS`.
pub(crate) struct Small<const SIZE: usize, const MANTISSA: u32, const BIAS: u32>;
pub(crate) type F16 = Small<2, 10, 15>;
pub(crate) type F8E5M2 = Small<1, 2, 15>;
pub(crate) type F8E4M3 = Small<1, 3, 7>;
pub(crate) struct Bf16;

impl Float for F64 {
    const SIZE: usize = 8;
    type Value = f64;
    #[inline(always)]
    fn read(b: &[u8]) -> f64 {
        f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
    }
    #[inline(always)]
    fn write(value: f64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

impl Float for F32 {
    const SIZE: usize = 4;
    type Value = f32;
    #[inline(always)]
    fn read(b: &[u8]) -> f32 {
        f32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }
    #[inline(always)]
    fn write(value: f64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&(value as f32).to_le_bytes());
    }
}

impl Float for Bf16 {
    const SIZE: usize = 2;
    type Value = f32;
    #[inline(always)]
    fn read(b: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)
    }
    #[inline(always)]
    fn write(value: f64, bytes: &mut [u8]) {
        let bits = to_odd(value).to_bits();
        let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
        let nan = (bits >> 16) as u16 | 0x40;
        let code = if value.is_nan() { nan } else { rounded };
        bytes.copy_from_slice(&code.to_le_bytes());
    }
}

impl<const SIZE: usize, const MANTISSA: u32, const BIAS: u32> Small<SIZE, MANTISSA, BIAS> {
    const SIGN: u32 = 1 << (SIZE as u32 * 8 - 1);
    /// E4M3 has no infinity and one NaN (with either sign). The other types follow IEEE 754.
    const FINITE_ONLY: bool = MANTISSA == 3;
    const NAN: u32 = if Self::FINITE_ONLY { 0x7f } else { Self::INFINITY | 1 << (MANTISSA - 1) };
    /// All exponent bits set. In E4M3 these are ordinary numbers, up to 448 = 0x7e.
    const INFINITY: u32 = (Self::SIGN - 1) >> MANTISSA << MANTISSA;
    const MOST: u32 = if Self::FINITE_ONLY { 0x7e } else { Self::INFINITY };
    const SHIFT: u32 = 23 - MANTISSA;
    /// Difference of the exponent biases of f32 and this type, in the place of f32's exponent.
    const REBIAS: u32 = (127 - BIAS) << 23;
    /// The smallest normal number, as the bits of an f32.
    const NORMAL: u32 = Self::REBIAS + (1 << 23);

    #[inline(always)]
    fn decode(code: u32) -> f32 {
        let magnitude = code & (Self::SIGN - 1);
        let wide = magnitude << Self::SHIFT;
        // Make a number with exponent field 1 and this mantissa, and subtract the one with mantissa 0. This
        // is exact and needs no subnormal f32.
        let subnormal = f32::from_bits(wide + Self::NORMAL) - f32::from_bits(Self::NORMAL);
        let special = if Self::FINITE_ONLY { 0x7fc0_0000 } else { wide | 0x7f80_0000 };
        let first_special = if Self::FINITE_ONLY { Self::NAN } else { Self::INFINITY };
        let mut bits = wide + Self::REBIAS;
        bits = if magnitude >> MANTISSA == 0 { subnormal.to_bits() } else { bits };
        bits = if magnitude >= first_special { special } else { bits };
        f32::from_bits(bits | (code & Self::SIGN) << (32 - SIZE as u32 * 8))
    }

    #[inline(always)]
    fn encode(value: f64) -> u32 {
        let bits = to_odd(value).to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let sign = (bits >> 31) * Self::SIGN;
        let lowest = magnitude >> Self::SHIFT & 1;
        let half = (1 << (Self::SHIFT - 1)) - 1;
        let normal = magnitude.wrapping_sub(Self::REBIAS).wrapping_add(half + lowest) >> Self::SHIFT;
        // Add a power of two whose last bit is worth the smallest subnormal. That rounds to a multiple of it.
        let magic = (127 - BIAS + Self::SHIFT + 1) << 23;
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(magic)).to_bits().wrapping_sub(magic);
        let code = if magnitude < Self::NORMAL { subnormal } else { normal.min(Self::MOST) };
        sign | if value.is_nan() { Self::NAN } else { code }
    }
}

macro_rules! small {
    ($name:ident, $word:ty, $size:literal) => {
        impl Float for $name {
            const SIZE: usize = $size;
            type Value = f32;
            #[inline(always)]
            fn read(bytes: &[u8]) -> f32 {
                let mut word = [0; $size];
                word.copy_from_slice(&bytes[..$size]);
                Self::decode(u32::from(<$word>::from_le_bytes(word)))
            }
            #[inline(always)]
            fn write(value: f64, bytes: &mut [u8]) {
                bytes.copy_from_slice(&(Self::encode(value) as $word).to_le_bytes());
            }
        }
    };
}
small!(F16, u16, 2);
small!(F8E5M2, u8, 1);
small!(F8E4M3, u8, 1);

/// Converts f64 to f32, rounded to odd: if the value is inexact, the result is the neighbour whose last bit
/// is 1. That bit stands for "a little more", so that rounding again to a narrower type gives the same result
/// as rounding once.
#[inline(always)]
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();
    let even = bits & 1 == 0;
    let step = if back.abs() < value.abs() { 1 } else { u32::MAX };
    let odd = bits.wrapping_add(step);
    f32::from_bits(if back != value && even { odd } else { bits })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use proptest::prelude::*;
    use thalweg_wire::Dtype;

    fn check_all_codes<F: Float>(dtype: Dtype) {
        for code in 0..1_u32 << (8 * F::SIZE) {
            let bytes = &code.to_le_bytes()[..F::SIZE];
            let expected = reference::decode(dtype, bytes);
            let value: f64 = F::read(bytes).into();
            assert!(
                value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(),
                "{dtype} {code:x}"
            );
            let mut back = [0; 8];
            F::write(value, &mut back[..F::SIZE]);
            assert!(back[..F::SIZE] == *bytes || value.is_nan(), "{dtype} {code:x}");
            assert!(
                reference::decode(dtype, &back[..F::SIZE]).is_nan() == value.is_nan(),
                "{dtype} {code:x}"
            );
            for near in [value * (1.0 + 1e-15), value * (1.0 - 1e-15), value * 1.0625, value * 1.03125] {
                check_write::<F>(dtype, near);
            }
        }
    }

    fn check_write<F: Float>(dtype: Dtype, value: f64) {
        let (mut bytes, mut expected) = ([0; 8], [0; 8]);
        F::write(value, &mut bytes[..F::SIZE]);
        reference::encode(dtype, value, &mut expected[..F::SIZE]);
        assert!(value.is_nan() || bytes == expected, "{dtype} {value:e} {bytes:x?} {expected:x?}");
    }

    /// Midpoints of neighbouring numbers, and values slightly to either side.
    fn check_ties<F: Float>(dtype: Dtype) {
        for code in 0..(1_u32 << (8 * F::SIZE - 1)) - 1 {
            let at = |c: u32| reference::decode(dtype, &c.to_le_bytes()[..F::SIZE]);
            let middle = (at(code) + at(code + 1)) / 2.0;
            for value in [middle, middle * (1.0 + 4e-16), middle * (1.0 - 4e-16)] {
                check_write::<F>(dtype, value);
                check_write::<F>(dtype, -value);
            }
        }
    }

    #[test]
    fn every_code_and_every_tie_as_the_reference() {
        check_all_codes::<F16>(Dtype::F16);
        check_all_codes::<Bf16>(Dtype::BF16);
        check_all_codes::<F8E4M3>(Dtype::F8E4M3);
        check_all_codes::<F8E5M2>(Dtype::F8E5M2);
        check_ties::<F16>(Dtype::F16);
        check_ties::<Bf16>(Dtype::BF16);
        check_ties::<F8E4M3>(Dtype::F8E4M3);
        check_ties::<F8E5M2>(Dtype::F8E5M2);
    }

    #[test]
    fn overflow_saturates_or_is_infinite() {
        check_write::<F8E4M3>(Dtype::F8E4M3, f64::INFINITY);
        check_write::<F8E4M3>(Dtype::F8E4M3, -1e9);
        for value in [1e300, 65_519.999, 65_520.0, 65_536.0, f64::INFINITY, 57_344.0, 61_440.0] {
            check_write::<F16>(Dtype::F16, value);
            check_write::<F8E5M2>(Dtype::F8E5M2, -value);
        }
        for value in [f64::MAX, f64::from(f32::MAX), 3.396e38, 3.3953e38, f64::MIN_POSITIVE, 1e-45, 1e-41] {
            check_write::<Bf16>(Dtype::BF16, value);
        }
    }

    proptest! {
        #[test]
        fn any_number_is_rounded_as_the_reference(bits in any::<u64>(), exponent in -30_i32..30) {
            // A mantissa that uses all 52 bits, and an exponent in the range of the narrow types.
            let value = f64::from_bits(bits & 0x800f_ffff_ffff_ffff | 1023 << 52) * 2_f64.powi(exponent);
            check_write::<F16>(Dtype::F16, value);
            check_write::<Bf16>(Dtype::BF16, value);
            check_write::<F8E4M3>(Dtype::F8E4M3, value);
            check_write::<F8E5M2>(Dtype::F8E5M2, value);
        }
    }
}
