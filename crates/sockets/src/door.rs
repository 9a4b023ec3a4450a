//! Accepts connections. One task accepts them, and the handshake of each runs in a task of its own, so that a
//! slow or hostile peer delays no other. With an [`AdmissionQueue`], each connection gets a place there when
//! it is accepted. So no connection waits in the kernel for others to finish: the peer that has been silent
//! for longest is evicted instead.

use std::future::Future;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use socket2::SockRef;
use thalweg_transport::{
    Address, AdmissionQueue, Error, ErrorKind, Listener, Options, Pending, Result, UnauthenticatedPeer,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, Mutex};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::socket::{prepare, resolve};

/// Connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 1024;
/// Maximum number of handshakes at a time without an admission queue. Further connections wait in the kernel.
const MAX_HANDSHAKES: usize = 512;
/// Links that may wait for `accept`. Further handshakes wait.
const MAX_READY: usize = 256;
/// Pause after the system could not accept a connection (no free descriptors), so that the loop does not
/// spin.
const PAUSE: Duration = Duration::from_millis(50);
const ACCEPT: &str = "accept";

/// Makes links of accepted connections.
#[async_trait]
pub trait Doorkeeper: Send + Sync + 'static {
    /// Does the handshake of a connection. Returns the pending link, or `None` if the connection belongs to a
    /// link that is pending already. The call is dropped if it takes longer than `connect_timeout`, or if
    /// `unauthenticated_peer` is evicted. The link must keep `unauthenticated_peer`.
    async fn admit(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<Option<Pending>>;
}

/// A listener whose links are made by a [`Doorkeeper`].
pub struct Door {
    address: Address,
    socket: Arc<TcpListener>,
    ready: Mutex<mpsc::Receiver<Pending>>,
    task: AbortHandle,
}

/// Listens at `address` with the socket options of the job.
///
/// # Errors
/// Those of [`thalweg_transport::Transport::listen`].
pub async fn open(address: &Address, options: &Options, keeper: impl Doorkeeper) -> Result<Door> {
    let at = resolve("listen", address).await?[0];
    let socket = prepare("listen", at, options)?;
    let failed = |e: std::io::Error| Error::io("listen", address, &e);
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.bind(at).map_err(failed)?;
    let socket = Arc::new(socket.listen(BACKLOG).map_err(failed)?);
    let port = socket.local_addr().map_err(failed)?.port();
    let (sender, ready) = mpsc::channel(MAX_READY);
    let (admission_queue, limit) = (options.admission_queue.clone(), options.connect_timeout());
    let admission = Admission { keeper, admission_queue, limit, ready: sender };
    let task = tokio::spawn(keep_open(socket.clone(), Arc::new(admission)));
    let address = Address { port: Some(port), ..address.clone() };
    Ok(Door { address, socket, ready: Mutex::new(ready), task: task.abort_handle() })
}

#[async_trait]
impl Listener for Door {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        let next = self.ready.lock().await.recv().await;
        next.ok_or_else(|| Error::closed(ACCEPT, "the listener has ended"))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // This frees the port now; the task ends a little later.
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
        self.task.abort();
    }
}

async fn keep_open(socket: Arc<TcpListener>, admission: Arc<Admission<impl Doorkeeper>>) {
    let mut handshakes = JoinSet::new(); // ends all handshakes when this task ends
    loop {
        tokio::select! {
            Some(_) = handshakes.join_next() => {}
            accepted = admission.next(&socket), if admission.may_start(handshakes.len()) => match accepted {
                Ok((stream, from)) => {
                    let unauthenticated_peer = admission.admission_queue.as_ref().map(|admission_queue| admission_queue.enter(from));
                    _ = handshakes.spawn(admission.clone().admit(stream, from, unauthenticated_peer));
                }
                Err(error) if has_left(&error) => {}
                Err(error) => {
                    let error = Error::io(ACCEPT, "no new connection", &error)
                        .hint("if there are too many open files, raise the limit (ulimit -n)");
                    if admission.ready.send(Box::pin(std::future::ready(Err(error)))).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Whether the peer has left between connecting and our accept.
fn has_left(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Io;
    matches!(error.kind(), Io::ConnectionAborted | Io::ConnectionReset | Io::Interrupted)
}

struct Admission<K> {
    keeper: K,
    admission_queue: Option<AdmissionQueue>,
    limit: Duration,
    ready: mpsc::Sender<Pending>,
}

impl<K: Doorkeeper> Admission<K> {
    /// Waits until there is room for a connection, and accepts the next one.
    async fn next(&self, socket: &TcpListener) -> std::io::Result<(TcpStream, SocketAddr)> {
        if let Some(admission_queue) = &self.admission_queue {
            admission_queue.room().await;
        }
        socket.accept().await
    }

    fn may_start(&self, handshakes: usize) -> bool {
        self.admission_queue.is_some() || handshakes < MAX_HANDSHAKES
    }

    /// Does the handshake, and passes the pending link or the error to `accept`. The place in the admission
    /// queue stays taken until that is done, which bounds the number of waiting handshakes.
    async fn admit(
        self: Arc<Self>,
        stream: TcpStream,
        from: SocketAddr,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) {
        let shaken = self.in_time(
            from,
            unauthenticated_peer.as_ref(),
            self.keeper.admit(stream, from, unauthenticated_peer.clone()),
        );
        let pending: Pending = match shaken.await {
            Ok(None) => return,
            Ok(Some(pending)) => pending,
            Err(error) => Box::pin(std::future::ready(Err(error))),
        };
        tokio::select! {
            // This fails if the listener was dropped. The connection ends then too.
            _ = self.ready.send(pending) => {}
            _ = evicted(unauthenticated_peer.as_ref()) => {}
        }
    }

    async fn in_time<T>(
        &self,
        from: SocketAddr,
        unauthenticated_peer: Option<&UnauthenticatedPeer>,
        shaking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let late = |_| {
            let context = format!("{from} did not finish its handshake in time");
            Err(Error::new(ErrorKind::Timeout, ACCEPT, context))
        };
        tokio::select! {
            biased;
            shaken = timeout(self.limit, shaking) => shaken.unwrap_or_else(late),
            error = evicted(unauthenticated_peer) => Err(error),
        }
    }
}

/// Waits until the peer is evicted. Waits for ever if it has no place in an admission queue.
pub async fn evicted(unauthenticated_peer: Option<&UnauthenticatedPeer>) -> Error {
    if let Some(unauthenticated_peer) = unauthenticated_peer {
        if let Some(error) = unauthenticated_peer.watch().evicted().await {
            return error;
        }
    }
    std::future::pending().await
}
