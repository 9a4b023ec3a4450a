//! The carrier over libzmq. It uses a ROUTER with DEALERs, two PUB/SUB pairs, two PUSH/PULL pairs, or two
//! REQ/REP pairs.
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
//! A message has one part with head and body; a chunk has a part for each.
//!
//! With PUB and SUB, no message gets lost because a subscriber joins late. The listener's PUB is an XPUB,
//! which receives subscriptions; it answers a subscription to `m id` with the second port. The member's PUB
//! is an XPUB too: the member waits until the listener's SUB has subscribed to it.

use std::io;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_messages::{Carrier, Event, Letter, Mailbox, MemberId, Message, Nature, Network};
use thalweg_transport::{Address, AdmissionQueue, Error, Origin, Peer, Result};
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

/// Bytes that the parts have on the wire, with flags and lengths of frames (ZMTP 3.1, RFC 37) and CURVE's
/// overhead.
fn wire(overhead: u64, parts: &[MessagePart]) -> u64 {
    let frame = |part: &MessagePart| {
        let length = part.bytes().len() as u64 + overhead;
        length + if length > 255 { 9 } else { 2 }
    };
    parts.iter().map(frame).sum()
}

/// A carrier of a listener or a member.
pub(crate) struct ZmqCarrier {
    pub(crate) sockets: Sockets,
    /// With `reqrep`, at a member: whether the member has sent the request that the listener's next message
    /// answers. At a listener it stays false.
    requested: AtomicBool,
    peers: Mutex<Peers>,
    pub(crate) visitors: Visitors,
    end: watch::Sender<Option<String>>,
}

/// The sockets and settings of a carrier.
pub(crate) struct Sockets {
    pub pattern: Pattern,
    pub address: Address,
    pub congestion: Option<String>,
    /// `None` at the listener.
    pub member: Option<MemberId>,
    /// Bytes that encryption adds to a frame; 0 without encryption.
    pub overhead: u64,
    /// The socket that is read.
    pub input: Watched,
    /// The socket that is written, if it is not `input`. At a listener with lines, the reception (see
    /// [`crate::lines`]).
    pub output: Option<Watched>,
    /// At a member, with `pushpull` and `reqrep`: its line to the listener.
    pub line: Option<PartySocket>,
    /// At a listener, with `pushpull` and `reqrep`: its lines to members.
    pub lines: Option<Arc<PartySockets>>,
    /// The listener's second port.
    pub port: u16,
    /// A member's connection for its own messages.
    pub descriptor: i32,
}

impl ZmqCarrier {
    /// Makes a carrier of these sockets. With an admission queue, the connections of a listener take places
    /// in it.
    pub(crate) fn new(sockets: Sockets, admission_queue: Option<AdmissionQueue>) -> Self {
        Self {
            sockets,
            requested: AtomicBool::new(false),
            peers: Mutex::default(),
            visitors: Visitors::new(admission_queue),
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

    /// Ends the carrier; only the first reason is kept.
    pub(crate) fn finish(&self, why: &str) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert_with(|| why.into());
            first
        });
    }

    /// Bytes of a message on the wire. With REQ and REP, an empty part precedes it.
    fn wire(&self, parts: &[MessagePart]) -> u64 {
        let delimiter = if self.sockets.pattern == Pattern::ReqRep { 2 + self.sockets.overhead } else { 0 };
        wire(self.sockets.overhead, parts) + delimiter
    }

    fn writer(&self) -> &Socket {
        self.sockets.output.as_ref().map_or(&self.sockets.input.socket, |output| &output.socket)
    }

    /// The part before the message that names the sender or the reader, if the pattern has one.
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

    /// Reads the next message, if there is one. First answers members that want to join.
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
                // Ignore a foreign peer: the ids of our members have 16 bytes.
                let Ok(id) = id.bytes().try_into().map(MemberId) else { continue };
                if !self.peers().knows(id, &head) {
                    // First process the events of connections that precede this message.
                    self.watch()?;
                    self.peers().note_message(id, &head);
                    head.source()
                        .iter()
                        .for_each(|descriptor| self.visitors.progressed(Place::Input, *descriptor));
                    self.sockets.lines.iter().for_each(|lines| lines.progressed(id));
                }
                // With the other patterns, the sender itself claims this id.
                from = (self.sockets.pattern == Pattern::Router).then_some(id);
            }
            let (bytes, body) = (Bytes::from_owner(head), body.map(Bytes::from_owner));
            return Ok(Some(Event::Letter(Letter { bytes, body, from, wire, receipt: None })));
        }
        Ok(None)
    }

    /// Reads the parts of a message, if there is one. In lock-step, a member's REQ first sends its request,
    /// and a listener's REP answers with an empty message.
    fn read(&self) -> io::Result<Option<Vec<MessagePart>>> {
        let (socket, lockstep) = (&self.sockets.input.socket, self.sockets.pattern == Pattern::ReqRep);
        if lockstep && self.sockets.member.is_some() && !self.requested.load(Ordering::Relaxed) {
            if !socket.send(&mut [MessagePart::copy_of(&[])?])? {
                // The connection has ended.
                return Ok(None);
            }
            self.requested.store(true, Ordering::Relaxed);
        }
        let found = socket.try_receive()?;
        if lockstep && found.is_some() {
            self.requested.store(false, Ordering::Relaxed);
            if self.sockets.member.is_none() {
                socket.send(&mut [MessagePart::copy_of(&[])?])?;
            }
        }
        Ok(found)
    }

    /// Whether messages begin with a part that names the sender or the topic.
    fn has_envelope(&self) -> bool {
        self.sockets.member.is_none() || self.sockets.pattern == Pattern::PubSub
    }

    /// Sends a message. Returns its bytes on the wire.
    async fn send(&self, to: Mailbox, mut parts: Vec<MessagePart>) -> Result<u64> {
        let mut sent = self.wire(&parts);
        if let Some(envelope) = self.envelope(to) {
            let envelope = MessagePart::copy_of(&[&envelope]).map_err(|e| self.fail(PUBLISH, &e))?;
            // A ROUTER removes this part and does not send it.
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
            // Not an error: the reader is gone, as ROUTER_MANDATORY or a closed line shows. `next` reports
            // its end.
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
            // Wait for ever: the connection has ended, and the monitor reports that.
            _ => std::future::pending().await,
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
            // First return the messages that arrived before the end of a connection. But after many messages
            // in a row, look at connections in any case.
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
                () = self.sockets.input.socket.readable() => {}
                () = self.sockets.input.monitor.readable() => {}
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
            // Do this first: the monitor may report the line's connection only later.
            lines.admit(member);
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
            () = output.socket.readable() => {}
            () = output.monitor.readable() => {}
        },
    }
}

/// Waits for events of a line's connection. The line's messages are for `PartySocket::send`.
async fn ended(line: Option<&PartySocket>) {
    match line {
        None => std::future::pending().await,
        Some(line) => line.watched.monitor.readable().await,
    }
}

async fn lines_changed(lines: Option<&Arc<PartySockets>>) {
    match lines {
        None => std::future::pending().await,
        Some(lines) => lines.changed.notified().await,
    }
}
