//! What transports share that move messages: ZMTP without a broker, MQTT and AMQP with one.
//!
//! A protocol implements [`Post`] and [`Carrier`]: publish a message to a mailbox, take the next one for me. The rest
//! is written once over these, and [`Messages`] is the transport. [`switchboard`] is a carrier within a process, for
//! tests.
//!
//! On the wire each message has a head of its own: which link, which number. A member says hello until the listener
//! answers. Chunks and control messages are sent within what the receiver has granted, so queues on the way are
//! bounded; one that was lost is noticed by its number, and one that comes twice is dropped.
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
pub mod switchboard;

pub use carrier::{Care, Carrier, Event, Letter, Mailbox, MemberId, Message, Nature, Network, Post, Side};
pub use link::Messages;
pub use shelf::SHELF_BYTES;

/// Most bytes of a message's head. A carrier's largest message less this is its largest chunk.
pub const HEAD_BYTES: usize = 256;

/// Cost of messages that are no chunks, under way on a link: their bytes, and 64 more for each.
pub const CONTROL_WINDOW: u64 = 1 << 20;
