//! TCP streams of other programs over one link: opening, credit, half-close, reset, and resending lost
//! chunks.
//!
//! ```text
//! mux      the streams of a link: chooses the next messages and chunks fairly; watches liveness
//! outlet   one direction at its sender: keeps bytes until they are confirmed, at most its window
//! inlet    one direction at its receiver: orders bytes, and grants credit as the program takes them
//! terms    the configuration, and the events for the driver
//! ```
//!
//! Each direction of a stream has a window at each end. The receiver buffers at most its window. The sender
//! reads no more bytes from its program than the receiver has granted. Whatever was granted, the sender keeps
//! at most its own window of unconfirmed bytes. So a program that reads slowly stops its own peer, and no
//! other stream.

mod inlet;
mod mux;
mod outlet;
mod terms;

pub use mux::Mux;
pub use terms::{Batch, Fetched, ForwardConfig, ForwardEvent};
