//! The server's end of a job of rounds: runs them, and has what comes reduced to the next model.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_fold::MAX_WEIGHT;
use thalweg_proto as proto;
use thalweg_proto::{Action, LinkId, Outcome, RoundAction, Span, Time, Traffic};
use thalweg_transport::{Address, Sink};
use thalweg_wire::control::{Control, Nonce};
use thalweg_wire::{Layout, Range, Ranges};

use super::reduce::{Fold, Inline, NoMean, Reducer};
use super::report::{outcome_json, timeline_json};
use super::server_sink::ServerSink;
use super::top::{room_for, SumsOfRound};
use crate::engine::{hub_machine, GoOn, Hub, HubOptions, HubPolicy, Lent, Witnessed, CALLER_PATIENCE};
use crate::options::{seconds, ServerOptions, TimingRule, DEFAULT_CHUNK};
use crate::{lock, registry, Error};

/// How long a cancelled sender may hold on to the model before its link is closed.
const LOAN_PATIENCE: Duration = Duration::from_secs(2);
/// Most clients a job may ever have.
const MAX_CLIENTS: u32 = 1 << 16;

/// What the driver of a server of rounds has besides its links.
pub(crate) struct Star {
    pub layout: Arc<Layout>,
    pub reducer: Arc<dyn Reducer>,
    /// Chunks are folded as they come; else updates are staged until they are whole.
    pub keep: bool,
    model: Arena,
    options: ServerOptions,
    /// Clients that there are now, which differ from those of the options where clients move from node to node.
    expected: AtomicU32,
    outcome: Mutex<Option<Result<String, Error>>>,
    /// When the first update of the round was whole.
    first: Mutex<Option<Time>>,
    /// Of the round that ended last, if rounds end with sums. Their memory is used again.
    sums: Mutex<Option<SumsOfRound>>,
    /// Clients' proofs, for a root that is to believe in them.
    witnessed: Witnessed,
}

type StarHub = Hub<Star>;

/// A server that listens and runs rounds.
pub struct Server {
    hub: Option<Arc<StarHub>>,
}

impl Server {
    /// Listens at `address`. The arena holds the global model, now and after each round.
    ///
    /// # Errors
    /// What the transport says of the address, or which option is impossible.
    pub fn start(model: Arena, layout: Layout, address: &str, options: ServerOptions) -> Result<Self, Error> {
        options.check()?;
        // At least the sums need room. They are allocated when updates come, and a failure then aborts the process.
        thalweg_arena::room(layout.bytes())?;
        let address = Address::parse(address)?;
        let transport = registry::transport_for(&address, &options.transport, &options.layers, options.seed)?;
        let chunk = transport.capabilities().chunk(options.chunk, DEFAULT_CHUNK);
        let named = options.repair.tolerance(&layout)?;
        // What loses nothing needs no rule.
        let tolerance = if transport.capabilities().reliable { Arc::default() } else { Arc::new(named) };
        let layout = Arc::new(layout);
        let config = proto::ServerConfig {
            job: options.job,
            layout: layout.clone(),
            chunk,
            partial: options.partial.into(),
            stand_in: options.repair.stand_in(),
            spread: options.repair.spread.then_some(options.seed),
            tolerance: tolerance.clone(),
            staging: staging(&options, layout.bytes()),
            lazy: options.workers.as_ref().is_some_and(|workers| workers.timing == TimingRule::Lazy),
            max_weight: MAX_WEIGHT,
            liveness: seconds(options.liveness),
            max_clients: MAX_CLIENTS,
        };
        let witnessed = Witnessed::default();
        let hub = HubOptions {
            job: options.job,
            chunk,
            tolerance,
            transport: options.transport.clone(),
            issuer: options.issuer.clone(),
            token: options.token.clone(),
            role: thalweg_pki::Role::Client,
            witnessed: options.sums.then(|| witnessed.clone()),
            started: Instant::now(),
        };
        let reducer = reducer(&layout, &model, &options)?;
        let keep = options.partial == crate::PartialRule::Keep;
        let (outcome, first, sums) = (Mutex::default(), Mutex::default(), Mutex::default());
        let expected = AtomicU32::new(options.expected);
        let star = Star { layout, reducer, keep, model, options, expected, outcome, first, sums, witnessed };
        let machine = |gate, chunk| proto::Server::new(proto::ServerConfig { chunk, ..config }, gate);
        Ok(Self { hub: Some(Hub::start(&transport, &address, hub, machine, star)?) })
    }

    /// The hub of a server that is open.
    fn hub(&self) -> Result<&Arc<StarHub>, Error> {
        self.hub.as_ref().ok_or_else(|| Error::new("closed", "use server", "the server is closed"))
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> String {
        self.hub.as_ref().map(|hub| hub.address()).unwrap_or_default()
    }

    /// Names of the clients that are connected.
    pub fn clients(&self) -> Vec<String> {
        self.hub.as_ref().map(|hub| hub.clients()).unwrap_or_default()
    }

    /// The proofs of these clients of a node of a tree, for its root's [`crate::vouched`]; of those who have shown one.
    pub fn proofs(&self, names: &[String]) -> Vec<(String, Vec<u8>)> {
        let Some(hub) = &self.hub else { return Vec::new() };
        let witnessed = lock(&hub.policy.witnessed);
        names.iter().filter_map(|name| Some((name.clone(), witnessed.get(name)?.clone()))).collect()
    }

    /// What happened since the last call, in words: clients that came and went, and why.
    pub fn notes(&self) -> Vec<String> {
        self.hub.as_ref().map(|hub| hub.take_notes()).unwrap_or_default()
    }

    /// Waits until `clients` clients are connected, the time is over, or `go_on` says no. Returns how many are.
    pub fn wait(&self, clients: usize, limit: Option<Duration>, go_on: GoOn<'_>) -> usize {
        self.hub.as_ref().map_or(0, |hub| hub.wait_for_clients(clients, limit, go_on))
    }

    /// Runs one round. `config` is the JSON object that clients get. `go_on` is asked a few times a second,
    /// with everybody's progress; if it says no, the round is abandoned.
    ///
    /// # Errors
    /// `round` if too few updates came, with the reasons; `interrupted` if `go_on` said no.
    pub fn round(
        &self,
        number: u32,
        config: &str,
        mut go_on: impl FnMut(&str) -> bool,
    ) -> Result<String, Error> {
        let hub = self.hub()?;
        let options = &hub.policy.options;
        let plan = proto::RoundPlan {
            number,
            config: config.into(),
            expected: options.choose.unwrap_or(hub.policy.expected.load(Ordering::Relaxed)),
            choice: options.choice(),
            enough: options.enough,
            deadline: options.deadline.map(seconds),
            grace: seconds(options.grace),
            fanout: options.fanout.into(),
            gather: options.gather.into(),
        };
        *lock(&hub.policy.outcome) = None;
        hub.noted(|notes| notes.begin_round());
        let started = lock(&hub.machine).start_round(hub.now(), plan);
        started.map_err(|e| Error::new("round", "start round", e))?;
        hub.wake();
        let mut next = Instant::now();
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if let Some(outcome) = hub.wait_for(left, || lock(&hub.policy.outcome).take()) {
                return outcome;
            }
            // Whatever is announced wakes us, which with many clients is often, and the report is of all of them.
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + CALLER_PATIENCE;
            // The lock is let go first: whoever is asked may wait for somebody who waits for it.
            let progress = lock(&hub.machine).progress_report();
            if !go_on(&progress_json(&progress)) {
                return Err(Error::new(
                    "interrupted",
                    "run round",
                    format!("round {number} was interrupted"),
                ));
            }
        }
    }

    /// Clients that were here and are not connected: name, why the link ended, and whether it left for good.
    pub fn departed(&self) -> Vec<(String, String, bool)> {
        self.hub.as_ref().map(|hub| hub.away()).unwrap_or_default()
    }

    /// Segments retransmitted so far on the way to each client (`down`) and by it (`up`), as a JSON object of names; null where
    /// a transport cannot tell. Waits for at most `limit` for clients that have yet to say so.
    pub fn resent(&self, limit: Duration) -> String {
        self.hub.as_ref().map_or_else(|| "{}".into(), |hub| hub.resent(limit))
    }

    /// What worker processes have done so far, as JSON; `None` if there are none.
    pub fn tree(&self) -> Option<String> {
        let hub = self.hub.as_ref()?;
        Some(hub.policy.reducer.tree()?.to_string())
    }

    /// The sums of the round that ended last, if rounds end with sums and it had any. They must be given up before the next
    /// round ends; of a `part` of them a copy is made, which may be kept.
    ///
    /// # Errors
    /// `round` if there is no such part.
    pub fn sums(&self, part: Option<Range>) -> Result<Option<SumsOfRound>, Error> {
        let Some(hub) = &self.hub else { return Ok(None) };
        let sums = lock(&hub.policy.sums).clone();
        match (sums, part) {
            (Some(sums), Some(part)) => sums.cut(&hub.policy.layout, part).map(Some),
            (sums, _) => Ok(sums),
        }
    }

    /// The root of a tree has decided where clients belong. This server has `expected` of them from the next round on.
    ///
    /// # Errors
    /// `closed` if the server is.
    pub fn place_clients(&self, expected: u32, homes: proto::Homes) -> Result<(), Error> {
        let hub = self.hub()?;
        hub.policy.expected.store(expected.max(1), Ordering::Relaxed);
        lock(&hub.machine).place_clients(hub.now(), homes);
        hub.wake();
        Ok(())
    }

    /// A client's process has ended for good, as `why` says if it is not empty: rounds no longer wait for it.
    pub fn forget(&self, client: &str, why: &str) {
        if let Some(hub) = &self.hub {
            hub.forget(client, why);
        }
    }

    /// Tells every client that the job is over, and stops.
    pub fn close(&mut self, reason: &str) {
        if let Some(hub) = self.hub.take() {
            hub.close(reason);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close("the server has stopped");
    }
}

fn progress_json(parts: &[(String, proto::State, f64)]) -> String {
    let clients: serde_json::Map<String, Value> = parts
        .iter()
        .map(|(name, state, fraction)| (name.clone(), json!({ "phase": state, "sent_fraction": fraction })))
        .collect();
    json!({ "clients": clients }).to_string()
}

hub_machine!(proto::Server, RoundAction);

impl HubPolicy for Star {
    type Machine = proto::Server;

    fn perform(hub: &Arc<StarHub>, wanted: RoundAction) {
        match wanted {
            RoundAction::Fold { sender, weight, since, holes } => {
                lock(&hub.policy.first).get_or_insert(since);
                fold_staged(hub, sender, weight, holes);
            }
            RoundAction::Unstage { sender } => hub.policy.reducer.unstage(sender),
            RoundAction::Ended(outcome) => end_round(hub, outcome),
        }
    }

    fn lend(&self, _parcel: u32) -> Result<Lent, String> {
        let bytes = self.model.lend(self.model.range()).map_err(|busy| busy.to_string())?;
        Ok(Lent { bytes, layout: self.layout.clone() })
    }

    fn wants_counters(machine: &proto::Server, now: Time) -> bool {
        machine.ends_updates(now)
    }

    fn sink(hub: &Arc<StarHub>, link: LinkId, ordered: bool) -> Box<dyn Sink> {
        Box::new(ServerSink::new(hub.clone(), link, ordered))
    }
}

/// Bytes of updates that may be staged. Workers have a pool of so many places, however many clients come from other nodes.
fn staging(options: &ServerOptions, update: u64) -> u64 {
    match options.workers {
        None => options.staging_bytes(update),
        Some(_) => u64::from(options.places(update)).saturating_mul(update),
    }
}

/// Who folds: this process, or workers.
#[cfg(target_os = "linux")]
fn reducer(layout: &Arc<Layout>, model: &Arena, options: &ServerOptions) -> Result<Arc<dyn Reducer>, Error> {
    let (layout, model) = (layout.clone(), model.clone());
    match &options.workers {
        None => Ok(Arc::new(Inline::new(layout, model, options))),
        Some(workers) => Ok(Arc::new(super::workers::Workers::new(layout, model, options, workers)?)),
    }
}

/// Who folds: this process.
#[cfg(not(target_os = "linux"))]
fn reducer(layout: &Arc<Layout>, model: &Arena, options: &ServerOptions) -> Result<Arc<dyn Reducer>, Error> {
    match &options.workers {
        None => Ok(Arc::new(Inline::new(layout.clone(), model.clone(), options))),
        Some(_) => Err(no_workers()),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn no_workers() -> Error {
    Error::new(
        "unsupported",
        "start workers",
        "workers share memory as Linux alone does: take aggregation.shape = star",
    )
}

/// Folds a staged update; the round hears what came of it.
fn fold_staged(hub: &Arc<StarHub>, sender: u32, weight: f64, holes: Ranges) {
    let told = hub.clone();
    let done = move |outcome: Result<(), String>| {
        let outcome = outcome.map_err(|reason| format!("sent an update that cannot be added up: {reason}"));
        lock(&told.machine).folded(told.now(), sender, outcome);
        told.wake();
    };
    hub.policy.reducer.clone().fold(Fold { sender, weight, holes }, Box::new(done));
}

/// Takes the mean into the model, on a thread of its own, and posts the outcome.
fn end_round(hub: &Arc<StarHub>, outcome: Box<Outcome>) {
    let work = hub.clone();
    hub.spawn_blocking(move || {
        let result = finish(&work, &outcome);
        *lock(&work.policy.outcome) = Some(result);
        work.announce();
    });
}

fn finish(hub: &StarHub, outcome: &Outcome) -> Result<String, Error> {
    let star = &hub.policy;
    let first = lock(&star.first).take();
    let completion = || first.map(|first| hub.now().saturating_sub(first).as_secs_f64());
    let told = |fold: Value| {
        let seconds = hub.now().saturating_sub(outcome.span.start).as_secs_f64();
        outcome_json(outcome, seconds, fold, hub.congestion(), star.options.repair.policy, &star.layout)
    };
    let closing = hub.now();
    let finishing = || hub.now().saturating_sub(closing).as_secs_f64();
    if star.options.sums {
        let failure = export(hub, outcome)?;
        let fold = json!({ "uncovered_bytes": null, "completion_seconds": completion(), "finish_seconds": finishing() });
        let mut said = told(with_timeline(fold, hub, closing, "sums"));
        said["failure"] = failure.into();
        return Ok(said.to_string());
    }
    if let Some(reason) = &outcome.failure {
        _ = star.reducer.close(None);
        return Err(Error::new("round", "run round", reason.clone()));
    }
    let summary = star.reducer.close(Some(&mut || claim_model(hub))).map_err(|error| match error {
        NoMean::Model(error) => error,
        NoMean::Sums(reason) => {
            let said = format!("round {} gives no model: {reason}", outcome.round);
            Error::new("round", "take the mean", said)
        }
    })?;
    let fold = json!({
        "uncovered_bytes": summary.uncovered_bytes,
        "completion_seconds": completion(),
        "finish_seconds": finishing(),
    });
    Ok(told(with_timeline(fold, hub, closing, "mean")).to_string())
}

/// What the fold of a round says, with what workers did, and that the node took sums or a mean since `closing`.
fn with_timeline(mut fold: Value, hub: &StarHub, closing: Time, what: &str) -> Value {
    let now = hub.now();
    if let Some(worked) = hub.policy.reducer.timeline() {
        fold["timeline"] = timeline_json(&worked, now, (what, closing));
    }
    fold
}

/// Exports the sums of a round, and waits until nobody reads the model any more. Returns why it has no sums, if it has none.
fn export(hub: &StarHub, outcome: &Outcome) -> Result<Option<String>, Error> {
    let star = &hub.policy;
    drop(claim_model(hub)?);
    let kept = lock(&star.sums).take();
    if let Some(reason) = &outcome.failure {
        _ = star.reducer.close(None);
        return Ok(Some(reason.clone()));
    }
    let (layout, cells) = room_for(&star.layout, star.options.precision, kept)?;
    let mut claim = cells.claim_within(cells.range(), LOAN_PATIENCE)?;
    match star.reducer.export(&mut claim) {
        Ok(head) => {
            *lock(&star.sums) = Some(SumsOfRound { head: head.encode(), layout, cells });
            Ok(None)
        }
        Err(reason) => Ok(Some(format!("round {} has no sums: {reason}", outcome.round))),
    }
}

/// The model, to write to. Senders of the round that is over were cancelled; one that still holds on to
/// it after a while loses its link.
fn claim_model(hub: &StarHub) -> Result<thalweg_arena::Claim, Error> {
    let model = &hub.policy.model;
    if let Ok(claim) = model.claim_within(model.range(), LOAN_PATIENCE) {
        return Ok(claim);
    }
    hub.close_senders();
    Ok(model.claim_within(model.range(), LOAN_PATIENCE * 2)?)
}
