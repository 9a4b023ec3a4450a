//! One round's sums, folded into by many threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fearless_simd::Level;
use thalweg_wire::{Layout, Range};

use crate::stripe::Stripe;
use crate::weights::Weight;
use crate::{exact, finite, FoldError, Summary, EXACT_MAX_CONTRIBUTIONS};

/// Bytes of the update in one stripe, the unit of locking. A multiple of all element sizes and of the alignment of
/// tensors, so that no element lies in two; small enough that a stripe's sums stay in a core's cache.
pub const STRIPE_BYTES: u64 = 128 << 10;

/// What floats are summed up in. Memory is that of the sums, for each element of any float type.
///
/// Non-float tensors take the maximum in their own type, whatever the precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32, 4 bytes an element; f64 tensors in f64. A product overflows where |weight * value| is over 3e38.
    #[default]
    F32,
    /// f64, 8 bytes an element.
    F64,
    /// Fixed point, 8 bytes an element: the same bits in any order of arrival and any tree of merges. Refuses values
    /// that it cannot hold, see [`EXACT_MAX_PRODUCT`](crate::EXACT_MAX_PRODUCT).
    Exact,
}

impl Precision {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Exact => "exact",
        }
    }
}

/// What stands in for an element that nobody sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Repair {
    /// The global model's own value stays.
    #[default]
    KeepLocal,
    /// Zero.
    Zero,
}

/// The weighted sums of one round's updates, for one layout.
///
/// The sums lie in stripes of [`STRIPE_BYTES`], each behind its own lock, so any number of threads may fold chunks of
/// any clients at once. The weight of each element is kept apart, run-length, so clients that sent only parts count
/// where they sent something and nowhere else.
///
/// An accumulator is reused from round to round: [`Accumulator::reset`] forgets the weights and touches no sums,
/// since the first contribution to an element overwrites what its sum held.
#[derive(Debug)]
pub struct Accumulator {
    layout: Arc<Layout>,
    precision: Precision,
    level: Level,
    stripes: Vec<Mutex<Stripe>>,
}

impl Accumulator {
    /// Sums of nothing, for updates of this layout.
    pub fn new(layout: Arc<Layout>, precision: Precision) -> Self {
        let total = layout.bytes();
        let stripes = (0..total.div_ceil(STRIPE_BYTES)).map(|index| {
            let start = index * STRIPE_BYTES;
            Mutex::new(Stripe::new(&layout, precision, start, STRIPE_BYTES.min(total - start)))
        });
        Self { stripes: stripes.collect(), layout, precision, level: Level::new() }
    }

    /// The layout of the updates.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// What floats are summed up in.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Bytes of memory the sums take, once they were written to.
    pub fn memory_bytes(&self) -> u64 {
        self.stripes.iter().map(|stripe| unpoisoned(stripe).memory() as u64).sum()
    }

    /// The bytes that came and the sum of their weights, rising; neighbours differ in weight, but for padding between
    /// tensors, which may count to either side.
    ///
    /// An aggregator further up folds the means of these bytes, as `finish` wrote them, with these weights: so a tree
    /// whose branches are on different machines gives the same mean (but for rounding), holes or not.
    ///
    /// # Errors
    /// [`FoldError::Poisoned`] if a thread panicked while folding.
    pub fn weights(&self) -> Result<Vec<(Range, f64)>, FoldError> {
        let mut all: Vec<(Range, f64)> = Vec::new();
        for index in 0..self.stripes.len() {
            let start = index as u64 * STRIPE_BYTES;
            for part in self.lock(index)?.weights.covered() {
                let range = Range::new(start + part.bytes.start as u64, start + part.bytes.end as u64);
                match all.last_mut() {
                    Some((last, weight)) if last.end == range.start && *weight == part.weight() => {
                        last.end = range.end;
                    }
                    _ => all.push((range, part.weight())),
                }
            }
        }
        Ok(all)
    }

    /// Adds `weight` times the elements in `bytes`, which are bytes `offset..` of an update. Threads may do so at once.
    ///
    /// The range may begin and end at any byte. An element of which any byte is outside is left out (send it again
    /// whole, or it is a hole): returned is the range without such elements. Weights are counted for exactly these
    /// bytes. A weight of 0 (a client that trained on nothing) changes nothing and returns an empty range. The same
    /// bytes of the same client folded twice count twice; keeping duplicates out is the caller's business.
    ///
    /// # Errors
    /// [`FoldError::OutOfRange`], [`FoldError::Weight`], [`FoldError::Fragmented`]; with [`Precision::Exact`] also
    /// [`FoldError::Capacity`] and [`FoldError::NotFinite`]. Nothing was added then. NaN and infinity are folded like
    /// any value by the other precisions; call [`check_finite`](crate::check_finite) first.
    /// [`FoldError::Poisoned`] if another thread panicked while folding.
    pub fn fold(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<Range, FoldError> {
        let range = self.whole(offset, bytes.len() as u64)?;
        let Some(weight) =
            Weight::new(weight, self.precision == Precision::F32)?.filter(|_| !range.is_empty())
        else {
            return Ok(Range::new(range.start, range.start));
        };
        let bytes = &bytes[(range.start - offset) as usize..][..range.len() as usize];
        if self.precision == Precision::Exact {
            self.check_capacity(range.start, bytes, weight.value)?;
        }
        let small = parts_of(range).nth(1).is_none();
        if !small {
            self.check_room(range)?;
        }
        for (index, part) in parts_of(range) {
            let within = (part.start - range.start) as usize..(part.end - range.start) as usize;
            let mut stripe = self.lock(index)?;
            if small && !stripe.has_room(&in_stripe(part)) {
                return Err(no_room(index));
            }
            stripe.fold(self.level, in_stripe(part), &bytes[within], weight);
        }
        Ok(range)
    }

    /// Adds another accumulator's sums and weights to this one's: two branches of a tree become one. `other` stays.
    ///
    /// # Errors
    /// [`FoldError::Layout`], [`FoldError::Precision`], [`FoldError::Itself`]; nothing was added then.
    /// [`FoldError::Poisoned`] if a thread panicked while folding.
    pub fn merge(&self, other: &Accumulator) -> Result<(), FoldError> {
        if std::ptr::eq(self, other) {
            return Err(FoldError::Itself);
        }
        if let Some(difference) = self.layout.difference(&other.layout) {
            return Err(FoldError::Layout(difference));
        }
        if self.precision != other.precision {
            let (ours, theirs) = (self.precision.name(), other.precision.name());
            return Err(FoldError::Precision { ours, theirs });
        }
        // By address, so that two threads that merge crosswise do not wait for each other.
        let ours_first = std::ptr::from_ref(self) < std::ptr::from_ref(other);
        for index in 0..self.stripes.len() {
            let early = if ours_first { Some(self.lock(index)?) } else { None };
            let theirs = other.lock(index)?;
            let mut ours = early.map_or_else(|| self.lock(index), Ok)?;
            ours.merge(self.level, &theirs);
        }
        Ok(())
    }

    /// Writes the means into `global`, the bytes of a whole update, in the tensors' own types, rounded to nearest
    /// with ties to even (`F8_E4M3` saturates). Padding between tensors is left alone. The sums stay.
    ///
    /// No fold or merge into this accumulator should run meanwhile: it would count for some elements only.
    ///
    /// # Errors
    /// As [`Accumulator::finish_part`].
    pub fn finish(&self, global: &mut [u8], repair: Repair) -> Result<Summary, FoldError> {
        if global.len() as u64 != self.layout.bytes() {
            return Err(self.no_part(0, global));
        }
        self.finish_part(0, global, repair)
    }

    /// [`Accumulator::finish`], then [`Accumulator::reset`] if all went well.
    ///
    /// # Errors
    /// As [`Accumulator::finish_part`].
    pub fn finish_and_reset(&self, global: &mut [u8], repair: Repair) -> Result<Summary, FoldError> {
        let summary = self.finish(global, repair)?;
        self.reset();
        Ok(summary)
    }

    /// [`Accumulator::finish`] for bytes `offset..` of the update only, so that several threads may share the work:
    /// one part each of those that [`Accumulator::parts`] gives. The summaries add up by [`Summary::merge`].
    ///
    /// # Errors
    /// [`FoldError::Part`] if the part does not begin and end at stripes' ends, [`FoldError::Contributions`] if exact
    /// sums may have overflowed, [`FoldError::Poisoned`] if a thread panicked while folding. `part` is unchanged then.
    pub fn finish_part(&self, offset: u64, part: &mut [u8], repair: Repair) -> Result<Summary, FoldError> {
        let range = Range::new(offset, offset.saturating_add(part.len() as u64));
        let at_border = |at: u64| at.is_multiple_of(STRIPE_BYTES) || at == self.layout.bytes();
        if !at_border(range.start) || !at_border(range.end) || range.end > self.layout.bytes() {
            return Err(self.no_part(offset, part));
        }
        let mut summary = Summary::new(&self.layout);
        self.check_contributions(range)?;
        for (index, piece) in parts_of(range) {
            let out = &mut part[(piece.start - offset) as usize..(piece.end - offset) as usize];
            self.lock(index)?.finish(self.level, out, repair, &mut summary);
        }
        Ok(summary)
    }

    /// Cuts the update into at most `count` parts of about the same size for [`Accumulator::finish_part`].
    pub fn parts(&self, count: usize) -> Vec<Range> {
        let stripes = (self.stripes.len() as u64).div_ceil(count.max(1) as u64).max(1);
        let starts = (0..self.layout.bytes()).step_by((stripes * STRIPE_BYTES) as usize);
        starts.map(|s| Range::new(s, (s + stripes * STRIPE_BYTES).min(self.layout.bytes()))).collect()
    }

    /// Forgets all contributions, for the next round. Takes microseconds: memory stays and is not touched.
    pub fn reset(&self) {
        for stripe in &self.stripes {
            // What a panicking thread left half done is forgotten with the rest.
            stripe.clear_poison();
            unpoisoned(stripe).weights.clear();
        }
    }

    fn lock(&self, stripe: usize) -> Result<MutexGuard<'_, Stripe>, FoldError> {
        self.stripes[stripe].lock().map_err(|_| FoldError::Poisoned)
    }

    /// `offset..offset + length` less the elements that it cuts.
    fn whole(&self, offset: u64, length: u64) -> Result<Range, FoldError> {
        let bytes = self.layout.bytes();
        let end = offset.checked_add(length).filter(|&end| end <= bytes);
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

    /// Whether exact sums can hold all these elements times the weight.
    fn check_capacity(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<(), FoldError> {
        let scaled = exact::scaled(weight);
        for (tensor, first, elements) in finite::whole_elements(&self.layout, offset, bytes) {
            if !tensor.dtype.is_float()
                || exact::fits(finite::largest(self.level, tensor.dtype, elements), scaled)
            {
                continue;
            }
            if let Some(defect) = finite::find(tensor, first, elements, |value| !exact::fits(value, scaled)) {
                let crate::Defect { tensor, element, value } = defect.clone();
                let finite = value.is_finite();
                let capacity = FoldError::Capacity { tensor, element, value, weight };
                return Err(if finite { capacity } else { defect.into() });
            }
        }
        Ok(())
    }

    /// Whether the stripes at both ends can account for these borders; those between get none. Before anything is
    /// added, so that a refused chunk leaves no trace. Threads that fold at once may exceed the limit by a few.
    fn check_room(&self, range: Range) -> Result<(), FoldError> {
        let ends = [parts_of(range).next(), parts_of(range).next_back()];
        for (index, part) in ends.into_iter().flatten() {
            if !self.lock(index)?.has_room(&in_stripe(part)) {
                return Err(no_room(index));
            }
        }
        Ok(())
    }

    fn check_contributions(&self, range: Range) -> Result<(), FoldError> {
        if self.precision != Precision::Exact {
            return Ok(());
        }
        for (index, part) in parts_of(range) {
            let found = self.lock(index)?.weights.most_contributions();
            if found > EXACT_MAX_CONTRIBUTIONS {
                return Err(FoldError::Contributions { offset: part.start, found });
            }
        }
        Ok(())
    }

    fn no_part(&self, offset: u64, part: &[u8]) -> FoldError {
        FoldError::Part { offset, found: part.len() as u64, bytes: self.layout.bytes() }
    }
}

/// The stripe even if a thread panicked while it held it.
fn unpoisoned(stripe: &Mutex<Stripe>) -> MutexGuard<'_, Stripe> {
    stripe.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_room(stripe: usize) -> FoldError {
    FoldError::Fragmented { offset: stripe as u64 * STRIPE_BYTES }
}

/// The stripes that a range of the update lies in, with the bytes of the update in each.
fn parts_of(range: Range) -> impl DoubleEndedIterator<Item = (usize, Range)> {
    (range.start / STRIPE_BYTES..range.end.div_ceil(STRIPE_BYTES)).map(move |index| {
        let stripe = Range::new(index * STRIPE_BYTES, (index + 1) * STRIPE_BYTES);
        (index as usize, stripe.intersect(range))
    })
}

/// Bytes of the update, all in one stripe, as bytes of that stripe.
fn in_stripe(part: Range) -> std::ops::Range<usize> {
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
