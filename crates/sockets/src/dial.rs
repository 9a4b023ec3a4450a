//! Connects to a host, which may have several addresses, within the time limit.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use thalweg_transport::{Address, Error, ErrorKind, Options, Result};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::socket::{prepare, resolve};

const CONNECT: &str = "connect";

/// Awaits `connecting`, for at most the options' connect timeout.
///
/// # Errors
/// Those of `connecting`, or [`ErrorKind::Timeout`].
pub async fn in_time<T>(
    address: &Address,
    options: &Options,
    connecting: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit = options.connect_timeout();
    timeout(limit, connecting).await.unwrap_or_else(|_| Err(late(address, limit)))
}

/// The error of an address that did not answer in time.
pub fn late(address: &Address, limit: Duration) -> Error {
    let context = format!("{address} did not answer within {} ms", limit.as_millis());
    Error::new(ErrorKind::Timeout, CONNECT, context)
        .hint("check the address and the firewall, or raise the timeout")
}

/// Connects to the first of the host's addresses that answers. Each address gets an equal share of the time.
///
/// # Errors
/// The reason why the last address failed.
pub async fn reach(address: &Address, options: &Options) -> Result<(TcpStream, SocketAddr)> {
    let candidates = resolve(CONNECT, address).await?;
    let share = options.connect_timeout() / candidates.len() as u32;
    let mut last = late(address, options.connect_timeout());
    for &to in &candidates {
        prepare(CONNECT, to, options)?; // fails for every address, so do not retry
        match timeout(share, open(to, options)).await {
            Ok(Ok(stream)) => return Ok((stream, to)),
            Ok(Err(error)) => last = Error::io(CONNECT, address, &error),
            Err(_) => {}
        }
    }
    Err(last)
}

/// Connects to one address, with the options of the job.
///
/// # Errors
/// The system's error.
pub async fn open(to: SocketAddr, options: &Options) -> std::io::Result<TcpStream> {
    let socket = prepare(CONNECT, to, options).map_err(std::io::Error::other)?;
    socket.connect(to).await
}
