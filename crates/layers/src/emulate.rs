//! Emulates a link of a given shape without root: rate, delay, jitter and loss. It works on messages, not on
//! packets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_linkmodel::{Shape, ShapeError};
use thalweg_rng::Rng;
use thalweg_transport::{
    Capabilities, Counters, Error, ErrorKind, Link, LinkLayer, NoChunks, Outgoing, Result, SendReport, Sink,
};
use thalweg_wire::{HEADER_BYTES, MAX_CONTROL};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::ended::Ended;
use crate::lane::Lane;
use crate::wrap::{add, nothing, piece};
use crate::{Layer, Links, Side};

/// Maximum number of chunks of an update, or control messages, in flight.
const UNDER_WAY: usize = 4096;
/// Maximum time that `close` waits for control messages in flight, before [`MOMENT`] is added.
const FLUSH: Duration = Duration::from_secs(1);
/// `close` waits this much longer than the messages should take, since a busy host may be late.
const MOMENT: Duration = Duration::from_millis(100);
/// A message may be sent this much before the link is free, since timers are not more precise.
const GRAIN: Duration = Duration::from_millis(1);
/// Longer than anybody waits.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// Prefix of this layer's own message. No control message of the protocol begins like this.
const HELLO: &[u8] = b"\xffthalweg emulate\xff";

/// Emulates the links of a network. `up` is the direction from the side that connects, `down` the other one.
///
/// For the calculation only, frames are cut into packets of 1500 bytes with headers; see [`Lane`]. The sender
/// waits while the link is busy, so no queue builds up: a queue length has no effect, and congestion control
/// sees no loss.
///
/// Clients with links of their own are in `clients`. The side that connects sends the shape of the link to
/// the other side, in a message of this layer before all others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Emulate {
    /// Seed of all random decisions.
    pub seed: u64,
    /// The direction from the side that connects.
    pub up: Shape,
    /// The direction to the side that connects.
    pub down: Shape,
    /// Clients with links of other shapes, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub clients: BTreeMap<String, Directions>,
}

/// The two directions of a client's link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Directions {
    /// From the client.
    pub up: Shape,
    /// To the client.
    pub down: Shape,
}

impl Emulate {
    /// Checks every shape.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with the name of the key.
    pub fn check(&self) -> Result<()> {
        self.shapes().try_for_each(Shape::check).map_err(impossible)
    }

    fn shapes(&self) -> impl Iterator<Item = &Shape> {
        let own = self.clients.values().flat_map(|client| [&client.up, &client.down]);
        [&self.up, &self.down].into_iter().chain(own)
    }

    /// The layer for one client. It has the shapes of that client's link, and a seed of its own.
    #[must_use]
    pub fn of_client(&self, name: &str) -> Self {
        let own = self.clients.get(name);
        let (up, down) = own.map_or((&self.up, &self.down), |client| (&client.up, &client.down));
        let mut seeds = vec![self.seed];
        seeds.extend(name.bytes().map(u64::from));
        let seed = Rng::new(&seeds).draw();
        Self { seed, up: up.clone(), down: down.clone(), clients: BTreeMap::new() }
    }

    /// The lane for the frames that this side sends.
    fn lane(&self, side: Side, number: u64) -> Result<Lane> {
        let (there, back, stream) = match side {
            Side::Connected => (&self.up, &self.down, number),
            Side::Accepted => (&self.down, &self.up, number + 1),
        };
        Lane::new(there, back.delay, self.seed, stream).map_err(impossible)
    }
}

fn impossible(error: ShapeError) -> Error {
    Error::new(ErrorKind::Unsupported, "emulate a link", error.to_string()).hint("correct the network's keys")
}

impl Layer for Emulate {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let keeps = self.shapes().all(|s| s.jitter <= 0.0 && s.reorder <= 0.0 && s.duplicate <= 0.0);
        let (ordered, settled) = (inner.ordered && (inner.reliable || keeps), inner.settled && keeps);
        Capabilities { ordered, settled, fan_out: false, ..inner }
    }

    fn links(&self, side: Side) -> Arc<dyn Links> {
        Arc::new(Emulated { layer: self.clone(), side })
    }
}

struct Emulated {
    layer: Emulate,
    side: Side,
}

#[async_trait]
impl Links for Emulated {
    fn wrap(&self, inner: Arc<dyn Link>, number: u64) -> Arc<dyn Link> {
        // Shapes are checked before anything connects. If one were impossible, the link would not be
        // emulated.
        let Ok(lane) = self.layer.lane(self.side, number) else { return inner };
        let (layer, lane) = (self.layer.clone(), Mutex::new(lane));
        let (start, ended) = (Instant::now(), Arc::new(Ended::new()));
        let messages = Messages::start(inner.clone(), ended.clone());
        let (lost, repeated) = Default::default();
        Arc::new(EmulatedLink { inner, layer, lane, start, messages, lost, repeated, ended })
    }

    async fn open(&self, inner: Arc<dyn Link>, number: u64) -> Result<Arc<dyn Link>> {
        if self.side == Side::Connected {
            inner.send_control(Hello { link: self.layer.clone(), number }.encode()?).await?;
            return Ok(self.wrap(inner, number));
        }
        let Hello { link, number } = Hello::decode(&inner.receive(&NoChunks).await?)?;
        link.check()?;
        Ok(Self { layer: link, side: self.side }.wrap(inner, number))
    }
}

struct EmulatedLink {
    inner: Arc<dyn Link>,
    layer: Emulate,
    lane: Mutex<Lane>,
    start: Instant,
    messages: Messages,
    /// Bytes that counted as sent but never reached the inner link.
    lost: AtomicU64,
    /// Bytes that the inner link has sent a second time.
    repeated: AtomicU64,
    ended: Arc<Ended>,
}

/// The first message of the side that connects. The listener needs it, since it does not know which client
/// connects.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hello {
    link: Emulate,
    number: u64,
}

impl Hello {
    fn encode(&self) -> Result<Bytes> {
        let system = |e: serde_json::Error| Error::new(ErrorKind::System, "emulate a link", e.to_string());
        Ok([HELLO, &serde_json::to_vec(self).map_err(system)?].concat().into())
    }

    fn decode(message: &[u8]) -> Result<Self> {
        let none =
            || Error::new(ErrorKind::Corrupt, "emulate a link", "the peer does not say what it is like");
        let json = message.strip_prefix(HELLO).ok_or_else(|| none().hint("give both sides the layer"))?;
        serde_json::from_slice(json)
            .map_err(|e| Error::new(ErrorKind::Corrupt, "emulate a link", e.to_string()))
    }
}

/// A chunk in flight: when it arrives, its index, how many copies arrive (0: it is lost), and how many messages
/// were sent before it. Ordered by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Landed {
    due: Duration,
    chunk: usize,
    copies: u8,
    messages: u64,
}

/// The chunks of an update that are in flight.
#[derive(Default)]
struct Flight {
    chunks: BTreeSet<Landed>,
    /// When the first bit of the first chunk left.
    begun: Option<Duration>,
    /// When the link is free for the next chunk.
    through: Duration,
}

impl Flight {
    /// Takes the next chunk that has arrived.
    fn landed(&mut self, now: Duration) -> Option<Landed> {
        let first = self.chunks.first().copied().filter(|landed| landed.due <= now)?;
        self.chunks.remove(&first);
        Some(first)
    }

    /// When to act next. `more`: there are chunks that have not been sent yet.
    fn wake(&self, more: bool) -> Duration {
        let arrival = self.chunks.first().map(|landed| landed.due);
        let free = (more && self.chunks.len() < UNDER_WAY).then_some(self.through);
        arrival.into_iter().chain(free).min().unwrap_or_default()
    }
}

impl EmulatedLink {
    fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn ready(&self) -> Duration {
        self.lane().ready(self.now())
    }

    fn is_reliable(&self) -> bool {
        self.inner.capabilities().reliable
    }

    /// Passes a chunk that has arrived to the inner link. A lost chunk counts as sent, since its sender
    /// cannot know.
    async fn deliver(&self, update: &Outgoing, landed: Landed) -> Result<SendReport> {
        let Landed { chunk, copies, messages, .. } = landed;
        if copies == 0 && self.is_reliable() {
            // On a reliable transport this chunk never arrives, and nobody is told: the link exists but
            // carries nothing.
            self.ended.sleep_sending(Instant::now() + NEVER, update).await?;
            self.still_there("send update")?;
        }
        if copies == 0 {
            let payload = update.chunks()[chunk].range().len();
            let wire = payload + HEADER_BYTES as u64;
            self.lost.fetch_add(wire, Ordering::Relaxed);
            return Ok(SendReport { chunks: 1, payload, wire, ..nothing() });
        }
        if LinkLayer::capabilities(self).ordered {
            // Timers are coarse: a message that is due shortly before this chunk may not have been passed on
            // yet.
            self.messages.passed(messages, &self.ended).await;
            self.still_there("send update")?;
        }
        let report = self.inner.send_update(&piece(update, chunk)).await?;
        for _ in 1..copies {
            let again = self.inner.send_update(&piece(update, chunk)).await?;
            self.repeated.fetch_add(again.wire, Ordering::Relaxed);
        }
        Ok(report)
    }

    /// Puts a chunk into flight.
    fn launch(&self, flight: &mut Flight, update: &Outgoing, chunk: usize) {
        let bytes = update.chunks()[chunk].range().len() + HEADER_BYTES as u64;
        let crossing = self.lane().send(self.now(), flight.through, bytes, self.is_reliable());
        flight.begun.get_or_insert(crossing.begun);
        flight.through = crossing.through;
        let copies = crossing.due.map_or(0, |_| 1 + u8::from(crossing.twice));
        let due = crossing.due.unwrap_or(crossing.through);
        flight.chunks.insert(Landed { due, chunk, copies, messages: self.messages.count() });
    }

    /// Fails if the link has ended. A sender that was woken calls this, since that may be why it was woken.
    fn still_there(&self, operation: &'static str) -> Result<()> {
        match self.ended.is_set() {
            true => Err(Error::closed(operation, "the link has ended")),
            false => Ok(()),
        }
    }
}

#[derive(Default)]
struct UnderWay {
    /// When the last message arrives.
    last: Option<Instant>,
    /// Number of messages that were sent, and of those that were passed to the inner link.
    sent: u64,
    passed: u64,
}

/// Control messages in flight. A task passes each to the inner link when it arrives, in order.
struct Messages {
    queue: mpsc::Sender<(Instant, Bytes)>,
    under_way: Arc<watch::Sender<UnderWay>>,
    task: AbortHandle,
}

impl Messages {
    fn start(inner: Arc<dyn Link>, ended: Arc<Ended>) -> Self {
        let (queue, mut messages) = mpsc::channel::<(Instant, Bytes)>(UNDER_WAY);
        let under_way = Arc::new(watch::Sender::new(UnderWay::default()));
        let arrived = under_way.clone();
        let task = tokio::spawn(async move {
            while let Some((due, message)) = messages.recv().await {
                tokio::time::sleep_until(due).await;
                // After any error, later messages can no longer be in order. So end the link.
                if inner.send_control(message).await.is_err() {
                    ended.set();
                    messages.close();
                }
                arrived.send_modify(|under_way| under_way.passed += 1);
            }
        });
        Self { queue, under_way, task: task.abort_handle() }
    }

    /// Puts a message into flight. Waits while there are too many.
    async fn push(&self, due: Instant, message: Bytes) {
        if let Ok(place) = self.queue.reserve().await {
            self.under_way.send_modify(|under_way| {
                under_way.last = Some(due);
                under_way.sent += 1;
            });
            place.send((due, message));
        }
    }

    /// Number of messages that were sent.
    fn count(&self) -> u64 {
        self.under_way.borrow().sent
    }

    /// Waits until the first `count` messages were passed to the inner link, or the link has ended.
    async fn passed(&self, count: u64, ended: &Ended) {
        let mut under_way = self.under_way.subscribe();
        tokio::select! {
            // This cannot fail: `self` holds the sender.
            _ = under_way.wait_for(|under_way| under_way.passed >= count) => {}
            () = ended.wait() => {}
        }
    }

    /// Waits until all messages have arrived, or a little longer than they should have taken.
    async fn arrived(&self) {
        let last = self.under_way.borrow().last;
        let limit = last.unwrap_or_else(Instant::now).min(Instant::now() + FLUSH) + MOMENT;
        let mut under_way = self.under_way.subscribe();
        // This cannot fail: `self` holds the sender.
        let _ = tokio::time::timeout_at(
            limit,
            under_way.wait_for(|under_way| under_way.passed == under_way.sent),
        )
        .await;
    }
}

impl LinkLayer for EmulatedLink {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.inner.capabilities())
    }

    /// Waits until the message has left, not until it arrives, since the next one may follow at once. Control
    /// messages are reliable on every transport.
    async fn send_control(&self, message: Bytes) -> Result<()> {
        self.still_there("send control")?;
        if message.len() > MAX_CONTROL as usize {
            return self.inner.send_control(message).await;
        }
        let crossing = {
            let (mut lane, now) = (self.lane(), self.now());
            let ready = lane.ready(now);
            lane.send(now, ready, (HEADER_BYTES + message.len()) as u64, true)
        };
        // Timers are not more precise than that. The lane compensates for it.
        if crossing.through > self.now() + GRAIN {
            self.ended.sleep_until(self.start + crossing.through).await;
            self.still_there("send control")?;
        }
        match crossing.due {
            Some(due) => self.messages.push(self.start + due, message).await,
            None => self.ended.wait().await,
        }
        self.still_there("send control")
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        let (count, mut next, mut report) = (update.chunks().len(), 0, nothing());
        let mut flight = Flight { through: self.ready(), ..Flight::default() };
        while next < count || !flight.chunks.is_empty() {
            let now = self.now();
            if next < count && flight.through <= now && flight.chunks.len() < UNDER_WAY {
                // Send one chunk at a time, when the link is free. So other updates and control messages get
                // their turn.
                self.launch(&mut flight, update, next);
                next += 1;
            } else if let Some(landed) = flight.landed(now) {
                let sent = self.deliver(update, landed).await;
                add(&mut report, &self.ended.note(sent)?);
            } else {
                let wake = flight.wake(next < count);
                self.ended.sleep_sending(self.start + wake, update).await?;
                self.still_there("send update")?;
            }
        }
        // The link is busy until the last chunk has left, whether that chunk arrives or not.
        self.ended.sleep_sending(self.start + flight.through, update).await?;
        self.still_there("send update")?;
        self.lane().returned(self.now(), flight.through);
        report.ended = report.ended.max(nothing().ended);
        // The first bit may have left before this call, if an earlier update delayed the caller.
        report.started = flight.begun.map_or(report.started, |begun| (self.start + begun).into_std());
        Ok(report)
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.ended.note(self.inner.receive(sink).await)
    }

    fn counters(&self) -> Counters {
        let inner = self.inner.counters();
        let (lost, repeated) = (self.lost.load(Ordering::Relaxed), self.repeated.load(Ordering::Relaxed));
        Counters { sent: (inner.sent + lost).saturating_sub(repeated), ..inner }
    }

    /// Waits for what was sent before, and then ends the link.
    async fn close(&self) {
        self.ended.set();
        self.messages.arrived().await;
        self.inner.close().await;
        self.messages.task.abort();
    }
}
