//! The reference transport: links within one process, over bounded queues. One copy, from the sender's
//! arena into the receiver's place.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_wire::{FrameHeader, HEADER_BYTES, MAX_CHUNK, MAX_CONTROL};
use tokio::sync::{mpsc, watch, Mutex as AsyncMutex};

use crate::{
    Address, Capabilities, Counters, Error, ErrorKind, Link, Listener, Options, Outgoing, Peer, Pending,
    Result, SendReport, Sink, Transport,
};

/// Frames a direction holds before its sender waits.
const QUEUE: usize = 16;
/// Links that wait to be accepted before a connect waits.
const BACKLOG: usize = 1024;

enum Frame {
    Control(Bytes),
    Chunk(FrameHeader, Bytes),
}

type Backlog = mpsc::Sender<Arc<MemoryLink>>;

fn listeners() -> MutexGuard<'static, HashMap<String, Backlog>> {
    static LISTENERS: OnceLock<Mutex<HashMap<String, Backlog>>> = OnceLock::new();
    LISTENERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Links within one process: `memory://name`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory;

#[async_trait]
impl Transport for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { reliable: true, ordered: true, max_chunk: MAX_CHUNK, ..Capabilities::default() }
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        refuse_options("listen", options)?;
        let (sender, backlog) = mpsc::channel(BACKLOG);
        let mut names = listeners();
        if names.get(&address.host).is_some_and(|old| !old.is_closed()) {
            return Err(Error::new(ErrorKind::InUse, "listen", format!("{address} has a listener"))
                .mend("choose another name"));
        }
        names.insert(address.host.clone(), sender);
        Ok(Box::new(MemoryListener { address: address.clone(), backlog: AsyncMutex::new(backlog) }))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        refuse_options("connect", options)?;
        let nobody = || {
            Error::new(ErrorKind::Unreachable, "connect", format!("nobody listens at {address}"))
                .mend("start the server first, in this process")
        };
        let backlog = listeners().get(&address.host).cloned().ok_or_else(nobody)?;
        let (ours, theirs) = pair(&address.to_string());
        backlog.send(theirs).await.map_err(|_| nobody())?;
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
        Err(Error::new(ErrorKind::Unsupported, operation, context).mend("leave that option out"))
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
    outbox: mpsc::Sender<Frame>,
    inbox: AsyncMutex<mpsc::Receiver<Frame>>,
    closed: Arc<watch::Sender<bool>>,
    sent: AtomicU64,
    received: AtomicU64,
    copied: AtomicU64,
}

fn pair(address: &str) -> (Arc<MemoryLink>, Arc<MemoryLink>) {
    let (to_them, from_us) = mpsc::channel(QUEUE);
    let (to_us, from_them) = mpsc::channel(QUEUE);
    let closed = Arc::new(watch::Sender::new(false));
    let link = |outbox, inbox, closed| {
        let peer = Peer { address: address.into(), ..Peer::default() };
        let zero = AtomicU64::default;
        let inbox = AsyncMutex::new(inbox);
        Arc::new(MemoryLink { peer, outbox, inbox, closed, sent: zero(), received: zero(), copied: zero() })
    };
    (link(to_them, from_them, closed.clone()), link(to_us, from_us, closed))
}

impl MemoryLink {
    async fn ended(&self) {
        let mut closed = self.closed.subscribe();
        // An error means that the sender is gone, which it cannot be while we hold it.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    async fn push(&self, operation: &'static str, frame: Frame, bytes: usize) -> Result<()> {
        let gone = || Error::closed(operation, "the link is closed");
        tokio::select! {
            biased;
            () = self.ended() => Err(gone()),
            sent = self.outbox.send(frame) => {
                sent.map_err(|_| gone())?;
                self.sent.fetch_add((HEADER_BYTES + bytes) as u64, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn deliver(&self, header: &FrameHeader, payload: &[u8], sink: &dyn Sink) {
        if let Some(mut target) = sink.place(&header.chunk) {
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
            return Err(Error::new(ErrorKind::Unsupported, "send control", context).mend("send less metrics"));
        }
        self.push("send control", Frame::Control(message), length).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        let started = Instant::now();
        let mut payload = 0;
        for chunk in update.chunks() {
            let bytes = update.payload(chunk);
            let length = bytes.len();
            tokio::select! {
                biased;
                () = update.cancel().cancelled() => return Err(SendReport::cancelled()),
                sent = self.push("send update", Frame::Chunk(update.header(chunk), bytes), length) => sent?,
            }
            payload += length as u64;
        }
        let chunks = update.chunks().len() as u64;
        let wire = payload + chunks * HEADER_BYTES as u64;
        Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        let mut inbox = self.inbox.lock().await;
        loop {
            let frame = tokio::select! {
                biased;
                frame = inbox.recv() => frame,
                () = self.ended() => None,
            };
            let frame = frame.ok_or_else(|| Error::closed("receive", "the peer has closed the link"))?;
            let length = match &frame {
                Frame::Control(bytes) | Frame::Chunk(_, bytes) => HEADER_BYTES + bytes.len(),
            };
            self.received.fetch_add(length as u64, Ordering::Relaxed);
            match frame {
                Frame::Control(message) => return Ok(message),
                Frame::Chunk(header, payload) => self.deliver(&header, &payload, sink),
            }
            tokio::task::yield_now().await;
        }
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
