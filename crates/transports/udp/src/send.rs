//! The sending side of a link: it sends chunks in batches of datagrams, as many as the window permits.
//!
//! After each control message, the sender also sends a probe. It repeats the probe until a report confirms
//! it. The probe shows the peer that no datagram from before the message is still in flight, so the peer may
//! deliver the message.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_transport::trace::Trace;
use thalweg_transport::{Error, ErrorKind, Outgoing, Result, SendReport};
use tokio::sync::Mutex;
use tokio::time::sleep_until;

use crate::datagram::{Datagram, Kind, CHUNK_HEADER_BYTES};
use crate::link_state::LinkState;
use crate::repetition::Word;
use crate::socket::{Buffer, Lane};
use crate::window::{cost, Permit, Window, MAX_TIMEOUT};
use crate::MAX_CHUNK;

const SEND: &str = "send update";
/// Maximum number of receive calls for reports before the sender goes on. A peer may send reports faster than
/// we read them.
const MAX_RECEIVES: usize = 4;

/// The sending side of one direction. Its mutex is fair and is held for one batch at a time.
pub(crate) struct Sender {
    lane: Arc<Lane>,
    window: Window,
    batch: Vec<u8>,
    reports: Buffer,
    /// The greatest message count that a report of the peer has confirmed.
    peer_message_count: u64,
    trace: Option<Trace>,
}

/// A batch of datagrams for one send.
#[derive(Default)]
struct Batch {
    chunks: usize,
    /// Bytes of each datagram. The last one may be shorter.
    length: usize,
    /// Position at the end of the batch, by cost.
    position: u64,
    /// Positions of the datagrams that ask for a report.
    reported: Vec<u64>,
}

impl Sender {
    pub(crate) fn new(lane: Arc<Lane>, window: u64, paced: bool, trace: Option<Trace>) -> Self {
        let window = Window::new(window, paced, Instant::now());
        Self { lane, window, batch: Vec::new(), reports: Buffer::new(), peer_message_count: 0, trace }
    }

    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.window.round_trip()
    }

    /// Reads the reports and acknowledgements that have arrived. With `timely`, their delay is an RTT sample.
    fn read_reports(&mut self, state: &LinkState, timely: bool) {
        self.reports.fit(state.standing.is_proved());
        for _ in 0..MAX_RECEIVES {
            if self.lane.receive(&mut self.reports).is_err() {
                return;
            }
            let now = Instant::now();
            for bytes in self.reports.datagrams() {
                if let Some(Word::Taken(count)) = Word::read(&self.lane.key, bytes) {
                    state.unacknowledged.taken(count);
                }
                let Some(report) = Datagram::decode(&self.lane.key, bytes) else { continue };
                if let Kind::Report(received) = report.kind {
                    state.received.fetch_add(bytes.len() as u64, Relaxed);
                    self.window.reported(now, report.position, received, timely);
                    self.peer_message_count = self.peer_message_count.max(report.message_count);
                }
            }
        }
    }

    /// Waits until the window permits sending. Returns how much, by cost. If no report arrives, it probes for
    /// as long as the link lives: a peer that does not read stops the sender, and nothing is lost.
    async fn room(&mut self, state: &LinkState) -> u64 {
        loop {
            self.read_reports(state, true);
            let permit = self.window.permit(Instant::now());
            // Write a line to the trace only when the sender has to wait, not for each batch.
            if let Some(trace) = self.trace.as_mut().filter(|_| !matches!(permit, Permit::Now(_))) {
                trace.note(|at| self.window.believes().json(at));
            }
            match permit {
                Permit::Now(room) => return room,
                Permit::At(at) => sleep_until(at.into()).await,
                Permit::Report(by) => {
                    tokio::select! {
                        biased;
                        // Ignore an error here: an ICMP message caused it, and the next receive clears it.
                        _ = self.lane.readable() => {}
                        () = self.lane.moved() => self.probe(state),
                        () = sleep_until(by.into()) => self.probe(state),
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

    fn probe(&mut self, state: &LinkState) {
        probe(&self.lane, state);
        self.window.probed(Instant::now());
    }

    /// Builds a batch from the chunks of `update`, starting with chunk `next`. All datagrams have the same
    /// length, but the last may be shorter: GSO accepts nothing else. Returns `None` if the update was
    /// cancelled.
    fn gather(&mut self, state: &LinkState, update: &Outgoing, next: usize, room: u64) -> Option<Batch> {
        self.batch.clear();
        let chunks = update.chunks().get(next..)?;
        let mut batch = Batch { position: self.window.sent(), ..Batch::default() };
        let message_count = if update.is_detached() { 0 } else { state.messages_sent.load(Acquire) };
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
            let datagram = Datagram { kind: Kind::Chunk(header), report_wanted, message_count, position };
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

    /// Sends one batch. Returns its number of chunks and its bytes.
    async fn send(&mut self, state: &LinkState, update: &Outgoing, next: usize) -> Result<(usize, usize)> {
        let room = self.room(state).await;
        let batch = self.gather(state, update, next, room).ok_or_else(SendReport::cancelled)?;
        self.lane.send(&self.batch, batch.length).await?;
        self.window.sent_to(Instant::now(), batch.position, &batch.reported);
        state.position.store(batch.position, Release);
        let bytes = self.batch.len();
        state.sent.fetch_add(bytes as u64, Relaxed);
        let copied = bytes.saturating_sub(batch.chunks * (CHUNK_HEADER_BYTES + self.lane.extra()));
        state.copied.fetch_add(copied as u64, Relaxed);
        Ok((batch.chunks, bytes))
    }
}

/// Sends a probe, which asks the peer for a report. Drops it if the socket has no room.
pub(crate) fn probe(lane: &Lane, state: &LinkState) {
    let (message_count, position) = (state.messages_sent.load(Acquire), state.position.load(Acquire));
    let probe = Datagram { kind: Kind::Probe, report_wanted: true, message_count, position };
    state.sent.fetch_add(lane.send_one(&probe) as u64, Relaxed);
}

/// After each control message, repeats the probe until the peer reports it. There is no limit on the time.
pub(crate) async fn repeat_probes(state: Arc<LinkState>, sender: Arc<Mutex<Sender>>) {
    loop {
        state.probe_due.notified().await;
        let mut pause = sender.lock().await.window.wait();
        loop {
            tokio::time::sleep(pause).await;
            let mut sender = sender.lock().await;
            sender.read_reports(&state, false);
            if sender.peer_message_count >= state.messages_sent.load(Acquire) {
                break;
            }
            probe(&sender.lane, &state);
            pause = (2 * pause).min(MAX_TIMEOUT);
        }
    }
}

/// Reads the reports that have arrived, unless a running `send_update` holds the sender. That call reads them
/// itself, and may hold the lock for long.
pub(crate) async fn try_read_reports((sender, state): (Arc<Mutex<Sender>>, Arc<LinkState>)) {
    if let Ok(mut sender) = sender.try_lock() {
        sender.read_reports(&state, false);
    }
}

/// Sends the chunks of an update.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a chunk longer than [`MAX_CHUNK`]; an error if the link ends or the update
/// is cancelled.
pub(crate) async fn update(
    state: &LinkState,
    sender: &Mutex<Sender>,
    update: &Outgoing,
) -> Result<SendReport> {
    if let Some(chunk) = update.chunks().iter().find(|c| c.range().len() > MAX_CHUNK.into()) {
        let context = format!("a chunk of {} bytes; one has at most {MAX_CHUNK}", chunk.range().len());
        return Err(Error::new(ErrorKind::Unsupported, SEND, context).hint("set a smaller chunk"));
    }
    state.check(SEND)?;
    state.detached.fetch_or(update.is_detached(), Relaxed);
    let started = Instant::now();
    let wire = tokio::select! {
        biased;
        () = update.cancel().cancelled() => Err(SendReport::cancelled()),
        error = state.ended(SEND) => Err(error),
        wire = send_all(state, sender, update) => wire,
    }?;
    let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
    Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
}

async fn send_all(state: &LinkState, sender: &Mutex<Sender>, update: &Outgoing) -> Result<u64> {
    let (mut next, mut wire) = (0, 0);
    let longest = update.chunks().iter().map(|c| c.range().len()).max().unwrap_or_default();
    while next < update.chunks().len() {
        let mut sender = sender.lock().await;
        let around = CHUNK_HEADER_BYTES + sender.lane.extra();
        sender.window.carry(around + longest as usize);
        if next == 0 {
            // Reports that waited in the socket give no RTT sample.
            sender.read_reports(state, false);
        }
        let (chunks, bytes) = sender.send(state, update, next).await?;
        (next, wire) = (next + chunks, wire + bytes as u64);
        if next == update.chunks().len() {
            sender.window.idle();
            sender.end_trace();
        }
        drop(sender);
        // A link that never has to wait would keep the thread. Let other tasks run after each batch.
        tokio::task::yield_now().await;
    }
    Ok(wire)
}
