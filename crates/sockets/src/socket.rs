//! One kernel connection, and the options set on it.

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

/// Bytes that may wait unsent in one connection of several: there they cannot go on another that is free, and the slowest
/// would hold up an update's end.
#[cfg(target_os = "linux")]
const WAITING: u32 = 256 << 10;

/// A connection whose clones read, write, shut down and ask the kernel independently.
#[derive(Clone)]
pub struct Socket(pub Arc<TcpStream>);

impl Socket {
    /// Takes a connection, without Nagle's delay.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self(Arc::new(stream)))
    }

    /// Ends both directions; wakes whoever reads or writes. What was written before still goes out.
    pub fn shut(&self) {
        // It fails where the peer has ended the connection already: nothing is left to do then.
        let _ = SockRef::from(&*self.0).shutdown(Shutdown::Both);
    }

    /// Waits until the peer has ended its direction, whether or not what it sent before has been read. A
    /// writer must know: the kernel does not wake one whose peer closed with its window full.
    #[cfg(target_os = "linux")]
    pub async fn hung_up(&self) {
        // Urgent data is not asked for, so that this interest stands for the end of the reading side alone.
        while self.0.ready(Interest::PRIORITY).await.is_ok_and(|ready| !ready.is_read_closed()) {}
    }

    /// Never, since nobody here would say it.
    #[cfg(not(target_os = "linux"))]
    pub async fn hung_up(&self) {
        std::future::pending().await
    }

    /// Adds what the kernel knows of the connection.
    pub fn tell(&self, counters: &mut Counters) {
        let known = info(&self.0);
        counters.retransmissions = known.as_ref().map(|info| info.retransmissions);
        counters.round_trip = known.map(|info| info.round_trip);
        counters.congestion = self.congestion();
    }

    /// Name of the congestion control in use.
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

/// What `address` stands for, at least one.
///
/// # Errors
/// [`ErrorKind::Address`].
pub async fn resolve(operation: &'static str, address: &Address) -> Result<Vec<SocketAddr>> {
    let none = |why: String| {
        Error::new(ErrorKind::Address, operation, format!("{address} does not resolve{why}"))
            .hint("check the host name, or write the address as a number")
    };
    let found = lookup_host(address.authority()).await.map_err(|e| none(format!(": {e}")))?;
    let found: Vec<SocketAddr> = found.collect();
    (!found.is_empty()).then_some(found).ok_or_else(|| none(String::new()))
}

/// A socket for `to` with the options that must be set before it listens or connects.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for what the system does not have or grant.
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
        // Only advice: without it connections still share chunks, less evenly.
        _ = SockRef::from(&socket).set_tcp_notsent_lowat(WAITING);
    }
    Ok(socket)
}

/// The kernel lowers a size over its limit without a word; a plan that says otherwise would be wrong.
fn granted(operation: &'static str, option: &str, wanted: u32, got: io::Result<u32>) -> Result<()> {
    let got = got.map_err(|e| Error::io(operation, option, &e))?;
    // Linux reports twice the size set, for its own bookkeeping.
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
