//! The server's end of a job of rounds: runs them, folds what comes, takes the mean.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, Repair, Summary, MAX_WEIGHT};
use thalweg_proto as proto;
use thalweg_proto::{Action, LinkId, Outcome, RoundAction, Span, Time, Traffic};
use thalweg_transport::{Address, Sink};
use thalweg_wire::control::{Control, Nonce};
use thalweg_wire::{Layout, Range, Ranges, Spread};

use super::repair::Mender;
use super::report::outcome_json;
use super::server_sink::ServerSink;
use super::staging::Staging;
use crate::engine::{hub_machine, Hub, HubOptions, HubPolicy, Lent, CALLER_PATIENCE, CHUNK_PATIENCE};
use crate::options::{seconds, ServerOptions, DEFAULT_CHUNK};
use crate::{lock, registry, Error};

/// How long a cancelled sender may hold on to the model before its link is closed.
const LOAN_PATIENCE: Duration = Duration::from_secs(2);
/// Most clients a job may ever have.
const MAX_CLIENTS: u32 = 1 << 16;

/// What the driver of a server of rounds has besides its links.
pub(crate) struct Star {
    pub layout: Arc<Layout>,
    pub accumulator: Accumulator,
    /// Held shared from marking a chunk as received until it is folded, and exclusively while the mean is
    /// taken: no chunk of one round can slip into the next.
    pub folding: RwLock<()>,
    pub staging: Staging,
    pub keep: bool,
    mender: Mender,
    /// In which order updates come, if it is not the model's.
    order: Option<Spread>,
    /// The model in that order, for a moment: kept since fresh pages cost more than the copy.
    wire: Mutex<Vec<u8>>,
    model: Arena,
    options: ServerOptions,
    outcome: Mutex<Option<Result<String, Error>>>,
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
            staging: options.staging_bytes(layout.bytes()),
            max_weight: MAX_WEIGHT,
            liveness: seconds(options.liveness),
            max_clients: MAX_CLIENTS,
        };
        let hub = HubOptions {
            job: options.job,
            chunk,
            tolerance,
            transport: options.transport.clone(),
            secret: options.secret.clone(),
            token: options.token.clone(),
        };
        let star = Star {
            accumulator: Accumulator::new(layout.clone(), options.precision.into()),
            folding: RwLock::default(),
            staging: Staging::new(layout.bytes()),
            keep: options.partial == crate::PartialRule::Keep,
            mender: Mender::new(options.repair.stand_in()),
            order: options.repair.order(options.seed),
            wire: Mutex::default(),
            layout,
            model,
            options,
            outcome: Mutex::default(),
        };
        let machine = |gate| proto::Server::new(config, gate);
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

    /// What happened since the last call, in words: clients that came and went, and why.
    pub fn notes(&self) -> Vec<String> {
        self.hub.as_ref().map(|hub| hub.take_notes()).unwrap_or_default()
    }

    /// Waits until `clients` clients are connected, the time is over, or `go_on` says no. Returns how many are.
    pub fn wait(&self, clients: usize, limit: Option<Duration>, go_on: impl FnMut() -> bool) -> usize {
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
            expected: options.wanted(),
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
        loop {
            if let Some(outcome) = hub.wait_for(CALLER_PATIENCE, || lock(&hub.policy.outcome).take()) {
                return outcome;
            }
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
            RoundAction::Fold { sender, weight, holes } => fold_staged(hub, sender, weight, holes),
            RoundAction::Unstage { sender } => hub.policy.staging.free(sender),
            RoundAction::Ended(outcome) => end_round(hub, outcome),
        }
    }

    fn lend(&self, _parcel: u32) -> Result<Lent, String> {
        let bytes = self.model.lend(self.model.range()).map_err(|busy| busy.to_string())?;
        Ok(Lent { bytes, layout: self.layout.hash() })
    }

    fn wants_counters(machine: &proto::Server, now: Time) -> bool {
        machine.ends_updates(now)
    }

    fn sink(hub: &Arc<StarHub>, link: LinkId, ordered: bool) -> Box<dyn Sink> {
        Box::new(ServerSink::new(hub.clone(), link, ordered))
    }
}

/// Folds a staged update on a thread of its own.
fn fold_staged(hub: &Arc<StarHub>, sender: u32, weight: f64, holes: Ranges) {
    let work = hub.clone();
    hub.spawn_blocking(move || {
        let hub = work;
        // Whatever happens, the round hears what came of it.
        let fold = AssertUnwindSafe(|| hub.policy.fold_update(sender, weight, &holes));
        let outcome = catch_unwind(fold).unwrap_or_else(|_| Err("the thread that folded panicked".into()));
        let outcome = outcome.map_err(|reason| format!("sent an update that cannot be added up: {reason}"));
        hub.policy.staging.free(sender);
        lock(&hub.machine).folded(hub.now(), sender, outcome);
        hub.wake();
    });
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
    let _folding = star.folding.write().unwrap_or_else(PoisonError::into_inner);
    let summary = end_sums(hub, outcome);
    // Whatever came of them, they are not for the next round.
    star.accumulator.reset();
    let summary = summary?;
    let seconds = hub.now().saturating_sub(outcome.span.start).as_secs_f64();
    let fold = json!({ "uncovered_bytes": summary.uncovered_bytes });
    let policy = star.options.repair.policy;
    Ok(outcome_json(outcome, seconds, fold, hub.congestion(), policy, &star.layout).to_string())
}

/// The mean, in the model. If there is none, or one that is not finite, the model stays as it was.
fn end_sums(hub: &StarHub, outcome: &Outcome) -> Result<Summary, Error> {
    if let Some(reason) = &outcome.failure {
        return Err(Error::new("round", "run round", reason.clone()));
    }
    let no_mean = |reason: String| {
        let said = format!("round {} gives no model: {reason}", outcome.round);
        Error::new("round", "take the mean", said)
    };
    hub.policy.check_means().map_err(no_mean)?;
    let mut model = claim_model(hub)?;
    hub.policy.put_mean(&mut model).map_err(no_mean)
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

impl Star {
    fn fold_update(&self, sender: u32, weight: f64, holes: &Ranges) -> Result<(), String> {
        let _folding = self.folding.read().unwrap_or_else(PoisonError::into_inner);
        let arena = self.staging.place(sender).ok_or("there is no memory")?;
        // Who received the last of it may still hold its place, and what trails behind its end may come.
        let mut update = arena.claim_within(arena.range(), CHUNK_PATIENCE).map_err(|e| e.to_string())?;
        if !holes.is_empty() || self.mender.keeps_updates() {
            return self.fold_mended(sender, weight, &mut update, holes);
        }
        self.accumulator.fold(0, &update, weight).map(drop).map_err(|e| e.to_string())
    }

    fn fold_mended(&self, sender: u32, weight: f64, update: &mut [u8], holes: &Ranges) -> Result<(), String> {
        let mut global = self.model.lend(self.model.range()).map_err(|e| e.to_string())?;
        if let Some(order) = self.order.filter(|_| self.mender.reads_global()) {
            let mut wire = vec![0; global.len()];
            order.to_wire(&self.layout, &global, &mut wire);
            global = wire.into();
        }
        let came = self.mender.mend(&self.layout, sender, update, holes, &global)?;
        // What stands in was not judged when it came.
        let judge = |range: Range| {
            let bytes = &update[range.start as usize..range.end as usize];
            self.accumulator.check(range.start, bytes, weight)
        };
        let folded = came.iter().try_for_each(judge);
        let folded = folded.and_then(|()| self.accumulator.fold_ranges(update, &came, weight));
        folded.map_err(|error| {
            self.mender.forget(sender);
            error.to_string()
        })
    }

    /// Whether the sums come to a model; every core looks at a part of them.
    fn check_means(&self) -> Result<(), String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let sums = &self.accumulator;
        std::thread::scope(|scope| {
            let check = |part| scope.spawn(move || sums.check_part(part));
            let workers: Vec<_> = sums.parts(cores).into_iter().map(check).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().map_err(|_| "a worker panicked")?.map_err(|e| e.to_string())
            })
        })
    }

    /// The mean of what was folded, into the model; in order, if updates came in another.
    fn put_mean(&self, model: &mut [u8]) -> Result<Summary, String> {
        let Some(order) = self.order else { return self.take_mean(model) };
        let mut wire = lock(&self.wire);
        wire.resize(model.len(), 0);
        order.to_wire(&self.layout, model, &mut wire);
        let summary = self.take_mean(&mut wire)?;
        order.to_order(&self.layout, &wire, model);
        Ok(summary)
    }

    /// The mean of what was folded, into a model; every core takes a part of it.
    fn take_mean(&self, model: &mut [u8]) -> Result<Summary, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut rest = model;
        std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for range in self.accumulator.parts(cores) {
                let (part, others) = std::mem::take(&mut rest).split_at_mut(range.len() as usize);
                rest = others;
                workers.push(
                    scope.spawn(move || self.accumulator.finish_part(range.start, part, Repair::KeepLocal)),
                );
            }
            let mut total: Option<Summary> = None;
            for worker in workers {
                let summary = worker.join().map_err(|_| "a worker panicked")?.map_err(|e| e.to_string())?;
                match &mut total {
                    Some(total) => total.merge(&summary),
                    None => total = Some(summary),
                }
            }
            Ok(total.unwrap_or(Summary { tensors: Vec::new(), uncovered_bytes: 0 }))
        })
    }
}
