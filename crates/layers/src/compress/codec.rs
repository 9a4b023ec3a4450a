//! Encodes blocks of float32 values in fewer bits.
//!
//! An update is cut into blocks at multiples of [`BLOCK`] bytes, wherever its chunks begin. The part of a
//! block that is in a chunk is a piece. A piece is encoded as
//!
//! | head | the bytes after it |
//! |---|---|
//! | 0 | nothing: all values are zero |
//! | 1 | the bytes unchanged, if not all are float32 values, finite and of a magnitude below 2^126 |
//! | 2 | exponent `e` (i8), values / 2^e as float16 |
//! | 3 | exponent `e` (i8), values / 2^e as int8 |
//! | 4 to 7 | see [`super::scheme`] |
//! | 8 and 9 | see [`super::low_rank`]: such a piece may be longer than a block, and says how long it is |
//!
//! `e` is the least exponent with which the largest value fits. It is a power of two, so scaling by it is
//! exact. So values that were rounded once do not change again, however later chunks cut the block.
//! [`Format::round`] therefore gives what every receiver gets. There is one exception: `round` leaves a block
//! as it is if one of its values is not finite, or 2^126 or more. If a chunk has only a part of such a block,
//! without that value, this part is rounded on the way.

use serde::{Deserialize, Serialize};
use thalweg_wire::{Dtype, Layout, Range, Ranges, MAX_CHUNK};

use super::{low_rank, scheme};

/// Bytes of an update that share an exponent.
pub(super) const BLOCK: u64 = 1024;
/// Bytes of a float32.
pub(super) const VALUE: usize = 4;
/// Bytes before the pieces of a chunk: the length of the plain chunk, and a checksum.
pub(super) const PREFACE: usize = 8;
pub(super) const ZEROS: u8 = 0;
pub(super) const RAW: u8 = 1;
pub(super) const F16: u8 = 2;
const INT8: u8 = 3;
/// The smallest exponent `e`. Both 2^e and 2^-e are normal float32 values.
pub(super) const MIN_EXPONENT: i32 = -126;
/// Values with this magnitude (2^126) or more are not rounded: the result might be infinity.
pub(super) const ROUNDING_LIMIT: f32 = 8.507_059e37;

/// The format that float32 values are sent in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Half the bytes. The error is at most 2^-11 of each value.
    #[default]
    F16,
    /// A quarter of the bytes. The error is at most 1/127 of the largest value among 256 neighbours.
    Int8,
}

impl Format {
    /// Bytes of an encoded value.
    pub(super) fn bytes(self) -> usize {
        match self {
            Format::F16 => 2,
            Format::Int8 => 1,
        }
    }

    /// The exponent of a piece. `largest` is its largest magnitude, finite and not 0.
    pub(super) fn exponent(self, largest: f32) -> i32 {
        let power = (largest.to_bits() >> 23) as i32 - 127;
        let (least, fits): (i32, fn(f32) -> bool) = match self {
            Format::F16 => (power - 14, |scaled| half(scaled) < F16_LIMIT),
            Format::Int8 => (power - 6, |scaled| scaled <= 127.0),
        };
        let least = least.max(MIN_EXPONENT);
        if fits(largest * two_to(-least)) {
            least
        } else {
            least + 1
        }
    }

    /// Rounds the float32 values of a whole update to the values that every receiver gets.
    pub fn round(self, layout: &Layout, update: &mut [u8]) {
        let raw = others(layout);
        let end = layout.bytes().min(update.len() as u64);
        let (mut written, mut at) = (Vec::new(), 0);
        while at < end {
            let piece = Range::new(at, (at + BLOCK).min(end));
            let bytes = &mut update[piece.start as usize..piece.end as usize];
            written.clear();
            self.write(piece, bytes, &raw, &mut written);
            read(&written, bytes);
            at = piece.end;
        }
    }

    /// Appends the encoded piece to `out`.
    pub(super) fn write(self, piece: Range, bytes: &[u8], raw: &Ranges, out: &mut Vec<u8>) {
        let aligned = piece.start.is_multiple_of(VALUE as u64) && bytes.len().is_multiple_of(VALUE);
        // Look at the whole block, so that the result does not depend on how chunks cut it.
        let begin = piece.start / BLOCK * BLOCK;
        let other = raw.within(Range::new(begin, begin.saturating_add(BLOCK))).next().is_some();
        let fits = |largest: &f32| *largest < ROUNDING_LIMIT && aligned && !other;
        let Some(largest) = largest(bytes).filter(fits) else {
            out.push(RAW);
            out.extend_from_slice(bytes);
            return;
        };
        if largest == 0.0 {
            out.push(ZEROS);
            return;
        }
        let exponent = self.exponent(largest);
        let factor = two_to(-exponent);
        out.push(if self == Format::F16 { F16 } else { INT8 });
        out.push(exponent as i8 as u8);
        let scaled = values(bytes).map(|value| value * factor);
        match self {
            Format::F16 => scaled.for_each(|value| out.extend_from_slice(&half(value).to_le_bytes())),
            Format::Int8 => out.extend(scaled.map(|value| value.round_ties_even() as i8 as u8)),
        }
    }
}

/// The ranges of an update that are not float32 values. Padding between tensors is zero, and may count as
/// float32.
pub(super) fn others(layout: &Layout) -> Ranges {
    let tensors = layout.tensors().iter().filter(|tensor| tensor.dtype != Dtype::F32);
    tensors.map(|tensor| tensor.range()).filter(|range| !range.is_empty()).collect()
}

/// The pieces of a chunk, in order.
pub(super) fn pieces(chunk: Range) -> impl Iterator<Item = Range> {
    let mut at = chunk.start;
    std::iter::from_fn(move || {
        let end = (at / BLOCK + 1).saturating_mul(BLOCK).min(chunk.end);
        let piece = Range::new(at, end);
        at = end;
        (piece.start < piece.end).then_some(piece)
    })
}

/// Reads the length of the uncompressed chunk and the checksum from the head of a payload, without decoding it.
/// `None` if the length is over [`MAX_CHUNK`], or the rest is not exactly the encoded blocks of such a chunk at
/// `offset`.
pub(super) fn holds(offset: u64, payload: &[u8]) -> Option<(u32, u32)> {
    let (length, rest) = payload.split_first_chunk()?;
    let (sum, mut rest) = rest.split_first_chunk()?;
    let length = Some(u32::from_le_bytes(*length)).filter(|length| *length <= MAX_CHUNK)?;
    let mut left = Range::new(offset, offset.checked_add(length.into())?);
    while !left.is_empty() {
        let (piece, taken) = next(left, rest)?;
        rest = rest.get(taken..)?;
        left = Range::new(piece.end, left.end);
    }
    rest.is_empty().then_some((length, u32::from_le_bytes(*sum)))
}

/// The next piece of a chunk, and the number of its encoded bytes. `left` is the part of the chunk that is still to be
/// decoded; `rest` are the encoded bytes of that part. `None` if the piece is not valid.
fn next(left: Range, rest: &[u8]) -> Option<(Range, usize)> {
    if let Some(length) = low_rank::span_of(rest) {
        let piece = Range::new(left.start, left.start.checked_add(length.into())?);
        let taken = low_rank::written(rest)?;
        return (piece.end <= left.end).then_some((piece, taken));
    }
    let piece = pieces(left).next()?;
    Some((piece, written(piece.len() as usize, rest)?))
}

/// Number of bytes of the encoded piece that `rest` begins with. `length` is the number of its plain bytes.
/// `None` if the piece is not valid.
fn written(length: usize, rest: &[u8]) -> Option<usize> {
    let (&head, rest) = rest.split_first()?;
    let width = match head {
        ZEROS => return Some(1),
        RAW => return Some(1 + length),
        F16 => Format::F16.bytes(),
        INT8 => Format::Int8.bytes(),
        _ => return scheme::written(head, length, rest),
    };
    let is_valid = i32::from(*rest.first()? as i8) >= MIN_EXPONENT && length.is_multiple_of(VALUE);
    is_valid.then_some(2 + length / VALUE * width)
}

/// Decodes the pieces of a chunk at `offset` into `out`. Its length must be what [`holds`] returned.
pub(super) fn decode(offset: u64, payload: &[u8], out: &mut [u8]) {
    let mut rest = payload.get(PREFACE..).unwrap_or_default();
    let mut left = Range::new(offset, offset.saturating_add(out.len() as u64));
    while let Some((piece, taken)) = next(left, rest) {
        let at = (piece.start - offset) as usize;
        let (written, after) = rest.split_at(taken.min(rest.len()));
        read(written, &mut out[at..at + piece.len() as usize]);
        (rest, left) = (after, Range::new(piece.end, left.end));
    }
}

/// Decodes a piece into `out`.
fn read(written: &[u8], out: &mut [u8]) {
    let Some((&head, rest)) = written.split_first() else { return };
    match head {
        low_rank::SPAN | low_rank::LOW_RANK => return low_rank::read(written, out),
        ZEROS => return out.fill(0),
        RAW => return out.copy_from_slice(rest),
        F16 | INT8 => {}
        _ => return scheme::read(head, rest, out),
    }
    let Some((&exponent, packed)) = rest.split_first() else { return };
    let factor = two_to(i32::from(exponent as i8));
    let places = out.chunks_exact_mut(VALUE);
    if head == F16 {
        for (place, code) in places.zip(packed.chunks_exact(2)) {
            place.copy_from_slice(&(single(u16::from_le_bytes([code[0], code[1]])) * factor).to_le_bytes());
        }
    } else {
        for (place, &code) in places.zip(packed) {
            place.copy_from_slice(&(f32::from(code as i8) * factor).to_le_bytes());
        }
    }
}

fn values(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(VALUE).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The largest magnitude. `None` if a value is not finite.
fn largest(bytes: &[u8]) -> Option<f32> {
    // The bits of magnitudes are in the order of the magnitudes. Those of infinity and NaN are the largest.
    let largest = values(bytes).fold(0, |largest: u32, value| largest.max(value.abs().to_bits()));
    Some(f32::from_bits(largest)).filter(|value| value.is_finite())
}

/// 2 to the power `power`, which is from -126 to 127.
pub(super) fn two_to(power: i32) -> f32 {
    f32::from_bits(((power + 127) as u32) << 23)
}

/// 2^15 as float16.
const F16_LIMIT: u16 = 0x7800;
/// The least normal float16, and the step between smaller ones.
const NORMAL: f32 = 6.103_515_6e-5; // 2^-14
const STEP: f32 = 5.960_464_5e-8; // 2^-24

/// The float16 nearest to a value of at most 2^15, ties to even.
pub(super) fn half(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = value.abs();
    if magnitude < NORMAL {
        let code = (magnitude / STEP).round_ties_even() as u16;
        // Zero has no sign, so that all blocks of zeros are the same.
        return if code == 0 { 0 } else { sign | code };
    }
    let bits = magnitude.to_bits();
    let code = ((bits >> 13) - (112 << 10)) as u16;
    let rest = bits & 0x1fff;
    let up = rest > 0x1000 || (rest == 0x1000 && code & 1 == 1);
    sign | (code + u16::from(up))
}

/// The value of a float16. No sender encodes infinity or NaN, so their codes decode to large numbers.
pub(super) fn single(code: u16) -> f32 {
    let (exponent, fraction) = (u32::from(code >> 10 & 0x1f), u32::from(code & 0x3ff));
    let magnitude = match exponent {
        0 => fraction as f32 * STEP,
        _ => f32::from_bits((exponent + 112) << 23 | fraction << 13),
    };
    if code & 0x8000 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(values: u64) -> Layout {
        Layout::pack([("weights", Dtype::F32, vec![values])]).unwrap()
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn rounded(format: Format, values: &[f32]) -> Vec<f32> {
        let layout = layout(values.len() as u64);
        let mut update = bytes(values);
        format.round(&layout, &mut update);
        super::values(&update).collect()
    }

    /// The values that a receiver gets from a chunk of an update, after encoding and decoding.
    fn sent(format: Format, update: &[u8], chunk: Range) -> Vec<u8> {
        let mut payload = [((chunk.end - chunk.start) as u32).to_le_bytes(), [0; 4]].concat();
        for piece in pieces(chunk) {
            let bytes = &update[piece.start as usize..piece.end as usize];
            format.write(piece, bytes, &Ranges::new(), &mut payload);
        }
        let mut out = vec![0xaa; holds(chunk.start, &payload).unwrap().0 as usize];
        decode(chunk.start, &payload, &mut out);
        out
    }

    fn formats() -> impl Strategy<Value = Format> {
        prop_oneof![Just(Format::F16), Just(Format::Int8)]
    }

    fn floats() -> impl Strategy<Value = Vec<f32>> {
        let wild = any::<f32>().prop_filter("those that are rounded", |value| value.abs() < ROUNDING_LIMIT);
        proptest::collection::vec(prop_oneof![-1.0_f32..1.0, wild, Just(0.0)], 1..900)
    }

    proptest! {
        #[test]
        fn errors_are_bounded_by_the_largest_value_of_a_block(format in formats(), values in floats()) {
            let found = rounded(format, &values);
            for (before, after) in values.chunks(256).zip(found.chunks(256)) {
                let largest = before.iter().fold(0.0_f64, |most, value| most.max(f64::from(value.abs())));
                for (&a, &b) in before.iter().zip(after) {
                    let error = (f64::from(a) - f64::from(b)).abs();
                    let bound = match format {
                        Format::F16 => (f64::from(a.abs()) / 2048.0).max(largest / 2_f64.powi(39)),
                        Format::Int8 => largest / 127.0,
                    };
                    // Values below the least exponent's range may lose all digits.
                    prop_assert!(error <= bound.max(2_f64.powi(-127)), "{a} became {b}, largest {largest}");
                }
            }
        }

        #[test]
        fn what_was_rounded_stays_however_it_is_cut(
            format in formats(), values in floats(), from in 0_usize..900, many in 1_usize..900
        ) {
            let update = bytes(&rounded(format, &values));
            let first = from % values.len();
            let last = (first + many).min(values.len());
            let chunk = Range::new(4 * first as u64, 4 * last as u64);
            prop_assert_eq!(&sent(format, &update, chunk)[..], &update[4 * first..4 * last]);
        }

        #[test]
        fn no_payload_makes_it_panic(
            length in 0_u32..5000, heads in proptest::collection::vec(0_u8..5, 0..600), offset in any::<u64>()
        ) {
            let payload = [&length.to_le_bytes()[..], &[0; 4], &heads].concat();
            if let Some((length, _)) = holds(offset, &payload) {
                decode(offset, &payload, &mut vec![0; length as usize]);
            }
        }
    }

    #[test]
    fn halves_are_those_of_ieee() {
        for code in 0..0x7c00_u16 {
            let value = single(code);
            if value <= 32768.0 {
                assert_eq!(half(value), code);
                assert_eq!(half(-value), if code == 0 { 0 } else { code | 0x8000 });
            }
        }
        // 1 + 2^-11 is halfway between two float16 values. The even one is 1.
        assert_eq!(half(1.0 + 1.0 / 2048.0), half(1.0));
        assert_eq!(half(1.0 + 3.0 / 2048.0), half(1.0 + 2.0 / 1024.0));
        assert_eq!((single(0x3c00), single(0x0001), single(0xc000)), (1.0, STEP, -2.0));
    }

    #[test]
    fn what_is_not_finite_or_no_float32_goes_as_it_is() {
        let odd = [1.0, f32::NAN, 3.3, f32::INFINITY];
        assert_eq!(rounded(Format::Int8, &odd).map_bits(), odd.to_vec().map_bits());
        let mixed =
            Layout::pack([("steps", Dtype::I64, vec![3]), ("weights", Dtype::F32, vec![600])]).unwrap();
        let mut update: Vec<u8> = (0..mixed.bytes()).map(|at| (at % 63) as u8).collect();
        let before = update.clone();
        Format::Int8.round(&mixed, &mut update);
        assert_eq!(update[..1024], before[..1024], "the block of the integers");
        assert_ne!(update[1024..], before[1024..]);
    }

    trait Bits {
        fn map_bits(self) -> Vec<u32>;
    }

    impl Bits for Vec<f32> {
        fn map_bits(self) -> Vec<u32> {
            self.into_iter().map(f32::to_bits).collect()
        }
    }

    #[test]
    fn sizes_are_those_of_the_table() {
        let mut out = Vec::new();
        let piece = Range::new(0, BLOCK);
        for (format, value, size) in [
            (Format::F16, 0.5_f32, 514),
            (Format::Int8, 0.5, 258),
            (Format::Int8, 0.0, 1),
            (Format::F16, f32::NAN, 1025),
        ] {
            out.clear();
            format.write(piece, &bytes(&[value; 256]), &Ranges::new(), &mut out);
            assert_eq!(out.len(), size);
        }
    }
}
