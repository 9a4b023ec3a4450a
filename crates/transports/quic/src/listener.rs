//! The listener: one UDP socket for all its links. One task accepts connections, and the handshake of each
//! runs in a task of its own. With an admission queue, each connection has a place there before its handshake
//! costs anything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, Incoming, TokioRuntime, VarInt};
use thalweg_sockets::door::evicted;
use thalweg_sockets::socket::resolve;
use thalweg_transport::{
    Address, AdmissionQueue, Error, ErrorKind, Link, Listener, Options, Pending, Result, UnauthenticatedPeer,
};
use tokio::sync::{mpsc, Mutex};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::link::QuicLink;
use crate::{config, trust};

/// Maximum number of handshakes at a time without an admission queue. Further connections wait in quinn.
const MAX_HANDSHAKES: usize = 512;
/// Links that may wait for `accept`. Further handshakes wait.
const MAX_READY: usize = 256;
/// While more than one in this many places of the admission queue is taken, a peer must first show that it
/// receives at its address (RFC 9000, section 8.1.2). So peers with forged addresses evict nobody.
const UNVALIDATED_PART: usize = 8;
const ACCEPT: &str = "accept";

pub(crate) struct QuicListener {
    address: Address,
    ready: Mutex<mpsc::Receiver<Pending>>,
    task: AbortHandle,
}

pub(crate) async fn listen(address: &Address, options: &Options) -> Result<QuicListener> {
    let at = resolve("listen", address).await?[0];
    let crypto = config::server_crypto(options)?;
    let server = config::of_server(options, at, &crypto)?;
    let failed = |e: std::io::Error| Error::io("listen", address, &e);
    let socket = config::socket(at).map_err(failed)?;
    let settings = config::of_listening_endpoint(options)?;
    let endpoint = Endpoint::new(settings, Some(server), socket, Arc::new(TokioRuntime)).map_err(failed)?;
    let port = endpoint.local_addr().map_err(failed)?.port();
    let (sender, ready) = mpsc::channel(MAX_READY);
    let admission = Admission { options: options.clone(), crypto, ready: sender };
    let task = tokio::spawn(keep_open(endpoint, Arc::new(admission)));
    let address = Address { port: Some(port), ..address.clone() };
    Ok(QuicListener { address, ready: Mutex::new(ready), task: task.abort_handle() })
}

#[async_trait]
impl Listener for QuicListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        let next = self.ready.lock().await.recv().await;
        next.ok_or_else(|| Error::closed(ACCEPT, "the listener has ended"))
    }
}

impl Drop for QuicListener {
    fn drop(&mut self) {
        self.task.abort(); // links keep the endpoint; without any, its socket is closed
    }
}

async fn keep_open(endpoint: Endpoint, admission: Arc<Admission>) {
    let mut handshakes = JoinSet::new(); // ends all handshakes when this task ends
    loop {
        tokio::select! {
            Some(_) = handshakes.join_next() => {}
            incoming = admission.next(&endpoint), if admission.may_start(handshakes.len()) => {
                let Some(incoming) = incoming else { return };
                if let Some((incoming, peer)) = admission.enter(incoming) {
                    _ = handshakes.spawn(admission.clone().admit(incoming, peer));
                }
            }
        }
    }
}

struct Admission {
    options: Options,
    crypto: Arc<QuicServerConfig>,
    ready: mpsc::Sender<Pending>,
}

impl Admission {
    fn queue(&self) -> Option<&AdmissionQueue> {
        self.options.admission_queue.as_ref()
    }

    fn limit(&self) -> Duration {
        self.options.connect_timeout()
    }

    fn may_start(&self, handshakes: usize) -> bool {
        self.queue().is_some() || handshakes < MAX_HANDSHAKES
    }

    /// Waits until there is room for a connection, and returns the next one. `None`: the endpoint has ended.
    async fn next(&self, endpoint: &Endpoint) -> Option<Incoming> {
        if let Some(queue) = self.queue() {
            queue.room().await;
        }
        endpoint.accept().await
    }

    /// Takes a place for a connection. `None` if the peer must show first that it receives at its address.
    fn enter(&self, incoming: Incoming) -> Option<(Incoming, Option<UnauthenticatedPeer>)> {
        let Some(queue) = self.queue() else { return Some((incoming, None)) };
        let crowded = queue.count() * UNVALIDATED_PART > queue.bounds().total;
        if crowded && !incoming.remote_address_validated() {
            let _ = incoming.retry(); // an address that is not validated may always be asked
            return None;
        }
        let peer = queue.enter(incoming.remote_address());
        Some((incoming, Some(peer)))
    }

    /// Does the handshake, and passes the link or the error to `accept`. The place in the admission queue
    /// stays taken until that is done, which bounds the number of waiting handshakes.
    async fn admit(self: Arc<Self>, incoming: Incoming, peer: Option<UnauthenticatedPeer>) {
        let from = incoming.remote_address();
        let late = |_| {
            let context = format!("{from} did not finish its handshake in time");
            Err(Error::new(ErrorKind::Timeout, ACCEPT, context))
        };
        let shaken = tokio::select! {
            biased;
            shaken = timeout(self.limit(), self.shake(incoming, from, peer.clone())) => shaken.unwrap_or_else(late),
            error = evicted(peer.as_ref()) => Err(error),
        };
        let outcome = shaken.map(|link| Arc::new(link) as Arc<dyn Link>);
        let pending: Pending = Box::pin(std::future::ready(outcome));
        tokio::select! {
            // This fails if the listener was dropped. The connection ends then too.
            _ = self.ready.send(pending) => {}
            _ = evicted(peer.as_ref()) => {}
        }
    }

    async fn shake(
        &self,
        incoming: Incoming,
        from: SocketAddr,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<QuicLink> {
        let who = from.to_string();
        let config = config::of_server(&self.options, from, &self.crypto)?;
        let lost = |e| trust::explain(ACCEPT, &who, &e);
        let connection = incoming.accept_with(Arc::new(config)).map_err(lost)?.await.map_err(lost)?;
        if let Some(peer) = &unauthenticated_peer {
            peer.progressed();
        }
        let link =
            QuicLink::new(ACCEPT, connection.clone(), None, who.clone(), &self.options, unauthenticated_peer)
                .await;
        if link.is_err() {
            connection.close(VarInt::from_u32(0), b"");
        }
        link
    }
}
