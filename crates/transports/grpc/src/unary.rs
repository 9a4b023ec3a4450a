//! Updates as unary calls beside the stream. A client sends an update with `Put`, and gets one from the
//! server with `Get`.
//!
//! In push mode an update is several calls of at most `piece` bytes. Each call waits for the answer to the
//! one before, so one piece is sent in a round trip, as in FATE's transport (eggroll).
//!
//! Control messages stay in the stream. An update counts as sent when the other end has taken it. The server
//! reports this with its answer to a `Put`, the client with its next `Get`. So messages that are sent after
//! an update arrive after it.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use thalweg_transport::{ChunkRef, Error, ErrorKind, Outgoing, Result, SendReport};
use tokio::sync::{mpsc, oneshot, watch};

use crate::body::Stop;
use crate::frame;
use crate::parcel::{seal, Parcel};
use crate::send::hand_over;
use crate::shared::LinkState;

/// Bytes that gRPC puts before a message: a flag and the length.
const PREFIX: u64 = 5;
/// Fraction of the arrived bytes that is reported as progress before the message is complete. The rest may be
/// headers.
const EARLY_PROGRESS: (u64, u64) = (7, 8);

/// An encoded update that waits for its call.
pub(crate) struct Outbound {
    pub message: Bytes,
    pub stop: Stop,
    /// Gets the result: the other end has taken the update, or the reason why not.
    pub taken: oneshot::Sender<Result<()>>,
}

/// An update that has arrived completely and is not taken yet.
pub(crate) struct Delivery {
    pub parcel: Parcel,
    /// Notified when the update has been taken. If the receiver was dropped, the update is not wanted any
    /// more.
    pub taken: oneshot::Sender<()>,
}

/// The state of a link in unary and in push mode.
pub(crate) struct Unary {
    /// Maximum number of bytes of one message.
    pub largest: usize,
    /// Maximum number of payload bytes of an update in one call; `None` for the whole update.
    piece: Option<u64>,
    /// Held while an update is sent: one at a time, in the order of the calls.
    turn: tokio::sync::Mutex<()>,
    /// Passes the updates to be sent to the calls.
    outgoing: mpsc::Sender<Outbound>,
    /// The updates that wait to be sent. The calls take them from here.
    pub outbounds: tokio::sync::Mutex<mpsc::Receiver<Outbound>>,
    /// Held while the server takes in an update: one at a time.
    pub putting: tokio::sync::Mutex<()>,
    /// Passes updates that have arrived to the receiving side.
    incoming: mpsc::Sender<Delivery>,
    /// The other end of `incoming`, until the receiving side takes it.
    deliveries: Mutex<Option<mpsc::Receiver<Delivery>>>,
    /// Bytes of messages that have arrived so far.
    arrived: watch::Sender<u64>,
    /// Notifies the sender of the update that the server gave last. It is here until the client says whether
    /// it has taken that update.
    pub given: Mutex<Option<oneshot::Sender<Result<()>>>>,
}

impl Unary {
    pub(crate) fn new(largest: usize, piece: Option<u64>) -> Self {
        let (outgoing, outbounds) = mpsc::channel(1);
        let (incoming, deliveries) = mpsc::channel(1);
        Self {
            largest,
            piece,
            turn: tokio::sync::Mutex::default(),
            outgoing,
            outbounds: tokio::sync::Mutex::new(outbounds),
            putting: tokio::sync::Mutex::default(),
            incoming,
            deliveries: Mutex::new(Some(deliveries)),
            arrived: watch::Sender::new(0),
            given: Mutex::default(),
        }
    }

    /// Counts bytes of a message that have arrived.
    pub(crate) fn arrived(&self, bytes: u64) {
        self.arrived.send_modify(|all| *all += bytes);
    }

    /// Gives an update to the receiving side, and waits until it is taken. `Err` if it was not taken.
    pub(crate) async fn deliver(&self, parcel: Parcel) -> std::result::Result<(), ()> {
        let (taken, when_taken) = oneshot::channel();
        self.incoming.send(Delivery { parcel, taken }).await.map_err(drop)?;
        when_taken.await.map_err(drop)
    }

    /// Returns the receiving side on the first call, and `None` after that.
    pub(crate) fn arrivals(&self) -> Option<Arrivals> {
        let deliveries = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Arrivals { deliveries, arrived: self.arrived.subscribe(), seen: 0, ahead: 0, current: None })
    }
}

/// The receiving side of unary calls.
pub(crate) struct Arrivals {
    deliveries: mpsc::Receiver<Delivery>,
    arrived: watch::Receiver<u64>,
    /// Bytes of messages that were counted so far.
    seen: u64,
    /// Bytes that were reported as progress but do not belong to a delivered chunk yet.
    ahead: u64,
    /// The update whose chunks are being delivered.
    current: Option<Delivery>,
}

/// Something that has arrived by unary calls.
pub(crate) enum Arrival {
    /// This many more bytes have arrived.
    Progress(u64),
    /// A chunk of an update that has arrived.
    Chunk(thalweg_wire::FrameHeader, Bytes),
}

impl Arrivals {
    /// Waits for the next arrival. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Arrival> {
        loop {
            if let Some(chunk) = self.chunk()? {
                return Ok(Arrival::Chunk(chunk.0, chunk.1));
            }
            tokio::select! {
                biased;
                // The bytes of a message were counted before the message was complete, so report them first.
                changed = self.arrived.changed() => {
                    if changed.is_ok() {
                        return Ok(Arrival::Progress(self.fresh()));
                    }
                }
                Some(delivery) = self.deliveries.recv() => self.current = Some(delivery),
            }
        }
    }

    fn fresh(&mut self) -> u64 {
        let all = *self.arrived.borrow_and_update();
        let reported = (all - self.seen) * EARLY_PROGRESS.0 / EARLY_PROGRESS.1;
        self.seen = all;
        self.ahead += reported;
        reported
    }

    fn chunk(&mut self) -> Result<Option<(thalweg_wire::FrameHeader, Bytes)>> {
        let Some(delivery) = &mut self.current else { return Ok(None) };
        if !delivery.taken.is_closed() {
            if let Some(chunk) = delivery.parcel.next()? {
                return Ok(Some(chunk));
            }
        }
        if let Some(Delivery { taken, .. }) = self.current.take() {
            let _ = taken.send(()); // fails if the sender no longer waits
        }
        Ok(None)
    }

    /// Returns how many of a chunk's `bytes` were not reported as progress yet, and counts the others as
    /// used.
    pub(crate) fn unreported(&mut self, bytes: u64) -> u64 {
        let reported = bytes.min(self.ahead);
        self.ahead -= reported;
        bytes - reported
    }
}

/// Stops the sending of a message when its sender is dropped.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Sends an update as one message, or as one message for each piece. Returns when the other end has taken the
/// last one.
pub(crate) async fn update(shared: &LinkState, unary: &Unary, update: &Outgoing) -> Result<SendReport> {
    let _turn = unary.turn.lock().await;
    shared.check("send update")?;
    let (started, mut wire) = (Instant::now(), 0);
    for (at, chunks) in pieces(update.chunks(), unary.piece).enumerate() {
        wire += piece(shared, unary, &update.with_chunks(chunks.iter().cloned()), at == 0).await?;
    }
    let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
    Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
}

/// Groups chunks so that a group has at most `most` bytes, but at least one chunk.
fn pieces(chunks: &[ChunkRef], most: Option<u64>) -> impl Iterator<Item = &[ChunkRef]> {
    let mut rest = chunks;
    std::iter::from_fn(move || {
        let (mut bytes, mut count) = (0, 0);
        while let Some(chunk) = rest.get(count) {
            bytes += chunk.range().len();
            if count > 0 && most.is_some_and(|most| bytes > most) {
                break;
            }
            count += 1;
        }
        let (piece, behind) = rest.split_at(count);
        rest = behind;
        (count > 0).then_some(piece)
    })
}

/// Sends chunks as one message. When the other end has taken the message, returns its bytes on the wire.
async fn piece(shared: &LinkState, unary: &Unary, update: &Outgoing, is_first: bool) -> Result<u64> {
    let operation = "send update";
    let message = seal(update, unary.largest)?;
    let mut wire = PREFIX + message.len() as u64;
    // Each payload is copied into the message, into gRPC's buffer, and under TLS into TLS's buffer.
    let copies = if shared.tls { 3 } else { 2 };
    let (taken, when_taken) = oneshot::channel();
    let stop = StopOnDrop(Stop::default());
    let outbound = Outbound { message, stop: stop.0.clone(), taken };
    let sent = async {
        unary.outgoing.send(outbound).await.map_err(|_| shared.closed(operation))?;
        shared.copied.fetch_add(copies * update.payload_bytes(), Ordering::Relaxed);
        when_taken.await.map_err(|_| refused(shared))?
    };
    if let Some(chunk) = update.chunks().first().filter(|_| is_first) {
        let (header, _) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
        let begins = frame::begins(&header);
        wire += begins.wire_bytes();
        hand_over(shared, operation, || Ok([begins].into())).await?;
    }
    tokio::select! {
        biased;
        outcome = sent => outcome?,
        () = shared.ended() => return Err(shared.closed(operation)),
    }
    Ok(wire)
}

/// The error for a message that the other end has not taken although the link is alive.
pub(crate) fn refused(shared: &LinkState) -> Error {
    shared.check("send update").err().unwrap_or_else(|| {
        Error::new(ErrorKind::Unsupported, "send update", format!("{} did not take the update", shared.who))
            .hint("set transport.options.largest alike at both ends")
    })
}

#[cfg(test)]
mod tests {
    use thalweg_transport::{Cancel, UpdateId};
    use thalweg_wire::{LayoutHash, Ranges};

    use super::*;

    fn cut(bytes: u64, chunk: u32, most: Option<u64>) -> Vec<Vec<u64>> {
        let id = UpdateId { job: 1, round: 2, sender: 3, layout: LayoutHash(4) };
        let body = Bytes::from(vec![7; usize::try_from(bytes).unwrap_or_default()]);
        let update = Outgoing::new(id, body, &Ranges::full(bytes), chunk, Cancel::default());
        pieces(update.chunks(), most).map(|piece| piece.iter().map(|c| c.range().len()).collect()).collect()
    }

    #[test]
    fn pieces_have_whole_chunks_and_at_least_one() {
        assert_eq!(cut(320, 64, Some(128)), [vec![64, 64], vec![64, 64], vec![64]]);
        assert_eq!(cut(256, 128, Some(64)), [[128], [128]]);
        assert_eq!(cut(256, 64, Some(200)), [vec![64, 64, 64], vec![64]]);
        assert_eq!(cut(256, 128, None), [[128, 128]]);
        assert!(cut(0, 64, Some(64)).is_empty());
    }
}
