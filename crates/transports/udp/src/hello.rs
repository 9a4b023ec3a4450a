//! The first messages on the control connection, and what both ends make of them. `udp`'s begin with `tlwu`; those of
//! [another transport](Dialect) with something else.
//!
//! 1. The listener's end opens two UDP sockets and says the link's key, their ports, and what the receiving one
//!    holds: `tlwu`, version, key (16 bytes), how datagrams are sealed (a byte), two ports (u16), window (u64).
//! 2. The connecting end opens two sockets and says what its receiving one holds: `tlwu`, version, window (u64).
//!    It sends a hello from each until it hears the next message, so that the listener's end learns where they are
//!    behind address translation, and that datagrams pass at all.
//! 3. The listener's end has heard both: `tlwu`, version.
//!
//! Pair 0 carries chunks from the connecting end to the listener's, pair 1 the other way; reports go against them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use thalweg_transport::{
    Address, Error, ErrorKind, Guest, Link, NoChunks, Options, Peer, Result, Setting, Standing,
};
use tokio::time::sleep;

use crate::datagram::{Datagram, Key, Kind};
use crate::secure::{self, End, Seal};
use crate::socket::{Lane, Unbound, Way};

/// What tells a transport over datagrams from others.
#[derive(Debug)]
pub struct Dialect {
    /// Its name, and scheme.
    pub name: &'static str,
    /// What its first messages begin with; the version is the last byte.
    pub magic: [u8; 5],
    /// Its settings, `cipher` among them.
    pub settings: &'static [Setting],
}

/// What shaking hands comes to.
pub struct Ends {
    /// The control connection.
    pub inner: Arc<dyn Link>,
    /// The socket that chunks are sent from, and what the peer's holds, by [`cost`](crate::window::cost).
    pub outgoing: Lane,
    /// What the peer's receive buffer holds, by [`cost`](crate::window::cost).
    pub window: u64,
    /// The socket that chunks come to.
    pub incoming: Lane,
    /// How much the peer may send.
    pub standing: Standing,
}

/// Between two hellos; doubled up to the second.
const REPEAT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Refuses what a transport over datagrams cannot honour.
///
/// # Errors
/// [`ErrorKind::Address`], [`ErrorKind::Unsupported`].
pub fn check(operation: &'static str, address: &Address, options: &Options, dialect: &Dialect) -> Result<()> {
    let name = dialect.name;
    if address.scheme != name || address.port.is_none() {
        return Err(Error::new(
            ErrorKind::Address,
            operation,
            format!("{address} is not {name}://host:port"),
        )
        .mend("write host and port, such as 127.0.0.1:7070, behind the transport's name"));
    }
    let unsupported =
        |what: String, mend| Err(Error::new(ErrorKind::Unsupported, operation, what).mend(mend));
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

/// The listener's end. The peer's sockets are `guests` in a lobby, if there is one.
pub(crate) async fn answer(
    inner: Arc<dyn Link>,
    ip: IpAddr,
    guests: Vec<Guest>,
    options: &Options,
    dialect: &Dialect,
) -> Result<Ends> {
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
    let [window] = numbers(operation, dialect, &inner.receive(&NoChunks).await?, [8])?;
    let (incoming, outgoing) = tokio::try_join!(
        incoming.greeted(operation, from, key, seal(0), 0, Way::In),
        outgoing.greeted(operation, from, key, seal(1), 1, Way::Out)
    )?;
    guests.iter().for_each(Guest::heard);
    inner.send_control(Bytes::copy_from_slice(&dialect.magic)).await?;
    Ok(Ends { inner, outgoing, window, incoming, standing: Standing::new(guests) })
}

/// Where a control connection comes from.
pub(crate) fn source(operation: &'static str, peer: &Peer) -> Result<IpAddr> {
    let strange = |_| Error::new(ErrorKind::System, operation, format!("{} is no address", peer.address));
    peer.address.parse::<SocketAddr>().map(|from| from.ip()).map_err(strange)
}

/// The connecting end; the peer is at `ip`.
pub(crate) async fn ask(
    inner: Arc<dyn Link>,
    ip: IpAddr,
    options: &Options,
    dialect: &Dialect,
) -> Result<Ends> {
    let magic = dialect.magic;
    let operation = "connect";
    let offer = inner.receive(&NoChunks).await?;
    let key = offer.get(magic.len()..magic.len() + 16).and_then(|key| Key::try_from(key).ok());
    let key = key.ok_or_else(|| strange(operation, dialect))?;
    let [_, _, choice, up, down, window] = numbers(operation, dialect, &offer, [8, 8, 1, 2, 2, 8])?;
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
    let lanes = [&outgoing, &incoming];
    let ready = tokio::select! {
        ready = inner.receive(&NoChunks) => ready?,
        never = greet(&lanes) => match never {},
    };
    let [] = numbers(operation, dialect, &ready, [])?;
    Ok(Ends { inner, outgoing, window, incoming, standing: Standing::new([]) })
}

async fn greet(lanes: &[&Lane]) -> std::convert::Infallible {
    let (mut pause, most) = REPEAT;
    loop {
        for (number, lane) in (0..).zip(lanes) {
            lane.tell(&Datagram { kind: Kind::Hello, report_wanted: false, told: 0, position: number });
        }
        sleep(pause).await;
        pause = (2 * pause).min(most);
    }
}

fn new_key(operation: &'static str) -> Result<Key> {
    let mut key = Key::default();
    let none = |_| Error::new(ErrorKind::System, operation, "the system has no random numbers");
    SystemRandom::new().fill(&mut key).map_err(none)?;
    Ok(key)
}

/// The numbers of a message, of so many bytes each.
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
    let context = format!("the peer's first words are not those of a {} link", dialect.name);
    Error::new(ErrorKind::Corrupt, operation, context)
        .mend("check that both ends use the same transport, in the same release")
}
