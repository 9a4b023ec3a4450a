//! The grpc transport: a link is one bidirectional stream of gRPC, over an HTTP/2 connection of its own, in the clear
//! or under TLS 1.3. In unary mode updates are not in the stream: each is the one message of a unary call beside it,
//! as most frameworks have it. In push mode it is several, and each waits for the answer to the one before.
//!
//! Messages are [`frame::Frame`]s, real protobuf; `proto/thalweg.proto` says so to others. gRPC's own code (tonic)
//! copies a payload once on the way out and twice with us on the way in; all of that is counted. HTTP/2's windows keep
//! a sender from running ahead of its receiver.
#![forbid(unsafe_code)]

mod body;
mod calls;
mod connect;
mod connection;
mod frame;
mod link;
mod listener;
mod parcel;
mod receive;
mod send;
mod service;
mod shared;
mod unary;
mod wire;

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_transport::{
    Address, Capabilities, Error, ErrorKind, Kind, Link, Listener, Options, Result, Setting, Transport,
};

/// Most bytes of a message, set at both ends; what gRPC's implementations take unless told otherwise.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Most bytes of payload in a chunk: what a message has room for, in whole pages.
pub const MAX_CHUNK: u32 = (4 << 20) - 4096;
/// HTTP/2's window of a stream and of its connection: what may be on its way, and what a receiver keeps that nobody
/// takes from it. 1 Gbit/s over a round trip of 67 ms, 100 Mbit/s over 670 ms.
pub const WINDOW: u32 = 8 << 20;

/// What only grpc can be told.
const SETTINGS: &[Setting] = &[
    Setting {
        name: "mode",
        kind: Kind::Choice { default: "stream", choices: &["stream", "unary", "push"] },
        meaning:
            "stream: chunks are messages of one stream; unary: a whole update is the one message of a call; push: \
             so is each piece of it, and waits for the answer to the one before, as in FATE",
        needs: &[],
    },
    Setting {
        name: "largest",
        kind: Kind::Number { default: 512 << 20, least: 4 << 20, most: (2 << 30) - 1 },
        meaning:
            "unary: most bytes of a message, which both ends hold whole, with a copy of it at the sender",
        needs: &[],
    },
    Setting {
        name: "piece",
        kind: Kind::Number { default: 1 << 20, least: 64 << 10, most: 4 << 20 },
        meaning: "push: most bytes of an update in a call, but of one chunk at least",
        needs: &[],
    },
];

/// gRPC: `grpc://host:port`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Grpc;

#[async_trait]
impl Transport for Grpc {
    fn name(&self) -> &'static str {
        "grpc"
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
            max_chunk: MAX_CHUNK,
            ..Capabilities::default()
        }
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        check("listen", address, options)?;
        Ok(Box::new(listener::listen(address, options).await?))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        check("connect", address, options)?;
        Ok(Arc::new(connect::connect(address, options).await?))
    }
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<()> {
    if address.scheme != "grpc" || address.port.is_none() {
        return Err(Error::new(ErrorKind::Address, operation, format!("{address} is not grpc://host:port"))
            .hint("write it as grpc://127.0.0.1:7070"));
    }
    if options.streams != 1 {
        let context = format!("{} streams; a grpc link is one HTTP/2 connection", options.streams);
        return Err(Error::new(ErrorKind::Unsupported, operation, context)
            .hint("leave streams out, or take the tcp transport"));
    }
    options.own.read(SETTINGS).map(drop)
}

/// What a link has for unary calls, if they were chosen.
fn unary(options: &Options) -> Result<Option<unary::Unary>> {
    let chosen = options.own.read(SETTINGS)?;
    let largest = usize::try_from(chosen.number("largest")).unwrap_or(usize::MAX);
    Ok(match chosen.text("mode") {
        "unary" => Some(unary::Unary::new(largest, None)),
        "push" => Some(unary::Unary::new(largest, Some(chosen.number("piece")))),
        _ => None,
    })
}
