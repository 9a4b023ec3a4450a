//! Connects a link. Two attempts run in parallel: one uses datagrams alone; the other starts a little later
//! and sends control messages over TCP. The first that succeeds becomes the link, so it is enough if the path
//! lets UDP or TCP through. If no datagram comes back at all, the link carries its chunks over TCP too.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thalweg_tcp::{line, Tcp};
use thalweg_transport::{
    reach_any, Address, Carrier, Error, ErrorKind, Link, Options, Result, Transport, Ways,
};
use thalweg_wire::limits;
use tokio::net::{lookup_host, TcpStream};
use tokio::time::{sleep, timeout, Instant};

use crate::control::dial;
use crate::control::pipe::{Line, Pipe};
use crate::hello::{self, Dialect, Ends};
use crate::listener::Make;
use crate::over_tcp;

const CONNECT: &str = "connect";
/// How long the attempt by datagrams runs before the attempt by TCP starts. On most paths the listener
/// answers within this time.
const HEAD_START: Duration = Duration::from_millis(300);
/// The same time if the listener has already answered by a datagram.
const HEAD_START_ANSWERED: Duration = Duration::from_secs(2);
/// If TCP passes and no datagram comes back for this long, the link carries its chunks over TCP. If 80 % of
/// the datagrams are lost in each direction, a datagram still comes back within this time with a probability
/// of 0.75. TCP hardly connects on such a path.
const NO_DATAGRAM: Duration = Duration::from_secs(5);
/// Pause between attempts by TCP, while no datagram has come back either. The listener may not have started
/// yet, or a middlebox may have refused the connection.
const TCP_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// On a path that lets datagrams through, the handshake of the sockets for chunks may take this long. After
/// that the link carries its chunks over TCP: a firewall may let through only the listener's own port.
const SOCKETS_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects within [`Options::connect_timeout`]. Tries the host's addresses in parallel.
///
/// # Errors
/// The errors of [`reach_any`]. An error at one address does not end the attempts at the others.
pub async fn connect(
    address: &Address,
    options: &Options,
    dialect: &'static Dialect,
    make: Make,
) -> Result<Arc<dyn Link>> {
    let candidates = resolve(CONNECT, address).await?;
    let limit = options.connect_timeout();
    let attempt = |to| async move { Attempt::new(address, to, options, dialect, make).reach().await };
    reach_any(&candidates, limit, silent(address, limit), attempt, |_| false).await
}

/// Finds out whether a listener answers by datagrams and by TCP, at the same time. See [`Transport::ways`].
///
/// # Errors
/// [`ErrorKind::Address`]; the system's error if it makes no socket.
pub async fn ways(address: &Address, round_trip: Duration) -> Result<Ways> {
    let to = resolve(CONNECT, address).await?[0];
    let limit = limits::silence(NO_DATAGRAM, round_trip);
    let (line, pipe) = dial::begin(to).await?;
    let (udp, tcp) = tokio::join!(answer(limit, pipe.answered()), answer(limit, TcpStream::connect(to)));
    // The listener keeps no state for a stream that was only opened, so do not tell it about the end.
    pipe.fail(io::ErrorKind::ConnectionAborted);
    drop(line);
    Ok(Ways { udp, tcp })
}

/// Waits for an answer. Returns how long it took, or why there is none.
async fn answer<T>(
    limit: Duration,
    waits: impl Future<Output = io::Result<T>>,
) -> std::result::Result<Duration, String> {
    let began = Instant::now();
    match timeout(limit, waits).await {
        Ok(Ok(_)) => Ok(began.elapsed()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {:.0} s", limit.as_secs_f64())),
    }
}

/// The arguments of both attempts to reach one address.
struct Attempt<'a> {
    to: SocketAddr,
    options: &'a Options,
    control: Options,
    dialect: &'static Dialect,
    make: Make,
}

impl<'a> Attempt<'a> {
    fn new(
        address: &Address,
        to: SocketAddr,
        options: &'a Options,
        dialect: &'static Dialect,
        make: Make,
    ) -> Self {
        let mut control = crate::control_options(options);
        if let Some(tls) = &mut control.tls {
            // The certificate must be for the host name in the address, not for its IP address.
            tls.server_name.get_or_insert_with(|| address.host.clone());
        }
        Self { to, options, control, dialect, make }
    }

    async fn reach(&self) -> Result<Arc<dyn Link>> {
        let began = Instant::now();
        let (line, pipe) = dial::begin(self.to).await?;
        let mut by_datagrams = std::pin::pin!(self.by_datagrams(line, &pipe));
        let mut head_start = true;
        loop {
            let mut by_tcp = std::pin::pin!(self.by_tcp(began, head_start, &pipe));
            head_start = false;
            let failed = tokio::select! {
                met = &mut by_datagrams => return match met {
                    // A peer that refused this end would refuse it over TCP too.
                    Err(error) if is_refusal(&error) => Err(error),
                    Err(_) => by_tcp.await?,
                    Ok(made) => made,
                },
                met = &mut by_tcp => match met {
                    // A peer that refused this end would refuse it over datagrams too.
                    Err(error) if is_refusal(&error) => return Err(error),
                    Err(error) => error,
                    Ok(made) => return made,
                },
            };
            // TCP failed. The attempt by datagrams may still succeed, or a later one by TCP. If datagrams
            // fail too, report TCP's error, because it explains more, unless the peer refused this end.
            tokio::select! {
                met = &mut by_datagrams => return match met {
                    Err(met) if is_refusal(&met) => Err(met),
                    Err(_) => Err(failed),
                    Ok(made) => made,
                },
                () = sleep(TCP_RETRY_PAUSE) => {}
            }
        }
    }

    /// Makes a link whose control messages travel in datagrams. The inner error is this end's own, for
    /// example a trace that cannot be written: both ends have met, so an attempt by TCP would not help.
    async fn by_datagrams(&self, line: Line, pipe: &Pipe) -> Result<Result<Arc<dyn Link>>> {
        let (address, moves) = (control_address(self.to), pipe.moves());
        pipe.answered().await.map_err(|e| Error::io(CONNECT, &address, &e))?;
        let inner = line::connect(Arc::new(line), &address, &self.control).await?;
        let ends = hello::ask(inner, Carrier::Udp, self.to.ip(), self.options, self.dialect).await?;
        let ends = Ends { moves: Some(moves), ..ends };
        Ok((self.make)(ends, self.options))
    }

    /// Makes a link whose control messages travel over TCP. Its chunks do too if no datagrams pass. The
    /// attempt by datagrams began at `began`; with `head_start`, this attempt first waits for it. Errors are
    /// those of [`Attempt::by_datagrams`].
    async fn by_tcp(&self, began: Instant, head_start: bool, pipe: &Pipe) -> Result<Result<Arc<dyn Link>>> {
        let alone = async {
            sleep(HEAD_START).await;
            if pipe.is_answered() {
                sleep(HEAD_START_ANSWERED).await;
            }
        };
        tokio::select! {
            () = alone, if head_start => {}
            _ = pipe.broken(), if head_start => {}
            else => {}
        }
        let inner = self.by_kernel().await?;
        let trip = inner.counters().round_trip.unwrap_or_default();
        let until = (began + NO_DATAGRAM).max(Instant::now() + 4 * trip);
        let answered = timeout(until.saturating_duration_since(Instant::now()), pipe.answered()).await;
        if !matches!(answered, Ok(Ok(()))) {
            return over_tcp::ask(inner, self.dialect).await.map(Ok);
        }
        let asking = hello::ask(inner, Carrier::Tcp, self.to.ip(), self.options, self.dialect);
        match timeout(SOCKETS_TIMEOUT.max(8 * trip), asking).await {
            Ok(ends) => Ok((self.make)(ends?, self.options)),
            Err(_) => over_tcp::ask(self.by_kernel().await?, self.dialect).await.map(Ok),
        }
    }

    async fn by_kernel(&self) -> Result<Arc<dyn Link>> {
        Tcp.connect(&control_address(self.to), &self.control).await
    }
}

/// Whether the peer answered, but one end does not trust the other, or the peer speaks another protocol.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Security | ErrorKind::Corrupt)
}

fn silent(address: &Address, limit: Duration) -> Error {
    let context = format!("{address} did not answer within {} ms", limit.as_millis());
    Error::new(ErrorKind::Timeout, CONNECT, context)
        .hint("let UDP or TCP through the firewall, or raise the timeout")
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
