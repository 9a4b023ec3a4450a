//! Finds NaN and infinity, and the largest magnitude, by comparing bits.
//!
//! Clear the sign bit of a float and read its bits as an integer. That integer grows with the magnitude, and
//! those of infinity and NaN are above all others. So one integer maximum over a chunk answers both
//! questions.

use fearless_simd::{dispatch, Level};
use thalweg_wire::{Dtype, Layout, Range, Tensor};

use crate::{reference, Defect};

/// Finds NaN and infinity in the float elements of `bytes`, which begin at byte `offset` of an update.
///
/// Elements that are cut at either end are ignored, since they are not folded either. Bytes beyond the layout
/// are ignored too.
///
/// # Errors
/// [`Defect`] names the first such element.
pub fn check_finite(layout: &Layout, offset: u64, bytes: &[u8]) -> Result<(), Defect> {
    let level = Level::new();
    for (tensor, first, elements) in whole_elements(layout, offset, bytes) {
        if tensor.dtype.is_float() && largest_code(level, tensor.dtype, elements) >= special(tensor.dtype) {
            return find(tensor, first, elements, |value| !value.is_finite()).map_or(Ok(()), Err);
        }
    }
    Ok(())
}

/// The largest magnitude of any element. NaN if any element is NaN.
pub(crate) fn largest(level: Level, dtype: Dtype, elements: &[u8]) -> f64 {
    let code = largest_code(level, dtype, elements).to_le_bytes();
    reference::decode(dtype, &code[..dtype.size() as usize])
}

/// The first element for which `bad` is true.
pub(crate) fn find(
    tensor: &Tensor,
    first: u64,
    elements: &[u8],
    bad: impl Fn(f64) -> bool,
) -> Option<Defect> {
    let values =
        elements.chunks_exact(tensor.dtype.size() as usize).map(|e| reference::decode(tensor.dtype, e));
    let (index, value) = values.enumerate().find(|&(_, value)| bad(value))?;
    Some(Defect { tensor: tensor.name.clone(), element: first + index as u64, value })
}

/// The tensors of which `bytes` has whole elements; `bytes` begins at byte `offset` of an update. For each:
/// the tensor, the index of the first element, and the bytes of the elements.
pub(crate) fn whole_elements<'a>(
    layout: &'a Layout,
    offset: u64,
    bytes: &'a [u8],
) -> impl Iterator<Item = (&'a Tensor, u64, &'a [u8])> {
    let range = Range::new(offset, offset.saturating_add(bytes.len() as u64));
    layout.overlapping(range).iter().filter_map(move |tensor| {
        let size = tensor.dtype.size();
        let part = tensor.range().intersect(range);
        let first = (part.start - tensor.offset).div_ceil(size);
        let last = part.end.saturating_sub(tensor.offset) / size;
        let place = |element: u64| (tensor.offset + element * size - offset) as usize;
        (first < last).then(|| (tensor, first, &bytes[place(first)..place(last)]))
    })
}

/// The lowest bits (without sign) that are infinity or NaN.
fn special(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::F64 => 0x7ff0 << 48,
        Dtype::F32 => 0x7f80_0000,
        Dtype::F16 => 0x7c00,
        Dtype::BF16 => 0x7f80,
        Dtype::F8E5M2 => 0x7c,
        _ => 0x7f,
    }
}

fn largest_code(level: Level, dtype: Dtype, elements: &[u8]) -> u64 {
    match dtype.size() {
        8 => dispatch!(level, _simd => largest_u64(elements)),
        4 => dispatch!(level, _simd => largest_u32(elements)),
        2 => dispatch!(level, _simd => largest_u16(elements)),
        _ => dispatch!(level, _simd => largest_u8(elements)),
    }
}

macro_rules! largest {
    ($($name:ident: $word:ty;)*) => {$(
        #[inline(always)]
        fn $name(elements: &[u8]) -> u64 {
            // Without the sign bit no word is negative, so signed comparison works. All instruction sets have
            // that.
            let words = elements.as_chunks().0.iter().map(|e| <$word>::from_le_bytes(*e) & <$word>::MAX);
            // Not `max()`: it returns the last of equal elements, which does not vectorise.
            words.fold(0, |most, word| most.max(word)) as u64
        }
    )*};
}
largest! { largest_u64: i64; largest_u32: i32; largest_u16: i16; largest_u8: i8; }

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FLOATS: [Dtype; 6] =
        [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8E4M3, Dtype::F8E5M2];

    fn layout_of(dtype: Dtype, elements: u64) -> Layout {
        Layout::pack([("before", Dtype::I32, vec![3]), ("w", dtype, vec![elements])]).unwrap()
    }

    #[test]
    fn finds_nan_and_infinity_at_any_position() {
        for dtype in FLOATS {
            let size = dtype.size() as usize;
            for elements in [1_usize, 7, 150, 333] {
                let layout = layout_of(dtype, elements as u64);
                let clean = vec![0x11; layout.bytes() as usize];
                assert_eq!(check_finite(&layout, 0, &clean), Ok(()));
                for at in 0..elements {
                    let mut bytes = clean.clone();
                    // One position has the largest bits of all, a NaN. Every other position has the lowest
                    // special bits, with a minus sign.
                    let code = if at % 2 == 0 { u64::MAX } else { special(dtype) | 1 << (8 * size - 1) };
                    bytes[64 + at * size..][..size].copy_from_slice(&code.to_le_bytes()[..size]);
                    let defect = check_finite(&layout, 0, &bytes).unwrap_err();
                    assert_eq!((defect.tensor.as_str(), defect.element), ("w", at as u64), "{dtype}");
                    assert!(!defect.value.is_finite());
                    // Through a window that cuts it, the element does not count.
                    let cut = 64 + at * size + 1;
                    assert_eq!(check_finite(&layout, cut as u64, &bytes[cut..]), Ok(()));
                    assert_eq!(check_finite(&layout, 0, &bytes[..cut + size - 2]), Ok(()));
                }
            }
        }
    }

    #[test]
    fn integers_are_never_defects() {
        let layout = Layout::pack([("n", Dtype::I64, vec![4]), ("b", Dtype::U8, vec![9])]).unwrap();
        assert_eq!(check_finite(&layout, 0, &vec![0xff; layout.bytes() as usize]), Ok(()));
        assert_eq!(check_finite(&layout, 1 << 40, &[0xff; 8]), Ok(()), "beyond the layout");
    }

    proptest! {
        #[test]
        fn the_largest_is_the_largest(bytes in prop::collection::vec(any::<u8>(), 0..600), dtype in 0..6_usize) {
            let dtype = FLOATS[dtype];
            let size = dtype.size() as usize;
            let values = bytes.chunks_exact(size).map(|e| reference::decode(dtype, e).abs());
            let expected = values.fold(0.0, |most: f64, v| if v > most || v.is_nan() { v } else { most });
            let found = largest(Level::new(), dtype, &bytes[..bytes.len() / size * size]);
            prop_assert!(found == expected || found.is_nan() && expected.is_nan());
        }
    }
}
