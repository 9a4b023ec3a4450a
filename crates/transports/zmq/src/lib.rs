//! The `zmq` transport: ZMTP 3.1 with libzmq, without a broker. It uses ROUTER/DEALER, PUB/SUB, PUSH/PULL or
//! REQ/REP sockets, in the clear or with CURVE.
//!
//! This crate is the carrier; links and windows come from `thalweg-messages`. libzmq moves the bytes in its
//! own threads, at most four in a process. tokio watches the descriptors of its sockets.
#![deny(unsafe_code)] // only ffi.rs and kernel.rs allow it

mod carrier;
mod desk;
mod ffi;
mod joining;
mod kernel;
mod keys;
mod lines;
mod monitor;
mod open;
mod peers;
mod socket;
mod visitors;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use thalweg_messages::{Carrier, MemberId, Messages, Post, Side, HEAD_BYTES};
use thalweg_transport::{
    Address, Capabilities, Error, ErrorKind, Kind as SettingKind, Link, Listener, Options, Result, Setting,
    Transport,
};

use crate::carrier::{topic, Sockets, ZmqCarrier, GROUP};
use crate::ffi::Kind;
use crate::joining::{ports, second_port, subscribed};
use crate::keys::Keys;
use crate::lines::{PartySocket, PartySockets};
use crate::open::{bind, connect};

/// Maximum number of bytes of a message. Both ends refuse longer ones.
pub const MAX_MESSAGE: usize = (1 << 20) + HEAD_BYTES;
/// Default payload of a chunk, in bytes. libzmq needs two calls and a wake-up for each chunk, so chunks
/// should be large. But liveness sees progress only when a chunk is complete, so they should not be larger
/// than this.
const CHUNK: u32 = 512 << 10;
/// Maximum cost of chunks in flight that a receiver grants: 1 Gbit/s with an RTT of 33 ms.
pub const WINDOW: u64 = 4 << 20;

const SETTINGS: &[Setting] = &[
    Setting {
        name: "pattern",
        kind: SettingKind::Choice {
            default: "router",
            choices: &["router", "pubsub", "pushpull", "reqrep"],
        },
        meaning: "sockets: `router` a ROUTER and DEALERs; `pubsub` PUB and SUB both ways, as in FedComm; `pushpull` \
                  PUSH and PULL both ways; `reqrep` REQ and REP, where each message waits for its answer",
        needs: &[],
    },
    Setting {
        name: "second_port",
        kind: SettingKind::Number { default: 0, least: 0, most: 65_535 },
        meaning: "but for `router`, the server's port for what clients say; 0 lets the system choose",
        needs: &[],
    },
];

/// The socket types of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    Router,
    PubSub,
    PushPull,
    ReqRep,
}

impl Pattern {
    fn named(name: &str) -> Self {
        match name {
            "pubsub" => Self::PubSub,
            "pushpull" => Self::PushPull,
            "reqrep" => Self::ReqRep,
            // Settings have been checked, so this is `router`.
            _ => Self::Router,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::PubSub => "pubsub",
            Self::PushPull => "pushpull",
            Self::ReqRep => "reqrep",
        }
    }

    /// The listener's socket types: the one bound at its address, the one that reads members' messages, the
    /// one that writes to a member.
    fn listening(self) -> [Kind; 3] {
        match self {
            Self::Router => [Kind::Router; 3],
            Self::PubSub => [Kind::Xpub, Kind::Sub, Kind::Xpub],
            Self::PushPull => [Kind::Rep, Kind::Pull, Kind::Push],
            Self::ReqRep => [Kind::Rep; 3],
        }
    }
}

/// The `zmq` transport, at `zmq://host:port`.
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
            symmetric: true,
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
        let pattern = Pattern::named(chosen.text("pattern"));
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
            .hint("write it as zmq://127.0.0.1:7070"));
    };
    if options.streams != 1 {
        let context = format!("{} streams; a zmq link is one connection", options.streams);
        return Err(Error::new(ErrorKind::Unsupported, operation, context)
            .hint("leave streams out, or take the tcp transport"));
    }
    if options.login.is_some() {
        let context = "a login; there is no broker to log in to";
        return Err(Error::new(ErrorKind::Unsupported, operation, context)
            .hint("leave login_file out, or take a transport with a broker"));
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
    let [first, reading, writing] = pattern.listening();
    let (first, place) = bind(first, address, port, options, &keys).await?;
    let mut made = Sockets {
        pattern,
        address: Address { port: Some(place.port()), ..address.clone() },
        congestion: options.congestion.clone(),
        member: None,
        overhead: keys.overhead(),
        input: first,
        output: None,
        line: None,
        lines: None,
        port: 0,
        descriptor: -1,
    };
    if pattern != Pattern::Router {
        let (input, place) = bind(reading, address, second, options, &keys).await?;
        made.output = Some(std::mem::replace(&mut made.input, input));
        made.port = place.port();
        if pattern != Pattern::PubSub {
            made.lines = Some(Arc::new(PartySockets::new(writing, place, options, keys)));
        }
    }
    Ok(ZmqCarrier::new(made, options.admission_queue.clone()))
}

async fn dial(
    pattern: Pattern,
    address: &Address,
    member: MemberId,
    options: &Options,
) -> Result<ZmqCarrier> {
    let keys = Keys::member(options)?;
    let there = |port| Address { port: Some(port), ..address.clone() };
    let (mut output, mut line) = (None, None);
    let (input, descriptor) = match pattern {
        Pattern::Router => connect(Kind::Dealer, address, options, &keys, &member.0, &[]).await?,
        Pattern::PubSub => {
            let topics: &[&[u8]] = &[GROUP, &topic(member)];
            let (input, _) = connect(Kind::Sub, address, options, &keys, &member.0, topics).await?;
            let port = in_time(pattern, address, options, second_port(&input.socket)).await?;
            let (out, writing) = connect(Kind::Xpub, &there(port), options, &keys, &member.0, &[]).await?;
            in_time(pattern, address, options, subscribed(&out.socket)).await?;
            output = Some(out);
            (input, writing)
        }
        Pattern::PushPull | Pattern::ReqRep => {
            let push = pattern == Pattern::PushPull;
            let (sending, receiving) = if push { (Kind::Push, Kind::Pull) } else { (Kind::Req, Kind::Req) };
            let (reception, _) = connect(Kind::Req, address, options, &keys, &member.0, &[]).await?;
            let (up, down) = in_time(pattern, address, options, ports(&reception.socket, member)).await?;
            let (out, writing) = connect(sending, &there(up), options, &keys, &member.0, &[]).await?;
            line = Some(PartySocket::new(sending, out));
            (connect(receiving, &there(down), options, &keys, &member.0, &[]).await?.0, writing)
        }
    };
    let sockets = Sockets {
        pattern,
        address: address.clone(),
        congestion: options.congestion.clone(),
        member: Some(member),
        overhead: keys.overhead(),
        input,
        output,
        line,
        lines: None,
        port: 0,
        descriptor,
    };
    Ok(ZmqCarrier::new(sockets, None))
}

/// Limits how long a member waits while it joins.
async fn in_time<T>(
    pattern: Pattern,
    address: &Address,
    options: &Options,
    waiting: impl std::future::Future<Output = io::Result<T>>,
) -> Result<T> {
    let waited = tokio::time::timeout(options.connect_timeout(), waiting).await;
    let answered = waited.map_err(|_| {
        let context =
            format!("{address} does not answer as a server with pattern = \"{}\" does", pattern.name());
        Error::new(ErrorKind::Timeout, "connect", context).hint("set the same pattern at both ends")
    })?;
    answered.map_err(|error| Error::io("connect", address, &error))
}
