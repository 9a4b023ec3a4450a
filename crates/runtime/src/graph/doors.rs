//! The state that all links of a node share ([`Shared`]): among it the one state machine, which the hub and
//! each dialer drive.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_proto as proto;
use thalweg_proto::{
    DialledNeighbour, Failure, LinkId, Mixing, Neighbour, NodeStep, ServerMachine, Time, MEAN,
};
use thalweg_transport::Sink;
use thalweg_wire::{Layout, Range, Ranges};

use super::means::Means;
use super::mixing::Slots;
use super::sink::NodeSink;
use super::staging::Stages;
use crate::engine::{ClientLock, Dialer, DialerPolicy, Hub, HubPolicy, Lent, ServerLock};
use crate::lock;

/// Maximum number of events that are kept until [`Shared::take_events`]. Beyond that the oldest are dropped.
const EVENTS: usize = 1000;

/// The hub of a node drives the links that it accepts. A dialer drives the link to one neighbour that the
/// node dials.
pub(crate) type NodeHub = Hub<Listening>;
pub(crate) type NodeDialer = Dialer<Dialling>;

/// Sums of the open iterations, neighbours' models that are not in the sums yet, and means of segments.
pub(crate) type Sums = (Slots, Option<Stages>, Option<Means>);

/// State that all links of a node share.
pub(crate) struct Shared {
    node: Mutex<proto::Node>,
    started: Instant,
    pub layout: Arc<Layout>,
    pub slots: Slots,
    /// Neighbours' models, kept apart if their weights are known only after the wait; else `None`.
    pub stages: Option<Stages>,
    /// Means of segments, if the node may average by segments; else `None`.
    pub means: Option<Means>,
    /// A sink holds the read lock while it records a chunk and adds it to the sums. So while a thread holds
    /// the write lock, no chunk of a finished iteration is being added.
    pub folding: RwLock<()>,
    /// The copy of the own model that links send. So training and mixing need not wait for a slow neighbour.
    pub copy: Arena,
    /// The iteration whose model the copy holds.
    pub copied: AtomicU32,
    mix: Mutex<Option<Mixing>>,
    /// Wakes the caller that waits for `mix`. It has a condition of its own, because each chunk changes something
    /// that other callers wait for.
    may_mix: Condvar,
    /// The reason why a neighbour can never average with this node. It is cleared when a call has reported
    /// it.
    pub refused: Mutex<Option<Failure>>,
    events: Mutex<VecDeque<Value>>,
    hub: OnceLock<Weak<NodeHub>>,
    dialers: Mutex<BTreeMap<usize, Weak<NodeDialer>>>,
}

impl Shared {
    pub fn new(node: proto::Node, started: Instant, layout: Arc<Layout>, sums: Sums, copy: Arena) -> Self {
        let (slots, stages, means) = sums;
        Self {
            node: Mutex::new(node),
            started,
            layout,
            slots,
            stages,
            means,
            folding: RwLock::default(),
            copy,
            copied: AtomicU32::new(0),
            mix: Mutex::default(),
            may_mix: Condvar::new(),
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

    pub fn dials(&self, index: usize, dialer: &Arc<NodeDialer>) {
        lock(&self.dialers).insert(index, Arc::downgrade(dialer));
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
            let waiting = dials.iter().filter_map(|index| dialers.get(index)).filter_map(Weak::upgrade);
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

    /// Averages the ranges of this node's segment to which all neighbours have contributed. The caller holds
    /// the read lock of `folding`.
    pub fn average_due(&self) {
        let Some(means) = &self.means else { return };
        while let Some((round, range)) = self.tell(proto::Node::due) {
            let own = self.copy.lend(range).map_err(|busy| busy.to_string());
            let averaged = own.and_then(|own| means.average(&self.slots.of(round), range, &own));
            self.tell(|node| node.averaged(self.now(), round, range, averaged.is_ok()));
        }
    }

    fn lend(&self, parcel: u32, wanted: &Ranges) -> Result<Lent, String> {
        let round = parcel & !MEAN;
        if self.copied.load(Ordering::Acquire) != round {
            return Err(format!("the model of iteration {round} is no longer there"));
        }
        let (hash, chunk) = self.look(|node| (node.layout_of(parcel), node.chunk_of(parcel)));
        let mean = self.means.as_ref().filter(|_| parcel != round).map(Means::arena);
        // Lend only the part that is sent: others may still be written.
        let range = match mean {
            None => self.copy.range(),
            Some(_) => wanted.iter().next().unwrap_or(Range::new(0, 0)),
        };
        let bytes = mean.unwrap_or(&self.copy).lend(range).map_err(|busy| busy.to_string())?;
        Ok(Lent { bytes, start: range.start, layout: self.layout.clone(), hash, chunk })
    }

    /// Waits at most `limit` for the end of the iteration. Returns early, without it, if a neighbour can never
    /// average with this node.
    pub fn wait_to_mix(&self, limit: Duration) -> Option<Mixing> {
        let waits = |mix: &mut Option<Mixing>| mix.is_none() && lock(&self.refused).is_none();
        let waited = self.may_mix.wait_timeout_while(lock(&self.mix), limit, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }

    fn let_mix(&self, mixing: Mixing) {
        *lock(&self.mix) = Some(mixing);
        self.may_mix.notify_all();
    }

    /// Wakes the waiting callers, so that they check their conditions again.
    pub fn announce(&self) {
        if let Some(hub) = self.hub.get().and_then(Weak::upgrade) {
            hub.announce();
        }
    }

    /// Records why a neighbour can never average with this node.
    fn refuse(&self, why: Failure) {
        {
            // A caller between its check and its wait holds this lock, so it cannot miss the wake-up.
            let _mix = lock(&self.mix);
            *lock(&self.refused) = Some(why);
        }
        self.may_mix.notify_all();
        self.announce();
    }
}

/// Policy of the hub: it drives the accepted links and the node's own steps.
pub(crate) struct Listening(pub Arc<Shared>);

impl ServerLock for Arc<Shared> {
    type Machine = proto::Node;

    fn with<T>(&self, call: impl FnOnce(&mut proto::Node) -> T) -> T {
        self.tell(call)
    }
}

impl HubPolicy for Listening {
    type Lock = Arc<Shared>;

    fn perform(hub: &Arc<NodeHub>, wanted: NodeStep) {
        let shared = &hub.policy.0;
        match wanted {
            NodeStep::Mix(mixing) => shared.let_mix(mixing),
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

    fn lend(&self, parcel: u32, _difference: bool, wanted: &Ranges) -> Result<Lent, String> {
        self.0.lend(parcel, wanted)
    }

    fn is_detached(&self, links: &[LinkId]) -> bool {
        self.0.look(|node| links.iter().all(|&link| node.is_known_to(Neighbour::Link(link))))
    }

    fn sink(hub: &Arc<NodeHub>, link: LinkId, ordered: bool) -> Box<dyn Sink> {
        Box::new(NodeSink::new(hub.policy.0.clone(), Neighbour::Link(link), ordered))
    }
}

/// Policy of a dialer: it drives the link to one neighbour that this node dials.
pub(crate) struct Dialling {
    pub shared: Arc<Shared>,
    pub index: usize,
    pub name: String,
}

/// The node's machine, as one of its dialers gets it.
pub(crate) struct Dialled {
    pub shared: Arc<Shared>,
    pub index: usize,
}

impl ClientLock for Dialled {
    type Wanted = ();
    type Machine<'a> = DialledNeighbour<'a>;

    fn with<T>(&self, call: impl FnOnce(&mut DialledNeighbour<'_>) -> T) -> T {
        let result = self.shared.tell(|node| call(&mut node.dialled(self.index)));
        self.shared.announce(); // a caller that waits to send may go on
        result
    }
}

impl DialerPolicy for Dialling {
    type Lock = Dialled;

    fn perform(_dialer: &Arc<NodeDialer>, (): ()) {}

    fn joined(_dialer: &Arc<NodeDialer>) {}

    fn finished(dialer: &Arc<NodeDialer>, outcome: Result<String, Failure>) {
        let Dialling { shared, name, .. } = &dialer.policy;
        match outcome {
            Ok(reason) => shared.event("note", name, &format!("is not dialled any more: {reason}")),
            Err(why) => {
                shared.event("refused", name, &why.to_string());
                shared.refuse(Failure { cause: format!("{name}: {}", why.cause), ..why });
            }
        }
    }

    fn lend(dialer: &Arc<NodeDialer>, parcel: u32, wanted: &Ranges) -> Result<Lent, String> {
        dialer.policy.shared.lend(parcel, wanted)
    }

    fn is_detached(machine: &DialledNeighbour<'_>) -> bool {
        machine.knows_this_node()
    }

    fn sink(dialer: &Arc<NodeDialer>, ordered: bool) -> Box<dyn Sink> {
        let Dialling { shared, index, .. } = &dialer.policy;
        Box::new(NodeSink::new(shared.clone(), Neighbour::Dialled(*index), ordered))
    }
}
