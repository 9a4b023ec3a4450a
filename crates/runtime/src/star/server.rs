//! The server of a job of rounds: it runs the rounds and has the updates reduced to the next model.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_fold::MAX_WEIGHT;
use thalweg_proto as proto;
use thalweg_proto::{LinkId, Outcome, RoundAction, Time};
use thalweg_transport::{Address, Sink};
use thalweg_wire::tree::{Admit, Arrival};
use thalweg_wire::{Layout, Range, Ranges};

use super::down::Down;
use super::reduce::{Fold, Inline, NoMean, Reducer};
use super::report::{self, written, SumsOutcome, Timeline};
use super::server_sink::ServerSink;
use super::top::{room_for, SumsOfRound};
use crate::engine::{ForwardedProofs, GoOn, Hub, HubOptions, HubPolicy, Lent, CALLER_TIMEOUT};
use crate::options::{seconds, usual_chunk, ServerOptions, TimingRule};
use crate::{lock, registry, Error, Kind};

/// How long a cancelled sender may keep the loan of the model before its link is closed.
const LOAN_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of clients that a job may ever have.
const MAX_CLIENTS: u32 = 1 << 16;
/// What can be done about a round that too few updates reached.
const TOO_FEW: &str =
    "If clients come back later, raise `outage`; if they are slow, raise `deadline`; if fewer \
    updates will do, lower `enough`";

/// The policy of a server of rounds.
pub(crate) struct Star {
    pub layout: Arc<Layout>,
    pub reducer: Arc<dyn Reducer>,
    /// Whether chunks are folded on arrival. Otherwise updates are staged until they are complete.
    pub keep: bool,
    model: Arena,
    /// The clients' model, if they are sent differences of models.
    down: Option<Down>,
    options: ServerOptions,
    /// Number of clients now. In a tree, clients move from node to node, so this may differ from the options.
    expected: AtomicU32,
    outcome: Mutex<Option<Result<String, Error>>>,
    /// Whether the root of a tree names the updates that the present round folds.
    is_named: AtomicBool,
    /// How often there was news for [`Server::admit`].
    arrivals: AtomicU64,
    /// When the first complete update of the round arrived.
    first: Mutex<Option<Time>>,
    /// Sums of the last round, if rounds end with sums. The next round reuses their memory.
    sums: Mutex<Option<SumsOfRound>>,
    /// Proofs of the clients, which the root of a tree requests.
    proofs: ForwardedProofs,
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
    /// The transport's error for the address, or `options` for an impossible option.
    pub fn start(model: Arena, layout: Layout, address: &str, options: ServerOptions) -> Result<Self, Error> {
        options.check()?;
        // Check that there is room at least for the sums. They are allocated when updates arrive, and a
        // failure then would abort the process.
        thalweg_arena::room(layout.bytes())?;
        let address = Address::parse(address)?;
        let transport = registry::transport_for(&address, &options.transport, &options.layers, options.seed)?;
        let chunk = transport.capabilities().chunk(options.chunk, usual_chunk(layout.bytes()));
        let named = options.repair.tolerance(&layout)?;
        // A reliable transport loses nothing, so it needs no rule about losses.
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
            stale: options.stale,
            withhold: options.withhold,
        };
        let proofs = ForwardedProofs::default();
        let hub = HubOptions {
            job: options.job,
            chunk,
            tolerance,
            transport: options.transport.clone(),
            issuer: options.issuer.clone(),
            token: options.token.clone(),
            role: thalweg_pki::Role::Client,
            revoked: options.revoked.clone(),
            proofs: options.sums.then(|| proofs.clone()),
            started: Instant::now(),
        };
        let reducer = reducer(&layout, &model, &options)?;
        let keep = options.partial == crate::PartialRule::Keep;
        let down = options.layers.compress.and_then(|compress| compress.down);
        let down = down.map(|scheme| Down::new(scheme, &layout)).transpose()?;
        let (outcome, first, sums) = (Mutex::default(), Mutex::default(), Mutex::default());
        let expected = AtomicU32::new(options.expected);
        let (is_named, arrivals) = (AtomicBool::new(false), AtomicU64::new(0));
        let star = Star {
            layout,
            reducer,
            keep,
            model,
            down,
            options,
            expected,
            outcome,
            is_named,
            arrivals,
            first,
            sums,
            proofs,
        };
        let hub = Hub::start(&transport, &address, hub, |gate, chunk| {
            let machine = proto::Server::new(proto::ServerConfig { chunk, ..config }, gate);
            (Mutex::new(machine), star)
        })?;
        Ok(Self { hub: Some(hub) })
    }

    /// The hub, or an error if the server is closed.
    fn hub(&self) -> Result<&Arc<StarHub>, Error> {
        self.hub.as_ref().ok_or_else(|| Error::new(Kind::Closed, "use server", "the server is closed"))
    }

    /// The address at which the server listens, with the port that the system chose.
    pub fn address(&self) -> String {
        self.hub.as_ref().map(|hub| hub.address()).unwrap_or_default()
    }

    /// Names of the connected clients.
    pub fn clients(&self) -> Vec<String> {
        self.hub.as_ref().map(|hub| hub.clients()).unwrap_or_default()
    }

    /// The proofs that these clients have shown; a client without one is left out. The root of a tree checks
    /// them with [`crate::check_forwarded_proof`].
    pub fn proofs(&self, names: &[String]) -> Vec<(String, Vec<u8>)> {
        let Some(hub) = &self.hub else { return Vec::new() };
        let proofs = lock(&hub.policy.proofs);
        names.iter().filter_map(|name| Some((name.clone(), proofs.get(name)?.clone()))).collect()
    }

    /// Log lines since the last call, such as which clients joined and left, and why.
    pub fn notes(&self) -> Vec<String> {
        self.hub.as_ref().map(|hub| hub.take_notes()).unwrap_or_default()
    }

    /// Waits until `clients` clients are connected, `limit` is over, or `go_on` returns false. Returns how
    /// many are connected.
    pub fn wait(&self, clients: usize, limit: Option<Duration>, go_on: GoOn<'_>) -> usize {
        self.hub.as_ref().map_or(0, |hub| hub.wait_for_clients(clients, limit, go_on))
    }

    /// Runs one round, and returns its outcome as JSON. `config` is the JSON object that clients get. `go_on`
    /// is called a few times a second with all clients' progress. If it returns false, the call returns.
    ///
    /// With `batch`, the number of a batch of the round, only the updates are folded that [`Server::admit`] names. The
    /// clients of other updates go on in the next batch.
    ///
    /// # Errors
    /// `round` if too few updates arrived, with the reasons; `interrupted` if `go_on` returned false.
    pub fn round(
        &self,
        number: u32,
        config: &str,
        batch: Option<u32>,
        mut go_on: impl FnMut(&str) -> bool,
    ) -> Result<String, Error> {
        let hub = self.hub()?;
        hub.policy.is_named.store(batch.is_some(), Ordering::Relaxed);
        if batch.is_some_and(|batch| batch <= 1) {
            lock(&hub.machine).drop_exported();
            hub.policy.reducer.unstage_all();
        }
        let options = &hub.policy.options;
        let expected = options.choose.unwrap_or(hub.policy.expected.load(Ordering::Relaxed));
        let began = hub.now();
        let plan = proto::RoundPlan {
            number,
            config: config.into(),
            expected,
            goal: options.goal.unwrap_or(expected),
            selection: batch.map_or(proto::Selection::First, |batch| proto::Selection::Named { batch }),
            choice: options.choice(),
            enough: options.enough,
            deadline: options.deadline.map(seconds),
            grace: seconds(options.grace),
            outage: seconds(options.outage),
            fanout: options.fanout.into(),
            gather: options.gather.into(),
            version: next_version(hub)?,
        };
        *lock(&hub.policy.outcome) = None;
        hub.noted(|notes| notes.begin_round());
        let started = lock(&hub.machine).start_round(began, plan);
        started.map_err(|e| Error::new(Kind::Round, "start round", e))?;
        hub.wake();
        let (mut next, mut is_told, mut is_interrupted) = (Instant::now(), false, false);
        let interrupted =
            || Error::new(Kind::Interrupted, "run round", format!("round {number} was interrupted"));
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if let Some(outcome) = hub.wait_for(left, || lock(&hub.policy.outcome).take()) {
                return if is_interrupted { Err(interrupted()) } else { outcome };
            }
            // Every announcement wakes this loop, which is often with many clients. The progress report
            // covers all of them, so make it only at intervals.
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + CALLER_TIMEOUT;
            // The machine's lock is released before the callback runs: the callback may block on a thread
            // that needs it.
            let (progress, awaited) = {
                let machine = lock(&hub.machine);
                (machine.progress_report(), machine.awaited_after_grace(hub.now()).join(", "))
            };
            if !awaited.is_empty() && !is_told {
                is_told = true;
                let seconds = options.outage;
                hub.noted(|notes| notes.add(&format!(
                    "round {number} has too few updates; it waits up to {seconds} s for clients that are away: {awaited}"
                )));
            }
            if is_interrupted || go_on(&progress_json(&progress)) {
                continue;
            }
            if batch.is_none() {
                return Err(interrupted());
            }
            // Nobody will name updates any more, so the batch would not end by itself.
            is_interrupted = true;
            lock(&hub.machine).end_selection(hub.now());
            hub.wake();
        }
    }

    /// Names clients whose updates are folded in a batch of a round. Waits at most `limit` for arrivals that the root
    /// does not know, and returns them; an empty list if the batch is over. `None`: no news yet.
    ///
    /// # Errors
    /// `closed` if the server is closed.
    pub fn admit(&self, admit: &Admit, limit: Duration) -> Result<Option<Vec<Arrival>>, Error> {
        let hub = self.hub()?;
        let end = Instant::now() + limit;
        loop {
            let before = hub.policy.arrivals.load(Ordering::Acquire);
            let news = lock(&hub.machine).admit(hub.now(), admit);
            hub.wake();
            let left = end.saturating_duration_since(Instant::now());
            if news.is_some() || left.is_zero() {
                return Ok(news);
            }
            let is_newer = || (hub.policy.arrivals.load(Ordering::Acquire) != before).then_some(());
            hub.wait_for(left, is_newer);
        }
    }

    /// Clients that are not connected any more: name, why the link ended, and whether the client left for
    /// good.
    pub fn departed(&self) -> Vec<(String, String, bool)> {
        self.hub.as_ref().map(|hub| hub.away()).unwrap_or_default()
    }

    /// Segments retransmitted so far on the way to each client (`down`) and by it (`up`), as a JSON object by
    /// name. Null if a transport does not count them. Waits at most `limit` for clients that have not
    /// reported yet.
    pub fn resent(&self, limit: Duration) -> String {
        self.hub.as_ref().map_or_else(|| "{}".into(), |hub| hub.resent(limit))
    }

    /// Statistics of the worker processes so far, as JSON; `None` if there are none.
    pub fn tree(&self) -> Option<String> {
        let hub = self.hub.as_ref()?;
        hub.policy.reducer.tree()
    }

    /// Memory in bytes of this process and of each worker process that runs, each with its share of what they
    /// share (PSS); 0 where the system does not say. `None` if there are no workers. It takes milliseconds for
    /// each gigabyte that is mapped.
    pub fn memory(&self) -> Option<(u64, Vec<u64>)> {
        self.hub.as_ref()?.policy.reducer.memory()
    }

    /// The sums of the last round, if rounds end with sums and it had any. They share the memory that the
    /// next round reuses, so drop them before the next round ends. With `part`, returns a copy of that part,
    /// which may be kept.
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

    /// The model that clients had before they trained in the last round, if the server compresses models.
    pub fn held(&self) -> Option<(Arena, Arc<Layout>)> {
        let star = &self.hub.as_ref()?.policy;
        Some((star.down.as_ref()?.current()?, star.layout.clone()))
    }

    /// Goes on with the clients' model of an earlier server, before the first round.
    ///
    /// # Errors
    /// `options` if the server does not compress models, or the model has another size.
    pub fn resume_held(&self, held: &Arena) -> Result<(), Error> {
        let star = &self.hub()?.policy;
        let fits = star.down.as_ref().filter(|_| held.len() == star.layout.bytes());
        let unfit = || Error::new(Kind::Options, "resume", "the server keeps no such model of its clients");
        Ok(fits.ok_or_else(unfit)?.resume(held)?)
    }

    /// Processes the assignment of clients to servers by the tree's root. This server expects `expected` of
    /// them from the next round on.
    ///
    /// # Errors
    /// `closed` if the server is closed.
    pub fn place_clients(&self, expected: u32, homes: proto::Homes) -> Result<(), Error> {
        let hub = self.hub()?;
        hub.policy.expected.store(expected.max(1), Ordering::Relaxed);
        lock(&hub.machine).place_clients(hub.now(), homes);
        hub.wake();
        Ok(())
    }

    /// Tells clients whether the sums of a round, in which their updates are, count at the top. The updates of the
    /// clients in `left_out` do not count in any case.
    ///
    /// # Errors
    /// `closed` if the server is closed.
    pub fn confirm(&self, round: u32, counts: bool, left_out: &BTreeSet<String>) -> Result<(), Error> {
        let hub = self.hub()?;
        lock(&hub.machine).confirm(round, counts, left_out);
        hub.wake();
        Ok(())
    }

    /// Tells the server that a client's process has ended for good. Rounds stop waiting for the client. `why`
    /// is the reason; an empty `why` means "its process has ended".
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

impl HubPolicy for Star {
    type Lock = Mutex<proto::Server>;

    fn perform(hub: &Arc<StarHub>, wanted: RoundAction) {
        match wanted {
            RoundAction::Fold { sender, weight, since, holes } => {
                lock(&hub.policy.first).get_or_insert(since);
                fold_staged(hub, sender, weight, holes);
            }
            RoundAction::Arrived => {
                hub.policy.arrivals.fetch_add(1, Ordering::Release);
                hub.announce();
            }
            RoundAction::Unstage { sender } => hub.policy.reducer.unstage(sender),
            RoundAction::Ended(outcome) => end_round(hub, outcome),
        }
    }

    fn lend(&self, _parcel: u32, difference: bool, _wanted: &Ranges) -> Result<Lent, String> {
        let model = match &self.down {
            None => &self.model,
            Some(down) if difference => &down.difference,
            Some(down) => &down.held,
        };
        let bytes = model.lend(model.range()).map_err(|busy| busy.to_string())?;
        Ok(Lent::whole(bytes, self.layout.clone()))
    }

    fn wants_counters(machine: &proto::Server, now: Time) -> bool {
        machine.ends_updates(now)
    }

    fn sink(hub: &Arc<StarHub>, link: LinkId, ordered: bool) -> Box<dyn Sink> {
        Box::new(ServerSink::new(hub.clone(), link, ordered))
    }
}

/// Maximum number of bytes of updates that may be staged. With workers, the number of places in the pool
/// decides, even if clients of other nodes move to this node.
fn staging(options: &ServerOptions, update: u64) -> u64 {
    match options.workers {
        None => options.staging_bytes(update, thalweg_arena::available()),
        Some(_) => u64::from(options.places(update)).saturating_mul(update),
    }
}

/// Makes the reducer that the options ask for: in this process, or with worker processes.
#[cfg(target_os = "linux")]
fn reducer(layout: &Arc<Layout>, model: &Arena, options: &ServerOptions) -> Result<Arc<dyn Reducer>, Error> {
    let (layout, model) = (layout.clone(), model.clone());
    match &options.workers {
        None => Ok(Arc::new(Inline::new(layout, model, options))),
        Some(workers) => Ok(Arc::new(super::workers::Workers::new(layout, model, options, workers)?)),
    }
}

/// Makes the reducer that the options ask for. Worker processes need Linux.
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
        Kind::Unsupported,
        "start workers",
        "workers share memory as Linux alone does: take aggregation.shape = star",
    )
}

/// Folds a staged update and reports the outcome to the machine.
fn fold_staged(hub: &Arc<StarHub>, sender: u32, weight: f64, holes: Ranges) {
    let work = hub.clone();
    let done = move |outcome: Result<(), String>| {
        let outcome = outcome.map_err(|reason| format!("sent an update that cannot be added up: {reason}"));
        lock(&work.machine).folded(work.now(), sender, outcome);
        work.wake();
    };
    hub.policy.reducer.clone().fold(Fold { sender, weight, holes }, Box::new(done));
}

/// Writes the mean into the model, on a thread of its own, and posts the outcome.
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
    let report = |fold: report::Fold| {
        let seconds = hub.now().saturating_sub(outcome.span.start).as_secs_f64();
        report::Outcome::new(
            outcome,
            seconds,
            fold,
            hub.congestion(),
            star.options.repair.policy,
            &star.layout,
        )
    };
    let closing = hub.now();
    let finishing = || hub.now().saturating_sub(closing).as_secs_f64();
    if !star.is_named.load(Ordering::Relaxed) {
        star.reducer.unstage_all();
    }
    if star.options.sums {
        let failure = export(hub, outcome)?;
        let fold = report::Fold {
            uncovered_bytes: None,
            completion_seconds: completion(),
            finish_seconds: finishing(),
            timeline: timeline(hub, closing, "sums"),
        };
        return Ok(written(&SumsOutcome { outcome: report(fold), failure }));
    }
    if let Some(reason) = &outcome.failure {
        _ = star.reducer.close(None);
        return Err(Error::new(Kind::Round, "run round", reason.clone()).hint(TOO_FEW));
    }
    let summary = star.reducer.close(Some(&mut || claim_model(hub))).map_err(|error| match error {
        NoMean::Model(error) => error,
        NoMean::Sums(reason) => {
            let cause = format!("round {} gives no model: {reason}", outcome.round);
            Error::new(Kind::Round, "take the mean", cause)
        }
    })?;
    let fold = report::Fold {
        uncovered_bytes: Some(summary.uncovered_bytes),
        completion_seconds: completion(),
        finish_seconds: finishing(),
        timeline: timeline(hub, closing, "mean"),
    };
    Ok(written(&report(fold)))
}

/// The work of the workers, if there are any, and the node's own work since `closing`, which took the sums or
/// the mean.
fn timeline(hub: &StarHub, closing: Time, what: &'static str) -> Option<Timeline> {
    let now = hub.now();
    hub.policy.reducer.timeline().map(|worked| Timeline::new(&worked, now, (what, closing)))
}

/// Exports the sums of a round. First waits until no sender reads the model any more. Returns the reason if
/// there are no sums.
fn export(hub: &StarHub, outcome: &Outcome) -> Result<Option<String>, Error> {
    let star = &hub.policy;
    drop(claim_model(hub)?);
    let kept = lock(&star.sums).take();
    if let Some(reason) = &outcome.failure {
        _ = star.reducer.close(None);
        return Ok(Some(reason.clone()));
    }
    let (layout, cells) = room_for(&star.layout, star.options.precision, kept)?;
    let mut claim = cells.claim_within(cells.range(), LOAN_TIMEOUT)?;
    match star.reducer.export(&mut claim) {
        Ok(head) => {
            *lock(&star.sums) = Some(SumsOfRound { head: head.encode(), layout, cells });
            Ok(None)
        }
        Err(reason) => Ok(Some(format!("round {} has no sums: {reason}", outcome.round))),
    }
}

/// Makes the next version of the clients' model, if the server compresses models.
fn next_version(hub: &StarHub) -> Result<Option<proto::Version>, Error> {
    let star = &hub.policy;
    match &star.down {
        // The machine refuses the round then.
        Some(_) if lock(&hub.machine).is_in_round() => Ok(None),
        Some(down) => down.next(&star.layout, &star.model, |arena| claim(hub, arena)).map(Some),
        None => Ok(None),
    }
}

fn claim_model(hub: &StarHub) -> Result<thalweg_arena::Claim, Error> {
    claim(hub, &hub.policy.model)
}

/// A model, for writing. The senders of the ended round were cancelled. A link that still holds its loan after a
/// while is closed.
fn claim(hub: &StarHub, model: &Arena) -> Result<thalweg_arena::Claim, Error> {
    if let Ok(claim) = model.claim_within(model.range(), LOAN_TIMEOUT) {
        return Ok(claim);
    }
    hub.close_senders();
    Ok(model.claim_within(model.range(), LOAN_TIMEOUT * 2)?)
}
