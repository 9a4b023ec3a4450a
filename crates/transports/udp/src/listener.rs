//! Accepts links. For each control connection, a task does the handshake of the UDP sockets. `accept` returns
//! only links whose handshake is complete, so it never waits for a slow peer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use thalweg_tcp::line::{serve, HoledStreams};
use thalweg_tcp::Tcp;
use thalweg_transport::{
    Address, Carrier, Error, ErrorKind, Link, Listener, Options, Pending, Result, Transport,
};
use tokio::sync::{mpsc, Mutex};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::connect::{control_address, resolve};
use crate::control::hub::{self, Hub, Newcomer};
use crate::control_options;
use crate::hello::{self, Dialect, Ends, Met};

const ACCEPT: &str = "accept";
/// Maximum number of handshakes at a time, if there is no admission queue. Further connections wait at the
/// control listener.
const MAX_HANDSHAKES: usize = 1024;

/// Makes a link from the result of a handshake.
pub type Make = fn(Ends, &Options) -> Result<Arc<dyn Link>>;

/// Maximum number of control streams that wait for the handshake of their datagram sockets. Further streams
/// wait to be accepted.
const MAX_READY: usize = 256;
/// Number of ports to try. The system chooses a port that is free for TCP, but another program may use it for
/// UDP.
const PORT_ATTEMPTS: usize = 16;

/// How long to retry a port that is in use. A listener that has just been closed may hold the port until its
/// tasks have ended.
const PORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between these attempts.
const PORT_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// The listener of a datagram transport.
pub struct DatagramListener {
    address: Address,
    /// Accepts control connections.
    inner: Box<dyn Listener>,
    /// Accepts [control streams](crate::control), at the same port.
    _hub: Hub,
    /// Accepted control streams that are ready for the handshake of their datagram sockets.
    streams: Mutex<mpsc::Receiver<Pending>>,
    serving: AbortHandle,
    shaker: Shaker,
    /// The running handshakes of datagram sockets. Dropping the listener aborts them.
    shaking: Mutex<JoinSet<Result<Arc<dyn Link>>>>,
}

/// What a handshake needs.
#[derive(Clone)]
struct Shaker {
    ip: IpAddr,
    options: Options,
    dialect: &'static Dialect,
    make: Make,
}

/// Listens for links of one transport, described by `dialect`. `make` turns a finished handshake into a link.
pub async fn listen(
    address: &Address,
    options: &Options,
    dialect: &'static Dialect,
    make: Make,
) -> Result<DatagramListener> {
    let at = resolve("listen", address).await?[0];
    let (inner, hub, new) = both(at, options).await?;
    let (ready, streams) = mpsc::channel(MAX_READY);
    let lines = HoledStreams::new(&control_options(options))?;
    let serving = tokio::spawn(serve(lines, new, ready, control_options(options))).abort_handle();
    let streams = Mutex::new(streams);
    let address = Address { port: inner.address().port, ..address.clone() };
    let shaker = Shaker { ip: at.ip(), options: options.clone(), dialect, make };
    Ok(DatagramListener { address, inner, _hub: hub, streams, serving, shaker, shaking: Mutex::default() })
}

/// Listens for control connections and for control streams, at the same port.
async fn both(
    at: SocketAddr,
    options: &Options,
) -> Result<(Box<dyn Listener>, Hub, mpsc::Receiver<Newcomer>)> {
    let (mut tries, began) = (0, Instant::now());
    loop {
        let inner = Tcp.listen(&control_address(at), &control_options(options)).await?;
        let port = inner.address().port.unwrap_or_default();
        match hub::open(SocketAddr::new(at.ip(), port)) {
            Ok((hub, new)) => return Ok((inner, hub, new)),
            Err(error) if error.kind() != ErrorKind::InUse => return Err(error),
            Err(_) if at.port() == 0 && tries < PORT_ATTEMPTS => tries += 1,
            Err(_) if at.port() != 0 && began.elapsed() < PORT_TIMEOUT => {
                tokio::time::sleep(PORT_RETRY_PAUSE).await
            }
            Err(error) => return Err(error),
        }
    }
}

impl Drop for DatagramListener {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[async_trait]
impl Listener for DatagramListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        let (mut shaking, mut streams) = (self.shaking.lock().await, self.streams.lock().await);
        loop {
            tokio::select! {
                // A task that panicked or was aborted has no link.
                Some(done) = shaking.join_next() => if let Ok(link) = done {
                    return Ok(Box::pin(std::future::ready(link)));
                },
                pending = self.inner.accept(), if shaking.len() < MAX_HANDSHAKES => {
                    shaking.spawn(self.shaker.clone().shake(pending?, Carrier::Tcp));
                }
                Some(pending) = streams.recv(), if shaking.len() < MAX_HANDSHAKES => {
                    shaking.spawn(self.shaker.clone().shake(pending, Carrier::Udp));
                }
            }
        }
    }
}

impl Shaker {
    /// Shakes hands over a control connection.
    async fn shake(self, pending: Pending, control: Carrier) -> Result<Arc<dyn Link>> {
        let inner = pending.await?;
        let who = inner.peer().address.clone();
        let limit = self.options.connect_timeout();
        let late = |_| {
            let context =
                format!("{who}: no datagram of its handshake arrived within {} ms", limit.as_millis());
            Err(Error::new(ErrorKind::Timeout, ACCEPT, context)
                .hint("let UDP through the firewall, or use tcp"))
        };
        match timeout(limit, self.answer(inner, control)).await.unwrap_or_else(late)? {
            Met::Ends(ends) => (self.make)(*ends, &self.options),
            Met::OverTcp(link) => Ok(link),
        }
    }

    /// Shakes hands. If there is an admission queue, the peer's two sockets take places in it, beside that of
    /// the control connection. If the queue evicts one of them, the handshake fails.
    async fn answer(&self, inner: Arc<dyn Link>, control: Carrier) -> Result<Met> {
        let Self { ip, options, dialect, .. } = self;
        let Some(admission_queue) = &options.admission_queue else {
            return hello::answer(inner, control, *ip, Vec::new(), options, dialect).await;
        };
        let from = hello::source(ACCEPT, inner.peer())?;
        admission_queue.room().await;
        let unauthenticated_peers = [admission_queue.enter(from), admission_queue.enter(from)];
        let [one, other] = [unauthenticated_peers[0].watch(), unauthenticated_peers[1].watch()];
        tokio::select! {
            biased;
            Some(error) = one.evicted() => Err(error),
            Some(error) = other.evicted() => Err(error),
            ends = hello::answer(inner, control, *ip, unauthenticated_peers.to_vec(), options, dialect) => ends,
        }
    }
}
