//! A sharded top: divides the bytes of a model among the nodes.

use std::ops::Range;

/// Alignment of a share's start in bytes: that of tensors.
const ALIGNED: u64 = 64;

/// The bytes of share `part` of `parts`. Shares are as equal as multiples of 64 allow; in order, they cover
/// all bytes.
pub fn share(bytes: u64, part: u32, parts: u32) -> Range<u64> {
    let units = u128::from(bytes.div_ceil(ALIGNED));
    let edge = |part: u32| {
        let unit = units * u128::from(part.min(parts)) / u128::from(parts.max(1));
        u64::try_from(unit * u128::from(ALIGNED)).unwrap_or(bytes).min(bytes)
    };
    edge(part)..edge(part.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_are_all_bytes_once_and_alike(bytes in 0_u64..1 << 40, parts in 1_u32..200) {
            let shares: Vec<_> = (0..parts).map(|part| share(bytes, part, parts)).collect();
            prop_assert_eq!((shares[0].start, shares[shares.len() - 1].end), (0, bytes));
            prop_assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start && pair[1].start % 64 == 0
                || pair[1].is_empty()));
            let lengths = shares.iter().map(|share| share.end - share.start);
            let (least, most) = (lengths.clone().min().unwrap(), lengths.max().unwrap());
            prop_assert!(most - least <= 128);
        }
    }
}
