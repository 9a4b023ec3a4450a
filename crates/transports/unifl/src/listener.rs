//! The listener: a kernel listener at the port, and in front of it the endpoint, if this machine allows that.

use std::net::SocketAddr;

use async_trait::async_trait;
use thalweg_masking::Rate;
use thalweg_tcp::line::{serve, HoledStreams};
use thalweg_tcp::Tcp;
use thalweg_transport::trace::TraceFile;
use thalweg_transport::{Address, Listener, Options, Pending, Result, Transport};
use tokio::sync::{mpsc, Mutex};
use tokio::task::AbortHandle;

use crate::endpoint::{self, Front};
use crate::settings::{self, Backend, Limits};
use crate::{as_tcp, inner};

/// Maximum number of connections that wait for their handshake. Further ones are reset.
const MAX_NEW: usize = 512;
/// Maximum number of links that wait to be accepted. Beyond that, handshakes wait.
const MAX_READY: usize = 256;
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
        front.is_some().then(|| tokio::spawn(serve(lines, new, sender, options.clone())).abort_handle());
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
