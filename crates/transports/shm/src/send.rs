//! Sends control messages as bytes, and chunks as notes that say where they lie.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use thalweg_transport::{Error, ErrorKind, Outgoing, Result, SendReport};
use thalweg_wire::{MAX_CHUNK, MAX_CONTROL};

use crate::frame::{self, Kind};
use crate::link::Shared;

const CONTROL: &str = "send control";
const UPDATE: &str = "send update";

/// Frames that wait to be written. If a sender is dropped, its frames stay here and are written with the next
/// ones, so that a frame is never cut.
#[derive(Default)]
pub(crate) struct Writer(VecDeque<Frame>);

struct Frame {
    parts: [Bytes; 2],
    descriptor: Option<OwnedFd>,
    /// Number of bytes already written.
    written: usize,
}

impl Writer {
    fn add(&mut self, head: impl Into<Bytes>, body: Bytes, descriptor: Option<OwnedFd>) {
        self.0.push_back(Frame { parts: [head.into(), body], descriptor, written: 0 });
    }

    async fn write(&mut self, shared: &Shared) -> std::io::Result<()> {
        while let Some(frame) = self.0.front_mut() {
            let [head, body] = &frame.parts;
            let parts =
                [&head[frame.written.min(head.len())..], &body[frame.written.saturating_sub(head.len())..]];
            let descriptor = frame.descriptor.as_ref().filter(|_| frame.written == 0);
            let sent = shared.socket.send(&parts, descriptor.map(AsFd::as_fd)).await?;
            frame.written += sent;
            shared.sent.fetch_add(sent as u64, Ordering::Relaxed);
            if frame.written == head.len() + body.len() {
                self.0.pop_front();
            }
        }
        Ok(())
    }

    /// Writes all frames. An error if the link ends before.
    async fn flush(&mut self, shared: &Shared, operation: &'static str) -> Result<()> {
        let written = tokio::select! {
            biased;
            error = shared.ended(operation) => return Err(error),
            written = self.write(shared) => written,
        };
        written.map_err(|error| {
            shared.end(&format!("the link broke: {error}"));
            shared.closed(operation)
        })
    }
}

/// Sends one control message.
pub(crate) async fn control(shared: &Shared, message: Bytes) -> Result<()> {
    if message.len() > MAX_CONTROL as usize {
        let context = format!("{} bytes; a control message has at most {MAX_CONTROL}", message.len());
        return Err(Error::new(ErrorKind::Unsupported, CONTROL, context).hint("send fewer metrics"));
    }
    let mut writer = shared.writer.lock().await;
    shared.check(CONTROL)?;
    writer.add(frame::head(Kind::Control, message.len()).to_vec(), message, None);
    writer.flush(shared, CONTROL).await
}

/// One call of `send_update`. When it is dropped, its chunks are revoked, so the peer takes none of them
/// afterwards.
struct Call<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.shared.lending.revoke(self.number);
        // Wake the task that writes the call's remaining notes.
        self.shared.tell.notify_one();
    }
}

/// Lends the chunks of an update to the peer, in order, and waits until the peer is done with all of them.
pub(crate) async fn update(shared: &Arc<Shared>, update: &Outgoing) -> Result<SendReport> {
    if let Some(chunk) = update.chunks().iter().find(|c| c.range().len() > MAX_CHUNK.into()) {
        let context = format!("a chunk of {} bytes; one has at most {MAX_CHUNK}", chunk.range().len());
        return Err(Error::new(ErrorKind::Unsupported, UPDATE, context).hint("set a smaller chunk"));
    }
    shared.check(UPDATE)?;
    let started = Instant::now();
    let call = Call { shared, number: shared.calls.fetch_add(1, Ordering::Relaxed) };
    let all = async {
        let mut wire = 0;
        for chunk in 0..update.chunks().len() {
            wire += lend(shared, call.number, update, chunk).await?;
        }
        let mut returned = shared.returned.subscribe();
        while shared.lending.left(call.number) > 0 {
            // This fails only if the `watch` sender was dropped, and `shared` holds it.
            let _ = returned.changed().await;
        }
        // All loans end with the link, so an ended link is an error here.
        shared.check(UPDATE)?;
        Ok::<u64, Error>(wire)
    };
    let wire = tokio::select! {
        biased;
        () = update.cancel().cancelled() => return Err(SendReport::cancelled()),
        error = shared.ended(UPDATE) => return Err(error),
        all = all => all?,
    };
    let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
    Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
}

/// Sends the note of one chunk to the peer. Returns the number of bytes that it counts for on the link.
async fn lend(shared: &Shared, call: u64, update: &Outgoing, chunk: usize) -> Result<u64> {
    let closed = |_| shared.closed(UPDATE);
    let room = shared.window.acquire().await.map_err(closed)?;
    let mut writer = shared.writer.lock().await;
    let noted = shared.lending.lend(call, update, chunk).inspect_err(|error| {
        shared.end(&error.to_string()); // its frames are lost, and the peer would miss them
    })?;
    let noted = noted.ok_or_else(SendReport::cancelled)?;
    room.forget(); // the peer gives it back when it is done with the chunk
    shared.copied.fetch_add(noted.copied, Ordering::Relaxed);
    // Count before the peer can take the chunk. When the peer's answer arrives, the chunk is in the counters.
    let mut wire = noted.length;
    shared.sent.fetch_add(wire, Ordering::Relaxed);
    for (bytes, descriptor) in noted.frames {
        wire += bytes.len() as u64;
        writer.add(bytes, Bytes::new(), descriptor);
    }
    writer.flush(shared, UPDATE).await?;
    Ok(wire)
}

/// Acknowledges the peer's chunks that this end is done with, as long as the link lives.
pub(crate) async fn tell(shared: Arc<Shared>) {
    loop {
        shared.tell.notified().await;
        let mut writer = shared.writer.lock().await;
        let count = shared.done.swap(0, Ordering::AcqRel);
        if count > 0 {
            shared.noted.fetch_sub(count, Ordering::AcqRel);
            writer.add(frame::taken(count), Bytes::new(), None);
        }
        if writer.flush(&shared, UPDATE).await.is_err() {
            return;
        }
    }
}
