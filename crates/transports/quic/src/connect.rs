//! Connects: an endpoint for each link, so that each link may change its address by itself.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::{ConnectError, Endpoint, TokioRuntime};
use thalweg_sockets::dial::late;
use thalweg_sockets::socket::resolve;
use thalweg_transport::{reach_any, Address, Error, ErrorKind, Options, Result};
use tokio::net::UdpSocket;

use crate::config;
use crate::link::QuicLink;
use crate::trust;

const CONNECT: &str = "connect";
/// Pause after the first datagram that tests whether a port is closed. The pause doubles each time.
const FIRST_REPEAT: Duration = Duration::from_millis(50);

pub(crate) async fn connect(address: &Address, options: &Options) -> Result<QuicLink> {
    let candidates = resolve(CONNECT, address).await?;
    let limit = options.connect_timeout();
    let attempt = |to| async move {
        tokio::select! {
            biased;
            link = reach(address, options, to) => link,
            error = closed_port(address, to) => Err(error),
        }
    };
    let is_final = |error: &Error| !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Timeout);
    reach_any(&candidates, limit, late(address, limit), attempt, is_final).await
}

async fn reach(address: &Address, options: &Options, to: SocketAddr) -> Result<QuicLink> {
    let (config, name) = config::of_client(address, options, to)?;
    let any = match to {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let failed = |e: &std::io::Error| Error::io(CONNECT, address, e);
    let socket = config::socket(any).map_err(|e| failed(&e))?;
    let settings = config::of_connecting_endpoint()?;
    let endpoint = Endpoint::new(settings, None, socket, Arc::new(TokioRuntime)).map_err(|e| failed(&e))?;
    let connecting = endpoint.connect_with(config, to, &name).map_err(|e| refused(address, &e))?;
    let who = address.to_string();
    let connection = connecting.await.map_err(|e| trust::explain(CONNECT, &who, &e))?;
    let link = QuicLink::new(CONNECT, connection, Some(endpoint), who, options, None).await?;
    link.accepted().await?;
    Ok(link)
}

fn refused(address: &Address, error: &ConnectError) -> Error {
    let kind = match error {
        ConnectError::InvalidServerName(_) => ErrorKind::Security,
        ConnectError::InvalidRemoteAddress(_) => ErrorKind::Address,
        _ => ErrorKind::System,
    };
    Error::new(kind, CONNECT, format!("{address}: {error}")).hint("check the address and tls.server_name")
}

/// Waits until the system reports that nobody listens at `to`, and returns the error. The system reports this
/// only on connected sockets. The endpoint's socket is not connected, so that the link survives a change of
/// this machine's address. So another socket sends single bytes, which an endpoint drops, until the error
/// arrives. If none arrives, this waits for ever.
async fn closed_port(address: &Address, to: SocketAddr) -> Error {
    match port_error(to).await {
        Ok(()) => std::future::pending().await,
        Err(error) => Error::io(CONNECT, address, &error),
    }
}

async fn port_error(to: SocketAddr) -> std::io::Result<()> {
    let any = if to.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(to).await?;
    let mut wait = FIRST_REPEAT;
    loop {
        socket.send(&[0]).await?;
        if let Ok(received) = tokio::time::timeout(wait, socket.recv(&mut [0])).await {
            received?; // ignore an answer: anybody may have sent it
        }
        wait = wait.saturating_mul(2);
    }
}
