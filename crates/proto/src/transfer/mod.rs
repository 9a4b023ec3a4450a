//! One parcel on one link, in either direction: grant, chunks, holes, resend, End, resume.
//!
//! [`Incoming`] is the receiver's end: it tracks what has arrived and what was asked for. [`Outgoing`] is the
//! sender's end: it tracks the grants that must be answered. Servers and clients use both for models,
//! updates, tasks and results.

mod chunk_receiver;
mod incoming;
mod outgoing;
mod reassembly;
mod record;

pub use self::chunk_receiver::ChunkReceiver;
pub use self::incoming::Incoming;
pub(crate) use self::incoming::{Rule, Step};
pub(crate) use self::outgoing::{interval, Outgoing};
pub use self::reassembly::{Fit, Reassembly};
pub(crate) use self::record::{both, Carried};
pub use self::record::{Direction, Span, TransferReport};
