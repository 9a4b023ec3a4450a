//! The listener: a kernel listener at the port, and in front of it the endpoint, if this machine allows that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_masking::Rate;
use thalweg_sockets::door::evicted;
use thalweg_tcp::line::{HoledStream, HoledStreams};
use thalweg_tcp::Tcp;
use thalweg_transport::trace::TraceFile;
use thalweg_transport::{
    Address, AdmissionQueue, Error, ErrorKind, Listener, Options, Origin, Pending, Result, Transport,
    UnauthenticatedPeer,
};
use tokio::sync::{mpsc, Mutex};
use tokio::task::AbortHandle;

use crate::endpoint::{self, Front, Newcomer};
use crate::settings::{self, Backend, Limits};
use crate::{as_tcp, inner};

/// Maximum number of connections that wait for their handshake. Further ones are reset.
const MAX_NEW: usize = 512;
/// Maximum number of links that wait to be accepted. Beyond that, handshakes wait.
const MAX_READY: usize = 256;
const ACCEPT: &str = "accept";
/// Why loss is not masked under TLS unless updates are sealed.
const UNSEALED: &str =
    "TLS needs every byte, so no loss is masked; seal the updates in records that are opened one by \
                        one, by [layers.seal] with a cipher that authenticates";
const UNDER_TLS: &str = "it tells no sealed connections apart, so it has none under TLS";

struct Unifl {
    address: Address,
    kernel: Box<dyn Listener>,
    ready: Mutex<mpsc::Receiver<Pending>>,
    task: Option<AbortHandle>,
    front: Option<Front>,
    notice: Option<String>,
}

/// Listens. If loss cannot be masked, the listener is plain tcp, and its notice says why.
pub(crate) async fn listen(address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
    let (limits, config) = settings::read(options)?;
    let trace = settings::trace(options)?;
    let refused = match settings::backend(options)? {
        Backend::Tun => None,
        Backend::Ebpf => match compact(address, options, limits, trace.clone(), &config.rate).await? {
            Ok(listener) => return Ok(listener),
            Err(why) => Some(why),
        },
    };
    let kernel = Tcp.listen(&as_tcp(address), &inner(options)).await?;
    let address = Address { port: kernel.address().port, ..address.clone() };
    let (newcomers, new) = mpsc::channel(MAX_NEW);
    let lines = HoledStreams::new(&inner(options))?;
    let front = match at(&address).await {
        _ if options.tls.is_some() && options.sealed.is_none() => Err(UNSEALED.to_owned()),
        Err(error) => Err(error.to_string()),
        Ok(at) => endpoint::open(at, config, limits, trace, newcomers).await.map_err(|why| why.to_string()),
    };
    let (sender, ready) = mpsc::channel(MAX_READY);
    let (front, notice) = match front {
        Ok(front) => {
            (Some(front), refused.map(|why| format!("{address} has backend tun instead of ebpf: {why}")))
        }
        Err(why) => {
            let first = refused.filter(|first| *first != why).map(|why| format!("; backend ebpf: {why}"));
            (None, Some(format!("{address} is served as plain tcp: {why}{}", first.unwrap_or_default())))
        }
    };
    let task =
        front.is_some().then(|| tokio::spawn(admit(lines, new, sender, options.clone())).abort_handle());
    Ok(Box::new(Unifl { address, kernel, ready: Mutex::new(ready), task, front, notice }))
}

/// Listens with the eBPF back end. The inner error says why that is not possible.
#[cfg(target_os = "linux")]
async fn compact(
    address: &Address,
    options: &Options,
    limits: Limits,
    trace: Option<TraceFile>,
    rate: &Rate,
) -> Result<std::result::Result<Box<dyn Listener>, String>> {
    if options.tls.is_some() {
        return Ok(Err(if options.sealed.is_some() { UNDER_TLS } else { UNSEALED }.to_owned()));
    }
    let at = match at(address).await {
        Ok(at) => at,
        Err(error) => return Ok(Err(error.to_string())),
    };
    crate::ebpf::listen(address, at, &inner(options), limits, trace, rate).await
}

#[cfg(not(target_os = "linux"))]
async fn compact(
    _: &Address,
    _: &Options,
    _: Limits,
    _: Option<TraceFile>,
    _: &Rate,
) -> Result<std::result::Result<Box<dyn Listener>, String>> {
    Ok(Err("there is no eBPF on this system".into()))
}

/// Resolves the address.
async fn at(address: &Address) -> Result<SocketAddr> {
    Ok(thalweg_sockets::socket::resolve("listen", address).await?[0])
}

/// Runs the handshake of each new connection in a task of its own.
async fn admit(
    lines: HoledStreams,
    mut new: mpsc::Receiver<Newcomer>,
    ready: mpsc::Sender<Pending>,
    options: Options,
) {
    let (limit, admission_queue) = (options.connect_timeout(), options.admission_queue);
    let mut handshakes = tokio::task::JoinSet::new(); // dropped with this task, which ends the handshakes
    loop {
        tokio::select! {
            Some(_) = handshakes.join_next() => {}
            newcomer = next(&mut new, admission_queue.as_ref()), if admission_queue.is_some() || handshakes.len() < MAX_NEW => {
                let Some((line, from)) = newcomer else { return };
                let unauthenticated_peer = admission_queue.as_ref().map(|admission_queue| admission_queue.enter(Origin::of(&from)));
                handshakes.spawn(shake(lines.clone(), line, from, unauthenticated_peer, limit, ready.clone()));
            }
        }
    }
}

/// The next connection. Waits until the admission queue has room for it.
async fn next(
    new: &mut mpsc::Receiver<Newcomer>,
    admission_queue: Option<&AdmissionQueue>,
) -> Option<Newcomer> {
    if let Some(admission_queue) = admission_queue {
        admission_queue.room().await;
    }
    new.recv().await
}

/// Hands over the link that is pending, or the error if there is none.
async fn shake(
    lines: HoledStreams,
    line: impl HoledStream + 'static,
    from: String,
    unauthenticated_peer: Option<UnauthenticatedPeer>,
    limit: Duration,
    ready: mpsc::Sender<Pending>,
) {
    let context = format!("{from} did not finish its handshake in time");
    let late = |_| Err(Error::new(ErrorKind::Timeout, ACCEPT, context));
    let shaking = lines.admit(Arc::new(line), from, unauthenticated_peer.clone(), limit);
    let admitted = tokio::select! {
        biased;
        admitted = tokio::time::timeout(limit, shaking) => admitted.unwrap_or_else(late),
        error = evicted(unauthenticated_peer.as_ref()) => Err(error),
    };
    let pending: Pending = match admitted {
        Ok(None) => return,
        Ok(Some(pending)) => pending,
        Err(error) => Box::pin(std::future::ready(Err(error))),
    };
    tokio::select! {
        // Ignore an error: the listener is gone. The connection then ends as well.
        _ = ready.send(pending) => {}
        _ = evicted(unauthenticated_peer.as_ref()) => {}
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
            // Some connections reach the kernel's listener by a path that our routing rules do not cover.
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
