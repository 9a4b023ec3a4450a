//! The handshake of a link. Its messages go over the control connection. Those of `udp` begin with `tlwu` and
//! a version byte; [another transport](Dialect) has its own letters.
//!
//! 1. The listener's end opens two UDP sockets. It sends: `tlwu`, version, key (16 bytes), cipher (1 byte, 0
//!    for none), the ports of pair 0 and pair 1 (u16 each), the window of its receiving socket (u64).
//! 2. The connecting end opens two UDP sockets. It sends: `tlwu`, version, the window of its receiving socket
//!    (u64). Then it sends hellos from both sockets until it receives message 3. The hellos show the
//!    listener's end the sockets' addresses behind NAT, and that datagrams pass.
//! 3. The listener's end has received both hellos. It sends: `tlwu`, version. If a hello comes from another IP
//!    address than the control connection, the listener's end first [challenges](crate::moving) the peer there.
//!
//! A connecting end to which no datagrams pass sends only `tlwu` and the version in step 2. The control
//! connection then [carries everything](crate::over_tcp).
//!
//! Pair 0 carries chunks from the connecting end to the listener's end, pair 1 carries chunks the other way.
//! Reports travel against the chunks of their pair.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use thalweg_transport::{
    Address, Carrier, Carriers, Error, ErrorKind, Link, NoChunks, Options, Peer, Result, Setting, Standing,
    UnauthenticatedPeer,
};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::datagram::Key;
use crate::over_tcp::OverTcp;
use crate::secure::{self, End, Seal};
use crate::socket::{Lane, Unbound, Way};

/// The parameters by which one datagram transport differs from another.
#[derive(Debug)]
pub struct Dialect {
    /// The transport's name, and the scheme of its addresses.
    pub name: &'static str,
    /// The bytes with which each handshake message begins. The last byte is the version.
    pub magic: [u8; 5],
    /// The transport's settings, which include `cipher`.
    pub settings: &'static [Setting],
}

/// The result of a handshake.
pub struct Ends {
    /// The control connection.
    pub inner: Arc<dyn Link>,
    /// The socket that sends chunks.
    pub outgoing: Lane,
    /// How much the peer's receive buffer holds, as [`cost`](crate::window::cost).
    pub window: u64,
    /// The socket that receives chunks.
    pub incoming: Lane,
    /// Whether the peer has authenticated, and how much it may send before that.
    pub standing: Standing,
    /// What carries the link.
    pub carriers: Carriers,
    /// Changes each time when this end's address has changed. Only a connecting end whose control messages go by
    /// datagrams notices that.
    pub moves: Option<watch::Receiver<u64>>,
}

/// The result of the handshake at the listener's end.
pub(crate) enum Met {
    /// The ends of a link with datagram sockets.
    Ends(Box<Ends>),
    /// The control connection, which carries everything.
    OverTcp(Arc<dyn Link>),
}

/// The first pause after a hello, and the longest pause. Each pause is a tenth longer than the previous one.
pub(crate) const HELLO_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// Checks the address and refuses options that a datagram transport does not support.
///
/// # Errors
/// [`ErrorKind::Address`] for another scheme or a missing port; [`ErrorKind::Unsupported`] for `congestion`
/// or several streams; the errors of reading `own`.
pub fn check(operation: &'static str, address: &Address, options: &Options, dialect: &Dialect) -> Result<()> {
    let name = dialect.name;
    if address.scheme != name || address.port.is_none() {
        return Err(Error::new(
            ErrorKind::Address,
            operation,
            format!("{address} is not {name}://host:port"),
        )
        .hint("write host and port, such as 127.0.0.1:7070, behind the transport's name"));
    }
    let unsupported =
        |what: String, hint| Err(Error::new(ErrorKind::Unsupported, operation, what).hint(hint));
    if options.congestion.is_some() {
        return unsupported(
            format!("the {name} transport has no choice of congestion"),
            "leave that option out",
        );
    }
    if options.streams != 1 {
        return unsupported(format!("a {name} link has one stream"), "leave streams at 1");
    }
    options.own.read(dialect.settings).map(drop)
}

/// Handshake of the listener's end. `control` says what carries `inner`. `unauthenticated_peers` are the places of the
/// peer's two sockets in the admission queue, if there is one.
pub(crate) async fn answer(
    inner: Arc<dyn Link>,
    control: Carrier,
    ip: IpAddr,
    unauthenticated_peers: Vec<UnauthenticatedPeer>,
    options: &Options,
    dialect: &Dialect,
) -> Result<Met> {
    let operation = "accept";
    let from = source(operation, inner.peer())?;
    let key = new_key(operation)?;
    let (incoming, outgoing) = (Unbound::new(operation, ip, options)?, Unbound::new(operation, ip, options)?);
    let choice = secure::choice(options, dialect)?;
    let secret = secure::secret(operation, choice, inner.peer(), &key)?;
    let seal = |pair| secret.as_ref().map(|secret| Seal::new(secret, dialect.name, pair, End::Listening));
    let mut offer = [&dialect.magic[..], &key, &[choice]].concat();
    offer.extend_from_slice(&incoming.port.to_le_bytes());
    offer.extend_from_slice(&outgoing.port.to_le_bytes());
    offer.extend_from_slice(&incoming.window.to_le_bytes());
    inner.send_control(offer.into()).await?;
    let answer = inner.receive(&NoChunks).await?;
    if answer == dialect.magic[..] {
        unauthenticated_peers.iter().for_each(UnauthenticatedPeer::progressed);
        return Ok(Met::OverTcp(OverTcp::link(inner, dialect)));
    }
    let [window] = numbers(operation, dialect, &answer, [8])?;
    let (incoming, outgoing) = tokio::try_join!(
        incoming.greeted(operation, from, key, seal(0), 0, Way::In),
        outgoing.greeted(operation, from, key, seal(1), 1, Way::Out)
    )?;
    unauthenticated_peers.iter().for_each(UnauthenticatedPeer::progressed);
    inner.send_control(Bytes::copy_from_slice(&dialect.magic)).await?;
    let standing = Standing::new(unauthenticated_peers);
    let carriers = Carriers { control, chunks: Carrier::Udp };
    Ok(Met::Ends(Box::new(Ends { inner, outgoing, window, incoming, standing, carriers, moves: None })))
}

/// Sizes of the numbers in the listener's offer.
const OFFER: [usize; 6] = [8, 8, 1, 2, 2, 8];

/// Checks that the message is a listener's offer. A connecting end to which no datagrams pass uses none of
/// its numbers.
pub(crate) fn check_offer(offer: &[u8], dialect: &Dialect) -> Result<()> {
    numbers("connect", dialect, offer, OFFER).map(drop)
}

/// The IP address that the control connection comes from.
pub(crate) fn source(operation: &'static str, peer: &Peer) -> Result<IpAddr> {
    let strange = |_| Error::new(ErrorKind::System, operation, format!("{} is no address", peer.address));
    peer.address.parse::<SocketAddr>().map(|from| from.ip()).map_err(strange)
}

/// Handshake of the connecting end; the peer is at `ip`. `control` carries `inner`.
pub(crate) async fn ask(
    inner: Arc<dyn Link>,
    control: Carrier,
    ip: IpAddr,
    options: &Options,
    dialect: &Dialect,
) -> Result<Ends> {
    let magic = dialect.magic;
    let operation = "connect";
    let offer = inner.receive(&NoChunks).await?;
    let key = offer.get(magic.len()..magic.len() + 16).and_then(|key| Key::try_from(key).ok());
    let key = key.ok_or_else(|| strange(operation, dialect))?;
    let [_, _, choice, up, down, window] = numbers(operation, dialect, &offer, OFFER)?;
    let secret = secure::secret(operation, choice as u8, inner.peer(), &key)?;
    let seal = |pair| secret.as_ref().map(|secret| Seal::new(secret, dialect.name, pair, End::Connecting));
    let any = match ip {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let (outgoing, incoming) =
        (Unbound::new(operation, any, options)?, Unbound::new(operation, any, options)?);
    let answer = [&magic[..], &incoming.window.to_le_bytes()].concat();
    inner.send_control(answer.into()).await?;
    let at = |port: u64| SocketAddr::new(ip, port as u16);
    let outgoing = outgoing.joined(operation, at(up), key, seal(0), Way::Out).await?;
    let incoming = incoming.joined(operation, at(down), key, seal(1), Way::In).await?;
    let ready = tokio::select! {
        ready = inner.receive(&NoChunks) => ready?,
        never = greet([&outgoing, &incoming]) => match never {},
        never = outgoing.answer_challenges() => match never {},
        never = incoming.answer_challenges() => match never {},
    };
    let [] = numbers(operation, dialect, &ready, [])?;
    let (standing, carriers) = (Standing::new([]), Carriers { control, chunks: Carrier::Udp });
    Ok(Ends { inner, outgoing, window, incoming, standing, carriers, moves: None })
}

/// Sends hellos from all sockets, for as long as the caller polls it.
async fn greet(lanes: [&Lane; 2]) -> std::convert::Infallible {
    let (mut pause, max_pause) = HELLO_PAUSES;
    loop {
        (0..).zip(lanes).for_each(|(pair, lane)| lane.send_hello(pair));
        sleep(pause).await;
        pause = pause.mul_f64(1.1).min(max_pause);
    }
}

fn new_key(operation: &'static str) -> Result<Key> {
    let mut key = Key::default();
    let none = |_| Error::new(ErrorKind::System, operation, "the system has no random numbers");
    SystemRandom::new().fill(&mut key).map_err(none)?;
    Ok(key)
}

/// Parses a handshake message: the magic bytes, then little-endian numbers of these sizes in bytes.
fn numbers<const N: usize>(
    operation: &'static str,
    dialect: &Dialect,
    message: &[u8],
    sizes: [usize; N],
) -> Result<[u64; N]> {
    let body = message.strip_prefix(&dialect.magic).filter(|body| body.len() == sizes.iter().sum::<usize>());
    let mut body = body.ok_or_else(|| strange(operation, dialect))?;
    Ok(sizes.map(|size| {
        let (number, rest) = body.split_at(size);
        body = rest;
        number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    }))
}

fn strange(operation: &'static str, dialect: &Dialect) -> Error {
    let context = format!("the peer's first message is not that of a {} link", dialect.name);
    Error::new(ErrorKind::Corrupt, operation, context)
        .hint("check that both ends use the same transport, in the same release")
}
