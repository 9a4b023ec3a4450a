//! Errors of folding: why bytes cannot be folded, and what to do about it.

use thiserror::Error;

use crate::{EXACT_MAX_SUM, MAX_RUNS, MAX_WEIGHT, MIN_WEIGHT, STRIPE_BYTES};

/// An element that is NaN or infinite.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("tensor {tensor:?}, element {element} (row-major), is {value}: the sender's training diverged; leave its update out of the round")]
pub struct Defect {
    /// Name of the tensor.
    pub tensor: String,
    /// Index of the element in the tensor, row-major, from 0.
    pub element: u64,
    /// NaN or an infinity.
    pub value: f64,
}

/// Why a fold, a merge or a finish was refused. A refused call has changed nothing, except with
/// [`FoldError::Poisoned`].
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum FoldError {
    /// The policy needs the feature `baselines`, which this build lacks.
    #[error("the stand-in fedcomm-legacy is for comparison only, and this build has no baselines: build with them (make setup BASELINES=1), or take another policy")]
    Baseline,
    /// The bytes reach beyond the end of the layout.
    #[error("bytes {offset}..{offset}+{length} do not fit the layout of {bytes} bytes: the sender uses another layout; compare layout hashes first")]
    OutOfRange {
        /// First byte of the chunk.
        offset: u64,
        /// Bytes of the chunk.
        length: u64,
        /// Bytes of the layout.
        bytes: u64,
    },
    /// The weight is not allowed.
    #[error("weight {0} is neither 0 nor within {MIN_WEIGHT:e} to {MAX_WEIGHT:e}: send the number of samples trained on, or scale all weights alike")]
    Weight(f64),
    /// The sums cannot hold the product of value and weight; see
    /// [`Precision::limit`](crate::Precision::limit).
    #[error("tensor {tensor:?}, element {element} (row-major): {value:e} times weight {weight} is over the limit of {limit:e} of sums in {precision}; the sender's training diverged, or divide all weights by the same power of two, or fold in f64")]
    Capacity {
        /// Name of the tensor.
        tensor: String,
        /// Index of the element in the tensor, row-major, from 0.
        element: u64,
        /// The value of the element.
        value: f64,
        /// The weight of the contribution.
        weight: f64,
        /// The product must be below this.
        limit: f64,
        /// The precision of the sums.
        precision: &'static str,
    },
    /// An element is NaN or infinite, which no sum can hold.
    #[error(transparent)]
    NotFinite(#[from] Defect),
    /// Exact sums might overflow if this contribution were added.
    #[error("the sums of bytes near {offset} might exceed the {EXACT_MAX_SUM:e} that exact folding can hold: divide all weights by the same power of two, or fold in f64")]
    Sums {
        /// A byte of the update whose sum has no room.
        offset: u64,
    },
    /// There are more contributions, or more weight, than can be counted.
    #[error("bytes near {offset} received more contributions or weight than can be counted: fold fewer of them in a round, or scale all weights alike")]
    Contributions {
        /// A byte of the update that has received too many or too much.
        offset: u64,
    },
    /// A mean is not finite, so the model would be useless.
    #[error("the mean of tensor {tensor:?}, element {element} (row-major), is {mean}: its values times their weights overflow; fold in f64, or scale all weights down alike")]
    Mean {
        /// Name of the tensor.
        tensor: String,
        /// Index of the element in the tensor, row-major, from 0.
        element: u64,
        /// NaN or an infinity.
        mean: f64,
    },
    /// The pieces that arrived are too small and too scattered, so that there would be too many weight runs.
    #[error("bytes from {offset} have more than {MAX_RUNS} separately weighted pieces in {STRIPE_BYTES} bytes: send chunks of 64 bytes or more, at multiples of 64")]
    Fragmented {
        /// First byte of the stripe.
        offset: u64,
    },
    /// The two accumulators have different layouts.
    #[error("accumulators of different layouts cannot be merged: {0}")]
    Layout(String),
    /// The two accumulators have different precisions.
    #[error("accumulators of different precision cannot be merged ({ours} and {theirs}): give all aggregators of a tree the same")]
    Precision {
        /// Precision of this accumulator.
        ours: &'static str,
        /// Precision of the other one.
        theirs: &'static str,
    },
    /// The memory that was lent for a stripe's sums does not have the required size.
    #[error("{found} bytes were lent where {bytes} are needed for sums: lend as much as `Accumulator::bytes_needed` says")]
    Memory {
        /// Bytes that were lent; 0 if there was nothing left to lend.
        found: usize,
        /// Bytes needed.
        bytes: usize,
    },
    /// The memory that was lent is not aligned for numbers.
    #[error("the memory lent for sums does not begin at a multiple of 8 bytes: lend pages, or parts of them at multiples of 64 bytes")]
    Misaligned,
    /// The cells of sums do not have the size that the layout requires.
    #[error("{found} bytes of cells are not the {bytes} bytes that sums of this layout and precision have: give all aggregators of a tree the same version and plan")]
    Cells {
        /// Bytes that were given, or that the head states.
        found: u64,
        /// Bytes needed.
        bytes: u64,
    },
    /// The bytes are no sums, or were changed on the way.
    #[error("sums that came cannot be merged: {0}; ask for them again, and if that does not help leave their sender out")]
    Damaged(&'static str),
    /// An accumulator cannot be merged into itself: every client would count twice.
    #[error("an accumulator cannot be merged into itself: every client would count twice")]
    Itself,
    /// The buffer does not have the size that `finish` or `finish_part` needs.
    #[error("{found} bytes at byte {offset} are not a part of the update: start at a multiple of {STRIPE_BYTES} and end at one or at the layout's {bytes} bytes")]
    Part {
        /// First byte of the part.
        offset: u64,
        /// Bytes of the buffer.
        found: u64,
        /// Bytes of the layout.
        bytes: u64,
    },
    /// A thread panicked while it held a stripe's lock, so the sums cannot be trusted.
    #[error("a thread panicked while folding: the sums of this round cannot be trusted; reset the accumulator and repeat the round")]
    Poisoned,
}
