//! The streams of one link.

mod heard;

use std::collections::{BTreeMap, VecDeque};

use thalweg_wire::control::{Control, Forward};
use thalweg_wire::forward::{offset, MOST_STREAMS, MOST_WINDOW};
use thalweg_wire::text::{plain, MAX_REASON};

use super::inlet::Inlet;
use super::outlet::Outlet;
use super::terms::{Batch, Fetched, ForwardConfig, ForwardEvent};
use crate::{micros, Liveness, Time};

/// Bytes that one stream may send before the next has its turn.
const TURN: u64 = 64 << 10;
/// Messages that wait to be sent, beyond those of each stream; a peer that reads none of them ends the link.
const UNREAD: usize = 1024;
/// Of each stream at most 8 credits wait, and a few other messages.
const UNREAD_OF_STREAM: usize = 16;
/// An idle end says something so many times within the other end's timeout.
const BEATS: u32 = 4;

#[derive(Debug)]
struct Stream {
    outlet: Outlet,
    inlet: Inlet,
    /// The other end knows of it, or will before a chunk that is sent now.
    announced: bool,
    /// It waits for its turn to send.
    queued: bool,
    /// How much was sent, if the peer is to be asked what is missing of it.
    asks: Option<u64>,
    /// The program has been told of the end.
    told: bool,
}

/// One end of a link that carries streams.
#[derive(Debug)]
pub struct Mux {
    config: ForwardConfig,
    streams: BTreeMap<u32, Stream>,
    next: u32,
    /// Streams with something to send, in turn.
    turns: VecDeque<u32>,
    messages: VecDeque<Control>,
    /// Streams whose peer is to be asked what is missing.
    asking: VecDeque<u32>,
    events: VecDeque<ForwardEvent>,
    live: Liveness,
    spoke: Time,
    received: u64,
    fault: Option<String>,
}

impl Mux {
    /// One end of a link that has just been agreed on.
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

    /// Near end: opens a stream. `None` if there are as many as there may be.
    pub fn open(&mut self) -> Option<u32> {
        if self.streams.len() >= self.config.streams as usize {
            return None;
        }
        while self.streams.contains_key(&self.next) {
            self.next = (self.next + 1) % MOST_STREAMS;
        }
        let stream = self.next;
        self.next = (self.next + 1) % MOST_STREAMS;
        self.add(stream, self.config.granted, false); // its first credit says how large the peer's window is
        self.say(Forward::Open { stream, window: self.config.window });
        Some(stream)
    }

    fn add(&mut self, stream: u32, granted: u64, announced: bool) {
        let (outlet, inlet) = (Outlet::new(granted, self.config.window), Inlet::new(self.config.window));
        self.streams
            .insert(stream, Stream { outlet, inlet, announced, queued: false, asks: None, told: false });
    }

    /// Streams that there are.
    pub fn count(&self) -> usize {
        self.streams.len()
    }

    /// Whether there is room for another stream.
    pub fn has_place(&self) -> bool {
        self.streams.len() < self.config.streams as usize
    }

    /// Bytes that may be taken from a stream's program now; `None` if the stream is over.
    pub fn room(&self, stream: u32) -> Option<u64> {
        self.streams.get(&stream).map(|known| known.outlet.room())
    }

    /// The program gave these bytes, no more than there is [`Mux::room`] for.
    pub fn give(&mut self, stream: u32, bytes: Vec<u8>) {
        if let Some(known) = self.streams.get_mut(&stream) {
            known.outlet.give(bytes);
            self.queue(stream);
        }
    }

    /// The program gives no more.
    pub fn end(&mut self, stream: u32) {
        let Some(known) = self.streams.get_mut(&stream).filter(|known| !known.outlet.has_ended()) else {
            return;
        };
        let end = known.outlet.end();
        self.say(Forward::End { stream, end });
        self.settle(stream);
    }

    /// What there is for the program.
    pub fn take(&mut self, stream: u32) -> Fetched {
        let Some(known) = self.streams.get_mut(&stream) else { return Fetched::Gone };
        if let Some(bytes) = known.inlet.take() {
            return Fetched::Bytes(bytes);
        }
        if !known.inlet.is_done() {
            return Fetched::Nothing;
        }
        known.told = true;
        self.settle(stream);
        Fetched::End
    }

    /// The program has taken so many bytes.
    pub fn took(&mut self, stream: u32, bytes: u64) {
        let Some(known) = self.streams.get_mut(&stream) else { return };
        known.inlet.took(bytes);
        self.grant(stream);
    }

    /// The program's connection broke, or the target refused it. Nothing more is heard of the stream.
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

    /// Says what has come and what may be sent, if it is time to.
    fn grant(&mut self, stream: u32) {
        let credit = self.streams.get_mut(&stream).and_then(|known| known.inlet.credit());
        if let Some((received, limit)) = credit {
            self.say(Forward::Credit { stream, received, limit });
        }
    }

    /// Forgets a stream of which both directions have come to their end.
    fn settle(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(|known| known.told && known.outlet.is_done()) {
            self.streams.remove(&stream);
        }
    }

    /// `bytes` more bytes of chunks have come, in whole or in part.
    pub fn progress(&mut self, now: Time, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
        self.live.progress(now, bytes);
    }

    /// Whether the peer has broken the rules: [`Mux::timeout`] says how.
    pub fn is_broken(&self) -> bool {
        self.fault.is_some()
    }

    /// Whether there are messages, and whether there are chunks to send.
    pub fn has_more(&self) -> (bool, bool) {
        (!self.messages.is_empty() || !self.asking.is_empty(), !self.turns.is_empty())
    }

    /// What the driver has to look after next.
    pub fn poll_event(&mut self) -> Option<ForwardEvent> {
        self.events.pop_front()
    }

    /// The next message to send. To be told to [`Mux::message_sent`] once it is on its way.
    pub fn poll_message(&mut self) -> Option<Control> {
        self.messages.pop_front().or_else(|| self.question())
    }

    /// Tells the peer how much was sent of a stream, so that it says what is missing.
    fn question(&mut self) -> Option<Control> {
        while let Some(stream) = self.asking.pop_front() {
            let asks = self.streams.get_mut(&stream).and_then(|known| known.asks.take());
            if let Some(end) = asks {
                return Some(Control::Forward(Forward::Sent { stream, end }));
            }
        }
        None
    }

    /// A message has been sent: chunks that are sent from now on do not arrive before it where a link keeps the order.
    pub fn message_sent(&mut self, message: &Control) {
        let Control::Forward(Forward::Open { stream, .. }) = message else { return };
        if let Some(known) = self.streams.get_mut(stream) {
            known.announced = true;
            self.queue(*stream);
        }
    }

    /// The chunks to send next, of about `most` bytes; `None` if there is nothing to send. To be told to
    /// [`Mux::batch_sent`] once they are on their way. Streams take turns.
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

    /// The chunks of a batch have been sent. Over a link that loses chunks the peer is asked what is missing.
    pub fn batch_sent(&mut self, batch: &Batch) {
        if self.config.reliable {
            return;
        }
        for &stream in &batch.streams {
            let Some(known) = self.streams.get_mut(&stream) else { continue };
            // One question, about all that was sent, however often something was sent before it could be asked.
            if known.asks.replace(known.outlet.sent()).is_none() {
                self.asking.push_back(stream);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// When [`Mux::timeout`] is to be called at the latest.
    pub fn poll_timeout(&self) -> Time {
        self.live.deadline().min(self.beat())
    }

    fn beat(&self) -> Time {
        self.spoke.saturating_add(self.config.liveness / BEATS)
    }

    /// Time has passed, or a chunk has come.
    ///
    /// # Errors
    /// Why the link has to end: the peer is silent, or breaks the rules.
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
