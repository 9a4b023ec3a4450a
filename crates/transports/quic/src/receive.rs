//! Receives messages and chunks. Chunks go straight from the packets into the places that the sink gives.
//!
//! All state is in [`Intake`] and none in a future, because `receive` returns with a message while chunks are
//! still arriving.

use std::future::poll_fn;
use std::pin::{pin, Pin};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use quinn::{AcceptUni, ApplicationClose, ConnectionError, ReadError, RecvStream};
use thalweg_transport::{Error, ErrorKind, Result, Sink, Target};
use thalweg_wire::{FrameHeader, Kind};

use crate::link::{LinkState, CLOSED, PREAMBLE};
use crate::marks::{split, HEAD_BYTES};

/// Maximum number of chunk streams that are read at a time. Later ones wait, within the connection's window.
const MAX_LANES: usize = 16;
/// Bytes that are allocated for a message before its first bytes have arrived. So a false length costs
/// little memory.
const FIRST_GRANT: usize = 64 << 10;
/// Size of the buffer through which an unwanted chunk is read.
const DISCARD_BUFFER: usize = 64 << 10;
/// Number of copies of a chunk's payload: out of the received datagrams, and into its place.
const RECEIVE_COPIES: u64 = 2;
const RECEIVE: &str = "receive";

/// The receiving side of a link.
#[derive(Default)]
pub(crate) struct Intake {
    /// The stream of the peer's messages, once it is there.
    messages: Option<Messages>,
    /// The chunk streams that are being read, in the order of their numbers.
    lanes: Vec<Lane>,
    /// Number of chunk streams that the peer has opened.
    opened: u64,
    /// Number of messages that the session has got.
    delivered: u64,
    /// Why nothing more will arrive.
    lost: Option<ConnectionError>,
}

/// The peer's first stream.
struct Messages {
    stream: RecvStream,
    head: [u8; HEAD_BYTES],
    /// Number of bytes that have arrived of what `state` waits for.
    have: usize,
    state: State,
}

enum State {
    Preamble,
    Head,
    Payload(u64, FrameHeader, Vec<u8>),
    /// A message, and the number of chunk streams that must have arrived before it.
    Ready(u64, Bytes),
}

/// A chunk stream.
struct Lane {
    /// Number of the stream, from 0.
    index: u64,
    stream: RecvStream,
    head: [u8; HEAD_BYTES],
    have: usize,
    part: Part,
    waste: Vec<u8>,
}

/// The part of a chunk stream that is being read.
enum Part {
    Head,
    /// The head of a chunk that waits for messages that were sent before it.
    Held(u64, FrameHeader),
    Chunk(FrameHeader, Target),
    Unwanted(FrameHeader),
    /// The chunk is complete, and the stream should end.
    End,
}

/// The result of reading from a stream once.
enum Step {
    /// More was read.
    More,
    /// The stream has ended.
    Over,
}

impl Intake {
    /// Waits for the peer's first stream.
    pub(crate) async fn open(&mut self, shared: &LinkState) -> Result<()> {
        if self.messages.is_none() {
            let stream = shared.connection.accept_uni().await.map_err(|e| shared.lost("connect", &e))?;
            self.messages = Some(Messages::new(stream));
        }
        Ok(())
    }

    /// Waits for the next message. `None` when the connection has ended. The future may be dropped at any
    /// time and the call repeated.
    async fn next(&mut self, sink: &dyn Sink, shared: &LinkState) -> Result<Option<Bytes>> {
        loop {
            if let Some(message) = self.take_message() {
                return Ok(Some(message));
            }
            if self.lost.is_some() {
                return Ok(None);
            }
            let mut accept = pin!(shared.connection.accept_uni());
            poll_fn(|cx| self.poll(cx, accept.as_mut(), sink, shared)).await?;
            // Yield after each round, so that a link that always has data leaves time to the others.
            tokio::task::yield_now().await;
        }
    }

    /// Takes the next message, but only after all chunks that were sent before it have ended. Once the connection is lost, it
    /// does not wait for them.
    fn take_message(&mut self) -> Option<Bytes> {
        let missing = self.lanes.iter().find(|lane| !matches!(lane.part, Part::End));
        let first_missing = missing.map_or(self.opened, |lane| lane.index);
        let messages = self.messages.as_mut()?;
        match &messages.state {
            State::Ready(mark, _) if *mark <= first_missing || self.lost.is_some() => {}
            _ => return None,
        }
        let State::Ready(_, message) = std::mem::replace(&mut messages.state, State::Head) else {
            return None;
        };
        messages.have = 0;
        self.delivered += 1;
        Some(message)
    }

    /// Reads the available bytes of all streams. Ready if there were any.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        accept: Pin<&mut AcceptUni<'_>>,
        sink: &dyn Sink,
        shared: &LinkState,
    ) -> Poll<Result<()>> {
        let (mut progress, mut lost) = (false, None);
        if let Some(messages) = &mut self.messages {
            match messages.poll(cx, shared) {
                Poll::Ready(Ok(())) => progress = true,
                Poll::Ready(Err(Ended::Lost(error))) => lost = Some(error),
                Poll::Ready(Err(Ended::Broken(error))) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        let mut index = 0;
        while let Some(lane) = self.lanes.get_mut(index) {
            match lane.poll(cx, self.delivered, sink, shared) {
                Poll::Pending => index += 1,
                Poll::Ready(Ok(Step::More)) => {
                    progress = true;
                    index += 1;
                }
                Poll::Ready(Ok(Step::Over)) => {
                    progress = true;
                    drop(self.lanes.remove(index));
                }
                Poll::Ready(Err(Ended::Lost(error))) => {
                    lost = Some(error);
                    drop(self.lanes.remove(index));
                }
                Poll::Ready(Err(Ended::Broken(error))) => return Poll::Ready(Err(error)),
            }
        }
        if self.lanes.len() < MAX_LANES {
            match std::future::Future::poll(accept, cx) {
                Poll::Ready(Ok(stream)) => {
                    progress = true;
                    self.opened(stream);
                }
                Poll::Ready(Err(error)) => lost = Some(error),
                Poll::Pending => {}
            }
        }
        if !progress {
            // Streams that had arrived before the connection was lost have been read to their ends.
            self.lost = lost;
        }
        if progress || self.lost.is_some() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn opened(&mut self, stream: RecvStream) {
        if self.messages.is_none() {
            self.messages = Some(Messages::new(stream));
            return;
        }
        let lane = Lane {
            index: self.opened,
            stream,
            head: [0; HEAD_BYTES],
            have: 0,
            part: Part::Head,
            waste: Vec::new(),
        };
        self.lanes.push(lane);
        self.opened += 1;
    }
}

/// Why no more bytes of a stream will arrive.
enum Ended {
    /// The connection was lost.
    Lost(ConnectionError),
    /// The peer has broken the protocol.
    Broken(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Ended::Broken(error)
    }
}

/// The end of a link that the peer has closed.
fn closed() -> ConnectionError {
    ConnectionError::ApplicationClosed(ApplicationClose { error_code: CLOSED, reason: Bytes::new() })
}

fn corrupt(context: impl Into<String>) -> Ended {
    Ended::Broken(Error::new(ErrorKind::Corrupt, RECEIVE, context))
}

/// Reads into `buffer`. `None`: the peer has reset the stream; 0: it has ended it.
fn poll_read(
    stream: &mut RecvStream,
    cx: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<std::result::Result<Option<usize>, Ended>> {
    stream.poll_read(cx, buffer).map(|read| match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(ReadError::Reset(_)) => Ok(None),
        Err(ReadError::ConnectionLost(error)) => Err(Ended::Lost(error)),
        Err(error) => Err(corrupt(error.to_string())),
    })
}

impl Messages {
    fn new(stream: RecvStream) -> Self {
        Self { stream, head: [0; HEAD_BYTES], have: 0, state: State::Preamble }
    }

    /// Reads until a message is complete, or no more bytes are available. Ready if something was read.
    fn poll(&mut self, cx: &mut Context<'_>, shared: &LinkState) -> Poll<std::result::Result<(), Ended>> {
        let mut progress = false;
        loop {
            let buffer = match &mut self.state {
                State::Preamble => &mut self.head[self.have..PREAMBLE.len()],
                State::Head => &mut self.head[self.have..],
                State::Payload(_, header, buffer) => {
                    if self.have == buffer.len() && self.have < header.length() {
                        // The buffer grows with the bytes that have arrived, not with the length in the header.
                        let grown = header.length().min((2 * self.have).max(FIRST_GRANT));
                        buffer.reserve_exact(grown - self.have);
                        buffer.resize(grown, 0);
                    }
                    &mut buffer[self.have..]
                }
                State::Ready(..) => break,
            };
            if !buffer.is_empty() {
                match poll_read(&mut self.stream, cx, buffer) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) if progress => {
                        drop(error); // it comes again with the next look
                        break;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(None | Some(0))) if progress => break,
                    // The peer has closed its link, and closes the connection soon. That packet may be lost.
                    Poll::Ready(Ok(None | Some(0))) => return Poll::Ready(Err(Ended::Lost(closed()))),
                    Poll::Ready(Ok(Some(bytes))) => {
                        self.have += bytes;
                        shared.received.fetch_add(bytes as u64, Ordering::Relaxed);
                    }
                }
                progress = true;
            }
            self.advance(shared)?;
        }
        if progress {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Goes on to the next state if all that this one waits for has arrived.
    fn advance(&mut self, shared: &LinkState) -> std::result::Result<(), Ended> {
        let state = match &mut self.state {
            State::Preamble if self.have == PREAMBLE.len() => {
                if self.head[..PREAMBLE.len()] != PREAMBLE {
                    return Err(corrupt(format!("{} does not begin as a link of thalweg", shared.who)));
                }
                State::Head
            }
            State::Head if self.have == HEAD_BYTES => {
                let (mark, header) = split(&self.head);
                let header = FrameHeader::decode(header).map_err(Error::from)?;
                shared.standing.check(header.kind, header.length())?;
                if header.kind != Kind::Control {
                    return Err(corrupt("a chunk on the stream of messages"));
                }
                State::Payload(mark, header, Vec::new())
            }
            State::Payload(mark, header, buffer) if self.have == header.length() => {
                header.verify(buffer).map_err(Error::from)?;
                State::Ready(*mark, std::mem::take(buffer).into())
            }
            _ => return Ok(()),
        };
        (self.state, self.have) = (state, 0);
        Ok(())
    }
}

impl Lane {
    /// Reads until the chunk is complete, or no more bytes are available. Ready if something was read, or the
    /// stream has ended.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        delivered: u64,
        sink: &dyn Sink,
        shared: &LinkState,
    ) -> Poll<std::result::Result<Step, Ended>> {
        let mut progress = false;
        loop {
            let mut tail = [0; 1];
            let buffer = match &mut self.part {
                Part::Head => &mut self.head[self.have..],
                Part::Held(mark, header) if *mark <= delivered => {
                    self.part = place(*header, sink)?;
                    continue;
                }
                Part::Held(..) => break,
                Part::Chunk(header, target) if self.have < header.length() => {
                    &mut target.bytes_mut()[self.have..]
                }
                Part::Unwanted(header) if self.have < header.length() => {
                    self.waste.resize(DISCARD_BUFFER.min(header.length()), 0);
                    let left = header.length() - self.have;
                    &mut self.waste[..DISCARD_BUFFER.min(left)]
                }
                Part::Chunk(..) | Part::Unwanted(..) => {
                    self.store(sink, shared);
                    continue;
                }
                Part::End => &mut tail[..],
            };
            let read = match poll_read(&mut self.stream, cx, buffer) {
                Poll::Pending => break,
                Poll::Ready(Err(_)) if progress => break, // it comes again with the next look
                Poll::Ready(read) => read?,
            };
            shared.received.fetch_add(read.unwrap_or_default() as u64, Ordering::Relaxed);
            match (read, &self.part) {
                // The chunk was cancelled: return its place to the sink.
                (None, _) | (Some(0), Part::End) => return Poll::Ready(Ok(Step::Over)),
                (Some(_), Part::End) => return Poll::Ready(Err(corrupt("more than one chunk on a stream"))),
                (Some(0), _) => return Poll::Ready(Err(corrupt("a stream ends in the middle of a chunk"))),
                (Some(bytes), Part::Head) => {
                    self.have += bytes;
                    if self.have == HEAD_BYTES {
                        self.begin(shared)?;
                    }
                }
                (Some(bytes), _) => {
                    self.have += bytes;
                    sink.progress(bytes as u64);
                }
            }
            progress = true;
        }
        if progress {
            Poll::Ready(Ok(Step::More))
        } else {
            Poll::Pending
        }
    }

    fn begin(&mut self, shared: &LinkState) -> std::result::Result<(), Ended> {
        let (mark, header) = split(&self.head);
        let header = FrameHeader::decode(header).map_err(Error::from)?;
        shared.standing.check(header.kind, header.length())?;
        if header.kind != Kind::Chunk {
            return Err(corrupt("a message on a stream for a chunk"));
        }
        (self.part, self.have) = (Part::Held(mark, header), 0);
        Ok(())
    }

    /// Reports the complete chunk to the sink.
    fn store(&mut self, sink: &dyn Sink, shared: &LinkState) {
        shared.copied.fetch_add(RECEIVE_COPIES * self.have as u64, Ordering::Relaxed);
        if let Part::Chunk(header, target) = std::mem::replace(&mut self.part, Part::End) {
            let outcome = header.verify(target.bytes());
            sink.stored(&header.chunk, target, outcome);
        }
        self.waste = Vec::new();
    }
}

/// Asks the sink where a chunk belongs.
fn place(header: FrameHeader, sink: &dyn Sink) -> std::result::Result<Part, Ended> {
    match sink.place(&header.chunk) {
        None => Ok(Part::Unwanted(header)),
        Some(target) if target.bytes().len() == header.length() => Ok(Part::Chunk(header, target)),
        Some(target) => {
            let context = format!("a place of {} bytes for {}", target.bytes().len(), header.length());
            Err(Ended::Broken(Error::new(ErrorKind::System, RECEIVE, context)))
        }
    }
}

/// Waits for the next message of a link. Meanwhile chunks go to `sink`.
pub(crate) async fn receive(intake: &mut Intake, sink: &dyn Sink, shared: &LinkState) -> Result<Bytes> {
    shared.check(RECEIVE)?;
    let next = tokio::select! {
        biased;
        error = shared.refused(RECEIVE) => Err(error),
        next = intake.next(sink, shared) => next,
        error = shared.standing.evicted() => Err(error),
    };
    match next {
        Ok(Some(message)) => Ok(message),
        Ok(None) => {
            let error = match &intake.lost {
                Some(error) => shared.lost(RECEIVE, error),
                None => Error::closed(RECEIVE, format!("{} has closed the link", shared.who)),
            };
            shared.end(error.cause());
            Err(error)
        }
        Err(error) => {
            shared.end(error.cause());
            Err(error)
        }
    }
}
