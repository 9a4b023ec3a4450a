//! The carrier: a ROUTER and its DEALERs; two pairs of PUB and SUB, of PUSH and PULL, or of REQ and REP.
//!
//! | | the listener | a member |
//! |---|---|---|
//! | `router` | ROUTER, bound: reads `id, message`, writes `id, message` | DEALER with its id |
//! | `pubsub` | PUB, bound: writes `g, message` or `m id, message` | SUB to `g` and `m id` |
//! | | SUB, bound to a second port: reads `id, message` | PUB: writes `id, message` |
//! | `pushpull` | PULL, bound to a second port: reads `id, message` | PUSH: writes `id, message` |
//! | `reqrep` | REP, bound to a second port: reads `id, message` | REQ: writes `id, message` |
//! | both | a line to each member, in [`crate::lines`]: writes `message` | PULL or REQ: reads `message` |
//!
//! A message is one part, head and body; a chunk is two.
//!
//! With PUB and SUB nobody waits for slow joiners. The listener's PUB is an XPUB, which reads who subscribes, and answers
//! the subscription to `m id` with the second port. The member's is one too, and waits until the listener's SUB has
//! subscribed to it.

use std::io;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_messages::{Carrier, Event, Letter, Mailbox, MemberId, Message, Nature, Network};
use thalweg_transport::{Address, Error, Lobby, Origin, Peer, Result};
use tokio::sync::watch;

use crate::ffi::MessagePart;
use crate::kernel;
use crate::lines::{PartySocket, PartySockets};
use crate::open::Watched;
use crate::peers::{Peers, IN_A_ROW};
use crate::socket::Socket;
use crate::visitors::{Place, Visitors};
use crate::{Pattern, MAX_MESSAGE, WINDOW};

const PUBLISH: &str = "publish";
pub(crate) const GROUP: &[u8] = b"g";

/// The topic of one member.
pub(crate) fn topic(member: MemberId) -> Vec<u8> {
    [b"m", &member.0[..]].concat()
}

/// What a message takes on the wire: frames' flags and lengths (ZMTP's RFC 37), and CURVE's part.
fn wire(overhead: u64, parts: &[MessagePart]) -> u64 {
    let frame = |part: &MessagePart| {
        let length = part.bytes().len() as u64 + overhead;
        length + if length > 255 { 9 } else { 2 }
    };
    parts.iter().map(frame).sum()
}

pub(crate) struct ZmqCarrier {
    pub(crate) sockets: Sockets,
    /// With REQ, whether a member has asked for what it is told next.
    asked: AtomicBool,
    peers: Mutex<Peers>,
    pub(crate) visitors: Visitors,
    end: watch::Sender<Option<String>>,
}

/// What a carrier is made of.
pub(crate) struct Sockets {
    pub pattern: Pattern,
    pub address: Address,
    pub congestion: Option<String>,
    /// `None` for the listener.
    pub member: Option<MemberId>,
    /// Bytes that encryption adds to a frame; 0 in the clear.
    pub overhead: u64,
    /// What is read, and written if it is another; the listener's reception, where there are lines.
    pub input: Watched,
    pub output: Option<Watched>,
    /// A member's line to the listener, and the listener's to members, where there are any.
    pub line: Option<PartySocket>,
    pub lines: Option<Arc<PartySockets>>,
    /// The listener's second port.
    pub port: u16,
    /// A member's connection that it writes to.
    pub descriptor: i32,
}

impl ZmqCarrier {
    /// Of these sockets; a listener's connections are guests in the lobby.
    pub(crate) fn new(sockets: Sockets, lobby: Option<Lobby>) -> Self {
        Self {
            sockets,
            asked: AtomicBool::new(false),
            peers: Mutex::default(),
            visitors: Visitors::new(lobby),
            end: watch::Sender::new(None),
        }
    }

    pub(crate) fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self, operation: &'static str) -> Error {
        let why = self.end.borrow().clone().unwrap_or_else(|| "the sockets are closed".into());
        Error::closed(operation, why)
    }

    fn fail(&self, operation: &'static str, error: &io::Error) -> Error {
        self.finish(&format!("{}: {error}", self.sockets.address));
        self.closed(operation)
    }

    pub(crate) fn finish(&self, why: &str) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert_with(|| why.into());
            first
        });
    }

    /// What a message takes on the wire; REQ and REP have an empty part before it.
    fn wire(&self, parts: &[MessagePart]) -> u64 {
        let delimiter = if self.sockets.pattern == Pattern::ReqRep { 2 + self.sockets.overhead } else { 0 };
        wire(self.sockets.overhead, parts) + delimiter
    }

    fn writer(&self) -> &Socket {
        self.sockets.output.as_ref().map_or(&self.sockets.input.socket, |output| &output.socket)
    }

    /// The first part of a message, where there is one.
    fn envelope(&self, to: Mailbox) -> Option<Vec<u8>> {
        match (self.sockets.pattern, to) {
            (Pattern::Router, Mailbox::Member(member)) => Some(member.0.to_vec()),
            (Pattern::Router, _) => None,
            (Pattern::PubSub, Mailbox::Member(member)) => Some(topic(member)),
            (Pattern::PubSub, Mailbox::Group) => Some(GROUP.to_vec()),
            (_, Mailbox::Listener) => self.sockets.member.map(|member| member.0.to_vec()),
            (Pattern::PushPull | Pattern::ReqRep, _) => None,
        }
    }

    pub(crate) fn outputs(&self) -> impl Iterator<Item = &Watched> {
        self.sockets.output.iter().chain(self.sockets.line.iter().map(|line| &line.watched))
    }

    /// A message that is there.
    fn take(&self) -> io::Result<Option<Event>> {
        self.reception()?;
        self.subscriptions()?;
        while let Some(parts) = self.read()? {
            let wire = self.wire(&parts);
            let mut parts = parts.into_iter();
            let envelope = if self.has_envelope() { parts.next() } else { None };
            let (Some(head), body) = (parts.next(), parts.next()) else { continue };
            let mut from = None;
            if let (None, Some(id)) = (self.sockets.member, &envelope) {
                // A stranger: our members have ids of 16 bytes.
                let Ok(id) = id.bytes().try_into().map(MemberId) else { continue };
                if !self.peers().knows(id, &head) {
                    self.watch()?; // of connections before this message's
                    self.peers().heard(id, &head);
                    head.source()
                        .iter()
                        .for_each(|descriptor| self.visitors.heard(Place::Input, *descriptor));
                    self.sockets.lines.iter().for_each(|lines| lines.heard(id));
                }
                // With the other patterns it is only what the sender says of itself.
                from = (self.sockets.pattern == Pattern::Router).then_some(id);
            }
            let (bytes, body) = (Bytes::from_owner(head), body.map(Bytes::from_owner));
            return Ok(Some(Event::Letter(Letter { bytes, body, from, wire, receipt: None })));
        }
        Ok(None)
    }

    /// What is there to read. A REQ asks for it first, and a REP answers with nothing.
    fn read(&self) -> io::Result<Option<Vec<MessagePart>>> {
        let (socket, lockstep) = (&self.sockets.input.socket, self.sockets.pattern == Pattern::ReqRep);
        if lockstep && self.sockets.member.is_some() && !self.asked.load(Ordering::Relaxed) {
            if !socket.send(&mut [MessagePart::copy_of(&[])?])? {
                return Ok(None); // its connection has ended
            }
            self.asked.store(true, Ordering::Relaxed);
        }
        let found = socket.try_receive()?;
        if lockstep && found.is_some() {
            self.asked.store(false, Ordering::Relaxed);
            if self.sockets.member.is_none() {
                socket.send(&mut [MessagePart::copy_of(&[])?])?;
            }
        }
        Ok(found)
    }

    /// Whether what is read begins with whom it is from, or for.
    fn has_envelope(&self) -> bool {
        self.sockets.member.is_none() || self.sockets.pattern == Pattern::PubSub
    }

    /// Sends a message, and says what it takes on the wire.
    async fn send(&self, to: Mailbox, mut parts: Vec<MessagePart>) -> Result<u64> {
        let mut sent = self.wire(&parts);
        if let Some(envelope) = self.envelope(to) {
            let envelope = MessagePart::copy_of(&[&envelope]).map_err(|e| self.fail(PUBLISH, &e))?;
            // A ROUTER's is for itself, and does not go out.
            if self.sockets.pattern != Pattern::Router {
                sent += wire(self.sockets.overhead, slice::from_ref(&envelope));
            }
            parts.insert(0, envelope);
        }
        let copies = if to == Mailbox::Group { self.peers().known.len().max(1) as u64 } else { 1 };
        if to == Mailbox::Group {
            self.visitors.passed(sent);
        }
        let mut end = self.end.subscribe();
        let outcome = tokio::select! {
            biased;
            _ = end.wait_for(Option::is_some) => return Err(self.closed(PUBLISH)),
            outcome = self.hand_over(to, parts) => outcome,
        };
        match outcome {
            Ok(()) => Ok(copies * sent),
            // Nobody is there, as ROUTER_MANDATORY and closed lines tell. The end is told by `next`.
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable => Ok(copies * sent),
            Err(error) => Err(self.fail(PUBLISH, &error)),
        }
    }

    async fn hand_over(&self, to: Mailbox, mut parts: Vec<MessagePart>) -> io::Result<()> {
        let nobody = || io::Error::from(io::ErrorKind::HostUnreachable);
        match (&self.sockets.line, &self.sockets.lines, to) {
            (Some(line), ..) => line.send(parts).await,
            (_, Some(lines), Mailbox::Member(member)) => {
                let line = lines.to(member).ok_or_else(nobody)?;
                line.send(parts).await.map_err(|_| nobody())
            }
            _ if self.writer().send(&mut parts)? => Ok(()),
            _ => std::future::pending().await, // its connection has ended, which the monitor tells
        }
    }
}

#[async_trait]
impl Carrier for ZmqCarrier {
    fn nature(&self) -> Nature {
        let sealed = u64::from(self.sockets.overhead > 0);
        Nature {
            max_message: MAX_MESSAGE,
            group: self.sockets.pattern == Pattern::PubSub,
            lossy: false,
            window: WINDOW,
            copies_out: sealed,
            copies_in: sealed,
        }
    }

    fn address(&self) -> Address {
        self.sockets.address.clone()
    }

    async fn publish(&self, to: Mailbox, message: Message<'_>) -> Result<u64> {
        let joined =
            MessagePart::copy_of(&[message.head, message.body]).map_err(|e| self.fail(PUBLISH, &e))?;
        self.send(to, vec![joined]).await
    }

    fn shares(&self) -> bool {
        true
    }

    async fn publish_shared(&self, to: Mailbox, head: &[u8], body: Arc<Vec<u8>>) -> Result<u64> {
        let parts = MessagePart::copy_of(&[head]).and_then(|head| Ok(vec![head, MessagePart::shared(body)?]));
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
                () = self.sockets.input.socket.came() => {}
                () = self.sockets.input.monitor.came() => {}
                () = either(self.sockets.output.as_ref()) => {}
                () = ended(self.sockets.line.as_ref()) => {}
                () = lines_changed(self.sockets.lines.as_ref()) => self.watch_lines().map_err(|e| self.fail(operation, &e))?,
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
            _ => self.sockets.address.to_string(),
        };
        Peer { address, ..Peer::default() }
    }

    fn network(&self, mailbox: Mailbox) -> Network {
        let descriptor = match mailbox {
            Mailbox::Member(member) => self.peers().known.get(&member).and_then(|known| known.writing),
            _ => Some(self.sockets.descriptor),
        };
        descriptor
            .filter(|fd| *fd >= 0 && self.end.borrow().is_none())
            .map(kernel::network)
            .unwrap_or_default()
    }

    fn origin(&self, member: MemberId) -> Origin {
        let reading = self.peers().reading(member).next();
        reading.map_or(Origin::Unknown, |descriptor| self.visitors.origin(Place::Input, descriptor))
    }

    fn admit(&self, member: MemberId) {
        let (reading, writing) = {
            let peers = self.peers();
            let writing = peers.known.get(&member).and_then(|known| known.writing);
            (peers.reading(member).collect::<Vec<_>>(), writing)
        };
        reading.into_iter().for_each(|descriptor| self.visitors.admit(Place::Input, descriptor));
        if let Some(lines) = &self.sockets.lines {
            lines.admit(member); // before its connection, which may be told of only now
            self.visitors.admit_line(member);
        } else if self.sockets.output.is_some() {
            writing.iter().for_each(|descriptor| self.visitors.admit(Place::Output, *descriptor));
        }
    }

    fn forget(&self, member: MemberId) {
        self.peers().known.remove(&member);
        self.sockets.lines.iter().for_each(|lines| lines.close(member));
    }

    async fn close(&self) {
        self.finish("the carrier was closed here");
        self.sockets.input.socket.close();
        if let Some(lines) = &self.sockets.lines {
            lines.all().iter().for_each(|(member, _)| lines.close(*member));
        }
        for output in self.outputs() {
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

/// What comes on a line is for whoever sends on it; here it is about its connection.
async fn ended(line: Option<&PartySocket>) {
    match line {
        None => std::future::pending().await,
        Some(line) => line.watched.monitor.came().await,
    }
}

async fn lines_changed(lines: Option<&Arc<PartySockets>>) {
    match lines {
        None => std::future::pending().await,
        Some(lines) => lines.changed.notified().await,
    }
}
