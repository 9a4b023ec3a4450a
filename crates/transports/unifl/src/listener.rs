//! Listening: a kernel listener that has the port, and in front of it the endpoint, if this machine can have one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, ErrorKind, Listener, Options, Pending, Result, Transport};
use tokio::sync::{mpsc, Mutex};
use tokio::task::AbortHandle;

use crate::endpoint::{self, Front, Newcomer};
use crate::settings;
use crate::{as_tcp, inner};

/// Connections that wait to shake hands; further ones are reset.
const MAX_NEW: usize = 512;
/// Links that wait to be accepted; beyond that, handshakes wait.
const MAX_READY: usize = 256;
const ACCEPT: &str = "accept";

struct Unifl {
    address: Address,
    kernel: Box<dyn Listener>,
    ready: Mutex<mpsc::Receiver<Pending>>,
    task: Option<AbortHandle>,
    front: Option<Front>,
    notice: Option<String>,
}

/// Listens. Where loss cannot be masked it is tcp, and says why.
pub(crate) async fn listen(address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
    let (limits, config) = settings::read(options)?;
    let kernel = Tcp.listen(&as_tcp(address), &inner(options)).await?;
    let address = Address { port: kernel.address().port, ..address.clone() };
    let (newcomers, new) = mpsc::channel(MAX_NEW);
    let front = match (&options.tls, at(&address).await) {
        (Some(_), _) => Err("TLS needs every byte, so no loss is masked".to_owned()),
        (None, Err(error)) => Err(error.to_string()),
        (None, Ok(at)) => endpoint::open(at, config, limits, newcomers).await,
    };
    let (sender, ready) = mpsc::channel(MAX_READY);
    let (front, notice) = match front {
        Ok(front) => (Some(front), None),
        Err(why) => (None, Some(format!("{address} is served as plain tcp: {why}"))),
    };
    let task =
        front.is_some().then(|| tokio::spawn(admit(new, sender, options.connect_timeout())).abort_handle());
    Ok(Box::new(Unifl { address, kernel, ready: Mutex::new(ready), task, front, notice }))
}

/// The address as numbers.
async fn at(address: &Address) -> Result<SocketAddr> {
    Ok(thalweg_tcp::socket::resolve("listen", address).await?[0])
}

/// Shakes hands with those who connect, each in a task of its own.
async fn admit(mut new: mpsc::Receiver<Newcomer>, ready: mpsc::Sender<Pending>, limit: Duration) {
    let lines = thalweg_tcp::line::Lines::default();
    let mut handshakes = tokio::task::JoinSet::new(); // dropped with this task, and they with it
    loop {
        tokio::select! {
            Some(_) = handshakes.join_next() => {}
            newcomer = new.recv(), if handshakes.len() < MAX_NEW => {
                let Some((line, from)) = newcomer else { return };
                let (lines, ready) = (lines.clone(), ready.clone());
                handshakes.spawn(async move {
                    let context = format!("{from} did not finish its handshake in time");
                    let late = |_| Err(Error::new(ErrorKind::Timeout, ACCEPT, context));
                    let admitted = tokio::time::timeout(limit, lines.admit(Arc::new(line), from, limit)).await;
                    let pending: Pending = match admitted.unwrap_or_else(late) {
                        Ok(None) => return,
                        Ok(Some(pending)) => pending,
                        Err(error) => Box::pin(std::future::ready(Err(error))),
                    };
                    // It fails once the listener is gone: the connection ends then too.
                    let _ = ready.send(pending).await;
                });
            }
        }
    }
}

#[async_trait]
impl Listener for Unifl {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn notice(&self) -> Option<String> {
        self.notice.clone()
    }

    async fn accept(&self) -> Result<Pending> {
        if self.front.is_none() {
            return self.kernel.accept().await;
        }
        let mut ready = self.ready.lock().await;
        tokio::select! {
            // Connections get there by ways that our rules do not know.
            pending = self.kernel.accept() => pending,
            Some(pending) = ready.recv() => Ok(pending),
        }
    }
}

impl Drop for Unifl {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some(front) = &self.front {
            front.stop_listening();
        }
    }
}
