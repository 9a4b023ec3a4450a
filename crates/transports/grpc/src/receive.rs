//! Receives gRPC's messages: gives chunks to the sink and control messages to the caller.

use std::error::Error as _;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use thalweg_transport::{Error, ErrorKind, Result, Sink};
use thalweg_wire::{FrameHeader, Kind, HEADER_BYTES};
use tonic::{Code, Status, Streaming};

use crate::frame::Frame;
use crate::shared::LinkState;
use crate::unary::{Arrival, Arrivals, Unary};

const RECEIVE: &str = "receive";

/// The receiving side of a link.
pub(crate) struct Inbox {
    stream: Streaming<Frame>,
    /// Updates that arrive by unary calls.
    arrivals: Option<Arrivals>,
    /// A control message of which parts are missing. The buffer grows with the bytes that have arrived, not
    /// with the length in the header.
    part: Option<(FrameHeader, BytesMut)>,
    /// Bytes of the stream's chunks that were reported as progress before their chunk was complete.
    ahead: u64,
}

fn corrupt<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::Corrupt, RECEIVE, what))
}

impl Inbox {
    pub(crate) fn new(stream: Streaming<Frame>, shared: &LinkState) -> Self {
        Self { stream, arrivals: shared.unary.as_ref().and_then(Unary::arrivals), part: None, ahead: 0 }
    }

    /// Waits for the next control message. Meanwhile chunks go to `sink`. Dropping the future loses nothing.
    pub(crate) async fn receive(&mut self, sink: &dyn Sink, shared: &LinkState) -> Result<Bytes> {
        shared.check_open(RECEIVE)?;
        let outcome = tokio::select! {
            biased;
            () = shared.refused() => return Err(shared.closed(RECEIVE)),
            outcome = self.next(sink, shared) => outcome,
            error = shared.standing.evicted() => Err(error),
        };
        match outcome {
            Ok(Some(message)) => Ok(message),
            Ok(None) => {
                shared.end("the peer has closed the link");
                Err(Error::closed(RECEIVE, format!("{} has closed the link", shared.who)))
            }
            Err(error) => {
                shared.refuse(&error.to_string());
                Err(error)
            }
        }
    }

    async fn next(&mut self, sink: &dyn Sink, shared: &LinkState) -> Result<Option<Bytes>> {
        loop {
            let next = tokio::select! {
                biased; // the stream first: a message sent before an update has arrived before it
                next = self.stream.message() => next,
                bytes = shared.arriving() => {
                    self.report(bytes, sink);
                    continue;
                }
                arrival = arrival(&mut self.arrivals) => {
                    self.take_in(arrival?, sink, shared)?;
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            let Some(frame) = next.map_err(|status| explain(shared, &status))? else {
                return Ok(None);
            };
            self.report(shared.take_arrived(), sink);
            if let Some(message) = self.take(frame, sink, shared)? {
                return Ok(Some(message));
            }
            // Yield after each message, so that a link that always has data leaves time to the others.
            tokio::task::yield_now().await;
        }
    }

    /// Reports bytes of chunks that are not complete yet. Otherwise, while a long chunk arrives, the peer
    /// would seem to send nothing.
    fn report(&mut self, bytes: u64, sink: &dyn Sink) {
        if bytes > 0 {
            self.ahead += bytes;
            sink.progress(bytes);
        }
    }

    /// Gives the sink what has arrived of an update by a unary call.
    fn take_in(&mut self, arrival: Arrival, sink: &dyn Sink, shared: &LinkState) -> Result<()> {
        if let Arrival::Chunk(header, _) = &arrival {
            shared.standing.check(header.kind, header.length())?;
        }
        match (arrival, &mut self.arrivals) {
            (Arrival::Chunk(header, payload), Some(arrivals)) => {
                let progress = arrivals.unreported(payload.len() as u64);
                deliver(&header, &payload, progress, sink, shared)
            }
            (Arrival::Chunk(header, payload), None) => {
                deliver(&header, &payload, payload.len() as u64, sink, shared)
            }
            (Arrival::Progress(bytes), _) => {
                sink.progress(bytes);
                Ok(())
            }
        }
    }

    /// Handles one message. Returns the control message if this message completes one.
    fn take(
        &mut self,
        Frame { header, payload }: Frame,
        sink: &dyn Sink,
        shared: &LinkState,
    ) -> Result<Option<Bytes>> {
        if header.is_empty() {
            return self.further(&payload);
        }
        if header.len() != HEADER_BYTES {
            return corrupt(format!("a header of {} bytes, not {HEADER_BYTES}", header.len()));
        }
        let header = FrameHeader::decode(&header)?;
        shared.standing.check(header.kind, header.length())?;
        match header.kind {
            Kind::Chunk if payload.is_empty() && header.length() > 0 => {
                sink.begun(&header.chunk);
                Ok(None)
            }
            Kind::Chunk => {
                let length = payload.len() as u64;
                let reported = length.min(self.ahead);
                self.ahead -= reported;
                deliver(&header, &payload, length - reported, sink, shared)?;
                Ok(None)
            }
            Kind::Control if self.part.is_some() => corrupt("a control message in the middle of another"),
            Kind::Control if payload.len() < header.length() => {
                self.part = Some((header, BytesMut::from(&payload[..])));
                Ok(None)
            }
            Kind::Control => {
                header.verify(&payload)?;
                Ok(Some(payload))
            }
        }
    }

    /// Adds a further part to a control message. Returns the message if it is complete.
    fn further(&mut self, payload: &[u8]) -> Result<Option<Bytes>> {
        let Some((header, mut message)) = self.part.take() else {
            return corrupt("a message without a header");
        };
        if payload.is_empty() || payload.len() > header.length() - message.len() {
            return corrupt(format!("{} bytes for the rest of a control message", payload.len()));
        }
        message.extend_from_slice(payload);
        if message.len() < header.length() {
            self.part = Some((header, message));
            return Ok(None);
        }
        header.verify(&message)?;
        Ok(Some(message.freeze()))
    }
}

/// Waits for the next arrival of an update by a unary call. Waits for ever in stream mode.
async fn arrival(arrivals: &mut Option<Arrivals>) -> Result<Arrival> {
    match arrivals {
        Some(arrivals) => arrivals.next().await,
        None => std::future::pending().await,
    }
}

/// Copies a chunk to the place that the sink gives, verifies it there, and reports the outcome to the sink.
/// Without a place the chunk is dropped. `progress` is the number of payload bytes that were not yet reported
/// to [`Sink::progress`].
fn deliver(
    header: &FrameHeader,
    payload: &[u8],
    progress: u64,
    sink: &dyn Sink,
    shared: &LinkState,
) -> Result<()> {
    let length = header.length();
    if payload.len() != length {
        return corrupt(format!("{} bytes in a chunk that says {length}", payload.len()));
    }
    let mut copies = if shared.tls { 2 } else { 1 }; // into gRPC's buffer; under TLS, into that of TLS before
    match sink.place(&header.chunk) {
        None => sink.progress(progress),
        Some(mut target) => {
            let place = target.bytes_mut();
            if place.len() != length {
                let context = format!("a place of {} bytes for {length}", place.len());
                return Err(Error::new(ErrorKind::System, RECEIVE, context));
            }
            place.copy_from_slice(payload);
            copies += 1;
            sink.progress(progress);
            let outcome = header.verify(target.bytes());
            sink.stored(&header.chunk, target, outcome);
        }
    }
    shared.copied.fetch_add(copies * length as u64, Ordering::Relaxed);
    Ok(())
}

/// The reason why no more messages arrive: the peer or the network has ended the stream, or the peer broke
/// the protocol.
pub(crate) fn explain(shared: &LinkState, status: &Status) -> Error {
    if let Some(fault) = shared.fault() {
        return fault;
    }
    let context = format!("{}: {}", shared.who, words(status));
    let broken = match http2_error(status) {
        Some(error) => !(error.is_io() || error.is_remote()),
        None => matches!(status.code(), Code::OutOfRange | Code::Internal | Code::Unimplemented),
    };
    if broken {
        Error::new(ErrorKind::Corrupt, RECEIVE, context)
    } else {
        Error::closed(RECEIVE, context)
    }
}

/// Finds the HTTP/2 error in a status's chain of causes.
fn http2_error(status: &Status) -> Option<&h2::Error> {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<h2::Error>() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

fn words(status: &Status) -> String {
    http2_error(status)
        .map_or_else(|| format!("{:?}, {}", status.code(), status.message()), ToString::to_string)
}
