//! The zmq transport: ZMTP 3.1 by libzmq, without a broker; ROUTER/DEALER or PUB/SUB, in the clear or under CURVE.
//!
//! Links, windows and the rest are those of `thalweg-messages`; here is the carrier. libzmq moves the bytes in its own
//! threads, at most four for the process; its sockets are woken by their descriptors, under tokio.
#![deny(unsafe_code)] // allowed in ffi.rs and kernel.rs alone

mod carrier;
mod ffi;
mod joining;
mod kernel;
mod keys;
mod monitor;
mod open;
mod peers;
mod socket;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use thalweg_messages::{Carrier, MemberId, Messages, Post, Side, HEAD_BYTES};
use thalweg_transport::{
    Address, Capabilities, Error, ErrorKind, Kind as SettingKind, Link, Listener, Options, Result, Setting,
    Transport,
};

use crate::carrier::{topic, Made, ZmqCarrier, GROUP};
use crate::ffi::Kind;
use crate::joining::{second_port, subscribed};
use crate::keys::Keys;
use crate::open::{bind, connect};

/// Most bytes of a message, which both ends refuse beyond.
pub const MAX_MESSAGE: usize = (1 << 20) + HEAD_BYTES;
/// Bytes of a chunk where nobody says otherwise. libzmq takes two calls and a wake-up for each; but a peer shows signs
/// of life by whole chunks only.
const CHUNK: u32 = 512 << 10;
/// Bytes of chunks that a receiver grants: 1 Gbit/s over a round trip of 33 ms.
pub const WINDOW: u64 = 4 << 20;

const SETTINGS: &[Setting] = &[
    Setting {
        name: "pattern",
        kind: SettingKind::Choice { default: "router", choices: &["router", "pubsub"] },
        meaning: "sockets: `router` a ROUTER and DEALERs; `pubsub` PUB and SUB both ways, as in FedComm",
    },
    Setting {
        name: "second_port",
        kind: SettingKind::Number { default: 0, least: 0, most: 65_535 },
        meaning: "with `pubsub`, the server's port for what clients publish; 0 lets the system choose",
    },
];

/// How sockets are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    Router,
    PubSub,
}

/// ZMTP: `zmq://host:port`.
#[derive(Debug, Clone)]
pub struct Zmq(Messages<ZmqPost>);

impl Default for Zmq {
    fn default() -> Self {
        Self(Messages::new(ZmqPost))
    }
}

#[async_trait]
impl Transport for Zmq {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn settings(&self) -> &'static [Setting] {
        self.0.settings()
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        self.0.listen(address, options).await
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        self.0.connect(address, options).await
    }
}

#[derive(Debug, Clone)]
struct ZmqPost;

#[async_trait]
impl Post for ZmqPost {
    fn name(&self) -> &'static str {
        "zmq"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            ordered: true,
            encrypted: true,
            sender_unmodified: true,
            remote: true,
            congestion: cfg!(target_os = "linux"),
            retransmissions: cfg!(target_os = "linux"),
            max_chunk: (MAX_MESSAGE - HEAD_BYTES) as u32,
            preferred_chunk: CHUNK,
            ..Capabilities::default()
        }
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    async fn open(&self, side: Side, address: &Address, options: &Options) -> Result<Arc<dyn Carrier>> {
        let operation = if side == Side::Listener { "listen" } else { "connect" };
        let chosen = options.own.read(SETTINGS)?;
        let pattern = if chosen.text("pattern") == "pubsub" { Pattern::PubSub } else { Pattern::Router };
        let port = check(operation, address, options)?;
        let carrier = match side {
            Side::Listener => {
                let second = chosen.number("second_port") as u16;
                listen(pattern, address, port, second, options).await?
            }
            Side::Member(member) => dial(pattern, address, member, options).await?,
        };
        Ok(Arc::new(carrier))
    }
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<u16> {
    let Some(port) = address.port.filter(|_| address.scheme == "zmq" && address.job.is_none()) else {
        return Err(Error::new(ErrorKind::Address, operation, format!("{address} is not zmq://host:port"))
            .mend("write it as zmq://127.0.0.1:7070"));
    };
    if options.streams != 1 {
        let context = format!("{} streams; a zmq link is one connection", options.streams);
        return Err(Error::new(ErrorKind::Unsupported, operation, context)
            .mend("leave streams out, or take the tcp transport"));
    }
    if options.login.is_some() {
        let context = "a login; there is no broker to log in to";
        return Err(Error::new(ErrorKind::Unsupported, operation, context)
            .mend("leave login_file out, or take a transport with a broker"));
    }
    Ok(port)
}

async fn listen(
    pattern: Pattern,
    address: &Address,
    port: u16,
    second: u16,
    options: &Options,
) -> Result<ZmqCarrier> {
    let keys = Keys::listener(options)?;
    let kind = if pattern == Pattern::Router { Kind::Router } else { Kind::Xpub };
    let (first, bound) = bind(kind, address, port, options, &keys).await?;
    let (input, output, port) = match pattern {
        Pattern::Router => (first, None, 0),
        Pattern::PubSub => {
            let (input, port) = bind(Kind::Sub, address, second, options, &keys).await?;
            (input, Some(first), port)
        }
    };
    Ok(ZmqCarrier::new(Made {
        pattern,
        address: Address { port: Some(bound), ..address.clone() },
        congestion: options.congestion.clone(),
        member: None,
        overhead: keys.overhead(),
        input,
        output,
        port,
        descriptor: -1,
    }))
}

async fn dial(
    pattern: Pattern,
    address: &Address,
    member: MemberId,
    options: &Options,
) -> Result<ZmqCarrier> {
    let keys = Keys::member(options)?;
    let (kind, own) = (if pattern == Pattern::Router { Kind::Dealer } else { Kind::Sub }, topic(member));
    let topics: &[&[u8]] = if pattern == Pattern::Router { &[] } else { &[GROUP, &own] };
    let (input, reading) = connect(kind, address, options, &keys, &member.0, topics).await?;
    let (output, descriptor) = match pattern {
        Pattern::Router => (None, reading),
        Pattern::PubSub => {
            let port = in_time(address, options, second_port(&input.socket)).await?;
            let there = Address { port: Some(port), ..address.clone() };
            let (output, writing) = connect(Kind::Xpub, &there, options, &keys, &member.0, &[]).await?;
            in_time(address, options, subscribed(&output.socket)).await?;
            (Some(output), writing)
        }
    };
    Ok(ZmqCarrier::new(Made {
        pattern,
        address: address.clone(),
        congestion: options.congestion.clone(),
        member: Some(member),
        overhead: keys.overhead(),
        input,
        output,
        port: 0,
        descriptor,
    }))
}

async fn in_time<T>(
    address: &Address,
    options: &Options,
    waiting: impl std::future::Future<Output = io::Result<T>>,
) -> Result<T> {
    let waited = tokio::time::timeout(options.connect_timeout(), waiting).await;
    let answered = waited.map_err(|_| {
        let context = format!("{address} does not answer as a server with pattern = \"pubsub\" does");
        Error::new(ErrorKind::Timeout, "connect", context).mend("set the same pattern at both ends")
    })?;
    answered.map_err(|error| Error::io("connect", address, &error))
}
