//! One round's sums, folded into by many threads.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fearless_simd::Level;
use thalweg_wire::{Layout, Range, Ranges, Tensor};

use crate::memory::{LentMemory, Memory};
use crate::stripe::Stripe;
use crate::weights::{Full, Weight};
use crate::{exact, finite, Defect, FoldError, Summary, EXACT_MAX_PRODUCT};

/// Bytes of the update in one stripe, the unit of locking. A multiple of all element sizes and of the
/// alignment of tensors, so that no element lies in two; small enough that a stripe's sums stay in a core's
/// cache.
pub const STRIPE_BYTES: u64 = 128 << 10;

/// What floats are summed up in. Memory is that of the sums, for each element of any float type.
///
/// Non-float tensors take the maximum in their own type, whatever the precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32, 4 bytes an element; f64 tensors in f64.
    #[default]
    F32,
    /// f64, 8 bytes an element.
    F64,
    /// Fixed point, 16 bytes an element: the same bits in any order of arrival and any tree of merges.
    Exact,
}

impl Precision {
    /// What `|weight * value|` of each contribution has to be below, so that no sum overflows: of f32 2^100,
    /// which 2^27 contributions may reach, of f64 2^1000, of exact sums 2^51.
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

/// What `finish` does with the values of the model that it writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Repair {
    /// An element that nobody sent keeps its value.
    #[default]
    KeepLocal,
    /// An element that nobody sent becomes zero.
    Zero,
    /// The model is one more contribution, in place: of an element whose contributions weigh `W`, its own
    /// value weighs
    /// `1 - W`, exactly. The result is `sum + (1 - W) * own`; integers take the maximum, and an element that nobody sent
    /// keeps its value. Contributions that weigh more than 1 are divided by their weight, and the own value
    /// has none.
    ///
    /// This is how a node of a graph mixes (decentralized SGD): a neighbour's missing chunk counts for the
    /// node's own. The sums have the own values in them afterwards.
    Complement,
}

/// The weighted sums of one round's updates, for one layout.
///
/// The sums lie in stripes of [`STRIPE_BYTES`], each behind its own lock, so any number of threads may fold
/// chunks of any clients at once. The weight of each element is kept apart, run-length, so clients that sent
/// only parts count where they sent something and nowhere else.
///
/// An accumulator is reused from round to round: [`Accumulator::reset`] forgets the weights and touches no
/// sums, since the first contribution to an element overwrites what its sum held.
#[derive(Debug)]
pub struct Accumulator {
    layout: Arc<Layout>,
    precision: Precision,
    /// What of updates it sums up; all but for [`Accumulator::of_part`] and [`Accumulator::within_part`].
    part: Range,
    pub(crate) level: Level,
    pub(crate) stripes: Vec<Mutex<Stripe>>,
}

impl Accumulator {
    /// Sums of nothing, for updates of this layout.
    pub fn new(layout: Arc<Layout>, precision: Precision) -> Self {
        let all = Range::new(0, layout.bytes());
        Self::own(layout, precision, all)
    }

    /// [`Accumulator::new`] that sums up one part of updates only; what lies beyond it is out of range.
    ///
    /// # Errors
    /// [`FoldError::Part`] if the part does not begin and end at ends of stripes.
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

    /// [`Accumulator::new`] whose sums lie in memory that is lent: shared with another process, say. `cut` is
    /// asked for the next so many bytes, [`Accumulator::bytes_needed`] in all, which lie at multiples of 64
    /// bytes if the first do. Together they are the cells of these sums ([`Accumulator::head`]). What they
    /// hold at first does not matter. They are given back when the accumulator is dropped.
    ///
    /// # Errors
    /// [`FoldError::Memory`] if `cut` gives none or too few or too many bytes, [`FoldError::Misaligned`].
    pub fn within(
        layout: Arc<Layout>,
        precision: Precision,
        cut: impl FnMut(usize) -> Option<LentMemory>,
    ) -> Result<Self, FoldError> {
        let all = Range::new(0, layout.bytes());
        Self::within_part(layout, precision, all, cut)
    }

    /// [`Accumulator::within`] that sums up one part of updates only: the work of one of several processes,
    /// each of which has a part of its own of all updates. A part begins and ends at ends of stripes; it
    /// takes [`Accumulator::bytes_needed_of`] bytes, and what lies beyond it is out of range.
    ///
    /// # Errors
    /// As [`Accumulator::within`]; [`FoldError::Part`] if there is no such part.
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
                0 => Ok(Memory::zeroed(0)), // nothing but padding
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

    /// What floats are summed up in.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// What of updates it sums up.
    pub fn part(&self) -> Range {
        self.part
    }

    /// Bytes of memory the sums take, once they were written to.
    pub fn memory_bytes(&self) -> u64 {
        self.stripes.iter().map(|stripe| unpoisoned(stripe).memory() as u64).sum()
    }

    /// The bytes that came and the sum of their weights, rounded to a float, rising; neighbours differ in
    /// weight, but for padding between tensors, which may count to either side. [`Accumulator::weight_runs`]
    /// has the exact weights.
    ///
    /// An aggregator further up folds the means of these bytes, as `finish` wrote them, with these weights:
    /// so a tree whose branches are on different machines gives the same mean (but for rounding), holes or
    /// not. A tree that sends sums ([`Accumulator::export`]) rounds nothing.
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

    /// Whether `bytes`, which are bytes `offset..` of an update, may be folded with this weight: every
    /// element is finite, and no product reaches [`Precision::limit`]. Elements cut off at either end are not
    /// looked at, as they are not folded. One pass over the bytes, which costs least while they are in the
    /// cache.
    ///
    /// # Errors
    /// [`FoldError::OutOfRange`], [`FoldError::Weight`], [`FoldError::NotFinite`], [`FoldError::Capacity`].
    pub fn check(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<(), FoldError> {
        self.whole(offset, bytes.len() as u64)?;
        self.weight(weight)?.map_or(Ok(()), |weight| self.peak(offset, bytes, weight).map(drop))
    }

    /// Adds `weight` times the elements in `bytes`, which are bytes `offset..` of an update. Threads may do
    /// so at once.
    ///
    /// The range may begin and end at any byte. An element of which any byte is outside is left out (send it
    /// again whole, or it is a hole): returned is the range without such elements. Weights are counted for
    /// exactly these bytes. A weight of 0 (a client that trained on nothing) changes nothing and returns an
    /// empty range. The same bytes of the same client folded twice count twice; keeping duplicates out is the
    /// caller's business.
    ///
    /// # Errors
    /// [`FoldError::OutOfRange`], [`FoldError::Weight`], [`FoldError::Fragmented`]; with [`Precision::Exact`]
    /// also [`FoldError::Capacity`], [`FoldError::NotFinite`] and [`FoldError::Sums`]. Nothing was added
    /// then. The other precisions fold any value; call [`Accumulator::check`] first, at best when the bytes
    /// come. [`FoldError::Poisoned`] if another thread panicked while folding.
    pub fn fold(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<Range, FoldError> {
        let range = self.whole(offset, bytes.len() as u64)?;
        let Some(weight) = self.weight(weight)?.filter(|_| !range.is_empty()) else {
            return Ok(Range::new(range.start, range.start));
        };
        let bytes = &bytes[(range.start - offset) as usize..][..range.len() as usize];
        self.add(&[(range, bytes)], weight)?;
        Ok(range)
    }

    /// [`Accumulator::fold`] of several ranges of a whole update, all of them or, where any is refused, none.
    /// An element that a range cuts is left out.
    ///
    /// # Errors
    /// As [`Accumulator::fold`]; [`FoldError::Part`] if `update` is not of the layout's size.
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

    /// Adds ranges, rising and without cut elements, with their bytes: first it is seen that all can be
    /// added.
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

    /// Adds another accumulator's sums and weights to this one's: two branches of a tree become one. `other`
    /// stays.
    ///
    /// # Errors
    /// [`FoldError::Layout`], [`FoldError::Precision`], [`FoldError::Itself`]; [`FoldError::Fragmented`],
    /// [`FoldError::Contributions`] and, of exact sums, [`FoldError::Sums`] if there is no room for them.
    /// Nothing was added then. [`FoldError::Poisoned`] if a thread panicked while folding.
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

    /// Does something with each stripe and the other accumulator's.
    fn both(
        &self,
        other: &Accumulator,
        each: impl Fn(usize, &mut Stripe, &Stripe) -> Result<(), FoldError>,
    ) -> Result<(), FoldError> {
        // By address, so that two threads that merge crosswise do not wait for each other.
        let ours_first = std::ptr::from_ref(self) < std::ptr::from_ref(other);
        for index in 0..self.stripes.len() {
            let early = if ours_first { Some(self.lock(index)?) } else { None };
            let theirs = other.lock(index)?;
            let mut ours = early.map_or_else(|| self.lock(index), Ok)?;
            each(index, &mut ours, &theirs)?;
        }
        Ok(())
    }

    /// Writes the means into `global`, the bytes of a whole update, in the tensors' own types, rounded to
    /// nearest with ties to even (`F8_E4M3` saturates). Padding between tensors is left alone. The sums stay.
    ///
    /// No fold or merge into this accumulator should run meanwhile: it would count for some elements only.
    ///
    /// # Errors
    /// As [`Accumulator::check_part`] and [`Accumulator::finish_part`]. `global` is unchanged then.
    pub fn finish(&self, global: &mut [u8], repair: Repair) -> Result<Summary, FoldError> {
        if global.len() as u64 != self.layout.bytes() {
            return Err(self.no_part(0, global));
        }
        self.check_part(Range::new(0, self.layout.bytes()))?;
        if repair == Repair::Complement {
            self.check_own(0, global)?;
        }
        self.finish_part(0, global, repair)
    }

    /// [`Accumulator::finish`], then [`Accumulator::reset`] if all went well.
    ///
    /// # Errors
    /// As [`Accumulator::finish`].
    pub fn finish_and_reset(&self, global: &mut [u8], repair: Repair) -> Result<Summary, FoldError> {
        let summary = self.finish(global, repair)?;
        self.reset();
        Ok(summary)
    }

    /// Whether the means of this part of the update may become a model's: every one is finite. Reads the sums
    /// once. A part is one of those that [`Accumulator::parts`] gives.
    ///
    /// # Errors
    /// [`FoldError::Mean`] names the first that is not; [`FoldError::Contributions`] if weights or
    /// contributions were too many to count; [`FoldError::Part`] if the part does not begin and end at
    /// stripes' ends; [`FoldError::Poisoned`] if a thread panicked while folding.
    pub fn check_part(&self, part: Range) -> Result<(), FoldError> {
        self.is_part(part)?;
        for (index, piece) in parts_of(part) {
            let stripe = self.lock(index)?;
            if stripe.weights.covered().any(|run| run.is_full()) {
                return Err(FoldError::Contributions { offset: piece.start });
            }
            if let Some((tensor, at, mean)) = stripe.not_finite(self.level) {
                let tensor = &self.layout.tensors()[tensor];
                let element = (piece.start + at as u64 - tensor.offset) / tensor.dtype.size();
                return Err(FoldError::Mean { tensor: tensor.name.clone(), element, mean });
            }
        }
        Ok(())
    }

    /// Whether this part of the own model may be added by [`Repair::Complement`]: every element is finite,
    /// and there is room for it in the sums. One of the parts that [`Accumulator::parts`] gives.
    ///
    /// # Errors
    /// As [`Accumulator::check`] and [`Accumulator::check_part`], and [`FoldError::Sums`] of exact sums that
    /// are too large.
    pub fn check_own(&self, offset: u64, own: &[u8]) -> Result<(), FoldError> {
        let range = Range::new(offset, offset.saturating_add(own.len() as u64));
        self.is_part(range)?;
        // The own model weighs 1 at most.
        self.check(offset, own, 1.0)?;
        for piece in pieces(&[(range, own)]) {
            let magnitude = self.own_magnitude(piece.offset, piece.bytes);
            let room = self.lock(piece.index)?.has_room_for_own(magnitude);
            room.map_err(|full| no_room(piece.index, full))?;
        }
        Ok(())
    }

    /// What exact sums are accounted for the own model's elements, which were judged before.
    fn own_magnitude(&self, offset: u64, own: &[u8]) -> u64 {
        Weight::new(1.0, false).ok().flatten().map_or(0, |one| self.magnitude(offset, own, one).unwrap_or(0))
    }

    /// [`Accumulator::finish`] for bytes `offset..` of the update only, so that several threads may share the
    /// work: one part each of those that [`Accumulator::parts`] gives. The summaries add up by
    /// [`Summary::merge`]. It writes what the sums come to: [`Accumulator::check_part`] says beforehand, of
    /// all parts, whether that is a model, and for [`Repair::Complement`] [`Accumulator::check_own`].
    ///
    /// # Errors
    /// [`FoldError::Part`] if the part does not begin and end at stripes' ends, [`FoldError::Poisoned`] if a
    /// thread panicked while folding. `part` is unchanged then, but for stripes before the poisoned one.
    pub fn finish_part(&self, offset: u64, part: &mut [u8], repair: Repair) -> Result<Summary, FoldError> {
        let range = Range::new(offset, offset.saturating_add(part.len() as u64));
        self.is_part(range)?;
        let mut summary = Summary::new(&self.layout);
        for (index, piece) in parts_of(range) {
            let out = &mut part[(piece.start - offset) as usize..(piece.end - offset) as usize];
            let mut stripe = self.lock(index)?;
            if repair == Repair::Complement {
                stripe.complement(self.level, out, self.own_magnitude(piece.start, out));
            }
            stripe.finish(self.level, out, repair, &mut summary);
        }
        Ok(summary)
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

    /// Cuts the update, or the part of it that is summed up, into at most `count` parts of about the same
    /// size for [`Accumulator::finish_part`].
    pub fn parts(&self, count: usize) -> Vec<Range> {
        cut(self.part, count)
    }

    /// Cuts updates of a layout into at most `count` parts of about the same size for
    /// [`Accumulator::within_part`].
    pub fn parts_of(layout: &Layout, count: usize) -> Vec<Range> {
        cut(Range::new(0, layout.bytes()), count)
    }

    /// Forgets all contributions, for the next round. Takes microseconds: memory stays and is not touched.
    pub fn reset(&self) {
        for stripe in &self.stripes {
            // What a panicking thread left half done is forgotten with the rest.
            stripe.clear_poison();
            unpoisoned(stripe).weights.clear();
        }
    }

    pub(crate) fn lock(&self, stripe: usize) -> Result<MutexGuard<'_, Stripe>, FoldError> {
        self.stripes[stripe].lock().map_err(|_| FoldError::Poisoned)
    }

    /// `offset..offset + length` less the elements that it cuts.
    pub(crate) fn whole(&self, offset: u64, length: u64) -> Result<Range, FoldError> {
        let bytes = self.layout.bytes();
        let end = offset.checked_add(length).filter(|&end| self.part.start <= offset && end <= self.part.end);
        let end = end.ok_or(FoldError::OutOfRange { offset, length, bytes })?;
        let start = self.element_border(offset, u64::div_ceil);
        let end = self.element_border(end, |at, size| at / size);
        Ok(Range::new(start.min(end), end))
    }

    /// `at`, or if that is within an element, where rounding `at / size` puts it.
    fn element_border(&self, at: u64, round: impl Fn(u64, u64) -> u64) -> u64 {
        // Multiples of the largest element size are borders in every tensor, since tensors are aligned.
        if at.is_multiple_of(8) {
            return at;
        }
        self.layout.overlapping(Range::new(at, at + 1)).first().map_or(at, |tensor| {
            let size = tensor.dtype.size();
            tensor.offset + round(at - tensor.offset, size) * size
        })
    }

    /// `None` for 0: such a contribution changes nothing.
    pub(crate) fn weight(&self, weight: f64) -> Result<Option<Weight>, FoldError> {
        Weight::new(weight, self.precision == Precision::F32)
    }

    /// The largest magnitude of these elements times the weight, which is below the limit.
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

    /// Names the first of these elements that no sum can hold.
    fn over(&self, tensor: &Tensor, first: u64, elements: &[u8], weight: f64) -> FoldError {
        let (limit, precision) = (self.precision.limit(), self.precision.name());
        let fits = |value: f64| value.abs() * weight < limit;
        let defect = finite::find(tensor, first, elements, |value| !fits(value));
        // There is one, or the largest would fit.
        let defect =
            defect.unwrap_or(Defect { tensor: tensor.name.clone(), element: first, value: f64::NAN });
        if !defect.value.is_finite() {
            return defect.into();
        }
        let Defect { tensor, element, value } = defect;
        FoldError::Capacity { tensor, element, value, weight, limit, precision }
    }

    /// What exact sums have to be accounted for these elements; 0 for other sums, whose elements are not
    /// looked at.
    pub(crate) fn magnitude(&self, offset: u64, bytes: &[u8], weight: Weight) -> Result<u64, FoldError> {
        if self.precision != Precision::Exact {
            return Ok(0);
        }
        self.peak(offset, bytes, weight).map(exact::magnitude)
    }

    /// Whether all stripes can take these ranges, before anything is added to any, so that what is refused
    /// leaves no trace; returns the magnitude of each piece. Threads that fold at once may exceed the limits
    /// by a few.
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

/// Whether a range begins and ends at ends of stripes of an update of so many bytes.
pub(crate) fn is_part(range: Range, bytes: u64) -> Result<(), FoldError> {
    let at_border = |at: u64| at.is_multiple_of(STRIPE_BYTES) || at == bytes;
    if at_border(range.start) && at_border(range.end) && range.end <= bytes {
        return Ok(());
    }
    Err(FoldError::Part { offset: range.start, found: range.len(), bytes })
}

/// Cuts a range that begins at a stripe's start into at most `count` ranges of about as many stripes.
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

/// The stripe even if a thread panicked while it held it.
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

/// What of a range lies in one stripe.
struct Piece<'a> {
    index: usize,
    /// First byte, in the update.
    offset: u64,
    /// In the stripe.
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

/// The only one of these, if there is no other.
fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    all.next().filter(|_| all.next().is_none())
}

/// The stripes that a range of the update lies in, with the bytes of the update in each.
pub(crate) fn parts_of(range: Range) -> impl DoubleEndedIterator<Item = (usize, Range)> {
    (range.start / STRIPE_BYTES..range.end.div_ceil(STRIPE_BYTES)).map(move |index| {
        let stripe = Range::new(index * STRIPE_BYTES, (index + 1) * STRIPE_BYTES);
        (index as usize, stripe.intersect(range))
    })
}

/// Bytes of the update, all in one stripe, as bytes of that stripe.
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
        assert_eq!(accumulator.finish(&mut global, Repair::KeepLocal), Err(FoldError::Poisoned));
        accumulator.reset();
        accumulator.fold(0, &vec![5; global.len()], 1.0).unwrap();
        accumulator.finish(&mut global, Repair::KeepLocal).unwrap();
        assert!(global.iter().all(|&byte| byte == 5));
    }
}
