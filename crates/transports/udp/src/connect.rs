//! Connects a link. Two attempts run side by side: one by datagrams alone, and a little later one whose
//! control messages go over TCP. The first to succeed is the link, so that a path which lets only one of them
//! through will do. If no datagram comes back at all, the link carries its chunks over TCP too.

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
/// How long the attempt by datagrams is alone. On most paths it has an answer by then.
const HEAD_START: Duration = Duration::from_millis(300);
/// How long it stays alone once the listener has answered it by a datagram.
const ANSWERED: Duration = Duration::from_secs(2);
/// How long no datagram comes back while TCP passes, until the link carries its chunks over TCP. Even if 80 %
/// of the datagrams are lost in each direction, one of the opens that are sent meanwhile is answered with a
/// probability of 0.75, and TCP hardly gets through.
const NO_DATAGRAM: Duration = Duration::from_secs(5);
/// Pause after a failed attempt by TCP, while no datagram has come back either. The listener may not be there yet,
/// or a program of the network refuses in its name.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the datagram sockets may need where datagrams do pass, until the link does without them. The
/// firewall may let through the listener's own port alone.
const NO_SOCKETS: Duration = Duration::from_secs(20);

/// Connects within [`Options::connect_timeout`]. Tries the host's addresses side by side.
///
/// # Errors
/// Those of [`reach_any`]; none ends the attempts at the other addresses.
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
/// [`ErrorKind::Address`]; those of the system for a socket of this machine.
pub async fn ways(address: &Address, round_trip: Duration) -> Result<Ways> {
    let to = resolve(CONNECT, address).await?[0];
    let limit = limits::silence(NO_DATAGRAM, round_trip);
    let (line, pipe) = dial::begin(to).await?;
    let (udp, tcp) = tokio::join!(answer(limit, pipe.answered()), answer(limit, TcpStream::connect(to)));
    // The listener keeps nothing of a stream that was only opened, and need not hear that it ends.
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

/// What both attempts to reach one address need.
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
                    // What was refused, TCP would not get either.
                    Err(error) if is_refusal(&error) => Err(error),
                    Err(_) => by_tcp.await?,
                    Ok(made) => made,
                },
                met = &mut by_tcp => match met {
                    // What was refused, datagrams would not get either.
                    Err(error) if is_refusal(&error) => return Err(error),
                    Err(error) => error,
                    Ok(made) => return made,
                },
            };
            // TCP failed. Datagrams may still pass, or TCP later. If datagrams fail too, TCP's error says more,
            // unless the peer refused this end.
            tokio::select! {
                met = &mut by_datagrams => return match met {
                    Err(met) if is_refusal(&met) => Err(met),
                    Err(_) => Err(failed),
                    Ok(made) => made,
                },
                () = sleep(AGAIN) => {}
            }
        }
    }

    /// The link whose control messages go by datagrams. Once both ends have met, an error of making the link is
    /// this end's own, such as a trace that cannot be written, and the other way would not help.
    async fn by_datagrams(&self, line: Line, pipe: &Pipe) -> Result<Result<Arc<dyn Link>>> {
        let (address, moves) = (control_address(self.to), pipe.moves());
        pipe.answered().await.map_err(|e| Error::io(CONNECT, &address, &e))?;
        let inner = line::connect(Arc::new(line), &address, &self.control).await?;
        let ends = hello::ask(inner, Carrier::Udp, self.to.ip(), self.options, self.dialect).await?;
        let ends = Ends { moves: Some(moves), ..ends };
        Ok((self.make)(ends, self.options))
    }

    /// The link whose control messages go over TCP; and its chunks, where no datagrams pass. The attempt by
    /// datagrams began at `began`, and may get a head start. Errors are as with [`Attempt::by_datagrams`].
    async fn by_tcp(&self, began: Instant, head_start: bool, pipe: &Pipe) -> Result<Result<Arc<dyn Link>>> {
        let alone = async {
            sleep(HEAD_START).await;
            if pipe.is_answered() {
                sleep(ANSWERED).await;
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
        match timeout(NO_SOCKETS.max(8 * trip), asking).await {
            Ok(ends) => Ok((self.make)(ends?, self.options)),
            Err(_) => over_tcp::ask(self.by_kernel().await?, self.dialect).await.map(Ok),
        }
    }

    async fn by_kernel(&self) -> Result<Arc<dyn Link>> {
        Tcp.connect(&control_address(self.to), &self.control).await
    }
}

/// Whether the peer was reached, and trusts this end not, or is not trusted, or speaks something else.
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
