//! Connections whose incoming bytes may have holes, for transports that use this protocol. Something else
//! than the kernel carries them ([`HoledStream`]), or the kernel carries them while a program beside it masks
//! losses ([`Holes`]).
//!
//! Holes occur in the payloads of chunks and nowhere else. For a chunk with holes,
//! [`hand_over`](thalweg_transport::hand_over) gives the sink the whole chunk, or the parts that have
//! arrived.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use thalweg_sockets::door::evicted;
use thalweg_sockets::socket::Socket;
use thalweg_sockets::tls;
use thalweg_transport::{
    Address, AdmissionQueue, Counters, Error, ErrorKind, Link, Options, Origin, Peer, Pending, Result,
    Sealed, UnauthenticatedPeer,
};
use thalweg_wire::{FrameHeader, Tolerance};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::data::{self, DataKey, Hello, DATA_BYTES};
use crate::gather::Gathering;
use crate::link::{Duplex, End, Shaken};
use crate::listener::reply;
use crate::preamble::Preamble;
pub use crate::preamble::PREAMBLE_BYTES;

const ACCEPT: &str = "accept";
/// Maximum number of handshakes at a time without an admission queue.
const MAX_HANDSHAKES: usize = 512;

/// What a read from a connection returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// This many bytes, now in the buffer. 0 at the end of the stream.
    Bytes(usize),
    /// This many bytes will never arrive. The buffer's bytes are unchanged.
    Hole(usize),
}

/// A connection that carries bytes in order in both directions. Incoming bytes may be missing.
pub trait HoledStream: Send + Sync {
    /// Says that from byte `start` on, the incoming stream consists of frames. Payloads of chunks may now be
    /// lost; if they are `sealed`, all but the head of each. Before this call nothing may be lost. A stream
    /// without losses can ignore the call.
    fn frames(&self, _start: u64, _sealed: Option<Sealed>) {}

    /// Reads the next bytes, at most as many as `buffer` holds.
    fn poll_take(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Taken>>;

    /// Accepts bytes to be sent to the peer. Returns how many of `bytes` it has accepted.
    fn poll_put(&self, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// Waits until the peer has ended its direction, even if bytes that it sent before have not been read.
    fn poll_hung_up(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Ends both directions and wakes all waiters. Bytes that were accepted before are still sent.
    fn shut(&self);

    /// Waits until the peer has received all that was accepted before [`HoledStream::shut`], or the stream has
    /// given up. A stream whose bytes are sent on after this program has ended need not wait.
    fn poll_delivered(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Says which bytes of the chunks' payloads may be lost, by bytes of their update. `lines` is the number
    /// of connections that carry the update together. A stream without losses ignores the call.
    fn tolerate(&self, tolerance: &Arc<Tolerance>, lines: usize) {
        let _ = (tolerance, lines);
    }

    /// Gives the stream a secret that only the two ends know ([`Peer::binding`]), once there is one.
    fn bound(&self, secret: &[u8; 32]) {
        let _ = secret;
    }

    /// Adds the connection's figures to `counters`.
    fn tell(&self, counters: &mut Counters);
}

/// A gap in a stream: bytes that are missing between two bytes that the kernel delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Number of bytes that the kernel delivers before the hole.
    pub place: u64,
    /// Number of missing bytes.
    pub length: u64,
}

/// Tells where a connection of the kernel has holes.
pub trait Holes: Send + Sync {
    /// Returns the holes that it has not returned yet, in rising order. Among them are all holes before the
    /// last byte that the kernel has delivered, or before the end of the stream once the kernel has delivered
    /// that.
    ///
    /// # Errors
    /// The reason why the connection cannot go on.
    fn take(&self) -> io::Result<Vec<Hole>>;

    /// Reports the header of a frame that has been read. The frame's payload begins at `offset` of the
    /// stream, holes included.
    fn header(&self, offset: u64, header: &FrameHeader);

    /// Says which bytes of the chunks' payloads may be lost; see [`HoledStream::tolerate`].
    fn tolerate(&self, tolerance: &Tolerance, lines: usize) {
        let _ = (tolerance, lines);
    }
}

/// A [`HoledStream`] as tokio's read and write traits. A hole is an error: bytes that are read in this way
/// may not be lost.
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

/// Returns the number of bytes read. A hole is an error here, because no byte may be missing.
pub(crate) fn whole(taken: Taken) -> io::Result<usize> {
    match taken {
        Taken::Bytes(count) => Ok(count),
        Taken::Hole(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a frame's header has a hole")),
    }
}

/// Accepts connections that may have holes, and joins those of a link.
#[derive(Clone)]
pub struct HoledStreams {
    gathering: Gathering,
    tls: Option<Arc<ServerConfig>>,
    sealed: Option<Sealed>,
}

impl HoledStreams {
    /// For a listener with these options. Under TLS, sealed chunks go on [data connections](mod@crate::data),
    /// which may have holes. If chunks are not sealed, nothing may be lost.
    ///
    /// # Errors
    /// [`ErrorKind::Security`] for certificates and keys that cannot be used.
    pub fn new(options: &Options) -> Result<Self> {
        let tls = options.tls.as_ref().map(tls::server).transpose()?;
        Ok(Self { gathering: Gathering::default(), tls, sealed: options.sealed })
    }

    /// Does the handshake of a connection. Returns a pending link if the connection is the first of a link,
    /// and `None` if its link is pending already. The link waits up to `limit` for its other connections.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for another protocol; [`ErrorKind::Security`] for a peer that is not trusted,
    /// or for a data connection that does not prove to belong to a link; [`ErrorKind::Closed`].
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

    /// Admits a connection after its TLS handshake: reads the preamble, answers it, and adds the connection
    /// to its link. TLS cannot decrypt a stream with holes, so every byte of the connection must arrive.
    async fn admit_encrypted<T: Duplex + 'static>(
        &self,
        line: Arc<dyn HoledStream>,
        mut stream: TlsStream<T>,
        (from, unauthenticated_peer): (String, Option<UnauthenticatedPeer>),
        limit: Duration,
    ) -> Result<Option<Pending>> {
        let failed = |e: &io::Error| tls::explain(ACCEPT, &from, e);
        let peer = tls::peer(ACCEPT, from.clone(), &stream)?;
        peer.binding.iter().for_each(|secret| line.bound(secret));
        let requested = Preamble::read(ACCEPT, &mut stream, &failed).await?;
        let taken =
            Preamble { data: requested.data && requested.stream == 0 && self.sealed.is_some(), ..requested };
        // Do this before the answer: the client opens its data connections as soon as it has the answer.
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

    /// Admits a data connection. Parts of its chunks may be lost.
    async fn admit_data(
        &self,
        line: Arc<dyn HoledStream>,
        from: String,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<()> {
        let failed = |e: &io::Error| tls::explain(ACCEPT, &from, e);
        let mut wire = Wire(line.clone());
        let hello = Hello::read(ACCEPT, &mut wire, &failed).await?;
        let key = self.gathering.key(&hello)?;
        if self.sealed.is_some() {
            line.frames(DATA_BYTES as u64, self.sealed);
        }
        hello.answer(&mut wire, &key).await.map_err(|e| failed(&e))?;
        let place = 1 + usize::from(hello.preamble.stream);
        self.gathering.join(hello.preamble.id, place, in_the_clear(line, from, unauthenticated_peer))
    }

    /// Does the same for a connection of the kernel. The connection may have holes if `holes` can tell where.
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
            Some(holes) => End::MaskedSocket(socket, holes),
            None => End::Kernel(socket),
        };
        self.gathering.add(preamble, Shaken { end, tls: None, peer, unauthenticated_peer }, limit)
    }
}

/// Runs the handshake of each new connection in a task of its own. `new` gives the connections with their
/// peers' addresses, and `ready` gets the pending links.
pub async fn serve<L: HoledStream + 'static>(
    lines: HoledStreams,
    mut new: mpsc::Receiver<(L, String)>,
    ready: mpsc::Sender<Pending>,
    options: Options,
) {
    let (limit, admission_queue) = (options.connect_timeout(), options.admission_queue);
    let mut handshakes = tokio::task::JoinSet::new(); // dropped with this task, which ends the handshakes
    loop {
        tokio::select! {
            Some(_) = handshakes.join_next() => {}
            newcomer = next(&mut new, admission_queue.as_ref()), if admission_queue.is_some() || handshakes.len() < MAX_HANDSHAKES => {
                let Some((line, from)) = newcomer else { return };
                let unauthenticated_peer = admission_queue.as_ref().map(|admission_queue| admission_queue.enter(Origin::of(&from)));
                handshakes.spawn(shake(lines.clone(), line, from, unauthenticated_peer, limit, ready.clone()));
            }
        }
    }
}

/// The next connection. Waits until the admission queue has room for it.
async fn next<L>(
    new: &mut mpsc::Receiver<(L, String)>,
    admission_queue: Option<&AdmissionQueue>,
) -> Option<(L, String)> {
    if let Some(admission_queue) = admission_queue {
        admission_queue.room().await;
    }
    new.recv().await
}

/// Hands over the link that is pending, or the error if there is none.
async fn shake(
    lines: HoledStreams,
    line: impl HoledStream + 'static,
    from: String,
    unauthenticated_peer: Option<UnauthenticatedPeer>,
    limit: Duration,
    ready: mpsc::Sender<Pending>,
) {
    let context = format!("{from} did not finish its handshake in time");
    let late = |_| Err(Error::new(ErrorKind::Timeout, ACCEPT, context));
    let shaking = lines.admit(Arc::new(line), from, unauthenticated_peer.clone(), limit);
    let admitted = tokio::select! {
        biased;
        admitted = tokio::time::timeout(limit, shaking) => admitted.unwrap_or_else(late),
        error = evicted(unauthenticated_peer.as_ref()) => Err(error),
    };
    let pending: Pending = match admitted {
        Ok(None) => return,
        Ok(Some(pending)) => pending,
        Err(error) => Box::pin(std::future::ready(Err(error))),
    };
    tokio::select! {
        // Ignore an error: the listener is gone. The connection then ends as well.
        _ = ready.send(pending) => {}
        _ = evicted(unauthenticated_peer.as_ref()) => {}
    }
}

/// Connects over a connection that the kernel does not carry: the handshake of a link, under TLS if the
/// options have it.
///
/// # Errors
/// As those of `tcp`: [`ErrorKind::Security`], [`ErrorKind::Corrupt`], [`ErrorKind::Closed`].
pub async fn connect(
    line: Arc<dyn HoledStream>,
    address: &Address,
    options: &Options,
) -> Result<Arc<dyn Link>> {
    Ok(Arc::new(crate::connect::over(line, address, options).await?))
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
