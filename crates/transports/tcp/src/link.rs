//! A link over one or several connections, and the state that its sending and its receiving share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_sockets::socket::Socket;
use thalweg_sockets::tls;
use thalweg_transport::{
    Capabilities, Counters, Error, Link, Outgoing, Peer, Result, SendReport, Sink, Standing, Transport,
    UnauthenticatedPeer,
};
use thalweg_wire::Tolerance;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

use crate::inlet::Inlet;
use crate::line::{HoledStream, Holes, Wire};
use crate::marks::Marks;
use crate::masked_socket::MaskedSocket;
use crate::receive::{self, Intake};
use crate::send::{self, Lane, Writer};

use crate::Tcp;

/// Maximum time that close() spends on sending TLS close_notify.
const GOODBYE: Duration = Duration::from_millis(250);

/// The bytes of a connection, with or without TLS.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// How the bytes of a connection are carried.
#[derive(Clone)]
pub(crate) enum End {
    Kernel(Socket),
    /// By the kernel, but with holes that the kernel does not know of.
    MaskedSocket(Socket, Arc<dyn Holes>),
    HoledStream(Arc<dyn HoledStream>),
}

impl End {
    fn shut(&self) {
        match self {
            End::Kernel(socket) | End::MaskedSocket(socket, _) => socket.shut(),
            End::HoledStream(line) => line.shut(),
        }
    }

    async fn hung_up(&self) {
        match self {
            End::Kernel(socket) | End::MaskedSocket(socket, _) => socket.hung_up().await,
            End::HoledStream(line) => std::future::poll_fn(|cx| line.poll_hung_up(cx)).await,
        }
    }

    fn tell(&self, counters: &mut Counters) {
        match self {
            End::Kernel(socket) | End::MaskedSocket(socket, _) => socket.tell(counters),
            End::HoledStream(line) => line.tell(counters),
        }
    }
}

/// A connection whose handshake is complete.
pub(crate) struct Shaken {
    pub end: End,
    /// The TLS stream. Without TLS, the bytes are those of `end`.
    pub tls: Option<Box<dyn Duplex>>,
    pub peer: Peer,
    /// Its place in the listener's admission queue.
    pub unauthenticated_peer: Option<UnauthenticatedPeer>,
}

impl Shaken {
    fn split(self) -> (Inlet, Writer) {
        match (self.tls, self.end) {
            (None, End::Kernel(socket)) => (Inlet::plain(socket.clone()), Box::new(socket)),
            (None, End::MaskedSocket(socket, holes)) => {
                (Inlet::MaskedSocket(Box::new(MaskedSocket::new(socket.clone(), holes))), Box::new(socket))
            }
            (None, End::HoledStream(line)) => (Inlet::HoledStream(line.clone()), Box::new(Wire(line))),
            (Some(stream), _) => {
                let (reader, writer) = tokio::io::split(stream);
                (Inlet::Tls(reader), Box::new(writer))
            }
        }
    }
}

/// The state of a link that both directions use.
pub(crate) struct LinkState {
    /// The link's connections.
    ends: Vec<End>,
    /// The peer's address, for messages.
    pub who: String,
    pub tls: bool,
    /// What the peer may send now.
    pub standing: Standing,
    /// Bytes sent and received on data connections, if the link has any. Then chunks go on data connections
    /// only, and nothing else does.
    pub marks: Option<Marks>,
    /// Number of times that a payload is copied on its way in or out, beside the copy into or out of the
    /// kernel.
    pub copies: u64,
    /// The reason why nothing more can be sent.
    ended: OnceLock<String>,
    /// Whether incoming bytes are refused too, because this end closed the link or the peer broke the
    /// protocol.
    refused: AtomicBool,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub copied: AtomicU64,
}

impl LinkState {
    pub(crate) fn new(ends: Vec<End>, who: String, tls: bool, data: bool, standing: Standing) -> Self {
        let zero = AtomicU64::default;
        let (ended, refused) = (OnceLock::new(), AtomicBool::new(false));
        let marks = data.then(|| Marks::new(ends.len().saturating_sub(1)));
        let chunks_under_tls = tls && !data;
        let copies = match ends.last() {
            // The stream copies each payload into its buffer and out of it.
            Some(End::HoledStream(_)) => 2 + u64::from(chunks_under_tls),
            _ => u64::from(chunks_under_tls),
        };
        let (sent, received, copied) = (zero(), zero(), zero());
        Self { ends, copies, who, tls, standing, marks, ended, refused, sent, received, copied }
    }

    /// Index of the first connection that carries chunks.
    pub(crate) fn first_lane(&self) -> usize {
        usize::from(self.marks.is_some())
    }

    /// Ends the link, and wakes its readers and writers. Bytes that the peer sent before can still be
    /// received.
    pub(crate) fn end(&self, why: &str) {
        if self.ended.set(why.to_owned()).is_ok() {
            self.ends.iter().for_each(End::shut);
        }
    }

    /// Ends the link, and receives nothing more from the peer.
    pub(crate) fn refuse(&self, why: &str) {
        self.refused.store(true, Ordering::Release);
        self.end(why);
    }

    /// Ends the link because of a system error, and returns the error to report.
    pub(crate) fn broke(&self, operation: &'static str, error: &std::io::Error) -> Error {
        self.end(&format!("the link broke: {error}"));
        self.check(operation).err().unwrap_or_else(|| self.explain(operation, error))
    }

    pub(crate) fn explain(&self, operation: &'static str, error: &std::io::Error) -> Error {
        if self.refused.load(Ordering::Acquire) {
            return self.closed(operation);
        }
        tls::explain(operation, &self.who, error)
    }

    /// Waits until the peer has ended the connection `stream`.
    pub(crate) async fn hung_up(&self, stream: usize) {
        match self.ends.get(stream) {
            Some(end) => end.hung_up().await,
            None => std::future::pending().await,
        }
    }

    fn closed(&self, operation: &'static str) -> Error {
        let why = self.ended.get().map_or("the link has ended", String::as_str);
        Error::closed(operation, format!("{}: {why}", self.who))
    }

    /// An error if nothing more can be sent.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        self.ended.get().map_or(Ok(()), |_| Err(self.closed(operation)))
    }

    /// An error if nothing more can be received.
    pub(crate) fn check_open(&self, operation: &'static str) -> Result<()> {
        if self.refused.load(Ordering::Acquire) {
            Err(self.closed(operation))
        } else {
            Ok(())
        }
    }

    /// Counts a frame that was sent on the connection `stream`. Call it before the next frame is sent there.
    pub(crate) fn count(&self, stream: usize, bytes: usize) {
        if let Some(marks) = &self.marks {
            marks.sent(stream, bytes);
        }
    }

    /// Counts bytes that were read in the middle of a frame. The end of the stream is an error there.
    pub(crate) fn took(&self, bytes: usize) -> Result<usize> {
        if bytes == 0 {
            self.check_open("receive")?;
            let context = format!("{} ended the link in the middle of a frame", self.who);
            return Err(Error::closed("receive", context));
        }
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

pub(crate) struct TcpLink {
    peer: Peer,
    lanes: Vec<Lane>,
    intakes: Mutex<Vec<Intake>>,
    shared: Arc<LinkState>,
}

impl TcpLink {
    /// Makes a link of connections, in the order of their numbers. There is at least one. With `data`, all
    /// but the first are data connections.
    pub(crate) fn new(connections: Vec<Shaken>, data: bool) -> Self {
        let first = connections.first();
        let peer = first.map(|c| c.peer.clone()).unwrap_or_default();
        let ends = connections.iter().map(|c| c.end.clone()).collect();
        let standing = Standing::new(connections.iter().filter_map(|c| c.unauthenticated_peer.clone()));
        let tls = first.is_some_and(|c| c.tls.is_some());
        let shared = LinkState::new(ends, peer.address.clone(), tls, data, standing);
        let (mut lanes, mut intakes) = (Vec::new(), Vec::new());
        for (stream, connection) in connections.into_iter().enumerate() {
            let (inlet, writer) = connection.split();
            intakes.push(Intake::new(stream, inlet, &shared));
            lanes.push(Arc::new(Mutex::new(writer)));
        }
        Self { peer, lanes, intakes: Mutex::new(intakes), shared: Arc::new(shared) }
    }
}

#[async_trait]
impl Link for TcpLink {
    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn capabilities(&self) -> Capabilities {
        let (ordered, settled) = (self.lanes.len() == 1, self.shared.marks.is_some());
        let all = Capabilities { ordered, settled, zero_copy: self.shared.copies == 0, ..Tcp.capabilities() };
        if self.shared.ends.iter().all(|end| matches!(end, End::Kernel(_))) {
            // The other end of data connections is a holed stream: parts of chunks that this end sends may be
            // lost.
            return Capabilities { reliable: !settled, zero_copy: all.zero_copy && !settled, ..all };
        }
        Capabilities { reliable: false, zero_copy: false, retransmissions: false, ..all }
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        send::control(&self.shared, &self.lanes, message).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        send::update(&self.shared, &self.lanes, update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        receive::receive(&mut self.intakes.lock().await, sink, &self.shared).await
    }

    fn admit(&self) {
        self.shared.standing.admit();
    }

    fn tolerate(&self, tolerance: &Arc<Tolerance>) {
        for end in &self.shared.ends {
            match end {
                End::Kernel(_) => {}
                End::MaskedSocket(_, holes) => holes.tolerate(tolerance, self.lanes.len()),
                End::HoledStream(line) => line.tolerate(tolerance, self.lanes.len()),
            }
        }
    }

    fn counters(&self) -> Counters {
        let mut counters = Counters {
            sent: self.shared.sent.load(Ordering::Relaxed),
            received: self.shared.received.load(Ordering::Relaxed),
            copied: self.shared.copied.load(Ordering::Relaxed),
            ..Counters::default()
        };
        let mut per_end = self.shared.ends.iter().map(|end| {
            let mut counters = Counters::default();
            end.tell(&mut counters);
            counters
        });
        if let Some(first) = per_end.next() {
            (counters.round_trip, counters.congestion) = (first.round_trip, first.congestion);
            let sum = |sum: Option<u64>, next: Counters| Some(sum? + next.retransmissions?);
            counters.retransmissions = per_end.fold(first.retransmissions, sum);
        }
        counters
    }

    async fn close(&self) {
        if self.shared.tls && self.shared.check("close").is_ok() {
            let encrypted = if self.shared.marks.is_some() { &self.lanes[..1] } else { &self.lanes };
            let goodbyes = encrypted.iter().filter_map(|lane| lane.try_lock().ok());
            let goodbyes = goodbyes.map(|mut writer| async move { writer.shutdown().await });
            // A peer that reads nothing does not delay the close: it sees the end without close_notify.
            let _ = tokio::time::timeout(GOODBYE, futures_util::future::join_all(goodbyes)).await;
        }
        self.shared.refuse("the link was closed here");
        for end in &self.shared.ends {
            if let End::HoledStream(line) = end {
                std::future::poll_fn(|cx| line.poll_delivered(cx)).await;
            }
        }
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        self.shared.refuse("the link was dropped");
    }
}
