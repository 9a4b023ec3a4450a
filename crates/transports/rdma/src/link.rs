//! [`RdmaLink`], a link that moves its chunks by RDMA: the implementation of the transport contract.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_arena::{Arena, Claim};
use thalweg_rdma_proto::{Config, Cut};
use thalweg_transport::{
    Capabilities, ChunkRef, Counters, Error, ErrorKind, Link, Outgoing as Update, Peer, Result, SendReport,
    Sink, Transport,
};
use thalweg_verbs::Device;
use thalweg_wire::{ChunkHeader, MAX_CHUNK};
use tokio::sync::{mpsc, Mutex};

#[cfg(feature = "baselines")]
use crate::assembling::Assembling;
use crate::delivery::Delivery;
use crate::extent::{Extent, Part, MOST_CHUNKS};
use crate::hello::Pairs;
use crate::incoming::Incoming;
use crate::lending::Lending;
use crate::outbox::Outbox;
use crate::outgoing::Outgoing;
use crate::pool::Pool;
#[cfg(feature = "baselines")]
use crate::printed::Printed;
use crate::reading::Reading;
use crate::settings::{Choices, Style};
use crate::shared::{drive, pull, read, write, Shared};
use crate::sides::{Came, Offered, Receives, Sends};
use crate::tracker::Tracker;
use crate::words::{Word, RECORD};
use crate::Rdma;

/// Maximum number of control messages that are queued before `receive` is called for them.
const UNREAD: usize = 8;
const SEND: &str = "send update";
const RECEIVE: &str = "receive";

pub(crate) struct RdmaLink {
    shared: Arc<Shared>,
    device: Arc<dyn Device>,
    pool: Arc<Pool>,
    inbox: Mutex<Inbox>,
    /// Held while an extent's parts are offered, so that parts of two extents never mix.
    offering: Mutex<()>,
    /// Whether an extent is one part.
    whole: bool,
    /// Whether an extent's bytes leave from the last to the first.
    backwards: bool,
    /// Payload bytes of the longest packet on the path.
    mtu: u32,
    /// Number of pairs of each direction.
    pairs: usize,
}

/// The pair of a mode that has one in each direction.
fn only<T>(pairs: Vec<T>) -> Result<T> {
    let none = || Error::new(ErrorKind::System, "connect", "a link without a pair");
    pairs.into_iter().next().ok_or_else(none)
}

/// The queue of received control messages.
struct Inbox {
    messages: mpsc::Receiver<Bytes>,
    /// The next message. It is held back while chunks that were sent before it are still on their way.
    held: Option<Bytes>,
    /// The part that is being delivered.
    delivery: Option<Delivery>,
}

impl Inbox {
    /// The next message, if there is one.
    fn next(&mut self, context: &mut Context<'_>) -> Option<Bytes> {
        self.held.take().or_else(|| match self.messages.poll_recv(context) {
            Poll::Ready(message) => message,
            Poll::Pending => None,
        })
    }
}

/// What `receive` handles next.
enum Next {
    Control(Bytes),
    Offer(u64, Part),
    Came(Came),
    /// The next chunk of the part that is being delivered.
    Chunk(Delivery),
}

impl RdmaLink {
    /// # Errors
    /// [`ErrorKind::System`] if no memory is left, or no more may be registered.
    pub(crate) fn new(
        inner: Arc<dyn Link>,
        pairs: Pairs,
        choices: &Choices,
        has_admission_queue: bool,
    ) -> Result<Self> {
        let Choices { mover: config, style, whole, .. } = *choices;
        let Pairs { device, outgoing, incoming, pulls, theirs, mtu } = pairs;
        let count = outgoing.len();
        let config = Config { longest: config.longest.min(device.limits().message), ..config };
        let pool = Arc::new(Pool::new(device.clone()));
        let (outbox, to_send) = Outbox::new();
        let sent = Arc::default();
        let (known, place, counted) = (device.clone(), pool.clone(), Arc::clone(&sent));
        let sends: Box<dyn Sends> = if pulls {
            Box::new(Lending::new(known, place, only(outgoing)?.0, counted))
        } else {
            Box::new(Outgoing::new(known, place, outgoing, (config, style), counted)?)
        };
        let (known, place) = (device.clone(), pool.clone());
        let drives = pulls || theirs == Style::Printed;
        let receives: Box<dyn Receives> = match theirs {
            _ if pulls => Box::new(Reading::new(known, place, only(incoming)?.0, config)),
            #[cfg(feature = "baselines")]
            Style::Slot => Box::new(Assembling::new(known, place, only(incoming)?)),
            #[cfg(feature = "baselines")]
            Style::Printed => Box::new(Printed::new(known, place, only(incoming)?)),
            #[cfg(not(feature = "baselines"))]
            Style::Slot | Style::Printed => return Err(Error::no_baselines("connect", "the peer's mode")),
            Style::Writes | Style::Pull => Box::new(Incoming::new(known, place, incoming)),
        };
        let shared =
            Arc::new(Shared::new(inner, outbox, (sends, receives, pulls), sent, !has_admission_queue));
        let (pass, messages) = mpsc::channel(UNREAD);
        tokio::spawn(read(shared.clone(), pass));
        tokio::spawn(write(shared.clone(), to_send));
        tokio::spawn(drive(shared.clone()));
        if drives {
            tokio::spawn(pull(shared.clone()));
        }
        let inbox = Mutex::new(Inbox { messages, held: None, delivery: None });
        let (offering, whole) = (Mutex::new(()), whole && !pulls);
        let backwards = matches!(config.cut, Cut::Fixed { .. });
        Ok(Self { shared, device, pool, inbox, offering, whole, backwards, mtu, pairs: count })
    }

    /// Waits until the sending side has room, and offers the next part of an extent. With `extent`, it is the
    /// first one.
    async fn offer(&self, extent: Option<Extent>, part: Offered, tracker: &Arc<Tracker>) -> Result<()> {
        loop {
            let room = self.shared.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            self.shared.check(SEND)?;
            {
                let mut outgoing = self.shared.outgoing();
                if outgoing.has_room(part.bytes.len() as u64, part.staged.is_some()) {
                    let offered = outgoing.offer(extent, part, tracker, &self.shared.outbox);
                    drop(outgoing);
                    return offered.inspect_err(|error| self.shared.end(error.clone()));
                }
            }
            room.await;
        }
    }

    /// Copies bytes into registered memory.
    fn copy(&self, bytes: &[u8]) -> Result<(Bytes, Arena)> {
        let arena = self.pool.take(bytes.len())?;
        let range = thalweg_wire::Range::new(0, bytes.len() as u64);
        let busy = |error: thalweg_arena::ArenaError| Error::new(ErrorKind::System, SEND, error.to_string());
        arena.claim(range).map_err(busy)?.copy_from_slice(bytes);
        self.shared.copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok((arena.lend(range).map_err(busy)?, arena))
    }

    /// Offers these chunks of an update, which are contiguous in memory. Chunks outside registered memory are
    /// copied one by one, so each is an extent of its own then.
    async fn offer_run(
        &self,
        update: &Update,
        run: std::ops::Range<usize>,
        tracker: &Arc<Tracker>,
    ) -> Result<()> {
        let known = |arena: &Arena| self.device.register(arena).is_ok();
        let (first, bytes) = update.run(&run).ok_or_else(SendReport::cancelled)?;
        let chunks = &update.chunks()[run.clone()];
        if Arena::of(&bytes).is_some_and(|(arena, _)| known(&arena)) {
            return self.offer_extent(first, bytes, chunks, tracker).await;
        }
        drop(bytes);
        for at in run {
            let (header, payload) = update.frame(&update.chunks()[at]).ok_or_else(SendReport::cancelled)?;
            let (copy, arena) = self.copy(&payload)?;
            let chunks = vec![update.chunks()[at].clone()];
            let extent = Extent { all: Part::one(header.chunk), whole: false };
            let part = Offered { bytes: copy, staged: Some(arena), chunks };
            self.offer(Some(extent), part, tracker).await?;
        }
        Ok(())
    }

    async fn offer_extent(
        &self,
        first: ChunkHeader,
        bytes: Bytes,
        chunks: &[ChunkRef],
        tracker: &Arc<Tracker>,
    ) -> Result<()> {
        let length = |chunk: &ChunkRef| chunk.range().len() as u32;
        let chunk = chunks.get(1).map_or(first.length, length);
        let extent = Extent { all: Part { first, chunk, bytes: bytes.len() as u64 }, whole: self.whole };
        let _offering = self.offering.lock().await;
        if self.whole {
            let part = Offered { bytes: bytes.clone(), staged: None, chunks: chunks.to_vec() };
            self.offer(Some(extent), part, tracker).await?;
            // Meanwhile the device moves the bytes, in this order. The last piece is followed by their checksum.
            let mut rest = bytes;
            let mut parts: Vec<(&ChunkRef, Bytes)> =
                chunks.iter().map(|chunk| (chunk, rest.split_to(length(chunk) as usize))).collect();
            if self.backwards {
                parts.reverse();
            }
            for (chunk, bytes) in parts {
                chunk.checksum(&bytes);
                tokio::task::yield_now().await;
            }
            return Ok(());
        }
        let mut rest = bytes;
        for (index, chunk) in chunks.iter().enumerate() {
            let bytes = rest.split_to(length(chunk) as usize);
            chunk.checksum(&bytes);
            let part = Offered { bytes, staged: None, chunks: vec![chunk.clone()] };
            self.offer((index == 0).then_some(extent), part, tracker).await?;
        }
        Ok(())
    }

    async fn offer_all(&self, update: &Update, tracker: &Arc<Tracker>) -> Result<()> {
        for run in update.runs() {
            for start in run.clone().step_by(MOST_CHUNKS) {
                let end = run.end.min(start.saturating_add(MOST_CHUNKS));
                self.offer_run(update, start..end, tracker).await?;
            }
        }
        tracker.all_ended().await;
        self.shared.check(SEND)
    }

    fn poll_receive(&self, context: &mut Context<'_>, inbox: &mut Inbox) -> Poll<Result<Next>> {
        let shared = &self.shared;
        if shared.closed.load(Ordering::Acquire) {
            return Poll::Ready(Err(shared.gone(RECEIVE)));
        }
        let mut incoming = shared.incoming();
        if let Err(error) = incoming.poll(context, &shared.outbox) {
            drop(incoming);
            shared.end(error.clone());
            return Poll::Ready(Err(error));
        }
        if let Some(delivery) = inbox.delivery.take() {
            // A message may be delivered between two chunks: the peer's call has not ended. If the peer has
            // withdrawn the part, its call may have ended before the message was sent.
            let waits =
                incoming.arrivals().len() > 0 || !incoming.is_settled() || incoming.arrivals().is_left();
            drop(incoming);
            let message = if waits { None } else { inbox.next(context) };
            if let Some(message) = message {
                inbox.delivery = Some(delivery);
                return Poll::Ready(Ok(Next::Control(message)));
            }
            return Poll::Ready(Ok(Next::Chunk(delivery)));
        }
        if let Some(came) = incoming.arrivals().next() {
            return Poll::Ready(Ok(Next::Came(came)));
        }
        let offers = incoming.arrivals().offers.count();
        drop(incoming);
        if inbox.held.is_none() {
            match inbox.messages.poll_recv(context) {
                Poll::Pending => {}
                Poll::Ready(None) => {
                    return Poll::Ready(Err(shared.ended().unwrap_or_else(|| shared.gone(RECEIVE))));
                }
                Poll::Ready(held) => inbox.held = held,
            }
        }
        let mut incoming = shared.incoming();
        if inbox.held.is_none() {
            // Take only offers that arrived before the messages were polled. The sender may have made a later
            // offer after a message that has arrived since.
            let offer = incoming.next_offer(offers);
            return offer
                .map_or(Poll::Pending, |(number, header)| Poll::Ready(Ok(Next::Offer(number, header))));
        }
        // Offers made after this message are granted only after it is delivered. The message itself waits
        // until all chunks that the peer committed or withdrew before it are settled.
        let message = if incoming.is_settled() { inbox.held.take() } else { None };
        message.map_or(Poll::Pending, |message| Poll::Ready(Ok(Next::Control(message))))
    }

    /// Begins to deliver a part.
    async fn begin(&self, came: Came) -> Delivery {
        self.shared.received.fetch_add(came.part.bytes + RECORD as u64, Ordering::Relaxed);
        self.shared.copied.fetch_add(came.copies * came.part.bytes, Ordering::Relaxed);
        Delivery::begin(came).await
    }

    /// Hands the next chunk of a part to the sink. After the last one, tells the sender that the part was taken.
    fn deliver(&self, mut delivery: Delivery, sink: &dyn Sink) -> Result<Option<Delivery>> {
        self.shared.copied.fetch_add(delivery.step(sink)?, Ordering::Relaxed);
        if !delivery.is_over() {
            return Ok(Some(delivery));
        }
        let (number, bytes) = (delivery.number, delivery.part.bytes);
        self.shared.incoming().arrivals().done(bytes, delivery.into_landing());
        self.shared.outbox.say(&Word::Taken { number });
        Ok(None)
    }

    /// Asks the sink for the places of a part's chunks, and grants them to the peer.
    fn grant(&self, number: u64, part: Part, sink: &dyn Sink) -> Result<()> {
        let prepare = |chunk: ChunkHeader| {
            let place = sink.prepare(&chunk);
            match place.as_ref().filter(|place| place.len() != chunk.length as usize) {
                Some(place) => {
                    let context = format!("a place of {} bytes for {}", place.len(), chunk.length);
                    Err(Error::new(ErrorKind::System, RECEIVE, context))
                }
                None => Ok(place),
            }
        };
        let places = part.chunks().map(prepare).collect::<Result<Vec<Option<Claim>>>>()?;
        self.shared.incoming().grant(number, part, places, &self.shared.outbox)
    }
}

/// One call of `send_update`. When it is dropped early, it withdraws the chunks that have not ended.
struct Sending<'a> {
    shared: &'a Shared,
    tracker: Arc<Tracker>,
}

impl Sending<'_> {
    fn withdraw(&self) {
        for number in self.tracker.under_way() {
            self.shared.outgoing().withdraw(number, &self.shared.outbox);
        }
        self.shared.room.notify_waiters();
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[async_trait]
impl Link for RdmaLink {
    fn peer(&self) -> &Peer {
        self.shared.inner.peer()
    }

    fn capabilities(&self) -> Capabilities {
        Rdma::default().capabilities()
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        // A control message must follow the `Withdraw` of every chunk that this call has stopped. So wait
        // until no chunk is leaving.
        loop {
            let room = self.shared.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            self.shared.check("send control")?;
            if !self.shared.outgoing().is_leaving() {
                break;
            }
            room.await;
        }
        tokio::select! {
            biased;
            sent = self.shared.outbox.send(message) => sent.unwrap_or_else(|| Err(self.shared.gone("send control"))),
            () = self.shared.until_ended() => Err(self.shared.gone("send control")),
        }
    }

    async fn send_update(&self, update: &Update) -> Result<SendReport> {
        if let Some(chunk) = update.chunks().iter().find(|c| c.range().len() > MAX_CHUNK.into()) {
            let context = format!("a chunk of {} bytes; one has at most {MAX_CHUNK}", chunk.range().len());
            return Err(Error::new(ErrorKind::Unsupported, SEND, context).hint("set a smaller chunk"));
        }
        self.shared.check(SEND)?;
        let started = Instant::now();
        let sending = Sending { shared: &self.shared, tracker: Arc::default() };
        tokio::select! {
            biased;
            () = update.cancel().cancelled() => {
                sending.withdraw();
                sending.tracker.all_ended().await;
                return Err(SendReport::cancelled());
            }
            sent = self.offer_all(update, &sending.tracker) => sent?,
        }
        let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
        let wire = sending.tracker.wire();
        let ended = sending.tracker.last().unwrap_or_else(Instant::now);
        Ok(SendReport { chunks, payload, wire, started, ended })
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        let mut inbox = self.inbox.lock().await;
        self.shared.asked.send_modify(|asked| *asked += 1);
        loop {
            let next = std::future::poll_fn(|context| self.poll_receive(context, &mut inbox)).await?;
            let taken = match next {
                Next::Control(message) => return Ok(message),
                Next::Offer(number, part) => self.grant(number, part, sink),
                Next::Came(came) => {
                    let delivery = self.begin(came).await;
                    self.deliver(delivery, sink).map(|delivery| inbox.delivery = delivery)
                }
                Next::Chunk(delivery) => {
                    self.deliver(delivery, sink).map(|delivery| inbox.delivery = delivery)
                }
            };
            if let Err(error) = taken {
                self.shared.end(error.clone());
                return Err(error);
            }
            // Yield after each step, so that a busy link does not starve other tasks.
            tokio::task::yield_now().await;
        }
    }

    fn admit(&self) {
        self.shared.inner.admit();
        self.shared.admitted.store(true, Ordering::Release);
        // Wake the reader task: from now on it need not wait for a call of `receive`.
        self.shared.asked.send_modify(|asked| *asked = u64::MAX / 2);
    }

    fn counters(&self) -> Counters {
        let inner = self.shared.inner.counters();
        Counters {
            sent: inner.sent + self.shared.sent.load(Ordering::Relaxed),
            received: inner.received + self.shared.received.load(Ordering::Relaxed),
            copied: self.shared.copied.load(Ordering::Relaxed),
            round_trip: inner.round_trip,
            ..Counters::default()
        }
    }

    fn notice(&self) -> Option<String> {
        let (name, mtu) = (self.device.name(), self.mtu);
        let striped = match self.pairs {
            0 | 1 => String::new(),
            pairs => format!(", striped over {pairs} queue pairs"),
        };
        Some(format!("updates go over the RDMA device {name}, in packets of {mtu} bytes{striped}"))
    }

    async fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.end(Error::closed("close", "the link was closed here"));
        self.shared.inner.close().await;
    }
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        self.shared.end(Error::closed("close", "the link was dropped"));
    }
}
