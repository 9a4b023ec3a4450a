//! Fixed-point sums. They have the same bits in any order of addition.
//!
//! A contribution is the f64 product `weight * value`, rounded to a multiple of 2^-52 (ties to even). A sum
//! is an integer number of such units, in two words. `whole` is a signed integer, and `part` is a fraction of
//! 52 bits that is never negative. Integer addition is associative and commutative, and each sum has only one
//! such form. So any order of arrival and any tree of merges gives the same bits.
//!
//! Both words are rounded and added without branches, so loops over them are vectorised. `whole` cannot
//! overflow: each contribution is bounded, and [`crate::weights`] bounds the sum of their magnitudes.

/// Bits after the binary point of `weight * value`.
pub const EXACT_FRACTION_BITS: u32 = 52;
/// Limit of `|weight * value|` of one contribution, 2^51.
pub const EXACT_MAX_PRODUCT: f64 = (1_u64 << 51) as f64;
/// Limit of the sum of the magnitudes of all contributions to an element, 2^62: two thousand of the largest
/// contributions.
pub const EXACT_MAX_SUM: f64 = MOST as f64;

/// [`EXACT_MAX_SUM`] in the units of [`magnitude`].
pub(crate) const MOST: u64 = 1 << 62;

const UNITS: f64 = (1_u64 << EXACT_FRACTION_BITS) as f64;
const PART_MASK: i64 = (1 << EXACT_FRACTION_BITS) - 1;
/// 1.5 * 2^52. Added to x with |x| <= 2^51, it gives a number whose last bit is worth 1. So the addition
/// rounds x to an integer (ties to even), and the bits of the result are those of the constant plus that
/// integer. This vectorises on processors that cannot convert f64 to i64 in vectors.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// What a contribution adds to the sum of magnitudes, if its products are at most `product`. It is rounded
/// up.
pub(crate) fn magnitude(product: f64) -> u64 {
    product.ceil() as u64
}

/// Rounds x (|x| <= 2^51) to an integer. Returns it as an integer and as a float.
#[inline(always)]
fn rounded(x: f64) -> (i64, f64) {
    let shifted = x + MAGIC;
    ((shifted.to_bits() as i64).wrapping_sub(MAGIC.to_bits() as i64), shifted - MAGIC)
}

/// The two words of a contribution below [`EXACT_MAX_PRODUCT`]. The second one is up to half a unit of the
/// first, and of either sign. Rounding twice gives the correct result, since a unit of the first word is an
/// even number of units of the second.
#[inline(always)]
fn term(product: f64) -> (i64, i64) {
    let (whole, value) = rounded(product);
    (whole, rounded((product - value) * UNITS).0)
}

/// The words of a sum in their unique form. `part` may be from minus two to plus two wholes.
#[inline(always)]
fn carried(whole: i64, part: i64) -> (i64, i64) {
    // Add two wholes before the shift and subtract them after it, since AVX2 cannot shift negative numbers.
    let above = part.wrapping_add(2 << EXACT_FRACTION_BITS);
    let carry = ((above as u64 >> EXACT_FRACTION_BITS) as i64).wrapping_sub(2);
    (whole.wrapping_add(carry), part & PART_MASK)
}

/// The words of a first contribution.
#[inline(always)]
pub(crate) fn first(product: f64) -> (i64, i64) {
    let (whole, part) = term(product);
    carried(whole, part)
}

/// The words of a sum to which a contribution is added.
#[inline(always)]
pub(crate) fn plus(sum: (i64, i64), product: f64) -> (i64, i64) {
    let (whole, part) = term(product);
    carried(sum.0.wrapping_add(whole), sum.1.wrapping_add(part))
}

/// The words of the sum of two sums.
#[inline(always)]
pub(crate) fn both(one: (i64, i64), other: (i64, i64)) -> (i64, i64) {
    carried(one.0.wrapping_add(other.0), one.1.wrapping_add(other.1))
}

/// Whether these are the words of a sum whose absolute value is at most `magnitude`.
#[inline(always)]
pub(crate) fn is_sum((whole, part): (i64, i64), magnitude: i64) -> bool {
    // A negative sum has a smaller `whole` and a positive `part`.
    let within = (whole >= -magnitude) & ((whole < magnitude) | (whole == magnitude) & (part == 0));
    within & (part & !PART_MASK == 0)
}

/// A sum as a float. It is rounded once if it is below 2^53. The same sum always gives the same float.
#[inline(always)]
pub(crate) fn value((whole, part): (i64, i64)) -> f64 {
    // The bits of 2^52 combined (or) with the bits of an integer below it are the float 2^52 plus that
    // integer.
    let fraction = f64::from_bits(part as u64 | UNITS.to_bits()) - UNITS;
    whole as f64 + fraction * (1.0 / UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A sum as one integer number of units.
    fn integer((whole, part): (i64, i64)) -> i128 {
        assert!((0..=PART_MASK).contains(&part), "{part:x} is no fraction");
        (i128::from(whole) << EXACT_FRACTION_BITS) + i128::from(part)
    }

    /// The nearest multiple of a unit (ties to even), from the bits of a float.
    fn plainly(product: f64) -> i128 {
        let bits = product.abs().to_bits();
        let (exponent, mantissa) = ((bits >> 52) as i32, i128::from(bits & ((1 << 52) - 1)));
        let mantissa = if exponent == 0 { mantissa } else { mantissa | 1 << 52 };
        // The value is mantissa * 2^(exponent - 1075). In units it has 52 more binary places.
        let shift = exponent.max(1) - 1075 + EXACT_FRACTION_BITS as i32;
        let magnitude = match shift {
            0.. => mantissa << shift,
            -60..0 => {
                let (unit, half) = (1_i128 << -shift, 1_i128 << (-shift - 1));
                let (down, rest) = (mantissa / unit, mantissa % unit);
                down + i128::from(rest > half || rest == half && down % 2 == 1)
            }
            _ => 0,
        };
        if product < 0.0 {
            -magnitude
        } else {
            magnitude
        }
    }

    /// Products of all magnitudes below the limit.
    fn products() -> impl Strategy<Value = f64> {
        (any::<u64>(), 900..1023 + 51_u64)
            .prop_map(|(bits, exponent)| f64::from_bits(bits & 0x800f_ffff_ffff_ffff | exponent << 52))
    }

    proptest! {
        #[test]
        fn terms_are_rounded_to_the_nearest_even(product in products()) {
            prop_assert_eq!(integer(first(product)), plainly(product));
        }

        #[test]
        fn sums_are_those_of_integers(products in prop::collection::vec(products(), 1..40), cut in 0..40_usize) {
            let expected: i128 = products.iter().map(|&p| plainly(p)).sum();
            let sum = |products: &[f64]| products.iter().fold((0, 0), |sum, &p| plus(sum, p));
            prop_assert_eq!(integer(sum(&products)), expected);
            let (left, right) = products.split_at(cut.min(products.len()));
            let tree = both(sum(left), sum(right));
            prop_assert_eq!(tree, sum(&products), "the same words");
            let found = value(tree);
            // There is one rounding below 2^53, and two above.
            let allowed = if expected.unsigned_abs() < 1 << 105 { 0.5 } else { 1.0 };
            let step = f64::EPSILON * found.abs();
            prop_assert!((found - expected as f64 / UNITS).abs() <= allowed * step + f64::MIN_POSITIVE);
        }
    }

    #[test]
    fn ties_go_to_even_and_small_negative_sums_are_exact() {
        let unit = 1.0 / UNITS;
        let terms: Vec<i128> =
            [0.5, 1.5, 2.5, -0.5, -1.5, -2.5].iter().map(|u| integer(first(u * unit))).collect();
        assert_eq!(terms, [0, 2, 2, 0, -2, -2]);
        for small in [-unit, unit, -3.0 * unit, 0.0, -1.0 + unit] {
            assert_eq!(value(first(small)), small);
        }
    }

    #[test]
    fn a_sum_is_within_its_magnitude_and_has_a_fraction() {
        for (product, most) in [(2.5, 3), (-2.5, 3), (3.0, 3), (-3.0, 3), (0.0, 0)] {
            let sum = first(product);
            assert!(is_sum(sum, most) && (most == 0 || !is_sum(sum, most - 1)), "{product}");
        }
        assert!(!is_sum((0, 1), 0) && !is_sum((3, 1), 3) && is_sum((-3, 1), 3));
        assert!(!is_sum((0, -1), 3) && !is_sum((0, PART_MASK + 1), 3) && !is_sum((i64::MIN, 0), MOST as i64));
    }

    #[test]
    fn the_largest_contributions_fit_as_often_as_the_limit_allows() {
        let most = EXACT_MAX_PRODUCT - 0.5;
        assert_eq!(magnitude(most), 1 << 51);
        let times = MOST >> 51;
        let sum = (0..times).fold((0, 0), |sum, _| plus(sum, -most));
        assert_eq!(integer(sum), -plainly(most) * i128::from(times));
    }
}
