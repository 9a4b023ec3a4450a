//! Runs lapin over our own sockets. They have the kernel options and TLS of the `tcp` transport, and we can
//! ask the kernel about them.

use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_core::Stream;
use futures_io::{AsyncRead, AsyncWrite};
use thalweg_sockets::socket::Socket;
use thalweg_sockets::{dial, tls};
use thalweg_transport::{Address, Error, Options, Result};
use tokio_rustls::TlsConnector;
use tokio_util::compat::TokioAsyncReadCompatExt;

const CONNECT: &str = "connect";

/// The runtime for lapin: tokio, but with our streams.
pub(crate) type Kit = RuntimeParts<Tokio, Sockets>;

/// The kit for the current tokio runtime.
pub(crate) fn kit() -> Runtime<Kit> {
    let tokio = Tokio::current();
    Runtime::new(RuntimeParts::new(tokio.clone(), Sockets(tokio)))
}

/// A connection to the broker, with or without TLS.
pub(crate) struct Wire(Pin<Box<dyn Duplex>>);

trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

impl Wire {
    /// Connects to the broker at `address`, with TLS if the options say so. The socket is the same
    /// connection, for the kernel's statistics and for shutting it.
    ///
    /// # Errors
    /// The same as `Transport::connect`.
    pub(crate) async fn open(address: &Address, options: &Options) -> Result<(Self, Socket)> {
        let secure = options.tls.as_ref().map(|tls| tls::client(address, tls)).transpose()?;
        let (stream, _) = dial::reach(address, options).await?;
        let socket = Socket::new(stream).map_err(|e| Error::io(CONNECT, address, &e))?;
        let Some((config, name)) = secure else {
            return Ok((Self(Box::pin(socket.clone().compat())), socket));
        };
        let stream = TlsConnector::from(config).connect(name, socket.clone()).await;
        let stream = stream.map_err(|e| tls::explain(CONNECT, address, &e))?;
        Ok((Self(Box::pin(stream.compat())), socket))
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_read(cx, into)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write_vectored(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_close(cx)
    }
}

/// tokio's reactor, but with [`Wire`] as its stream. We connect before lapin runs, so lapin never connects
/// itself.
#[derive(Clone, Debug)]
pub(crate) struct Sockets(Tokio);

impl Reactor for Sockets {
    type TcpStream = Wire;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Wire, _>(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl std::future::Future<Output = io::Result<Wire>> + Send + 'static {
        std::future::ready(Err(io::Error::other("the connection is made before")))
    }
}
