//! Sending chunks: batches of datagrams, as many as the window permits.
//!
//! After each control message a probe follows the chunks before it, again until a report says that it came: the
//! peer delivers the message when the probe shows that nothing before it is still under way.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_transport::trace::Trace;
use thalweg_transport::{Error, ErrorKind, Outgoing, Result, SendReport};
use tokio::sync::Mutex;
use tokio::time::sleep_until;

use crate::datagram::{Datagram, Kind, CHUNK_HEADER_BYTES};
use crate::said::Word;
use crate::shared::Shared;
use crate::socket::{Buffer, Lane};
use crate::window::{cost, Permit, Window, MOST_PATIENCE};
use crate::MAX_CHUNK;

const SEND: &str = "send update";
/// Receives of reports before something else has its turn: a peer may send them faster than they are read.
const AT_ONCE: usize = 4;

/// One direction's sending side. Its lock is fair and held for one batch.
pub(crate) struct Sender {
    lane: Arc<Lane>,
    window: Window,
    batch: Vec<u8>,
    reports: Buffer,
    /// Control messages whose probe, or a later datagram, has come, as the peer says.
    known: u64,
    trace: Option<Trace>,
}

/// What a batch holds.
#[derive(Default)]
struct Batch {
    chunks: usize,
    /// Bytes of each datagram but the last, which may have less.
    length: usize,
    position: u64,
    reported: Vec<u64>,
}

impl Sender {
    pub(crate) fn new(lane: Arc<Lane>, window: u64, paced: bool, trace: Option<Trace>) -> Self {
        let window = Window::new(window, paced, Instant::now());
        Self { lane, window, batch: Vec::new(), reports: Buffer::new(), known: 0, trace }
    }

    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.window.round_trip()
    }

    /// Takes reports that are there.
    fn hear(&mut self, shared: &Shared, timely: bool) {
        self.reports.fit(shared.standing.is_proved());
        for _ in 0..AT_ONCE {
            if self.lane.receive(&mut self.reports).is_err() {
                return;
            }
            let now = Instant::now();
            for bytes in self.reports.datagrams() {
                if let Some(Word::Taken(count)) = Word::read(&self.lane.key, bytes) {
                    shared.said.taken(count);
                }
                let Some(report) = Datagram::decode(&self.lane.key, bytes) else { continue };
                if let Kind::Report(received) = report.kind {
                    shared.received.fetch_add(bytes.len() as u64, Relaxed);
                    self.window.reported(now, report.position, received, timely);
                    self.known = self.known.max(report.told);
                }
            }
        }
    }

    /// Waits until something may be sent; says how much, by cost. Asks for a report where none comes, for as
    /// long as the link lives: a peer that does not read stops us, it does not make us lose anything.
    async fn room(&mut self, shared: &Shared) -> u64 {
        loop {
            self.hear(shared, true);
            let permit = self.window.permit(Instant::now());
            // What it waits for is worth a line, not each batch.
            if let Some(trace) = self.trace.as_mut().filter(|_| !matches!(permit, Permit::Now(_))) {
                trace.note(|at| self.window.believes().json(at));
            }
            match permit {
                Permit::Now(room) => return room,
                Permit::At(at) => sleep_until(at.into()).await,
                Permit::Report(by) => {
                    tokio::select! {
                        biased;
                        // An error is an ICMP message's: the next call goes on.
                        _ = self.lane.readable() => {}
                        () = sleep_until(by.into()) => self.probe(shared),
                    }
                }
            }
        }
    }

    fn end_trace(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.end(|at| self.window.believes().json(at));
        }
    }

    fn probe(&mut self, shared: &Shared) {
        probe(&self.lane, shared);
        self.window.probed(Instant::now());
    }

    /// Puts together the chunks of `update` from `next` on: of one length, but for a last shorter one, as a
    /// system call takes no others. `None` once cancelled.
    fn gather(&mut self, shared: &Shared, update: &Outgoing, next: usize, room: u64) -> Option<Batch> {
        self.batch.clear();
        let chunks = update.chunks().get(next..)?;
        let mut batch = Batch { position: self.window.sent(), ..Batch::default() };
        let told = if update.is_detached() { 0 } else { shared.told.load(Acquire) };
        let around = CHUNK_HEADER_BYTES + self.lane.extra();
        let bytes = |chunk: &thalweg_transport::ChunkRef| around + chunk.range().len() as usize;
        let first = chunks.first().map_or(0, bytes);
        let most = self.lane.most_segments(first);
        let until = batch.position + room;
        for (index, chunk) in chunks.iter().enumerate().take(most) {
            let (length, next) = (bytes(chunk), chunks.get(index + 1).map(bytes));
            let position = batch.position + cost(length);
            let ends = index + 1 == most
                || length < first
                || next.is_none_or(|next| next > first || position + cost(next) > until);
            let (header, payload) = update.frame(chunk)?;
            let report_wanted = next.is_none() || (ends && self.window.wants_report(position));
            let datagram = Datagram { kind: Kind::Chunk(header), report_wanted, told, position };
            self.lane.append(&datagram, &payload, &mut self.batch);
            batch.position = position;
            batch.chunks += 1;
            if report_wanted {
                batch.reported.push(position);
            }
            if ends {
                break;
            }
        }
        batch.length = first;
        Some(batch)
    }

    /// Sends one batch; says how many chunks and bytes it had.
    async fn send(&mut self, shared: &Shared, update: &Outgoing, next: usize) -> Result<(usize, usize)> {
        let room = self.room(shared).await;
        let batch = self.gather(shared, update, next, room).ok_or_else(SendReport::cancelled)?;
        self.lane.send(&self.batch, batch.length).await?;
        self.window.sent_to(Instant::now(), batch.position, &batch.reported);
        shared.position.store(batch.position, Release);
        let bytes = self.batch.len();
        shared.sent.fetch_add(bytes as u64, Relaxed);
        let copied = bytes.saturating_sub(batch.chunks * (CHUNK_HEADER_BYTES + self.lane.extra()));
        shared.copied.fetch_add(copied as u64, Relaxed);
        Ok((batch.chunks, bytes))
    }
}

/// Asks the peer what has come, if there is room for it.
pub(crate) fn probe(lane: &Lane, shared: &Shared) {
    let (told, position) = (shared.told.load(Acquire), shared.position.load(Acquire));
    let probe = Datagram { kind: Kind::Probe, report_wanted: true, told, position };
    shared.sent.fetch_add(lane.tell(&probe) as u64, Relaxed);
}

/// Probes again for as long as the peer has not reported the last control message's, however long that takes.
pub(crate) async fn keep_telling(shared: Arc<Shared>, sender: Arc<Mutex<Sender>>) {
    loop {
        shared.spoke.notified().await;
        let mut pause = sender.lock().await.window.wait();
        loop {
            tokio::time::sleep(pause).await;
            let mut sender = sender.lock().await;
            sender.hear(&shared, false);
            if sender.known >= shared.told.load(Acquire) {
                break;
            }
            probe(&sender.lane, &shared);
            pause = (2 * pause).min(MOST_PATIENCE);
        }
    }
}

/// Takes reports that are there, unless an update that is being sent takes them: it may wait for one for long.
pub(crate) async fn hear((sender, shared): (Arc<Mutex<Sender>>, Arc<Shared>)) {
    if let Ok(mut sender) = sender.try_lock() {
        sender.hear(&shared, false);
    }
}

/// Sends the chunks of an update.
pub(crate) async fn update(shared: &Shared, sender: &Mutex<Sender>, update: &Outgoing) -> Result<SendReport> {
    if let Some(chunk) = update.chunks().iter().find(|c| c.range().len() > MAX_CHUNK.into()) {
        let context = format!("a chunk of {} bytes; one has at most {MAX_CHUNK}", chunk.range().len());
        return Err(Error::new(ErrorKind::Unsupported, SEND, context).mend("set a smaller chunk"));
    }
    shared.check(SEND)?;
    shared.detached.fetch_or(update.is_detached(), Relaxed);
    let started = Instant::now();
    let wire = tokio::select! {
        biased;
        () = update.cancel().cancelled() => Err(SendReport::cancelled()),
        error = shared.ended(SEND) => Err(error),
        wire = send_all(shared, sender, update) => wire,
    }?;
    let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
    Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
}

async fn send_all(shared: &Shared, sender: &Mutex<Sender>, update: &Outgoing) -> Result<u64> {
    let (mut next, mut wire) = (0, 0);
    let longest = update.chunks().iter().map(|c| c.range().len()).max().unwrap_or_default();
    while next < update.chunks().len() {
        let mut sender = sender.lock().await;
        let around = CHUNK_HEADER_BYTES + sender.lane.extra();
        sender.window.carry(around + longest as usize);
        if next == 0 {
            sender.hear(shared, false); // what came meanwhile says nothing about the round trip
        }
        let (chunks, bytes) = sender.send(shared, update, next).await?;
        (next, wire) = (next + chunks, wire + bytes as u64);
        if next == update.chunks().len() {
            sender.window.idle();
            sender.end_trace();
        }
        drop(sender);
        // A link that is never held up leaves room for the others, batch by batch.
        tokio::task::yield_now().await;
    }
    Ok(wire)
}
