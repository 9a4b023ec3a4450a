//! The grpc transport: a link is one bidirectional gRPC stream on an HTTP/2 connection of its own, without
//! encryption or under TLS 1.3. In unary mode, updates are not in the stream: each is the one message of a
//! unary call beside it, as in most frameworks. In push mode, an update is several such calls, and each waits
//! for the answer to the one before.
//!
//! Messages are [`frame::Frame`]s in protobuf; `proto/thalweg.proto` describes them for other programs. A
//! payload is copied once on the way out, by gRPC's own code (tonic). On the way in it is copied twice, by
//! tonic and into its place. All of these copies are counted. The flow-control windows of HTTP/2 stop a
//! sender whose receiver is slower.
#![forbid(unsafe_code)]

mod body;
mod calls;
mod chunks;
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

/// Maximum number of bytes of a message, set at both ends; the default of gRPC's implementations.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Maximum number of bytes of payload in a chunk: the room in a message, in whole pages.
pub const MAX_CHUNK: u32 = (4 << 20) - 4096;
/// HTTP/2's window of a stream and of its connection, in bytes. It limits the bytes in flight together with
/// those that wait at the receiver. It allows 1 Gbit/s at an RTT of 67 ms, or 100 Mbit/s at 670 ms.
pub const WINDOW: u32 = 8 << 20;

/// The settings that only the grpc transport has.
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

/// The transport over gRPC: `grpc://host:port`.
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

/// The state of a link for unary calls. `None` in stream mode.
fn unary(options: &Options) -> Result<Option<unary::Unary>> {
    let chosen = options.own.read(SETTINGS)?;
    let largest = usize::try_from(chosen.number("largest")).unwrap_or(usize::MAX);
    Ok(match chosen.text("mode") {
        "unary" => Some(unary::Unary::new(largest, None)),
        "push" => Some(unary::Unary::new(largest, Some(chosen.number("piece")))),
        _ => None,
    })
}
