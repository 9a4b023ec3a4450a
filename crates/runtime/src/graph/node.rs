//! [`Node`]: it listens, dials its neighbours, sends its model, and mixes its neighbours' models into it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg_arena::Arena;
use thalweg_proto as proto;
use thalweg_proto::{ServerMachine, Time, Weighing};
use thalweg_transport::Address;
use thalweg_wire::text::check_name;
use thalweg_wire::Layout;

use super::doors::{Listening, NodeDialer, NodeHub, Shared};
use super::means::Means;
use super::mixing::Slots;
use super::options::NodeOptions;
use super::staging::Stages;
use crate::engine::{self, goes_on, GoOn, Hub, HubOptions, CALLER_TIMEOUT};
use crate::options::{seconds, Layers, DEFAULT_CHUNK};
use crate::{lock, random, registry, shared_arena, Error, Kind};

/// How long a link may take to release the last model before the node closes it. A peer cannot delay this: a
/// link releases a model as soon as it is told to. But on a busy machine, each of its tasks may wait a second
/// until it runs.
pub(super) const LOAN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a leaving node waits until its model and its last messages are sent.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// Weights by neighbour's name.
pub type Weights = BTreeMap<String, f64>;

/// Record of the running iteration, for mixing and for its report.
#[derive(Default)]
pub(super) struct Under {
    pub requested: u32,
    pub begun: Time,
    pub ready: Time,
    pub own: f64,
    pub traffic: (u64, u64),
}

/// A node of a graph.
pub struct Node {
    pub(super) shared: Arc<Shared>,
    hub: Arc<NodeHub>,
    pub(super) dialers: Mutex<BTreeMap<usize, Arc<NodeDialer>>>,
    pub(super) arena: Arena,
    pub(super) name: String,
    pub(super) instance: u64,
    pub(super) options: NodeOptions,
    pub(super) under: Mutex<Under>,
    closed: Mutex<bool>,
}

pub(super) fn bad(what: impl Into<String>) -> Error {
    Error::new(Kind::Options, "start node", what)
}

pub(super) fn out_of_order(what: impl Into<String>) -> Error {
    Error::new(Kind::Round, "run iteration", what)
}

impl Node {
    /// Starts a node that listens at `address`. The arena holds its own model.
    ///
    /// # Errors
    /// `options` for an impossible option, or the transport's error for the address.
    pub fn start(
        arena: Arena,
        layout: Layout,
        name: &str,
        address: &str,
        options: NodeOptions,
    ) -> Result<Self, Error> {
        options.check()?;
        check_name(name).map_err(bad)?;
        let address = Address::parse(address)?;
        let emulate = options.layers.emulate.as_ref().map(|emulate| emulate.of_client(name));
        let layers = Layers { emulate, ..options.layers.clone() };
        let transport = registry::transport_for(&address, &options.transport, &layers, options.seed)?;
        let capabilities = transport.capabilities();
        if !capabilities.symmetric {
            return Err(bad(format!(
                "{} has different roles at its two ends, but all nodes have the same role",
                transport.name()
            ))
            .hint("use tcp, shm, udp, ltp, zmq or grpc"));
        }
        let chunk = capabilities.chunk(options.chunk, DEFAULT_CHUNK);
        let layout = Arc::new(layout);
        let instance = u64::from_le_bytes(random()?);
        let config = proto::NodeConfig {
            name: name.into(),
            instance,
            job: options.job,
            layout: layout.clone(),
            chunk,
            liveness: seconds(options.liveness),
            waiting: options.waiting(),
            weighing: options.mixing.weighing(),
            ahead: options.ahead,
            share: options.share,
            segments: options.segments()?,
            rounds: options.rounds,
            alike: options.alike(),
        };
        let slots = Slots::new(layout.clone(), options.precision.into());
        let stages = options.mixing.weighing() != Weighing::Arrival;
        // What neighbours on this machine can map, they take from there without a copy at this end.
        let memory = if capabilities.lends { shared_arena } else { Arena::new };
        let means = options.segments()?.map(|_| memory(layout.bytes())).transpose()?;
        let means = means.map(|arena| Means::new(arena, options.mixing));
        let sums = (slots, stages.then(|| Stages::new(layout.bytes() as usize)), means);
        let copy = memory(layout.bytes())?;
        let started = Instant::now();
        let hub_options = HubOptions {
            job: options.job,
            chunk,
            tolerance: Arc::default(),
            transport: options.transport.clone(),
            issuer: options.issuer.clone(),
            token: options.token.clone(),
            role: thalweg_pki::Role::GraphNode,
            revoked: None,
            proofs: None,
            started,
        };
        let hub = Hub::start(&transport, &address, hub_options, |gate, chunk| {
            let machine = proto::Node::new(proto::NodeConfig { chunk, ..config }, gate);
            let shared = Arc::new(Shared::new(machine, started, layout, sums, copy));
            (shared.clone(), Listening(shared))
        })?;
        let shared = hub.policy.0.clone();
        shared.listens(&hub);
        let (dialers, under, closed) = (Mutex::default(), Mutex::default(), Mutex::default());
        let name = name.into();
        Ok(Self { shared, hub, dialers, arena, name, instance, options, under, closed })
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    #[cfg(test)]
    pub(super) fn hub(&self) -> &NodeHub {
        &self.hub
    }

    pub(super) fn open(&self) -> Result<(), Error> {
        if *lock(&self.closed) {
            return Err(Error::new(Kind::Closed, "use node", "the node is closed"));
        }
        Ok(())
    }

    /// The address that the node listens at, with the port that the system chose.
    pub fn address(&self) -> String {
        self.hub.address()
    }

    /// Number of iterations beyond its own for which the node accepts chunks.
    pub fn ahead(&self) -> u32 {
        self.options.ahead
    }

    /// Names of the connected neighbours.
    pub fn connected(&self) -> Vec<String> {
        self.hub.clients()
    }

    /// Why a neighbour can never average with this node. Each reason is returned once.
    fn refused(&self) -> Option<Error> {
        let why = lock(&self.shared.refused).take()?;
        Some(Error::failed("average with neighbours", why))
    }

    /// Waits until `count` neighbours are connected, `limit` is over, or `go_on` returns false. Returns how
    /// many are connected.
    ///
    /// # Errors
    /// `refused` if a neighbour can never average with this node.
    pub fn gather(&self, count: usize, limit: Option<Duration>, go_on: GoOn<'_>) -> Result<usize, Error> {
        self.open()?;
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            if let Some(refused) = self.refused() {
                return Err(refused);
            }
            let there = self.shared.look(proto::Node::connected_count);
            let over = deadline.is_some_and(|at| Instant::now() >= at);
            if there >= count || over || !goes_on(go_on) {
                return Ok(there);
            }
            let left = deadline.map_or(CALLER_TIMEOUT, |at| at.saturating_duration_since(Instant::now()));
            let enough = || {
                let enough = self.shared.look(proto::Node::connected_count) >= count;
                (enough || lock(&self.shared.refused).is_some()).then_some(())
            };
            _ = self.hub.wait_for(left.min(CALLER_TIMEOUT), enough);
        }
    }

    /// Called when the model in the arena is trained. Copies it and starts sending the copy. Returns the
    /// iteration under which the copy is sent: `round`, or a later one if most neighbours are ahead.
    ///
    /// # Errors
    /// `round` if that iteration was not begun, `interrupted` if `go_on` returned false, `refused` if a
    /// neighbour can never average with this node.
    pub fn ready(&self, round: u32, go_on: GoOn<'_>) -> Result<u32, Error> {
        self.open()?;
        if let Some(refused) = self.refused() {
            return Err(refused);
        }
        self.shared.tell(proto::Node::hush);
        while self
            .hub
            .wait_for(CALLER_TIMEOUT, || self.shared.look(|n| n.is_hushed()).then_some(()))
            .is_none()
        {
            if !goes_on(go_on) {
                return Err(Error::new(Kind::Interrupted, "send model", "interrupted"));
            }
        }
        {
            let mut copy = self.released(&self.shared.copy)?;
            copy.copy_from_slice(&self.arena.lend(self.arena.range())?);
        }
        if let Some(means) = &self.shared.means {
            // No link sends or receives a part of the last mean any more.
            drop(self.released(means.arena())?);
        }
        let now = self.shared.now();
        let number = self.shared.tell(|node| {
            let number = node.ready(now, round)?;
            self.shared.copied.store(number, Ordering::Release);
            Ok(number)
        });
        lock(&self.under).ready = now;
        {
            let _folding = self.shared.folding.read().unwrap_or_else(PoisonError::into_inner);
            self.shared.average_due();
        }
        number.map_err(|what: String| out_of_order(what))
    }

    /// Claims a buffer that links send from or receive into. Closes links that do not release it in time.
    fn released(&self, buffer: &Arena) -> Result<thalweg_arena::Claim, Error> {
        if let Ok(claim) = buffer.claim_within(buffer.range(), LOAN_TIMEOUT) {
            return Ok(claim);
        }
        self.hub.close_senders();
        lock(&self.dialers).values().for_each(|dialer| dialer.close_link());
        Ok(buffer.claim_within(buffer.range(), LOAN_TIMEOUT * 2)?)
    }

    /// Waits as the options say, mixes the models that arrived into the arena, and returns the report as
    /// JSON. `None` if `limit` was over first, or `go_on` returned false.
    ///
    /// # Errors
    /// `round` if that iteration was not sent or gives no model, `refused` if a neighbour can never average
    /// with this node.
    pub fn wait(
        &self,
        round: u32,
        limit: Option<Duration>,
        go_on: GoOn<'_>,
    ) -> Result<Option<String>, Error> {
        self.open()?;
        if self.shared.look(proto::Node::round) != round
            || self.shared.copied.load(Ordering::Acquire) != round
        {
            return Err(out_of_order(format!("iteration {round} was not sent; call ready first")));
        }
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mixing = loop {
            if let Some(refused) = self.refused() {
                return Err(refused);
            }
            let left = deadline.map_or(CALLER_TIMEOUT, |at| at.saturating_duration_since(Instant::now()));
            if let Some(mixing) = self.shared.wait_to_mix(left.min(CALLER_TIMEOUT)) {
                break mixing;
            }
            if deadline.is_some_and(|at| Instant::now() >= at) || !goes_on(go_on) {
                return Ok(None);
            }
        };
        self.mix(mixing).map(Some)
    }

    /// Bytes sent and received on the present links.
    pub(super) fn traffic(&self) -> (u64, u64) {
        let dialers = lock(&self.dialers);
        let dialled = dialers.values().filter_map(|dialer| dialer.link()).map(|link| link.counters());
        dialled.fold(self.hub.traffic(), |(sent, received), c| (sent + c.sent, received + c.received))
    }

    /// Events since the last call, as a JSON list.
    pub fn events(&self) -> String {
        for text in self.hub.take_notes() {
            self.shared.event("note", "", &text);
        }
        Value::Array(self.shared.take_events()).to_string()
    }

    /// With `wait = "all"`, waits until every neighbour has the last model of this node: if this node left
    /// earlier, they would not get it. Returns true once they have it. Returns false if `go_on` does, or if
    /// no further neighbour gets it for as long as `liveness`.
    pub fn finish_sending(&self, go_on: GoOn<'_>) -> bool {
        let liveness = seconds(self.options.liveness);
        let needing = || self.shared.look(proto::Node::needing);
        let (mut left, mut since) = (needing(), Instant::now());
        while left > 0 {
            if since.elapsed() >= liveness || !goes_on(go_on) {
                return false;
            }
            let fewer = self.hub.wait_for(CALLER_TIMEOUT, || Some(needing()).filter(|&now| now < left));
            if let Some(fewer) = fewer {
                (left, since) = (fewer, Instant::now());
            }
        }
        true
    }

    /// Leaves for good, after sending the pending messages, but within a time limit. Idempotent.
    pub fn close(&self, reason: &str) {
        if std::mem::replace(&mut *lock(&self.closed), true) {
            return;
        }
        let deadline = Instant::now() + FAREWELL_TIMEOUT;
        let out = || self.shared.look(|node| node.is_out() && node.is_hushed()).then_some(());
        while self.hub.wait_for(CALLER_TIMEOUT, out).is_none() && Instant::now() < deadline {}
        // With symmetric weights a neighbour can use the part of this node's model that it has only after
        // this node's last message. So allow more time for that message.
        let mutual = self.options.mixing.weighing() == Weighing::Mutual;
        let left = || deadline.saturating_duration_since(Instant::now());
        let timeout = if mutual { left().max(engine::FAREWELL_TIMEOUT) } else { engine::FAREWELL_TIMEOUT };
        if mutual {
            self.hub.flush(left());
        }
        let dialers = std::mem::take(&mut *lock(&self.dialers));
        std::thread::scope(|scope| {
            for dialer in dialers.values() {
                scope.spawn(|| dialer.close_within(reason, timeout));
            }
        });
        self.hub.close(reason);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.close("the node has stopped");
    }
}
