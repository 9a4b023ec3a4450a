//! Sends messages on one stream, and each chunk on a stream of its own.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use quinn::{ConnectionError, SendStream, VarInt, WriteError};
use thalweg_transport::{ChunkRef, Error, ErrorKind, Outgoing, Result, SendReport};
use thalweg_wire::{FrameHeader, MAX_CHUNK, MAX_CONTROL};
use tokio::sync::{Mutex, MutexGuard};

use crate::link::LinkState;
use crate::marks::{head, HEAD_BYTES};

/// Number of copies of a chunk's payload by quinn: into the packets, where it is encrypted.
const PACKET_COPIES: u64 = 1;
const SEND_CONTROL: &str = "send control";
const SEND_UPDATE: &str = "send update";
/// Error code of a stream that is reset because its update was cancelled.
const CANCELLED: VarInt = VarInt::from_u32(0);

/// The stream of messages, locked while one message is written. If this value is dropped before the message
/// is complete, the link ends, because the peer could not tell where the next message begins.
struct Message<'a> {
    shared: &'a LinkState,
    stream: MutexGuard<'a, SendStream>,
    done: bool,
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        if !self.done {
            let _ = self.stream.reset(CANCELLED);
            self.shared.end("a send was dropped in the middle of a message");
        }
    }
}

pub(crate) async fn control(
    shared: &Arc<LinkState>,
    stream: &Mutex<SendStream>,
    message: Bytes,
) -> Result<()> {
    if message.len() > MAX_CONTROL as usize {
        let context = format!("{} bytes; a control message has at most {MAX_CONTROL}", message.len());
        return Err(Error::new(ErrorKind::Unsupported, SEND_CONTROL, context).hint("send fewer metrics"));
    }
    let sending = async {
        let stream = stream.lock().await;
        shared.check(SEND_CONTROL)?;
        let mark = shared.chunks.load(Ordering::Acquire);
        let head = head(mark, &FrameHeader::control(&message).encode());
        let mut frame = Message { shared, stream, done: false };
        let bytes = (HEAD_BYTES + message.len()) as u64;
        let written = frame.stream.write_all_chunks(&mut [Bytes::copy_from_slice(&head), message]).await;
        frame.done = true;
        written.map_err(|e| failed(shared, SEND_CONTROL, e))?;
        // Count the message only now: a chunk that waits for it at the receiver takes flow-control credit
        // that the message may need.
        shared.messages.fetch_add(1, Ordering::AcqRel);
        shared.sent.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    };
    tokio::select! {
        biased;
        sent = sending => sent,
        error = shared.refused(SEND_CONTROL) => Err(error),
    }
}

/// Sends no more messages, and waits until the peer has acknowledged all of them.
pub(crate) async fn finish(stream: &Mutex<SendStream>) {
    let mut stream = stream.lock().await;
    let _ = stream.finish(); // it fails if another call has ended the stream
    let _ = stream.stopped().await; // it fails if the connection has ended
}

/// The chunk streams of an update that the peer has not acknowledged. They are reset when the update is
/// cancelled, so that later data does not wait behind unwanted bytes.
#[derive(Default)]
struct Unacknowledged(VecDeque<SendStream>);

impl Unacknowledged {
    fn push(&mut self, stream: SendStream) {
        while self.0.front().is_some_and(|oldest| is_ready(oldest.stopped())) {
            self.0.pop_front();
        }
        self.0.push_back(stream);
    }

    fn reset(self) {
        for mut stream in self.0 {
            let _ = stream.reset(CANCELLED); // it fails if the peer has acknowledged all of it
        }
    }
}

fn is_ready(future: impl Future) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(pin!(future).poll(&mut context), Poll::Ready(_))
}

pub(crate) async fn update(
    shared: &Arc<LinkState>,
    turn: &Mutex<()>,
    update: &Outgoing,
) -> Result<SendReport> {
    if let Some(chunk) = update.chunks().iter().find(|c| c.range().len() > MAX_CHUNK.into()) {
        let context = format!("a chunk of {} bytes; one has at most {MAX_CHUNK}", chunk.range().len());
        return Err(Error::new(ErrorKind::Unsupported, SEND_UPDATE, context).hint("set a smaller chunk"));
    }
    shared.check(SEND_UPDATE)?;
    let started = Instant::now();
    let mut unacknowledged = Unacknowledged::default();
    let sending = async {
        for chunk in update.chunks() {
            let stream = send_chunk(shared, turn, update, chunk).await?;
            unacknowledged.push(stream);
        }
        Ok(())
    };
    let outcome = tokio::select! {
        biased;
        () = update.cancel().cancelled() => Err(SendReport::cancelled()),
        outcome = sending => outcome,
        error = shared.refused(SEND_UPDATE) => Err(error),
    };
    if let Err(error) = outcome {
        unacknowledged.reset();
        return Err(error);
    }
    let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
    let wire = payload + chunks * HEAD_BYTES as u64;
    Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
}

/// A chunk stream. If it is dropped before the whole chunk was written, it is reset.
struct Open<'a> {
    shared: &'a LinkState,
    stream: Option<SendStream>,
}

impl Open<'_> {
    /// Ends the stream after a whole chunk.
    fn finish(mut self) -> Option<SendStream> {
        let mut stream = self.stream.take();
        if let Some(stream) = &mut stream {
            let _ = stream.finish(); // it fails only on streams that have ended
        }
        self.shared.chunks.fetch_add(1, Ordering::AcqRel);
        stream
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(mut stream) = self.stream.take() {
            let _ = stream.reset(CANCELLED);
            self.shared.chunks.fetch_add(1, Ordering::AcqRel);
        }
    }
}

async fn send_chunk(
    shared: &LinkState,
    turn: &Mutex<()>,
    update: &Outgoing,
    chunk: &ChunkRef,
) -> Result<SendStream> {
    let _turn = turn.lock().await;
    let Some((header, payload)) = update.frame(chunk) else { return Err(SendReport::cancelled()) };
    // Copy the payload: quinn keeps the bytes until they are acknowledged, but the loan ends with this call.
    let (copy, made) = chunk.copy(&payload);
    drop(payload);
    let length = copy.len() as u64;
    shared.copied.fetch_add(PACKET_COPIES * length + if made { length } else { 0 }, Ordering::Relaxed);
    let stream = shared.connection.open_uni().await.map_err(|e| shared.lost(SEND_UPDATE, &e))?;
    // It fails only on streams that have ended.
    let _ = stream.set_priority(priority(shared.chunks.load(Ordering::Acquire)));
    let mark = shared.messages.load(Ordering::Acquire);
    let head = Bytes::copy_from_slice(&head(mark, &header.encode()));
    let mut open = Open { shared, stream: Some(stream) };
    if let Some(stream) = &mut open.stream {
        let mut parts = [head, Bytes::from_owner(Shared(copy))];
        stream.write_all_chunks(&mut parts).await.map_err(|e| failed(shared, SEND_UPDATE, e))?;
    }
    shared.sent.fetch_add(HEAD_BYTES as u64 + length, Ordering::Relaxed);
    open.finish().ok_or_else(SendReport::cancelled)
}

/// Priority of chunk stream number `index`, from 0: earlier streams first, and all after the stream of
/// messages.
///
/// quinn repeats the lost bytes of a stream after all waiting streams of its priority. With one priority for
/// all chunks, each chunk that lost a packet stayed incomplete until the end of the update. If the link broke
/// before that, all these chunks were sent again.
fn priority(index: u64) -> i32 {
    i32::try_from(index).map_or(i32::MIN, |index| -index)
}

/// The bytes of a copy that several links may share.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn failed(shared: &LinkState, operation: &'static str, error: WriteError) -> Error {
    match error {
        WriteError::ConnectionLost(error) => shared.lost(operation, &error),
        WriteError::Stopped(_) => {
            Error::closed(operation, format!("{} accepts nothing more on this link", shared.who))
        }
        WriteError::ClosedStream | WriteError::ZeroRttRejected => {
            shared.lost(operation, &ConnectionError::LocallyClosed)
        }
    }
}
