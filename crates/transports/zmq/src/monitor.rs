//! The events of a socket's connections, as libzmq reports them (zmq_socket_monitor(3)).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use tokio::sync::Notify;

use crate::ffi::{Kind, Opt, RawSocket};
use crate::socket::{Socket, With};

const CONNECTED: u16 = 0x0001;
const ACCEPTED: u16 = 0x0020;
const CLOSED: u16 = 0x0080;
const DISCONNECTED: u16 = 0x0200;
const FAILED: u16 = 0x0800;
const SUCCEEDED: u16 = 0x1000;
const FAILED_PROTOCOL: u16 = 0x2000;
const FAILED_AUTH: u16 = 0x4000;
/// Handshake errors about keys: ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC and
/// ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH.
const KEYS: [u32; 2] = [0x1100_0001, 0x1100_0002];

/// An event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happened {
    /// A connection was made; it has this descriptor.
    Connected(i32),
    /// The handshake has succeeded.
    Ready,
    /// The handshake has failed; `keys` says whether the keys were the cause.
    Refused { keys: bool },
    /// The connection with this descriptor has ended.
    Ended(i32),
    /// No connection could be made.
    Unreachable,
}

/// Reads the events of a socket. It must live longer than the socket, since libzmq would wait for it.
pub(crate) struct Monitor(Socket);

impl Monitor {
    /// Starts to monitor a socket. Do this before it is bound or connected, so that no event is missed.
    /// Events also wake `also`.
    pub(crate) fn new(socket: &mut RawSocket, also: Option<Arc<Notify>>) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let endpoint = format!("inproc://thalweg-monitor-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let events =
            CONNECTED | ACCEPTED | CLOSED | DISCONNECTED | FAILED | SUCCEEDED | FAILED_PROTOCOL | FAILED_AUTH;
        socket.monitor(&endpoint, events.into())?;
        let mut pair = RawSocket::new(Kind::Pair)?;
        // Set no limit: events have a few bytes and are read at once.
        pair.set(Opt::ReceiveHighWater, 0)?;
        pair.connect(&endpoint)?;
        Socket::new(pair, With { also, ..With::default() }).map(Self)
    }

    /// The next event, if there is one.
    pub(crate) fn next(&self) -> io::Result<Option<Happened>> {
        while let Some(parts) = self.0.try_receive()? {
            let event = parts.first().map(|part| part.bytes()).unwrap_or_default();
            if let Some(happened) = event.first_chunk::<6>().and_then(read) {
                return Ok(Some(happened));
            }
        }
        Ok(None)
    }

    /// Waits until there may be an event since the last check.
    pub(crate) async fn readable(&self) {
        self.0.readable().await;
    }
}

/// Parses an event: its number and value, in native byte order.
fn read(bytes: &[u8; 6]) -> Option<Happened> {
    let [a, b, value @ ..] = *bytes;
    let value = u32::from_ne_bytes(value);
    match u16::from_ne_bytes([a, b]) {
        CONNECTED | ACCEPTED => Some(Happened::Connected(value as i32)),
        SUCCEEDED => Some(Happened::Ready),
        FAILED_PROTOCOL => Some(Happened::Refused { keys: KEYS.contains(&value) }),
        FAILED_AUTH => Some(Happened::Refused { keys: true }),
        FAILED => Some(Happened::Refused { keys: false }),
        DISCONNECTED => Some(Happened::Ended(value as i32)),
        CLOSED => Some(Happened::Unreachable),
        _ => None,
    }
}
