//! Low rank: a matrix travels as two thin factors whose product approximates it (PowerSGD, Vogels et al. 2019).
//!
//! Tensors of float32 with two dimensions or more are matrices: the first dimension by all others. A sender finds the
//! factors of its own update M by one step of power iteration (algorithm 1 of the paper): P = M Q, the columns
//! of P are made orthonormal by Gram-Schmidt in float32, and Q = M^T P. It sends P and Q, and goes on with Q in its
//! next update. In the paper all workers average P, and then Q. Here each sender's product P Q^T is decoded, and the
//! products are averaged.
//!
//! A chunk of an update is cut into spans, each in a matrix or between matrices. A span carries the rows of P and the
//! columns of Q that it needs, so each chunk is decoded by itself. Fewer and longer chunks carry fewer copies of
//! Q.
//!
//! | head | the bytes after it |
//! |---|---|
//! | 8 | length (u32), the bytes as they are |
//! | 9 | length (u32), columns (u32), first column (u32), rank (u16), rows of P, rows of Q^T (float32) |

use std::sync::{Mutex, MutexGuard, PoisonError};

use thalweg_rng::Rng;
use thalweg_wire::{Dtype, Layout, Range};

use super::codec::{PREFACE, VALUE};
use super::scheme::value;

pub(super) const SPAN: u8 = 8;
pub(super) const LOW_RANK: u8 = 9;
/// The largest rank. It bounds the work that a peer's chunk can cause: this many multiplications a value.
pub const MAX_RANK: u16 = 64;
/// Bytes of a span before its content.
const SPAN_HEAD: usize = 5;
const LOW_RANK_HEAD: usize = 15;
/// If Gram-Schmidt leaves at most this share of a column's squared length, what is left is rounding error.
const MIN_REMAINDER: f32 = 1e-8;
/// Sums are added in this many lanes, which compilers turn into vector instructions.
const LANES: usize = 16;

/// A matrix of an update, and its factors. The factors are stored column by column.
#[derive(Debug)]
struct Matrix {
    /// The matrix's bytes in the update.
    range: Range,
    rows: usize,
    columns: usize,
    rank: usize,
    /// P of the update that was rounded last.
    left: Vec<f32>,
    /// Q of that update. The next update starts from it.
    right: Vec<f32>,
    /// Whether the update holds the product of the factors. Otherwise it holds the original values.
    is_product: bool,
}

/// The matrices of a sender's updates.
#[derive(Debug)]
pub struct LowRank {
    matrices: Vec<Matrix>,
}

/// The matrices of the updates in an arena, which are attached to it, so that the layer finds the factors.
#[derive(Debug)]
pub struct Factors(Mutex<LowRank>);

impl Factors {
    /// The factors, to be attached to an arena.
    pub fn new(low_rank: LowRank) -> Self {
        Self(Mutex::new(low_rank))
    }

    /// The matrices, for reading or for the next update.
    pub fn lock(&self) -> MutexGuard<'_, LowRank> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LowRank {
    /// The matrices of updates with this layout. The first Q is drawn from `seed`. A matrix whose factors are not
    /// smaller than itself is left as it is.
    pub fn new(rank: u16, layout: &Layout, seed: u64) -> Self {
        let mut matrices = Vec::new();
        for (number, tensor) in layout.tensors().iter().enumerate() {
            let [first, rest @ ..] = &tensor.shape[..] else { continue };
            let (rows, columns) = (*first as usize, rest.iter().product::<u64>() as usize);
            let rank = usize::from(rank).min(rows).min(columns);
            let is_smaller = rank.saturating_mul(rows.saturating_add(columns)) < rows.saturating_mul(columns);
            if tensor.dtype != Dtype::F32 || rest.is_empty() || !is_smaller {
                continue;
            }
            let mut rng = Rng::new(&[seed, number as u64]);
            let right = (0..rank * columns).map(|_| (2.0 * rng.unit() - 1.0) as f32).collect();
            let left = vec![0.0; rank * rows];
            matrices.push(Matrix {
                range: tensor.range(),
                rows,
                columns,
                rank,
                left,
                right,
                is_product: false,
            });
        }
        Self { matrices }
    }

    /// The values of all Q. The next update starts from them.
    pub fn starts(&self) -> impl Iterator<Item = f32> + '_ {
        self.matrices.iter().flat_map(|matrix| matrix.right.iter().copied())
    }

    /// Replaces all Q by values that [`LowRank::starts`] returned earlier. Ignores those that are not finite.
    pub fn resume(&mut self, starts: impl IntoIterator<Item = f32>) {
        let places = self.matrices.iter_mut().flat_map(|matrix| matrix.right.iter_mut());
        places.zip(starts).filter(|(_, start)| start.is_finite()).for_each(|(place, start)| *place = start);
    }

    /// Replaces each matrix of an update by the product of its factors. A matrix with values that are not finite,
    /// or whose factors are not, stays as it is.
    pub fn round(&mut self, update: &mut [u8]) {
        for matrix in &mut self.matrices {
            if let Some(bytes) = update.get_mut(matrix.range.start as usize..matrix.range.end as usize) {
                matrix.round(bytes);
            }
        }
    }

    /// Cuts a chunk into spans of which each fits into a payload of `room` bytes.
    pub(super) fn spans(&self, chunk: Range, room: usize) -> Vec<Span<'_>> {
        let mut spans = Vec::new();
        let mut at = chunk.start;
        for matrix in self.matrices.iter().filter(|matrix| matrix.is_product) {
            let part = matrix.range.intersect(Range::new(at, chunk.end));
            // The bytes of a value that the chunk's border cuts in two are sent as they are.
            let (start, end) =
                (part.start.next_multiple_of(VALUE as u64), part.end / VALUE as u64 * VALUE as u64);
            if start >= end {
                continue;
            }
            plain(Range::new(at, start), room, &mut spans);
            matrix.cut(Range::new(start, end), room, &mut spans);
            at = end;
        }
        plain(Range::new(at, chunk.end), room, &mut spans);
        spans
    }
}

/// Appends spans that carry their bytes unchanged.
fn plain<'a>(range: Range, room: usize, spans: &mut Vec<Span<'a>>) {
    let fits = (room.saturating_sub(PREFACE + SPAN_HEAD).max(64) / 64 * 64) as u64;
    let mut at = range.start;
    while at < range.end {
        let end = at.saturating_add(fits).min(range.end);
        spans.push(Span { range: Range::new(at, end), matrix: None });
        at = end;
    }
}

/// A part of a chunk that is encoded by itself.
pub(super) struct Span<'a> {
    pub range: Range,
    /// The matrix that the part is in, if its factors are sent.
    matrix: Option<&'a Matrix>,
}

impl Span<'_> {
    /// Appends the encoded span to `out`. `bytes` are those of its range.
    pub fn write(&self, bytes: &[u8], out: &mut Vec<u8>) {
        let length = (bytes.len() as u32).to_le_bytes();
        let Some(matrix) = self.matrix else {
            out.push(SPAN);
            out.extend_from_slice(&length);
            return out.extend_from_slice(bytes);
        };
        let (rows, first, columns) = matrix.needed(self.range);
        out.push(LOW_RANK);
        out.extend_from_slice(&length);
        out.extend_from_slice(&(matrix.columns as u32).to_le_bytes());
        out.extend_from_slice(&(first as u32).to_le_bytes());
        out.extend_from_slice(&(matrix.rank as u16).to_le_bytes());
        let mut put = |value: f32| out.extend_from_slice(&value.to_le_bytes());
        for row in rows {
            (0..matrix.rank).for_each(|k| put(matrix.left[k * matrix.rows + row]));
        }
        for k in 0..matrix.rank {
            matrix.right[k * matrix.columns..][columns.clone()].iter().for_each(|&value| put(value));
        }
    }
}

impl Matrix {
    fn round(&mut self, bytes: &mut [u8]) {
        let (rows, columns, rank) = (self.rows, self.columns, self.rank);
        let started = self.right.clone();
        let mut row = vec![0.0; columns];
        for (i, words) in bytes.chunks_exact(columns * VALUE).enumerate() {
            read_row(words, &mut row);
            for k in 0..rank {
                self.left[k * rows + i] = dot(&row, &started[k * columns..(k + 1) * columns]);
            }
        }
        orthonormalise(&mut self.left, rows);
        self.right.fill(0.0);
        for (i, words) in bytes.chunks_exact(columns * VALUE).enumerate() {
            read_row(words, &mut row);
            for k in 0..rank {
                add(&mut self.right[k * columns..(k + 1) * columns], self.left[k * rows + i], &row);
            }
        }
        self.is_product = self.left.iter().chain(&self.right).all(|value| value.is_finite());
        if !self.is_product {
            self.right = started;
            return;
        }
        // A column without a direction in this update keeps its start: from 0 it would never get another.
        for k in 0..rank {
            if self.left[k * rows..(k + 1) * rows].iter().all(|&value| value == 0.0) {
                self.right[k * columns..(k + 1) * columns]
                    .copy_from_slice(&started[k * columns..(k + 1) * columns]);
            }
        }
        let mut weights = vec![0.0; rank];
        for (i, words) in bytes.chunks_exact_mut(columns * VALUE).enumerate() {
            weights.iter_mut().enumerate().for_each(|(k, weight)| *weight = self.left[k * rows + i]);
            let of = |k: usize| &self.right[k * columns..(k + 1) * columns];
            product(&weights, of, &mut row);
            write_row(&row, words);
        }
    }

    /// The rows of P, the first column, and the columns of Q that a part of the matrix needs.
    fn needed(&self, range: Range) -> (std::ops::Range<usize>, usize, std::ops::Range<usize>) {
        let values = |bytes: u64| (bytes - self.range.start) as usize / VALUE;
        let (start, end) = (values(range.start), values(range.end));
        let (rows, first) = (start / self.columns..end.div_ceil(self.columns), start % self.columns);
        let columns = if rows.len() == 1 { first..first + (end - start) } else { 0..self.columns };
        (rows, first, columns)
    }

    /// Appends the spans of a part of this matrix. A part that does not fit is cut between rows. Where the factors
    /// are not smaller than the values, the values are sent unchanged.
    fn cut<'a>(&'a self, range: Range, room: usize, spans: &mut Vec<Span<'a>>) {
        let (rows, first, columns) = self.needed(range);
        let size = LOW_RANK_HEAD + self.rank * (rows.len() + columns.len()) * VALUE;
        if size as u64 >= range.len() {
            return plain(range, room, spans);
        }
        if size + PREFACE <= room {
            return spans.push(Span { range, matrix: Some(self) });
        }
        let half = (rows.len() / 2 * self.columns).saturating_sub(first) as u64 * VALUE as u64;
        if half == 0 || half >= range.len() {
            return plain(range, room, spans);
        }
        let middle = range.start + half;
        self.cut(Range::new(range.start, middle), room, spans);
        self.cut(Range::new(middle, range.end), room, spans);
    }
}

fn read_row(words: &[u8], row: &mut [f32]) {
    row.iter_mut().zip(words.chunks_exact(VALUE)).for_each(|(place, word)| *place = value(word));
}

fn write_row(row: &[f32], words: &mut [u8]) {
    words
        .chunks_exact_mut(VALUE)
        .zip(row)
        .for_each(|(word, value)| word.copy_from_slice(&value.to_le_bytes()));
}

/// The scalar product.
fn dot(one: &[f32], other: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    for (one, other) in one.chunks(LANES).zip(other.chunks(LANES)) {
        sums.iter_mut().zip(one).zip(other).for_each(|((sum, one), other)| *sum += one * other);
    }
    sums.iter().sum()
}

/// Adds `factor` times `values` to `sums`.
fn add(sums: &mut [f32], factor: f32, values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

/// Writes a row of the product: the sum of `of(k)` times `weights[k]`, in this order of `k`, so that sender and
/// receiver get the same bits.
fn product<'a>(weights: &[f32], of: impl Fn(usize) -> &'a [f32], row: &mut [f32]) {
    row.fill(0.0);
    weights.iter().enumerate().for_each(|(k, &weight)| add(row, weight, of(k)));
}

/// Makes columns of `rows` values orthonormal (modified Gram-Schmidt). A column that depends on those before it
/// becomes 0: what rounding leaves of it has any direction.
fn orthonormalise(all: &mut [f32], rows: usize) {
    for k in 0..all.len() / rows.max(1) {
        let (before, rest) = all.split_at_mut(k * rows);
        let column = &mut rest[..rows];
        let original = dot(column, column);
        for other in before.chunks_exact(rows) {
            let share = dot(other, column);
            add(column, -share, other);
        }
        let length = dot(column, column);
        if length > MIN_REMAINDER * original && length.is_normal() {
            let scale = 1.0 / length.sqrt();
            column.iter_mut().for_each(|value| *value *= scale);
        } else if length.is_finite() {
            column.fill(0.0);
        } else {
            column.fill(f32::NAN); // too large for float32: the matrix goes as it is
        }
    }
}

/// The number of bytes that a span stands for, if `rest` begins with one. `None` for a piece of another kind.
pub(super) fn span_of(rest: &[u8]) -> Option<u32> {
    let (&head, rest) = rest.split_first()?;
    let (length, _) = rest.split_first_chunk()?;
    (head == SPAN || head == LOW_RANK).then(|| u32::from_le_bytes(*length))
}

/// The head of a span of factors.
struct Head {
    /// Number of values that the span stands for.
    values: usize,
    /// Number of columns of the matrix.
    columns: usize,
    /// Column of the span's first value.
    first: usize,
    /// Number of rows that the span touches.
    rows: usize,
    rank: usize,
}

impl Head {
    /// Parses the head after its first byte. `None` if its numbers are not those of a valid span.
    fn read(rest: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*rest.get(at..)?.first_chunk()?));
        let (length, columns, first) = (word(0)?, word(4)?, word(8)?);
        let rank = u16::from_le_bytes(*rest.get(12..)?.first_chunk()?);
        let is_whole = length > 0 && length.is_multiple_of(VALUE as u32);
        if !is_whole || first >= columns || !(1..=MAX_RANK).contains(&rank) {
            return None;
        }
        let (values, columns, first) = (length as usize / VALUE, columns as usize, first as usize);
        let rows = first.checked_add(values)?.div_ceil(columns);
        Some(Self { values, columns, first, rows, rank: rank.into() })
    }

    /// How many columns of Q the span carries.
    fn carried(&self) -> usize {
        if self.rows == 1 {
            self.values
        } else {
            self.columns
        }
    }
}

/// Number of bytes of the span that `rest` begins with. `None` if it is not valid.
pub(super) fn written(rest: &[u8]) -> Option<usize> {
    let length = span_of(rest).filter(|length| *length > 0)? as usize;
    if rest.first() == Some(&SPAN) {
        return Some(SPAN_HEAD + length);
    }
    let head = Head::read(rest.get(1..)?)?;
    let factors = head.rank.checked_mul(head.rows.checked_add(head.carried())?)?;
    factors.checked_mul(VALUE)?.checked_add(LOW_RANK_HEAD)
}

/// Decodes a span that [`written`] has measured into `out`.
pub(super) fn read(span: &[u8], out: &mut [u8]) {
    if span.first() == Some(&SPAN) {
        if let Some(bytes) = span.get(SPAN_HEAD..).filter(|bytes| bytes.len() == out.len()) {
            out.copy_from_slice(bytes);
        }
        return;
    }
    let (Some(head), Some(factors)) = (span.get(1..).and_then(Head::read), span.get(LOW_RANK_HEAD..)) else {
        return;
    };
    let factors: Vec<f32> = factors.chunks_exact(VALUE).map(value).collect();
    let (rank, carried) = (head.rank, head.carried());
    let Some((left, right)) = factors.split_at_checked(rank * head.rows) else { return };
    if right.len() != rank * carried {
        return;
    }
    let mut row = vec![0.0; carried];
    // In one row the carried columns begin with the first of the span, else with the matrix's first.
    let mut skipped = if head.rows == 1 { 0 } else { head.first };
    let mut rest = out;
    for weights in left.chunks_exact(rank) {
        product(weights, |k| &right[k * carried..(k + 1) * carried], &mut row);
        let wanted = &row[skipped..];
        let (words, after) = rest.split_at_mut(rest.len().min(wanted.len() * VALUE));
        write_row(wanted, words);
        (rest, skipped) = (after, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_rng::Rng;
    use thalweg_wire::Ranges;

    use super::super::codec::{decode, holds};
    use super::*;
    use crate::Scheme;

    fn layout() -> Layout {
        let tensors = [
            ("conv", Dtype::F32, vec![6, 5, 3, 3]),
            ("bias", Dtype::F32, vec![7]),
            ("steps", Dtype::I64, vec![2, 20]),
            ("dense", Dtype::F32, vec![31, 43]),
            ("small", Dtype::F32, vec![2, 2]),
        ];
        Layout::pack(tensors).unwrap()
    }

    fn update(layout: &Layout, values: impl Fn(usize) -> f32) -> Vec<u8> {
        let mut bytes = vec![0; layout.bytes() as usize];
        for tensor in layout.tensors().iter().filter(|tensor| tensor.dtype == Dtype::F32) {
            let range = tensor.range().start as usize..tensor.range().end as usize;
            let start = range.start / VALUE;
            for (at, word) in bytes[range].chunks_exact_mut(VALUE).enumerate() {
                word.copy_from_slice(&values(start + at).to_le_bytes());
            }
        }
        bytes
    }

    fn floats_of(layout: &Layout, name: &str, bytes: &[u8]) -> Vec<f32> {
        let tensor = layout.tensors().iter().find(|tensor| tensor.name == name).unwrap();
        let range = tensor.range().start as usize..tensor.range().end as usize;
        bytes[range].chunks_exact(VALUE).map(value).collect()
    }

    fn noise(seed: u64) -> impl Fn(usize) -> f32 {
        move |at| (2.0 * Rng::new(&[seed, at as u64]).unit() - 1.0) as f32
    }

    /// What a receiver gets of an update that is sent in chunks, and how many bytes they have.
    fn carried(low_rank: &LowRank, bytes: &[u8], cuts: &[u64], room: usize) -> (Vec<u8>, usize) {
        let (mut out, mut size, mut at) = (vec![0xaa; bytes.len()], 0, 0);
        for &end in cuts.iter().chain([&(bytes.len() as u64)]) {
            for span in low_rank.spans(Range::new(at, end), room) {
                let range = span.range.start as usize..span.range.end as usize;
                let mut payload = [(span.range.len() as u32).to_le_bytes(), [0; 4]].concat();
                span.write(&bytes[range.clone()], &mut payload);
                assert!(payload.len() <= room.max(64 + PREFACE + SPAN_HEAD), "{} in {room}", payload.len());
                assert_eq!(holds(span.range.start, &payload), Some((span.range.len() as u32, 0)));
                decode(span.range.start, &payload, &mut out[range]);
                size += payload.len();
            }
            at = end;
        }
        (out, size)
    }

    proptest! {
        #[test]
        fn each_receiver_gets_the_senders_product_however_it_is_cut(
            rank in 1_u16..6, seed in 0_u64..1000, room in 30_usize..9000,
            mut cuts in proptest::collection::vec(0_u64..7000, 0..6),
        ) {
            let layout = layout();
            let mut low_rank = LowRank::new(rank, &layout, seed);
            let mut sent = update(&layout, noise(seed));
            low_rank.round(&mut sent);
            cuts.retain(|cut| *cut < sent.len() as u64);
            cuts.sort_unstable();
            let (found, _) = carried(&low_rank, &sent, &cuts, room);
            prop_assert!(found == sent);
        }

        #[test]
        fn no_payload_makes_it_panic(
            length in 0_u32..9000,
            spans in proptest::collection::vec((8_u8..10, 0_u32..700, 0_u32..90, 0_u32..90, 0_u16..70), 1..4),
            rest in proptest::collection::vec(any::<u8>(), 0..5000), offset in any::<u64>(),
        ) {
            let mut payload = [&length.to_le_bytes()[..], &[0; 4]].concat();
            for (head, length, columns, first, rank) in spans {
                payload.push(head);
                for word in [length * 4, columns, first] {
                    payload.extend_from_slice(&word.to_le_bytes());
                }
                payload.extend_from_slice(&rank.to_le_bytes());
                payload.extend_from_slice(&rest);
            }
            if let Some((length, _)) = holds(offset, &payload) {
                decode(offset, &payload, &mut vec![0; length as usize]);
            }
        }
    }

    /// The head of a span of factors, and as many zeros as these numbers want.
    fn span(length: u32, columns: u32, first: u32, rank: u16, factors: usize) -> Vec<u8> {
        let mut payload = [&length.to_le_bytes()[..], &[0; 4], &[LOW_RANK], &length.to_le_bytes()].concat();
        payload.extend_from_slice(&columns.to_le_bytes());
        payload.extend_from_slice(&first.to_le_bytes());
        payload.extend_from_slice(&rank.to_le_bytes());
        payload.resize(payload.len() + factors * VALUE, 0);
        payload
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_before_anything_is_allocated() {
        // Three rows of 10 columns, from the second value on: 28 values, rank 2.
        assert_eq!(holds(0, &span(112, 10, 1, 2, 2 * (3 + 10))), Some((112, 0)));
        let huge = u32::MAX;
        for (payload, why) in [
            (span(112, 10, 1, 2, 2 * (3 + 10) - 1), "a factor is missing"),
            (span(112, 10, 1, 2, 2 * (3 + 10) + 1), "there are too many"),
            (span(110, 10, 1, 2, 2 * (3 + 10)), "half a value"),
            (span(0, 10, 1, 2, 26), "nothing"),
            (span(112, 0, 0, 2, 26), "no columns"),
            (span(112, 10, 10, 2, 26), "a column beyond the last"),
            (span(112, 10, 1, 0, 0), "rank 0"),
            (span(112, 10, 1, MAX_RANK + 1, 65 * 13), "a rank over the largest"),
            (span(112, huge, huge - 1, 2, 26), "a row that never ends"),
            (span(huge - 3, huge, 0, MAX_RANK, 26), "more than a chunk has"),
        ] {
            assert_eq!(holds(0, &payload), None, "{why}");
        }
        // A span may not reach beyond its chunk.
        let mut long = span(112, 10, 1, 2, 26);
        long[..4].copy_from_slice(&108_u32.to_le_bytes());
        assert_eq!(holds(0, &long), None);
    }

    #[test]
    fn factors_that_are_not_finite_give_such_values() {
        // The fold refuses an update with these values, and names its sender.
        let mut payload = span(112, 10, 1, 2, 26);
        let at = payload.len() - VALUE;
        payload[at..].copy_from_slice(&f32::NAN.to_le_bytes());
        let mut out = vec![0; 112];
        decode(0, &payload, &mut out);
        assert!(out.chunks_exact(VALUE).any(|word| value(word).is_nan()));
    }

    /// The step as the paper has it, in f64.
    fn plain_step(matrix: &[f32], columns: usize, right: &[f32]) -> Vec<f64> {
        let rows = matrix.len() / columns;
        let rank = right.len() / columns;
        let m = |i: usize, j: usize| f64::from(matrix[i * columns + j]);
        let mut left = vec![vec![0.0; rows]; rank];
        for (k, column) in left.iter_mut().enumerate() {
            for (i, place) in column.iter_mut().enumerate() {
                *place = (0..columns).map(|j| m(i, j) * f64::from(right[k * columns + j])).sum();
            }
        }
        for k in 0..rank {
            for other in 0..k {
                let (before, own) = left.split_at_mut(k);
                let (other, own) = (&before[other], &mut own[0]);
                let share: f64 = other.iter().zip(&*own).map(|(a, b)| a * b).sum();
                own.iter_mut().zip(other).for_each(|(x, o)| *x -= share * o);
            }
            let length = left[k].iter().map(|x| x * x).sum::<f64>().sqrt();
            left[k].iter_mut().for_each(|x| *x /= length);
        }
        let right = |k: usize, j: usize| (0..rows).map(|i| m(i, j) * left[k][i]).sum::<f64>();
        let product = |i: usize, j: usize| (0..rank).map(|k| left[k][i] * right(k, j)).sum();
        (0..rows * columns).map(|at| product(at / columns, at % columns)).collect()
    }

    #[test]
    fn a_step_is_that_of_the_paper() {
        let layout = layout();
        let mut low_rank = LowRank::new(3, &layout, 5);
        assert_eq!(low_rank.matrices.len(), 2, "the others are no matrices, or too small");
        let plain = update(&layout, noise(9));
        for _ in 0..3 {
            let started: Vec<Vec<f32>> =
                low_rank.matrices.iter().map(|matrix| matrix.right.clone()).collect();
            let mut sent = plain.clone();
            low_rank.round(&mut sent);
            for ((name, columns), right) in [("conv", 45), ("dense", 43)].into_iter().zip(&started) {
                let wanted = plain_step(&floats_of(&layout, name, &plain), columns, right);
                let found = floats_of(&layout, name, &sent);
                let error =
                    found.iter().zip(&wanted).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
                assert!(error < 1e-5, "{name}: {error}");
            }
            for name in ["bias", "small"] {
                assert_eq!(floats_of(&layout, name, &sent), floats_of(&layout, name, &plain));
            }
        }
    }

    #[test]
    fn it_is_much_smaller_and_nothing_is_lost_for_good() {
        let layout = Layout::pack([("w", Dtype::F32, vec![200, 300])]).unwrap();
        let mut low_rank = LowRank::new(2, &layout, 1);
        let zero = vec![0; layout.bytes() as usize];
        let (mut residual, mut sums, mut size) = (vec![0.0; zero.len() / VALUE], vec![0.0; 60_000], 0);
        for round in 0..20 {
            let mut sent = zero.clone();
            let trained = update(&layout, noise(round));
            Scheme::PowerSgd(2).feed_back(&layout, &trained, &mut sent, &mut residual, Some(&mut low_rank));
            let (found, bytes) = carried(&low_rank, &sent, &[], 4 << 20);
            assert_eq!(found, sent);
            size = bytes;
            for (at, sum) in sums.iter_mut().enumerate() {
                *sum += f64::from(noise(round)(at)) - f64::from(value(&sent[at * VALUE..]));
            }
        }
        assert_eq!(size, PREFACE + LOW_RANK_HEAD + 2 * (200 + 300) * VALUE, "of 240000 bytes");
        let error =
            sums.iter().zip(&residual).map(|(sum, left)| (sum - f64::from(*left)).abs()).fold(0.0, f64::max);
        assert!(error < 1e-4, "{error}");
    }

    #[test]
    fn an_update_of_lower_rank_comes_whole_and_one_of_zeros_stops_nothing() {
        let layout = Layout::pack([("w", Dtype::F32, vec![60, 50])]).unwrap();
        let mut low_rank = LowRank::new(4, &layout, 1);
        let mut zeros = vec![0; layout.bytes() as usize];
        let before: Vec<f32> = low_rank.starts().collect();
        low_rank.round(&mut zeros);
        assert!(zeros.iter().all(|&byte| byte == 0));
        assert_eq!(low_rank.starts().collect::<Vec<_>>(), before);
        // An update of rank 1, with rank 4: three columns of P are rounding error, and become 0.
        let plain = update(&layout, |at| (at / 50 + 1) as f32 * ((at % 50) as f32 - 20.0));
        for _ in 0..3 {
            let mut sent = plain.clone();
            low_rank.round(&mut sent);
            let (found, wanted) = (floats_of(&layout, "w", &sent), floats_of(&layout, "w", &plain));
            assert!(found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-2), "of values up to 1800");
        }
        let mut other = update(&layout, noise(3));
        let plain = other.clone();
        low_rank.round(&mut other);
        assert_ne!(other, plain);
        assert!(low_rank.matrices[0].left.chunks(60).all(|column| (dot(column, column) - 1.0).abs() < 1e-4));
    }

    #[test]
    fn what_is_not_finite_goes_as_it_is() {
        let layout = layout();
        for odd in [f32::NAN, f32::INFINITY, f32::MAX] {
            let mut low_rank = LowRank::new(2, &layout, 1);
            let at =
                layout.tensors().iter().find(|tensor| tensor.name == "dense").unwrap().range().start as usize;
            let mut sent = update(&layout, noise(1));
            sent[at + 400..at + 404].copy_from_slice(&odd.to_le_bytes());
            let before = floats_of(&layout, "dense", &sent).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            low_rank.round(&mut sent);
            let after = floats_of(&layout, "dense", &sent).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(before, after, "{odd}");
            assert!(low_rank.starts().all(f32::is_finite));
            assert_eq!(carried(&low_rank, &sent, &[], 4096).0, sent);
        }
    }

    #[test]
    fn a_model_without_factors_goes_as_it_is() {
        let mut out = Vec::new();
        Scheme::PowerSgd(2).write(Range::new(0, 8), &[1, 2, 3, 4, 5, 6, 7, 8], &Ranges::new(), &mut out);
        assert_eq!(out, [1, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
