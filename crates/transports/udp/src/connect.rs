//! Connects a link: first the control connection, then the handshake of the UDP sockets.

use std::net::SocketAddr;
use std::time::Duration;

use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, ErrorKind, Options, Result, Transport};
use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::hello::{self, Dialect, Ends};

const CONNECT: &str = "connect";

/// Connects within [`Options::connect_timeout`]. Tries the host's addresses in turn; each gets an equal share
/// of the time.
///
/// # Errors
/// The error of the last address; [`ErrorKind::Timeout`] if that did not answer.
pub async fn connect(address: &Address, options: &Options, dialect: &Dialect) -> Result<Ends> {
    let candidates = resolve(CONNECT, address).await?;
    let share = options.connect_timeout() / candidates.len() as u32;
    let mut last = silent(address, share);
    for &to in &candidates {
        match timeout(share, reach(address, to, options, dialect)).await {
            Ok(Ok(link)) => return Ok(link),
            Ok(Err(error)) => last = error,
            Err(_) => last = silent(address, share),
        }
    }
    Err(last)
}

async fn reach(address: &Address, to: SocketAddr, options: &Options, dialect: &Dialect) -> Result<Ends> {
    let mut control = crate::control(options);
    if let Some(tls) = &mut control.tls {
        // The certificate must be for the host name in the address, not for its IP address.
        tls.server_name.get_or_insert_with(|| address.host.clone());
    }
    let inner = Tcp.connect(&control_address(to), &control).await?;
    hello::ask(inner, to.ip(), options, dialect).await
}

fn silent(address: &Address, limit: Duration) -> Error {
    let context = format!("{address} did not answer within {} ms", limit.as_millis());
    Error::new(ErrorKind::Timeout, CONNECT, context)
        .hint("let TCP and UDP through the firewall, take tcp, or raise the timeout")
}

/// The address of the control connection, at the same host and port.
pub(crate) fn control_address(to: SocketAddr) -> Address {
    Address { scheme: Tcp.name().into(), host: to.ip().to_string(), port: Some(to.port()), job: None }
}

/// Resolves `address` to at least one socket address.
pub(crate) async fn resolve(operation: &'static str, address: &Address) -> Result<Vec<SocketAddr>> {
    let none = |why: String| {
        Error::new(ErrorKind::Address, operation, format!("{address} does not resolve{why}"))
            .hint("check the host name, or write the address as a number")
    };
    let found = lookup_host(address.authority()).await.map_err(|e| none(format!(": {e}")))?;
    let found: Vec<SocketAddr> = found.collect();
    (!found.is_empty()).then_some(found).ok_or_else(|| none(String::new()))
}
