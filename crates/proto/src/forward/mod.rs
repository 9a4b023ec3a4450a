//! TCP streams of other programs over one link: opening, credit, half-close, reset, and resending lost
//! chunks.
//!
//! ```text
//! mux      the streams of a link: which messages and which chunks go next, fairly; liveness
//! outlet   one direction at its sender: bytes kept until they have arrived, never more than was granted or fit its window
//! inlet    one direction at its receiver: bytes put in order, and credit for more as the program takes them
//! terms    what the driver tells the machine, and hears from it
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
