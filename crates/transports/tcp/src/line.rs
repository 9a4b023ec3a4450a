//! Connections that something else than the kernel carries, for transports that speak what this one does.
//!
//! A [`Line`] may have holes in the payloads of chunks, and nowhere else. A chunk with holes goes to the sink in parts,
//! one for each run of bytes that came, as chunks of their own. Their edges are at multiples of [`ALIGNED`] bytes of the
//! update, or the chunk's own, so that no value is cut: bytes of a value that is not whole are given up.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use thalweg_transport::{Counters, Error, Peer, Pending, Result};
use thalweg_wire::Range;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::gather::Gathering;
use crate::link::{End, Shaken};
use crate::listener::answer;

/// Where parts of a chunk with holes may begin and end: the largest values have so many bytes, and tensors are aligned.
pub const ALIGNED: u64 = 8;
const ACCEPT: &str = "accept";

/// What is next of a connection's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// So many bytes, now in the buffer; none at the end.
    Bytes(usize),
    /// So many bytes will not come. The buffer's bytes are not touched.
    Hole(usize),
}

/// A connection: bytes in order both ways, some of which may be missing on the way in.
pub trait Line: Send + Sync {
    /// The next bytes, no more than `buffer` holds.
    fn poll_take(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Taken>>;

    /// Takes bytes for the peer; how many of all.
    fn poll_put(&self, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// Waits until the peer has ended its direction, whether or not what it sent before has been taken.
    fn poll_hung_up(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Ends both directions; wakes whoever waits. What was put before still goes out.
    fn shut(&self);

    /// Adds what is known of the connection.
    fn tell(&self, counters: &mut Counters);
}

/// A line as tokio has it. A hole is an error: where bytes are read so, there is none.
#[derive(Clone)]
pub(crate) struct Wire(pub Arc<dyn Line>);

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_take(cx, buf.initialize_unfilled()).map(|taken| {
            buf.advance(whole(taken?)?);
            Ok(())
        })
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_put(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_put(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.shut();
        Poll::Ready(Ok(()))
    }
}

/// How many bytes were taken where none may be missing.
pub(crate) fn whole(taken: Taken) -> io::Result<usize> {
    match taken {
        Taken::Bytes(count) => Ok(count),
        Taken::Hole(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a frame's header has a hole")),
    }
}

/// What came of a chunk of `length` bytes at `offset` of its update, as parts of it. `holes` rise.
pub(crate) fn parts(offset: u64, length: u64, holes: &[Range]) -> Vec<Range> {
    let mut parts = Vec::with_capacity(holes.len() + 1);
    let mut start = 0;
    for hole in holes {
        let end = ((offset + hole.start) / ALIGNED * ALIGNED).saturating_sub(offset);
        parts.push(Range::new(start, end));
        start = ((offset + hole.end).div_ceil(ALIGNED) * ALIGNED - offset).min(length);
    }
    parts.push(Range::new(start, length));
    parts.retain(|part| !part.is_empty());
    parts
}

/// Lines that wait for the others of their link.
#[derive(Clone, Default)]
pub struct Lines(Gathering);

impl Lines {
    /// Shakes hands on a line, and gives the link that is pending; `None` if the line belongs to one that is already.
    /// The link waits up to `limit` for its others.
    ///
    /// # Errors
    /// [`thalweg_transport::ErrorKind::Corrupt`] for another protocol, [`thalweg_transport::ErrorKind::Closed`].
    pub async fn admit(
        &self,
        line: Arc<dyn Line>,
        from: String,
        limit: std::time::Duration,
    ) -> Result<Option<Pending>> {
        let failed = |e: &io::Error| Error::io(ACCEPT, &from, e);
        let preamble = answer(&mut Wire(line.clone()), failed).await?;
        let peer = Peer { address: from, ..Peer::default() };
        self.0.add(preamble, Shaken { end: End::Line(line), tls: None, peer }, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(offset: u64, length: u64, holes: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let holes: Vec<Range> = holes.iter().map(|&(start, end)| Range::new(start, end)).collect();
        parts(offset, length, &holes).iter().map(|part| (part.start, part.end)).collect()
    }

    #[test]
    fn parts_cut_no_value() {
        assert_eq!(cut(64, 100, &[(10, 20)]), [(0, 8), (24, 100)]);
        assert_eq!(cut(64, 100, &[(0, 7), (16, 24), (96, 100)]), [(8, 16), (24, 96)]);
        assert_eq!(cut(4, 100, &[(10, 20)]), [(0, 4), (20, 100)], "by their place in the update");
        assert_eq!(cut(0, 16, &[(1, 2), (9, 10)]), []);
        assert_eq!(cut(3, 4, &[(0, 1)]), [], "the chunk ends before the next value");
        assert_eq!(cut(0, 8, &[]), [(0, 8)]);
    }
}
