//! The reference transport: links within one process, over bounded queues. Each payload is copied once, from
//! the sender's arena into the receiver's place.
//!
//! A queue never holds a loan. A chunk waits in it as a weak reference to its update. The sending call keeps
//! the update alive until the receiver has taken the last chunk, so the loan ends with the call, however it
//! ends.
//!
//! The receiver asks the sink for a chunk's place before it reads the chunk's bytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_arena::Claim;
use thalweg_wire::{FrameHeader, Kind, HEADER_BYTES, MAX_CHUNK, MAX_CONTROL};
use tokio::sync::{mpsc, oneshot, watch, Mutex as AsyncMutex};

use crate::{
    Address, AdmissionQueue, Capabilities, Counters, Error, ErrorKind, Link, Listener, Options, Origin,
    Outgoing, Peer, Pending, Result, SendReport, Sink, Standing, Target, Transport, UnauthenticatedPeer,
};

/// Frames that the queue of one direction holds before the sender waits.
const QUEUE: usize = 16;
/// Links that a listener queues for acceptance before a connect waits.
const BACKLOG: usize = 1024;

enum Frame {
    Control(Bytes),
    /// A chunk: its header, its update and its index there. If the sender has stopped, the reference is dead.
    Chunk(FrameHeader, Weak<Outgoing>, usize),
    /// Tells the sender that the receiver has taken all frames before this one.
    Flush(oneshot::Sender<()>),
}

/// A listener's queue of links to be accepted, and the admission queue of their peers.
#[derive(Clone)]
struct Backlog {
    /// Queue of links to be accepted.
    links: mpsc::Sender<Arc<MemoryLink>>,
    admission_queue: Option<AdmissionQueue>,
}

type Listeners = HashMap<Address, Backlog>;

fn listeners() -> MutexGuard<'static, Listeners> {
    static LISTENERS: OnceLock<Mutex<Listeners>> = OnceLock::new();
    LISTENERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the address itself, or for port 0 the address with the first free port.
fn choose_port(address: &Address, taken: &Listeners) -> Result<Address> {
    let used = || {
        Error::new(ErrorKind::InUse, "listen", format!("{address} has a listener"))
            .hint("choose another name or port")
    };
    let with = |port| Address { port, ..address.clone() };
    let free = match address.port {
        Some(0) => (1..=u16::MAX).map(|port| with(Some(port))).find(|a| !taken.contains_key(a)),
        port => Some(with(port)).filter(|a| !taken.contains_key(a)),
    };
    free.ok_or_else(used)
}

/// The transport within one process: `memory://name` or `memory://name:port`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory;

#[async_trait]
impl Transport for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            ordered: true,
            symmetric: true,
            in_process: true,
            max_chunk: MAX_CHUNK,
            ..Capabilities::default()
        }
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        refuse_options("listen", options)?;
        let (links, backlog) = mpsc::channel(BACKLOG);
        let mut taken = listeners();
        taken.retain(|_, listener| !listener.links.is_closed());
        let address = choose_port(address, &taken)?;
        taken.insert(address.clone(), Backlog { links, admission_queue: options.admission_queue.clone() });
        Ok(Box::new(MemoryListener { address, backlog: AsyncMutex::new(backlog) }))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        refuse_options("connect", options)?;
        let nobody = || {
            Error::new(ErrorKind::Unreachable, "connect", format!("nobody listens at {address}"))
                .hint("start the server first, in this process")
        };
        let full = |_| {
            Error::new(ErrorKind::Timeout, "connect", format!("{address} has {BACKLOG} links to accept"))
                .hint("accept links faster, or raise the timeout")
        };
        let backlog = listeners().get(address).cloned().ok_or_else(nobody)?;
        let unauthenticated_peer =
            backlog.admission_queue.as_ref().map(|admission_queue| admission_queue.enter(Origin::Unknown));
        let (ours, theirs) = pair(&address.to_string(), unauthenticated_peer);
        let sent = tokio::time::timeout(options.connect_timeout(), backlog.links.send(theirs)).await;
        sent.map_err(full)?.map_err(|_| nobody())?;
        Ok(ours)
    }
}

fn refuse_options(operation: &'static str, options: &Options) -> Result<()> {
    let wanted = [
        ("congestion", options.congestion.is_some()),
        ("streams", options.streams > 1),
        ("tls", options.tls.is_some()),
    ];
    wanted.iter().find(|(_, set)| *set).map_or(Ok(()), |(name, _)| {
        let context = format!("the memory transport has no {name}");
        Err(Error::new(ErrorKind::Unsupported, operation, context).hint("leave that option out"))
    })
}

struct MemoryListener {
    address: Address,
    backlog: AsyncMutex<mpsc::Receiver<Arc<MemoryLink>>>,
}

#[async_trait]
impl Listener for MemoryListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        let link = self.backlog.lock().await.recv().await;
        let link: Arc<dyn Link> = link.ok_or_else(|| Error::closed("accept", "the listener is closed"))?;
        Ok(Box::pin(std::future::ready(Ok(link))))
    }
}

struct MemoryLink {
    peer: Peer,
    /// What the peer may send now.
    standing: Standing,
    /// Queue of frames to the peer.
    outbox: mpsc::Sender<Frame>,
    /// Queue of frames from the peer.
    inbox: AsyncMutex<mpsc::Receiver<Frame>>,
    /// Whether the link has ended; both ends share it.
    closed: Arc<watch::Sender<bool>>,
    sent: AtomicU64,
    received: AtomicU64,
    copied: AtomicU64,
}

/// Makes a link's two ends: first the one that connected, then the one to be accepted.
fn pair(
    address: &str,
    unauthenticated_peer: Option<UnauthenticatedPeer>,
) -> (Arc<MemoryLink>, Arc<MemoryLink>) {
    let (to_them, from_us) = mpsc::channel(QUEUE);
    let (to_us, from_them) = mpsc::channel(QUEUE);
    let closed = Arc::new(watch::Sender::new(false));
    let link = |outbox, inbox, closed, unauthenticated_peer: Option<UnauthenticatedPeer>| {
        let peer = Peer { address: address.into(), ..Peer::default() };
        let zero = AtomicU64::default;
        let (inbox, standing) = (AsyncMutex::new(inbox), Standing::new(unauthenticated_peer));
        let (sent, received, copied) = (zero(), zero(), zero());
        Arc::new(MemoryLink { peer, standing, outbox, inbox, closed, sent, received, copied })
    };
    (link(to_them, from_them, closed.clone(), None), link(to_us, from_us, closed, unauthenticated_peer))
}

impl MemoryLink {
    async fn ended(&self) {
        let mut closed = self.closed.subscribe();
        // This fails only if the `watch` sender was dropped, and this link holds a reference to it.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    async fn push(&self, operation: &'static str, frame: Frame, bytes: usize) -> Result<()> {
        let closed = || Error::closed(operation, "the link is closed");
        tokio::select! {
            biased;
            () = self.ended() => Err(closed()),
            place = self.outbox.reserve() => {
                let place = place.map_err(|_| closed())?;
                // Count before the peer can take the frame. When the peer's answer arrives, the frame is in
                // the counters.
                self.sent.fetch_add((HEADER_BYTES + bytes) as u64, Ordering::Relaxed);
                place.send(frame);
                Ok(())
            }
        }
    }

    /// Queues the chunks, and waits until the peer has taken them all.
    async fn push_update(&self, update: Arc<Outgoing>) -> Result<SendReport> {
        let started = Instant::now();
        for (index, chunk) in update.chunks().iter().enumerate() {
            let (header, _) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
            let loan = Arc::downgrade(&update);
            self.push("send update", Frame::Chunk(header, loan, index), header.length()).await?;
        }
        let chunks = update.chunks().len() as u64;
        if chunks > 0 {
            self.flush().await?;
        }
        let payload = update.payload_bytes();
        let wire = payload + chunks * HEADER_BYTES as u64;
        Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
    }

    async fn flush(&self) -> Result<()> {
        let closed = || Error::closed("send update", "the link is closed");
        let (taken, all_taken) = oneshot::channel();
        tokio::select! {
            biased;
            () = self.ended() => Err(closed()),
            flushed = async {
                self.outbox.send(Frame::Flush(taken)).await.map_err(|_| closed())?;
                all_taken.await.map_err(|_| closed())
            } => flushed,
        }
    }

    /// Handles a frame: returns a control message, gives a chunk to the sink, answers a flush.
    fn take(&self, frame: Frame, sink: &dyn Sink) -> Result<Option<Bytes>> {
        let count = |length: usize| {
            self.received.fetch_add((HEADER_BYTES + length) as u64, Ordering::Relaxed);
        };
        match frame {
            Frame::Control(message) => {
                self.standing.check(Kind::Control, message.len())?;
                count(message.len());
                return Ok(Some(message));
            }
            Frame::Chunk(header, loan, index) => {
                self.standing.check(Kind::Chunk, header.length())?;
                let prepared = sink.prepare(&header.chunk);
                let update = loan.upgrade();
                if let Some((_, payload)) = update.as_ref().and_then(|u| u.frame(&u.chunks()[index])) {
                    count(header.length());
                    self.deliver(&header, &payload, prepared, sink);
                }
            }
            // Sending fails if the sender of the update was cancelled; then nobody waits for the answer.
            Frame::Flush(taken) => drop(taken.send(())),
        }
        Ok(None)
    }

    fn deliver(&self, header: &FrameHeader, payload: &[u8], prepared: Option<Claim>, sink: &dyn Sink) {
        if prepared.is_some() {
            sink.begun(&header.chunk);
        }
        let place = prepared.map(Target::Place).or_else(|| sink.place(&header.chunk));
        if let Some(mut target) = place {
            target.bytes_mut().copy_from_slice(payload);
            self.copied.fetch_add(payload.len() as u64, Ordering::Relaxed);
            sink.progress(payload.len() as u64);
            let outcome = header.verify(target.bytes());
            sink.stored(&header.chunk, target, outcome);
        } else {
            sink.progress(payload.len() as u64);
        }
    }
}

#[async_trait]
impl Link for MemoryLink {
    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn capabilities(&self) -> Capabilities {
        Memory.capabilities()
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        let (length, limit) = (message.len(), MAX_CONTROL as usize);
        if length > limit {
            let context = format!("a control message of {length} bytes is over the limit of {limit}");
            return Err(
                Error::new(ErrorKind::Unsupported, "send control", context).hint("send fewer metrics")
            );
        }
        self.push("send control", Frame::Control(message), length).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        tokio::select! {
            biased;
            () = update.cancel().cancelled() => Err(SendReport::cancelled()),
            report = self.push_update(Arc::new(update.clone())) => report,
        }
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        let mut inbox = self.inbox.lock().await;
        loop {
            let frame = tokio::select! {
                biased;
                frame = inbox.recv() => frame,
                () = self.ended() => None,
                error = self.standing.evicted() => {
                    self.closed.send_replace(true);
                    return Err(error);
                }
            };
            let frame = frame.ok_or_else(|| Error::closed("receive", "the peer has closed the link"))?;
            match self.take(frame, sink) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(error) => {
                    self.closed.send_replace(true);
                    return Err(error);
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn admit(&self) {
        self.standing.admit();
    }

    fn counters(&self) -> Counters {
        Counters {
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            copied: self.copied.load(Ordering::Relaxed),
            ..Counters::default()
        }
    }

    async fn close(&self) {
        self.closed.send_replace(true);
    }
}
