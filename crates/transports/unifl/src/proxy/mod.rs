//! A proxy that masks loss for any TCP server. For each connection to the proxy, it makes a kernel connection
//! to the server. The server gets the client's bytes in their full length, with zeros for lost bytes. A map
//! lists these holes. The server's answers go back reliably.
//!
//! ```text
//! client -> endpoint -> pipe: buffer -> cut: zeros, whole units -> kernel connection -> server
//!                                            +--> map: file, standard output, socket
//! ```

mod caller;
mod cut;
mod map;
mod pump;
#[cfg(unix)]
mod readers;
mod record;
mod settings;

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thalweg_masking::Config;
use thalweg_transport::trace::TraceFile;
use thalweg_transport::{Accepted, Acceptor, Error, ErrorKind, Options, Origin, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::endpoint::{self, Front, Newcomer, Obstacle};
use crate::settings::Limits;
pub(crate) use caller::Caller;
use caller::Direct;
use cut::Cut;
use map::Map;
use pump::{carry, Pair, Reporter};
use record::{Ends, Record, Totals};
pub use settings::ProxySettings;

const OPEN: &str = "open the proxy";
/// Maximum number of masked connections that wait for others to end. Further ones are reset.
const WAITING: usize = 64;
/// How long connections may take to end when the proxy stops.
const GRACE: Duration = Duration::from_secs(1);
/// Pause after a failed accept, so that the proxy does not spin while the system has no file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A proxy that listens. Connections wait until it [runs](Proxy::run).
pub struct Proxy {
    listen: String,
    holes: String,
    why: Option<String>,
    kernel: TcpListener,
    new: mpsc::Receiver<Newcomer>,
    front: Option<Front>,
    shared: Arc<ProxyState>,
    acceptor: Acceptor,
}

/// State that all connections share.
struct ProxyState {
    to: String,
    servers: Vec<SocketAddr>,
    align: u64,
    reliable: u64,
    limit: Duration,
    map: Map,
    events: mpsc::Sender<String>,
}

impl Proxy {
    /// Listens. The process may have `descriptors` file descriptors. `events` gets a line of JSON for each
    /// connection that begins or ends, and a last line when the proxy stops.
    ///
    /// # Errors
    /// [`ErrorKind::Address`], [`ErrorKind::InUse`]; [`ErrorKind::Unsupported`] if loss cannot be masked and
    /// the proxy must not be plain, and for more connections than descriptors allow.
    pub async fn open(
        settings: ProxySettings,
        descriptors: u64,
        events: mpsc::Sender<String>,
    ) -> Result<Self> {
        let (limits, config) = settings.read()?;
        let acceptor = settings.acceptor(descriptors)?;
        let trace = settings.trace()?;
        let servers = settings.servers().await?;
        let at = settings.listen_at().await?;
        let failed = |error| Error::io(OPEN, at, &error);
        let kernel = TcpListener::bind(at).await.map_err(failed)?;
        let at = kernel.local_addr().map_err(failed)?;
        if let Some(back) = servers.iter().find(|&&to| settings::leads_back(at, to)) {
            let context = format!("the server {back} is the proxy itself, which listens at {at}");
            return Err(Error::new(ErrorKind::Address, OPEN, context)
                .hint("give the server another port, or let it listen at 127.0.0.1 and the proxy at another address"));
        }
        let map = Map::open(&settings.holes).await?;
        let (newcomers, new) = mpsc::channel(WAITING);
        let (front, why) = in_front(at, config, limits, trace, newcomers, settings.plain).await?;
        let shared = ProxyState {
            to: settings.to,
            servers,
            align: settings.align,
            reliable: settings.reliable,
            limit: Options::default().connect_timeout(),
            map,
            events,
        };
        let (listen, shared) = (at.to_string(), Arc::new(shared));
        Ok(Self { listen, holes: settings.holes, why, kernel, new, front, shared, acceptor })
    }

    /// The proxy's address and mode, as a line of JSON.
    pub fn listening(&self) -> String {
        let record = Record::Listening {
            listen: &self.listen,
            to: &self.shared.to,
            masks: self.front.is_some(),
            why: self.why.as_deref(),
            holes: &self.holes,
        };
        record.line()
    }

    /// Serves connections until `stop` is set. Then resets them, and restores the system settings. If the
    /// device fails, the proxy continues as an ordinary one.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut calls = JoinSet::new();
        let mut connections = 0;
        let acceptor = self.acceptor.clone();
        loop {
            tokio::select! {
                () = stopped(&mut stop) => break,
                Some(_) = calls.join_next() => continue,
                () = acceptor.room() => {}
            }
            tokio::select! {
                () = stopped(&mut stop) => break,
                Some(_) = calls.join_next() => {}
                new = self.new.recv(), if self.front.is_some() => {
                    if let Some((caller, from)) = new {
                        connections += 1;
                        let accepted = acceptor.enter(Origin::of(&from));
                        let ends = Ends { connection: connections, from, local: None };
                        calls.spawn(self.shared.clone().serve(caller, accepted, ends, true, stop.clone()));
                    } else {
                        self.fall_back().await;
                    }
                }
                accepted = self.kernel.accept() => {
                    let Ok((stream, from)) = accepted else {
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    };
                    connections += 1;
                    let accepted = acceptor.enter(from);
                    let ends = Ends { connection: connections, from: from.to_string(), local: None };
                    calls.spawn(self.shared.clone().serve(Direct(stream), accepted, ends, false, stop.clone()));
                }
            }
        }
        self.close(calls, connections).await;
    }

    /// Gives the packets of the port back to the kernel, because the device has failed.
    async fn fall_back(&mut self) {
        self.front = None;
        self.why = Some("the TUN device has failed".into());
        let line = self.listening();
        let _ = self.shared.events.send(line).await;
    }

    async fn close(mut self, mut calls: JoinSet<()>, connections: u64) {
        if let Some(front) = &self.front {
            front.stop_listening();
        }
        self.new.close();
        while let Ok((caller, _)) = self.new.try_recv() {
            caller.abort();
        }
        // The connections' tasks see the stop signal too. Wait for them: they still have to report their end.
        let ended = async { while calls.join_next().await.is_some() {} };
        if timeout(GRACE, ended).await.is_err() {
            calls.shutdown().await;
        }
        self.shared.map.flush().await;
        if let Some(front) = self.front.take() {
            front.ended().await;
        }
        let _ = self.shared.events.send(Record::Stopped { connections }.line()).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(front) = &self.front {
            front.stop_listening();
        }
    }
}

/// Waits for the stop signal.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender of the signal is gone, which also stops the proxy.
    let _ = stop.wait_for(|&stop| stop).await;
}

/// Puts the endpoint in front of the kernel's listener, or says why there is none.
async fn in_front(
    at: SocketAddr,
    config: Config,
    limits: Limits,
    trace: Option<TraceFile>,
    newcomers: mpsc::Sender<Newcomer>,
    plain: bool,
) -> Result<(Option<Front>, Option<String>)> {
    match endpoint::open(at, config, limits, trace, newcomers).await {
        Ok(front) => Ok((Some(front), None)),
        Err(why) if plain => Ok((None, Some(why.to_string()))),
        Err(why) => Err(unmasked(at, why)),
    }
}

/// The error that says that loss cannot be masked.
fn unmasked(at: SocketAddr, why: Obstacle) -> Error {
    const PLAIN: &str = "give --plain for an ordinary TCP proxy";
    let hint = why.hint.map_or(PLAIN.to_owned(), |hint| format!("{hint}, or {PLAIN}"));
    let context = format!("loss cannot be masked at {at}: {}", why.cause);
    Error::new(ErrorKind::Unsupported, OPEN, context).hint(hint)
}

impl ProxyState {
    /// Serves one connection.
    async fn serve<C: Caller>(
        self: Arc<Self>,
        caller: C,
        mut accepted: Accepted,
        mut ends: Ends,
        masks: bool,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut pair = Pair { caller, server: None, whole: false };
        let mut cut = Cut::new(self.align, self.reliable);
        let mut totals = Totals::default();
        let relayed = async {
            accepted.wait_for_permit().await.map_err(|error| error.to_string())?;
            tokio::select! {
                outcome = self.relay(&mut pair, &accepted, (&mut ends, masks), &mut cut, &mut totals) => outcome,
                error = accepted.evicted() => Err(error.to_string()),
            }
        };
        let outcome = tokio::select! {
            outcome = relayed => outcome,
            () = stopped(&mut stop) => Err("the proxy was stopped".to_owned()),
        };
        pair.whole = outcome.is_ok();
        drop(pair);
        let (bytes, missing, holes) = (cut.position(), cut.missing(), cut.holes());
        let totals = Totals { bytes, missing, holes, ..totals };
        self.say(&Record::End { ends: &ends, totals: &totals, error: outcome.err().as_deref() }).await;
    }

    async fn relay<C: Caller>(
        &self,
        pair: &mut Pair<C>,
        accepted: &Accepted,
        (ends, masks): (&mut Ends, bool),
        cut: &mut Cut,
        totals: &mut Totals,
    ) -> std::result::Result<(), String> {
        // The client must not count as silent while the proxy connects to the server. So note here that its
        // first byte has arrived.
        let begun = async {
            poll_fn(|cx| pair.caller.poll_begun(cx)).await;
            accepted.admit();
            std::future::pending::<Infallible>().await
        };
        let server = tokio::select! {
            server = self.reach() => server.map_err(|error| format!("server: {error}"))?,
            never = begun => match never {},
        };
        ends.local = server.local_addr().ok().map(|at| at.to_string());
        let server = pair.server.insert(server);
        self.say(&Record::Connection { ends, masks }).await;
        let admit = || accepted.admit();
        carry(&pair.caller, server, Reporter { map: &self.map, ends, on_input: &admit }, cut, totals).await
    }

    async fn reach(&self) -> std::io::Result<TcpStream> {
        let late = |_| Err(std::io::ErrorKind::TimedOut.into());
        let server = timeout(self.limit, TcpStream::connect(&self.servers[..])).await.unwrap_or_else(late)?;
        server.set_nodelay(true)?;
        Ok(server)
    }

    async fn say(&self, record: &Record<'_>) {
        let line = record.line();
        self.map.mention(line.clone()).await;
        // Ignore an error: the proxy's owner is gone.
        let _ = self.events.send(line).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_about_the_cause_is_said_beside_the_other_way() {
        let at = SocketAddr::from(([10, 0, 0, 1], 9));
        let message =
            unmasked(at, Obstacle { cause: "a TUN device: denied".into(), hint: Some("run it as root") })
                .to_string();
        assert!(
            message.ends_with("denied; run it as root, or give --plain for an ordinary TCP proxy"),
            "{message}"
        );
        let message = unmasked(at, "the loopback loses nothing".into()).to_string();
        assert!(
            message.ends_with("the loopback loses nothing; give --plain for an ordinary TCP proxy"),
            "{message}"
        );
    }
}
