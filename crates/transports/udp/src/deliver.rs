//! Receiving: datagrams into the places the sink names, and control messages from a task that reads them. What the
//! datagrams say, and what is answered, is the [`Reader`]'s.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use thalweg_transport::{Error, ErrorKind, Link, NoChunks, Result, Sink};
use thalweg_wire::FrameHeader;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::datagram::{Encode, Key};
use crate::said::{Taken, Word};
use crate::shared::Shared;
use crate::socket::{Buffer, Lane};
use crate::turns::Turns;

const RECEIVE: &str = "receive";
/// Receives before the end of a link at most: several times what a receive buffer holds.
const BEFORE_END: usize = 256;
/// Receives before other tasks have their turn.
const AT_ONCE: usize = 4;
/// Bytes of chunks that may wait for a control message before nothing is answered any more, so that the window stops the
/// sender. What is in flight by then is still read: the message may be behind it, in a datagram.
const HELD: usize = 1 << 20;

/// What a datagram brings.
pub struct Came {
    /// Control messages that its sender had sent before, if it is one that says so.
    pub told: Option<u64>,
    /// A chunk's header, and where in the datagram its payload begins.
    pub chunk: Option<(FrameHeader, usize)>,
}

/// A chunk that did not come, made from others.
pub struct Rebuilt {
    /// Control messages that are to be delivered before.
    pub told: u64,
    /// Its header.
    pub header: FrameHeader,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// What one transport's datagrams say. Without IO.
pub trait Reader: Send {
    /// What it answers with.
    type Answer: Encode;

    /// A datagram of the link has come, opened; sealed it had `extra` bytes more. `None` for what is none of ours, and for
    /// what a peer may not say that has not `proved` who it is: of such nothing is kept.
    fn read(&mut self, key: &Key, datagram: &[u8], extra: usize, proved: bool) -> Option<Came>;

    /// A chunk that can be rebuilt from what was read.
    fn rebuilt(&mut self) -> Option<Rebuilt> {
        None
    }

    /// What the peer is to be told after a receive; `told` is the greatest that has come. What cannot be sent now is
    /// not sent again.
    fn answer(&mut self, told: u64) -> Option<Self::Answer>;

    /// When there will be something to answer though nothing comes.
    fn wakes(&self) -> Option<Instant> {
        None
    }
}

/// One direction's receiving side.
pub struct Intake<R> {
    lane: Arc<Lane>,
    buffer: Buffer,
    control: mpsc::Receiver<Result<Bytes>>,
    /// A control message that has come before what was sent before it.
    early: Option<Result<Bytes>>,
    /// Whether a message was given to our caller, who is not back yet.
    given: bool,
    turns: Turns,
    /// Which messages have come, by the connection or in datagrams.
    taken: Taken,
    held: Held,
    reader: R,
    /// What the last receive brought, by datagram.
    came: Vec<Option<Came>>,
}

/// Chunks that wait for a control message.
#[derive(Default)]
struct Held {
    chunks: VecDeque<(u64, FrameHeader, Vec<u8>)>,
    bytes: usize,
}

impl Held {
    fn push(&mut self, told: u64, header: FrameHeader, payload: Vec<u8>) {
        self.bytes += payload.len();
        self.chunks.push_back((told, header, payload));
    }
}

impl<R: Reader> Intake<R> {
    /// Receives from `lane`, and control messages from `control`.
    pub fn new(lane: Arc<Lane>, control: mpsc::Receiver<Result<Bytes>>, reader: R) -> Self {
        Self {
            lane,
            buffer: Buffer::new(),
            control,
            early: None,
            given: false,
            turns: Turns::default(),
            taken: Taken::default(),
            held: Held::default(),
            reader,
            came: Vec::new(),
        }
    }

    /// The next control message; chunks go to `sink` meanwhile.
    pub async fn next(&mut self, sink: &dyn Sink, shared: &Shared) -> Result<Bytes> {
        if std::mem::take(&mut self.given) {
            self.turns.delivered();
        }
        self.buffer.fit(shared.standing.is_proved());
        self.release(sink, shared)?;
        self.tell(shared);
        loop {
            let due = matches!(self.early, Some(Err(_))) || self.turns.may_deliver();
            if let Some(next) = self.early.take_if(|_| due) {
                if next.is_err() {
                    self.take(sink, shared, BEFORE_END)?;
                }
                self.given = true;
                return next;
            }
            let (waits, room) = (self.early.is_some(), self.has_room());
            let wakes = self.reader.wakes().filter(|_| self.answers());
            let (timed, wakes) = (wakes.is_some(), wakes.unwrap_or_else(Instant::now).into());
            tokio::select! {
                biased;
                error = shared.refused(RECEIVE) => return Err(error),
                next = self.control.recv(), if !waits => {
                    let ended = || Err(Error::closed(RECEIVE, "the link has ended"));
                    let next = next.unwrap_or_else(ended);
                    if next.is_err() || self.taken.by_connection() {
                        self.early = Some(next);
                    }
                    self.say_taken(shared);
                }
                // An error is an ICMP message's, and the next call shows it.
                _ = self.lane.readable(), if room => self.take(sink, shared, AT_ONCE)?,
                () = sleep_until(wakes), if timed => self.tell(shared),
                // Nobody will tell any more what was sent before it.
                _ = shared.ended(RECEIVE), if waits => {
                    self.take(sink, shared, BEFORE_END)?;
                    self.given = true;
                    return self.early.take().unwrap_or_else(|| Err(Error::closed(RECEIVE, "the link has ended")));
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Gives the chunks to `sink` whose turn it is now.
    fn release(&mut self, sink: &dyn Sink, shared: &Shared) -> Result<()> {
        while self.held.chunks.front().is_some_and(|(told, ..)| self.turns.is_due(*told)) {
            let Some((_, header, payload)) = self.held.chunks.pop_front() else { break };
            self.held.bytes -= payload.len();
            store(&header, &payload, sink, shared)?;
        }
        Ok(())
    }

    /// Takes what the kernel holds for us, in at most `most` receives.
    fn take(&mut self, sink: &dyn Sink, shared: &Shared, most: usize) -> Result<()> {
        for _ in 0..most {
            if !self.has_room() {
                return Ok(());
            }
            match self.lane.receive(&mut self.buffer) {
                Ok(()) => self.sort(sink, shared)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => {} // an ICMP message's; the datagrams behind it are still there
            }
        }
        Ok(())
    }

    fn sort(&mut self, sink: &dyn Sink, shared: &Shared) -> Result<()> {
        let (mut bytes, mut payload) = (0, 0);
        let (extra, proved) = (self.lane.extra(), shared.standing.is_proved());
        self.came.clear();
        let mut said = false;
        for datagram in self.buffer.datagrams() {
            if let Some(Word::Message(number)) = Word::read(&self.lane.key, datagram).filter(|_| proved) {
                // The next one is taken if there is room for it; else it comes again.
                if self.early.is_none() && self.taken.by_datagram(number) {
                    self.early = Some(Ok(Word::message(datagram)));
                    self.turns.heard(number);
                }
                bytes += datagram.len() + extra;
                said = true;
            }
            let came = self.reader.read(&self.lane.key, datagram, extra, proved);
            bytes += came.as_ref().map_or(0, |_| datagram.len() + extra);
            payload += came.as_ref().and_then(|came| came.chunk).map_or(0, |(header, _)| header.length());
            if let Some(told) = came.as_ref().and_then(|came| came.told) {
                self.turns.heard(told);
            }
            self.came.push(came);
        }
        shared.received.fetch_add(bytes as u64, Relaxed);
        if said {
            self.say_taken(shared);
        }
        if payload > 0 {
            sink.progress(payload as u64);
        }
        for (datagram, came) in self.buffer.datagrams().zip(&self.came) {
            let Some(Came { told: Some(told), chunk: Some((header, start)) }) = came else { continue };
            let Some(payload) = datagram.get(*start..) else { continue };
            if self.turns.is_due(*told) {
                store(header, payload, sink, shared)?;
            } else {
                self.held.push(*told, *header, payload.to_vec());
                shared.copied.fetch_add(payload.len() as u64, Relaxed);
            }
        }
        while let Some(Rebuilt { told, header, payload }) = self.reader.rebuilt() {
            sink.progress(payload.len() as u64);
            if self.turns.is_due(told) {
                store(&header, &payload, sink, shared)?;
            } else {
                self.held.push(told, header, payload);
            }
        }
        self.tell(shared);
        Ok(())
    }

    fn say_taken(&self, shared: &Shared) {
        let taken = Word::Taken(self.taken.count());
        shared.sent.fetch_add(self.lane.tell(&taken) as u64, Relaxed);
    }

    /// Whether another receive may be held. A peer that keeps to its window never sends more than that.
    fn has_room(&self) -> bool {
        self.held.bytes < HELD + self.lane.window as usize
    }

    fn answers(&self) -> bool {
        self.held.bytes < HELD
    }

    fn tell(&mut self, shared: &Shared) {
        if !self.answers() {
            return;
        }
        if let Some(answer) = self.reader.answer(self.turns.told()) {
            shared.sent.fetch_add(self.lane.tell(&answer) as u64, Relaxed);
        }
    }
}

/// Copies a chunk into its place, once.
fn store(header: &FrameHeader, payload: &[u8], sink: &dyn Sink, shared: &Shared) -> Result<()> {
    let Some(mut target) = sink.place(&header.chunk) else { return Ok(()) };
    let place = target.bytes_mut();
    if place.len() != payload.len() {
        let context = format!("a place of {} bytes for {}", place.len(), payload.len());
        return Err(Error::new(ErrorKind::System, RECEIVE, context));
    }
    place.copy_from_slice(payload);
    shared.copied.fetch_add(payload.len() as u64, Relaxed);
    let outcome = header.verify(target.bytes());
    sink.stored(&header.chunk, target, outcome);
    Ok(())
}

/// Passes control messages on until the link ends, which is noticed here whoever waits for it.
pub async fn pass_on(inner: Arc<dyn Link>, shared: Arc<Shared>, to: mpsc::Sender<Result<Bytes>>) {
    tokio::select! {
        () = pass_all_on(&*inner, &shared, to) => {}
        error = shared.standing.turned_out() => {
            shared.refuse(&error.to_string());
            inner.close().await;
        }
    }
}

async fn pass_all_on(inner: &dyn Link, shared: &Shared, to: mpsc::Sender<Result<Bytes>>) {
    loop {
        let next = inner.receive(&NoChunks).await;
        if let Err(error) = &next {
            match error.kind() {
                ErrorKind::Closed => shared.ended_by_peer(&error.to_string()),
                _ => shared.ended_by_peer(&format!("the control connection broke: {error}")),
            }
        }
        let ended = next.is_err();
        if to.send(next).await.is_err() || ended {
            return;
        }
    }
}
