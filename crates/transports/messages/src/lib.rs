//! The part that transports over message protocols share: ZMTP without a broker, MQTT and AMQP with one.
//!
//! A protocol implements [`Post`], which opens connections, and [`Carrier`], which publishes messages to
//! mailboxes and reads its own. Everything else is written once, on top of these traits; [`Messages`] is the
//! transport. `Switchboard` of `crates/testkit` is a carrier within one process, for tests.
//!
//! Each message begins with a head: the link it belongs to, and its number. A member repeats its hello until
//! the listener answers. A sender sends only what the receiver has granted, so the queues between them are
//! bounded. The receiver notices a lost message by the numbers, and drops duplicates.
#![forbid(unsafe_code)]

pub mod carrier;
mod credit;
mod envelope;
mod fanout;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod intake;
mod keeper;
mod link;
mod listener;
mod member;
mod receive;
mod secret;
mod send;
mod shared;
mod shelf;

pub use carrier::{Care, Carrier, Event, Letter, Mailbox, MemberId, Message, Nature, Network, Post, Side};
pub use link::Messages;
pub use shelf::SHELF_BYTES;

/// Maximum number of bytes of a message's head. A carrier's largest chunk is its largest message minus this.
pub const HEAD_BYTES: usize = 256;

/// Maximum number of control messages in flight on a link, by cost: their bytes plus 64 for each.
pub const CONTROL_WINDOW: u64 = 1 << 20;
