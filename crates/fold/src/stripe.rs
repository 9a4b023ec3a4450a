//! A stripe of the update: the sums and weights of some 128 KiB of its bytes, behind one lock.

use std::ops::Range;

use fearless_simd::Level;
use thalweg_wire::{Dtype, Layout};

use crate::cells::Place;
use crate::memory::Memory;
use crate::weights::{Weight, Weighted, Weights};
use crate::{exact, Precision, Repair, Summary};

/// Most separately weighted pieces a stripe keeps account of; chunks cut at multiples of 64 bytes need half.
pub const MAX_RUNS: usize = 4096;

/// The part of a tensor that lies in the stripe.
#[derive(Debug)]
struct Segment {
    tensor: usize,
    dtype: Dtype,
    /// Bytes of the stripe.
    bytes: Range<usize>,
    place: Place,
}

impl Segment {
    /// Number among the segment's elements of the one at byte `at` of the stripe.
    fn element(&self, at: usize) -> usize {
        (at - self.bytes.start) / self.dtype.size() as usize
    }
}

/// Why a stripe cannot take a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// Its account of weights would have too many runs.
    Runs,
    /// Its exact sums might overflow.
    Sums,
}

#[derive(Debug)]
pub(crate) struct Stripe {
    /// Rising; between them is padding.
    segments: Vec<Segment>,
    memory: Memory,
    pub(crate) weights: Weights,
}

impl Stripe {
    /// The stripe of bytes `start..start + length` of the update.
    pub(crate) fn new(layout: &Layout, precision: Precision, start: u64, length: u64) -> Self {
        let all = layout.tensors();
        let first = all.partition_point(|t| t.range().end <= start);
        let within = all.iter().enumerate().skip(first).take_while(|(_, t)| t.offset < start + length);
        let (mut segments, mut end) = (Vec::new(), 0);
        for (tensor, t) in within {
            let (from, to) = (t.offset.max(start), t.range().end.min(start + length));
            let elements = to.saturating_sub(from) / t.dtype.size();
            if elements > 0 {
                let place = Place::from(end, t.dtype, precision, elements as usize);
                end = place.end();
                let bytes = (from - start) as usize..(to - start) as usize;
                segments.push(Segment { tensor, dtype: t.dtype, bytes, place });
            }
        }
        Self { segments, memory: Memory::zeroed(end), weights: Weights::new(length as usize) }
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(self.segments.as_slice()) + self.memory.bytes().len()
    }

    /// Whether there is room for a contribution to `bytes` of values up to `magnitude`, weighted, when `pending`
    /// borders more will have been made before.
    pub(crate) fn has_room(&self, bytes: &Range<usize>, magnitude: u64, pending: usize) -> Result<(), Full> {
        let count = self.weights.count() + pending;
        if count + 2 > MAX_RUNS && count + self.weights.splits(bytes) > MAX_RUNS {
            return Err(Full::Runs);
        }
        let fits = |part: Weighted| part.magnitude.saturating_add(magnitude) <= exact::MOST;
        if magnitude > 0 && !self.weights.within(bytes.clone()).all(fits) {
            return Err(Full::Sums);
        }
        Ok(())
    }

    /// Whether there is room for all that another accumulator's stripe of the same bytes has.
    pub(crate) fn has_room_for(&self, other: &Stripe) -> bool {
        let fits = |part: Weighted| self.has_room(&part.bytes, part.magnitude, 0) != Err(Full::Sums);
        other.weights.covered().all(fits)
    }

    /// Adds `data`, which are `bytes` of the stripe and cut no element, of values up to `magnitude`, weighted.
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

    /// Adds another accumulator's stripe of the same bytes.
    pub(crate) fn merge(&mut self, level: Level, other: &Stripe) {
        let (memory, more) = (self.memory.bytes_mut(), other.memory.bytes());
        for theirs in other.weights.covered() {
            for ours in self.weights.within(theirs.bytes.clone()) {
                for (segment, piece) in over(&self.segments, &ours.bytes) {
                    let elements = segment.element(piece.start)..segment.element(piece.end);
                    let (cells, other) = (segment.place.cells_mut(memory), segment.place.cells(more));
                    cells.merge(level, segment.dtype, elements, other, ours.is_hole());
                }
            }
            self.weights.merge(&theirs);
        }
    }

    /// The first element whose mean is not finite: its tensor, its first byte in the stripe, and the mean.
    pub(crate) fn not_finite(&self, level: Level) -> Option<(usize, usize, f64)> {
        self.weights.covered().find_map(|part| {
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

    /// Writes the means to `out`, the stripe's bytes of the global model.
    pub(crate) fn finish(&self, level: Level, out: &mut [u8], repair: Repair, summary: &mut Summary) {
        for part in self.weights.within(0..out.len()) {
            let weight = part.weight();
            for (segment, piece) in over(&self.segments, &part.bytes) {
                let element = segment.element(piece.start);
                summary.record(segment.tensor, piece.len(), segment.dtype.size(), weight);
                let out = &mut out[piece];
                match repair {
                    _ if !part.is_hole() => {
                        let cells = segment.place.cells(self.memory.bytes());
                        cells.write_mean(level, segment.dtype, element, out, weight);
                    }
                    Repair::KeepLocal => (),
                    Repair::Zero => out.fill(0),
                }
            }
        }
    }
}

/// The segments that `bytes` of the stripe overlap, with the bytes of the stripe in both.
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
