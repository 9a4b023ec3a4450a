//! What transports share that move messages: ZMTP without a broker, MQTT and AMQP with one.
//!
//! A protocol implements [`Carrier`]: publish a message to a mailbox, take the next one for me. The rest is written
//! once over it. [`switchboard`] is a carrier within a process, for tests.
#![forbid(unsafe_code)]

pub mod carrier;
pub mod switchboard;

pub use carrier::{Carrier, Event, Letter, Mailbox, MemberId, Message, Nature, Network, Post, Side};

/// Most bytes of a message's head. A carrier's largest message less this is its largest chunk.
pub const HEAD_BYTES: usize = 256;

/// Cost of messages that are no chunks, under way on a link: their bytes, and 64 more for each.
pub const CONTROL_WINDOW: u64 = 1 << 20;
