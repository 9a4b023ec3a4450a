//! A stripe of the update: the sums and weights of up to 128 KiB of its bytes, behind one lock.

use std::ops::Range;

use fearless_simd::Level;
use thalweg_wire::{Dtype, Layout};

use crate::cells::{Place, SUMS_ALIGN};
use crate::memory::Memory;
use crate::weights::{Full, Weight, Weighted, Weights, MAX_RUNS};
use crate::{exact, FoldError, Precision, Replacement, Summary};

/// The part of a tensor that is in the stripe.
#[derive(Debug)]
pub(crate) struct Segment {
    tensor: usize,
    dtype: Dtype,
    /// Range of its bytes within the stripe.
    bytes: Range<usize>,
    place: Place,
}

impl Segment {
    /// Index within the segment of the element at byte `at` of the stripe.
    fn element(&self, at: usize) -> usize {
        (at - self.bytes.start) / self.dtype.size() as usize
    }
}

#[derive(Debug)]
pub(crate) struct Stripe {
    /// Ascending. Between segments is padding.
    segments: Vec<Segment>,
    memory: Memory,
    pub(crate) weights: Weights,
}

impl Stripe {
    /// Creates the stripe of bytes `start..start + length` of the update. `cut` returns memory of the given
    /// size for its sums.
    pub(crate) fn new<E>(
        layout: &Layout,
        precision: Precision,
        start: u64,
        length: u64,
        cut: impl FnOnce(usize) -> Result<Memory, E>,
    ) -> Result<Self, E> {
        let (segments, bytes) = segments(layout, precision, start, length);
        Ok(Self { segments, memory: cut(bytes)?, weights: Weights::new(length as usize) })
    }

    /// A stripe that another accumulator sums up.
    pub(crate) fn absent(length: u64) -> Self {
        Self { segments: Vec::new(), memory: Memory::zeroed(0), weights: Weights::new(length as usize) }
    }

    /// The bytes of the sums.
    pub(crate) fn cells(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Number of bytes of the sums.
    pub(crate) fn cells_bytes(&self) -> usize {
        self.memory.bytes().len()
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(self.segments.as_slice()) + self.cells_bytes()
    }

    /// Checks that there is room for all that another accumulator's stripe of the same bytes has received.
    pub(crate) fn has_room_for<P: Iterator<Item = Weighted>>(
        &self,
        parts: impl Fn() -> P,
    ) -> Result<(), Full> {
        let count = self.weights.count();
        if count + self.weights.splits_of(parts().map(|part| part.bytes)) > MAX_RUNS {
            return Err(Full::Runs);
        }
        for theirs in parts() {
            for ours in self.weights.within(theirs.bytes.clone()) {
                if ours.magnitude.saturating_add(theirs.magnitude) > exact::MOST {
                    return Err(Full::Sums);
                }
                if !ours.has_count_for(&theirs) {
                    return Err(Full::Contributions);
                }
            }
        }
        Ok(())
    }

    /// Checks that the cells of these parts can be the sums of their contributions, each below `limit`, and
    /// have finite means.
    pub(crate) fn judge(
        &self,
        level: Level,
        parts: &[Weighted],
        cells: &[u8],
        limit: f64,
    ) -> Result<(), FoldError> {
        for part in parts {
            for (segment, piece) in over(&self.segments, &part.bytes) {
                let elements = segment.element(piece.start)..segment.element(piece.end);
                if !segment.place.cells(cells).fit(level, segment.dtype, elements, part, limit) {
                    return Err(FoldError::Damaged("a sum is larger than its contributions can make it"));
                }
            }
        }
        Ok(())
    }

    /// Writes the sums to `out`, which has the same size. Writes 0 for bytes that were never folded.
    pub(crate) fn export(&self, out: &mut [u8]) {
        out.fill(0);
        let memory = self.memory.bytes();
        for part in self.weights.covered() {
            for (segment, piece) in over(&self.segments, &part.bytes) {
                for range in segment.place.words(segment.element(piece.start)..segment.element(piece.end)) {
                    out[range.clone()].copy_from_slice(&memory[range]);
                }
            }
        }
    }

    /// Adds `data`, which are the bytes `bytes` of the stripe and cut no element. The weighted values are at
    /// most `magnitude`.
    pub(crate) fn fold(
        &mut self,
        level: Level,
        bytes: Range<usize>,
        data: &[u8],
        weight: Weight,
        magnitude: u64,
    ) {
        let memory = self.memory.bytes_mut();
        for part in self.weights.within(bytes.clone()) {
            for (segment, piece) in over(&self.segments, &part.bytes) {
                let at = segment.element(piece.start);
                let data = &data[piece.start - bytes.start..piece.end - bytes.start];
                let cells = segment.place.cells_mut(memory);
                cells.fold(level, segment.dtype, at, data, weight.value, part.is_hole());
            }
        }
        self.weights.add(bytes, weight, magnitude);
    }

    /// Adds the sums of another accumulator's stripe of the same bytes. `parts` are the weights of its bytes,
    /// `cells` its sums.
    pub(crate) fn merge(&mut self, level: Level, parts: impl Iterator<Item = Weighted>, cells: &[u8]) {
        let memory = self.memory.bytes_mut();
        for theirs in parts {
            for ours in self.weights.within(theirs.bytes.clone()) {
                for (segment, piece) in over(&self.segments, &ours.bytes) {
                    let elements = segment.element(piece.start)..segment.element(piece.end);
                    let (ours_too, other) = (segment.place.cells_mut(memory), segment.place.cells(cells));
                    ours_too.merge(level, segment.dtype, elements, other, ours.is_hole());
                }
            }
            self.weights.merge(&theirs);
        }
    }

    /// Checks that there is room for the own model's values, up to `magnitude`, wherever a contribution has
    /// arrived.
    pub(crate) fn has_room_for_own(&self, magnitude: u64) -> Result<(), Full> {
        let fits = |part: Weighted| part.magnitude.saturating_add(magnitude) <= exact::MOST;
        if magnitude == 0 || self.weights.covered().all(fits) {
            Ok(())
        } else {
            Err(Full::Sums)
        }
    }

    /// Adds the own model to the bytes `place` of the stripe, wherever a contribution has arrived. Its weight
    /// there is what is missing to a weight of 1. `own` has these bytes of the model.
    pub(crate) fn complement(&mut self, level: Level, place: &Range<usize>, own: &[u8], magnitude: u64) {
        let covered: Vec<Weighted> = self.contributed(place).collect();
        for part in covered {
            let weight = Weight::missing_to_one(&part);
            let own = &own[part.bytes.start - place.start..part.bytes.end - place.start];
            self.fold(level, part.bytes.clone(), own, weight, magnitude);
        }
    }

    /// The weights of the bytes `place` of the stripe, as far as a contribution has arrived.
    pub(crate) fn contributed(&self, place: &Range<usize>) -> impl Iterator<Item = Weighted> + '_ {
        self.weights.within(place.clone()).filter(|part| !part.is_hole())
    }

    /// The first element of the bytes `place` whose mean is not finite: the index of its tensor, its first byte
    /// in the stripe, and the mean.
    pub(crate) fn not_finite(&self, level: Level, place: &Range<usize>) -> Option<(usize, usize, f64)> {
        self.contributed(place).find_map(|part| {
            over(&self.segments, &part.bytes).find_map(|(segment, piece)| {
                let elements = segment.element(piece.start)..segment.element(piece.end);
                let cells = segment.place.cells(self.memory.bytes());
                let found = cells.not_finite(level, segment.dtype, elements, part.weight());
                let (element, mean) = found?;
                let at = segment.bytes.start + element * segment.dtype.size() as usize;
                Some((segment.tensor, at, mean))
            })
        })
    }

    /// Writes the means of the stripe's bytes from `first` on to `out`, which are these bytes of the global
    /// model.
    pub(crate) fn finish(
        &self,
        level: Level,
        first: usize,
        out: &mut [u8],
        repair: Replacement,
        summary: &mut Summary,
    ) {
        for part in self.weights.within(first..first + out.len()) {
            let weight = part.weight();
            for (segment, piece) in over(&self.segments, &part.bytes) {
                let element = segment.element(piece.start);
                summary.record(segment.tensor, piece.len(), segment.dtype.size(), weight);
                let out = &mut out[piece.start - first..piece.end - first];
                match repair {
                    _ if !part.is_hole() => {
                        let cells = segment.place.cells(self.memory.bytes());
                        cells.write_mean(level, segment.dtype, element, out, weight);
                    }
                    Replacement::KeepLocal | Replacement::Complement => (),
                    Replacement::Zero => out.fill(0),
                }
            }
        }
    }
}

/// The parts of tensors that are in the bytes `start..start + length` of the update, and the number of bytes
/// that their sums need.
pub(crate) fn segments(
    layout: &Layout,
    precision: Precision,
    start: u64,
    length: u64,
) -> (Vec<Segment>, usize) {
    let all = layout.tensors();
    let first = all.partition_point(|t| t.range().end <= start);
    let within = all.iter().enumerate().skip(first).take_while(|(_, t)| t.offset < start + length);
    let (mut segments, mut end) = (Vec::new(), 0);
    for (tensor, t) in within {
        let (from, to) = (t.offset.max(start), t.range().end.min(start + length));
        let elements = to.saturating_sub(from) / t.dtype.size();
        if elements > 0 {
            let place = Place::from(end, t.dtype, precision, elements as usize);
            end = place.end;
            let bytes = (from - start) as usize..(to - start) as usize;
            segments.push(Segment { tensor, dtype: t.dtype, bytes, place });
        }
    }
    (segments, end.next_multiple_of(SUMS_ALIGN))
}

/// The segments that overlap `bytes` of the stripe, each with the range in which they overlap.
fn over<'a>(
    segments: &'a [Segment],
    bytes: &'a Range<usize>,
) -> impl Iterator<Item = (&'a Segment, Range<usize>)> {
    let first = segments.partition_point(|s| s.bytes.end <= bytes.start);
    segments[first..].iter().map_while(|segment| {
        let piece = segment.bytes.start.max(bytes.start)..segment.bytes.end.min(bytes.end);
        (!piece.is_empty()).then_some((segment, piece))
    })
}
