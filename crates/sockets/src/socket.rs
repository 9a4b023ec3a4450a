//! A connection of the kernel, and the options that are set on it.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use socket2::SockRef;
use thalweg_transport::{Address, Counters, Error, ErrorKind, Options, Result};
#[cfg(target_os = "linux")]
use tokio::io::Interest;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{lookup_host, TcpSocket, TcpStream};

use crate::kernel::info;

/// Maximum number of unsent bytes in the kernel for one connection of a link with several. These bytes cannot
/// move to another connection that is free, so with more of them the slowest connection would delay the end
/// of an update.
#[cfg(target_os = "linux")]
const WAITING: u32 = 256 << 10;

/// A connection. Each clone can read, write, shut down and ask the kernel.
#[derive(Clone)]
pub struct Socket(pub Arc<TcpStream>);

impl Socket {
    /// Wraps a connection, and turns Nagle's algorithm off.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self(Arc::new(stream)))
    }

    /// Ends both directions, and wakes readers and writers. Bytes that were written before are still sent.
    pub fn shut(&self) {
        // This fails if the peer has already ended the connection. Then nothing is left to do.
        let _ = SockRef::from(&*self.0).shutdown(Shutdown::Both);
    }

    /// Waits until the peer has ended its direction, even if bytes that it sent before have not been read. A
    /// writer needs this: the kernel does not wake a writer whose peer has closed with a full window.
    #[cfg(target_os = "linux")]
    pub async fn hung_up(&self) {
        // tokio does not register sockets for urgent data (EPOLLPRI), so this interest becomes ready only
        // when the reading side has ended.
        while self.0.ready(Interest::PRIORITY).await.is_ok_and(|ready| !ready.is_read_closed()) {}
    }

    /// Waits for ever: other systems do not report it.
    #[cfg(not(target_os = "linux"))]
    pub async fn hung_up(&self) {
        std::future::pending().await
    }

    /// Adds the kernel's figures of the connection to `counters`.
    pub fn tell(&self, counters: &mut Counters) {
        let known = info(&self.0);
        counters.retransmissions = known.as_ref().map(|info| info.retransmissions);
        counters.round_trip = known.map(|info| info.round_trip);
        counters.congestion = self.congestion();
    }

    /// Name of the congestion control algorithm in use.
    #[cfg(target_os = "linux")]
    pub fn congestion(&self) -> Option<String> {
        let name = SockRef::from(&*self.0).tcp_congestion().ok()?;
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        Some(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    #[cfg(not(target_os = "linux"))]
    pub fn congestion(&self) -> Option<String> {
        None
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buf.initialize_unfilled()) {
                Ok(n) => {
                    buf.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_vectored(bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}

/// Resolves `address` to at least one socket address.
///
/// # Errors
/// [`ErrorKind::Address`] if it does not resolve.
pub async fn resolve(operation: &'static str, address: &Address) -> Result<Vec<SocketAddr>> {
    let none = |why: String| {
        Error::new(ErrorKind::Address, operation, format!("{address} does not resolve{why}"))
            .hint("check the host name, or write the address as a number")
    };
    let found = lookup_host(address.authority()).await.map_err(|e| none(format!(": {e}")))?;
    let found: Vec<SocketAddr> = found.collect();
    (!found.is_empty()).then_some(found).ok_or_else(|| none(String::new()))
}

/// Makes a socket for `to`, and sets the options that must be set before it listens or connects.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for an option that the system does not have or grant.
pub fn prepare(operation: &'static str, to: SocketAddr, options: &Options) -> Result<TcpSocket> {
    let made = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = made.map_err(|e| Error::io(operation, to, &e))?;
    if let Some(name) = &options.congestion {
        choose_congestion(operation, &socket, name)?;
    }
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes).map_err(|e| Error::io(operation, "send buffer", &e))?;
        granted(operation, "send_buffer", bytes, socket.send_buffer_size())?;
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes).map_err(|e| Error::io(operation, "receive buffer", &e))?;
        granted(operation, "receive_buffer", bytes, socket.recv_buffer_size())?;
    }
    #[cfg(target_os = "linux")]
    if options.streams > 1 {
        // The kernel treats this as advice. Without it, connections still share chunks, but less evenly.
        _ = SockRef::from(&socket).set_tcp_notsent_lowat(WAITING);
    }
    Ok(socket)
}

/// Checks the size that the kernel has granted. The kernel silently lowers a size over its limit, and then
/// the plan would state a wrong size.
fn granted(operation: &'static str, option: &str, wanted: u32, got: io::Result<u32>) -> Result<()> {
    let got = got.map_err(|e| Error::io(operation, option, &e))?;
    // Linux doubles the size for its own bookkeeping, and reports the doubled value.
    let got = if cfg!(target_os = "linux") { got / 2 } else { got };
    if got < wanted {
        let context = format!("{option} of {wanted} bytes; the system grants {got}");
        return Err(Error::new(ErrorKind::Unsupported, operation, context)
            .hint("ask for less, or raise net.core.wmem_max and net.core.rmem_max"));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn choose_congestion(operation: &'static str, socket: &TcpSocket, name: &str) -> Result<()> {
    SockRef::from(socket).set_tcp_congestion(name.as_bytes()).map_err(|error| {
        let list = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let list = list.unwrap_or_else(|_| "(unknown)".into());
        let context = format!("congestion control {name:?}: {error}; available here: {}", list.trim());
        Error::new(ErrorKind::Unsupported, operation, context)
            .hint("choose an available one, or load its kernel module")
    })
}

#[cfg(not(target_os = "linux"))]
fn choose_congestion(operation: &'static str, _: &TcpSocket, name: &str) -> Result<()> {
    let context = format!("congestion control {name:?} cannot be chosen on this system");
    Err(Error::new(ErrorKind::Unsupported, operation, context).hint("leave the option out"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn little_waits_unsent_in_one_connection_of_several() {
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let waiting = |streams| {
            let socket = prepare("listen", at, &Options { streams, ..Options::default() }).unwrap();
            SockRef::from(&socket).tcp_notsent_lowat().unwrap()
        };
        assert_eq!(waiting(2), WAITING);
        assert_ne!(waiting(1), WAITING, "one alone takes as much as its buffer has");
    }
}
