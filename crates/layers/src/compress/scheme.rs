//! Compression with error feedback: which values of an update are sent, and how they are encoded.
//!
//! A sender first rounds a whole update ([`Scheme::round`]). It adds what rounding left out to its next
//! update ([`Scheme::feed_back`]). The layer then encodes the rounded values exactly. A piece that the scheme
//! cannot encode exactly is sent as it is. Such pieces are parts of a block that a chunk has cut, and values
//! that were not rounded, for example those of a whole model.
//!
//! Encoded pieces have one of these heads, or one of [`super::codec`]. A step is a float32 whose lower 16 bits
//! are 0. It has 8 significant bits, so a step times a code is exact.
//!
//! | head | the bytes after it |
//! |---|---|
//! | 4 | step (u16), codes as i8: value = step * code |
//! | 5 | step (u16), codes of 4 bits, the first in the lower half of a byte |
//! | 6 | step (u16), codes of 2 bits, the first in the lowest bits of a byte |
//! | 7 | exponent (i8), count - 1 (u8), `count` ascending indices (u8), `count` values / 2^e as float16 |

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thalweg_wire::{Dtype, Layout, Range, Ranges};

use super::codec::{
    half, others, single, two_to, BLOCK, F16, MIN_EXPONENT, RAW, ROUNDING_LIMIT, VALUE, ZEROS,
};
use super::low_rank::{LowRank, MAX_RANK};
use super::Format;

pub(super) const STEP8: u8 = 4;
pub(super) const STEP4: u8 = 5;
pub(super) const STEP2: u8 = 6;
pub(super) const SPARSE: u8 = 7;
/// Values of a block.
const VALUES: usize = BLOCK as usize / VALUE;
/// Sums of a block are added in this many lanes, which compilers turn into vector instructions.
const LANES: usize = 16;
/// With 2 bits, a value is sent if its magnitude is over this fraction of the block's mean magnitude (Li and
/// Liu 2016, section 2.3).
const TERNARY_THRESHOLD: f32 = 0.7;

/// How a sender rounds its updates. It keeps what rounding leaves out, the residual.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scheme {
    /// 8 bits a value: a multiple of the block's step, which is 1/127 of the largest magnitude.
    Int8,
    /// 4 bits a value: a multiple of the block's step, which is 1/7 of the largest magnitude.
    Int4,
    /// 2 bits a value: one step, 0, or minus one step (ternary weight networks, Li and Liu 2016). The step is
    /// the mean magnitude of the values that do not become 0.
    Int2,
    /// Only this fraction of an update's values, those with the largest magnitudes, as float16.
    TopK(f64),
    /// Each matrix as the product of two factors of this rank ([`super::low_rank`]), other values as they are.
    PowerSgd(u16),
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Int8 => f.write_str("int8"),
            Scheme::Int4 => f.write_str("int4"),
            Scheme::Int2 => f.write_str("int2"),
            Scheme::TopK(fraction) => write!(f, "topk:{fraction}"),
            Scheme::PowerSgd(rank) => write!(f, "powersgd:{rank}"),
        }
    }
}

impl From<Scheme> for String {
    fn from(scheme: Scheme) -> Self {
        scheme.to_string()
    }
}

impl TryFrom<String> for Scheme {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Scheme {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "int8" => return Ok(Scheme::Int8),
            "int4" => return Ok(Scheme::Int4),
            "int2" => return Ok(Scheme::Int2),
            _ => {}
        }
        let rank = text.strip_prefix("powersgd:").and_then(|rank| rank.parse::<u16>().ok());
        if let Some(rank) = rank.filter(|rank| (1..=MAX_RANK).contains(rank)) {
            return Ok(Scheme::PowerSgd(rank));
        }
        let fraction = text.strip_prefix("topk:").and_then(|fraction| fraction.parse::<f64>().ok());
        let fraction = fraction.filter(|fraction| *fraction > 0.0 && *fraction <= 1.0);
        fraction.map(Scheme::TopK).ok_or_else(|| {
            format!(
                "{text:?} is no compression: take int8, int4, int2, topk:F with F over 0 and at most 1, or powersgd:R \
                 with R from 1 to {MAX_RANK}"
            )
        })
    }
}

/// The values of a piece, at most those of a block.
struct Piece {
    values: [f32; VALUES],
    count: usize,
}

impl Piece {
    /// The values in these bytes. `None` if they are not whole values, or more than a block has.
    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > BLOCK as usize || !bytes.len().is_multiple_of(VALUE) {
            return None;
        }
        let mut values = [0.0; VALUES];
        for (value, word) in values.iter_mut().zip(bytes.chunks_exact(VALUE)) {
            *value = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        }
        Some(Self { values, count: bytes.len() / VALUE })
    }

    /// The largest magnitude. `None` if a value is not finite, or so large that rounding might make it so.
    fn largest(&self) -> Option<f32> {
        // The bits of magnitudes are in the order of the magnitudes. Those of infinity and NaN are the largest.
        let largest = self.values.iter().fold(0, |largest: u32, value| largest.max(value.abs().to_bits()));
        Some(f32::from_bits(largest)).filter(|value| *value < ROUNDING_LIMIT)
    }

    fn write(&self, bytes: &mut [u8]) {
        for (word, value) in bytes.chunks_exact_mut(VALUE).zip(&self.values) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn fill(&mut self, value: f32) {
        self.values.fill(value);
    }

    /// Replaces each value by the nearest multiple of the step. The step is `largest / levels`.
    fn round_to_steps(&mut self, largest: f32, levels: f32) {
        let Some(step) = step_of(largest / levels) else { return self.fill(0.0) };
        for value in &mut self.values {
            *value = nearest(*value / step).clamp(-levels, levels) * step;
        }
    }

    /// Replaces each value by 0 or plus or minus a step.
    fn round_to_three(&mut self, largest: f32) {
        // Divide by the largest value, so that no sum overflows.
        let relative = self.values.map(|value| value.abs() / largest);
        let (total, _) = sums(&relative, 0.0);
        let least = TERNARY_THRESHOLD * total / self.count as f32;
        let (kept, many) = sums(&relative, least);
        let Some(step) = step_of(kept / many.max(1.0) * largest) else { return self.fill(0.0) };
        for (value, relative) in self.values.iter_mut().zip(relative) {
            *value = if relative > least { step.copysign(*value) } else { 0.0 };
        }
    }

    /// Replaces each value by its float16 with the block's exponent.
    fn round_to_halves(&mut self, largest: f32) {
        if largest == 0.0 {
            return self.fill(0.0);
        }
        let exponent = Format::F16.exponent(largest);
        let (into, back) = (two_to(-exponent), two_to(exponent));
        for value in &mut self.values {
            *value = single(half(*value * into)) * back;
        }
    }

    /// Appends the codes of the values. Returns false if a value is not a step times a code of `bits` bits.
    fn write_steps(&self, largest: f32, bits: u8, out: &mut Vec<u8>) -> bool {
        let (head, levels) = match bits {
            8 => (STEP8, 127.0),
            4 => (STEP4, 7.0),
            _ => (STEP2, 1.0),
        };
        let exact = largest / levels;
        let Some(step) = step_of(exact).filter(|step| *step == exact) else { return false };
        let mut codes = [0_i8; VALUES];
        let mut is_exact = true;
        for (code, value) in codes.iter_mut().zip(&self.values) {
            *code = nearest(value / step) as i32 as i8;
            is_exact &= f32::from(*code) * step == *value;
        }
        if !is_exact {
            return false;
        }
        out.push(head);
        out.extend_from_slice(&((step.to_bits() >> 16) as u16).to_le_bytes());
        let codes = &codes[..self.count];
        match bits {
            8 => out.extend(codes.iter().map(|&code| code as u8)),
            4 => out.extend(codes.chunks(2).map(|pair| packed(pair, 4))),
            _ => out.extend(codes.chunks(4).map(|four| packed(four, 2))),
        }
        true
    }

    /// Appends the values as float16, without zeros if that is shorter. Returns false, and appends nothing,
    /// if float16 would not be exact.
    fn write_halves(&self, largest: f32, out: &mut Vec<u8>) -> bool {
        let exponent = Format::F16.exponent(largest);
        let (into, back) = (two_to(-exponent), two_to(exponent));
        let mut halves = [0_u16; VALUES];
        let (mut many, mut is_exact) = (0, true);
        for (place, value) in halves.iter_mut().zip(&self.values) {
            if *value != 0.0 {
                *place = half(*value * into);
                many += 1;
                is_exact &= single(*place) * back == *value;
            }
        }
        if !is_exact {
            return false;
        }
        if many * 3 >= self.count * 2 {
            out.extend_from_slice(&[F16, exponent as i8 as u8]);
            halves[..self.count].iter().for_each(|code| out.extend_from_slice(&code.to_le_bytes()));
            return true;
        }
        out.extend_from_slice(&[SPARSE, exponent as i8 as u8, (many - 1) as u8]);
        let sent = || halves.iter().enumerate().filter(|(_, code)| **code != 0);
        out.extend(sent().map(|(index, _)| index as u8));
        sent().for_each(|(_, code)| out.extend_from_slice(&code.to_le_bytes()));
        true
    }
}

/// The whole number nearest to a value of at most 2^22, ties to even; never -0. A float32 between 2^23 and
/// 2^24 has no fraction bits, so the addition rounds. Compilers turn this into vector instructions, which they
/// cannot do with a call of the C library.
fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
    (value + SHIFT) - SHIFT
}

/// The sum of the values that are greater than `least`, and their number.
fn sums(values: &[f32], least: f32) -> (f32, f32) {
    let (mut total, mut many) = ([0.0_f32; LANES], [0.0_f32; LANES]);
    for lanes in values.chunks(LANES) {
        for ((total, many), value) in total.iter_mut().zip(&mut many).zip(lanes) {
            let counts = f32::from(u8::from(*value > least));
            *total += counts * value;
            *many += counts;
        }
    }
    (total.iter().sum(), many.iter().sum())
}

/// Codes of `bits` bits in one byte, the first in the lowest bits.
fn packed(codes: &[i8], bits: u32) -> u8 {
    let mask = (1_u8 << bits) - 1;
    codes.iter().rev().fold(0, |byte, &code| (byte << bits) | (code as u8 & mask))
}

/// The step nearest to `step` (8 significant bits). `None` if it is too small for a normal float32.
fn step_of(step: f32) -> Option<f32> {
    let bits = step.to_bits();
    let even = bits >> 16 & 1;
    let step = f32::from_bits((bits + 0x7fff + even) & 0xffff_0000);
    step.is_normal().then_some(step)
}

impl Scheme {
    /// About how many bytes an encoded block has, if its values were rounded.
    pub(super) fn block_bytes(self) -> u64 {
        match self {
            Scheme::Int8 => 3 + VALUES as u64,
            Scheme::Int4 => 3 + VALUES as u64 / 2,
            Scheme::Int2 => 3 + VALUES as u64 / 4,
            Scheme::TopK(fraction) => {
                (3.0 + 3.0 * fraction * VALUES as f64).min(2.0 * VALUES as f64) as u64 + 1
            }
            // The larger a chunk, the fewer copies of factors: as many blocks as a chunk may have.
            Scheme::PowerSgd(_) => 1,
        }
    }

    /// Replaces the float32 values of a whole update by what every receiver gets. Blocks with other values,
    /// with values that are not finite, or with some from 2^126 on stay as they are. So do all values with
    /// [`Scheme::PowerSgd`], whose factors are [`LowRank::round`]'s.
    pub fn round(self, layout: &Layout, update: &mut [u8]) {
        if matches!(self, Scheme::PowerSgd(_)) {
            return;
        }
        let raw = others(layout);
        let end = layout.bytes().min(update.len() as u64) as usize;
        let least = match self {
            Scheme::TopK(fraction) => Some(threshold(fraction, &raw, &update[..end])),
            _ => None,
        };
        let mut budget = least.map_or(0, |(_, ties)| ties);
        for (piece, bytes) in blocks(&mut update[..end]) {
            if is_other(&raw, piece) {
                continue;
            }
            let Some(mut values) = Piece::read(bytes) else { continue };
            let Some(largest) = values.largest() else { continue };
            match (self, least) {
                (Scheme::TopK(_), Some((least, _))) => {
                    let largest = keep_largest(&mut values, least, &mut budget);
                    values.round_to_halves(largest);
                }
                _ if largest == 0.0 => values.fill(0.0),
                (Scheme::Int4, _) => values.round_to_steps(largest, 7.0),
                (Scheme::Int2, _) => values.round_to_three(largest),
                _ => values.round_to_steps(largest, 127.0),
            }
            values.write(bytes);
        }
    }

    /// Appends the encoded piece to `out`, without loss.
    pub(super) fn write(self, piece: Range, bytes: &[u8], raw: &Ranges, out: &mut Vec<u8>) {
        let aligned = piece.start.is_multiple_of(VALUE as u64) && !is_other(raw, piece);
        let values = Piece::read(bytes).filter(|_| aligned);
        let found = values.and_then(|values| values.largest().map(|largest| (values, largest)));
        let written = found.is_some_and(|(values, largest)| {
            if largest == 0.0 {
                out.push(ZEROS);
                return true;
            }
            match self {
                Scheme::Int8 => values.write_steps(largest, 8, out),
                Scheme::Int4 => values.write_steps(largest, 4, out),
                Scheme::Int2 => values.write_steps(largest, 2, out),
                Scheme::TopK(_) => values.write_halves(largest, out),
                Scheme::PowerSgd(_) => false,
            }
        });
        if !written {
            out.push(RAW);
            out.extend_from_slice(bytes);
        }
    }

    /// Makes the update that a sender sends of a trained model. `sent` holds the model that training began
    /// with, and gets the update: the rounded difference of float32 values, other values as they are.
    /// `residual` holds what earlier updates left out, one value for each four bytes of the model, and gets
    /// what this one leaves out. `low_rank` has the factors of [`Scheme::PowerSgd`].
    pub fn feed_back(
        self,
        layout: &Layout,
        trained: &[u8],
        sent: &mut [u8],
        residual: &mut [f32],
        low_rank: Option<&mut LowRank>,
    ) {
        let places = floats(layout, sent.len().min(trained.len()).min(residual.len() * VALUE));
        for other in others(layout).iter() {
            let range = other.start as usize..(other.end as usize).min(sent.len()).min(trained.len());
            sent[range.clone()].copy_from_slice(&trained[range]);
        }
        for range in &places {
            let left = &mut residual[range.start / VALUE..range.end / VALUE];
            let words =
                sent[range.clone()].chunks_exact_mut(VALUE).zip(trained[range.clone()].chunks_exact(VALUE));
            for ((base, now), left) in words.zip(left) {
                *left += value(now) - value(base);
                base.copy_from_slice(&left.to_le_bytes());
            }
        }
        match low_rank {
            Some(low_rank) => low_rank.round(sent),
            None => self.round(layout, sent),
        }
        for range in &places {
            let left = &mut residual[range.start / VALUE..range.end / VALUE];
            for (left, sent) in left.iter_mut().zip(sent[range.clone()].chunks_exact(VALUE)) {
                let rest = *left - value(sent);
                *left = if rest.is_finite() { rest } else { 0.0 };
            }
        }
    }
}

/// Adds the lost ranges of an update back to its sender's residual, so that they are sent later.
pub fn put_back(layout: &Layout, sent: &[u8], lost: &Ranges, residual: &mut [f32]) {
    for range in floats(layout, sent.len().min(residual.len() * VALUE)) {
        for part in lost.within(Range::new(range.start as u64, range.end as u64)) {
            // A value counts as lost if any of its bytes is missing.
            let (from, to) = (part.start as usize / VALUE, (part.end as usize).div_ceil(VALUE));
            for (left, sent) in residual[from..to].iter_mut().zip(sent[from * VALUE..].chunks_exact(VALUE)) {
                let sum = *left + value(sent);
                *left = if sum.is_finite() { sum } else { 0.0 };
            }
        }
    }
}

/// The ranges of a model's float32 tensors, in its first `bytes` bytes.
pub fn floats(layout: &Layout, bytes: usize) -> Vec<std::ops::Range<usize>> {
    let tensors = layout.tensors().iter().filter(|tensor| tensor.dtype == Dtype::F32);
    let ranges = tensors.map(|tensor| tensor.range()).map(|range| range.start as usize..range.end as usize);
    ranges.filter(|range| range.start < range.end && range.end <= bytes).collect()
}

pub(super) fn value(word: &[u8]) -> f32 {
    f32::from_le_bytes([word[0], word[1], word[2], word[3]])
}

/// The blocks of an update, each with its range.
fn blocks(update: &mut [u8]) -> impl Iterator<Item = (Range, &mut [u8])> {
    update.chunks_mut(BLOCK as usize).enumerate().map(|(number, bytes)| {
        let start = number as u64 * BLOCK;
        (Range::new(start, start + bytes.len() as u64), bytes)
    })
}

/// Whether the block that `piece` belongs to has values that are not float32.
fn is_other(raw: &Ranges, piece: Range) -> bool {
    let begin = piece.start / BLOCK * BLOCK;
    raw.within(Range::new(begin, begin.saturating_add(BLOCK))).next().is_some()
}

/// The threshold of top-k: the smallest magnitude, as bits, that is sent if `fraction` of an update's values
/// are sent; and how many values of exactly this magnitude are sent. Blocks that are not rounded are ignored.
fn threshold(fraction: f64, raw: &Ranges, update: &[u8]) -> (u32, usize) {
    let counted = || {
        let all = update.chunks(BLOCK as usize).enumerate();
        all.filter_map(|(number, bytes)| {
            let start = number as u64 * BLOCK;
            let piece = Piece::read(bytes).filter(|_| !is_other(raw, Range::new(start, start + 1)))?;
            piece.largest().map(|_| piece)
        })
    };
    // Radix selection: counts values by the upper 16 bits of their magnitude. Then it counts the values of the
    // class with the threshold by the lower 16 bits.
    let mut upper = vec![0_usize; 1 << 15];
    let mut total = 0;
    for piece in counted() {
        piece.values[..piece.count]
            .iter()
            .for_each(|value| upper[(value.abs().to_bits() >> 16) as usize] += 1);
        total += piece.count;
    }
    let wanted = (fraction * total as f64).ceil() as usize;
    let (class, left) = last_of(&upper, wanted);
    let mut lower = vec![0_usize; 1 << 16];
    for piece in counted() {
        let bits = piece.values[..piece.count].iter().map(|value| value.abs().to_bits());
        bits.filter(|bits| bits >> 16 == class).for_each(|bits| lower[(bits & 0xffff) as usize] += 1);
    }
    let (rest, ties) = last_of(&lower, left);
    (class << 16 | rest, ties)
}

/// Counts values from the highest class down to the `wanted`-th. Returns the class of that value, and how
/// many of the counted values are in this class.
fn last_of(counts: &[usize], wanted: usize) -> (u32, usize) {
    let mut left = wanted;
    for (class, &count) in counts.iter().enumerate().rev() {
        if count >= left {
            return (class as u32, left);
        }
        left -= count;
    }
    (0, left)
}

/// Replaces values below the threshold `least` by 0. `ties` is the number of values equal to the threshold
/// that may stay; it is decremented for each. Returns the largest magnitude that stays.
fn keep_largest(piece: &mut Piece, least: u32, ties: &mut usize) -> f32 {
    let mut largest = 0_u32;
    for value in &mut piece.values[..piece.count] {
        let bits = value.abs().to_bits();
        let is_tie = bits == least && *ties > 0;
        *ties -= usize::from(is_tie);
        if bits > least || is_tie {
            largest = largest.max(bits);
        } else {
            *value = 0.0;
        }
    }
    f32::from_bits(largest)
}

/// Number of bytes of an encoded piece with one of this module's heads. `rest` begins after the head, and
/// `length` is the number of the piece's plain bytes. `None` if the piece is not valid.
pub(super) fn written(head: u8, length: usize, rest: &[u8]) -> Option<usize> {
    if !length.is_multiple_of(VALUE) {
        return None;
    }
    let values = length / VALUE;
    if head == SPARSE {
        let (&exponent, &count) = (rest.first()?, rest.get(1)?);
        let indices = rest.get(2..2 + usize::from(count) + 1)?;
        let fits = indices.windows(2).all(|pair| pair[0] < pair[1])
            && indices.last().is_some_and(|&last| usize::from(last) < values);
        return (fits && i32::from(exponent as i8) >= MIN_EXPONENT).then_some(3 + 3 * indices.len());
    }
    let (per_byte, largest_code) = match head {
        STEP8 => (1, 128.0),
        STEP4 => (2, 8.0),
        STEP2 => (4, 2.0),
        _ => return None,
    };
    let step = step_at(rest)?;
    (step.is_normal() && step > 0.0 && (step * largest_code).is_finite())
        .then_some(3 + values.div_ceil(per_byte))
}

fn step_at(rest: &[u8]) -> Option<f32> {
    let (bytes, _) = rest.split_first_chunk()?;
    Some(f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16))
}

/// Decodes a piece of one of this module's heads into `out`. `rest` is what follows the head.
pub(super) fn read(head: u8, rest: &[u8], out: &mut [u8]) {
    if head == SPARSE {
        return read_sparse(rest, out);
    }
    let (Some(step), Some(codes)) = (step_at(rest), rest.get(2..)) else { return };
    let places = out.chunks_exact_mut(VALUE);
    let put = |(place, code): (&mut [u8], i8)| place.copy_from_slice(&(f32::from(code) * step).to_le_bytes());
    match head {
        STEP8 => places.zip(codes.iter().map(|&code| code as i8)).for_each(put),
        STEP4 => {
            places.zip(codes.iter().flat_map(|&byte| [(byte << 4) as i8 >> 4, byte as i8 >> 4])).for_each(put)
        }
        _ => {
            let four = |&byte: &u8| [6, 4, 2, 0].map(|left| (byte << left) as i8 >> 6);
            places.zip(codes.iter().flat_map(four)).for_each(put);
        }
    }
}

fn read_sparse(rest: &[u8], out: &mut [u8]) {
    out.fill(0);
    let [exponent, count, rest @ ..] = rest else { return };
    let Some((indices, values)) = rest.split_at_checked(usize::from(*count) + 1) else { return };
    let factor = two_to(i32::from(*exponent as i8));
    for (&index, code) in indices.iter().zip(values.chunks_exact(2)) {
        let at = usize::from(index) * VALUE;
        if let Some(place) = out.get_mut(at..at + VALUE) {
            place.copy_from_slice(&(single(u16::from_le_bytes([code[0], code[1]])) * factor).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::codec::{decode, holds, pieces, PREFACE};
    use super::*;

    const SCHEMES: [Scheme; 5] =
        [Scheme::Int8, Scheme::Int4, Scheme::Int2, Scheme::TopK(0.01), Scheme::TopK(0.9)];

    fn layout(values: usize) -> Layout {
        Layout::pack([("weights", Dtype::F32, vec![values as u64])]).unwrap()
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn values(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(VALUE).map(value).collect()
    }

    fn rounded(scheme: Scheme, update: &[f32]) -> Vec<f32> {
        let mut sent = bytes(update);
        scheme.round(&layout(update.len()), &mut sent);
        values(&sent)
    }

    /// The payload of a chunk of an update.
    fn payload(scheme: Scheme, update: &[u8], chunk: Range) -> Vec<u8> {
        let mut payload = [&(chunk.len() as u32).to_le_bytes()[..], &[0; PREFACE - 4]].concat();
        for piece in pieces(chunk) {
            let part = &update[piece.start as usize..piece.end as usize];
            scheme.write(piece, part, &Ranges::new(), &mut payload);
        }
        payload
    }

    fn received(payload: &[u8], chunk: Range) -> Vec<u8> {
        let mut out = vec![0xaa; holds(chunk.start, payload).unwrap().0 as usize];
        decode(chunk.start, payload, &mut out);
        out
    }

    /// The update of the plain reference: block by block, in float64.
    fn plainly(scheme: Scheme, update: &[f32]) -> Vec<f64> {
        let magnitude = |value: &f64| value.abs();
        let by_steps = |block: &[f64], levels: f64| -> Vec<f64> {
            let largest = block.iter().map(magnitude).fold(0.0, f64::max);
            let step = largest / levels;
            block
                .iter()
                .map(|v| if step == 0.0 { 0.0 } else { (v / step).round_ties_even() * step })
                .collect()
        };
        let all: Vec<f64> = update.iter().map(|&value| f64::from(value)).collect();
        match scheme {
            Scheme::Int8 => all.chunks(256).flat_map(|block| by_steps(block, 127.0)).collect(),
            Scheme::Int4 => all.chunks(256).flat_map(|block| by_steps(block, 7.0)).collect(),
            Scheme::Int2 => all
                .chunks(256)
                .flat_map(|block| {
                    let least = 0.7 * block.iter().map(magnitude).sum::<f64>() / block.len() as f64;
                    let kept: Vec<f64> = block.iter().map(magnitude).filter(|v| *v > least).collect();
                    let step = kept.iter().sum::<f64>() / kept.len().max(1) as f64;
                    block
                        .iter()
                        .map(move |v| if v.abs() > least { step * v.signum() } else { 0.0 })
                        .collect::<Vec<f64>>()
                })
                .collect(),
            Scheme::TopK(fraction) => {
                let wanted = (fraction * all.len() as f64).ceil() as usize;
                let mut order: Vec<usize> = (0..all.len()).collect();
                order.sort_by(|&a, &b| all[b].abs().total_cmp(&all[a].abs()).then(a.cmp(&b)));
                let mut kept = vec![0.0; all.len()];
                order[..wanted].iter().for_each(|&at| kept[at] = all[at]);
                kept
            }
            Scheme::PowerSgd(_) => unreachable!("low_rank.rs has its reference"),
        }
    }

    fn schemes() -> impl Strategy<Value = Scheme> {
        prop_oneof![
            Just(Scheme::Int8),
            Just(Scheme::Int4),
            Just(Scheme::Int2),
            (0.001_f64..1.0).prop_map(Scheme::TopK)
        ]
    }

    fn floats() -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(prop_oneof![-1.0_f32..1.0, -1e-3_f32..1e-3, Just(0.0)], 1..900)
    }

    fn wild() -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(prop_oneof![-1.0_f32..1.0, any::<f32>(), Just(0.0)], 1..900)
    }

    fn norm(values: impl Iterator<Item = f64>) -> f64 {
        values.map(|value| value * value).sum::<f64>().sqrt()
    }

    proptest! {
        #[test]
        fn it_is_as_exact_as_the_plain_reference(scheme in schemes(), update in floats()) {
            let (found, expected) = (rounded(scheme, &update), plainly(scheme, &update));
            for (number, block) in update.chunks(256).enumerate() {
                let part = number * 256..number * 256 + block.len();
                let error = |sent: &dyn Fn(usize) -> f64| {
                    norm(part.clone().map(|at| f64::from(update[at]) - sent(at)))
                };
                let (ours, plain) = (error(&|at| f64::from(found[at])), error(&|at| expected[at]));
                let whole = norm(block.iter().map(|&value| f64::from(value)));
                // A step has 8 significant bits, and a float16 has more.
                prop_assert!(ours <= plain + whole / 128.0, "{scheme}: {ours}, plainly {plain}, of {whole}");
                prop_assert!(ours <= whole, "{scheme} makes a block worse than sending nothing");
            }
        }

        #[test]
        fn what_was_rounded_arrives_however_it_is_cut(
            scheme in schemes(), update in wild(), from in 0_usize..900, many in 1_usize..900
        ) {
            let sent = bytes(&rounded(scheme, &update));
            let first = from % update.len();
            let chunk = Range::new(4 * first as u64, 4 * (first + many).min(update.len()) as u64);
            let part = &sent[chunk.start as usize..chunk.end as usize];
            prop_assert_eq!(&received(&payload(scheme, &sent, chunk), chunk)[..], part);
        }

        #[test]
        fn what_was_not_rounded_arrives_as_it_is(scheme in schemes(), update in wild()) {
            let chunk = Range::new(0, 4 * update.len() as u64);
            let sent = bytes(&update);
            let found = received(&payload(scheme, &sent, chunk), chunk);
            for (before, after) in sent.chunks(4).zip(found.chunks(4)) {
                // -0 may arrive as 0.
                prop_assert!(before == after || (value(before) == 0.0 && value(after) == 0.0));
            }
        }

        #[test]
        fn nothing_is_lost_between_what_was_sent_and_what_was_left_out(
            scheme in schemes(), updates in proptest::collection::vec(floats(), 1..6)
        ) {
            let many = updates.iter().map(Vec::len).min().unwrap_or(0);
            let layout = layout(many);
            let (mut residual, mut sums) = (vec![0.0; many], vec![0.0_f64; many]);
            for update in &updates {
                let mut sent = bytes(&vec![0.5; many]);
                let trained: Vec<f32> = update[..many].iter().map(|change| change + 0.5).collect();
                scheme.feed_back(&layout, &bytes(&trained), &mut sent, &mut residual, None);
                sums.iter_mut().zip(values(&sent)).for_each(|(sum, value)| *sum += f64::from(value));
            }
            for at in 0..many {
                let whole: f64 = updates.iter().map(|update| f64::from(update[at])).sum();
                let found = sums[at] + f64::from(residual[at]);
                prop_assert!((found - whole).abs() < 1e-5, "{found} of {whole}");
            }
        }

        #[test]
        fn as_many_values_are_sent_as_asked(fraction in 0.001_f64..1.0, update in floats()) {
            // Many magnitudes are equal to the threshold. Those that come first are sent.
            let same: Vec<f32> = update.iter().map(|value| (value * 4.0).round() / 4.0).collect();
            let wanted = (fraction * same.len() as f64).ceil() as usize;
            let there = same.iter().filter(|value| **value != 0.0).count();
            let sent = rounded(Scheme::TopK(fraction), &same);
            prop_assert_eq!(sent.iter().filter(|value| **value != 0.0).count(), wanted.min(there));
        }

        #[test]
        fn no_payload_makes_it_panic(
            length in 0_u32..5000, heads in proptest::collection::vec(0_u8..9, 0..600), offset in any::<u64>()
        ) {
            let payload = [&length.to_le_bytes()[..], &[0; 4], &heads].concat();
            if let Some((length, _)) = holds(offset, &payload) {
                decode(offset, &payload, &mut vec![0; length as usize]);
            }
        }
    }

    #[test]
    fn sizes_are_those_of_the_table() {
        let mut update: Vec<f32> = (0..256).map(|at| ((at * 37 % 101) as f32 - 50.0) / 50.0).collect();
        update[0] = 1.0;
        let size = |scheme: Scheme| {
            let sent = bytes(&rounded(scheme, &update));
            payload(scheme, &sent, Range::new(0, 1024)).len() - PREFACE
        };
        assert_eq!(SCHEMES.map(size), [259, 131, 67, 12, 514]);
        let whole = payload(Scheme::Int8, &bytes(&[0.123_456_7; 256]), Range::new(0, 1024));
        assert_eq!(whole.len() - PREFACE, 1025, "values that were not rounded");
    }

    #[test]
    fn an_update_is_a_difference_and_what_did_not_count_is_put_back() {
        let mixed =
            Layout::pack([("steps", Dtype::I64, vec![3]), ("weights", Dtype::F32, vec![600])]).unwrap();
        let weights = mixed.tensors()[1].range().start as usize;
        let mut received = vec![0; mixed.bytes() as usize];
        let mut trained = received.clone();
        trained[..8].copy_from_slice(&7_i64.to_le_bytes());
        for (at, word) in trained[weights..].chunks_exact_mut(4).take(600).enumerate() {
            word.copy_from_slice(&(at as f32).to_le_bytes());
        }
        let mut residual = vec![0.0; received.len() / 4];
        Scheme::Int2.feed_back(&mixed, &trained, &mut received, &mut residual, None);
        assert_eq!(received[..8], trained[..8], "integers go as they are");
        let left: f32 = residual.iter().map(|value| value.abs()).sum();
        assert!(left > 0.0);
        put_back(&mixed, &received, &Ranges::full(mixed.bytes()), &mut residual);
        assert_eq!(
            residual[weights / 4..weights / 4 + 600].to_vec(),
            values(&trained[weights..weights + 2400])
        );
    }

    #[test]
    fn what_is_not_finite_goes_as_it_is_and_leaves_nothing() {
        let odd = [1.0, f32::NAN, 3.3, f32::INFINITY];
        let mut residual = vec![0.0; 4];
        let mut sent = bytes(&[0.0; 4]);
        Scheme::Int8.feed_back(&layout(4), &bytes(&odd), &mut sent, &mut residual, None);
        assert!(values(&sent)[1].is_nan() && values(&sent)[3].is_infinite());
        assert_eq!(residual, [0.0; 4]);
        put_back(&layout(4), &sent, &Ranges::full(16), &mut residual);
        assert_eq!(residual, [1.0, 0.0, 3.3, 0.0]);
    }

    #[test]
    fn names_are_read_and_others_refused() {
        for scheme in SCHEMES.into_iter().chain([Scheme::PowerSgd(4)]) {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        for wrong in [
            "",
            "int3",
            "topk",
            "topk:",
            "topk:0",
            "topk:1.1",
            "topk:nan",
            "topk:-1",
            "INT8",
            "powersgd:0",
            "powersgd:65",
        ] {
            assert!(wrong.parse::<Scheme>().is_err(), "{wrong}");
        }
    }
}
