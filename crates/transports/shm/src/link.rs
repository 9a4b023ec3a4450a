//! A shm link: it receives chunks out of the peer's memory, and shares its state with the tasks that read and
//! send.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_transport::{
    Capabilities, Counters, Error, Link, Outgoing, Peer, Result, SendReport, Sink, Standing, Target,
    Transport, UnauthenticatedPeer,
};
use tokio::sync::{mpsc, watch, Mutex, Notify, Semaphore};
use tokio::task::AbortHandle;

use crate::lend::{Lending, WINDOW};
use crate::read::{self, Chunk, Received};
use crate::send;
use crate::socket::Socket;
use crate::Shm;

const RECEIVE: &str = "receive";
/// Frames that were read and wait to be received.
const QUEUE: usize = 64;

/// The state that the link and its tasks share.
pub(crate) struct Shared {
    pub socket: Socket,
    /// The peer, for messages.
    pub who: String,
    /// What the peer may send now.
    pub standing: Standing,
    /// The frames that wait to be written. The holder of the lock writes them.
    pub writer: Mutex<send::Writer>,
    pub lending: Lending,
    /// One permit for each chunk that may still be lent to the peer, at most [`WINDOW`]. The peer's
    /// acknowledgement of a lent chunk gives the permit back.
    pub window: Semaphore,
    /// Number of the next call of `send_update`.
    pub calls: AtomicU64,
    /// Notified when the peer is done with chunks.
    pub returned: watch::Sender<()>,
    /// Number of the peer's chunks that this end is done with but has not acknowledged.
    pub done: AtomicU32,
    /// Wakes the task that acknowledges chunks.
    pub tell: Notify,
    /// Number of the peer's chunks that were noted and that this end has not acknowledged.
    pub noted: AtomicU32,
    ended: watch::Sender<bool>,
    /// The reason why the link has ended.
    why: OnceLock<String>,
    /// Whether incoming frames are refused too.
    refused: AtomicBool,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub copied: AtomicU64,
}

impl Shared {
    /// Ends the link, and wakes all waiters. Bytes that the peer sent before can still be received.
    pub(crate) fn end(&self, why: &str) {
        if self.why.set(why.to_owned()).is_ok() {
            self.ended.send_replace(true);
            self.lending.end();
            self.socket.shut();
        }
    }

    /// Ends the link, and receives nothing more from the peer.
    pub(crate) fn refuse(&self, why: &str) {
        self.refused.store(true, Ordering::Release);
        self.end(why);
    }

    /// Waits until the link has ended, and returns the error for the operation.
    pub(crate) async fn ended(&self, operation: &'static str) -> Error {
        // This fails only if the `watch` sender was dropped, and that sender is a field of `self`.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
        self.closed(operation)
    }

    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        self.why.get().map_or(Ok(()), |_| Err(self.closed(operation)))
    }

    pub(crate) fn closed(&self, operation: &'static str) -> Error {
        let why = self.why.get().map_or("the link has ended", String::as_str);
        Error::closed(operation, format!("{}: {why}", self.who))
    }

    fn check_open(&self) -> Result<()> {
        match self.refused.load(Ordering::Acquire) {
            true => Err(self.closed(RECEIVE)),
            false => Ok(()),
        }
    }

    /// Counts another chunk of the peer that this end is done with, whether or not it was stored.
    fn done(&self) {
        self.done.fetch_add(1, Ordering::AcqRel);
        self.tell.notify_one();
    }
}

pub(crate) struct ShmLink {
    peer: Peer,
    shared: Arc<Shared>,
    inbox: Mutex<mpsc::Receiver<Received>>,
    /// The task that reads frames, and the one that acknowledges chunks.
    tasks: [AbortHandle; 2],
}

impl ShmLink {
    /// Makes a link of a connection whose handshake is complete.
    pub(crate) fn new(
        socket: Socket,
        who: String,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Self {
        let zero = AtomicU64::default;
        let shared = Arc::new(Shared {
            socket,
            who: who.clone(),
            standing: Standing::new(unauthenticated_peer),
            writer: Mutex::default(),
            lending: Lending::default(),
            window: Semaphore::new(WINDOW),
            calls: zero(),
            returned: watch::Sender::new(()),
            done: AtomicU32::new(0),
            tell: Notify::new(),
            noted: AtomicU32::new(0),
            ended: watch::Sender::new(false),
            why: OnceLock::new(),
            refused: AtomicBool::new(false),
            sent: zero(),
            received: zero(),
            copied: zero(),
        });
        let (pass, inbox) = mpsc::channel(QUEUE);
        let reader = tokio::spawn(read::frames(shared.clone(), pass)).abort_handle();
        let teller = tokio::spawn(send::tell(shared.clone())).abort_handle();
        let peer = Peer { address: who, ..Peer::default() };
        Self { peer, shared, inbox: Mutex::new(inbox), tasks: [reader, teller] }
    }
}

/// Copies a chunk out of the peer's memory into its place.
fn deliver(shared: &Shared, chunk: &Chunk, sink: &dyn Sink) -> Result<()> {
    let header = &chunk.note.header;
    let length = header.length() as u64;
    shared.received.fetch_add(length, Ordering::Relaxed);
    let Some(mut target) = sink.place(&header.chunk) else {
        sink.progress(length);
        return Ok(());
    };
    if target.bytes().len() as u64 != length {
        let context = format!("a place of {} bytes for {length}", target.bytes().len());
        return Err(Error::new(thalweg_transport::ErrorKind::System, RECEIVE, context));
    }
    if !take(chunk, &mut target)? {
        return Ok(()); // revoked by its sender; dropping the target releases the place
    }
    sink.progress(length);
    let outcome = if chunk.note.checked { header.verify(target.bytes()) } else { Ok(()) };
    sink.stored(&header.chunk, target, outcome);
    Ok(())
}

/// Copies a chunk. Returns `false` if the chunk was revoked before or during the copy.
fn take(chunk: &Chunk, target: &mut Target) -> Result<bool> {
    let ticket = chunk.note.ticket;
    let word = chunk.word();
    if word.load(Ordering::Acquire) != ticket {
        return Ok(false);
    }
    let read = chunk.memory.read(chunk.note.start, target.bytes_mut());
    read.map_err(|e| Error::new(thalweg_transport::ErrorKind::Corrupt, RECEIVE, e.to_string()))?;
    Ok(word.compare_exchange(ticket, ticket | 1, Ordering::AcqRel, Ordering::Acquire).is_ok())
}

#[async_trait]
impl Link for ShmLink {
    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn capabilities(&self) -> Capabilities {
        Shm.capabilities()
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        send::control(&self.shared, message).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        send::update(&self.shared, update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        let mut inbox = self.inbox.lock().await;
        loop {
            self.shared.check_open()?;
            let Some(received) = inbox.recv().await else {
                self.shared.check_open()?;
                self.shared.end("the peer has closed the link");
                return Err(self.shared.closed(RECEIVE));
            };
            match received {
                Received::Control(message) => return Ok(message),
                Received::Broken(error) => return Err(error),
                Received::Chunk(chunk) => {
                    let delivered = deliver(&self.shared, &chunk, sink);
                    drop(chunk);
                    self.shared.done();
                    if let Err(error) = delivered {
                        self.shared.refuse(&error.to_string());
                        return Err(error);
                    }
                    // Yield after each chunk, so that a link that always has data leaves time to the others.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn admit(&self) {
        self.shared.standing.admit();
    }

    fn counters(&self) -> Counters {
        Counters {
            sent: self.shared.sent.load(Ordering::Relaxed),
            received: self.shared.received.load(Ordering::Relaxed),
            copied: self.shared.copied.load(Ordering::Relaxed),
            ..Counters::default()
        }
    }

    async fn close(&self) {
        self.shared.refuse("this end has closed the link");
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.shared.end("this end has let the link go");
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
