//! Aggregation as a fold. Updates are added to an [`Accumulator`], chunk by chunk, while they arrive. At the
//! end of the round, the accumulator writes the weighted mean into the global model.
//!
//! - Floats: the mean over the participants, weighted by their sample counts (FedAvg). The mean of each
//!   element is over those participants whose element has arrived. Eager aggregation (fold on arrival), lazy
//!   aggregation ([`mean`] of whole updates), any order and any tree of [`Accumulator::merge`] give the same
//!   mean (LIFL sections 2.1 and 5.4: cumulative averaging). With [`Precision::Exact`] they give the same
//!   bits.
//! - Integers and booleans: the maximum over the participants. A mean might not be an integer, and the
//!   counters in models (batches seen, positions) only grow.
//!
//! Sums can be sent elsewhere ([`Accumulator::export`], [`Accumulator::merge_sums`]). With
//! [`Precision::Exact`], a tree of processes on any machines gives the same bits as one accumulator that
//! folds everything. Weights are exact in any precision.
//!
//! This crate opens no socket, starts no thread and reads no clock. The caller provides the threads: many of
//! them may call [`Accumulator::fold`] at once, and each may write a part with [`Accumulator::finish_part`].
//!
//! ```
//! use std::sync::Arc;
//! use thalweg_fold::{Accumulator, Precision, Replacement};
//! use thalweg_wire::{Dtype, Layout};
//!
//! let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![1])])?);
//! let accumulator = Accumulator::new(layout, Precision::F32);
//! accumulator.fold(0, &1.0_f32.to_le_bytes(), 30.0)?;
//! accumulator.fold(0, &5.0_f32.to_le_bytes(), 10.0)?;
//! let mut global = [0; 4];
//! let summary = accumulator.finish_and_reset(&mut global, Replacement::KeepLocal)?;
//! assert_eq!(f32::from_le_bytes(global), 2.0);
//! assert_eq!(summary.uncovered_bytes, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod accumulator;
mod cells;
mod error;
mod exact;
mod exporting;
mod finite;
mod floats;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod kernels;
mod many;
mod memory;
mod policy;
pub mod reference;
mod stripe;
mod summary;
mod sums;
mod weights;

pub use accumulator::{Accumulator, Precision, Replacement, STRIPE_BYTES};
pub use cells::SUMS_ALIGN;
pub use error::{Defect, FoldError};
pub use exact::{EXACT_FRACTION_BITS, EXACT_MAX_PRODUCT, EXACT_MAX_SUM};
pub use finite::check_finite;
pub use many::{Contribution, Refusal};
pub use memory::LentMemory;
pub use policy::Policy;
pub use reference::mean;
pub use summary::{Coverage, Summary};
pub use sums::{Sums, SumsHead, WeightRun};
pub use weights::{MAX_CONTRIBUTIONS, MAX_RUNS, MAX_WEIGHT, MIN_WEIGHT};
