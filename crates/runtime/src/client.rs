//! A client's end of a job: joins, takes the model into its arena, sends its update, comes back by itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_pki as pki;
use thalweg_proto as proto;
use thalweg_proto::{ClientAction, Span, Time, Verdict};
use thalweg_transport::{Address, Cancel, Link, Options, Outgoing, Transport, UpdateId};
use thalweg_wire::control::{Control, Nonce, Proof, StandIn};
use thalweg_wire::text::check_name;
use thalweg_wire::{Layout, Ranges, Spread};
use tokio::sync::Notify;

use crate::client_sink::ClientSink;
use crate::options::{seconds, ClientOptions, Layers};
use crate::outbox::Outbox;
use crate::repair::mend_model;
use crate::{holding, lock, random, registry, Error};

const CALLER_PATIENCE: Duration = Duration::from_millis(100);
/// How long a chunk that came late may take to be written.
const CHUNK_PATIENCE: Duration = Duration::from_secs(1);

/// What a client tells its application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server has let it in.
    Joined,
    /// The global model of a round is in the arena; train it, then submit.
    Ready {
        /// The round.
        round: u32,
        /// JSON object from the server.
        config: String,
    },
    /// How the update submitted fared.
    Verdict {
        /// The round.
        round: u32,
        /// How.
        verdict: Verdict,
    },
    /// The job is over.
    Finished(Result<String, String>),
}

/// An update as it is sent.
#[derive(Default)]
struct Spreading {
    wire: Option<Arena>,
    /// It is the update of the round that was handed out last.
    is_done: bool,
}

struct Connection {
    generation: u64,
    outbox: Outbox,
}

/// Everything the tasks of a client share.
pub(crate) struct Shared {
    started: Instant,
    pub(crate) machine: Mutex<proto::Client>,
    place: Mutex<Option<(Arena, Arc<Layout>)>>,
    transport: Arc<dyn Transport>,
    address: Address,
    options: Options,
    name: String,
    token: Option<pki::Token>,
    connection: Mutex<Option<Connection>>,
    generations: Mutex<u64>,
    cancel: Mutex<Cancel>,
    /// The last model as it was handed out, if that is to stand in.
    last: Mutex<Option<Vec<u8>>>,
    /// The update in the order in which it is sent, if that is not the model's.
    spread: Mutex<Spreading>,
    wake: Notify,
    events: Mutex<VecDeque<ClientEvent>>,
    changed: Condvar,
}

/// A client of a job.
pub struct Client {
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Client {
    /// Starts to connect. Without a model of its own (`None`) it takes the server's layout.
    ///
    /// # Errors
    /// For an impossible address, option or token; reaching the server is [`Client::next_event`]'s to tell.
    pub fn start(
        address: &str,
        name: &str,
        options: ClientOptions,
        model: Option<(Arena, Layout)>,
    ) -> Result<Self, Error> {
        check_name(name).map_err(|why| Error::new("options", "start client", why))?;
        let address = Address::parse(address)?;
        let emulate = options.layers.emulate.as_ref().map(|emulate| emulate.of_client(name));
        let layers = Layers { emulate, ..options.layers };
        let transport = registry::transport_for(&address, &options.transport, &layers, options.seed)?;
        let bad = |e: pki::PkiError| Error::new("options", "read token", e.to_string());
        let token = options.token.as_deref().map(pki::Token::parse).transpose().map_err(bad)?;
        let config = proto::ClientConfig {
            name: name.into(),
            instance: u64::from_le_bytes(random()?),
            layout: model.as_ref().map(|(_, layout)| layout.hash()),
            patience: seconds(options.patience),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("thalweg-client")
            .enable_all()
            .build()
            .map_err(|e| Error::new("system", "start runtime", e.to_string()))?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            machine: Mutex::new(proto::Client::new(config, options.seed)),
            place: Mutex::new(model.map(|(arena, layout)| (arena, Arc::new(layout)))),
            transport,
            address,
            options: options.transport,
            name: name.into(),
            token,
            connection: Mutex::default(),
            generations: Mutex::default(),
            cancel: Mutex::default(),
            last: Mutex::default(),
            spread: Mutex::default(),
            wake: Notify::new(),
            events: Mutex::default(),
            changed: Condvar::new(),
        });
        runtime.spawn(drive(shared.clone()));
        Ok(Self { shared, runtime: Some(runtime) })
    }

    /// The next event, waiting as long as `go_on` says yes; `None` once it says no.
    pub fn next_event(&self, mut go_on: impl FnMut() -> bool) -> Option<ClientEvent> {
        let mut events = lock(&self.shared.events);
        loop {
            if let Some(event) = events.pop_front() {
                return Some(event);
            }
            let waited = self.shared.changed.wait_timeout(events, CALLER_PATIENCE);
            events = waited.unwrap_or_else(PoisonError::into_inner).0;
            if events.is_empty() {
                drop(events);
                if !go_on() {
                    return None;
                }
                events = lock(&self.shared.events);
            }
        }
    }

    /// The arena and its layout, once joined.
    pub fn model(&self) -> Option<(Arena, Arc<Layout>)> {
        lock(&self.shared.place).clone()
    }

    /// Offers the update of `samples` samples that is in the arena; [`ClientEvent::Verdict`] follows.
    ///
    /// # Errors
    /// `round` if that round was not handed out.
    pub fn submit(&self, round: u32, samples: u64, metrics: String) -> Result<(), Error> {
        let outcome = lock(&self.shared.machine).submit(round, samples, metrics);
        self.shared.wake.notify_one();
        outcome.map_err(|e| Error::new("round", "submit", e))
    }

    /// Bytes sent and received so far on the current connection.
    pub fn traffic(&self) -> (u64, u64) {
        let link = lock(&self.shared.connection).as_ref().map(|c| c.outbox.link().counters());
        link.map_or((0, 0), |c| (c.sent, c.received))
    }

    /// Congestion control of the current connection, as the kernel names it.
    pub fn congestion(&self) -> Option<String> {
        lock(&self.shared.connection).as_ref().and_then(|c| c.outbox.link().counters().congestion)
    }

    /// Leaves for good.
    pub fn close(&mut self, reason: &str) {
        let Some(runtime) = self.runtime.take() else { return };
        lock(&self.shared.machine).leave(reason);
        self.shared.wake.notify_one();
        runtime.block_on(async {
            let outbox = lock(&self.shared.connection).as_ref().map(|c| c.outbox.clone());
            let farewell = async {
                while !lock(&self.shared.events).iter().any(|e| matches!(e, ClientEvent::Finished(_)))
                    && !lock(&self.shared.machine).is_done()
                {
                    tokio::task::yield_now().await;
                }
                tokio::task::yield_now().await;
                if let Some(outbox) = outbox {
                    outbox.flushed().await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(1), farewell).await;
        });
        runtime.shutdown_timeout(Duration::from_millis(200));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close("the client has stopped");
    }
}

impl Shared {
    pub(crate) fn now(&self) -> Time {
        self.started.elapsed()
    }

    pub(crate) fn arena(&self) -> Option<Arena> {
        lock(&self.place).as_ref().map(|(arena, _)| arena.clone())
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    fn post(&self, event: ClientEvent) {
        lock(&self.events).push_back(event);
        self.changed.notify_all();
    }

    fn perform(self: &Arc<Self>, action: ClientAction) {
        match action {
            ClientAction::Connect { after } => {
                tokio::spawn(connect(self.clone(), after));
            }
            ClientAction::Prove { challenge, token } => self.prove(&challenge, token),
            ClientAction::Send(message) => {
                if let Some(connection) = &*lock(&self.connection) {
                    connection.outbox.send(&message);
                }
            }
            ClientAction::SendUpdate { round, wanted } => self.send_update(round, &wanted),
            ClientAction::CancelUpdate => lock(&self.cancel).cancel(),
            ClientAction::Close => {
                if let Some(connection) = &*lock(&self.connection) {
                    connection.outbox.close();
                }
            }
            ClientAction::Joined(_) => self.post(ClientEvent::Joined),
            ClientAction::Mend { holes, stand_in } => self.mend(&holes, stand_in),
            ClientAction::Ready { round, config } => self.ready(round, config),
            ClientAction::Verdict { round, verdict } => self.post(ClientEvent::Verdict { round, verdict }),
            ClientAction::Finished(outcome) => self.post(ClientEvent::Finished(outcome)),
        }
    }

    /// A client without a model of its own takes the server's layout. The reader does this itself, before
    /// the first chunk can come.
    fn make_place(&self, layout: &Layout) -> Result<(), String> {
        let mut place = lock(&self.place);
        if place.is_none() {
            let arena = Arena::new(layout.bytes()).map_err(|e| e.to_string())?;
            *place = Some((arena, Arc::new(layout.clone())));
        }
        Ok(())
    }

    /// Puts into the model what stands in for what did not come of it. A late chunk may still be written: others
    /// take this thread's work meanwhile.
    fn mend(&self, holes: &Ranges, stand_in: StandIn) {
        let mended = tokio::task::block_in_place(|| {
            let (arena, layout) = lock(&self.place).clone().ok_or("there is no model")?;
            let model = arena.claim_within(arena.range(), CHUNK_PATIENCE);
            let mut model = model.map_err(|e| e.to_string())?;
            let last = lock(&self.last);
            mend_model(&layout, &mut model, holes, stand_in, last.as_deref()).map_err(|e| e.to_string())
        });
        if let Err(reason) = mended {
            lock(&self.machine).unreachable(self.now(), &reason, false);
        }
    }

    fn ready(&self, round: u32, config: String) {
        lock(&self.spread).is_done = false;
        let stand_in = lock(&self.machine).welcome().and_then(|w| w.stand_in);
        if let (Some(StandIn::Last), Some(arena)) = (stand_in, self.arena()) {
            let mut last = lock(&self.last);
            let kept = last.get_or_insert_default();
            kept.clear();
            if let Ok(model) = arena.lend(arena.range()) {
                kept.extend_from_slice(&model);
            } else {
                *last = None; // then own values stand in
            }
        }
        self.post(ClientEvent::Ready { round, config });
    }

    fn prove(&self, challenge: &Nonce, token: bool) {
        let binding = lock(&self.connection).as_ref().and_then(|c| c.outbox.link().peer().binding);
        let mut machine = lock(&self.machine);
        let proof =
            self.token.as_ref().filter(|_| token).zip(machine.nonce()).map(|(token, nonce)| -> Proof {
                let transcript = pki::Transcript {
                    server_nonce: challenge,
                    client_nonce: &nonce,
                    name: &self.name,
                    binding: binding.as_ref(),
                };
                pki::proof(token, &transcript)
            });
        machine.proven(self.now(), proof);
        drop(machine);
        self.wake.notify_one();
    }

    fn send_update(self: &Arc<Self>, round: u32, wanted: &Ranges) {
        let shared = self.clone();
        let prepared = self.prepare(round, wanted);
        tokio::spawn(async move {
            let outcome = match prepared {
                Ok((link, update)) => shared.send(&link, &update).await,
                Err(reason) => (Err(reason), None),
            };
            lock(&shared.machine).sent(round, outcome.0, outcome.1);
            shared.wake.notify_one();
        });
    }

    fn prepare(&self, round: u32, wanted: &Ranges) -> Result<(Arc<dyn Link>, Outgoing), String> {
        let (arena, layout) = lock(&self.place).clone().ok_or("there is no model")?;
        let link = lock(&self.connection).as_ref().map(|c| c.outbox.link().clone()).ok_or("not connected")?;
        let (job, sender, chunk, spread) = {
            let machine = lock(&self.machine);
            link.tolerate(machine.tolerance());
            let welcome = machine.welcome().ok_or("not joined")?;
            (welcome.job, welcome.sender, welcome.chunk, welcome.spread)
        };
        let mut loan = arena.lend(arena.range()).map_err(|e| e.to_string())?;
        if let Some(seed) = spread {
            loan = tokio::task::block_in_place(|| self.spread_out(Spread::new(seed), &layout, &loan))?;
        }
        let cancel = Cancel::default();
        *lock(&self.cancel) = cancel.clone();
        let id = UpdateId { job, round, sender, layout: layout.hash() };
        Ok((link, Outgoing::new(id, loan, wanted, chunk, cancel)))
    }

    /// The update in the order in which it is sent; made once, however often parts of it are sent.
    fn spread_out(&self, order: Spread, layout: &Layout, update: &[u8]) -> Result<Bytes, String> {
        let mut spread = lock(&self.spread);
        if spread.wire.is_none() {
            spread.wire = Some(Arena::new(update.len() as u64).map_err(|e| e.to_string())?);
        }
        let wire = spread.wire.clone().ok_or("there is no memory")?;
        if !spread.is_done {
            let claim = wire.claim_within(wire.range(), CHUNK_PATIENCE);
            order.to_wire(layout, update, &mut claim.map_err(|e| e.to_string())?);
            spread.is_done = true;
        }
        wire.lend(wire.range()).map_err(|e| e.to_string())
    }

    async fn send(&self, link: &Arc<dyn Link>, update: &Outgoing) -> (Result<Span, String>, Option<u64>) {
        let before = link.counters().retransmissions;
        let report = link.send_update(update).await;
        update.cancel().cancel(); // ends the loan
        let again = link.counters().retransmissions.map(|n| n.saturating_sub(before.unwrap_or(0)));
        let at = |instant: Instant| instant.saturating_duration_since(self.started);
        let span = report.map(|r| Span { start: at(r.started), end: at(r.ended) });
        (span.map_err(|e| e.to_string()), again)
    }
}

async fn connect(shared: Arc<Shared>, after: Time) {
    tokio::time::sleep(after).await;
    match shared.transport.connect(&shared.address, &shared.options).await {
        Ok(link) => {
            if let Err(error) = attach(&shared, link) {
                lock(&shared.machine).unreachable(shared.now(), &error.to_string(), false);
            }
        }
        Err(error) => {
            let may_retry = error.kind().may_retry();
            lock(&shared.machine).unreachable(shared.now(), &error.to_string(), may_retry);
        }
    }
    shared.wake.notify_one();
}

fn attach(shared: &Arc<Shared>, link: Arc<dyn Link>) -> Result<(), Error> {
    let nonce = random()?;
    let ordered = link.capabilities().settles();
    let generation = {
        let mut generations = lock(&shared.generations);
        *generations += 1;
        *generations
    };
    let outbox = Outbox::start(&tokio::runtime::Handle::current(), link.clone());
    *lock(&shared.connection) = Some(Connection { generation, outbox });
    lock(&shared.machine).connected(shared.now(), nonce, ordered);
    tokio::spawn(read(shared.clone(), generation, link));
    Ok(())
}

/// Reads one link until it ends.
async fn read(shared: Arc<Shared>, generation: u64, link: Arc<dyn Link>) {
    let sink = ClientSink { shared: shared.clone(), ordered: link.capabilities().settles() };
    let holding = holding::watch(link.clone(), {
        let shared = shared.clone();
        move |_| lock(&shared.machine).held(shared.now())
    });
    let reason = loop {
        let message = match link.receive(&sink).await {
            Ok(message) => message,
            Err(error) => break error.to_string(),
        };
        let message = match Control::decode(&message) {
            Ok(message) => message,
            Err(error) => break error.to_string(),
        };
        if let Control::Welcome(welcome) = &message {
            if let Err(reason) = shared.make_place(&welcome.layout) {
                lock(&shared.machine).unreachable(shared.now(), &reason, false);
                shared.wake.notify_one();
                break reason;
            }
        }
        lock(&shared.machine).control(shared.now(), message);
        shared.wake.notify_one();
    };
    drop(holding); // another link may follow
    link.close().await;
    let mut connection = lock(&shared.connection);
    if connection.as_ref().is_some_and(|c| c.generation == generation) {
        *connection = None;
        drop(connection);
        lock(&shared.machine).closed(shared.now(), &reason);
        shared.wake.notify_one();
    }
}

/// Performs what the machine asks for, in order, and tells it the time.
async fn drive(shared: Arc<Shared>) {
    loop {
        let (actions, timeout) = {
            let mut machine = lock(&shared.machine);
            let actions: Vec<ClientAction> = std::iter::from_fn(|| machine.poll_action()).collect();
            (actions, machine.poll_timeout())
        };
        if actions.is_empty() {
            let idle = timeout.map_or(Duration::from_secs(3600), |at| at.saturating_sub(shared.now()));
            tokio::select! {
                () = shared.wake.notified() => {}
                () = tokio::time::sleep(idle) => lock(&shared.machine).timeout(shared.now()),
            }
        }
        for action in actions {
            shared.perform(action);
        }
    }
}
