//! The traits of a transport, its listeners and its links, with the figures that a link reports.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use thalweg_wire::Tolerance;

use crate::{
    Address, Capabilities, Carriers, Error, ErrorKind, Options, Outgoing, Result, Setting, Sink, Ways,
};

/// A link whose handshake is not complete. Await it in a task of its own, so that a slow peer delays no
/// other.
pub type Pending = Pin<Box<dyn Future<Output = Result<Arc<dyn Link>>> + Send>>;

/// A way to move updates between parties.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Name of the transport; also the scheme of its addresses.
    fn name(&self) -> &'static str;

    /// What the transport can do.
    fn capabilities(&self) -> Capabilities;

    /// The settings that only this transport has. The transport refuses a setting in [`Options::own`] that is
    /// not among them.
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Listens at `address`; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`], [`ErrorKind::Address`], [`ErrorKind::Permission`]; [`ErrorKind::Unsupported`]
    /// for an option the transport cannot honour.
    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>>;

    /// Connects to a listener within [`Options::connect_timeout`].
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Timeout`], [`ErrorKind::Security`], [`ErrorKind::Address`].
    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>>;

    /// Finds out which ways to a listener pass. A way without an answer within several times `round_trip`, or a few
    /// seconds, does not. `None` for a transport that has one way only.
    ///
    /// # Errors
    /// [`ErrorKind::Address`].
    async fn ways(&self, address: &Address, round_trip: Duration) -> Result<Option<Ways>> {
        let _ = (address, round_trip);
        Ok(None)
    }
}

/// Accepts links.
#[async_trait]
pub trait Listener: Send + Sync {
    /// The address at which this listens, with the port that the system chose.
    fn address(&self) -> Address;

    /// For people: how the listener differs from what was asked, because this machine lacks something.
    fn notice(&self) -> Option<String> {
        None
    }

    /// Maximum number of bytes of payload in a chunk on this listener's links. It is less than the
    /// transport's [`Capabilities::max_chunk`] if a broker has a lower limit.
    fn max_chunk(&self) -> u32 {
        u32::MAX
    }

    /// Waits for the next link. If a peer's handshake fails, its own [`Pending`] fails, not the listener.
    ///
    /// # Errors
    /// Only when no further link can arrive.
    async fn accept(&self) -> Result<Pending>;

    /// Sends one update to a group in one call. `done` is called for each link as soon as the send to it has
    /// ended, with the link's index in `links`. A transport with `fan_out` sends the bytes only once; a
    /// member waits for others only as long as that saves sending again.
    async fn send_group(
        &self,
        links: &[Arc<dyn Link>],
        update: &Outgoing,
        done: &(dyn Fn(usize, Result<SendReport>) + Send + Sync),
    ) {
        send_group_each(links, update, done).await;
    }
}

/// The group send of a transport without fan-out: sends to all members at the same time.
pub async fn send_group_each(
    links: &[Arc<dyn Link>],
    update: &Outgoing,
    done: &(dyn Fn(usize, Result<SendReport>) + Send + Sync),
) {
    let sends = links.iter().enumerate().map(|(i, link)| async move { (i, link.send_update(update).await) });
    let mut sends: FuturesUnordered<_> = sends.collect();
    while let Some((index, outcome)) = sends.next().await {
        done(index, outcome);
    }
}

/// A connection of two peers. All methods take `&self`, so a link can send, receive and answer questions at
/// the same time.
#[async_trait]
pub trait Link: Send + Sync {
    /// The peer at the other end.
    fn peer(&self) -> &Peer;

    /// What the transport can do, including the changes by its layers.
    fn capabilities(&self) -> Capabilities;

    /// Sends one control message. It waits at most for the chunk that is being sent, not for a whole update.
    /// Dropping the future may break the link, and has no other effect.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when the link has ended.
    async fn send_control(&self, message: Bytes) -> Result<()>;

    /// Sends the chunks of `update` in order. When the update's [`crate::Cancel`] fires, the loan of the
    /// arena ends promptly, the link stays usable, and the call fails with [`ErrorKind::Cancelled`].
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when the link has ended, [`ErrorKind::Cancelled`].
    async fn send_update(&self, update: &Outgoing) -> Result<SendReport>;

    /// Waits for the next control message. Chunks that arrive before it are given to `sink` meanwhile. There
    /// may be only one caller at a time. Dropping the future ends the receiving side of the link for good.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when the peer has ended the link, [`ErrorKind::Corrupt`] for bytes that are not
    /// a frame.
    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes>;

    /// Says which bytes of the models and updates that follow may be lost. A transport that decides itself
    /// about retransmissions tries to lose no other bytes; the session asks again for those that it loses
    /// nevertheless. Before the first call, all bytes may be lost. A reliable transport ignores this call.
    fn tolerate(&self, tolerance: &Arc<Tolerance>) {
        let _ = tolerance;
    }

    /// Tells the link that the peer has proved who it is. This concerns links that a listener with an
    /// admission queue accepted ([`Options::admission_queue`]). Before this call, such a link takes control
    /// messages of at most [`thalweg_wire::MAX_HELLO`] bytes; a longer one breaks it with
    /// [`ErrorKind::Corrupt`]. It takes no chunks: a chunk breaks the link too, or is dropped if chunks
    /// arrive as datagrams ([`Capabilities::datagrams`]). The link ends when it is evicted from the admission
    /// queue, or after the queue's timeout. Call this from the task that receives, before it receives the
    /// next message. Idempotent.
    fn admit(&self);

    /// What the link has carried so far.
    fn counters(&self) -> Counters;

    /// For people: why the link can make no progress now although it is alive, such as an alarm of the
    /// broker. Meanwhile neither peer can send anything.
    fn held(&self) -> Option<String> {
        None
    }

    /// For people: what they should know of the link. This is its network device, or how the link differs
    /// from what was asked: what the machine or the path lacks, the hint, and what is done instead. It is
    /// reported once, when the link has been made.
    fn notice(&self) -> Option<String> {
        None
    }

    /// What carries the link. `None` for a transport that has one way only.
    fn carriers(&self) -> Option<Carriers> {
        None
    }

    /// Ends the link. Calls on both sides fail with [`ErrorKind::Closed`], those in progress included.
    /// Idempotent.
    async fn close(&self);
}

/// The peer at the other end of a link.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// The peer's address, for people.
    pub address: String,
    /// The name in the peer's certificate, with mutual TLS.
    pub certified: Option<String>,
    /// The role in the peer's certificate: the organizational unit of its subject.
    pub role: Option<String>,
    /// A secret that only the two ends know (RFC 5705 exporter). It binds a token's proof to this link.
    pub binding: Option<[u8; 32]>,
}

/// What a link has carried so far in both directions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes handed to the network, headers of frames included.
    pub sent: u64,
    /// Bytes taken from the network, headers of frames included.
    pub received: u64,
    /// Bytes of payload that were copied in user space, without the one copy into or out of the kernel. If
    /// the peers share memory, without the one copy out of the sender's memory.
    pub copied: u64,
    /// Sealed records that were discarded on arrival, because a hole touched them or they were not authentic.
    /// `None` if the link's updates are not sealed.
    pub records_lost: Option<u64>,
    /// Segments retransmitted by this end, if the transport can tell.
    pub retransmissions: Option<u64>,
    /// Repair packets that this end sent, if the transport has them.
    pub repair: Option<u64>,
    /// Chunks that this end rebuilt from repair packets, if the transport has them.
    pub rebuilt: Option<u64>,
    /// Smoothed round-trip time, if known.
    pub round_trip: Option<Duration>,
    /// Name of the congestion control algorithm in use, if there is one.
    pub congestion: Option<String>,
}

/// Counts and times of one call of [`Link::send_update`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendReport {
    /// Chunks sent.
    pub chunks: u64,
    /// Bytes of payload sent.
    pub payload: u64,
    /// Bytes handed to the network, headers of frames included.
    pub wire: u64,
    /// When the first byte was handed to the network.
    pub started: Instant,
    /// When the last byte was handed to the network.
    pub ended: Instant,
}

impl SendReport {
    /// The error of a send that was cancelled.
    pub fn cancelled() -> Error {
        Error::new(ErrorKind::Cancelled, "send update", "the receiver no longer wants it")
    }
}
