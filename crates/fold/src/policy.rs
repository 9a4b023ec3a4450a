//! Stand-ins: the values that take the place of the missing parts of an update before it is folded.
//!
//! Client `i` has weight `w`. Some elements of its update have arrived (with value `v`), others have not. `g`
//! is the global model that the client was sent. An element of which any byte is missing has not arrived. The
//! new mean of an element is then
//!
//! | policy | the mean is over | value of an element that has not arrived |
//! |---|---|---|
//! | [`Policy::Renormalise`] | those clients whose element has arrived | none |
//! | [`Policy::KeepLocal`] | all | `g` |
//! | [`Policy::Zero`] | all | 0 |
//! | [`Policy::Last`] | all | what the client sent last, or else `g` |
//! | [`Policy::Rescale`] | all | `g`; if a fraction `f` has arrived, `v` becomes `g + (v - g) / f` |
//! | [`Policy::FedcommLegacy`] | all | a value from further on that has moved up |
//!
//! If elements are lost at random, rescaling preserves the expected change of the model (inverse probability
//! weighting). For gradients, where `g` is 0, an element that has arrived becomes `v / f`.

use thalweg_wire::control::StandIn;
use thalweg_wire::{Layout, Range, Ranges, Tensor};

use crate::reference::{decode, encode};
use crate::FoldError;

/// The policy that chooses the stand-ins for the missing parts of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Nothing. The mean of each element is over the clients whose element has arrived.
    #[default]
    Renormalise,
    /// The global model's value.
    KeepLocal,
    /// Zero.
    Zero,
    /// The value that the client sent last; if there is none, the value of the global model.
    Last,
    /// The global model's value. The changes of elements that have arrived are scaled up to make up for those
    /// that have not.
    Rescale,
    /// For comparison only, since it is wrong. FedComm's chunks have no index. So what comes after a hole
    /// moves up into the hole, and the end of the tensor is filled with zeros. A tensor of which nothing has
    /// arrived keeps the global values. It needs the feature `baselines`.
    FedcommLegacy,
}

impl From<StandIn> for Policy {
    fn from(stand_in: StandIn) -> Self {
        match stand_in {
            StandIn::Renormalise => Self::Renormalise,
            StandIn::KeepLocal => Self::KeepLocal,
            StandIn::Zero => Self::Zero,
            StandIn::Last => Self::Last,
            StandIn::Rescale => Self::Rescale,
            StandIn::FedcommLegacy => Self::FedcommLegacy,
        }
    }
}

impl Policy {
    /// Fills in the `holes` of `update`. Returns the ranges to fold.
    ///
    /// `update`, `global` and `last` have the bytes of the whole layout. What `update` has in its holes does
    /// not matter.
    ///
    /// # Errors
    /// [`FoldError::Part`] if one of them does not have the size of the layout; [`FoldError::Baseline`] if
    /// this build lacks the policy. `update` is unchanged then.
    pub fn fill(
        self,
        layout: &Layout,
        update: &mut [u8],
        holes: &Ranges,
        global: &[u8],
        last: Option<&[u8]>,
    ) -> Result<Ranges, FoldError> {
        let bytes = layout.bytes();
        let mut sizes = [update.len(), global.len(), last.map_or(global.len(), <[u8]>::len)].into_iter();
        if let Some(found) = sizes.find(|&found| found as u64 != bytes) {
            return Err(FoldError::Part { offset: 0, found: found as u64, bytes });
        }
        let missing = in_elements(layout, holes);
        match self {
            Self::Renormalise => return Ok(missing.holes(bytes)),
            Self::KeepLocal => take(update, &missing, global),
            Self::Zero => missing.iter().for_each(|range| update[within(range)].fill(0)),
            Self::Last => take(update, &missing, last.unwrap_or(global)),
            Self::Rescale => rescale(layout, update, &missing, global),
            #[cfg(feature = "baselines")]
            Self::FedcommLegacy => slip(layout, update, &missing, global),
            #[cfg(not(feature = "baselines"))]
            Self::FedcommLegacy => return Err(FoldError::Baseline),
        }
        Ok(Ranges::full(bytes))
    }
}

fn within(range: Range) -> std::ops::Range<usize> {
    range.start as usize..range.end as usize
}

/// The elements of which at least one byte is missing, without padding between tensors.
fn in_elements(layout: &Layout, holes: &Ranges) -> Ranges {
    let mut missing = Ranges::new();
    for hole in holes.iter() {
        for tensor in layout.overlapping(hole) {
            let (size, part) = (tensor.dtype.size(), hole.intersect(tensor.range()));
            let start = tensor.offset + (part.start - tensor.offset) / size * size;
            let end = tensor.offset + (part.end - tensor.offset).div_ceil(size) * size;
            if part.start < part.end {
                missing.insert(Range::new(start, end));
            }
        }
    }
    missing
}

fn take(update: &mut [u8], missing: &Ranges, from: &[u8]) {
    for range in missing.iter() {
        update[within(range)].copy_from_slice(&from[within(range)]);
    }
}

fn rescale(layout: &Layout, update: &mut [u8], missing: &Ranges, global: &[u8]) {
    take(update, missing, global);
    let tensors = || layout.tensors().iter().filter(|t| t.dtype.is_float());
    let all: u64 = tensors().map(|t| t.elements()).sum();
    let received = |tensor: &Tensor| missing.missing_in(tensor.range());
    let here: u64 =
        tensors().map(|t| received(t).iter().map(|r| r.len()).sum::<u64>() / t.dtype.size()).sum();
    if here == 0 || here == all {
        return;
    }
    let factor = all as f64 / here as f64;
    for tensor in tensors() {
        let size = tensor.dtype.size() as usize;
        for range in received(tensor) {
            let pairs =
                update[within(range)].chunks_exact_mut(size).zip(global[within(range)].chunks_exact(size));
            for (element, own) in pairs {
                let own = decode(tensor.dtype, own);
                let value = own + (decode(tensor.dtype, element) - own) * factor;
                encode(tensor.dtype, value, element);
            }
        }
    }
}

#[cfg(feature = "baselines")]
fn slip(layout: &Layout, update: &mut [u8], missing: &Ranges, global: &[u8]) {
    for tensor in layout.tensors() {
        let (mut to, all) = (tensor.offset as usize, within(tensor.range()));
        for range in missing.missing_in(tensor.range()) {
            update.copy_within(within(range), to);
            to += range.len() as usize;
        }
        if to == all.start {
            update[all.clone()].copy_from_slice(&global[all]);
        } else {
            update[to..all.end].fill(0);
        }
    }
}
