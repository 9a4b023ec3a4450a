//! How a link behaves, as a model without IO or clock: queue, rate, delay, jitter, loss, reordering, duplication.
//!
//! The packet relay of the lab and the message-level layer drive the same [`Pipe`]. A pipe is one direction of one
//! link; what is true of `tc netem` is true of it, but where [`Chain`] says otherwise.

#![forbid(unsafe_code)]

mod chain;
mod pipe;
mod shape;

pub use chain::Chain;
pub use pipe::{Cause, Fate, Pass, Pipe};
pub use shape::{Burst, Shape, ShapeError};

/// Time since some fixed moment, on a monotonic clock. The caller says what time it is.
pub type Time = std::time::Duration;
