//! Passes a connection's bytes on, and observes them: their number, the position in the stream, the progress of
//! chunks, and errors.
//!
//! HTTP/2 gives out a DATA frame only when all of it has arrived, and a frame has up to 64 KiB. On a path with a
//! long round trip that takes TCP many of them while it starts slowly. So progress is counted here, as bytes
//! arrive.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use thalweg_sockets::tls;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::chunks::Chunks;
use crate::shared::LinkState;

/// The bytes of a connection, with or without TLS.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// The first bytes that a client sends (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The flag of a DATA frame with padding (RFC 9113, section 6.1).
const PADDED: u8 = 8;

/// Maximum number of bytes that are read from a peer that has not proved who it is: the headers of its call,
/// its [`thalweg_wire::control::Hello`], and frames of HTTP/2. If it sends more, the link ends.
const UNAUTHENTICATED_PEER_BYTES: u64 = 32 << 10;

pub(crate) struct Wire {
    stream: Box<dyn Duplex>,
    shared: Arc<LinkState>,
    outgoing: Frames,
    incoming: Frames,
    /// The chunks in the link's stream that arrives.
    chunks: Chunks,
    operation: &'static str,
}

impl Wire {
    pub(crate) fn of_client(stream: Box<dyn Duplex>, shared: Arc<LinkState>) -> Self {
        Self::new(stream, shared, [PREFACE.len(), 0], "connect")
    }

    pub(crate) fn of_server(stream: Box<dyn Duplex>, shared: Arc<LinkState>) -> Self {
        Self::new(stream, shared, [0, PREFACE.len()], "accept")
    }

    /// `skip`: how many bytes come before the first frame, on the way out and on the way in.
    fn new(
        stream: Box<dyn Duplex>,
        shared: Arc<LinkState>,
        skip: [usize; 2],
        operation: &'static str,
    ) -> Self {
        let [outgoing, incoming] = skip.map(Frames::after);
        Self { stream, shared, outgoing, incoming, chunks: Chunks::default(), operation }
    }

    /// Counts the bytes of chunks among those that have arrived.
    fn progress(&mut self, received: &[u8]) {
        let (mut bytes, chunks) = (0, &mut self.chunks);
        self.incoming.pass(received, |data| bytes += chunks.pass(data));
        self.shared.arrived(bytes);
    }

    fn note<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|error| self.shared.blame(tls::explain(self.operation, &self.shared.who, error)))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, room) = (buf.filled().len(), buf.remaining() > 0);
        let outcome = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        self.note(outcome)?;
        let received = &buf.filled()[before..];
        if received.is_empty() && room {
            // End the link here: HTTP/2 first writes what it still holds, and could wait for ever for a peer
            // that reads nothing.
            self.shared.end("the peer has closed the link");
        }
        let earlier = self.shared.received.fetch_add(received.len() as u64, Ordering::Relaxed);
        if earlier + received.len() as u64 > UNAUTHENTICATED_PEER_BYTES && !self.shared.standing.is_proved() {
            self.shared.end("it sent too much before it had proved who it is");
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        if earlier == 0 {
            if let Some(error) = tls::unexpected(self.operation, received) {
                self.shared.blame(error);
            }
        }
        self.progress(received);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs));
        let wrote = self.note(outcome)?;
        let mut left = wrote;
        for buf in bufs {
            let part = buf.len().min(left);
            self.outgoing.pass(&buf[..part], |_| {});
            left -= part;
        }
        self.shared.sent.fetch_add(wrote as u64, Ordering::Relaxed);
        Poll::Ready(Ok(wrote))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.note(outcome)?;
        self.shared.flushed(self.outgoing.data);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Follows the frames of HTTP/2 (RFC 9113, section 4.1) in one direction's bytes, and counts the bytes in the
/// stream's DATA frames. The stream is the first one that has HEADERS: that of the link's call.
struct Frames {
    /// The frame header that is being read.
    header: [u8; 9],
    /// Number of the link's stream, once it is known.
    stream: Option<u32>,
    /// Number of bytes in `header`.
    have: usize,
    /// Number of bytes before the next frame header.
    left: usize,
    /// Whether these bytes belong to the stream's DATA.
    is_data: bool,
    /// Number of the stream's bytes so far.
    data: u64,
    /// A DATA frame of the stream had padding, which is among the bytes.
    padded: bool,
}

impl Frames {
    fn after(skip: usize) -> Self {
        let (header, stream) = ([0; 9], None);
        Self { header, stream, have: 0, left: skip, is_data: false, data: 0, padded: false }
    }

    /// Takes the direction's next bytes. Calls `each` with those of the stream. After a frame with padding, which
    /// none of our ends sends, it calls it no more.
    fn pass(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            let part = if self.left > 0 { self.inside(bytes, &mut each) } else { self.between(bytes) };
            bytes = &bytes[part..];
        }
    }

    fn inside(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) -> usize {
        let part = bytes.len().min(self.left);
        self.left -= part;
        if self.is_data {
            self.data += part as u64;
            if !self.padded {
                each(&bytes[..part]);
            }
        }
        part
    }

    fn between(&mut self, bytes: &[u8]) -> usize {
        let part = bytes.len().min(self.header.len() - self.have);
        self.header[self.have..self.have + part].copy_from_slice(&bytes[..part]);
        self.have += part;
        if self.have == self.header.len() {
            let [a, b, c, kind, flags, stream @ ..] = self.header;
            let stream = u32::from_be_bytes(stream);
            self.have = 0;
            self.left = u32::from_be_bytes([0, a, b, c]) as usize;
            if kind == 1 {
                self.stream.get_or_insert(stream);
            }
            self.is_data = kind == 0 && self.stream == Some(stream);
            self.padded |= self.is_data && flags & PADDED != 0;
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, stream], payload].concat()
    }

    #[test]
    fn counts_what_is_in_data_however_it_is_cut() {
        let written = [
            PREFACE,
            &frame(4, 0, &[0; 12]),
            &frame(1, 1, &[0; 30]),
            &frame(0, 1, &[7; 300]),
            &frame(1, 3, &[0; 30]),
            &frame(0, 3, &[7; 1000]),
            &frame(0, 1, b""),
            &frame(8, 0, &[0; 4]),
            &frame(0, 1, &[9; 5]),
        ]
        .concat();
        for step in [1, 2, 9, 10, 100, written.len()] {
            let mut frames = Frames::after(PREFACE.len());
            let mut data = Vec::new();
            written.chunks(step).for_each(|part| frames.pass(part, |bytes| data.extend_from_slice(bytes)));
            assert_eq!((frames.data, frames.left, frames.have), (305, 0, 0), "{step} at a time");
            assert_eq!(data, [&[7; 300][..], &[9; 5]].concat(), "{step} at a time");
        }
    }

    #[test]
    fn a_frame_with_padding_ends_the_view_of_the_stream_and_not_the_count() {
        let mut padded = frame(0, 1, &[1, 7, 0]);
        padded[4] = PADDED;
        let bytes = [frame(1, 1, b""), frame(0, 1, b"ab"), padded, frame(0, 1, b"cd")].concat();
        let (mut frames, mut data) = (Frames::after(0), Vec::new());
        frames.pass(&bytes, |bytes| data.extend_from_slice(bytes));
        assert_eq!((frames.data, &data[..]), (7, &b"ab"[..]));
    }
}
