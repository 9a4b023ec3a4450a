//! Receiving: datagrams into the places the sink names, and control messages from a task that reads them.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_transport::{Error, ErrorKind, Link, Result, Sink, Target};
use thalweg_wire::{ChunkHeader, FrameHeader, WireError};
use tokio::sync::mpsc;

use crate::datagram::{Datagram, Kind, CHUNK_HEADER_BYTES};
use crate::shared::Shared;
use crate::socket::{Buffer, Lane};
use crate::window::cost;

const RECEIVE: &str = "receive";
/// Receives that a control message waits for at most: several times what a receive buffer holds.
const BEFORE_CONTROL: usize = 256;
/// Receives before other tasks have their turn.
const AT_ONCE: usize = 4;

/// One direction's receiving side.
pub(crate) struct Intake {
    lane: Lane,
    buffer: Buffer,
    control: mpsc::Receiver<Result<Bytes>>,
    /// The greatest position that has come, and what has come in all, by cost.
    seen: u64,
    received: u64,
}

impl Intake {
    pub(crate) fn new(lane: Lane, control: mpsc::Receiver<Result<Bytes>>) -> Self {
        Self { lane, buffer: Buffer::new(), control, seen: 0, received: 0 }
    }

    /// The next control message; chunks go to `sink` meanwhile.
    pub(crate) async fn next(&mut self, sink: &dyn Sink, shared: &Shared) -> Result<Bytes> {
        loop {
            let next = tokio::select! {
                biased;
                error = shared.refused(RECEIVE) => return Err(error),
                next = self.control.recv() => Some(next),
                // An error is an ICMP message's, and the next call shows it.
                _ = self.lane.readable() => None,
            };
            match next {
                None => self.take(sink, shared, AT_ONCE)?,
                Some(next) => {
                    // What was sent before the message comes before it, as far as it is here.
                    self.take(sink, shared, BEFORE_CONTROL)?;
                    return next.unwrap_or_else(|| Err(Error::closed(RECEIVE, "the link has ended")));
                }
            };
            tokio::task::yield_now().await;
        }
    }

    /// Takes what the kernel holds for us, in at most `most` receives.
    fn take(&mut self, sink: &dyn Sink, shared: &Shared, most: usize) -> Result<()> {
        for _ in 0..most {
            match self.lane.receive(&mut self.buffer) {
                Ok(()) => self.sort(sink, shared)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => {} // an ICMP message's; the datagrams behind it are still there
            }
        }
        Ok(())
    }

    fn sort(&mut self, sink: &dyn Sink, shared: &Shared) -> Result<()> {
        let (mut bytes, mut report, mut payload) = (0, false, 0);
        for datagram in self.buffer.datagrams() {
            let Some(found) = Datagram::decode(&self.lane.key, datagram) else { continue };
            bytes += datagram.len();
            report |= found.report_wanted;
            if let Kind::Chunk(header) = found.kind {
                payload += header.length();
                self.received = self.received.saturating_add(cost(datagram.len()));
            }
            if matches!(found.kind, Kind::Chunk(_) | Kind::Probe) {
                self.seen = self.seen.max(found.position);
            }
        }
        shared.received.fetch_add(bytes as u64, Relaxed);
        if payload > 0 {
            sink.progress(payload as u64);
        }
        for datagram in self.buffer.datagrams() {
            if let Some(Datagram { kind: Kind::Chunk(header), .. }) =
                Datagram::decode(&self.lane.key, datagram)
            {
                store(&header, &datagram[CHUNK_HEADER_BYTES..], sink, shared)?;
            }
        }
        if report {
            // What cannot be told now is asked for again.
            let report =
                Datagram { kind: Kind::Report(self.received), report_wanted: false, position: self.seen };
            shared.sent.fetch_add(self.lane.tell(&report) as u64, Relaxed);
        }
        Ok(())
    }
}

/// Copies a chunk into its place, once.
fn store(header: &FrameHeader, payload: &[u8], sink: &dyn Sink, shared: &Shared) -> Result<()> {
    let Some(mut target) = sink.place(&header.chunk) else { return Ok(()) };
    let place = target.bytes_mut();
    if place.len() != payload.len() {
        let context = format!("a place of {} bytes for {}", place.len(), payload.len());
        return Err(Error::new(ErrorKind::System, RECEIVE, context));
    }
    place.copy_from_slice(payload);
    shared.copied.fetch_add(payload.len() as u64, Relaxed);
    let outcome = header.verify(target.bytes());
    sink.stored(&header.chunk, target, outcome);
    Ok(())
}

/// Passes control messages on until the link ends, which is noticed here whoever waits for it.
pub(crate) async fn pass_on(inner: Arc<dyn Link>, shared: Arc<Shared>, to: mpsc::Sender<Result<Bytes>>) {
    loop {
        let next = inner.receive(&Nowhere).await;
        if let Err(error) = &next {
            match error.kind() {
                ErrorKind::Closed => shared.ended_by_peer(&error.to_string()),
                _ => shared.ended_by_peer(&format!("the control connection broke: {error}")),
            }
        }
        let ended = next.is_err();
        if to.send(next).await.is_err() || ended {
            return;
        }
    }
}

/// Chunks do not come on the control connection.
struct Nowhere;

impl Sink for Nowhere {
    fn place(&self, _: &ChunkHeader) -> Option<Target> {
        None
    }
    fn progress(&self, _: u64) {}
    fn stored(&self, _: &ChunkHeader, _: Target, _: std::result::Result<(), WireError>) {}
}
