//! Accepting links: those of the control listener, each in a task that shakes hands over UDP too. Only those are given out
//! that have done so: whoever accepts waits for no peer.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, ErrorKind, Link, Listener, Options, Pending, Result, Transport};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connect::{control_address, resolve};
use crate::hello::{self, Dialect, Ends};

const ACCEPT: &str = "accept";
/// Handshakes at a time; beyond that, links wait at the control listener. A lobby has room for less.
const MOST: usize = 1024;

/// Makes a link of what shaking hands has come to.
pub type Make = fn(Ends, &Options) -> Result<Arc<dyn Link>>;

/// A listener of a transport over datagrams.
pub struct DatagramListener {
    address: Address,
    inner: Box<dyn Listener>,
    shaker: Shaker,
    /// Dropped with the listener, and the handshakes with it.
    shaking: Mutex<JoinSet<Result<Arc<dyn Link>>>>,
}

/// What a handshake needs to know.
#[derive(Clone)]
struct Shaker {
    ip: IpAddr,
    options: Options,
    dialect: &'static Dialect,
    make: Make,
}

/// Listens for links of one dialect, which `make` makes.
pub async fn listen(
    address: &Address,
    options: &Options,
    dialect: &'static Dialect,
    make: Make,
) -> Result<DatagramListener> {
    let at = resolve("listen", address).await?[0];
    let inner = Tcp.listen(&control_address(at), &crate::control(options)).await?;
    let address = Address { port: inner.address().port, ..address.clone() };
    let shaker = Shaker { ip: at.ip(), options: options.clone(), dialect, make };
    Ok(DatagramListener { address, inner, shaker, shaking: Mutex::default() })
}

#[async_trait]
impl Listener for DatagramListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        let mut shaking = self.shaking.lock().await;
        loop {
            tokio::select! {
                // One that was aborted or panicked is nobody's link.
                Some(done) = shaking.join_next() => if let Ok(link) = done {
                    return Ok(Box::pin(std::future::ready(link)));
                },
                pending = self.inner.accept(), if shaking.len() < MOST => {
                    shaking.spawn(self.shaker.clone().shake(pending?));
                }
            }
        }
    }
}

impl Shaker {
    async fn shake(self, pending: Pending) -> Result<Arc<dyn Link>> {
        let inner = pending.await?;
        let who = inner.peer().address.clone();
        let limit = self.options.connect_timeout();
        let late = |_| {
            let context = format!("{who}: no datagram of its handshake came in {} ms", limit.as_millis());
            Err(Error::new(ErrorKind::Timeout, ACCEPT, context)
                .mend("let UDP through the firewall, or take tcp"))
        };
        let ends = timeout(limit, self.answer(inner)).await.unwrap_or_else(late)?;
        (self.make)(ends, &self.options)
    }

    /// Shakes hands with a peer whose two sockets have places in the lobby, beside its control connection.
    async fn answer(&self, inner: Arc<dyn Link>) -> Result<Ends> {
        let Self { ip, options, dialect, .. } = self;
        let Some(lobby) = &options.lobby else {
            return hello::answer(inner, *ip, Vec::new(), options, dialect).await;
        };
        let from = hello::source(ACCEPT, inner.peer())?;
        lobby.room().await;
        let guests = [lobby.enter(from), lobby.enter(from)];
        let [one, other] = [guests[0].watch(), guests[1].watch()];
        tokio::select! {
            biased;
            Some(error) = one.turned_out() => Err(error),
            Some(error) = other.turned_out() => Err(error),
            ends = hello::answer(inner, *ip, guests.to_vec(), options, dialect) => ends,
        }
    }
}
