//! The client's end of a proxied connection: one that may have holes, or one of the kernel's.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::task::{ready, Context, Poll};

use socket2::SockRef;
use thalweg_tcp::line::{Line, Taken};
use thalweg_transport::Counters;
use tokio::net::TcpStream;

/// What a proxy does with a connection beside what a link does.
pub(crate) trait Caller: Line {
    /// Ends our direction. What was put before still goes out, and what comes is still taken.
    fn finish(&self);

    /// Resets the connection; at the latest when this is dropped.
    fn abort(&self);

    /// Waits until the connection breaks, and says why. For when nothing is taken any more.
    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error>;

    /// Bytes that were lost and came again, where that is known.
    fn repaired(&self) -> Option<u64>;
}

/// A kernel connection: no holes.
pub(super) struct Direct(pub TcpStream);

impl Line for Direct {
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
        // Nobody asks: both directions are always waited for.
        Poll::Pending
    }

    fn shut(&self) {
        // It fails where the peer has ended the connection already: nothing is left to do then.
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
        // The kernel keeps the reason for who writes next.
        Poll::Pending
    }

    fn repaired(&self) -> Option<u64> {
        None
    }
}

/// Has the connection be reset when it is closed, where its end would be taken for that of the stream.
pub(super) fn reset(stream: &TcpStream) {
    // It fails where the connection has gone: there is nothing to reset.
    let _ = stream.set_zero_linger();
}
