//! The settings of quinn: windows, time limits, sizes of packets, keys.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, EndpointConfig, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use thalweg_sockets::tls;
use thalweg_transport::{Address, Error, ErrorKind, Options, Result};
use thalweg_wire::{MAX_CHUNK, MAX_HELLO};

use crate::marks::HEAD_BYTES;
use crate::unverified;

/// Protocol names of ALPN (RFC 7301), for peers with and without certificates. So an end with certificates
/// and one without do not connect.
const VERIFIED: &[u8] = b"thalweg/1";
const UNVERIFIED: &[u8] = b"thalweg-unverified/1";

/// Receive window of a connection, in bytes, if `receive_buffer` is not set.
const RECEIVE_WINDOW: u32 = 16 << 20;
/// Maximum number of unacknowledged bytes, if `send_buffer` is not set.
const SEND_WINDOW: u64 = 16 << 20;
/// Receive window for an unauthenticated peer, in bytes. It sends only its first messages, of at most
/// [`MAX_HELLO`] bytes each.
const UNAUTHENTICATED_WINDOW: u32 = 8 * MAX_HELLO;
/// Receive window of a stream, in bytes: a whole chunk, so that only the connection's window can hold up a
/// chunk.
const STREAM_WINDOW: u32 = MAX_CHUNK + HEAD_BYTES as u32;
/// Maximum number of chunk streams that a peer may have open.
const MAX_STREAMS: u32 = 1024;
/// Streams that an unauthenticated peer may open. It needs only one, for its messages. The second lets this
/// end see a forbidden chunk, and end the link.
const UNAUTHENTICATED_STREAMS: u32 = 2;
/// Bytes of a datagram over loopback. quinn sends ten datagrams in one call, and a call may have at most
/// 65,507 bytes.
const LOCAL_DATAGRAM: u16 = 6500;
/// Size of the kernel's buffers to ask for. The kernel grants at most net.core.rmem_max and wmem_max.
const SOCKET_BUFFER: usize = 8 << 20;
/// Interval of packets that keep NAT bindings on the path alive (RFC 9308, section 3.2).
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Lifetime of a Retry token: longer than any round trip.
const RETRY_LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of connections that wait for the accepting task, and of bytes that each may send until
/// then.
const MAX_INCOMING: usize = 1024;
const INCOMING_BYTES: u64 = 16 << 10;

/// Initial congestion window in datagrams (RFC 9002, section 7.2), and the size of a datagram, except over
/// loopback.
const INITIAL_WINDOW: u64 = 10;
const DATAGRAM: u16 = 1200;

/// Names of the congestion control algorithms, as the kernel calls them.
const CONGESTION: [&str; 3] = ["cubic", "bbr", "reno"];

/// Name of the algorithm in use.
pub(crate) fn congestion(options: &Options) -> &'static str {
    let wanted = options.congestion.as_deref().unwrap_or(CONGESTION[0]);
    CONGESTION.into_iter().find(|name| *name == wanted).unwrap_or(CONGESTION[0])
}

fn controller(
    operation: &'static str,
    options: &Options,
    datagram: u16,
) -> Result<Arc<dyn ControllerFactory + Send + Sync>> {
    let initial = INITIAL_WINDOW * u64::from(datagram);
    let (mut cubic, mut bbr, mut reno) =
        (CubicConfig::default(), BbrConfig::default(), NewRenoConfig::default());
    cubic.initial_window(initial);
    bbr.initial_window(initial);
    reno.initial_window(initial);
    Ok(match options.congestion.as_deref() {
        None | Some("cubic") => Arc::new(cubic),
        Some("bbr") => Arc::new(bbr),
        Some("reno") => Arc::new(reno),
        Some(other) => {
            let context = format!("congestion control {other:?}; available here: {}", CONGESTION.join(", "));
            return Err(
                Error::new(ErrorKind::Unsupported, operation, context).hint("choose an available one")
            );
        }
    })
}

/// The settings of both ends of a connection to `peer`. There is no idle timeout: the session decides when a
/// peer is gone, by one rule for all transports.
fn transport(operation: &'static str, options: &Options, peer: SocketAddr) -> Result<TransportConfig> {
    let local = peer.ip().is_loopback();
    let datagram = if local { LOCAL_DATAGRAM } else { DATAGRAM };
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(None)
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .send_window(options.send_buffer.map_or(SEND_WINDOW, u64::from))
        // One stream after the other, in the order of their priorities: messages, then chunks as they were opened.
        .send_fairness(false)
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(controller(operation, options, datagram)?);
    if local {
        config.initial_mtu(LOCAL_DATAGRAM);
        let mut search = MtuDiscoveryConfig::default();
        search.upper_bound(LOCAL_DATAGRAM);
        config.mtu_discovery_config(Some(search));
    }
    Ok(config)
}

/// The limits on what an authenticated peer may send ahead of the receiver.
pub(crate) struct Admitted {
    pub window: VarInt,
    pub streams: VarInt,
}

impl Admitted {
    pub(crate) fn new(options: &Options) -> Self {
        let window = options.receive_buffer.unwrap_or(RECEIVE_WINDOW);
        Self { window: VarInt::from_u32(window), streams: VarInt::from_u32(MAX_STREAMS) }
    }
}

/// Settings of a listener, for a connection of `peer`.
pub(crate) fn of_server(
    options: &Options,
    peer: SocketAddr,
    crypto: &Arc<QuicServerConfig>,
) -> Result<ServerConfig> {
    let mut transport = transport("listen", options, peer)?;
    let admitted = Admitted::new(options);
    if options.admission_queue.is_some() {
        transport
            .receive_window(VarInt::from_u32(UNAUTHENTICATED_WINDOW).min(admitted.window))
            .max_concurrent_uni_streams(VarInt::from_u32(UNAUTHENTICATED_STREAMS));
    } else {
        transport.receive_window(admitted.window).max_concurrent_uni_streams(admitted.streams);
    }
    let mut config = ServerConfig::with_crypto(crypto.clone());
    config
        .transport_config(Arc::new(transport))
        .retry_token_lifetime(RETRY_LIFETIME)
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES * MAX_INCOMING as u64);
    Ok(config)
}

/// The cryptography of a listener.
pub(crate) fn server_crypto(options: &Options) -> Result<Arc<QuicServerConfig>> {
    let (mut tls, protocol) = match &options.tls {
        Some(tls) => ((*tls::server(tls)?).clone(), VERIFIED),
        None => (unverified::server()?, UNVERIFIED),
    };
    tls.alpn_protocols = vec![protocol.to_vec()];
    let crypto = QuicServerConfig::try_from(tls).map_err(|e| unusable("listen", &e))?;
    Ok(Arc::new(crypto))
}

/// Settings of a connection to `peer`, and the name that its certificate must have.
pub(crate) fn of_client(
    address: &Address,
    options: &Options,
    peer: SocketAddr,
) -> Result<(ClientConfig, String)> {
    let (mut tls, name, protocol) = match &options.tls {
        Some(tls) => {
            let (config, name) = tls::client(address, tls)?;
            ((*config).clone(), name.to_str().into_owned(), VERIFIED)
        }
        None => (unverified::client()?, unverified::NAME.to_owned(), UNVERIFIED),
    };
    tls.alpn_protocols = vec![protocol.to_vec()];
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| unusable("connect", &e))?;
    let mut transport = transport("connect", options, peer)?;
    let admitted = Admitted::new(options);
    transport
        .receive_window(admitted.window)
        .max_concurrent_uni_streams(admitted.streams)
        .keep_alive_interval(Some(KEEP_ALIVE));
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    Ok((config, name))
}

/// Settings of a listener's endpoint. With a certificate, the key of its stateless resets (RFC 9000, section
/// 10.3.2) is derived from the certificate's private key. So after a restart, the listener answers the next
/// packet of an old connection with a reset that the client accepts.
pub(crate) fn of_listening_endpoint(options: &Options) -> Result<EndpointConfig> {
    match options.tls.as_ref().and_then(|tls| tls.identity.as_ref()) {
        Some(identity) => of_endpoint("listen", identity.key.as_bytes()),
        None => of_endpoint("listen", &random("listen")?),
    }
}

/// Settings of an endpoint for one connection that this end makes. Its keys are random. So a program that
/// also listens with the same certificate does not reveal its listener's keys to the peers that it connects
/// to.
pub(crate) fn of_connecting_endpoint() -> Result<EndpointConfig> {
    of_endpoint("connect", &random("connect")?)
}

fn random(operation: &'static str) -> Result<[u8; 32]> {
    let mut random = [0; 32];
    SystemRandom::new().fill(&mut random).map_err(|e| unusable(operation, &e))?;
    Ok(random)
}

/// Settings of an endpoint whose keys are derived from `seed`.
fn of_endpoint(operation: &'static str, seed: &[u8]) -> Result<EndpointConfig> {
    let root = hmac::Key::new(hmac::HMAC_SHA256, seed);
    let derived = |label: &[u8]| hmac::sign(&root, label);
    let reset = hmac::Key::new(hmac::HMAC_SHA256, derived(b"thalweg quic stateless reset").as_ref());
    let ids = derived(b"thalweg quic connection ids");
    let ids = ids.as_ref().iter().take(8).fold(0, |key, &byte| key << 8 | u64::from(byte));
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config.max_udp_payload_size(LOCAL_DATAGRAM).map_err(|e| unusable(operation, &e))?;
    Ok(config)
}

/// A UDP socket at `at`.
pub(crate) fn socket(at: SocketAddr) -> std::io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.bind(&SockAddr::from(at))?;
    Ok(socket.into())
}

fn unusable(operation: &'static str, error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Security, operation, format!("quic cannot be set up: {error}"))
        .hint("check the certificates and the key")
}
