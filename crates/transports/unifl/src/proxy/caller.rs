//! The client's end of a proxied connection: a masked connection, which may have holes, or an ordinary kernel
//! connection.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::task::{ready, Context, Poll};

use socket2::SockRef;
use thalweg_tcp::line::{HoledStream, Taken};
use thalweg_transport::Counters;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

/// The methods that the proxy needs of a connection, besides those that a link needs.
pub(crate) trait Caller: HoledStream {
    /// Closes our direction. The client still gets the bytes that were written before this call, and its own
    /// data is still read.
    fn finish(&self);

    /// Resets the connection, at the latest when this value is dropped.
    fn abort(&self);

    /// Waits until the connection breaks, and returns the error. The proxy calls this while it reads nothing.
    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error>;

    /// Waits until the first byte, the first hole or the end can be read, but reads nothing. The proxy calls
    /// this while it reads nothing.
    fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Bytes that were lost and retransmitted, if that is known.
    fn repaired(&self) -> Option<u64>;
}

/// A kernel connection. It has no holes.
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
        // Ignore an error: the peer has closed the connection, so nothing is left to do.
        let _ = SockRef::from(&self.0).shutdown(Shutdown::Both);
    }

    fn tell(&self, _: &mut Counters) {}
}

impl Caller for Direct {
    fn finish(&self) {
        // Ignore an error: the peer has closed the connection.
        let _ = SockRef::from(&self.0).shutdown(Shutdown::Write);
    }

    fn abort(&self) {
        reset(&self.0);
    }

    fn poll_broken(&self, _: &mut Context<'_>) -> Poll<io::Error> {
        // The next write reports the kernel's error.
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

/// Resets the connection when it is closed. A FIN would look like the end of the stream.
pub(super) fn reset(stream: &TcpStream) {
    // Ignore an error: the connection is gone, so there is nothing to reset.
    let _ = stream.set_zero_linger();
}
