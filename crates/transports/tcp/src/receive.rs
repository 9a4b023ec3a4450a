//! Receives the frames of each connection, straight into the places that the sink gives.
//!
//! All state is in [`Intake`] and none in a future, because a control message on one connection ends
//! `receive` while another connection is in the middle of a chunk.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use thalweg_transport::{hand_over, Error, ErrorKind, Result, Sink, Target};
use thalweg_wire::{FrameHeader, Kind, Range, Ranges, HEADER_BYTES};

use crate::inlet::Inlet;
use crate::line::Taken;
use crate::link::LinkState;
use crate::marks::Marks;

/// Bytes that are allocated for a control message before its first bytes have arrived. So a false length
/// costs little memory.
const FIRST_GRANT: usize = 64 << 10;
/// Size of the buffer through which an unwanted chunk is read.
const WASTE: usize = 64 << 10;
const RECEIVE: &str = "receive";

/// The receiving side of one connection.
pub(crate) struct Intake {
    inlet: Inlet,
    /// Number of the connection in the link.
    stream: usize,
    /// The header of a frame, with the marks before it.
    header: Vec<u8>,
    /// Number of bytes that have arrived of what `state` waits for.
    have: usize,
    state: State,
    /// Ranges of the chunk that will never arrive.
    holes: Ranges,
    /// Buffer for the bytes of unwanted chunks.
    waste: Vec<u8>,
    /// Whether the peer has ended the connection.
    finished: bool,
}

enum State {
    Header,
    Control(FrameHeader, Vec<u8>),
    /// A message has arrived. Chunks that were sent before it may still be missing.
    Ahead(Bytes),
    Chunk(FrameHeader, Target),
    Unwanted(FrameHeader),
}

impl Intake {
    pub(crate) fn new(stream: usize, inlet: Inlet, shared: &LinkState) -> Self {
        let marks = shared.marks.as_ref().filter(|_| stream == 0).map_or(0, Marks::bytes);
        Self {
            inlet,
            stream,
            header: vec![0; marks + HEADER_BYTES],
            have: 0,
            state: State::Header,
            holes: Ranges::new(),
            waste: Vec::new(),
            finished: false,
        }
    }

    /// Waits for the next control message. `None` when the peer has ended this connection between two frames.
    /// The future may be dropped at any time and the call repeated.
    async fn next(&mut self, sink: &dyn Sink, shared: &LinkState) -> Result<Option<Bytes>> {
        while !self.finished {
            match &mut self.state {
                State::Header => self.read_header(sink, shared).await?,
                State::Chunk(..) | State::Unwanted(..) => self.read_chunk(sink, shared).await?,
                State::Control(header, buffer) => {
                    read_control(&mut self.inlet, header, buffer, &mut self.have, shared).await?;
                    header.verify(buffer)?;
                    self.state = State::Ahead(std::mem::take(buffer).into());
                }
                State::Ahead(message) => {
                    let message = message.clone();
                    self.wait_for_chunks(shared).await?;
                    self.expect_header();
                    return Ok(Some(message));
                }
            }
        }
        Ok(None)
    }

    fn expect_header(&mut self) {
        self.have = 0;
        self.state = State::Header;
    }

    /// Waits for the chunks that were sent before the message that has arrived.
    async fn wait_for_chunks(&mut self, shared: &LinkState) -> Result<()> {
        let Some(marks) = shared.marks.as_ref().filter(|_| self.stream == 0) else { return Ok(()) };
        let (before, _) = self.header.split_at(marks.bytes());
        marks.reached(before).await.map_err(|cut| {
            let context =
                format!("connection {cut} of {} ended before all that was sent on it came", shared.who);
            Error::closed(RECEIVE, context)
        })
    }

    async fn read_header(&mut self, sink: &dyn Sink, shared: &LinkState) -> Result<()> {
        shared.check_open(RECEIVE)?;
        while self.have < self.header.len() {
            let got = self.inlet.read(&mut self.header[self.have..]).await;
            let got = got.map_err(|e| shared.explain(RECEIVE, &e))?;
            if got == 0 && self.have == 0 {
                self.finished = true;
                if let Some(marks) = &shared.marks {
                    marks.ended(self.stream);
                }
                return Ok(());
            }
            self.have += shared.took(got)?;
        }
        let header = FrameHeader::decode(&self.header[self.header.len() - HEADER_BYTES..])?;
        self.inlet.header_read(&header);
        self.have = 0;
        shared.standing.check(header.kind, header.length())?;
        self.state = match header.kind {
            Kind::Chunk if self.stream < shared.first_lane() => {
                let context = "a chunk on connection 0; they belong on data connections";
                return Err(Error::new(ErrorKind::Corrupt, RECEIVE, context));
            }
            Kind::Control if self.stream > 0 => {
                let context = format!("a control message on connection {}; they belong on 0", self.stream);
                return Err(Error::new(ErrorKind::Corrupt, RECEIVE, context));
            }
            Kind::Control => State::Control(header, Vec::new()),
            Kind::Chunk => match sink.place(&header.chunk) {
                None => State::Unwanted(header),
                Some(target) if target.bytes().len() == header.length() => State::Chunk(header, target),
                Some(target) => {
                    let context =
                        format!("a place of {} bytes for {}", target.bytes().len(), header.length());
                    return Err(Error::new(ErrorKind::System, RECEIVE, context));
                }
            },
        };
        Ok(())
    }

    async fn read_chunk(&mut self, sink: &dyn Sink, shared: &LinkState) -> Result<()> {
        let length = match &self.state {
            State::Chunk(header, _) | State::Unwanted(header) => header.length(),
            State::Header | State::Control(..) | State::Ahead(_) => return Ok(()),
        };
        if self.have == 0 {
            self.inlet.chunk_begins();
        }
        while self.have < length {
            let left = length - self.have;
            let buffer = match &mut self.state {
                State::Chunk(_, target) => &mut target.bytes_mut()[self.have..],
                _ => {
                    self.waste.resize(WASTE, 0);
                    &mut self.waste[..WASTE.min(left)]
                }
            };
            match self.inlet.read_chunk(buffer, left).await.map_err(|e| shared.explain(RECEIVE, &e))? {
                Taken::Bytes(got) => {
                    self.have += shared.took(got)?;
                    sink.progress(got as u64);
                }
                Taken::Hole(bytes) => {
                    let end = length.min(self.have + bytes.max(1));
                    self.holes.insert(Range::new(self.have as u64, end as u64));
                    self.have = end;
                }
            }
        }
        self.inlet.chunk_ends();
        let copied = shared.copies * length as u64 + self.inlet.copied();
        shared.copied.fetch_add(copied, Ordering::Relaxed);
        if let State::Chunk(header, target) = std::mem::replace(&mut self.state, State::Header) {
            if self.holes.is_empty() {
                let outcome = header.verify(target.bytes());
                sink.stored(&header.chunk, target, outcome);
            } else {
                let copied = hand_over(sink, &header.chunk, target, &self.holes);
                shared.copied.fetch_add(copied, Ordering::Relaxed);
            }
        }
        self.holes = Ranges::new();
        if let Some(marks) = &shared.marks {
            marks.received(self.stream, HEADER_BYTES + length);
        }
        self.expect_header();
        // Yield after each chunk, so that a link that always has data leaves time to the others.
        tokio::task::yield_now().await;
        Ok(())
    }
}

/// Reads a control message. The buffer grows with the bytes that have arrived, not with the length in the
/// header.
async fn read_control(
    inlet: &mut Inlet,
    header: &FrameHeader,
    buffer: &mut Vec<u8>,
    have: &mut usize,
    shared: &LinkState,
) -> Result<()> {
    while *have < header.length() {
        if *have == buffer.len() {
            let grown = header.length().min((2 * *have).max(FIRST_GRANT));
            buffer.reserve_exact(grown - *have);
            buffer.resize(grown, 0);
        }
        let got = inlet.read(&mut buffer[*have..]).await.map_err(|e| shared.explain(RECEIVE, &e))?;
        *have += shared.took(got)?;
    }
    Ok(())
}

/// Waits for the next control message of a link. Meanwhile the chunks of all connections go to `sink`.
pub(crate) async fn receive(intakes: &mut [Intake], sink: &dyn Sink, shared: &LinkState) -> Result<Bytes> {
    shared.check_open(RECEIVE)?;
    let next = async {
        match intakes {
            [only] => only.next(sink, shared).await,
            several => first(several, sink, shared).await,
        }
    };
    let next = tokio::select! {
        biased;
        next = next => next,
        error = shared.standing.evicted() => Err(error),
    };
    match next {
        Ok(Some(message)) => Ok(message),
        Ok(None) => {
            shared.check_open(RECEIVE)?;
            shared.end("the peer has closed the link");
            Err(Error::closed(RECEIVE, format!("{} has closed the link", shared.who)))
        }
        Err(error) => {
            shared.refuse(&error.to_string());
            Err(error)
        }
    }
}

/// Returns the first control message of any connection. A connection that has ended between frames waits for
/// the others: they may still carry what the peer sent before it closed the link.
async fn first(intakes: &mut [Intake], sink: &dyn Sink, shared: &LinkState) -> Result<Option<Bytes>> {
    let mut all: FuturesUnordered<_> = intakes.iter_mut().map(|intake| intake.next(sink, shared)).collect();
    while let Some(next) = all.next().await {
        if let Some(message) = next? {
            return Ok(Some(message));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::future::{poll_fn, Future};
    use std::task::Poll;

    use thalweg_transport::{NoChunks, Standing};
    use thalweg_wire::{ChunkHeader, LayoutHash, MAX_CONTROL};
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::link::Duplex;

    #[tokio::test]
    async fn a_length_that_lies_costs_little() {
        let (mut peer, ours) = tokio::io::duplex(2 * FIRST_GRANT);
        let (reader, _) = tokio::io::split(Box::new(ours) as Box<dyn Duplex>);
        let shared = LinkState::new(Vec::new(), "a liar".into(), false, false, Standing::new([]));
        let mut intake = Intake::new(0, Inlet::Tls(reader), &shared);
        let header = ChunkHeader {
            job: 0,
            round: 0,
            sender: 0,
            layout: LayoutHash::default(),
            offset: 0,
            length: MAX_CONTROL,
        };
        let header = FrameHeader { kind: Kind::Control, payload_checksum: 0, chunk: header };
        peer.write_all(&header.encode()).await.unwrap();
        let mut received = 0;
        for more in [0, 1, FIRST_GRANT - 1, 1, FIRST_GRANT] {
            peer.write_all(&vec![0; more]).await.unwrap();
            received += more;
            let mut next = Box::pin(intake.next(&NoChunks, &shared));
            assert!(poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await);
            drop(next);
            let State::Control(_, buffer) = &intake.state else { panic!("no control message is on its way") };
            assert!(
                buffer.capacity() <= (2 * received).max(FIRST_GRANT),
                "{} for {received}",
                buffer.capacity()
            );
        }
    }
}
