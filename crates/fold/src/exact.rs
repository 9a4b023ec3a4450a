//! Fixed-point sums, which are the same bits in any order.
//!
//! A contribution is `round_ties_even(weight * value * 2^26)` as an `i64`. Integer addition is associative and
//! commutative, so any order of arrival and any tree of merges gives the same sum. One contribution is under
//! 2^51 units, so 4096 of them cannot overflow. The mean of values weighted by sample counts is off by at most
//! `contributions * 2^-27 / total weight`.

/// Bits after the binary point of `weight * value`.
pub const EXACT_FRACTION_BITS: u32 = 26;
/// Most contributions to one element; `finish` refuses more.
pub const EXACT_MAX_CONTRIBUTIONS: u32 = 1 << 12;
/// Limit of `|weight * value|` of one contribution, 2^25.
pub const EXACT_MAX_PRODUCT: f64 = (1_u64 << 25) as f64;

const SCALE: f64 = (1_u64 << EXACT_FRACTION_BITS) as f64;
/// One unit less than 2^51: 4096 times 2^51 would be one too many for an i64.
const LIMIT: f64 = ((1_u64 << 51) - 1) as f64;
/// 1.5 * 2^52. Added to |x| <= 2^51 it gives a number whose last bit is worth 1: the sum is rounded to an integer,
/// ties to even, and its bits are those of the constant plus that integer. Vectorises where f64 -> i64 does not.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// What a weight is turned into before it is multiplied with values.
pub(crate) fn scaled(weight: f64) -> f64 {
    weight * SCALE
}

/// Whether `value` may be folded with this scaled weight; false for NaN.
pub(crate) fn fits(value: f64, scaled: f64) -> bool {
    (value * scaled).abs() <= LIMIT
}

/// The contribution of a value that [`fits`].
#[inline(always)]
pub(crate) fn term(value: f64, scaled: f64) -> i64 {
    let shifted = value * scaled + MAGIC;
    (shifted.to_bits() as i64).wrapping_sub(MAGIC.to_bits() as i64)
}

/// A sum as a number.
#[inline(always)]
pub(crate) fn value(sum: i64) -> f64 {
    sum as f64 * (1.0 / SCALE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn terms_are_rounded_to_the_nearest_even(value in -40_000.0..40_000.0_f64, weight in 0.001..800.0_f64) {
            let weight = scaled(weight);
            prop_assume!(fits(value, weight));
            prop_assert_eq!(term(value, weight), (value * weight).round_ties_even() as i64);
        }
    }

    #[test]
    fn ties_go_to_even_and_the_limit_holds() {
        let one = scaled(1.0);
        let unit = 1.0 / SCALE;
        let terms: Vec<i64> = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5].iter().map(|u| term(u * unit, one)).collect();
        assert_eq!(terms, [0, 2, 2, 0, -2, -2]);
        assert!(!fits(EXACT_MAX_PRODUCT, one) && !fits(f64::NAN, one) && !fits(f64::NEG_INFINITY, one));
        let most = EXACT_MAX_PRODUCT - unit;
        assert!(fits(most, one) && fits(-most, one));
        let sum = i128::from(term(most, one)) * i128::from(EXACT_MAX_CONTRIBUTIONS);
        assert!(i64::try_from(sum).is_ok() && i64::try_from(-sum).is_ok());
        assert_eq!(value(term(-most, one)), -most);
    }
}
