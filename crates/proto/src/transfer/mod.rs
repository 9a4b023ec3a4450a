//! One parcel on one link, in either direction: grant, chunks, holes, ask again, mend, end, resume.
//!
//! [`Incoming`] is the receiver's end: what has come, and what is asked for. [`Outgoing`] is the sender's: which grants
//! are being answered. A server and a client use the same two, for models, updates, tasks and results.

mod incoming;
mod outgoing;
mod reassembly;
mod record;

pub(crate) use self::incoming::{Incoming, Rule, Step};
pub(crate) use self::outgoing::Outgoing;
pub use self::reassembly::{Fit, Reassembly};
pub(crate) use self::record::{both, Carried};
pub use self::record::{Direction, Span, Transfer};
