//! Updates as unary calls beside the stream: a client puts its update, and gets the server's by asking for it.
//!
//! Control messages keep to the stream. An update counts as sent when the other end has taken it: the server's answer
//! to a `Put` says so, and the client's next `Get`. So what is sent after it comes after it.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use thalweg_transport::{Error, ErrorKind, Outgoing, Result, SendReport};
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
    pub(crate) fn new(largest: usize) -> Self {
        let (outgoing, outbounds) = mpsc::channel(1);
        let (incoming, deliveries) = mpsc::channel(1);
        Self {
            largest,
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

/// Sends an update as one message; done when the other end has taken it.
pub(crate) async fn update(shared: &LinkState, unary: &Unary, update: &Outgoing) -> Result<SendReport> {
    let operation = "send update";
    let _turn = unary.turn.lock().await;
    shared.check(operation)?;
    let started = Instant::now();
    let message = seal(update, unary.largest)?;
    let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
    let mut wire = PREFIX + message.len() as u64;
    // Into the message and into gRPC's buffer, and under TLS into its.
    let copies = if shared.tls { 3 } else { 2 };
    let (taken, when_taken) = oneshot::channel();
    let stop = StopOnDrop(Stop::default());
    let outbound = Outbound { message, stop: stop.0.clone(), taken };
    let sent = async {
        unary.outgoing.send(outbound).await.map_err(|_| shared.closed(operation))?;
        shared.copied.fetch_add(copies * payload, Ordering::Relaxed);
        when_taken.await.map_err(|_| refused(shared))?
    };
    if let Some(chunk) = update.chunks().first() {
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
    Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
}

/// The other end has not taken a message, though the link is there.
pub(crate) fn refused(shared: &LinkState) -> Error {
    shared.check("send update").err().unwrap_or_else(|| {
        Error::new(ErrorKind::Unsupported, "send update", format!("{} did not take the update", shared.who))
            .mend("set transport.options.largest alike at both ends")
    })
}
