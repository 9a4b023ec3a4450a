//! Sends updates: one task for each link takes acknowledgements, and sends packets when the state machine
//! says so.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thalweg_sending::ltp::{Block, ChunkId, Packet, Piece, Sender, What, MAX_PIECES};
use thalweg_transport::trace::Trace;
use thalweg_transport::{Error, ErrorKind, Outgoing, Result, SendReport};
use thalweg_udp::link_state::LinkState;
use thalweg_udp::repetition::Word;
use thalweg_udp::socket::{Buffer, Lane};
use thalweg_udp::window::OVERHEAD;
use thalweg_wire::Range;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use crate::critical::Critical;
use crate::packet::{Datagram, Kind, Repair, CHUNK_HEADER_BYTES};
use crate::repair::Copies;
use crate::CHUNK;

const SEND: &str = "send update";
/// Maximum number of reads of acknowledgements in a row. A peer may send them faster than they are read, and
/// the task has other work.
const AT_ONCE: usize = 4;

/// An update whose sender waits. The sender takes the update back when its call ends, and with it the loan of
/// the arena.
type Lent = Arc<Mutex<Option<Outgoing>>>;

pub(crate) struct Order {
    lent: Lent,
    done: oneshot::Sender<Result<SendReport>>,
}

/// Takes an update back from the task when the call of its sender ends.
struct Loan(Lent);

impl Drop for Loan {
    fn drop(&mut self) {
        lock(&self.0).take();
    }
}

fn lock(lent: &Lent) -> MutexGuard<'_, Option<Outgoing>> {
    lent.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counters of the packets in both directions.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Number of retransmitted chunks.
    pub again: AtomicU64,
    /// Number of repair packets sent.
    pub repair: AtomicU64,
    /// Number of rebuilt chunks.
    pub rebuilt: AtomicU64,
    /// RTT in microseconds; 0 if none was measured.
    round_trip: AtomicU64,
}

impl Stats {
    /// The measured RTT.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        Some(self.round_trip.load(Relaxed)).filter(|&trip| trip > 0).map(Duration::from_micros)
    }
}

/// The update that is being sent, with its bytes on the wire so far.
struct Current {
    order: Order,
    /// Bytes of packets sent so far.
    wire: u64,
    started: Instant,
}

/// The protection of updates from loss.
pub(crate) struct Protection {
    /// Decides which chunks are critical.
    pub critical: Arc<Critical>,
    /// Number of repair packets for each packet of a block.
    pub repair: f64,
}

/// The sending side of one direction.
pub(crate) struct Driver {
    lane: Arc<Lane>,
    state: Arc<LinkState>,
    stats: Arc<Stats>,
    critical: Arc<Critical>,
    machine: Sender,
    /// Time zero of the state machine.
    origin: Instant,
    orders: mpsc::Receiver<Order>,
    current: Option<Current>,
    /// Whether the chunks of the update, and the repair packets for them, wait for no control message.
    detached: bool,
    /// The packets of the next system call.
    batch: Vec<u8>,
    /// A packet that is longer than those before it. It is kept for the next batch.
    longer: Vec<u8>,
    /// The symbols of packets that repair packets may follow.
    copies: Copies,
    reports: Buffer,
    trace: Option<Trace>,
}

/// Sends an update through the link's task.
pub(crate) async fn update(
    orders: &mpsc::Sender<Order>,
    state: &LinkState,
    update: &Outgoing,
) -> Result<SendReport> {
    if let Some(chunk) = update.chunks().iter().find(|c| c.range().len() > CHUNK.into()) {
        let context = format!("a chunk of {} bytes; one has at most {CHUNK}", chunk.range().len());
        return Err(Error::new(ErrorKind::Unsupported, SEND, context).hint("set a smaller chunk"));
    }
    if update.chunks().len() > MAX_PIECES {
        let context = format!("an update of {} chunks; one has at most {MAX_PIECES}", update.chunks().len());
        return Err(Error::new(ErrorKind::Unsupported, SEND, context).hint("set a larger chunk"));
    }
    state.check(SEND)?;
    state.detached.fetch_or(update.is_detached(), Relaxed);
    if update.chunks().is_empty() {
        let now = Instant::now();
        return Ok(SendReport { chunks: 0, payload: 0, wire: 0, started: now, ended: now });
    }
    let (done, outcome) = oneshot::channel();
    let loan = Loan(Arc::new(Mutex::new(Some(update.clone()))));
    let order = Order { lent: loan.0.clone(), done };
    tokio::select! {
        biased;
        () = update.cancel().cancelled() => Err(SendReport::cancelled()),
        error = state.ended(SEND) => Err(error),
        sent = async { orders.send(order).await.ok()?; outcome.await.ok() } => {
            sent.unwrap_or_else(|| Err(Error::closed(SEND, "the link has ended")))
        }
    }
}

impl Driver {
    pub(crate) fn new(
        lane: Arc<Lane>,
        window: u64,
        protection: Protection,
        state: Arc<LinkState>,
        stats: Arc<Stats>,
        orders: mpsc::Receiver<Order>,
    ) -> Self {
        let full = CHUNK_HEADER_BYTES + CHUNK as usize + lane.extra();
        let machine = Sender::new(Duration::ZERO, window, OVERHEAD as u64, full as u32);
        Self {
            lane,
            state,
            stats,
            critical: protection.critical,
            machine: machine.with_repair(protection.repair),
            origin: Instant::now(),
            orders,
            current: None,
            detached: false,
            batch: Vec::new(),
            longer: Vec::new(),
            copies: Copies::default(),
            reports: Buffer::new(),
            trace: None,
        }
    }

    /// Writes the sender's estimates to `trace`.
    pub(crate) fn traced(self, trace: Option<Trace>) -> Self {
        Self { trace, ..self }
    }

    /// Sends updates until the link ends.
    pub(crate) async fn run(mut self) {
        loop {
            self.read_acks();
            self.machine.handle_timeout(self.origin.elapsed());
            self.send().await;
            self.conclude();
            self.note();
            let at = self.machine.poll_timeout().map(|at| self.origin + at);
            let (timed, at) = (at.is_some(), at.unwrap_or(self.origin).into());
            let busy = self.current.is_some();
            tokio::select! {
                biased;
                _ = self.state.ended(SEND) => return,
                () = given_up(&mut self.current) => self.machine.abandon(),
                () = self.state.probe_due.notified() => self.machine.request_probe(),
                () = self.lane.moved() => self.machine.request_probe(),
                // An error reports an ICMP message. The next call on the socket works again.
                _ = self.lane.readable() => {}
                order = self.orders.recv(), if !busy => match order {
                    Some(order) => self.begin(order),
                    None => return,
                },
                () = sleep_until(at), if timed => {}
            }
        }
    }

    fn note(&mut self) {
        if let Some(trace) = self.trace.as_mut().filter(|_| self.current.is_some()) {
            trace.note(|at| self.machine.believes().json(at));
        }
    }

    /// Handles the acknowledgements that have arrived.
    fn read_acks(&mut self) {
        self.reports.fit(self.state.standing.is_proved());
        for _ in 0..AT_ONCE {
            if self.lane.receive(&mut self.reports).is_err() {
                break;
            }
            let now = self.origin.elapsed();
            for bytes in self.reports.datagrams() {
                if let Some(Word::Taken(count)) = Word::read(&self.lane.key, bytes) {
                    self.state.unacknowledged.taken(count);
                }
                let Some(Kind::Ack(ack)) = Datagram::decode(&self.lane.key, bytes).map(|found| found.kind)
                else {
                    continue;
                };
                self.state.received.fetch_add((bytes.len() + self.lane.extra()) as u64, Relaxed);
                self.machine.handle_ack(now, &ack);
            }
        }
        let trip = self.machine.round_trip().map_or(0, |trip| trip.as_micros().max(1) as u64);
        self.stats.round_trip.store(trip, Relaxed);
    }

    fn begin(&mut self, order: Order) {
        let around = CHUNK_HEADER_BYTES + self.lane.extra();
        let lent = lock(&order.lent);
        let Some(update) = lent.as_ref() else { return };
        self.detached = update.is_detached();
        let chunks: Vec<Range> = update.chunks().iter().map(|chunk| chunk.range()).collect();
        let must = self.critical.of(&chunks);
        let pieces = chunks.iter().zip(must).map(|(chunk, critical)| {
            let bytes = (around as u64 + chunk.len()) as u32;
            Piece { bytes, critical }
        });
        self.machine.begin(pieces.collect());
        drop(lent);
        self.current = Some(Current { order, wire: 0, started: Instant::now() });
    }

    fn conclude(&mut self) {
        let Some(ended) = self.machine.poll_ended() else { return };
        let Some(Current { order, wire, started }) = self.current.take() else { return };
        if let Some(trace) = &mut self.trace {
            trace.end(|at| self.machine.believes().json(at));
        }
        self.stats.again.fetch_add(ended.again, Relaxed);
        let sizes =
            lock(&order.lent).as_ref().map(|update| (update.chunks().len() as u64, update.payload_bytes()));
        let Some((chunks, payload)) = sizes else { return };
        // This fails if the caller no longer waits.
        let _ = order.done.send(Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() }));
    }

    /// Sends all packets that may be sent now.
    async fn send(&mut self) {
        while let Some(length) = self.gather() {
            if let Err(error) = self.lane.send(&self.batch, length).await {
                self.machine.abandon();
                if let Some(current) = self.current.take() {
                    let _ = current.order.done.send(Err(error));
                }
                return;
            }
            let bytes = self.batch.len() as u64;
            self.state.sent.fetch_add(bytes, Relaxed);
            if let Some(current) = &mut self.current {
                current.wire += bytes;
            }
            // Yield after each batch, so that a link that is never blocked leaves time to the others.
            tokio::task::yield_now().await;
            self.read_acks();
        }
    }

    /// Collects packets of one length for one system call, which requires that; only the last may be shorter.
    /// Returns their length. `None` if nothing may be sent now.
    fn gather(&mut self) -> Option<usize> {
        self.batch.clear();
        self.batch.append(&mut self.longer);
        let mut length = self.batch.len();
        let mut count = usize::from(length > 0);
        while length == 0 || count < self.lane.most_segments(length) {
            let Some(packet) = self.machine.poll_packet(self.origin.elapsed()) else { break };
            let start = self.batch.len();
            if !self.append(packet) {
                continue;
            }
            let bytes = self.batch.len() - start;
            if length == 0 {
                length = bytes;
            }
            if bytes > length {
                self.longer = self.batch.split_off(start);
                break;
            }
            count += 1;
            if bytes < length {
                break;
            }
        }
        (count > 0).then_some(length)
    }

    /// Appends a packet to the batch. Returns whether it has appended anything. A cancelled update is
    /// abandoned here.
    fn append(&mut self, packet: Packet) -> bool {
        let start = self.batch.len();
        let done = match packet.what {
            What::Probe => self.append_probe(packet),
            What::Chunk(part) => self.append_chunk(packet, part),
            What::Repair(block, which) => self.append_repair(packet.number, block, which),
        };
        done.is_some() && self.batch.len() > start
    }

    /// Number of control messages for which a chunk that is sent now must wait.
    fn awaited(&self) -> u64 {
        if self.detached {
            0
        } else {
            self.state.messages_sent.load(Acquire)
        }
    }

    fn append_probe(&mut self, Packet { number, block, .. }: Packet) -> Option<()> {
        if let Some(first) = block {
            self.copies.keep(first, number, None);
        }
        let message_count = self.state.messages_sent.load(Acquire);
        let probe = Datagram { kind: Kind::Probe, covered: block.is_some(), message_count, number };
        self.lane.append(&probe, &[], &mut self.batch);
        Some(())
    }

    fn append_chunk(&mut self, Packet { number, block, .. }: Packet, part: ChunkId) -> Option<()> {
        let message_count = self.awaited();
        let appended = self.current.as_ref().and_then(|current| {
            // End the loan only after the copy has finished: when the sender's call has returned, nothing may
            // be lent.
            let lent = lock(&current.order.lent);
            let update = lent.as_ref()?;
            let (header, payload) = update.frame(update.chunks().get(part.index as usize)?)?;
            if let Some(first) = block {
                self.copies.keep(first, number, Some((part, &header, &payload)));
                self.state.copied.fetch_add(payload.len() as u64, Relaxed);
            }
            let chunk =
                Datagram { kind: Kind::Chunk(part, header), covered: block.is_some(), message_count, number };
            self.lane.append(&chunk, &payload, &mut self.batch);
            self.state.copied.fetch_add(payload.len() as u64, Relaxed);
            Some(())
        });
        if appended.is_none() {
            (self.current, self.longer) = (None, Vec::new());
            self.machine.abandon();
        }
        appended
    }

    fn append_repair(&mut self, number: u64, block: Block, which: u32) -> Option<()> {
        let (common, symbol) = self.copies.repair(block, which)?;
        let kind = Kind::Repair(Repair::new(block, which, common, &symbol));
        let message_count = self.awaited();
        self.lane.append(&Datagram { kind, covered: false, message_count, number }, &symbol, &mut self.batch);
        self.stats.repair.fetch_add(1, Relaxed);
        Some(())
    }
}

/// Waits until the sender has given up the current update, and then forgets the update.
async fn given_up(current: &mut Option<Current>) {
    let Some(Current { order, .. }) = current.as_mut() else { return std::future::pending().await };
    order.done.closed().await;
    *current = None;
}
