//! The carrier: a ROUTER and its DEALERs, or two pairs of PUB and SUB.
//!
//! | | the listener | a member |
//! |---|---|---|
//! | `router` | ROUTER, bound: reads `id, message`, writes `id, message` | DEALER with its id |
//! | `pubsub` | PUB, bound: writes `g, message` or `m id, message` | SUB to `g` and `m id` |
//! | | SUB, bound to a second port: reads `id, message` | PUB: writes `id, message` |
//!
//! A message is one part, head and body; a chunk is two.
//!
//! With PUB and SUB nobody waits for slow joiners. The listener's PUB is an XPUB, which reads who subscribes, and answers
//! the subscription to `m id` with the second port. The member's is one too, and waits until the listener's SUB has
//! subscribed to it.

use std::io;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_messages::{Carrier, Event, Letter, Mailbox, MemberId, Message, Nature, Network};
use thalweg_transport::{Address, Error, ErrorKind, Peer, Result};
use tokio::sync::watch;

use crate::ffi::Part;
use crate::joining::{PORT, SUBSCRIBED};
use crate::kernel;
use crate::monitor::{Happened, Monitor};
use crate::open::Watched;
use crate::peers::{Peers, IN_A_ROW};
use crate::socket::Socket;
use crate::{Pattern, MAX_MESSAGE, WINDOW};

const PUBLISH: &str = "publish";
pub(crate) const GROUP: &[u8] = b"g";

/// The topic of one member.
pub(crate) fn topic(member: MemberId) -> Vec<u8> {
    [b"m", &member.0[..]].concat()
}

/// What a message takes on the wire: frames' flags and lengths (ZMTP's RFC 37), and CURVE's part.
fn wire(overhead: u64, parts: &[Part]) -> u64 {
    let frame = |part: &Part| {
        let length = part.bytes().len() as u64 + overhead;
        length + if length > 255 { 9 } else { 2 }
    };
    parts.iter().map(frame).sum()
}

pub(crate) struct ZmqCarrier {
    pub pattern: Pattern,
    pub address: Address,
    pub congestion: Option<String>,
    /// `None` for the listener.
    pub member: Option<MemberId>,
    /// Bytes that encryption adds to a frame.
    pub overhead: u64,
    pub encrypted: bool,
    /// What is read, and written if it is another.
    pub input: Watched,
    pub output: Option<Watched>,
    /// The listener's second port.
    pub port: u16,
    /// A member's connection that it writes to.
    pub descriptor: i32,
    peers: Mutex<Peers>,
    end: watch::Sender<Option<String>>,
}

/// What a carrier is made of; the rest of it begins empty.
pub(crate) struct Made {
    pub pattern: Pattern,
    pub address: Address,
    pub congestion: Option<String>,
    pub member: Option<MemberId>,
    pub overhead: u64,
    pub input: Watched,
    pub output: Option<Watched>,
    pub port: u16,
    pub descriptor: i32,
}

impl ZmqCarrier {
    pub(crate) fn new(made: Made) -> Self {
        let Made { pattern, address, congestion, member, overhead, input, output, port, descriptor } = made;
        Self {
            pattern,
            address,
            congestion,
            member,
            overhead,
            encrypted: overhead > 0,
            input,
            output,
            port,
            descriptor,
            peers: Mutex::default(),
            end: watch::Sender::new(None),
        }
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self, operation: &'static str) -> Error {
        let why = self.end.borrow().clone().unwrap_or_else(|| "the sockets are closed".into());
        Error::closed(operation, why)
    }

    fn fail(&self, operation: &'static str, error: &io::Error) -> Error {
        self.finish(&format!("{}: {error}", self.address));
        self.closed(operation)
    }

    fn finish(&self, why: &str) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert_with(|| why.into());
            first
        });
    }

    fn writer(&self) -> &Socket {
        self.output.as_ref().map_or(&self.input.socket, |output| &output.socket)
    }

    /// The first part of a message, where there is one.
    fn envelope(&self, to: Mailbox) -> Option<Vec<u8>> {
        match (self.pattern, to) {
            (Pattern::Router, Mailbox::Member(member)) => Some(member.0.to_vec()),
            (Pattern::Router, _) => None,
            (Pattern::PubSub, Mailbox::Member(member)) => Some(topic(member)),
            (Pattern::PubSub, Mailbox::Group) => Some(GROUP.to_vec()),
            (Pattern::PubSub, Mailbox::Listener) => self.member.map(|member| member.0.to_vec()),
        }
    }

    /// Takes note of what has happened to connections.
    fn watch(&self) -> io::Result<()> {
        self.watch_one(&self.input.monitor, true)?;
        self.output.as_ref().map_or(Ok(()), |output| self.watch_one(&output.monitor, false))
    }

    fn watch_one(&self, monitor: &Monitor, reading: bool) -> io::Result<()> {
        while let Some(happened) = monitor.next()? {
            if self.member.is_some() {
                if let Happened::Ended(_) = happened {
                    self.finish(&format!("the connection to {} has ended", self.address));
                }
                continue;
            }
            match happened {
                Happened::Connected(descriptor) => {
                    if let Some(congestion) = &self.congestion {
                        kernel::set_congestion(descriptor, congestion);
                    }
                }
                Happened::Ended(descriptor) => self.peers().ended(descriptor, reading),
                Happened::Refused { keys } => self.refuse(keys),
                Happened::Ready | Happened::Unreachable => {}
            }
        }
        Ok(())
    }

    /// Somebody's handshake failed.
    fn refuse(&self, keys: bool) {
        let (kind, what) = if keys || self.encrypted {
            (ErrorKind::Security, "somebody did not have the key for CURVE that is expected")
        } else {
            (ErrorKind::Corrupt, "somebody does not speak ZMTP as we do")
        };
        let mut peers = self.peers();
        if peers.refused.len() < IN_A_ROW as usize {
            let error = Error::new(kind, "accept", format!("{}: {what}", self.address));
            peers.refused.push_back(error.mend("give both ends the files of the same `thalweg pki init`"));
        }
    }

    /// A message that is there.
    fn take(&self) -> io::Result<Option<Event>> {
        self.subscriptions()?;
        while let Some(parts) = self.input.socket.try_receive()? {
            let wire = wire(self.overhead, &parts);
            let mut parts = parts.into_iter();
            let envelope = if self.has_envelope() { parts.next() } else { None };
            let (Some(head), body) = (parts.next(), parts.next()) else { continue };
            let mut from = None;
            if let (None, Some(id)) = (self.member, &envelope) {
                // A stranger: our members have ids of 16 bytes.
                let Ok(id) = id.bytes().try_into().map(MemberId) else { continue };
                if !self.peers().knows(id, &head) {
                    self.watch()?; // of connections before this message's
                    self.peers().heard(id, &head);
                }
                // With PUB and SUB it is only what the sender says of itself.
                from = (self.pattern == Pattern::Router).then_some(id);
            }
            let (bytes, body) = (Bytes::from_owner(head), body.map(Bytes::from_owner));
            return Ok(Some(Event::Letter(Letter { bytes, body, from, wire, receipt: None })));
        }
        Ok(None)
    }

    /// Whether what is read begins with whom it is from, or for.
    fn has_envelope(&self) -> bool {
        self.member.is_none() || self.pattern == Pattern::PubSub
    }

    /// Sends a message, and says what it takes on the wire.
    async fn send(&self, to: Mailbox, mut parts: Vec<Part>) -> Result<u64> {
        let mut sent = wire(self.overhead, &parts);
        if let Some(envelope) = self.envelope(to) {
            let envelope = Part::copy_of(&[&envelope]).map_err(|e| self.fail(PUBLISH, &e))?;
            // A ROUTER's is for itself, and does not go out.
            if self.pattern != Pattern::Router {
                sent += wire(self.overhead, slice::from_ref(&envelope));
            }
            parts.insert(0, envelope);
        }
        let copies = if to == Mailbox::Group { self.peers().known.len().max(1) as u64 } else { 1 };
        if self.end.borrow().is_some() {
            return Err(self.closed(PUBLISH));
        }
        match self.writer().send(parts) {
            Ok(true) => Ok(copies * sent),
            // Its connection has ended, which the monitor tells.
            Ok(false) => {
                let _ = self.end.subscribe().wait_for(Option::is_some).await;
                Err(self.closed(PUBLISH))
            }
            // ROUTER_MANDATORY: nobody is there. Its end is told by `next`.
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable => Ok(copies * sent),
            Err(error) => Err(self.fail(PUBLISH, &error)),
        }
    }

    /// Answers those who have subscribed to their own topic with the second port.
    fn subscriptions(&self) -> io::Result<()> {
        let (None, Some(output)) = (self.member, &self.output) else { return Ok(()) };
        while let Some(parts) = output.socket.try_receive()? {
            let Some(part) = parts.first() else { continue };
            let Some((&SUBSCRIBED, topic)) = part.bytes().split_first() else { continue };
            let id: Option<[u8; 16]> = topic.strip_prefix(b"m").and_then(|id| id.try_into().ok());
            if let Some(id) = id {
                self.peers().wrote_to(MemberId(id), part.source());
                let told = [PORT, self.port.to_string().as_bytes()].concat();
                let parts = [Part::copy_of(&[topic])?, Part::copy_of(&[&told])?];
                output.socket.send(parts.into())?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Carrier for ZmqCarrier {
    fn nature(&self) -> Nature {
        let sealed = u64::from(self.encrypted);
        Nature {
            max_message: MAX_MESSAGE,
            group: self.pattern == Pattern::PubSub,
            lossy: false,
            window: WINDOW,
            copies_out: sealed,
            copies_in: sealed,
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn publish(&self, to: Mailbox, message: Message<'_>) -> Result<u64> {
        let joined = Part::copy_of(&[message.head, message.body]).map_err(|e| self.fail(PUBLISH, &e))?;
        self.send(to, vec![joined]).await
    }

    fn shares(&self) -> bool {
        true
    }

    async fn publish_shared(&self, to: Mailbox, head: &[u8], body: Arc<Vec<u8>>) -> Result<u64> {
        let parts = Part::copy_of(&[head]).and_then(|head| Ok(vec![head, Part::shared(body)?]));
        self.send(to, parts.map_err(|e| self.fail(PUBLISH, &e))?).await
    }

    async fn next(&self) -> Result<Event> {
        let operation = "receive";
        let mut end = self.end.subscribe();
        loop {
            // What came before a connection's end is told before the end, unless there is no end to it.
            let overdue = self.peers().row >= IN_A_ROW;
            if !overdue {
                if let Some(letter) = self.take().map_err(|e| self.fail(operation, &e))? {
                    self.peers().row += 1;
                    return Ok(letter);
                }
            }
            self.watch().map_err(|e| self.fail(operation, &e))?;
            if let Some(event) = self.peers().news() {
                return Ok(event);
            }
            if overdue {
                continue;
            }
            if end.borrow().is_some() {
                return Err(self.closed(operation));
            }
            tokio::select! {
                biased;
                _ = end.wait_for(Option::is_some) => return Err(self.closed(operation)),
                () = self.input.socket.came() => {}
                () = self.input.monitor.came() => {}
                () = either(self.output.as_ref()) => {}
            }
        }
    }

    fn peer(&self, mailbox: Mailbox) -> Peer {
        let address = match mailbox {
            Mailbox::Member(member) => {
                let peers = self.peers();
                let host = peers.known.get(&member).map_or("", |known| known.address.as_str());
                format!("{host} ({mailbox})")
            }
            _ => self.address.to_string(),
        };
        Peer { address, ..Peer::default() }
    }

    fn network(&self, mailbox: Mailbox) -> Network {
        let descriptor = match mailbox {
            Mailbox::Member(member) => self.peers().known.get(&member).and_then(|known| known.writing),
            _ => Some(self.descriptor),
        };
        descriptor
            .filter(|fd| *fd >= 0 && self.end.borrow().is_none())
            .map(kernel::network)
            .unwrap_or_default()
    }

    fn forget(&self, member: MemberId) {
        self.peers().known.remove(&member);
    }

    async fn close(&self) {
        self.finish("the carrier was closed here");
        self.input.socket.close();
        if let Some(output) = &self.output {
            output.socket.close();
        }
    }
}

async fn either(output: Option<&Watched>) {
    match output {
        None => std::future::pending().await,
        Some(output) => tokio::select! {
            () = output.socket.came() => {}
            () = output.monitor.came() => {}
        },
    }
}
