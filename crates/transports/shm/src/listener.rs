//! Accepting connections: of this user only.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_transport::{Address, Error, ErrorKind, Guest, Link, Listener, Lobby, Options, Pending, Result};
use tokio::net::UnixListener;

use crate::connect::{shake, Side};
use crate::link::ShmLink;
use crate::name;
use crate::socket::Socket;

const ACCEPT: &str = "accept";
/// Pause after the system could not give us a connection (no more descriptors), so as not to spin.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct ShmListener {
    address: Address,
    socket: UnixListener,
    lobby: Option<Lobby>,
    limit: Duration,
}

pub(crate) fn listen(address: &Address, options: &Options) -> Result<ShmListener> {
    let (socket, address) = name::open(address)?;
    let failed = |e: std::io::Error| Error::io("listen", &address, &e);
    let socket = UnixListener::from_std(socket.into()).map_err(failed)?;
    Ok(ShmListener { address, socket, lobby: options.lobby.clone(), limit: options.connect_timeout() })
}

#[async_trait]
impl Listener for ShmListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        if let Some(lobby) = &self.lobby {
            lobby.room().await;
        }
        match self.socket.accept().await {
            Ok((stream, _)) => {
                let guest = self.lobby.as_ref().map(|lobby| lobby.enter(thalweg_transport::Origin::Unknown));
                // In a task of its own: the peer waits for no answer until somebody awaits its link.
                let shaken = tokio::spawn(welcome(Socket::of(stream), guest, self.limit));
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

async fn welcome(socket: Socket, guest: Option<Guest>, limit: Duration) -> Result<Arc<dyn Link>> {
    let shaken = async {
        let late =
            |_| Err(Error::new(ErrorKind::Timeout, ACCEPT, "a peer did not finish its handshake in time"));
        tokio::time::timeout(limit, shake(ACCEPT, &socket, Side::Listens)).await.unwrap_or_else(late)
    };
    let who = tokio::select! {
        biased;
        who = shaken => who?,
        error = evicted(guest.as_ref()) => return Err(error),
    };
    Ok(Arc::new(ShmLink::new(socket, who, guest)))
}

/// Waits until the connection has to go; for ever if it is no guest.
async fn evicted(guest: Option<&Guest>) -> Error {
    if let Some(guest) = guest {
        if let Some(error) = guest.watch().evicted().await {
            return error;
        }
    }
    std::future::pending().await
}
