//! The `mqtt` transport: links through a broker, with MQTT 3.1.1 or 5.
//!
//! This crate is the carrier, which exchanges messages with the broker. Links, windows, ordering and the
//! group send come from [`thalweg_messages`]. The crate's README describes the topics.
#![forbid(unsafe_code)]

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_messages::{Carrier, Messages, Post, Side};
use thalweg_transport::{Address, Capabilities, Kind, Options, Result, Setting};

mod carrier;
mod connect;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod inbox;
mod outbox;
mod packets;
mod topics;

/// Maximum length of a chunk's payload, in bytes.
pub const MAX_CHUNK: u32 = 1 << 20;

/// The settings of this transport alone.
const SETTINGS: &[Setting] = &[
    Setting {
        name: "version",
        kind: Kind::Choice { default: "5", choices: &["3.1.1", "5"] },
        meaning: "of MQTT; with 5 the broker says its limits",
        needs: &[],
    },
    Setting {
        name: "qos",
        kind: Kind::Number { default: 0, least: 0, most: 2 },
        meaning: "quality of service: 0 at most once, 1 at least once, 2 exactly once, between each end and the broker",
        needs: &[],
    },
    Setting {
        name: "prefix",
        kind: Kind::Text { default: "thalweg" },
        meaning: "what all topics begin with; the job's name follows",
        needs: &[],
    },
    Setting {
        name: "retain",
        kind: Kind::Flag { default: false },
        meaning: "whether the broker retains the model for clients that come late; with version 5",
        needs: &[],
    },
    Setting {
        name: "max_packet",
        kind: Kind::Number { default: 0, least: 0, most: 268_435_455 },
        meaning: "most bytes of a packet that the broker takes; 0 as it says, which only version 5 does",
        needs: &[],
    },
];

/// The `mqtt` transport, for a registry.
pub fn transport() -> Messages<Mqtt> {
    Messages::new(Mqtt)
}

/// The MQTT protocol, at `mqtt://host:port/job`, which is the broker's address and a job's name.
#[derive(Debug, Clone, Copy)]
pub struct Mqtt;

#[async_trait]
impl Post for Mqtt {
    fn name(&self) -> &'static str {
        "mqtt"
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
            congestion: true,
            retransmissions: cfg!(target_os = "linux"),
            max_chunk: MAX_CHUNK,
            ..Capabilities::default()
        }
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    async fn open(&self, side: Side, address: &Address, options: &Options) -> Result<Arc<dyn Carrier>> {
        Ok(Arc::new(connect::open(side, address, options).await?))
    }
}
