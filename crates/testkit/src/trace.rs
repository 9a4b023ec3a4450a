//! Records what passes over links.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use thalweg_arena::Claim;
use thalweg_layers::{Layer, Links, Side};
use thalweg_transport::{
    Capabilities, Error, ErrorKind, Link, LinkLayer, Outgoing, Result, SendReport, Sink, Target,
};
use thalweg_wire::{ChunkHeader, Ranges, WireError};
use tokio::time::Instant;

/// What happened on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The link was opened.
    Opened,
    /// A control message was sent.
    ControlSent,
    /// A control message arrived.
    ControlReceived,
    /// A chunk was sent.
    ChunkSent,
    /// A chunk arrived and was stored.
    ChunkReceived,
    /// A chunk arrived damaged.
    ChunkDamaged,
    /// A chunk arrived that the sink did not want.
    ChunkRefused,
    /// A call failed because the link had ended, or this side closed the link.
    Ended,
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Microseconds since the trace began.
    pub at: u64,
    /// Number of the link. Links that connect are 0, 2, 4, ...; accepted ones are 1, 3, 5, ...
    pub link: u64,
    /// What happened.
    pub what: What,
    /// Round of a chunk, else 0.
    pub round: u32,
    /// Sender of a chunk, else 0.
    pub sender: u32,
    /// First byte of a chunk in its update, else 0.
    pub offset: u64,
    /// Bytes of payload.
    pub length: u64,
}

/// Records events. Clones share the record, so one trace can wrap several transports.
///
/// The record is a ring. When it is full, each new event replaces the oldest one, which is counted. An update
/// is passed to the transport chunk by chunk, so that each chunk has a time of its own.
#[derive(Clone)]
pub struct Trace(Arc<Record>);

struct Record {
    start: Instant,
    capacity: usize,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Event>,
    dropped: u64,
}

impl Ring {
    fn push(&mut self, capacity: usize, event: Event) {
        if self.events.len() >= capacity {
            self.events.pop_front();
            self.dropped += 1;
        }
        if capacity > 0 {
            self.events.push_back(event);
        }
    }
}

impl Trace {
    /// Creates an empty record of at most `capacity` events.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Record { start: Instant::now(), capacity, ring: Mutex::default() }))
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.ring().events.iter().copied().collect()
    }

    /// Number of events that were replaced.
    pub fn dropped(&self) -> u64 {
        self.ring().dropped
    }

    /// Writes the events as JSON, one in each line, oldest first.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_json_lines(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for event in self.events() {
            serde_json::to_writer(&mut *out, &event)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    fn note(&self, link: u64, what: What, chunk: Option<&ChunkHeader>, length: usize) {
        let at = u64::try_from(self.0.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let (round, sender, offset) = chunk.map_or((0, 0, 0), |c| (c.round, c.sender, c.offset));
        let event = Event { at, link, what, round, sender, offset, length: length as u64 };
        self.ring().push(self.0.capacity, event);
    }
}

impl Layer for Trace {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities { fan_out: false, ..inner }
    }

    fn links(&self, _side: Side) -> Arc<dyn Links> {
        Arc::new(self.clone())
    }
}

impl Links for Trace {
    fn wrap(&self, inner: Arc<dyn Link>, number: u64) -> Arc<dyn Link> {
        self.note(number, What::Opened, None, 0);
        Arc::new(TracedLink { inner, trace: self.clone(), number })
    }
}

struct TracedLink {
    inner: Arc<dyn Link>,
    trace: Trace,
    number: u64,
}

impl TracedLink {
    fn note(&self, what: What, chunk: Option<&ChunkHeader>, length: usize) {
        self.trace.note(self.number, what, chunk, length);
    }

    fn failed(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Closed {
            self.note(What::Ended, None, 0);
        }
        error
    }
}

/// Records what passes to the sink.
struct TracedSink<'a> {
    inner: &'a dyn Sink,
    link: &'a TracedLink,
}

impl Sink for TracedSink<'_> {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let place = self.inner.place(chunk);
        if place.is_none() {
            self.link.note(What::ChunkRefused, Some(chunk), chunk.length as usize);
        }
        place
    }

    fn prepare(&self, chunk: &ChunkHeader) -> Option<Claim> {
        self.inner.prepare(chunk)
    }

    fn begun(&self, chunk: &ChunkHeader) {
        self.inner.begun(chunk);
    }

    fn progress(&self, bytes: u64) {
        self.inner.progress(bytes);
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: std::result::Result<(), WireError>) {
        let what = if outcome.is_ok() { What::ChunkReceived } else { What::ChunkDamaged };
        self.link.note(what, Some(chunk), chunk.length as usize);
        self.inner.stored(chunk, target, outcome);
    }

    fn holed(&self, chunk: &ChunkHeader, target: Target, holes: &Ranges) -> Option<Target> {
        let target = self.inner.holed(chunk, target, holes);
        if target.is_none() {
            self.link.note(What::ChunkReceived, Some(chunk), chunk.length as usize);
        }
        target
    }
}

impl LinkLayer for TracedLink {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.trace.capabilities(self.inner.capabilities())
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        let length = message.len();
        self.inner.send_control(message).await.map_err(|error| self.failed(error))?;
        self.note(What::ControlSent, None, length);
        Ok(())
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        // On tokio's clock, which tests can pause.
        let now = Instant::now().into_std();
        let mut report = SendReport { chunks: 0, payload: 0, wire: 0, started: now, ended: now };
        for chunk in update.chunks() {
            let piece = update.with_chunks([chunk.clone()]);
            let sent = self.inner.send_update(&piece).await.map_err(|error| self.failed(error))?;
            report.chunks += sent.chunks;
            report.payload += sent.payload;
            report.wire += sent.wire;
            report.ended = report.ended.max(sent.ended);
            let (id, range) = (update.id(), chunk.range());
            let (offset, length) = (range.start, range.len() as u32);
            let (job, round, sender, layout) = (id.job, id.round, id.sender, id.layout);
            let header = ChunkHeader { job, round, sender, layout, offset, length };
            self.note(What::ChunkSent, Some(&header), length as usize);
        }
        Ok(report)
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        let traced = TracedSink { inner: sink, link: self };
        let message = self.inner.receive(&traced).await.map_err(|error| self.failed(error))?;
        self.note(What::ControlReceived, None, message.len());
        Ok(message)
    }

    async fn close(&self) {
        self.inner.close().await;
        self.note(What::Ended, None, 0);
    }
}
