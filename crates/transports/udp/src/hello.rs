//! The first messages on the control connection, and what both ends make of them.
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
use thalweg_transport::{Error, ErrorKind, Link, Options, Result, Sink, Target};
use thalweg_wire::{ChunkHeader, WireError};
use tokio::time::sleep;

use crate::datagram::{Datagram, Key, Kind};
use crate::link::UdpLink;
use crate::secure::{self, End, Seal};
use crate::socket::{Lane, Unbound, Way};

const MAGIC: [u8; 5] = *b"tlwu\x03";
/// Between two hellos; doubled up to the second.
const REPEAT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The listener's end.
pub(crate) async fn answer(inner: Arc<dyn Link>, ip: IpAddr, options: &Options) -> Result<UdpLink> {
    let operation = "accept";
    let key = new_key(operation)?;
    let (incoming, outgoing) = (Unbound::new(operation, ip, options)?, Unbound::new(operation, ip, options)?);
    let choice = secure::choice(options)?;
    let secret = secure::secret(operation, choice, inner.peer(), &key)?;
    let seal = |pair| secret.as_ref().map(|secret| Seal::new(secret, pair, End::Listening));
    let mut offer = [&MAGIC[..], &key, &[choice]].concat();
    offer.extend_from_slice(&incoming.port.to_le_bytes());
    offer.extend_from_slice(&outgoing.port.to_le_bytes());
    offer.extend_from_slice(&incoming.window.to_le_bytes());
    inner.send_control(offer.into()).await?;
    let [window] = numbers(operation, &inner.receive(&Nothing).await?, [8])?;
    let (incoming, outgoing) = tokio::try_join!(
        incoming.greeted(operation, key, seal(0), 0, Way::In),
        outgoing.greeted(operation, key, seal(1), 1, Way::Out)
    )?;
    inner.send_control(Bytes::copy_from_slice(&MAGIC)).await?;
    Ok(UdpLink::new(inner, outgoing, window, crate::paced(options)?, incoming))
}

/// The connecting end; the peer is at `ip`.
pub(crate) async fn ask(inner: Arc<dyn Link>, ip: IpAddr, options: &Options) -> Result<UdpLink> {
    let operation = "connect";
    let offer = inner.receive(&Nothing).await?;
    let key = offer.get(MAGIC.len()..MAGIC.len() + 16).and_then(|key| Key::try_from(key).ok());
    let key = key.ok_or_else(|| strange(operation))?;
    let [_, _, choice, up, down, window] = numbers(operation, &offer, [8, 8, 1, 2, 2, 8])?;
    let secret = secure::secret(operation, choice as u8, inner.peer(), &key)?;
    let seal = |pair| secret.as_ref().map(|secret| Seal::new(secret, pair, End::Connecting));
    let any = match ip {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let (outgoing, incoming) =
        (Unbound::new(operation, any, options)?, Unbound::new(operation, any, options)?);
    let answer = [&MAGIC[..], &incoming.window.to_le_bytes()].concat();
    inner.send_control(answer.into()).await?;
    let at = |port: u64| SocketAddr::new(ip, port as u16);
    let outgoing = outgoing.joined(operation, at(up), key, seal(0), Way::Out).await?;
    let incoming = incoming.joined(operation, at(down), key, seal(1), Way::In).await?;
    let lanes = [&outgoing, &incoming];
    let ready = tokio::select! {
        ready = inner.receive(&Nothing) => ready?,
        never = greet(&lanes) => match never {},
    };
    let [] = numbers(operation, &ready, [])?;
    Ok(UdpLink::new(inner, outgoing, window, crate::paced(options)?, incoming))
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
fn numbers<const N: usize>(operation: &'static str, message: &[u8], sizes: [usize; N]) -> Result<[u64; N]> {
    let body = message.strip_prefix(&MAGIC).filter(|body| body.len() == sizes.iter().sum::<usize>());
    let mut body = body.ok_or_else(|| strange(operation))?;
    Ok(sizes.map(|size| {
        let (number, rest) = body.split_at(size);
        body = rest;
        number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    }))
}

fn strange(operation: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, operation, "the peer's first words are not those of a udp link")
        .mend("check that both ends use udp, in the same release")
}

/// Nobody has asked for chunks yet.
struct Nothing;

impl Sink for Nothing {
    fn place(&self, _: &ChunkHeader) -> Option<Target> {
        None
    }
    fn progress(&self, _: u64) {}
    fn stored(&self, _: &ChunkHeader, _: Target, _: std::result::Result<(), WireError>) {}
}
