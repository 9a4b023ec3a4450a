//! Accepting links: those of the control listener, each in a task that shakes hands over UDP too.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, ErrorKind, Link, Listener, Options, Pending, Result, Transport};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connect::{control_address, resolve};
use crate::hello::{self, Dialect, Ends};

const ACCEPT: &str = "accept";

/// Makes a link of what shaking hands has come to.
pub type Make = fn(Ends, &Options) -> Result<Arc<dyn Link>>;

/// A listener of a transport over datagrams.
pub struct DatagramListener {
    address: Address,
    inner: Box<dyn Listener>,
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
    Ok(DatagramListener { address, inner, ip: at.ip(), options: options.clone(), dialect, make })
}

#[async_trait]
impl Listener for DatagramListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        let pending = self.inner.accept().await?;
        let mut task = JoinSet::new(); // dropped with what is pending, and the handshake with it
        task.spawn(shake(pending, self.ip, self.options.clone(), self.dialect, self.make));
        Ok(Box::pin(async move {
            let gone = || Error::closed(ACCEPT, "the handshake was given up");
            task.join_next().await.and_then(std::result::Result::ok).unwrap_or_else(|| Err(gone()))
        }))
    }
}

async fn shake(
    pending: Pending,
    ip: IpAddr,
    options: Options,
    dialect: &Dialect,
    make: Make,
) -> Result<Arc<dyn Link>> {
    let inner = pending.await?;
    let who = inner.peer().address.clone();
    let limit = options.connect_timeout();
    let late = |_| {
        let context = format!("{who}: no datagram of its handshake came in {} ms", limit.as_millis());
        Err(Error::new(ErrorKind::Timeout, ACCEPT, context).mend("let UDP through the firewall, or take tcp"))
    };
    let ends = timeout(limit, hello::answer(inner, ip, &options, dialect)).await.unwrap_or_else(late)?;
    make(ends, &options)
}
