//! A model of a network link without IO or clock: queue, rate, delay, jitter, loss, reordering, duplication.
//!
//! The packet relay of the lab and the message-level layer both use [`Pipe`]. A pipe is one direction of one
//! link. It behaves as `tc netem` does; [`Chain`] describes the exception.

#![forbid(unsafe_code)]

mod chain;
mod pipe;
mod shape;

pub use chain::Chain;
pub use pipe::{Cause, Fate, Pass, Pipe};
pub use shape::{Burst, Shape, ShapeError};

/// Time since a fixed moment on a monotonic clock. The caller passes the current time.
pub type Time = std::time::Duration;
