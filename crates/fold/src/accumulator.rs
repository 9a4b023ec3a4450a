//! The accumulator: the sums of one round. Many threads may fold updates into it at once.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fearless_simd::Level;
use thalweg_wire::{Layout, Range, Ranges, Tensor};

use crate::memory::{LentMemory, Memory};
use crate::stripe::Stripe;
use crate::weights::{Full, Weight};
use crate::{exact, finite, Defect, FoldError, Summary, EXACT_MAX_PRODUCT};

/// Bytes of the update in one stripe, which is the unit of locking. It is a multiple of all element sizes and
/// of the alignment of tensors, so no element is in two stripes. It is small enough that a stripe's sums stay
/// in a core's cache.
pub const STRIPE_BYTES: u64 = 128 << 10;

/// The number format of the sums of floats. Each element of any float type needs as much memory as one such
/// sum.
///
/// Tensors of other types take the maximum in their own type, whatever the precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32, 4 bytes an element; f64 tensors in f64.
    #[default]
    F32,
    /// f64, 8 bytes an element.
    F64,
    /// Fixed point, 16 bytes for each element. It gives the same bits for any order of arrival and any tree
    /// of merges.
    Exact,
}

impl Precision {
    /// Upper limit of `|weight * value|` of each contribution, so that no sum overflows. For f32 it is 2^100,
    /// so 2^27 contributions fit. For f64 it is 2^1000, and for exact sums 2^51.
    pub fn limit(self) -> f64 {
        match self {
            Self::F32 => 2_f64.powi(100),
            Self::F64 => 2_f64.powi(1000),
            Self::Exact => EXACT_MAX_PRODUCT,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Exact => "exact",
        }
    }
}

/// The way in which `finish` treats the values that are already in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Replacement {
    /// An element that no client sent keeps its value.
    #[default]
    KeepLocal,
    /// An element that no client sent becomes zero.
    Zero,
    /// The model itself is one more contribution. Let the contributions to an element weigh `W`. Then the
    /// element's own value weighs `1 - W`, exactly, and the result is `sum + (1 - W) * own`. Integers take
    /// the maximum. An element that nobody sent keeps its value. If `W` is more than 1, the sum is divided by
    /// `W`, and the own value does not count.
    ///
    /// This is how a node of a graph mixes (decentralized SGD): its own value takes the place of a
    /// neighbour's missing chunk. Afterwards the sums include the own values.
    Complement,
}

/// The weighted sums of one round's updates, for one layout.
///
/// The sums are in stripes of [`STRIPE_BYTES`], each with its own lock. So any number of threads may fold
/// chunks of any clients at once. The weights of elements are stored apart from the sums, run-length encoded.
/// So a client that sent only parts of its update counts only for those parts.
///
/// An accumulator is reused from round to round. [`Accumulator::reset`] forgets the weights and leaves the
/// sums, since the first contribution to an element overwrites its old sum.
#[derive(Debug)]
pub struct Accumulator {
    layout: Arc<Layout>,
    precision: Precision,
    /// The range of updates that this accumulator sums up. It is everything, except after
    /// [`Accumulator::of_part`] and [`Accumulator::within_part`].
    part: Range,
    pub(crate) level: Level,
    pub(crate) stripes: Vec<Mutex<Stripe>>,
}

impl Accumulator {
    /// Creates empty sums for updates of this layout.
    pub fn new(layout: Arc<Layout>, precision: Precision) -> Self {
        let all = Range::new(0, layout.bytes());
        Self::own(layout, precision, all)
    }

    /// Like [`Accumulator::new`], but sums up only one part of updates. Bytes outside it are out of range.
    ///
    /// # Errors
    /// [`FoldError::Part`] if the part does not begin and end at stripe borders.
    pub fn of_part(layout: Arc<Layout>, precision: Precision, part: Range) -> Result<Self, FoldError> {
        is_part(part, layout.bytes())?;
        Ok(Self::own(layout, precision, part))
    }

    fn own(layout: Arc<Layout>, precision: Precision, part: Range) -> Self {
        let stripes = stripes_of(&layout).map(|(start, length)| {
            if !(part.start..part.end).contains(&start) {
                return Mutex::new(Stripe::absent(length));
            }
            let own = |bytes| Ok::<_, Infallible>(Memory::zeroed(bytes));
            let Ok(stripe) = Stripe::new(&layout, precision, start, length, own);
            Mutex::new(stripe)
        });
        Self { stripes: stripes.collect(), layout, precision, part, level: Level::new() }
    }

    /// Like [`Accumulator::new`], but the sums are in lent memory, which may be shared with another process.
    /// The accumulator calls `cut` for each stripe, in order, with the number of bytes that it needs. In
    /// total these are [`Accumulator::bytes_needed`] bytes. If the first ones begin at a multiple of 64 bytes
    /// and all follow each other, each piece does. Together they are the cells of these sums
    /// ([`Accumulator::head`]). Their initial content does not matter. Dropping the accumulator returns the
    /// memory.
    ///
    /// # Errors
    /// [`FoldError::Memory`] if `cut` returns nothing or the wrong number of bytes,
    /// [`FoldError::Misaligned`].
    pub fn within(
        layout: Arc<Layout>,
        precision: Precision,
        cut: impl FnMut(usize) -> Option<LentMemory>,
    ) -> Result<Self, FoldError> {
        let all = Range::new(0, layout.bytes());
        Self::within_part(layout, precision, all, cut)
    }

    /// Like [`Accumulator::within`], but sums up only one part of updates. So several processes can share the
    /// work: each sums up a part of all updates. A part begins and ends at stripe borders. It needs
    /// [`Accumulator::bytes_needed_of`] bytes. Bytes outside it are out of range.
    ///
    /// # Errors
    /// As [`Accumulator::within`]; [`FoldError::Part`] if the part does not begin and end at stripe borders.
    pub fn within_part(
        layout: Arc<Layout>,
        precision: Precision,
        part: Range,
        mut cut: impl FnMut(usize) -> Option<LentMemory>,
    ) -> Result<Self, FoldError> {
        is_part(part, layout.bytes())?;
        let stripes = stripes_of(&layout).map(|(start, length)| {
            if !(part.start..part.end).contains(&start) {
                return Ok(Mutex::new(Stripe::absent(length)));
            }
            let mut lent = |bytes| match bytes {
                0 => Ok(Memory::zeroed(0)), // only padding
                _ => Memory::lent(cut(bytes), bytes),
            };
            Stripe::new(&layout, precision, start, length, &mut lent).map(Mutex::new)
        });
        Ok(Self { stripes: stripes.collect::<Result<_, _>>()?, layout, precision, part, level: Level::new() })
    }

    /// The layout of the updates.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The precision of the sums.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The range of updates that this accumulator sums up.
    pub fn part(&self) -> Range {
        self.part
    }

    /// Bytes of memory that the sums need after they were written.
    pub fn memory_bytes(&self) -> u64 {
        self.stripes.iter().map(|stripe| unpoisoned(stripe).memory() as u64).sum()
    }

    /// The ranges of bytes that were folded, and the sum of their weights as a float, ascending. Neighbouring
    /// ranges have different weights. Padding between tensors may belong to the range before or after it.
    /// [`Accumulator::weight_runs`] has the exact weights.
    ///
    /// An aggregator further up in a tree can fold the means of these bytes, as `finish` wrote them, with
    /// these weights. So a tree of machines gives the same mean up to rounding, even with holes. A tree that
    /// sends sums instead ([`Accumulator::export`]) rounds nothing.
    ///
    /// # Errors
    /// As [`Accumulator::weight_runs`].
    pub fn weights(&self) -> Result<Vec<(Range, f64)>, FoldError> {
        let mut all: Vec<(Range, f64)> = Vec::new();
        for run in self.weight_runs()? {
            match all.last_mut() {
                Some((last, weight)) if last.end == run.bytes.start && *weight == run.weight() => {
                    last.end = run.bytes.end;
                }
                _ => all.push((run.bytes, run.weight())),
            }
        }
        Ok(all)
    }

    /// Checks that `bytes`, which begin at byte `offset` of an update, may be folded with this weight. Every
    /// element must be finite, and no product may reach [`Precision::limit`]. Elements that are cut at either
    /// end are ignored, since they are not folded. This takes one pass over the bytes, and costs least while
    /// they are in the cache.
    ///
    /// # Errors
    /// [`FoldError::OutOfRange`], [`FoldError::Weight`], [`FoldError::NotFinite`], [`FoldError::Capacity`].
    pub fn check(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<(), FoldError> {
        self.whole(offset, bytes.len() as u64)?;
        self.weight(weight)?.map_or(Ok(()), |weight| self.peak(offset, bytes, weight).map(drop))
    }

    /// Adds `weight` times the elements in `bytes`, which begin at byte `offset` of an update. Several
    /// threads may call it at once.
    ///
    /// The range may begin and end at any byte. An element that is not completely inside is left out, and the
    /// returned range excludes it. It must be sent again as a whole, or it is a hole. Weights count for
    /// exactly the returned range. A weight of 0 (a client that trained on nothing) changes nothing, and the
    /// returned range is empty. Bytes that are folded twice count twice, so the caller must keep out
    /// duplicates.
    ///
    /// # Errors
    /// [`FoldError::OutOfRange`], [`FoldError::Weight`], [`FoldError::Fragmented`]; with [`Precision::Exact`]
    /// also [`FoldError::Capacity`], [`FoldError::NotFinite`] and [`FoldError::Sums`]. In these cases nothing
    /// was added. The other precisions fold any value, so call [`Accumulator::check`] first, best when the
    /// bytes arrive. [`FoldError::Poisoned`] if another thread panicked while folding.
    pub fn fold(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<Range, FoldError> {
        let range = self.whole(offset, bytes.len() as u64)?;
        let Some(weight) = self.weight(weight)?.filter(|_| !range.is_empty()) else {
            return Ok(Range::new(range.start, range.start));
        };
        let bytes = &bytes[(range.start - offset) as usize..][..range.len() as usize];
        self.add(&[(range, bytes)], weight)?;
        Ok(range)
    }

    /// Like [`Accumulator::fold`], for several ranges of a complete update. If one of them is refused, none
    /// is added. An element that a range cuts is left out.
    ///
    /// # Errors
    /// As [`Accumulator::fold`]; [`FoldError::Part`] if `update` does not have the size of the layout.
    pub fn fold_ranges(&self, update: &[u8], ranges: &Ranges, weight: f64) -> Result<(), FoldError> {
        if update.len() as u64 != self.layout.bytes() {
            return Err(self.no_part(0, update));
        }
        let Some(weight) = self.weight(weight)? else { return Ok(()) };
        let mut all = Vec::with_capacity(ranges.count());
        for range in ranges.iter() {
            let whole = self.whole(range.start, range.len())?;
            if !whole.is_empty() {
                all.push((whole, &update[whole.start as usize..whole.end as usize]));
            }
        }
        self.add(&all, weight)
    }

    /// Adds ranges with their bytes. They are ascending and cut no element. Checks that all can be added
    /// before it adds any.
    fn add(&self, ranges: &[(Range, &[u8])], weight: Weight) -> Result<(), FoldError> {
        if let [(range, bytes)] = ranges {
            if let Some((index, part)) = only(parts_of(*range)) {
                let magnitude = self.magnitude(range.start, bytes, weight)?;
                let mut stripe = self.lock(index)?;
                let place = in_stripe(part);
                stripe.weights.has_room(&place, magnitude, 0).map_err(|full| no_room(index, full))?;
                stripe.fold(self.level, place, bytes, weight, magnitude);
                return Ok(());
            }
        }
        let magnitudes = self.check_room(ranges, weight)?;
        for (piece, magnitude) in pieces(ranges).zip(magnitudes) {
            self.lock(piece.index)?.fold(self.level, piece.place, piece.bytes, weight, magnitude);
        }
        Ok(())
    }

    /// Adds another accumulator's sums and weights to this one's, as where two branches of a tree meet.
    /// `other` does not change.
    ///
    /// # Errors
    /// [`FoldError::Layout`], [`FoldError::Precision`], [`FoldError::Itself`]; [`FoldError::Fragmented`],
    /// [`FoldError::Contributions`] and, with exact sums, [`FoldError::Sums`] if there is no room. In these
    /// cases nothing was added. [`FoldError::Poisoned`] if a thread panicked while folding.
    pub fn merge(&self, other: &Accumulator) -> Result<(), FoldError> {
        if std::ptr::eq(self, other) {
            return Err(FoldError::Itself);
        }
        if let Some(difference) = self.layout.difference(&other.layout) {
            return Err(FoldError::Layout(difference.describe("here", "there")));
        }
        if self.precision != other.precision {
            let (ours, theirs) = (self.precision.name(), other.precision.name());
            return Err(FoldError::Precision { ours, theirs });
        }
        if self.part != other.part {
            return Err(FoldError::Layout(format!("{:?} here and {:?} there", self.part, other.part)));
        }
        self.both(other, |index, ours, theirs| {
            ours.has_room_for(|| theirs.weights.covered()).map_err(|full| no_room(index, full))
        })?;
        self.both(other, |_, ours, theirs| {
            ours.merge(self.level, theirs.weights.covered(), theirs.cells());
            Ok(())
        })
    }

    /// Calls `each` with each stripe and the other accumulator's stripe of the same bytes.
    fn both(
        &self,
        other: &Accumulator,
        each: impl Fn(usize, &mut Stripe, &Stripe) -> Result<(), FoldError>,
    ) -> Result<(), FoldError> {
        // Lock in the order of addresses. Otherwise two threads that merge two accumulators into each other
        // could deadlock.
        let ours_first = std::ptr::from_ref(self) < std::ptr::from_ref(other);
        for index in 0..self.stripes.len() {
            let early = if ours_first { Some(self.lock(index)?) } else { None };
            let theirs = other.lock(index)?;
            let mut ours = early.map_or_else(|| self.lock(index), Ok)?;
            each(index, &mut ours, &theirs)?;
        }
        Ok(())
    }

    /// Writes the means into `global`, which has the bytes of a whole update. Each mean is rounded to the
    /// tensor's type, ties to even (`F8_E4M3` saturates). Padding between tensors does not change. The sums
    /// stay.
    ///
    /// No fold or merge into this accumulator should run meanwhile, since it would count for some elements
    /// only.
    ///
    /// # Errors
    /// As [`Accumulator::check_part`], [`Accumulator::finish_part`] and, for [`Replacement::Complement`],
    /// [`Accumulator::check_own`]. If a check fails, `global` is unchanged.
    pub fn finish(&self, global: &mut [u8], repair: Replacement) -> Result<Summary, FoldError> {
        if global.len() as u64 != self.layout.bytes() {
            return Err(self.no_part(0, global));
        }
        self.check_part(Range::new(0, self.layout.bytes()))?;
        if repair == Replacement::Complement {
            self.check_own(0, global)?;
        }
        self.finish_part(0, global, repair)
    }

    /// [`Accumulator::finish`], and [`Accumulator::reset`] if it succeeds.
    ///
    /// # Errors
    /// As [`Accumulator::finish`].
    pub fn finish_and_reset(&self, global: &mut [u8], repair: Replacement) -> Result<Summary, FoldError> {
        let summary = self.finish(global, repair)?;
        self.reset();
        Ok(summary)
    }

    /// Checks that all means of this part of the update are finite, so that they may become a model. Reads
    /// the sums once. The part is one of [`Accumulator::parts`].
    ///
    /// # Errors
    /// [`FoldError::Mean`] names the first mean that is not finite; [`FoldError::Contributions`] if there
    /// were too many contributions or too much weight to count; [`FoldError::Part`] if the part does not
    /// begin and end at stripe borders; [`FoldError::Poisoned`] if a thread panicked while folding.
    pub fn check_part(&self, part: Range) -> Result<(), FoldError> {
        self.is_part(part)?;
        for (index, piece) in parts_of(part) {
            let stripe = self.lock(index)?;
            self.check_means(&stripe, index, &in_stripe(piece))?;
        }
        Ok(())
    }

    /// Checks that the means of the bytes `place` of a stripe are finite.
    fn check_means(
        &self,
        stripe: &Stripe,
        index: usize,
        place: &std::ops::Range<usize>,
    ) -> Result<(), FoldError> {
        let start = index as u64 * STRIPE_BYTES;
        if stripe.contributed(place).any(|run| run.is_full()) {
            return Err(FoldError::Contributions { offset: start + place.start as u64 });
        }
        if let Some((tensor, at, mean)) = stripe.not_finite(self.level, place) {
            let tensor = &self.layout.tensors()[tensor];
            let element = (start + at as u64 - tensor.offset) / tensor.dtype.size();
            return Err(FoldError::Mean { tensor: tensor.name.clone(), element, mean });
        }
        Ok(())
    }

    /// Checks that this part of the own model may be added by [`Replacement::Complement`]. Every element must be
    /// finite, and the sums must have room. The part is one of [`Accumulator::parts`].
    ///
    /// # Errors
    /// As [`Accumulator::check`] and [`Accumulator::check_part`]; [`FoldError::Sums`] if exact sums would be
    /// too large.
    pub fn check_own(&self, offset: u64, own: &[u8]) -> Result<(), FoldError> {
        let range = Range::new(offset, offset.saturating_add(own.len() as u64));
        self.is_part(range)?;
        // The own model's weight is at most 1.
        self.check(offset, own, 1.0)?;
        for piece in pieces(&[(range, own)]) {
            let magnitude = self.own_magnitude(piece.offset, piece.bytes);
            let room = self.lock(piece.index)?.has_room_for_own(magnitude);
            room.map_err(|full| no_room(piece.index, full))?;
        }
        Ok(())
    }

    /// By how much the own model's elements raise the magnitude of exact sums. The elements were checked
    /// before.
    fn own_magnitude(&self, offset: u64, own: &[u8]) -> u64 {
        Weight::new(1.0, false).ok().flatten().map_or(0, |one| self.magnitude(offset, own, one).unwrap_or(0))
    }

    /// Like [`Accumulator::finish`], but for one part, which begins at byte `offset` of the update. So
    /// several threads can share the work: each finishes one of [`Accumulator::parts`], and
    /// [`Summary::merge`] adds up the summaries. This function does not check the means. Call
    /// [`Accumulator::check_part`] for all parts before, and for [`Replacement::Complement`]
    /// [`Accumulator::check_own`].
    ///
    /// # Errors
    /// [`FoldError::Part`] if the part does not begin and end at stripe borders, [`FoldError::Poisoned`] if a
    /// thread panicked while folding. Then only stripes before the poisoned one have been written.
    pub fn finish_part(
        &self,
        offset: u64,
        part: &mut [u8],
        repair: Replacement,
    ) -> Result<Summary, FoldError> {
        let range = Range::new(offset, offset.saturating_add(part.len() as u64));
        self.is_part(range)?;
        let mut summary = Summary::new(&self.layout);
        for (index, piece) in parts_of(range) {
            let out = &mut part[(piece.start - offset) as usize..(piece.end - offset) as usize];
            let (mut stripe, place) = (self.lock(index)?, in_stripe(piece));
            if repair == Replacement::Complement {
                stripe.complement(self.level, &place, out, self.own_magnitude(piece.start, out));
            }
            stripe.finish(self.level, place.start, out, repair, &mut summary);
        }
        Ok(summary)
    }

    /// Writes the means of any range into `part`, which has these bytes of the model and begins at byte
    /// `offset` of the update. So a range can be finished as soon as all its contributions are here, while
    /// others are still folded into the rest. Checks the means, and for [`Replacement::Complement`] the own
    /// values too.
    ///
    /// # Errors
    /// [`FoldError::Part`] if the range cuts an element; as [`Accumulator::check_part`] and
    /// [`Accumulator::check_own`]. The bytes of `part` have no meaning then.
    pub fn finish_range(&self, offset: u64, part: &mut [u8], repair: Replacement) -> Result<(), FoldError> {
        let range = Range::new(offset, offset.saturating_add(part.len() as u64));
        if self.whole(offset, part.len() as u64)? != range {
            return Err(self.no_part(offset, part));
        }
        if repair == Replacement::Complement {
            // The own model's weight is at most 1.
            self.check(offset, part, 1.0)?;
        }
        let mut summary = Summary::new(&self.layout);
        for (index, piece) in parts_of(range) {
            let out = &mut part[(piece.start - offset) as usize..(piece.end - offset) as usize];
            let (mut stripe, place) = (self.lock(index)?, in_stripe(piece));
            if repair == Replacement::Complement {
                let magnitude = self.own_magnitude(piece.start, out);
                stripe.has_room_for_own(magnitude).map_err(|full| no_room(index, full))?;
                stripe.complement(self.level, &place, out, magnitude);
            }
            self.check_means(&stripe, index, &place)?;
            stripe.finish(self.level, place.start, out, repair, &mut summary);
        }
        Ok(())
    }

    fn is_part(&self, range: Range) -> Result<(), FoldError> {
        let within = range.is_empty() || range.intersect(self.part) == range;
        is_part(range, self.layout.bytes())?;
        within.then_some(()).ok_or(FoldError::Part {
            offset: range.start,
            found: range.len(),
            bytes: self.layout.bytes(),
        })
    }

    /// Cuts the range that this accumulator sums up into at most `count` parts of about the same size, for
    /// [`Accumulator::finish_part`].
    pub fn parts(&self, count: usize) -> Vec<Range> {
        cut(self.part, count)
    }

    /// Cuts updates of a layout into at most `count` parts of about the same size, for
    /// [`Accumulator::within_part`].
    pub fn parts_of(layout: &Layout, count: usize) -> Vec<Range> {
        cut(Range::new(0, layout.bytes()), count)
    }

    /// Forgets all contributions, for the next round. It takes microseconds, since the memory is kept and not
    /// touched.
    pub fn reset(&self) {
        for stripe in &self.stripes {
            // The lock may be poisoned by a thread that panicked. What that thread left half done is
            // forgotten too.
            stripe.clear_poison();
            unpoisoned(stripe).weights.clear();
        }
    }

    pub(crate) fn lock(&self, stripe: usize) -> Result<MutexGuard<'_, Stripe>, FoldError> {
        self.stripes[stripe].lock().map_err(|_| FoldError::Poisoned)
    }

    /// The range `offset..offset + length` without elements that it cuts.
    pub(crate) fn whole(&self, offset: u64, length: u64) -> Result<Range, FoldError> {
        let bytes = self.layout.bytes();
        let end = offset.checked_add(length).filter(|&end| self.part.start <= offset && end <= self.part.end);
        let end = end.ok_or(FoldError::OutOfRange { offset, length, bytes })?;
        let start = self.element_border(offset, u64::div_ceil);
        let end = self.element_border(end, |at, size| at / size);
        Ok(Range::new(start.min(end), end))
    }

    /// `at` if it is at a border between elements. Otherwise the border to which `round` rounds it.
    fn element_border(&self, at: u64, round: impl Fn(u64, u64) -> u64) -> u64 {
        // Tensors are aligned, so multiples of the largest element size are borders in every tensor.
        if at.is_multiple_of(8) {
            return at;
        }
        self.layout.overlapping(Range::new(at, at + 1)).first().map_or(at, |tensor| {
            let size = tensor.dtype.size();
            tensor.offset + round(at - tensor.offset, size) * size
        })
    }

    /// `None` if the weight is 0, since such a contribution changes nothing.
    pub(crate) fn weight(&self, weight: f64) -> Result<Option<Weight>, FoldError> {
        Weight::new(weight, self.precision == Precision::F32)
    }

    /// The largest magnitude of these elements times the weight. Checks that it is below the limit.
    fn peak(&self, offset: u64, bytes: &[u8], weight: Weight) -> Result<f64, FoldError> {
        let limit = self.precision.limit();
        let mut peak: f64 = 0.0;
        for (tensor, first, elements) in finite::whole_elements(&self.layout, offset, bytes) {
            if !tensor.dtype.is_float() {
                continue;
            }
            let most = finite::largest(self.level, tensor.dtype, elements) * weight.value;
            if most.is_nan() || most >= limit {
                return Err(self.over(tensor, first, elements, weight.value));
            }
            peak = peak.max(most);
        }
        Ok(peak)
    }

    /// The error that names the first of these elements that the sums cannot hold.
    fn over(&self, tensor: &Tensor, first: u64, elements: &[u8], weight: f64) -> FoldError {
        let (limit, precision) = (self.precision.limit(), self.precision.name());
        let fits = |value: f64| value.abs() * weight < limit;
        let defect = finite::find(tensor, first, elements, |value| !fits(value));
        // There is such an element, since the largest one does not fit.
        let defect =
            defect.unwrap_or(Defect { tensor: tensor.name.clone(), element: first, value: f64::NAN });
        if !defect.value.is_finite() {
            return defect.into();
        }
        let Defect { tensor, element, value } = defect;
        FoldError::Capacity { tensor, element, value, weight, limit, precision }
    }

    /// By how much these elements raise the magnitude of exact sums. 0 for other sums, whose elements are not
    /// checked.
    pub(crate) fn magnitude(&self, offset: u64, bytes: &[u8], weight: Weight) -> Result<u64, FoldError> {
        if self.precision != Precision::Exact {
            return Ok(0);
        }
        self.peak(offset, bytes, weight).map(exact::magnitude)
    }

    /// Checks that all stripes can take these ranges, before anything is added to any. So a refused call
    /// changes nothing. Returns the magnitude of each piece. If several threads fold at once, they may exceed
    /// the limits by a few.
    fn check_room(&self, ranges: &[(Range, &[u8])], weight: Weight) -> Result<Vec<u64>, FoldError> {
        let mut magnitudes = Vec::new();
        let mut pending = (0, 0);
        for piece in pieces(ranges) {
            let magnitude = self.magnitude(piece.offset, piece.bytes, weight)?;
            magnitudes.push(magnitude);
            let made = if pending.0 == piece.index { pending.1 } else { 0 };
            let stripe = self.lock(piece.index)?;
            stripe
                .weights
                .has_room(&piece.place, magnitude, made)
                .map_err(|full| no_room(piece.index, full))?;
            pending = (piece.index, made + stripe.weights.splits(&piece.place));
        }
        Ok(magnitudes)
    }

    pub(crate) fn no_part(&self, offset: u64, part: &[u8]) -> FoldError {
        FoldError::Part { offset, found: part.len() as u64, bytes: self.layout.bytes() }
    }
}

/// Checks that a range begins and ends at stripe borders of an update of `bytes` bytes.
pub(crate) fn is_part(range: Range, bytes: u64) -> Result<(), FoldError> {
    let at_border = |at: u64| at.is_multiple_of(STRIPE_BYTES) || at == bytes;
    if at_border(range.start) && at_border(range.end) && range.end <= bytes {
        return Ok(());
    }
    Err(FoldError::Part { offset: range.start, found: range.len(), bytes })
}

/// Cuts a range that begins at a stripe border into at most `count` ranges of about the same number of
/// stripes.
fn cut(all: Range, count: usize) -> Vec<Range> {
    let stripes = all.len().div_ceil(STRIPE_BYTES).div_ceil(count.max(1) as u64).max(1);
    let starts = (all.start..all.end).step_by((stripes * STRIPE_BYTES) as usize);
    starts.map(|s| Range::new(s, (s + stripes * STRIPE_BYTES).min(all.end))).collect()
}

/// First byte and length of each stripe of a layout.
pub(crate) fn stripes_of(layout: &Layout) -> impl Iterator<Item = (u64, u64)> {
    let total = layout.bytes();
    (0..total.div_ceil(STRIPE_BYTES)).map(move |index| {
        let start = index * STRIPE_BYTES;
        (start, STRIPE_BYTES.min(total - start))
    })
}

/// Locks the stripe, even if a thread has panicked while it held the lock.
pub(crate) fn unpoisoned(stripe: &Mutex<Stripe>) -> MutexGuard<'_, Stripe> {
    stripe.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn no_room(stripe: usize, full: Full) -> FoldError {
    let offset = stripe as u64 * STRIPE_BYTES;
    match full {
        Full::Runs => FoldError::Fragmented { offset },
        Full::Sums => FoldError::Sums { offset },
        Full::Contributions => FoldError::Contributions { offset },
    }
}

/// The part of a range that is in one stripe.
struct Piece<'a> {
    index: usize,
    /// Offset of its first byte in the update.
    offset: u64,
    /// The part's range in the stripe.
    place: std::ops::Range<usize>,
    bytes: &'a [u8],
}

fn pieces<'a>(ranges: &'a [(Range, &'a [u8])]) -> impl Iterator<Item = Piece<'a>> {
    ranges.iter().flat_map(|(range, bytes)| {
        parts_of(*range).map(|(index, part)| {
            let within = (part.start - range.start) as usize..(part.end - range.start) as usize;
            Piece { index, offset: part.start, place: in_stripe(part), bytes: &bytes[within] }
        })
    })
}

/// The only item, or `None` if there is not exactly one.
fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    all.next().filter(|_| all.next().is_none())
}

/// The stripes that a range of the update overlaps, each with the bytes of the update in both.
pub(crate) fn parts_of(range: Range) -> impl DoubleEndedIterator<Item = (usize, Range)> {
    (range.start / STRIPE_BYTES..range.end.div_ceil(STRIPE_BYTES)).map(move |index| {
        let stripe = Range::new(index * STRIPE_BYTES, (index + 1) * STRIPE_BYTES);
        (index as usize, stripe.intersect(range))
    })
}

/// Converts a range of the update, all in one stripe, to the bytes of that stripe.
pub(crate) fn in_stripe(part: Range) -> std::ops::Range<usize> {
    let start = part.start % STRIPE_BYTES;
    start as usize..(start + part.len()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::Dtype;

    #[test]
    fn a_panic_while_folding_spoils_the_round_but_not_the_next() {
        let layout = Arc::new(Layout::pack([("w", Dtype::U8, vec![2 * STRIPE_BYTES])]).unwrap());
        let accumulator = Accumulator::new(layout, Precision::F32);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = accumulator.stripes[1].lock();
                panic!("meant to happen: it poisons a stripe");
            });
            holder.join().is_err()
        });
        assert!(panicked);
        let mut global = vec![0; 2 * STRIPE_BYTES as usize];
        assert_eq!(accumulator.fold(0, &global, 1.0), Err(FoldError::Poisoned));
        assert_eq!(accumulator.finish(&mut global, Replacement::KeepLocal), Err(FoldError::Poisoned));
        accumulator.reset();
        accumulator.fold(0, &vec![5; global.len()], 1.0).unwrap();
        accumulator.finish(&mut global, Replacement::KeepLocal).unwrap();
        assert!(global.iter().all(|&byte| byte == 5));
    }
}
