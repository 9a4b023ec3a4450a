//! A node: listens, dials, sends its model and mixes its neighbours' into it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg_arena::Arena;
use thalweg_proto as proto;
use thalweg_proto::{Time, Weighing};
use thalweg_transport::Address;
use thalweg_wire::text::check_name;
use thalweg_wire::Layout;

use super::doors::{Accepted, Listening, NodeDialer, NodeHub, Shared};
use super::mixing::Slots;
use super::options::NodeOptions;
use super::staging::Stages;
use crate::engine::{self, goes_on, GoOn, Hub, HubOptions, CALLER_PATIENCE};
use crate::options::{seconds, Layers, DEFAULT_CHUNK};
use crate::{lock, random, registry, Error};

/// How long a link may take to release the last model before the node closes it. No peer has a part in that: links let go of a
/// model at once when they are told to, and on a machine under load each of their tasks may take a second to run.
pub(super) const LOAN_PATIENCE: Duration = Duration::from_secs(10);
/// How long the node waits when it leaves for models that are still being sent, and for what it says last.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(5);

/// Neighbours' weights by name.
pub type Weights = BTreeMap<String, f64>;

/// What was noted of the iteration that is under way.
#[derive(Default)]
pub(super) struct Under {
    pub asked: u32,
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
    Error::new("options", "start node", what)
}

pub(super) fn out_of_order(what: impl Into<String>) -> Error {
    Error::new("round", "run iteration", what)
}

impl Node {
    /// Listens at `address`. The arena holds the own model.
    ///
    /// # Errors
    /// What the transport says of the address, or which option is impossible.
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
                "{} treats its two ends differently, and nodes are all alike; use tcp, udp, ltp, zmq or grpc",
                transport.name()
            )));
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
            alike: options.alike(),
        };
        let slots = Slots::new(layout.clone(), options.precision.into());
        let stages = options.mixing.weighing() != Weighing::Arrival;
        let sums = (slots, stages.then(|| Stages::new(layout.bytes() as usize)));
        let copy = Arena::new(layout.bytes())?;
        let started = Instant::now();
        let hub_options = HubOptions {
            job: options.job,
            chunk,
            tolerance: Arc::default(),
            transport: options.transport.clone(),
            issuer: options.issuer.clone(),
            token: options.token.clone(),
            role: thalweg_pki::Role::GraphNode,
            witnessed: None,
            started,
        };
        let hub = Hub::start_with(&transport, &address, hub_options, |gate, chunk| {
            let machine = proto::Node::new(proto::NodeConfig { chunk, ..config }, gate);
            let shared = Arc::new(Shared::new(machine, started, layout, sums, copy));
            (Accepted(shared.clone()), Listening(shared))
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
            return Err(Error::new("closed", "use node", "the node is closed"));
        }
        Ok(())
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> String {
        self.hub.address()
    }

    /// How many iterations beyond the one that it is in the node keeps chunks of.
    pub fn ahead(&self) -> u32 {
        self.options.ahead
    }

    /// Names of the neighbours that are there.
    pub fn connected(&self) -> Vec<String> {
        self.hub.clients()
    }

    /// Why some neighbour never will average with this node; said once.
    fn refused(&self) -> Option<Error> {
        let reason = lock(&self.shared.refused).take()?;
        Some(Error::new("refused", "average with neighbours", reason))
    }

    /// Waits until `count` neighbours are there, the time is over, or `go_on` says no. Returns how many are.
    ///
    /// # Errors
    /// `refused` if one of them never will be.
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
            let left = deadline.map_or(CALLER_PATIENCE, |at| at.saturating_duration_since(Instant::now()));
            let enough = || {
                let enough = self.shared.look(proto::Node::connected_count) >= count;
                (enough || lock(&self.shared.refused).is_some()).then_some(())
            };
            _ = self.hub.wait_for(left.min(CALLER_PATIENCE), enough);
        }
    }

    /// The model in the arena is trained: a copy of it is sent. Returns the number it is sent under.
    ///
    /// # Errors
    /// `round` if that iteration was not begun, `interrupted` if `go_on` said no, `refused`.
    pub fn ready(&self, round: u32, go_on: GoOn<'_>) -> Result<u32, Error> {
        self.open()?;
        if let Some(refused) = self.refused() {
            return Err(refused);
        }
        self.shared.tell(proto::Node::hush);
        while self
            .hub
            .wait_for(CALLER_PATIENCE, || self.shared.look(|n| n.is_hushed()).then_some(()))
            .is_none()
        {
            if !goes_on(go_on) {
                return Err(Error::new("interrupted", "send model", "interrupted"));
            }
        }
        {
            let mut copy = self.writable_copy()?;
            copy.copy_from_slice(&self.arena.lend(self.arena.range())?);
        }
        let now = self.shared.now();
        let number = self.shared.tell(|node| {
            let number = node.ready(now, round)?;
            self.shared.copied.store(number, Ordering::Release);
            Ok(number)
        });
        lock(&self.under).ready = now;
        number.map_err(|what: String| out_of_order(what))
    }

    /// Returns the buffer that is sent from, writable. Closes links that do not release the last model in time.
    fn writable_copy(&self) -> Result<thalweg_arena::Claim, Error> {
        let copy = &self.shared.copy;
        if let Ok(claim) = copy.claim_within(copy.range(), LOAN_PATIENCE) {
            return Ok(claim);
        }
        self.hub.close_senders();
        lock(&self.dialers).values().for_each(|dialer| dialer.close_link());
        Ok(copy.claim_within(copy.range(), LOAN_PATIENCE * 2)?)
    }

    /// Waits as the options say, mixes what came into the arena, and returns the report as JSON; `None` if the time was over
    /// first, or `go_on` said no.
    ///
    /// # Errors
    /// `round` if that iteration was not sent, or comes to no model; `refused`.
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
            let left = deadline.map_or(CALLER_PATIENCE, |at| at.saturating_duration_since(Instant::now()));
            let taken = self.hub.wait_for(left.min(CALLER_PATIENCE), || lock(&self.shared.mix).take());
            if let Some(mixing) = taken {
                break mixing;
            }
            if deadline.is_some_and(|at| Instant::now() >= at) || !goes_on(go_on) {
                return Ok(None);
            }
        };
        self.mix(mixing).map(Some)
    }

    /// Bytes sent and received on the links that there are.
    pub(super) fn traffic(&self) -> (u64, u64) {
        let dialers = lock(&self.dialers);
        let dialled = dialers.values().filter_map(|dialer| dialer.link()).map(|link| link.counters());
        dialled.fold(self.hub.traffic(), |(sent, received), c| (sent + c.sent, received + c.received))
    }

    /// What happened since the last call, as a JSON list.
    pub fn events(&self) -> String {
        for text in self.hub.take_notes() {
            self.shared.event("note", "", &text);
        }
        Value::Array(self.shared.take_events()).to_string()
    }

    /// Waits until each neighbour has the last own model, where neighbours wait for all of it (`wait = "all"`): a node that
    /// leaves before takes it from them. Returns whether they have it; not if for as long as `liveness` no more of them
    /// got it, or `go_on` said no.
    pub fn finish_sending(&self, go_on: GoOn<'_>) -> bool {
        let liveness = seconds(self.options.liveness);
        let needing = || self.shared.look(proto::Node::needing);
        let (mut left, mut since) = (needing(), Instant::now());
        while left > 0 {
            if since.elapsed() >= liveness || !goes_on(go_on) {
                return false;
            }
            let fewer = self.hub.wait_for(CALLER_PATIENCE, || Some(needing()).filter(|&now| now < left));
            if let Some(fewer) = fewer {
                (left, since) = (fewer, Instant::now());
            }
        }
        true
    }

    /// Leaves for good, once what is being sent is out, or after a while. Idempotent.
    pub fn close(&self, reason: &str) {
        if std::mem::replace(&mut *lock(&self.closed), true) {
            return;
        }
        let deadline = Instant::now() + FAREWELL_PATIENCE;
        let out = || self.shared.look(|node| node.is_out() && node.is_hushed()).then_some(());
        while self.hub.wait_for(CALLER_PATIENCE, out).is_none() && Instant::now() < deadline {}
        // Where weights are symmetric, neighbours need this node's last word to use what they have of its model.
        let mutual = self.options.mixing.weighing() == Weighing::Mutual;
        let left = || deadline.saturating_duration_since(Instant::now());
        let patience = if mutual { left().max(engine::FAREWELL_PATIENCE) } else { engine::FAREWELL_PATIENCE };
        if mutual {
            self.hub.flush(left());
        }
        let dialers = std::mem::take(&mut *lock(&self.dialers));
        std::thread::scope(|scope| {
            for dialer in dialers.values() {
                scope.spawn(|| dialer.close_within(reason, patience));
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
