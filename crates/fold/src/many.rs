//! Folds several updates in one pass: each stripe's sums are read and written once for all of them.

use thalweg_wire::{Range, Ranges};

use crate::accumulator::{in_stripe, no_room, parts_of};
use crate::weights::Weight;
use crate::{Accumulator, FoldError};

/// One of several updates that are folded together.
#[derive(Debug, Clone, Copy)]
pub struct Contribution<'a> {
    /// A whole update.
    pub bytes: &'a [u8],
    /// The ranges of it that have arrived. The rest of `bytes` has no meaning. An element that a range cuts
    /// is left out.
    pub received: &'a Ranges,
    /// The update's weight. If it is 0, the update changes nothing.
    pub weight: f64,
}

/// Why none of several updates was folded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("update {update} of those folded together: {error}")]
pub struct Refusal {
    /// Index of the update that cannot be folded, from 0. The others may be folded without it.
    pub update: usize,
    /// Why that update cannot be folded.
    #[source]
    pub error: FoldError,
}

/// The part of one update that is in one stripe.
struct Piece<'a> {
    update: usize,
    place: std::ops::Range<usize>,
    bytes: &'a [u8],
    weight: Weight,
    magnitude: u64,
}

/// An update with a weight, and the ranges of its whole elements.
struct Judged<'a> {
    update: usize,
    bytes: &'a [u8],
    received: Vec<Range>,
    weight: Weight,
}

impl Accumulator {
    /// Adds the bytes `range` of several updates. If one of them is refused, none is added. The result is,
    /// bit for bit, that of [`Accumulator::fold_ranges`] for one update after the other. But this function
    /// goes stripe by stripe, so the sums of a stripe stay in the cache until all updates are added. With
    /// exact sums the updates are read twice, since their values must be checked first.
    ///
    /// # Errors
    /// As [`Accumulator::fold_ranges`], with the index of the update that is refused.
    pub fn fold_many(&self, updates: &[Contribution<'_>], range: Range) -> Result<(), Refusal> {
        let judged = self.judge_many(updates, range)?;
        let stripes: Vec<usize> = parts_of(range).map(|(index, _)| index).collect();
        let mut cursors = vec![0; judged.len()];
        let mut all = Vec::with_capacity(stripes.len());
        for &index in &stripes {
            all.push(self.pieces_of(index, &judged, &mut cursors)?);
        }
        for (&index, pieces) in stripes.iter().zip(all) {
            if pieces.is_empty() {
                continue;
            }
            let mut stripe = self.lock(index).map_err(|error| Refusal { update: 0, error })?;
            for Piece { place, bytes, weight, magnitude, .. } in pieces {
                stripe.fold(self.level, place, bytes, weight, magnitude);
            }
        }
        Ok(())
    }

    /// The updates that have a weight, each with the ranges of whole elements in `range` that have arrived.
    fn judge_many<'a>(&self, updates: &[Contribution<'a>], range: Range) -> Result<Vec<Judged<'a>>, Refusal> {
        let mut judged = Vec::with_capacity(updates.len());
        for (update, of) in updates.iter().enumerate() {
            let refused = |error| Refusal { update, error };
            if of.bytes.len() as u64 != self.layout().bytes() {
                return Err(refused(self.no_part(0, of.bytes)));
            }
            let Some(weight) = self.weight(of.weight).map_err(refused)? else { continue };
            let mut received = Vec::with_capacity(of.received.count());
            for part in of.received.iter() {
                let part = part.intersect(range);
                if !part.is_empty() {
                    received.push(self.whole(part.start, part.len()).map_err(refused)?);
                }
            }
            received.retain(|part| !part.is_empty());
            judged.push(Judged { update, bytes: of.bytes, received, weight });
        }
        Ok(judged)
    }

    /// The pieces of the updates that are in a stripe, after checking that all can be added. `cursors` has
    /// the index of the next range of each update.
    fn pieces_of<'a>(
        &self,
        index: usize,
        judged: &[Judged<'a>],
        cursors: &mut [usize],
    ) -> Result<Vec<Piece<'a>>, Refusal> {
        let end = (index as u64 + 1) * crate::STRIPE_BYTES;
        let stripe = Range::new(end - crate::STRIPE_BYTES, end);
        let mut pieces = Vec::with_capacity(judged.len());
        for (of, cursor) in judged.iter().zip(cursors) {
            while let Some(part) = of.received.get(*cursor).filter(|part| part.start < end) {
                let here = part.intersect(stripe);
                let bytes = &of.bytes[here.start as usize..here.end as usize];
                let magnitude = self.magnitude(here.start, bytes, of.weight);
                let magnitude = magnitude.map_err(|error| Refusal { update: of.update, error })?;
                let (update, place, weight) = (of.update, in_stripe(here), of.weight);
                pieces.push(Piece { update, place, bytes, weight, magnitude });
                if part.end > end {
                    break;
                }
                *cursor += 1;
            }
        }
        self.have_room(index, &pieces)?;
        Ok(pieces)
    }

    /// Checks that a stripe has room for these pieces, one after the other.
    fn have_room(&self, index: usize, pieces: &[Piece<'_>]) -> Result<(), Refusal> {
        let Some(first) = pieces.first() else { return Ok(()) };
        let stripe = self.lock(index).map_err(|error| Refusal { update: first.update, error })?;
        let mut weights = stripe.weights.clone();
        for piece in pieces {
            let room = weights.has_room(&piece.place, piece.magnitude, 0);
            room.map_err(|full| Refusal { update: piece.update, error: no_room(index, full) })?;
            weights.add(piece.place.clone(), piece.weight, piece.magnitude);
        }
        Ok(())
    }
}
