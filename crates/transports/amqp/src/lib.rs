//! The `amqp` transport: messages through a RabbitMQ broker with AMQP 0-9-1, as in FedComm (section III.B.2).
//!
//! Each party has an exclusive queue, which the broker deletes when the party's connection ends. By default,
//! the server publishes its model once, to a fan-out exchange that all clients' queues are bound to. A
//! message to one party goes to its queue through the default exchange. See the [README](../README.md).
#![forbid(unsafe_code)]

mod broker;
mod carrier;
mod ending;
mod explain;
mod inbox;
mod names;
mod outbox;
mod presence;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_messages::{Carrier, Messages, Post, Side};
use thalweg_transport::{Address, Capabilities, Error, ErrorKind, Kind, Options, Result, Setting};

use crate::carrier::AmqpCarrier;

/// Maximum length of a chunk's payload, in bytes.
pub const MAX_CHUNK: u32 = 4 << 20;

/// Frame size to ask the broker for, in bytes. lapin keeps 32 frames for each direction of a connection.
const FRAME_MAX: u32 = 32 << 10;
/// Bytes of a frame besides its payload.
const FRAME_EXTRA: usize = 8;
/// Heartbeat interval, as RabbitMQ suggests. An end counts as dead after two intervals without a byte.
const HEARTBEAT_SECONDS: u16 = 60;
/// Longest time to close in good order.
const CLOSING: Duration = Duration::from_secs(2);
/// Maximum number of bytes of messages that wait for the connection.
const ROOM: usize = 1 << 20;
/// Maximum cost of chunks in flight to one reader. They wait in the broker's memory.
const WINDOW: u64 = 8 << 20;
const RECEIVE: &str = "receive";

/// The settings of this transport alone.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "exchange",
        kind: Kind::Choice { default: "fanout", choices: &["fanout", "direct", "topic"] },
        meaning: "the exchange that messages are routed by; the same for all parties",
        needs: &[],
    },
    Setting {
        name: "confirms",
        kind: Kind::Flag { default: true },
        meaning: "whether the broker confirms what it has taken",
        needs: &[],
    },
    Setting {
        name: "prefetch",
        kind: Kind::Number { default: 16, least: 1, most: 1024 },
        meaning: "messages the broker sends ahead of their acknowledgements",
        needs: &[],
    },
    Setting {
        name: "max_message",
        kind: Kind::Number { default: 16 << 20, least: 4 << 10, most: 128 << 20 },
        meaning: "bytes of the largest message; the broker's max_message_size, or less",
        needs: &[],
    },
    Setting {
        name: "vhost",
        kind: Kind::Text { default: "/" },
        meaning: "the virtual host at the broker",
        needs: &[],
    },
];

/// The `amqp` transport, at `amqp://host:port/job`, which is the broker's address and a job's name.
pub fn transport() -> Messages<AmqpPost> {
    Messages::new(AmqpPost)
}

/// The AMQP protocol, which opens carriers.
#[derive(Debug, Clone, Copy, Default)]
pub struct AmqpPost;

#[async_trait]
impl Post for AmqpPost {
    fn name(&self) -> &'static str {
        "amqp"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            ordered: true,
            fan_out: true,
            broker: true,
            encrypted: true,
            symmetric: true,
            sender_unmodified: true,
            remote: true,
            congestion: cfg!(target_os = "linux"),
            retransmissions: cfg!(target_os = "linux"),
            max_chunk: MAX_CHUNK,
            ..Capabilities::default()
        }
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    async fn open(&self, side: Side, address: &Address, options: &Options) -> Result<Arc<dyn Carrier>> {
        let chosen = options.own.read(SETTINGS)?;
        if address.scheme != "amqp" || address.port.is_none_or(|port| port == 0) {
            return Err(Error::new(ErrorKind::Address, "open", format!("{address} is not amqp://host:port"))
                .hint(
                    "write the broker's address as amqp://127.0.0.1:5672, with a /job if several share it",
                ));
        }
        if options.streams != 1 {
            return Err(Error::new(ErrorKind::Unsupported, "open", "an amqp link has one stream")
                .hint("leave streams at 1"));
        }
        Ok(Arc::new(AmqpCarrier::open(side, address, options, &chosen).await?))
    }
}

/// Bytes of a message of `length` bytes on the wire: a method frame with both names, a header frame, and body
/// frames.
fn wire_bytes(length: usize, exchange: &str, key: &str) -> u64 {
    // Method frame: class, method, reserved, two string lengths, flags (AMQP 0-9-1, section 1.8.3.7). Header
    // frame: class, weight, size, property flags.
    const METHOD: usize = 2 + 2 + 2 + 1 + 1 + 1;
    const HEADER: usize = 2 + 2 + 8 + 2;
    let names = exchange.len() + key.len();
    let frames = length.div_ceil(FRAME_MAX as usize - FRAME_EXTRA);
    (FRAME_EXTRA + METHOD + names + FRAME_EXTRA + HEADER + frames * FRAME_EXTRA + length) as u64
}
