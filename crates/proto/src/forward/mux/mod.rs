//! The streams of one link: which messages and chunks are sent next, and when the link is dead.

mod receive;

use std::collections::{BTreeMap, VecDeque};

use thalweg_wire::control::{Control, Forward};
use thalweg_wire::forward::{offset, MOST_STREAMS, MOST_WINDOW};
use thalweg_wire::text::{plain, MAX_REASON};

use super::inlet::Inlet;
use super::outlet::Outlet;
use super::terms::{Batch, Fetched, ForwardConfig, ForwardEvent};
use crate::{micros, Liveness, Time};

/// Bytes that one stream may send in its turn, before the next stream's turn comes.
const TURN: u64 = 64 << 10;
/// Maximum number of messages that wait to be sent, besides those of each stream. A peer that reads no
/// messages ends the link.
const UNREAD: usize = 1024;
/// Maximum number of messages of one stream that wait: 8 credits, and a few others.
const UNREAD_OF_STREAM: usize = 16;
/// Each end sends this many pings in one liveness timeout.
const BEATS: u32 = 4;

/// The state of one stream.
#[derive(Debug)]
struct Stream {
    outlet: Outlet,
    inlet: Inlet,
    /// The other end knows the stream, or will before it gets a chunk that is sent now.
    announced: bool,
    /// The stream waits for its turn to send.
    queued: bool,
    /// Bytes sent so far, if the peer must be asked which of them are missing.
    asks: Option<u64>,
    /// The program has received the end of the stream.
    end_delivered: bool,
}

/// One end of a link that carries streams.
#[derive(Debug)]
pub struct Mux {
    config: ForwardConfig,
    streams: BTreeMap<u32, Stream>,
    /// The number for the next stream.
    next: u32,
    /// Streams with bytes to send, in the order of their turns.
    turns: VecDeque<u32>,
    messages: VecDeque<Control>,
    /// Streams for which the peer must be asked what is missing.
    asking: VecDeque<u32>,
    events: VecDeque<ForwardEvent>,
    live: Liveness,
    /// When the last ping was sent.
    spoke: Time,
    /// Bytes of chunks received on this link.
    received: u64,
    /// How the peer broke the protocol; the link must end.
    fault: Option<String>,
}

impl Mux {
    /// One end of a link after its handshake.
    pub fn new(now: Time, config: ForwardConfig) -> Self {
        let config = ForwardConfig {
            window: config.window.clamp(1, MOST_WINDOW),
            granted: config.granted.min(MOST_WINDOW),
            streams: config.streams.clamp(1, MOST_STREAMS),
            ..config
        };
        Self {
            config,
            streams: BTreeMap::new(),
            next: 0,
            turns: VecDeque::new(),
            messages: VecDeque::new(),
            asking: VecDeque::new(),
            events: VecDeque::new(),
            live: Liveness::new(now, config.liveness),
            spoke: now,
            received: 0,
            fault: None,
        }
    }

    /// Opens a stream at the near end. `None` if the most streams are open.
    pub fn open(&mut self) -> Option<u32> {
        if self.streams.len() >= self.config.streams as usize {
            return None;
        }
        while self.streams.contains_key(&self.next) {
            self.next = (self.next + 1) % MOST_STREAMS;
        }
        let stream = self.next;
        self.next = (self.next + 1) % MOST_STREAMS;
        self.add(stream, self.config.granted, false); // the peer's first credit tells the size of its window
        self.say(Forward::Open { stream, window: self.config.window });
        Some(stream)
    }

    fn add(&mut self, stream: u32, granted: u64, announced: bool) {
        let (outlet, inlet) = (Outlet::new(granted, self.config.window), Inlet::new(self.config.window));
        self.streams.insert(
            stream,
            Stream { outlet, inlet, announced, queued: false, asks: None, end_delivered: false },
        );
    }

    /// How many streams are open.
    pub fn count(&self) -> usize {
        self.streams.len()
    }

    /// Whether another stream may be opened.
    pub fn has_place(&self) -> bool {
        self.streams.len() < self.config.streams as usize
    }

    /// How many bytes may be taken from a stream's program now; `None` if the stream does not exist.
    pub fn room(&self, stream: u32) -> Option<u64> {
        self.streams.get(&stream).map(|known| known.outlet.room())
    }

    /// Adds bytes of the program, at most [`Mux::room`].
    pub fn give(&mut self, stream: u32, bytes: Vec<u8>) {
        if let Some(known) = self.streams.get_mut(&stream) {
            known.outlet.give(bytes);
            self.queue(stream);
        }
    }

    /// Notes that the program gives no more bytes.
    pub fn end(&mut self, stream: u32) {
        let Some(known) = self.streams.get_mut(&stream).filter(|known| !known.outlet.has_ended()) else {
            return;
        };
        let end = known.outlet.end();
        self.say(Forward::End { stream, end });
        self.settle(stream);
    }

    /// Takes the next bytes, or the end, for the program.
    pub fn take(&mut self, stream: u32) -> Fetched {
        let Some(known) = self.streams.get_mut(&stream) else { return Fetched::Gone };
        if let Some(bytes) = known.inlet.take() {
            return Fetched::Bytes(bytes);
        }
        if !known.inlet.is_done() {
            return Fetched::Nothing;
        }
        known.end_delivered = true;
        self.settle(stream);
        Fetched::End
    }

    /// Notes that the program has taken this many bytes.
    pub fn took(&mut self, stream: u32, bytes: u64) {
        let Some(known) = self.streams.get_mut(&stream) else { return };
        known.inlet.took(bytes);
        self.grant(stream);
    }

    /// Resets a stream, because the program's connection broke or the target refused it. No event follows for
    /// the stream.
    pub fn reset(&mut self, stream: u32, reason: &str) {
        if self.streams.remove(&stream).is_some() {
            self.say(Forward::Reset { stream, reason: plain(reason, MAX_REASON) });
        }
    }

    fn say(&mut self, message: Forward) {
        self.messages.push_back(Control::Forward(message));
        if self.messages.len() > UNREAD + UNREAD_OF_STREAM * self.config.streams as usize {
            self.blame("it reads none of our messages");
        }
    }

    fn blame(&mut self, what: &str) {
        self.fault.get_or_insert_with(|| what.into());
    }

    fn queue(&mut self, stream: u32) {
        if let Some(known) = self.streams.get_mut(&stream) {
            if known.announced && known.outlet.has_more() && !std::mem::replace(&mut known.queued, true) {
                self.turns.push_back(stream);
            }
        }
    }

    /// Sends a credit for the stream, if it is time to.
    fn grant(&mut self, stream: u32) {
        let credit = self.streams.get_mut(&stream).and_then(|known| known.inlet.credit());
        if let Some((received, limit)) = credit {
            self.say(Forward::Credit { stream, received, limit });
        }
    }

    /// Forgets a stream of which both directions have ended.
    fn settle(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(|known| known.end_delivered && known.outlet.is_done()) {
            self.streams.remove(&stream);
        }
    }

    /// Reports that `bytes` more bytes of chunks have arrived, which need not be whole chunks.
    pub fn progress(&mut self, now: Time, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
        self.live.progress(now, bytes);
    }

    /// Whether the peer has broken the protocol. [`Mux::timeout`] says how.
    pub fn is_broken(&self) -> bool {
        self.fault.is_some()
    }

    /// Whether there are messages to send, and whether there are chunks to send.
    pub fn has_more(&self) -> (bool, bool) {
        (!self.messages.is_empty() || !self.asking.is_empty(), !self.turns.is_empty())
    }

    /// Takes the next event for the driver.
    pub fn poll_event(&mut self) -> Option<ForwardEvent> {
        self.events.pop_front()
    }

    /// Takes the next message to send. Once it is sent, the driver must call [`Mux::message_sent`].
    pub fn poll_message(&mut self) -> Option<Control> {
        self.messages.pop_front().or_else(|| self.question())
    }

    /// The next question to the peer: how much of a stream was sent, so that the peer says what is missing.
    fn question(&mut self) -> Option<Control> {
        while let Some(stream) = self.asking.pop_front() {
            let asks = self.streams.get_mut(&stream).and_then(|known| known.asks.take());
            if let Some(end) = asks {
                return Some(Control::Forward(Forward::Sent { stream, end }));
            }
        }
        None
    }

    /// Reports that a message was sent. On an ordered link, chunks that are sent from now on arrive after it.
    pub fn message_sent(&mut self, message: &Control) {
        let Control::Forward(Forward::Open { stream, .. }) = message else { return };
        if let Some(known) = self.streams.get_mut(stream) {
            known.announced = true;
            self.queue(*stream);
        }
    }

    /// Takes the chunks to send next, of about `most` bytes; `None` if there are none. Streams take turns.
    /// Once the batch is sent, the driver must call [`Mux::batch_sent`].
    pub fn poll_batch(&mut self, most: u64) -> Option<Batch> {
        let mut batch = Batch::default();
        while (batch.bytes.len() as u64) < most {
            let Some(stream) = self.turns.pop_front() else { break };
            let Some(known) = self.streams.get_mut(&stream) else { continue };
            known.queued = false;
            let turn = batch.bytes.len() as u64 + TURN.min(most);
            while (batch.bytes.len() as u64) < turn {
                let left = turn - batch.bytes.len() as u64;
                let most = left.min(u64::from(self.config.chunk.max(1)));
                let Some(range) = known.outlet.take(most, &mut batch.bytes) else { break };
                batch.chunks.push((offset(stream, range.start), range.len() as u32));
            }
            if !batch.streams.contains(&stream) {
                batch.streams.push(stream);
            }
            self.queue(stream);
        }
        (!batch.chunks.is_empty()).then_some(batch)
    }

    /// Reports that the chunks of a batch were sent. On a link that loses chunks, the peer is then asked what
    /// is missing.
    pub fn batch_sent(&mut self, batch: &Batch) {
        if self.config.reliable {
            return;
        }
        for &stream in &batch.streams {
            let Some(known) = self.streams.get_mut(&stream) else { continue };
            // One question covers everything that was sent before it, however many batches these were.
            if known.asks.replace(known.outlet.sent()).is_none() {
                self.asking.push_back(stream);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// When the driver must call [`Mux::timeout`] at the latest.
    pub fn poll_timeout(&self) -> Time {
        self.live.deadline().min(self.beat())
    }

    fn beat(&self) -> Time {
        self.spoke.saturating_add(self.config.liveness / BEATS)
    }

    /// Handles the timers that are due at `now`. The driver also calls it after a chunk.
    ///
    /// # Errors
    /// Why the link must end: the peer is silent, or broke the protocol.
    pub fn timeout(&mut self, now: Time) -> Result<(), String> {
        self.check()?;
        if now >= self.live.deadline() {
            return Err(format!("it says nothing for {:.1} s", self.live.timeout().as_secs_f64()));
        }
        if now >= self.beat() {
            self.spoke = now;
            self.messages.push_back(Control::Ping { clock: micros(now), received: self.received });
        }
        Ok(())
    }
}
