//! Transport, listener and link.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use thalweg_wire::Tolerance;

use crate::{Address, Capabilities, Error, ErrorKind, Options, Outgoing, Result, Setting, Sink};

/// A link that is still shaking hands. Await it in a task of its own: a slow peer holds up nobody else.
pub type Pending = Pin<Box<dyn Future<Output = Result<Arc<dyn Link>>> + Send>>;

/// A way to move updates between parties.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Name, also the scheme of its addresses.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// What only this transport can be told. It refuses settings in [`Options::own`] that are not among them.
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
}

/// Accepts links.
#[async_trait]
pub trait Listener: Send + Sync {
    /// Where it listens, with the port that the system chose.
    fn address(&self) -> Address;

    /// Why it listens otherwise than asked, for people: what this machine lacks, and what is done instead.
    fn notice(&self) -> Option<String> {
        None
    }

    /// Most bytes of payload in a chunk on its links: fewer than [`Capabilities::max_chunk`] of the transport where a broker
    /// told a limit of its own.
    fn max_chunk(&self) -> u32 {
        u32::MAX
    }

    /// The next link. A peer that fails its handshake fails its own [`Pending`], not the listener.
    ///
    /// # Errors
    /// Only when no further link can ever come.
    async fn accept(&self) -> Result<Pending>;

    /// Sends one update to a group in one call. `done` hears of each link as soon as it has ended, by its
    /// place in `links`. No member waits for another, but for so long as sending once is worth it: a transport with
    /// `fan_out` sends once.
    async fn send_group(
        &self,
        links: &[Arc<dyn Link>],
        update: &Outgoing,
        done: &(dyn Fn(usize, Result<SendReport>) + Send + Sync),
    ) {
        send_group_each(links, update, done).await;
    }
}

/// The group send of a transport without fan-out: to each member, all at the same time.
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

/// Two peers, connected. All methods take `&self`: sending, receiving and asking go on at the same time.
#[async_trait]
pub trait Link: Send + Sync {
    /// Who is at the other end.
    fn peer(&self) -> &Peer;

    /// What the transport can do, as wrapped by layers.
    fn capabilities(&self) -> Capabilities;

    /// Sends one control message. Waits at most for the chunk being sent, not for a whole update.
    /// Dropping the future may break the link, and nothing else.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when the link has ended.
    async fn send_control(&self, message: Bytes) -> Result<()>;

    /// Sends the chunks of `update`, in order. When its [`crate::Cancel`] fires, the loan on the arena ends
    /// promptly, the link stays usable, and the call fails with [`ErrorKind::Cancelled`].
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when the link has ended, [`ErrorKind::Cancelled`].
    async fn send_update(&self, update: &Outgoing) -> Result<SendReport>;

    /// The next control message. Chunks that come before it are given to `sink` meanwhile. One caller at a
    /// time; dropping the future ends the link's receiving side for good.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] when the peer has gone, [`ErrorKind::Corrupt`] for bytes that are no frame.
    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes>;

    /// What may be lost of the models and updates that follow, by bytes of their buffer. A transport that decides by itself
    /// what is sent again lets nothing else be lost, as far as it may; whatever it cannot keep the session asks for again.
    /// Until it is said all may be lost. One that loses nothing does nothing.
    fn tolerate(&self, tolerance: &Arc<Tolerance>) {
        let _ = tolerance;
    }

    /// The peer has proved who it is. Until then a link that was accepted by a listener with an admission queue
    /// ([`Options::admission_queue`]) takes control messages of at most [`thalweg_wire::MAX_HELLO`] bytes: more breaks
    /// it, as [`ErrorKind::Corrupt`]. It takes no chunks: they break it too, or are dropped where they come as
    /// datagrams ([`Capabilities::datagrams`]). It ends when the admission queue needs its place for another, or after
    /// the admission queue's timeout. To be called from the task that receives, before it receives the next message;
    /// idempotent.
    fn admit(&self);

    /// What the link has carried so far.
    fn counters(&self) -> Counters;

    /// Why nothing gets through at the moment though the link lives, for people: an alarm of the broker between the
    /// peers. Meanwhile neither of them can make progress, nor say a word.
    fn held(&self) -> Option<String> {
        None
    }

    /// What people should know of the link: the device that it goes over, or why it is otherwise than asked, with what a
    /// machine or the path lacks, the hint, and what is done instead. It is said once, when the link has been made.
    fn notice(&self) -> Option<String> {
        None
    }

    /// Ends the link: both sides' calls fail with [`ErrorKind::Closed`], those under way too. Idempotent.
    async fn close(&self);
}

/// Who is at the other end of a link.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// Its address, for people.
    pub address: String,
    /// The name its certificate vouches for, with mutual TLS.
    pub certified: Option<String>,
    /// The role that its certificate names: its subject's organizational unit.
    pub role: Option<String>,
    /// A secret both ends and nobody else know (RFC 5705 exporter), to tie a token's proof to this link.
    pub binding: Option<[u8; 32]>,
}

/// What a link has carried so far, both directions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes handed to the network, frames' headers included.
    pub sent: u64,
    /// Bytes taken from the network, frames' headers included.
    pub received: u64,
    /// Bytes of payload copied in user space on the way, beside the one move into or out of the kernel; where peers share
    /// memory, beside the one move out of the sender's memory.
    pub copied: u64,
    /// Records that were given up on their way in: a hole touched them, or they were not authentic. Of links whose
    /// updates are sealed.
    pub records_lost: Option<u64>,
    /// Segments retransmitted by this end, if the transport can tell.
    pub retransmissions: Option<u64>,
    /// Repair packets sent by this end, if the transport has such.
    pub repair: Option<u64>,
    /// Chunks that this end rebuilt from repair packets, if the transport has such.
    pub rebuilt: Option<u64>,
    /// Smoothed round-trip time, if known.
    pub round_trip: Option<Duration>,
    /// The congestion control in use, if there is one.
    pub congestion: Option<String>,
}

/// How the sending of an update went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendReport {
    /// Chunks sent.
    pub chunks: u64,
    /// Bytes of payload sent.
    pub payload: u64,
    /// Bytes handed to the network, frames' headers included.
    pub wire: u64,
    /// When the first byte was handed over.
    pub started: Instant,
    /// When the last byte was handed over.
    pub ended: Instant,
}

impl SendReport {
    /// The error of a sender that was told to stop.
    pub fn cancelled() -> Error {
        Error::new(ErrorKind::Cancelled, "send update", "the receiver no longer wants it")
    }
}
