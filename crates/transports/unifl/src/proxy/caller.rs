//! The client's end of a proxied connection: with holes, or an ordinary kernel connection.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::task::{ready, Context, Poll};

use socket2::SockRef;
use thalweg_tcp::line::{HoledStream, Taken};
use thalweg_transport::Counters;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

/// What a proxy needs of a connection, beside what a link needs.
pub(crate) trait Caller: HoledStream {
    /// Closes our direction. What was put before still goes out, and what comes is still taken.
    fn finish(&self);

    /// Resets the connection, at the latest when this is dropped.
    fn abort(&self);

    /// Waits until the connection breaks and returns why. For times when nothing is read.
    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error>;

    /// Waits until the first byte, the first hole or the end can be taken, and takes nothing. For times when
    /// nothing is read.
    fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Bytes that were lost and retransmitted, if known.
    fn repaired(&self) -> Option<u64>;
}

/// A kernel connection: no holes.
pub(super) struct Direct(pub TcpStream);

impl HoledStream for Direct {
    fn poll_take(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Taken>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done.map(Taken::Bytes)),
            }
        }
    }

    fn poll_put(&self, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_vectored(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_hung_up(&self, _: &mut Context<'_>) -> Poll<()> {
        // Nobody calls this: the proxy always reads both directions.
        Poll::Pending
    }

    fn shut(&self) {
        // It fails if the peer has closed the connection; then nothing is left to do.
        let _ = SockRef::from(&self.0).shutdown(Shutdown::Both);
    }

    fn tell(&self, _: &mut Counters) {}
}

impl Caller for Direct {
    fn finish(&self) {
        // As above.
        let _ = SockRef::from(&self.0).shutdown(Shutdown::Write);
    }

    fn abort(&self) {
        reset(&self.0);
    }

    fn poll_broken(&self, _: &mut Context<'_>) -> Poll<io::Error> {
        // The kernel reports the error to the next write.
        Poll::Pending
    }

    fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut byte = [MaybeUninit::uninit()];
        self.0.poll_peek(cx, &mut ReadBuf::uninit(&mut byte)).map(drop)
    }

    fn repaired(&self) -> Option<u64> {
        None
    }
}

/// Makes the connection be reset on close, where a FIN would look like the end of the stream.
pub(super) fn reset(stream: &TcpStream) {
    // It fails if the connection is gone; then there is nothing to reset.
    let _ = stream.set_zero_linger();
}
