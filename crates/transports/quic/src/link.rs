//! A link, and the state that its sending and its receiving share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use quinn::{Connection, ConnectionError, Endpoint, SendStream, VarInt};
use thalweg_transport::{
    Capabilities, Counters, Error, Link, Options, Outgoing, Peer, Result, SendReport, Sink, Standing,
    Transport, UnauthenticatedPeer,
};
use tokio::runtime::Handle;
use tokio::sync::{watch, Mutex};
use tokio::time::timeout;

use crate::config::{self, Admitted};
use crate::receive::{self, Intake};
use crate::{send, trust, Quic};

/// The first bytes of each end's first stream.
pub(crate) const PREAMBLE: [u8; 4] = *b"tlwq";
/// How many round trips a closing link waits for the ACK of its last messages, and the minimum of that time.
const GOODBYE_RTTS: u32 = 3;
const MIN_GOODBYE: Duration = Duration::from_millis(250);
/// Code with which a link is closed.
pub(crate) const CLOSED: VarInt = VarInt::from_u32(0);
/// Maximum number of times that `close` yields, so that quinn's task can send the CONNECTION_CLOSE frame.
const CLOSE_YIELDS: usize = 64;

/// The state of a link that both directions use.
pub(crate) struct LinkState {
    pub connection: Connection,
    /// Keeps the endpoint of an end that connected alive as long as the link. `None` at a listener's end.
    _endpoint: Option<Endpoint>,
    /// The peer's address, for messages.
    pub who: String,
    /// What the peer may send now.
    pub standing: Standing,
    admitted: Admitted,
    congestion: &'static str,
    /// The reason why nothing more can be sent.
    ended: OnceLock<String>,
    /// Whether this end has ended the link.
    refused: watch::Sender<bool>,
    /// Bytes of frames that were passed to quinn for sending, and that were received from it. As with TCP,
    /// packet headers and retransmissions do not count.
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub copied: AtomicU64,
    /// Number of messages that this end has begun to send.
    pub messages: AtomicU64,
    /// Number of chunk streams that this end has opened and ended.
    pub chunks: AtomicU64,
}

impl LinkState {
    /// Ends the link. The peer learns this from the end of the message stream, which is retransmitted if it
    /// is lost. quinn sends the packet that closes a connection only once, and not at all while the
    /// congestion window is full. So the connection itself is closed a little later.
    pub(crate) fn end(&self, why: &str) {
        let _ = self.ended.set(why.to_owned());
        self.refused.send_replace(true);
        if self.connection.close_reason().is_some() {
            return;
        }
        let connection = self.connection.clone();
        match Handle::try_current() {
            Ok(runtime) if self.standing.is_proved() => {
                let limit = self.goodbye();
                _ = runtime.spawn(async move {
                    let _ = timeout(limit, connection.closed()).await;
                    connection.close(CLOSED, b"");
                });
            }
            _ => connection.close(CLOSED, b""),
        }
    }

    /// How long the peer may take to acknowledge the end of the messages.
    fn goodbye(&self) -> Duration {
        MIN_GOODBYE.max(GOODBYE_RTTS * self.connection.rtt())
    }

    /// An error if this end has ended the link.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if *self.refused.borrow() {
            return Err(self.closed(operation));
        }
        Ok(())
    }

    fn closed(&self, operation: &'static str) -> Error {
        let why = self.ended.get().map_or("the link has ended", String::as_str);
        Error::closed(operation, format!("{}: {why}", self.who))
    }

    /// Waits until this end has ended the link, and returns the error to report.
    pub(crate) async fn refused(&self, operation: &'static str) -> Error {
        let mut refused = self.refused.subscribe();
        let _ = refused.wait_for(|refused| *refused).await; // the sender lives as long as `self`
        self.closed(operation)
    }

    /// The error of a connection that was lost.
    pub(crate) fn lost(&self, operation: &'static str, error: &ConnectionError) -> Error {
        if *self.refused.borrow() {
            return self.closed(operation);
        }
        trust::explain(operation, &self.who, error)
    }
}

pub(crate) struct QuicLink {
    peer: Peer,
    /// The stream of this end's messages.
    control: Mutex<SendStream>,
    /// Held while a chunk is written, so that chunk streams end in the order of their numbers.
    turn: Mutex<()>,
    intake: Mutex<Intake>,
    shared: Arc<LinkState>,
}

impl QuicLink {
    /// Makes a link from a connection whose handshake is complete, and opens this end's stream of messages.
    pub(crate) async fn new(
        operation: &'static str,
        connection: Connection,
        endpoint: Option<Endpoint>,
        address: String,
        options: &Options,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<Self> {
        let peer = trust::peer(operation, address.clone(), &connection, options)?;
        let lost = |e: &ConnectionError| trust::explain(operation, &address, e);
        let mut control: SendStream = connection.open_uni().await.map_err(|e| lost(&e))?;
        let _ = control.set_priority(1); // it fails only on streams that have ended
        control.write_all(&PREAMBLE).await.map_err(|_| {
            let reason = connection.close_reason().unwrap_or(ConnectionError::LocallyClosed);
            lost(&reason)
        })?;
        let shared = LinkState {
            connection,
            _endpoint: endpoint,
            who: address,
            standing: Standing::new(unauthenticated_peer),
            admitted: Admitted::new(options),
            congestion: config::congestion(options),
            ended: OnceLock::new(),
            refused: watch::Sender::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            chunks: AtomicU64::new(0),
        };
        Ok(Self {
            peer,
            control: Mutex::new(control),
            turn: Mutex::new(()),
            intake: Mutex::new(Intake::default()),
            shared: Arc::new(shared),
        })
    }

    /// Waits for the first of the peer's streams. Only after that has the peer accepted this end.
    ///
    /// # Errors
    /// The peer's refusal.
    pub(crate) async fn accepted(&self) -> Result<()> {
        self.intake.lock().await.open(&self.shared).await
    }
}

#[async_trait]
impl Link for QuicLink {
    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn capabilities(&self) -> Capabilities {
        Quic.capabilities()
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        send::control(&self.shared, &self.control, message).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        send::update(&self.shared, &self.turn, update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        receive::receive(&mut *self.intake.lock().await, sink, &self.shared).await
    }

    fn admit(&self) {
        self.shared.standing.admit();
        self.shared.connection.set_receive_window(self.shared.admitted.window);
        self.shared.connection.set_max_concurrent_uni_streams(self.shared.admitted.streams);
    }

    fn counters(&self) -> Counters {
        let stats = self.shared.connection.stats();
        Counters {
            sent: self.shared.sent.load(Ordering::Relaxed),
            received: self.shared.received.load(Ordering::Relaxed),
            copied: self.shared.copied.load(Ordering::Relaxed),
            retransmissions: Some(stats.path.lost_packets),
            round_trip: Some(stats.path.rtt),
            congestion: Some(self.shared.congestion.into()),
            ..Counters::default()
        }
    }

    /// Unlike with TCP, the kernel sends nothing after the program has ended. So this waits until the peer
    /// has the last messages, for at most a few round trips.
    async fn close(&self) {
        let shared = &self.shared;
        let _ = shared.ended.set("the link was closed here".into());
        shared.refused.send_replace(true);
        if shared.connection.close_reason().is_none() {
            let _ = timeout(shared.goodbye(), send::finish(&self.control)).await;
        }
        let before = shared.connection.stats().udp_tx.datagrams;
        shared.connection.close(CLOSED, b"");
        // The program may end after this call, so first let quinn's task send the close.
        for _ in 0..CLOSE_YIELDS {
            if shared.connection.stats().udp_tx.datagrams > before {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        self.shared.end("the link was dropped");
    }
}
