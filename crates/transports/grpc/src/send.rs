//! Sends frames, one at a time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use futures_util::Stream;
use thalweg_transport::{Error, ErrorKind, Outgoing, Result, SendReport};
use thalweg_wire::MAX_CONTROL;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::frame::{self, Frame};
use crate::shared::LinkState;
use crate::MAX_CHUNK;

/// The place where a frame waits until HTTP/2 has room for it. The lock `turn` is fair and is held for one
/// frame, so a control message waits for the chunk before it and not for the whole update.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Held by the sender whose frame waits.
    turn: tokio::sync::Mutex<()>,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    /// The frame that waits to be taken.
    waiting: Option<Waiting>,
    /// Wakes gRPC's stream of messages.
    stream: Option<Waker>,
    ended: bool,
    /// Bytes of the stream in all messages that gRPC has taken so far.
    taken: u64,
}

struct Waiting {
    messages: VecDeque<Frame>,
    /// Gets the position in the stream at which the last message ends.
    taken: oneshot::Sender<u64>,
}

impl Outbox {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        // Nothing panics while the slot is changed, so it is consistent even if the lock is poisoned.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the sending: drops the frame that waits, and ends the stream behind the messages that gRPC has
    /// taken.
    pub(crate) fn end(&self) {
        let mut slot = self.slot();
        slot.ended = true;
        slot.waiting = None;
        if let Some(stream) = slot.stream.take() {
            stream.wake();
        }
    }

    fn put(&self, messages: VecDeque<Frame>) -> Put<'_> {
        let (taken, when_taken) = oneshot::channel();
        let mut slot = self.slot();
        slot.waiting = (!slot.ended).then_some(Waiting { messages, taken });
        if let Some(stream) = slot.stream.take() {
            stream.wake();
        }
        Put { outbox: self, when_taken }
    }
}

/// A frame that waits. Dropping this withdraws the frame, unless gRPC has already taken it: then all of it is
/// sent.
struct Put<'a> {
    outbox: &'a Outbox,
    when_taken: oneshot::Receiver<u64>,
}

impl Drop for Put<'_> {
    fn drop(&mut self) {
        // This call still holds the turn, so the waiting frame is its own.
        self.outbox.slot().waiting = None;
    }
}

/// The stream from which gRPC takes its messages when HTTP/2 has room.
pub(crate) struct Messages {
    shared: Arc<LinkState>,
    /// The further messages of the frame that was begun.
    rest: VecDeque<Frame>,
    /// Whether the last message must be sent at once, before gRPC asks for more.
    flush: bool,
}

impl Messages {
    pub(crate) fn new(shared: Arc<LinkState>) -> Self {
        Self { shared, rest: VecDeque::new(), flush: false }
    }
}

impl Stream for Messages {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        if std::mem::take(&mut self.flush) {
            cx.waker().wake_by_ref();
            return Poll::Pending; // gRPC collects messages until none is ready
        }
        if let Some(part) = self.rest.pop_front() {
            return Poll::Ready(Some(part));
        }
        let shared = self.shared.clone();
        let mut slot = shared.outbox.slot();
        let Some(Waiting { messages, taken }) = slot.waiting.take() else {
            slot.stream = Some(cx.waker().clone());
            return if slot.ended { Poll::Ready(None) } else { Poll::Pending };
        };
        slot.taken += messages.iter().map(Frame::wire_bytes).sum::<u64>();
        // This fails if the sender no longer waits. The frame is sent all the same.
        let _ = taken.send(slot.taken);
        self.rest = messages;
        let first = self.rest.pop_front();
        self.flush = first.as_ref().is_some_and(Frame::is_announcement);
        Poll::Ready(first)
    }
}

/// Waits for its turn, and then until gRPC has taken `messages`. Returns the position in the stream at which
/// they end.
pub(crate) async fn hand_over(
    shared: &LinkState,
    operation: &'static str,
    messages: impl FnOnce() -> Result<VecDeque<Frame>>,
) -> Result<u64> {
    let _turn = shared.outbox.turn.lock().await;
    shared.check(operation)?;
    let mut put = shared.outbox.put(messages()?);
    let taken = (&mut put.when_taken).await;
    taken.map_err(|_| shared.closed(operation))
}

/// Sends one control message. Returns when the kernel has all of it.
pub(crate) async fn control(shared: &LinkState, message: Bytes) -> Result<()> {
    let operation = "send control";
    if message.len() > MAX_CONTROL as usize {
        let context = format!("{} bytes; a control message has at most {MAX_CONTROL}", message.len());
        return Err(Error::new(ErrorKind::Unsupported, operation, context).hint("send fewer metrics"));
    }
    let end = hand_over(shared, operation, || Ok(frame::control(message))).await?;
    shared.until_flushed(operation, end).await
}

/// Refuses an update with a chunk that is too large for a message.
pub(crate) fn check(update: &Outgoing) -> Result<()> {
    if let Some(chunk) = update.chunks().iter().find(|c| c.range().len() > MAX_CHUNK.into()) {
        let context = format!("a chunk of {} bytes; one has at most {MAX_CHUNK}", chunk.range().len());
        return Err(Error::new(ErrorKind::Unsupported, "send update", context).hint("set a smaller chunk"));
    }
    Ok(())
}

/// The report for an update without chunks.
pub(crate) fn nothing() -> SendReport {
    let now = Instant::now();
    SendReport { chunks: 0, payload: 0, wire: 0, started: now, ended: now }
}

/// A chunk's payload. gRPC drops it when it has its own copy.
struct Lent {
    payload: Bytes,
    _back: oneshot::Sender<()>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

/// Returns the payload for gRPC, and a receiver that fails when gRPC has dropped it.
fn lend(payload: Bytes) -> (Bytes, oneshot::Receiver<()>) {
    let (back, when_back) = oneshot::channel();
    (Bytes::from_owner(Lent { payload, _back: back }), when_back)
}

/// One receiver for each payload that gRPC still holds; it fails when gRPC drops the payload. There are at
/// most two: one payload is being copied, one waits.
pub(crate) type Backs = Vec<oneshot::Receiver<()>>;

/// Sends the chunks of an update. Returns when the kernel has the last one. If the link ends during a copy,
/// `lent` tells which payloads gRPC still holds.
pub(crate) async fn update(shared: &LinkState, update: &Outgoing, lent: &mut Backs) -> Result<SendReport> {
    let operation = "send update";
    let (started, mut wire, mut end) = (Instant::now(), 0, 0);
    for (at, chunk) in update.chunks().iter().enumerate() {
        let messages = || {
            let (header, payload) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
            let (payload, back) = lend(payload);
            lent.retain_mut(|back| matches!(back.try_recv(), Err(TryRecvError::Empty)));
            lent.push(back);
            let mut messages = frame::chunk(&header, payload);
            if at == 0 {
                messages.push_front(frame::begins(&header));
            }
            wire += messages.iter().map(Frame::wire_bytes).sum::<u64>();
            Ok(messages)
        };
        end = hand_over(shared, operation, messages).await?;
        let copies = if shared.tls { 2 } else { 1 };
        shared.copied.fetch_add(copies * chunk.range().len(), Ordering::Relaxed);
    }
    shared.until_flushed(operation, end).await?;
    let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
    Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
}
