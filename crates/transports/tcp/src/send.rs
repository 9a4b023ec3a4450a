//! Sends frames, one at a time on each connection.

use std::future::Future;
use std::io::IoSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;
use thalweg_transport::{Cancel, Error, ErrorKind, Outgoing, Result, SendReport};
use thalweg_wire::{FrameHeader, HEADER_BYTES, MAX_CHUNK, MAX_CONTROL};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::link::LinkState;
use crate::marks::Marks;

pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;
/// The sending side of a connection. The lock is fair and is held for one frame, so a control message waits
/// for the chunk that is being sent and not for the whole update.
pub(crate) type Lane = Arc<Mutex<Writer>>;

/// A frame that is being written. If it is dropped half-written, the link breaks, because the peer could not
/// tell where the next frame begins.
struct Frame<'a> {
    shared: &'a Arc<LinkState>,
    /// Index of the connection in the link.
    stream: usize,
    writer: Option<OwnedMutexGuard<Writer>>,
    /// The header, with the marks before it.
    header: Vec<u8>,
    payload: Bytes,
    /// Number of bytes of header and payload that the kernel or TLS has accepted.
    taken: usize,
    /// Whether the frame is a chunk, whose copies are counted.
    chunk: bool,
    /// Whether dropping the frame is harmless now.
    done: bool,
}

impl Frame<'_> {
    fn total(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Writes the rest of the frame. Fails when the peer hangs up.
    async fn write(&mut self) -> std::io::Result<()> {
        let (shared, stream) = (self.shared, self.stream);
        until_hung_up(shared, stream, self.write_left()).await
    }

    /// Writes the rest of header and payload. Dropping the future loses nothing: `taken` says how far it
    /// came.
    async fn write_left(&mut self) -> std::io::Result<()> {
        let (total, Some(writer)) = (self.total(), self.writer.as_mut()) else { return Ok(()) };
        while self.taken < total {
            let header = self.header.get(self.taken..).unwrap_or_default();
            let payload = &self.payload[self.taken.saturating_sub(self.header.len())..];
            let wrote = match header {
                [] => writer.write(payload).await?,
                header => writer.write_vectored(&[IoSlice::new(header), IoSlice::new(payload)]).await?,
            };
            if wrote == 0 {
                return Err(std::io::ErrorKind::WriteZero.into());
            }
            self.taken += wrote;
            self.shared.sent.fetch_add(wrote as u64, Ordering::Relaxed);
        }
        writer.flush().await
    }

    fn finish(mut self, operation: &'static str, outcome: std::io::Result<()>) -> Result<()> {
        self.done = true;
        if outcome.is_ok() {
            self.shared.count(self.stream, self.total());
        }
        if self.chunk {
            self.shared.copied.fetch_add(self.shared.copies * self.payload.len() as u64, Ordering::Relaxed);
        }
        outcome.map_err(|e| self.shared.broke(operation, &e))
    }

    /// Releases the payload at once. A copy of the frame's rest is sent in a task of its own.
    fn abandon(mut self) {
        self.done = true;
        let Some(mut writer) = self.writer.take().filter(|_| self.taken > 0) else { return };
        let mut rest = self.header.get(self.taken..).unwrap_or_default().to_vec();
        let payload = &self.payload[self.taken.saturating_sub(self.header.len())..];
        rest.extend_from_slice(payload);
        let copied = self.shared.copies * self.payload.len() as u64 + payload.len() as u64;
        self.shared.copied.fetch_add(copied, Ordering::Relaxed);
        let (shared, stream, total) = (self.shared.clone(), self.stream, self.total());
        tokio::spawn(async move {
            let written = async {
                writer.write_all(&rest).await?;
                writer.flush().await
            };
            let outcome = until_hung_up(&shared, stream, written).await;
            match outcome {
                Ok(()) => {
                    shared.sent.fetch_add(rest.len() as u64, Ordering::Relaxed);
                    shared.count(stream, total);
                }
                Err(error) => _ = shared.broke("send update", &error),
            }
        });
    }
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        if !self.done && self.taken > 0 {
            self.shared.end("a send was dropped in the middle of a frame");
        }
    }
}

/// Returns the result of `written`, or an error once the peer has ended the connection.
async fn until_hung_up(
    shared: &LinkState,
    stream: usize,
    written: impl Future<Output = std::io::Result<()>>,
) -> std::io::Result<()> {
    tokio::select! {
        biased;
        outcome = written => outcome,
        () = shared.hung_up(stream) => Err(std::io::ErrorKind::ConnectionReset.into()),
    }
}

/// Waits until the connection `stream` is free, and begins the next frame on it.
async fn begin<'a>(
    shared: &'a Arc<LinkState>,
    lanes: &[Lane],
    stream: usize,
    operation: &'static str,
) -> Result<Frame<'a>> {
    let writer = Some(lanes[stream].clone().lock_owned().await);
    shared.check(operation)?;
    let (header, payload) = (Vec::new(), Bytes::new());
    Ok(Frame { shared, stream, writer, header, payload, taken: 0, chunk: false, done: false })
}

/// Sends one control message.
pub(crate) async fn control(shared: &Arc<LinkState>, lanes: &[Lane], message: Bytes) -> Result<()> {
    let operation = "send control";
    if message.len() > MAX_CONTROL as usize {
        let context = format!("{} bytes; a control message has at most {MAX_CONTROL}", message.len());
        return Err(Error::new(ErrorKind::Unsupported, operation, context).hint("send fewer metrics"));
    }
    let mut frame = begin(shared, lanes, 0, operation).await?;
    frame.header = shared.marks.as_ref().map(Marks::encode).unwrap_or_default();
    frame.header.extend(FrameHeader::control(&message).encode());
    frame.payload = message;
    let outcome = frame.write().await;
    frame.finish(operation, outcome)
}

/// Sends the chunks of an update, each on the connection that becomes free first.
pub(crate) async fn update(shared: &Arc<LinkState>, lanes: &[Lane], update: &Outgoing) -> Result<SendReport> {
    if let Some(chunk) = update.chunks().iter().find(|c| c.range().len() > MAX_CHUNK.into()) {
        let context = format!("a chunk of {} bytes; one has at most {MAX_CHUNK}", chunk.range().len());
        return Err(Error::new(ErrorKind::Unsupported, "send update", context).hint("set a smaller chunk"));
    }
    shared.check("send update")?;
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    // Wait until all of them have ended: dropping one in the middle of a frame would break the link.
    let carriers = shared.first_lane()..lanes.len();
    let ends = join_all(carriers.map(|stream| stripe(shared, lanes, stream, update, &next))).await;
    ends.into_iter().collect::<Result<()>>()?;
    let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
    let wire = payload + chunks * HEADER_BYTES as u64;
    Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
}

async fn stripe(
    shared: &Arc<LinkState>,
    lanes: &[Lane],
    stream: usize,
    update: &Outgoing,
    next: &AtomicUsize,
) -> Result<()> {
    while next.load(Ordering::Relaxed) < update.chunks().len() {
        let mut frame = tokio::select! {
            biased;
            () = update.cancel().cancelled() => return Err(SendReport::cancelled()),
            frame = begin(shared, lanes, stream, "send update") => frame?,
        };
        let Some(chunk) = update.chunks().get(next.fetch_add(1, Ordering::Relaxed)) else { break };
        frame.chunk = true;
        let (header, payload) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
        (frame.header, frame.payload) = (header.encode().into(), payload);
        match until_cancelled(&mut frame, update.cancel()).await {
            Some(outcome) => frame.finish("send update", outcome)?,
            None => {
                frame.abandon();
                return Err(SendReport::cancelled());
            }
        }
    }
    Ok(())
}

/// Writes the frame. `None` if the update was cancelled first. The cancel is polled only when the socket does
/// not accept more bytes.
async fn until_cancelled(frame: &mut Frame<'_>, cancel: &Cancel) -> Option<std::io::Result<()>> {
    tokio::select! {
        biased;
        outcome = frame.write() => Some(outcome),
        () = cancel.cancelled() => None,
    }
}
