//! Updates as unary calls beside the stream: a client puts its update, and gets the server's by asking for it.
//!
//! In push mode an update is several calls of at most `piece` bytes, and each waits for the answer to the one before, as
//! FATE's transport (eggroll) sends it: one piece a round trip.
//!
//! Control messages keep to the stream. An update counts as sent when the other end has taken it: the server's answer
//! to a `Put` says so, and the client's next `Get`. So what is sent after it comes after it.

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

/// What gRPC puts before a message: a flag and the length.
const PREFIX: u64 = 5;
/// Share of what has come that counts as progress before the message is whole; the rest may be headers.
const PROGRESS: (u64, u64) = (7, 8);

/// A sealed update that waits for its call.
pub(crate) struct Outbound {
    pub message: Bytes,
    pub stop: Stop,
    /// Hears that the other end has taken it, or why not.
    pub taken: oneshot::Sender<Result<()>>,
}

/// An update that has come, whole, and has not been taken yet.
pub(crate) struct Delivery {
    pub parcel: Parcel,
    /// Hears that it has been taken; nobody listens if it is not wanted any more.
    pub taken: oneshot::Sender<()>,
}

/// What a link has for updates of one message each.
pub(crate) struct Unary {
    /// Most bytes of a message.
    pub largest: usize,
    /// Most bytes of an update in a call; `None` for all of it.
    piece: Option<u64>,
    /// One update at a time is sent, in the order of asking.
    turn: tokio::sync::Mutex<()>,
    outgoing: mpsc::Sender<Outbound>,
    /// Where calls take what is to be sent.
    pub outbounds: tokio::sync::Mutex<mpsc::Receiver<Outbound>>,
    /// One update at a time is taken in.
    pub putting: tokio::sync::Mutex<()>,
    incoming: mpsc::Sender<Delivery>,
    deliveries: Mutex<Option<mpsc::Receiver<Delivery>>>,
    arrived: watch::Sender<u64>,
    /// The update that a client has last been given, and has not said yet that it has it.
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

    /// So many more bytes of a message have come.
    pub(crate) fn arrived(&self, bytes: u64) {
        self.arrived.send_modify(|all| *all += bytes);
    }

    /// Hands an update to whoever receives; `Err` if it was not taken.
    pub(crate) async fn deliver(&self, parcel: Parcel) -> std::result::Result<(), ()> {
        let (taken, when_taken) = oneshot::channel();
        self.incoming.send(Delivery { parcel, taken }).await.map_err(drop)?;
        when_taken.await.map_err(drop)
    }

    /// What is received of it; once.
    pub(crate) fn arrivals(&self) -> Option<Arrivals> {
        let deliveries = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Arrivals { deliveries, arrived: self.arrived.subscribe(), seen: 0, ahead: 0, current: None })
    }
}

/// The receiving side.
pub(crate) struct Arrivals {
    deliveries: mpsc::Receiver<Delivery>,
    arrived: watch::Receiver<u64>,
    /// Bytes of messages seen.
    seen: u64,
    /// Bytes told as progress that no chunk has accounted for yet.
    ahead: u64,
    current: Option<Delivery>,
}

/// What there is to do about updates.
pub(crate) enum Arrival {
    /// So many more bytes have come.
    Progress(u64),
    /// A chunk of an update that is here.
    Chunk(thalweg_wire::FrameHeader, Bytes),
}

impl Arrivals {
    /// The next thing. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Arrival> {
        loop {
            if let Some(chunk) = self.chunk()? {
                return Ok(Arrival::Chunk(chunk.0, chunk.1));
            }
            tokio::select! {
                biased;
                // What a message brought was counted before the message was whole.
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
        let told = (all - self.seen) * PROGRESS.0 / PROGRESS.1;
        self.seen = all;
        self.ahead += told;
        told
    }

    fn chunk(&mut self) -> Result<Option<(thalweg_wire::FrameHeader, Bytes)>> {
        let Some(delivery) = &mut self.current else { return Ok(None) };
        if !delivery.taken.is_closed() {
            if let Some(chunk) = delivery.parcel.next()? {
                return Ok(Some(chunk));
            }
        }
        if let Some(Delivery { taken, .. }) = self.current.take() {
            let _ = taken.send(()); // it fails if nobody waits for it any more
        }
        Ok(None)
    }

    /// What of a chunk's bytes has not been told as progress.
    pub(crate) fn untold(&mut self, bytes: u64) -> u64 {
        let told = bytes.min(self.ahead);
        self.ahead -= told;
        bytes - told
    }
}

/// Ends a message on its way when its sender has lost interest.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Sends an update as one message, or as one a piece; done when the other end has taken the last.
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

/// Chunks in groups of at most `most` bytes, but of one chunk at least.
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

/// Sends chunks as one message, and returns its bytes when the other end has taken it.
async fn piece(shared: &LinkState, unary: &Unary, update: &Outgoing, is_first: bool) -> Result<u64> {
    let operation = "send update";
    let message = seal(update, unary.largest)?;
    let mut wire = PREFIX + message.len() as u64;
    // Into the message and into gRPC's buffer, and under TLS into its.
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

/// The other end has not taken a message, though the link is there.
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
