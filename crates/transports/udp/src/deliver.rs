//! The receiving side of a link. It copies chunks from datagrams into the targets that the sink gives, and
//! delivers control messages in order with them. A [`Reader`] parses the datagrams of one transport and
//! writes the answers.

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
use crate::link_state::LinkState;
use crate::repetition::{Taken, Word};
use crate::socket::{Buffer, Lane};
use crate::turns::Turns;

const RECEIVE: &str = "receive";
/// Maximum number of receive calls when a link ends: enough to empty a receive buffer several times.
const MAX_RECEIVES_AT_END: usize = 256;
/// Maximum number of receive calls in a row; then other tasks may run.
const MAX_RECEIVES: usize = 4;
/// Bytes of chunks that may wait for a control message. Beyond that the receiver sends no more reports, so
/// the window stops the sender. The receiver still reads what is in flight: the awaited message may follow in
/// a datagram.
const MAX_HELD_BYTES: usize = 1 << 20;

/// The content of a datagram.
pub struct Parsed {
    /// Number of control messages that the peer had sent before this datagram. `None` if the datagram does
    /// not say.
    pub message_count: Option<u64>,
    /// The chunk's header, and the offset of its payload in the datagram.
    pub chunk: Option<(FrameHeader, usize)>,
}

/// A lost chunk, rebuilt from other datagrams (`ltp`'s repair packets).
pub struct Rebuilt {
    /// Number of control messages to be delivered before this chunk.
    pub message_count: u64,
    /// The chunk's header.
    pub header: FrameHeader,
    /// The chunk's payload.
    pub payload: Vec<u8>,
}

/// Parses the datagrams of one transport and writes its answers. Does no I/O.
pub trait Reader: Send {
    /// A datagram that answers the peer: a report, say.
    type Answer: Encode;

    /// Parses a datagram, already opened if it was sealed. `extra` is the number of bytes that sealing had
    /// added. Returns `None` for a datagram that is not valid, or that a peer which has not `proved` its
    /// identity may not send. The reader keeps nothing of such a datagram.
    fn read(&mut self, key: &Key, datagram: &[u8], extra: usize, proved: bool) -> Option<Parsed>;

    /// Rebuilds one lost chunk from the datagrams so far. Returns `None` if no more can be rebuilt.
    fn rebuilt(&mut self) -> Option<Rebuilt> {
        None
    }

    /// The answer to send after a receive, if any. `message_count` is the greatest one received. The caller
    /// sends the answer once; if the socket has no room, it is lost.
    fn answer(&mut self, message_count: u64) -> Option<Self::Answer>;

    /// When an answer is due even if nothing arrives.
    fn wakes(&self) -> Option<Instant> {
        None
    }
}

/// The receiving side of one direction.
pub struct Intake<R> {
    lane: Arc<Lane>,
    buffer: Buffer,
    /// Messages of the control connection, from [`pass_on`].
    control: mpsc::Receiver<Result<Bytes>>,
    /// A control message, or the connection's end, that must not be delivered yet: datagrams that were sent
    /// before it may still be in flight.
    early: Option<Result<Bytes>>,
    /// True if `next` has returned a message and has not been called again.
    given: bool,
    turns: Turns,
    /// Removes duplicates: each message may arrive on the connection and in datagrams.
    taken: Taken,
    held: Held,
    reader: R,
    /// The parsed datagrams of the last receive.
    parsed: Vec<Option<Parsed>>,
}

/// Chunks that wait for a control message.
#[derive(Default)]
struct Held {
    chunks: VecDeque<(u64, FrameHeader, Vec<u8>)>,
    bytes: usize,
}

impl Held {
    fn push(&mut self, message_count: u64, header: FrameHeader, payload: Vec<u8>) {
        self.bytes += payload.len();
        self.chunks.push_back((message_count, header, payload));
    }
}

impl<R: Reader> Intake<R> {
    /// Creates the receiving side: datagrams come from `lane`, control messages from `control`.
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
            parsed: Vec::new(),
        }
    }

    /// Returns the next control message. Until then, gives chunks to `sink`.
    ///
    /// # Errors
    /// The reason why the link ended; an error if a sink gives a target of the wrong length.
    pub async fn next(&mut self, sink: &dyn Sink, state: &LinkState) -> Result<Bytes> {
        if std::mem::take(&mut self.given) {
            self.turns.delivered();
        }
        self.buffer.fit(state.standing.is_proved());
        self.release(sink, state)?;
        self.send_answer(state);
        loop {
            let due = matches!(self.early, Some(Err(_))) || self.turns.may_deliver();
            if let Some(next) = self.early.take_if(|_| due) {
                if next.is_err() {
                    self.take(sink, state, MAX_RECEIVES_AT_END)?;
                }
                self.given = true;
                return next;
            }
            let (waits, room) = (self.early.is_some(), self.has_room());
            let wakes = self.reader.wakes().filter(|_| self.answers());
            let (timed, wakes) = (wakes.is_some(), wakes.unwrap_or_else(Instant::now).into());
            tokio::select! {
                biased;
                error = state.refused(RECEIVE) => return Err(error),
                next = self.control.recv(), if !waits => {
                    let ended = || Err(Error::closed(RECEIVE, "the link has ended"));
                    let next = next.unwrap_or_else(ended);
                    if next.is_err() || self.taken.by_connection() {
                        self.early = Some(next);
                    }
                    self.acknowledge(state);
                }
                // Ignore an error here: an ICMP message caused it, and the receive call reports and clears
                // it.
                _ = self.lane.readable(), if room => self.take(sink, state, MAX_RECEIVES)?,
                () = sleep_until(wakes), if timed => self.send_answer(state),
                // The link has ended, so no probe will show any more that earlier datagrams have arrived.
                // Read what the kernel holds, then deliver the message.
                _ = state.ended(RECEIVE), if waits => {
                    self.take(sink, state, MAX_RECEIVES_AT_END)?;
                    self.given = true;
                    return self.early.take().unwrap_or_else(|| Err(Error::closed(RECEIVE, "the link has ended")));
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Gives waiting chunks to `sink`, as far as their messages have been delivered.
    fn release(&mut self, sink: &dyn Sink, state: &LinkState) -> Result<()> {
        while self.held.chunks.front().is_some_and(|(message_count, ..)| self.turns.is_due(*message_count)) {
            let Some((_, header, payload)) = self.held.chunks.pop_front() else { break };
            self.held.bytes -= payload.len();
            store(&header, &payload, sink, state)?;
        }
        Ok(())
    }

    /// Reads what the kernel holds, in at most `max_receives` receive calls.
    fn take(&mut self, sink: &dyn Sink, state: &LinkState, max_receives: usize) -> Result<()> {
        for _ in 0..max_receives {
            if !self.has_room() {
                return Ok(());
            }
            match self.lane.receive(&mut self.buffer) {
                Ok(()) => self.sort(sink, state)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // Ignore the error: an ICMP message caused it, and the datagrams behind it can still be read.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn sort(&mut self, sink: &dyn Sink, state: &LinkState) -> Result<()> {
        let (mut bytes, mut payload) = (0, 0);
        let (extra, proved) = (self.lane.extra(), state.standing.is_proved());
        self.parsed.clear();
        let mut has_message = false;
        for datagram in self.buffer.datagrams() {
            if let Some(Word::Message(number)) = Word::read(&self.lane.key, datagram).filter(|_| proved) {
                // Take the message only if it is the next in order and no earlier message waits. Otherwise
                // drop it, since the peer repeats it.
                if self.early.is_none() && self.taken.by_datagram(number) {
                    self.early = Some(Ok(Word::message(datagram)));
                    self.turns.note_count(number);
                }
                bytes += datagram.len() + extra;
                has_message = true;
            }
            let parsed = self.reader.read(&self.lane.key, datagram, extra, proved);
            bytes += parsed.as_ref().map_or(0, |_| datagram.len() + extra);
            payload +=
                parsed.as_ref().and_then(|parsed| parsed.chunk).map_or(0, |(header, _)| header.length());
            if let Some(message_count) = parsed.as_ref().and_then(|parsed| parsed.message_count) {
                self.turns.note_count(message_count);
            }
            self.parsed.push(parsed);
        }
        state.received.fetch_add(bytes as u64, Relaxed);
        if has_message {
            self.acknowledge(state);
        }
        if payload > 0 {
            sink.progress(payload as u64);
        }
        for (datagram, parsed) in self.buffer.datagrams().zip(&self.parsed) {
            let Some(Parsed { message_count: Some(message_count), chunk: Some((header, start)) }) = parsed
            else {
                continue;
            };
            let Some(payload) = datagram.get(*start..) else { continue };
            if self.turns.is_due(*message_count) {
                store(header, payload, sink, state)?;
            } else {
                self.held.push(*message_count, *header, payload.to_vec());
                state.copied.fetch_add(payload.len() as u64, Relaxed);
            }
        }
        while let Some(Rebuilt { message_count, header, payload }) = self.reader.rebuilt() {
            sink.progress(payload.len() as u64);
            if self.turns.is_due(message_count) {
                store(&header, &payload, sink, state)?;
            } else {
                self.held.push(message_count, header, payload);
            }
        }
        self.send_answer(state);
        Ok(())
    }

    fn acknowledge(&self, state: &LinkState) {
        let taken = Word::Taken(self.taken.count());
        state.sent.fetch_add(self.lane.send_one(&taken) as u64, Relaxed);
    }

    /// Whether the receiver may keep the chunks of another receive. A peer that respects its window never
    /// sends more.
    fn has_room(&self) -> bool {
        self.held.bytes < MAX_HELD_BYTES + self.lane.window as usize
    }

    fn answers(&self) -> bool {
        self.held.bytes < MAX_HELD_BYTES
    }

    fn send_answer(&mut self, state: &LinkState) {
        if !self.answers() {
            return;
        }
        if let Some(answer) = self.reader.answer(self.turns.greatest_count()) {
            state.sent.fetch_add(self.lane.send_one(&answer) as u64, Relaxed);
        }
    }
}

/// Copies a chunk into its target and gives that to `sink`, with the outcome of the checksum.
fn store(header: &FrameHeader, payload: &[u8], sink: &dyn Sink, state: &LinkState) -> Result<()> {
    let Some(mut target) = sink.place(&header.chunk) else { return Ok(()) };
    let place = target.bytes_mut();
    if place.len() != payload.len() {
        let context = format!("a place of {} bytes for {}", place.len(), payload.len());
        return Err(Error::new(ErrorKind::System, RECEIVE, context));
    }
    place.copy_from_slice(payload);
    state.copied.fetch_add(payload.len() as u64, Relaxed);
    let outcome = header.verify(target.bytes());
    sink.stored(&header.chunk, target, outcome);
    Ok(())
}

/// Task of a link: forwards control messages until the link ends. So the end is noticed even if nobody calls
/// `receive`. If the admission queue evicts the peer, the task closes the link.
pub async fn pass_on(inner: Arc<dyn Link>, state: Arc<LinkState>, to: mpsc::Sender<Result<Bytes>>) {
    tokio::select! {
        () = pass_all_on(&*inner, &state, to) => {}
        error = state.standing.evicted() => {
            state.refuse(&error.to_string());
            inner.close().await;
        }
    }
}

async fn pass_all_on(inner: &dyn Link, state: &LinkState, to: mpsc::Sender<Result<Bytes>>) {
    loop {
        let next = inner.receive(&NoChunks).await;
        if let Err(error) = &next {
            match error.kind() {
                ErrorKind::Closed => state.ended_by_peer(&error.to_string()),
                _ => state.ended_by_peer(&format!("the control connection broke: {error}")),
            }
        }
        let ended = next.is_err();
        if to.send(next).await.is_err() || ended {
            return;
        }
    }
}
