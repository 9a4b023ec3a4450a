//! The far end of a forwarded path: it accepts links, and connects their streams to the target.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_transport::{Address, AdmissionQueue, Bounds, Link, Listener, Options, Pending};
use thalweg_wire::limits;
use thalweg_wire::text::{plain, MAX_REASON};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch, Semaphore};
use tokio::task::JoinSet;

use super::carrier::{Carrier, Signals};
use super::events::{Event, Events};
use super::handshake::{self, Ready};
use super::http2;
use super::options::ForwardOptions;
use super::{program, stop};
use crate::engine::{descriptor_limit, Gate, Keys, Peers, RejectedPeers};
use crate::{lock, registry, Error, Kind};

/// Maximum number of handshakes with near ends at a time. Beyond that the next one waits.
const HANDSHAKES: usize = 256;
/// How long the target may take to accept a connection.
const CONNECT: Duration = limits::ANSWERED;

/// A far end that listens.
pub(crate) struct Far {
    listener: Box<dyn Listener>,
    shared: Arc<Shared>,
}

struct Shared {
    to: String,
    options: ForwardOptions,
    gate: Gate,
    peers: Peers,
    events: Events,
    rejected_peers: Mutex<RejectedPeers<Kind>>,
    links: AtomicU64,
    connections: AtomicU64,
}

impl Far {
    pub async fn open(options: &ForwardOptions, events: Events) -> Result<Self, Error> {
        let address = Address::parse(&options.listen)?;
        let to = options.to.clone().unwrap_or_default();
        let port = to.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        if port.is_none_or(|(host, port)| host.is_empty() || port == 0) {
            return Err(Error::new(Kind::Address, "read the target", format!("{to:?} is no target"))
                .hint("write it as host:port, such as 127.0.0.1:9000"));
        }
        let transport = registry::transport_for(&address, &options.transport, &options.layers, options.seed)?;
        let peers = Peers::default();
        let keys = Keys {
            transport: &options.transport,
            issuer: options.issuer.as_deref(),
            token: options.token.as_deref(),
            role: thalweg_pki::Role::Forward,
            job: handshake::JOB,
        };
        let gate = Gate::new(&keys, address.is_local(), peers.clone())?;
        let admission_queue = Some(AdmissionQueue::new(Bounds::of_process(descriptor_limit())));
        let listening = Options { admission_queue, ..options.transport.clone() };
        let listener = transport.listen(&address, &listening).await?;
        let (rejected_peers, links, connections) = Default::default();
        let options = options.clone();
        let shared = Shared { to, options, gate, peers, events, rejected_peers, links, connections };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    pub fn listening(&self) -> Event {
        let (listen, to) = (self.listener.address().to_string(), Some(self.shared.to.clone()));
        Event::Listening { listen, via: None, to, answers: Vec::new() }
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// An error if the end cannot accept links any more.
    pub async fn run(self, stopped: watch::Receiver<bool>) -> Result<(), Error> {
        let mut links = JoinSet::new();
        let mut until = stopped.clone();
        if let Some(what) = self.listener.notice() {
            self.shared.events.tell(Event::Note { what }).await;
        }
        let outcome = tokio::select! {
            error = self.accept(&mut links, &stopped) => Err(error),
            () = stop(&mut until) => Ok(()),
        };
        // Wait for the links' tasks: they are stopped as well, and still report the ends of their
        // connections.
        while outcome.is_ok() && links.join_next().await.is_some() {}
        let connections = self.shared.connections.load(Ordering::Relaxed);
        self.shared.events.tell(Event::Stopped { connections }).await;
        outcome
    }

    async fn accept(&self, links: &mut JoinSet<()>, stopped: &watch::Receiver<bool>) -> Error {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        while let Ok(permit) = handshakes.clone().acquire_owned().await {
            while links.try_join_next().is_some() {}
            let pending = match self.listener.accept().await {
                Ok(pending) => pending,
                Err(error) => return error.into(),
            };
            let (shared, mut stopped) = (self.shared.clone(), stopped.clone());
            links.spawn(async move {
                let welcomed = tokio::select! {
                    welcomed = welcome(&shared, pending) => welcomed,
                    () = stop(&mut stopped) => return,
                };
                drop(permit);
                match welcomed {
                    Ok((link, name)) => serve(&shared, link, name, stopped).await,
                    Err(error) => {
                        // Reduce the text to plain characters, since it may come from the peer.
                        let why = plain(&error.to_string(), MAX_REASON);
                        let note = lock(&shared.rejected_peers).count(error.kind(), &why);
                        if let Some(what) = note {
                            shared.events.tell(Event::Note { what }).await;
                        }
                    }
                }
            });
        }
        Error::new(Kind::Closed, "accept", "the far end has ended")
    }
}

/// Shakes hands. Returns the link and the name of an admitted near end.
async fn welcome(shared: &Arc<Shared>, pending: Pending) -> Result<(Arc<dyn Link>, String), Error> {
    let link = pending.await?;
    let id = shared.links.fetch_add(1, Ordering::Relaxed);
    lock(&shared.peers).insert(id, link.peer().clone());
    let ForwardOptions { window, connections: streams, .. } = shared.options;
    let ready = Ready { window, streams, liveness: shared.options.liveness() };
    let agreed = handshake::far(&link, id, &shared.gate, ready).await;
    lock(&shared.peers).remove(&id);
    match agreed {
        Ok(name) => Ok((link, name)),
        Err(error) => {
            link.close().await;
            Err(error)
        }
    }
}

/// Carries the streams of one near end until its link ends.
async fn serve(shared: &Arc<Shared>, link: Arc<dyn Link>, name: String, mut stopped: watch::Receiver<bool>) {
    let peer = format!("{name} at {}", link.peer().address);
    shared.events.tell(Event::Link { peer: peer.clone(), up: true, why: None }).await;
    let rules = shared.options.rules(&link.capabilities(), 0, shared.options.liveness());
    let (opened, mut new) = mpsc::channel(rules.streams as usize);
    let carrier = Carrier::new(link, rules, 0, opened);
    let mut targets = JoinSet::new();
    let why = tokio::select! {
        why = carrier.drive() => why,
        () = async {
            while let Some(stream) = new.recv().await {
                while targets.try_join_next().is_some() {}
                targets.spawn(target(shared.clone(), carrier.clone(), stream, name.clone()));
            }
        } => "it has ended".into(),
        () = stop(&mut stopped) => {
            let why = "the far end was stopped";
            carrier.close(why).await;
            why.into()
        }
    };
    while targets.join_next().await.is_some() {}
    shared.events.tell(Event::Link { peer, up: false, why: Some(why) }).await;
}

/// Connects one stream to the target, and carries it.
async fn target(shared: Arc<Shared>, carrier: Arc<Carrier>, stream: u32, from: String) {
    let connection = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    shared.events.tell(Event::Connection { connection, from: from.clone() }).await;
    let signals = carrier.signals(stream);
    let ended = match connect(&shared.to, &signals).await {
        Ok(server) if shared.options.grpc => {
            http2::carry_far(&carrier, stream, &signals, server, shared.options.window).await
        }
        Ok(program) => program::carry(&carrier, stream, &signals, program, &|| ()).await,
        Err(why) => {
            carrier.with(|mux| mux.reset(stream, &why));
            program::Ended { error: Some(why), ..Default::default() }
        }
    };
    carrier.forget(stream);
    let program::Ended { sent, received, error, calls } = ended;
    shared.events.tell(Event::End { connection, from, sent, received, error, calls }).await;
}

async fn connect(to: &str, signals: &Signals) -> Result<TcpStream, String> {
    tokio::select! {
        connected = tokio::time::timeout(CONNECT, TcpStream::connect(to)) => match connected {
            Ok(connected) => connected.map_err(|e| format!("the target {to} does not take it: {e}")),
            Err(_) => Err(format!("the target {to} does not answer within {} s", CONNECT.as_secs())),
        },
        why = signals.over() => Err(why),
    }
}
