//! Connections that something else than the kernel carries, for transports that speak what this one does; or that the
//! kernel carries, while something beside it takes what was lost out of them ([`Holes`]).
//!
//! Both may have holes in the payloads of chunks, and nowhere else. The sink is [told](thalweg_transport::hand_over)
//! of a chunk with holes as of a whole one, or gets the parts that came.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use thalweg_sockets::socket::Socket;
use thalweg_sockets::tls;
#[cfg(doc)]
use thalweg_transport::ErrorKind;
use thalweg_transport::{Counters, Options, Peer, Pending, Result, Sealed, UnauthenticatedPeer};
use thalweg_wire::{FrameHeader, Tolerance};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::data::{self, Asked, DataKey, DATA_BYTES};
use crate::gather::Gathering;
use crate::link::{Duplex, End, Shaken};
use crate::listener::reply;
use crate::preamble::Preamble;
pub use crate::preamble::PREAMBLE_BYTES;

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
pub trait HoledStream: Send + Sync {
    /// From byte `start` on what comes are frames, and the payloads of chunks may be lost, of `sealed` ones all but the
    /// head. Until that is said nothing may. A line that loses nothing need not know.
    fn frames(&self, _start: u64, _sealed: Option<Sealed>) {}

    /// The next bytes, no more than `buffer` holds.
    fn poll_take(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Taken>>;

    /// Takes bytes for the peer; how many of all.
    fn poll_put(&self, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// Waits until the peer has ended its direction, whether or not what it sent before has been taken.
    fn poll_hung_up(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Ends both directions; wakes whoever waits. What was put before still goes out.
    fn shut(&self);

    /// What may be lost of the payloads of chunks, by bytes of their update, which so many lines carry together. One that
    /// loses nothing does nothing.
    fn tolerate(&self, tolerance: &Arc<Tolerance>, lines: usize) {
        let _ = (tolerance, lines);
    }

    /// Adds what is known of the connection.
    fn tell(&self, counters: &mut Counters);
}

/// Bytes that are missing between two that the kernel hands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// How many bytes the kernel hands out in front of it.
    pub place: u64,
    /// How many are missing.
    pub length: u64,
}

/// Says where a connection that the kernel carries has holes.
pub trait Holes: Send + Sync {
    /// Those that have not been told yet, rising: among them all that are in front of a byte that the kernel has handed
    /// out, or in front of the end if it has handed out that.
    ///
    /// # Errors
    /// Why the connection cannot go on.
    fn take(&self) -> io::Result<Vec<Hole>>;

    /// The header of a frame has been read, holes counted, up to `offset` of the stream: its payload is there.
    fn header(&self, offset: u64, header: &FrameHeader);

    /// What may be lost of the payloads of chunks, as [`HoledStream::tolerate`] says.
    fn tolerate(&self, tolerance: &Tolerance, lines: usize) {
        let _ = (tolerance, lines);
    }
}

/// A line as tokio has it. A hole is an error: where bytes are read so, there is none.
#[derive(Clone)]
pub(crate) struct Wire(pub Arc<dyn HoledStream>);

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

/// Streams that wait for the others of their link.
#[derive(Clone)]
pub struct HoledStreams {
    gathering: Gathering,
    tls: Option<Arc<ServerConfig>>,
    sealed: Option<Sealed>,
}

impl HoledStreams {
    /// Of a listener with these options. Under TLS chunks that are sealed go on [data connections](mod@crate::data), which
    /// may have holes; where they are not sealed, nothing may be lost.
    ///
    /// # Errors
    /// [`ErrorKind::Security`] for certificates and keys that cannot be used.
    pub fn new(options: &Options) -> Result<Self> {
        let tls = options.tls.as_ref().map(tls::server).transpose()?;
        Ok(Self { gathering: Gathering::default(), tls, sealed: options.sealed })
    }

    /// Shakes hands on a line, and gives the link that is pending; `None` if the line belongs to one that is already.
    /// The link waits up to `limit` for its others.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for another protocol, [`ErrorKind::Security`] for who does not prove to be of a link or
    /// to be trusted, [`ErrorKind::Closed`].
    pub async fn admit(
        &self,
        line: Arc<dyn HoledStream>,
        from: String,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
        limit: Duration,
    ) -> Result<Option<Pending>> {
        let failed = |e: &io::Error| tls::explain(ACCEPT, &from, e);
        let mut wire = Wire(line.clone());
        let Some(config) = &self.tls else {
            let preamble = Preamble { data: false, ..Preamble::read(ACCEPT, &mut wire, &failed).await? };
            line.frames(PREAMBLE_BYTES as u64, None);
            reply(&mut wire, preamble).await.map_err(|e| failed(&e))?;
            return self.gathering.add(preamble, in_the_clear(line, from, unauthenticated_peer), limit);
        };
        let mut first = [0; 4];
        wire.read_exact(&mut first).await.map_err(|e| failed(&e))?;
        if first == data::MAGIC {
            return self.admit_data(line, from, unauthenticated_peer).await.map(|()| None);
        }
        let begun = tokio::io::join(AsyncReadExt::chain(io::Cursor::new(first), wire.clone()), wire);
        let accepted = TlsAcceptor::from(config.clone()).accept(begun).await;
        let stream = TlsStream::from(accepted.map_err(|e| failed(&e))?);
        self.admit_encrypted(line, stream, (from, unauthenticated_peer), limit).await
    }

    /// Takes a connection under TLS, of which nothing may be lost.
    async fn admit_encrypted<T: Duplex + 'static>(
        &self,
        line: Arc<dyn HoledStream>,
        mut stream: TlsStream<T>,
        (from, unauthenticated_peer): (String, Option<UnauthenticatedPeer>),
        limit: Duration,
    ) -> Result<Option<Pending>> {
        let failed = |e: &io::Error| tls::explain(ACCEPT, &from, e);
        let peer = tls::peer(ACCEPT, from.clone(), &stream)?;
        let asked = Preamble::read(ACCEPT, &mut stream, &failed).await?;
        let taken = Preamble { data: asked.data && asked.stream == 0 && self.sealed.is_some(), ..asked };
        // Before the answer, to which the client comes with its data connections.
        let pending = match taken.data {
            true => Some(self.gathering.expect(taken, DataKey::of(ACCEPT, &stream)?, limit)?),
            false => None,
        };
        reply(&mut stream, taken).await.map_err(|e| failed(&e))?;
        let shaken =
            Shaken { end: End::HoledStream(line), tls: Some(Box::new(stream)), peer, unauthenticated_peer };
        match pending {
            None => self.gathering.add(taken, shaken, limit),
            Some(pending) => self.gathering.join(taken.id, 0, shaken).map(|()| Some(pending)),
        }
    }

    /// Takes a data connection, of whose chunks parts may be lost.
    async fn admit_data(
        &self,
        line: Arc<dyn HoledStream>,
        from: String,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<()> {
        let failed = |e: &io::Error| tls::explain(ACCEPT, &from, e);
        let mut wire = Wire(line.clone());
        let asked = Asked::read(ACCEPT, &mut wire, &failed).await?;
        let key = self.gathering.key(&asked)?;
        if self.sealed.is_some() {
            line.frames(DATA_BYTES as u64, self.sealed);
        }
        asked.answer(&mut wire, &key).await.map_err(|e| failed(&e))?;
        let place = 1 + usize::from(asked.preamble.stream);
        self.gathering.join(asked.preamble.id, place, in_the_clear(line, from, unauthenticated_peer))
    }

    /// The same for a connection of the kernel, which may have holes if anybody can tell where.
    ///
    /// # Errors
    /// As [`HoledStreams::admit`].
    pub async fn admit_socket(
        &self,
        stream: TcpStream,
        holes: Option<Arc<dyn Holes>>,
        from: String,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
        limit: Duration,
    ) -> Result<Option<Pending>> {
        let failed = |e: &io::Error| tls::explain(ACCEPT, &from, e);
        let socket = Socket::new(stream).map_err(|e| failed(&e))?;
        let mut wire = socket.clone();
        let preamble = Preamble { data: false, ..Preamble::read(ACCEPT, &mut wire, &failed).await? };
        reply(&mut wire, preamble).await.map_err(|e| failed(&e))?;
        let peer = Peer { address: from, ..Peer::default() };
        let end = match holes {
            Some(holes) => End::Holed(socket, holes),
            None => End::Kernel(socket),
        };
        self.gathering.add(preamble, Shaken { end, tls: None, peer, unauthenticated_peer }, limit)
    }
}

fn in_the_clear(
    line: Arc<dyn HoledStream>,
    from: String,
    unauthenticated_peer: Option<UnauthenticatedPeer>,
) -> Shaken {
    Shaken {
        end: End::HoledStream(line),
        tls: None,
        peer: Peer { address: from, ..Peer::default() },
        unauthenticated_peer,
    }
}
