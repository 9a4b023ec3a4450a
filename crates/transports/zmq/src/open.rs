//! Opens sockets: a listener binds them, a member connects them.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thalweg_sockets::socket::{prepare, resolve};
use thalweg_transport::{Address, Error, ErrorKind, Options, Result};
use thalweg_wire::limits;
use tokio::sync::Notify;
use tokio::time::timeout_at;
use tokio::time::Instant;

use crate::ffi::{Kind, Opt, RawSocket, POLL_OUT};
use crate::keys::Keys;
use crate::monitor::{Happened, Monitor};
use crate::socket::{Socket, With};
use crate::MAX_MESSAGE;

/// Number of messages of one peer that libzmq queues before it stops reading from that peer. Windows bound
/// the bytes.
const QUEUE: i32 = 64;
/// Maximum time that messages have to go out after a close.
const LINGER: Duration = Duration::from_secs(5);
/// Maximum time of a ZMTP handshake.
const HANDSHAKE: Duration = limits::CONNECT;
/// Pause between libzmq's heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long libzmq waits for the answer to a heartbeat.
const SILENCE: Duration = limits::UNMEASURED_SILENCE;

/// A socket with the monitor of its connections.
pub(crate) struct Watched {
    pub socket: Socket,
    pub monitor: Arc<Monitor>,
    /// The bound port; 0 for a connected socket.
    pub port: u16,
}

/// A socket being opened. If opening fails, the fields' order drops the socket before its monitor.
struct Begun {
    raw: RawSocket,
    monitor: Arc<Monitor>,
    /// Events to wake on besides messages: a bound PUSH waits for a connection to send to.
    events: c_int,
}

impl Begun {
    fn new(
        kind: Kind,
        options: &Options,
        keys: &Keys,
        id: Option<&[u8]>,
        also: Option<&Arc<Notify>>,
    ) -> io::Result<Self> {
        let mut raw = plain(kind, options, keys, id)?;
        let monitor = Arc::new(Monitor::new(&mut raw, also.cloned())?);
        Ok(Self { raw, monitor, events: if kind == Kind::Push { POLL_OUT } else { 0 } })
    }

    fn watched(self, port: u16) -> io::Result<Watched> {
        let Self { raw, monitor, events } = self;
        let with = With { _keep: Some(monitor.clone()), events, also: None };
        Ok(Watched { socket: Socket::new(raw, with)?, monitor, port })
    }
}

fn system(operation: &'static str, address: &Address, error: &io::Error) -> Error {
    Error::io(operation, address, error)
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// Creates a socket with the options that listener and member share.
fn plain(kind: Kind, options: &Options, keys: &Keys, id: Option<&[u8]>) -> io::Result<RawSocket> {
    let mut socket = RawSocket::new(kind)?;
    // Set no limit: with one, a PUB would drop messages. The windows bound the bytes that are sent.
    socket.set(Opt::SendHighWater, 0)?;
    socket.set(Opt::ReceiveHighWater, QUEUE)?;
    socket.set(Opt::Linger, milliseconds(LINGER))?;
    socket.set(Opt::HandshakeInterval, milliseconds(HANDSHAKE))?;
    socket.set(Opt::HeartbeatInterval, milliseconds(HEARTBEAT))?;
    socket.set(Opt::HeartbeatTimeout, milliseconds(SILENCE))?;
    // A carrier does not reconnect; its owner opens another one.
    socket.set(Opt::ReconnectInterval, -1)?;
    socket.set(Opt::Ipv6, 1)?;
    socket.set_long(Opt::MaxMessage, MAX_MESSAGE as i64)?;
    for (option, bytes) in
        [(Opt::SendBuffer, options.send_buffer), (Opt::ReceiveBuffer, options.receive_buffer)]
    {
        if let Some(bytes) = bytes {
            socket.set(option, i32::try_from(bytes).unwrap_or(i32::MAX))?;
        }
    }
    if kind == Kind::Router {
        socket.set(Opt::RouterMandatory, 1)?;
    }
    if let Some(id) = id {
        socket.set_bytes(Opt::RoutingId, id)?;
    }
    keys.apply(&mut socket)?;
    Ok(socket)
}

/// Binds a socket at `port` of the first of the host's addresses that works. Returns the address too.
pub(crate) async fn bind(
    kind: Kind,
    address: &Address,
    port: u16,
    options: &Options,
    keys: &Keys,
) -> Result<(Watched, SocketAddr)> {
    let operation = "listen";
    let mut last = None;
    for mut place in resolve(operation, &Address { port: Some(port), ..address.clone() }).await? {
        // This fails for every address, so do not try another.
        prepare(operation, place, options)?;
        place.set_port(port);
        match bind_at(kind, place, options, keys, None) {
            Ok((watched, port)) => return Ok((watched, SocketAddr::new(place.ip(), port))),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
    Err(system(operation, address, &error))
}

/// Binds a socket at this address and returns its port too. Events of its connections also wake `also`.
pub(crate) fn bind_at(
    kind: Kind,
    place: SocketAddr,
    options: &Options,
    keys: &Keys,
    also: Option<&Arc<Notify>>,
) -> io::Result<(Watched, u16)> {
    let mut begun = Begun::new(kind, options, keys, None, also)?;
    begun.raw.bind(&format!("tcp://{place}"))?;
    let endpoint = begun.raw.last_endpoint()?;
    let bound = endpoint.rsplit(':').next().and_then(|port| port.parse().ok());
    let port = bound.ok_or_else(|| io::Error::other(format!("bound to {endpoint}")))?;
    if kind == Kind::Sub {
        begun.raw.set_bytes(Opt::Subscribe, b"")?;
    }
    Ok((begun.watched(port)?, port))
}

/// Connects a socket to the first of the host's addresses that answers. Returns the descriptor of the
/// connection too.
pub(crate) async fn connect(
    kind: Kind,
    address: &Address,
    options: &Options,
    keys: &Keys,
    id: &[u8],
    topics: &[&[u8]],
) -> Result<(Watched, i32)> {
    let operation = "connect";
    let candidates = resolve(operation, address).await?;
    let share = options.connect_timeout() / candidates.len() as u32;
    let mut last = None;
    for place in candidates {
        prepare(operation, place, options)?;
        let failed = |error: io::Error| system(operation, address, &error);
        let routed = (kind == Kind::Dealer).then_some(id);
        let mut begun = Begun::new(kind, options, keys, routed, None).map_err(failed)?;
        for topic in topics {
            begun.raw.set_bytes(Opt::Subscribe, topic).map_err(failed)?;
        }
        begun.raw.connect(&format!("tcp://{place}")).map_err(failed)?;
        match established(address, &begun.monitor, options, Instant::now() + share).await {
            Ok(descriptor) => return Ok((begun.watched(0).map_err(failed)?, descriptor)),
            Err(error) => last = Some(error),
        }
    }
    Err(last
        .unwrap_or_else(|| Error::new(ErrorKind::Address, operation, format!("{address} does not resolve"))))
}

/// Waits for the end of the ZMTP handshake. Returns the descriptor of the connection.
async fn established(address: &Address, monitor: &Monitor, options: &Options, until: Instant) -> Result<i32> {
    let operation = "connect";
    let fail =
        |kind, what: &str, hint| Err(Error::new(kind, operation, format!("{address} {what}")).hint(hint));
    let mut descriptor = None;
    loop {
        while let Some(happened) = monitor.next().map_err(|e| system(operation, address, &e))? {
            match happened {
                Happened::Connected(found) => {
                    descriptor = Some(found);
                    if let Some(congestion) = &options.congestion {
                        crate::kernel::set_congestion(found, congestion);
                    }
                }
                Happened::Ready => return Ok(descriptor.unwrap_or(-1)),
                Happened::Unreachable => {
                    let hint = "start the server first, or check the address";
                    return fail(ErrorKind::Unreachable, "refuses connections", hint);
                }
                Happened::Refused { keys: true } => {
                    let hint =
                        "give both ends the files of the same `thalweg pki init`, or set tls at neither";
                    return fail(ErrorKind::Security, "does not have the key that is expected of it", hint);
                }
                Happened::Refused { .. } | Happened::Ended(_) if options.tls.is_some() => {
                    let hint = "give both ends the files of the same `thalweg pki init`";
                    return fail(
                        ErrorKind::Security,
                        "hung up in the handshake: it has another key, or none",
                        hint,
                    );
                }
                Happened::Refused { .. } | Happened::Ended(_) => {
                    let hint = "check that a thalweg zmq server listens there, and that tls is set at both ends or neither";
                    return fail(ErrorKind::Closed, "hung up in the handshake", hint);
                }
            }
        }
        if timeout_at(until, monitor.readable()).await.is_err() {
            let hint = "check the address and the firewall, or raise the timeout";
            return fail(ErrorKind::Timeout, "did not answer in time", hint);
        }
    }
}
