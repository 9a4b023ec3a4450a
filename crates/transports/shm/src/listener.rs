//! Accepts connections of processes of this user.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_transport::{
    Address, AdmissionQueue, Error, ErrorKind, Link, Listener, Options, Pending, Result, UnauthenticatedPeer,
};
use tokio::net::UnixListener;

use crate::connect::{shake, Side};
use crate::link::ShmLink;
use crate::name;
use crate::socket::Socket;

const ACCEPT: &str = "accept";
/// Pause after the system could not accept a connection (no free descriptors), so that the loop does not
/// spin.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct ShmListener {
    address: Address,
    socket: UnixListener,
    admission_queue: Option<AdmissionQueue>,
    limit: Duration,
}

pub(crate) fn listen(address: &Address, options: &Options) -> Result<ShmListener> {
    let (socket, address) = name::open(address)?;
    let failed = |e: std::io::Error| Error::io("listen", &address, &e);
    let socket = UnixListener::from_std(socket.into()).map_err(failed)?;
    Ok(ShmListener {
        address,
        socket,
        admission_queue: options.admission_queue.clone(),
        limit: options.connect_timeout(),
    })
}

#[async_trait]
impl Listener for ShmListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        if let Some(admission_queue) = &self.admission_queue {
            admission_queue.room().await;
        }
        match self.socket.accept().await {
            Ok((stream, _)) => {
                let unauthenticated_peer = self
                    .admission_queue
                    .as_ref()
                    .map(|admission_queue| admission_queue.enter(thalweg_transport::Origin::Unknown));
                // The handshake runs in a task of its own, so that the peer gets its answer before somebody
                // awaits the link.
                let shaken = tokio::spawn(welcome(Socket::of(stream), unauthenticated_peer, self.limit));
                let ended = |_| Err(Error::closed(ACCEPT, "the handshake was ended"));
                Ok(Box::pin(async move { shaken.await.unwrap_or_else(ended) }))
            }
            Err(error) => {
                tokio::time::sleep(PAUSE).await;
                let error = Error::io(ACCEPT, "no new connection", &error)
                    .hint("if there are too many open files, raise the limit (ulimit -n)");
                Ok(Box::pin(std::future::ready(Err(error))))
            }
        }
    }
}

async fn welcome(
    socket: Socket,
    unauthenticated_peer: Option<UnauthenticatedPeer>,
    limit: Duration,
) -> Result<Arc<dyn Link>> {
    let shaken = async {
        let late =
            |_| Err(Error::new(ErrorKind::Timeout, ACCEPT, "a peer did not finish its handshake in time"));
        tokio::time::timeout(limit, shake(ACCEPT, &socket, Side::Listens)).await.unwrap_or_else(late)
    };
    let who = tokio::select! {
        biased;
        who = shaken => who?,
        error = evicted(unauthenticated_peer.as_ref()) => return Err(error),
    };
    Ok(Arc::new(ShmLink::new(socket, who, unauthenticated_peer)))
}

/// Waits until the peer is evicted. Waits for ever if it has no place in an admission queue.
async fn evicted(unauthenticated_peer: Option<&UnauthenticatedPeer>) -> Error {
    if let Some(unauthenticated_peer) = unauthenticated_peer {
        if let Some(error) = unauthenticated_peer.watch().evicted().await {
            return error;
        }
    }
    std::future::pending().await
}
