//! The state that all links of a node share ([`Shared`]), and adapters that show the node's one state machine
//! to the hub and to each dialer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Instant;

use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_proto as proto;
use thalweg_proto::{
    Action, ClientAction, Failure, LinkId, Mixing, Neighbour, NodeStep, Span, Time, Traffic,
};
use thalweg_transport::Sink;
use thalweg_wire::control::{Control, Nonce, Proof};
use thalweg_wire::Layout;

use super::mixing::Slots;
use super::sink::NodeSink;
use super::staging::Stages;
use crate::engine::{Dialer, DialerMachine, DialerPolicy, Hub, HubMachine, HubPolicy, KnownAs, Lent};
use crate::lock;

/// Maximum number of events that are kept until [`Shared::take_events`]. Beyond that the oldest are dropped.
const EVENTS: usize = 1000;

/// The hub of a node drives the links that it accepts. A dialer drives the link to one neighbour that the
/// node dials.
pub(crate) type NodeHub = Hub<Listening>;
pub(crate) type NodeDialer = Dialer<Dialling>;

/// Sums of the open iterations, and neighbours' models that are not in the sums yet.
pub(crate) type Sums = (Slots, Option<Stages>);

/// State that all links of a node share.
pub(crate) struct Shared {
    node: Mutex<proto::Node>,
    started: Instant,
    pub layout: Arc<Layout>,
    pub slots: Slots,
    /// Neighbours' models, kept apart if their weights are known only after the wait; else `None`.
    pub stages: Option<Stages>,
    /// A sink holds the read lock while it records a chunk and adds it to the sums. So while a thread holds
    /// the write lock, no chunk of a finished iteration is being added.
    pub folding: RwLock<()>,
    /// The copy of the own model that links send. So training and mixing need not wait for a slow neighbour.
    pub copy: Arena,
    /// The iteration whose model the copy holds.
    pub copied: AtomicU32,
    pub mix: Mutex<Option<Mixing>>,
    /// The reason why a neighbour can never average with this node. It is cleared when a call has reported
    /// it.
    pub refused: Mutex<Option<Failure>>,
    events: Mutex<VecDeque<Value>>,
    hub: OnceLock<Weak<NodeHub>>,
    dialers: Mutex<BTreeMap<usize, Weak<NodeDialer>>>,
}

impl Shared {
    pub fn new(node: proto::Node, started: Instant, layout: Arc<Layout>, sums: Sums, copy: Arena) -> Self {
        let (slots, stages) = sums;
        Self {
            node: Mutex::new(node),
            started,
            layout,
            slots,
            stages,
            folding: RwLock::default(),
            copy,
            copied: AtomicU32::new(0),
            mix: Mutex::default(),
            refused: Mutex::default(),
            events: Mutex::default(),
            hub: OnceLock::new(),
            dialers: Mutex::default(),
        }
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    pub fn now(&self) -> Time {
        self.started.elapsed()
    }

    pub fn listens(&self, hub: &Arc<NodeHub>) {
        _ = self.hub.set(Arc::downgrade(hub));
    }

    pub fn dials(&self, place: usize, dialer: &Arc<NodeDialer>) {
        lock(&self.dialers).insert(place, Arc::downgrade(dialer));
    }

    /// Calls the state machine, then wakes the hub and the dialers that have actions or timers pending.
    pub fn tell<T>(&self, what: impl FnOnce(&mut proto::Node) -> T) -> T {
        let mut node = lock(&self.node);
        let result = what(&mut node);
        let own = node.take_timer_set() | node.has_action();
        let dials = node.dials_waiting();
        drop(node);
        if own {
            if let Some(hub) = self.hub.get().and_then(Weak::upgrade) {
                hub.wake();
            }
        }
        if !dials.is_empty() {
            let dialers = lock(&self.dialers);
            let waiting = dials.iter().filter_map(|place| dialers.get(place)).filter_map(Weak::upgrade);
            let waiting: Vec<_> = waiting.collect();
            drop(dialers);
            waiting.iter().for_each(|dialer| dialer.wake());
        }
        result
    }

    /// Reads from the state machine, and wakes no task.
    pub fn look<T>(&self, what: impl FnOnce(&proto::Node) -> T) -> T {
        what(&self.node())
    }

    fn node(&self) -> MutexGuard<'_, proto::Node> {
        lock(&self.node)
    }

    /// Waits until no chunk of a finished iteration is being added any more.
    pub fn settle_folding(&self) {
        drop(self.folding.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Drops the sums and stages of these iterations. The caller ensures that no chunk is being added to
    /// them.
    pub fn free(&self, rounds: &[u32]) {
        self.slots.free(rounds);
        if let Some(stages) = &self.stages {
            stages.free(rounds);
        }
    }

    /// Drops the sums and stages of iterations before `round`. The caller ensures that no chunk is being
    /// added to them.
    pub fn free_below(&self, round: u32) {
        self.slots.free_below(round);
        if let Some(stages) = &self.stages {
            stages.free_below(round);
        }
    }

    pub fn event(&self, kind: &str, peer: &str, text: &str) {
        let mut events = lock(&self.events);
        if events.len() >= EVENTS {
            events.pop_front();
        }
        let at = self.now().as_secs_f64();
        events.push_back(json!({ "at": at, "kind": kind, "peer": peer, "text": text }));
    }

    pub fn take_events(&self) -> Vec<Value> {
        lock(&self.events).drain(..).collect()
    }

    fn lend(&self, parcel: u32) -> Result<Lent, String> {
        if self.copied.load(Ordering::Acquire) != parcel {
            return Err(format!("the model of iteration {parcel} is no longer there"));
        }
        let bytes = self.copy.lend(self.copy.range()).map_err(|busy| busy.to_string())?;
        Ok(Lent { bytes, layout: self.layout.clone() })
    }

    /// Wakes the waiting callers, so that they check their conditions again.
    pub fn announce(&self) {
        if let Some(hub) = self.hub.get().and_then(Weak::upgrade) {
            hub.announce();
        }
    }

    /// Records why a neighbour can never average with this node.
    fn refuse(&self, why: Failure) {
        *lock(&self.refused) = Some(why);
        self.announce();
    }
}

/// Policy of the hub: it drives the accepted links and the node's own steps.
pub(crate) struct Listening(pub Arc<Shared>);

/// The state machine as the hub sees it. All links use the same clock.
pub(crate) struct Accepted(pub Arc<Shared>);

impl HubMachine for Accepted {
    type Wanted = NodeStep;

    fn connected(&mut self, now: Time, link: LinkId, nonce: Nonce, ordered: bool) {
        self.0.tell(|node| node.connected(now, link, nonce, ordered));
    }
    fn observe(&mut self, link: LinkId, traffic: Traffic) {
        self.0.node().observe(link, traffic);
    }
    fn control(&mut self, now: Time, link: LinkId, message: Control) {
        self.0.tell(|node| node.control(now, link, message));
    }
    fn closed(&mut self, now: Time, link: LinkId, reason: &str) {
        self.0.tell(|node| node.closed(now, link, reason));
    }
    fn held(&mut self, now: Time, link: LinkId) {
        self.0.tell(|node| node.held(now, link));
    }
    fn sent(&mut self, now: Time, link: LinkId, parcel: u32, outcome: Result<Span, String>) {
        self.0.tell(|node| node.sent(now, link, parcel, outcome));
    }
    fn is_member(&self, link: LinkId) -> bool {
        self.0.look(|node| node.is_member(link))
    }
    fn take_reported(&mut self, link: LinkId) -> bool {
        self.0.node().take_reported(link)
    }
    fn poll_action(&mut self) -> Option<Action<NodeStep>> {
        self.0.node().poll_action()
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.0.look(proto::Node::poll_timeout)
    }
    fn timeout(&mut self, now: Time) {
        self.0.tell(|node| node.timeout(now));
    }
    fn finish(&mut self, now: Time, reason: &str) {
        self.0.tell(|node| node.finish(now, reason));
    }
    fn forget(&mut self, now: Time, client: &str, why: &str) {
        self.0.tell(|node| node.forget(now, client, why));
    }
    fn uncounted(&self) -> usize {
        0
    }
    fn resent(&mut self) -> Vec<(String, Option<u64>, Option<u64>)> {
        Vec::new()
    }
    fn connected_count(&self) -> usize {
        self.0.look(proto::Node::connected_count)
    }
    fn clients(&self) -> Vec<String> {
        self.0.look(|node| node.connected_clients().map(String::from).collect())
    }
    fn away(&self) -> Vec<(String, String, bool)> {
        let owned = |(name, reason, gone): (&str, &str, bool)| (name.into(), reason.into(), gone);
        self.0.look(|node| node.departed().map(owned).collect())
    }
}

impl HubPolicy for Listening {
    type Machine = Accepted;

    fn perform(hub: &Arc<NodeHub>, wanted: NodeStep) {
        let shared = &hub.policy.0;
        match wanted {
            NodeStep::Mix(mixing) => *lock(&shared.mix) = Some(mixing),
            NodeStep::Forget { below } => {
                shared.settle_folding();
                shared.free_below(below);
            }
            NodeStep::Met { peer } => shared.event("met", &peer, "is there"),
            NodeStep::Left { peer, reason } => shared.event("left", &peer, &reason),
            NodeStep::Refused { peer, reason, grave } => {
                shared.event("refused", &peer, &reason);
                if grave {
                    shared.refuse(reason.into());
                }
            }
        }
    }

    fn lend(&self, parcel: u32) -> Result<Lent, String> {
        self.0.lend(parcel)
    }

    fn is_detached(&self, links: &[LinkId]) -> bool {
        self.0.look(|node| links.iter().all(|&link| node.is_known_to(Neighbour::Link(link))))
    }

    fn sink(hub: &Arc<NodeHub>, link: LinkId, _ordered: bool) -> Box<dyn Sink> {
        Box::new(NodeSink::new(hub.policy.0.clone(), Neighbour::Link(link)))
    }
}

/// Policy of a dialer: it drives the link to one neighbour that this node dials.
pub(crate) struct Dialling {
    pub shared: Arc<Shared>,
    pub place: usize,
    pub name: String,
}

/// The state machine as that dialer sees it.
pub(crate) struct Dialled {
    pub shared: Arc<Shared>,
    pub place: usize,
}

impl DialerMachine for Dialled {
    type Wanted = ();

    fn connected(&mut self, now: Time, nonce: Nonce, ordered: bool) {
        self.shared.tell(|node| node.dial_connected(now, self.place, nonce, ordered));
    }
    fn unreachable(&mut self, now: Time, why: Failure, may_retry: bool) {
        self.shared.tell(|node| node.dial_unreachable(now, self.place, why, may_retry));
    }
    fn control(&mut self, now: Time, message: Control) {
        self.shared.tell(|node| node.dial_control(now, self.place, message));
        self.shared.announce(); // a caller that waits to send may go on
    }
    fn closed(&mut self, now: Time, reason: &str) {
        self.shared.tell(|node| node.dial_closed(now, self.place, reason));
        self.shared.announce();
    }
    fn held(&mut self, now: Time) {
        self.shared.tell(|node| node.dial_held(now, self.place));
    }
    fn observe(&mut self, _retransmissions: Option<u64>) {}
    fn sent(&mut self, parcel: u32, outcome: Result<Span, String>) {
        let now = self.shared.now();
        self.shared.tell(|node| node.dial_sent(now, self.place, parcel, outcome));
        self.shared.announce();
    }
    fn proven(&mut self, now: Time, proof: Option<Proof>) {
        self.shared.tell(|node| node.dial_proven(now, self.place, proof));
    }
    fn nonce(&self) -> Option<Nonce> {
        self.shared.look(|node| node.dial_nonce(self.place))
    }
    fn known_as(&self) -> Option<KnownAs> {
        self.shared.look(|node| node.dial_welcome(self.place).map(KnownAs::from))
    }
    fn is_done(&self) -> bool {
        self.shared.look(|node| node.dial_is_done(self.place))
    }
    fn leave(&mut self, reason: &str) {
        self.shared.tell(|node| node.dial_leave(self.place, reason));
    }
    fn poll_action(&mut self) -> Option<ClientAction<()>> {
        self.shared.node().poll_dial(self.place)
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.shared.look(|node| node.dial_poll_timeout(self.place))
    }
    fn timeout(&mut self, now: Time) {
        self.shared.tell(|node| node.dial_timeout(now, self.place));
    }
}

impl DialerPolicy for Dialling {
    type Machine = Dialled;

    fn perform(_dialer: &Arc<NodeDialer>, (): ()) {}

    fn joined(_dialer: &Arc<NodeDialer>) {}

    fn finished(dialer: &Arc<NodeDialer>, outcome: Result<String, Failure>) {
        let Dialling { shared, name, .. } = &dialer.policy;
        match outcome {
            Ok(reason) => shared.event("note", name, &format!("is dialled no longer: {reason}")),
            Err(why) => {
                shared.event("refused", name, &why.to_string());
                shared.refuse(Failure { cause: format!("{name}: {}", why.cause), ..why });
            }
        }
    }

    fn lend(dialer: &Arc<NodeDialer>, parcel: u32) -> Result<Lent, String> {
        dialer.policy.shared.lend(parcel)
    }

    fn is_detached(machine: &Dialled) -> bool {
        machine.shared.look(|node| node.is_known_to(Neighbour::Dialled(machine.place)))
    }

    fn sink(dialer: &Arc<NodeDialer>, _ordered: bool) -> Box<dyn Sink> {
        let Dialling { shared, place, .. } = &dialer.policy;
        Box::new(NodeSink::new(shared.clone(), Neighbour::Dialled(*place)))
    }
}
