//! Accepting links. A task of its own takes connections and shakes hands with each in another one, so a
//! slow or hostile peer holds up nobody.

use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustls::ServerConfig;
use socket2::SockRef;
use thalweg_transport::{Address, Error, ErrorKind, Listener, Options, Pending, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, Mutex};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::gather::Gathering;
use crate::link::Shaken;
use crate::preamble::Preamble;
use crate::socket::{prepare, resolve, Socket};
use crate::tls;

/// Connections the kernel keeps for us.
const BACKLOG: u32 = 1024;
/// Handshakes at a time; beyond that, connections wait in the kernel.
const MAX_HANDSHAKES: usize = 512;
/// Links that wait to be accepted; beyond that, handshakes wait.
const MAX_READY: usize = 256;
/// Pause after the system could not give us a connection (no more descriptors), so as not to spin.
const PAUSE: Duration = Duration::from_millis(50);
const ACCEPT: &str = "accept";

pub(crate) struct TcpLinkListener {
    address: Address,
    socket: Arc<TcpListener>,
    ready: Mutex<mpsc::Receiver<Pending>>,
    door: AbortHandle,
}

pub(crate) async fn listen(address: &Address, options: &Options) -> Result<TcpLinkListener> {
    let tls = options.tls.as_ref().map(tls::server).transpose()?;
    let at = resolve("listen", address).await?[0];
    let socket = prepare("listen", at, options)?;
    let failed = |e: std::io::Error| Error::io("listen", address, &e);
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.bind(at).map_err(failed)?;
    let socket = Arc::new(socket.listen(BACKLOG).map_err(failed)?);
    let port = socket.local_addr().map_err(failed)?.port();
    let door = Door { tls, limit: options.connect_timeout(), gathering: Gathering::default() };
    let (sender, ready) = mpsc::channel(MAX_READY);
    let task = tokio::spawn(keep_open(socket.clone(), Arc::new(door), sender));
    let address = Address { port: Some(port), ..address.clone() };
    Ok(TcpLinkListener { address, socket, ready: Mutex::new(ready), door: task.abort_handle() })
}

#[async_trait]
impl Listener for TcpLinkListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        let next = self.ready.lock().await.recv().await;
        next.ok_or_else(|| Error::closed(ACCEPT, "the listener has ended"))
    }
}

impl Drop for TcpLinkListener {
    fn drop(&mut self) {
        // Frees the port now; the task ends a little later.
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
        self.door.abort();
    }
}

async fn keep_open(socket: Arc<TcpListener>, door: Arc<Door>, ready: mpsc::Sender<Pending>) {
    let mut handshakes = JoinSet::new(); // dropped with this task, and they with it
    loop {
        tokio::select! {
            Some(_) = handshakes.join_next() => {}
            accepted = socket.accept(), if handshakes.len() < MAX_HANDSHAKES => match accepted {
                Ok((stream, from)) => _ = handshakes.spawn(door.clone().admit(stream, from, ready.clone())),
                Err(error) if gone_again(&error) => {}
                Err(error) => {
                    let error = Error::io(ACCEPT, "no new connection", &error)
                        .mend("if there are too many open files, raise the limit (ulimit -n)");
                    if ready.send(Box::pin(std::future::ready(Err(error)))).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// The peer left between connecting and our taking it.
fn gone_again(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Io;
    matches!(error.kind(), Io::ConnectionAborted | Io::ConnectionReset | Io::Interrupted)
}

struct Door {
    tls: Option<Arc<ServerConfig>>,
    limit: Duration,
    gathering: Gathering,
}

impl Door {
    /// Shakes hands; hands over the link that is pending, or the failure.
    async fn admit(self: Arc<Self>, stream: TcpStream, from: SocketAddr, ready: mpsc::Sender<Pending>) {
        let late = |_| {
            let context = format!("{from} did not finish its handshake in time");
            Err(Error::new(ErrorKind::Timeout, ACCEPT, context))
        };
        let met = timeout(self.limit, self.shake(stream, from)).await.unwrap_or_else(late);
        let pending = met.and_then(|(preamble, shaken)| self.gathering.add(preamble, shaken, self.limit));
        let pending: Pending = match pending {
            Ok(None) => return,
            Ok(Some(pending)) => pending,
            Err(error) => Box::pin(std::future::ready(Err(error))),
        };
        // It fails once the listener is gone: the connection ends then too.
        let _ = ready.send(pending).await;
    }

    async fn shake(&self, stream: TcpStream, from: SocketAddr) -> Result<(Preamble, Shaken)> {
        let failed = |e: &std::io::Error| tls::explain(ACCEPT, from, e);
        let socket = Socket::new(stream).map_err(|e| failed(&e))?;
        let mut shaken = match &self.tls {
            None => Shaken {
                socket,
                tls: None,
                peer: thalweg_transport::Peer { address: from.to_string(), ..Default::default() },
            },
            Some(config) => {
                let accepted = TlsAcceptor::from(config.clone()).accept(socket.clone()).await;
                let stream = accepted.map_err(|e| failed(&e))?.into();
                let peer = tls::peer(ACCEPT, from.to_string(), &stream)?;
                Shaken { socket, tls: Some(Box::new(stream)), peer }
            }
        };
        let preamble = Preamble::read(ACCEPT, shaken.stream(), failed).await?;
        shaken.stream().write_all(&preamble.encode()).await.map_err(|e| failed(&e))?;
        shaken.stream().flush().await.map_err(|e| failed(&e))?;
        Ok((preamble, shaken))
    }
}
