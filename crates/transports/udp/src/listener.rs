//! Accepting links: those of the control listener, each in a task that shakes hands over UDP too.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, ErrorKind, Link, Listener, Options, Pending, Result, Transport};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connect::{control_address, resolve};
use crate::hello;

const ACCEPT: &str = "accept";

pub(crate) struct UdpListener {
    address: Address,
    inner: Box<dyn Listener>,
    ip: IpAddr,
    options: Options,
}

pub(crate) async fn listen(address: &Address, options: &Options) -> Result<UdpListener> {
    let at = resolve("listen", address).await?[0];
    let inner = Tcp.listen(&control_address(at), &crate::control(options)).await?;
    let address = Address { port: inner.address().port, ..address.clone() };
    Ok(UdpListener { address, inner, ip: at.ip(), options: options.clone() })
}

#[async_trait]
impl Listener for UdpListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        let pending = self.inner.accept().await?;
        let mut task = JoinSet::new(); // dropped with what is pending, and the handshake with it
        task.spawn(shake(pending, self.ip, self.options.clone()));
        Ok(Box::pin(async move {
            let gone = || Error::closed(ACCEPT, "the handshake was given up");
            task.join_next().await.and_then(std::result::Result::ok).unwrap_or_else(|| Err(gone()))
        }))
    }
}

async fn shake(pending: Pending, ip: IpAddr, options: Options) -> Result<Arc<dyn Link>> {
    let inner = pending.await?;
    let who = inner.peer().address.clone();
    let limit = options.connect_timeout();
    let late = |_| {
        let context = format!("{who}: no datagram of its handshake came in {} ms", limit.as_millis());
        Err(Error::new(ErrorKind::Timeout, ACCEPT, context).mend("let UDP through the firewall, or take tcp"))
    };
    let link = timeout(limit, hello::answer(inner, ip, &options)).await.unwrap_or_else(late)?;
    Ok(Arc::new(link))
}
