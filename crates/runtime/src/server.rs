//! The server's end of a job: accepts links, runs rounds, folds.

use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, Repair, Summary, MAX_WEIGHT};
use thalweg_proto as proto;
use thalweg_proto::{Action, LinkId, Outcome, Span, Time, Traffic};
use thalweg_transport::{
    Address, Bounds, Cancel, ErrorKind, Link, Listener, Lobby, Options, Outgoing, Pending, SendReport,
    UpdateId,
};
use thalweg_wire::control::Control;
use thalweg_wire::{Layout, Range, Ranges, Spread, Tolerance};
use tokio::sync::{Notify, Semaphore};

use crate::admission::{Gate, Peers};
use crate::descriptors;
use crate::notes::Notes;
use crate::options::{seconds, ServerOptions, DEFAULT_CHUNK};
use crate::outbox::Outbox;
use crate::repair::Mender;
use crate::report::outcome_json;
use crate::server_sink::ServerSink;
use crate::staging::Staging;
use crate::turned_away::TurnedAway;
use crate::{holding, lock, random, registry, Error};

/// Peers that may be shaking hands at a time, beyond what the lobby lets in: the next one waits, should a transport not ask
/// the lobby.
const HANDSHAKES: usize = 2048;
/// How long a member of a group may keep the others waiting for its earlier messages.
const GROUP_PATIENCE: Duration = Duration::from_millis(20);
/// How long links may take to end by themselves when the server closes, and how long its tasks may take after that.
/// Together less than the two seconds in which Ctrl-C has to end everything.
const FAREWELL_PATIENCE: Duration = Duration::from_millis(1200);
const TASKS_PATIENCE: Duration = Duration::from_millis(500);
/// How long a cancelled sender may hold on to the model before its link is closed.
const LOAN_PATIENCE: Duration = Duration::from_secs(2);
/// How long a chunk that came late may take to be written.
const CHUNK_PATIENCE: Duration = Duration::from_secs(1);
/// How often a waiting caller is asked whether to go on.
const CALLER_PATIENCE: Duration = Duration::from_millis(100);
/// Most clients a job may ever have.
const MAX_CLIENTS: u32 = 1 << 16;

/// An update, or part of one, on its way to a group.
struct Sending {
    links: Vec<LinkId>,
    cancel: Cancel,
}

/// What a caller waits for.
#[derive(Default)]
struct Board {
    outcome: Option<Result<String, Error>>,
    notes: Notes,
}

/// Everything the tasks of a server share.
pub(crate) struct Shared {
    pub(crate) started: Instant,
    pub(crate) machine: Mutex<proto::Server>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) accumulator: Accumulator,
    /// Held shared from marking a chunk as received until it is folded, and exclusively while the mean is
    /// taken: no chunk of one round can slip into the next.
    pub(crate) folding: RwLock<()>,
    pub(crate) staging: Staging,
    pub(crate) keep: bool,
    mender: Mender,
    /// In which order updates come, if it is not the model's.
    order: Option<Spread>,
    /// The model in that order, for a moment: kept since fresh pages cost more than the copy.
    wire: Mutex<Vec<u8>>,
    model: Arena,
    options: ServerOptions,
    listener: Box<dyn Listener>,
    ordered: bool,
    chunk: u32,
    tolerance: Arc<Tolerance>,
    links: Mutex<HashMap<LinkId, Outbox>>,
    next_link: AtomicU64,
    peers: Peers,
    turned_away: Mutex<TurnedAway<ErrorKind>>,
    sendings: Mutex<Vec<Sending>>,
    wake: Notify,
    board: Mutex<Board>,
    changed: Condvar,
}

/// A server that listens and runs rounds.
pub struct Server {
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
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
        let peers = Peers::default();
        let gate = Gate::new(&options, address.is_local(), peers.clone())?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16))
            .thread_name("thalweg-server")
            .enable_all()
            .build()
            .map_err(|e| Error::new("system", "start runtime", e.to_string()))?;
        let lobby = Lobby::new(Bounds::of_process(descriptors::limit()));
        let listening = Options { lobby: Some(lobby), ..options.transport.clone() };
        let listener = runtime.block_on(transport.listen(&address, &listening))?;
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
            max_samples: MAX_WEIGHT as u64,
            liveness: seconds(options.liveness),
            max_clients: MAX_CLIENTS,
        };
        let shared = Arc::new(Shared {
            started: Instant::now(),
            machine: Mutex::new(proto::Server::new(config, Box::new(gate))),
            accumulator: Accumulator::new(layout.clone(), options.precision.into()),
            folding: RwLock::default(),
            staging: Staging::new(layout.bytes()),
            keep: options.partial == crate::PartialRule::Keep,
            mender: Mender::new(options.repair.stand_in()),
            order: options.repair.order(options.seed),
            wire: Mutex::default(),
            chunk,
            tolerance,
            ordered: transport.capabilities().settles(),
            layout,
            model,
            options,
            listener,
            links: Mutex::default(),
            next_link: AtomicU64::new(1),
            peers,
            turned_away: Mutex::default(),
            sendings: Mutex::default(),
            wake: Notify::new(),
            board: Mutex::default(),
            changed: Condvar::new(),
        });
        if let Some(notice) = shared.listener.notice() {
            shared.note(&notice);
        }
        runtime.spawn(accept(shared.clone()));
        runtime.spawn(drive(shared.clone()));
        Ok(Self { shared, runtime: Some(runtime) })
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> String {
        self.shared.listener.address().to_string()
    }

    /// Names of the clients that are connected.
    pub fn clients(&self) -> Vec<String> {
        lock(&self.shared.machine).connected_clients().map(String::from).collect()
    }

    /// What happened since the last call, in words: clients that came and went, and why.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.shared.board).notes.take()
    }

    /// Waits until `clients` clients are connected, the time is over, or `go_on` says no. Returns how many are.
    pub fn wait(&self, clients: usize, limit: Option<Duration>, mut go_on: impl FnMut() -> bool) -> usize {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let connected = self.clients().len();
            let over = deadline.is_some_and(|at| Instant::now() >= at);
            if connected >= clients || over || !go_on() {
                return connected;
            }
            let left = deadline.map_or(CALLER_PATIENCE, |at| at.saturating_duration_since(Instant::now()));
            self.shared.pause(left.min(CALLER_PATIENCE));
        }
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
        let options = &self.shared.options;
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
        {
            let mut board = lock(&self.shared.board);
            board.outcome = None;
            board.notes.begin_round();
        }
        let now = self.shared.now();
        let started = lock(&self.shared.machine).start_round(now, plan);
        started.map_err(|e| Error::new("round", "start round", e))?;
        self.shared.wake.notify_one();
        loop {
            if let Some(outcome) = self.shared.take_outcome(CALLER_PATIENCE) {
                return outcome;
            }
            if !go_on(&self.shared.progress_json()) {
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
        let machine = lock(&self.shared.machine);
        machine.departed().map(|(name, reason, gone)| (name.into(), reason.into(), gone)).collect()
    }

    /// A client's process has ended for good, as `why` says if it is not empty: rounds no longer wait for it.
    pub fn forget(&self, client: &str, why: &str) {
        let now = self.shared.now();
        lock(&self.shared.machine).forget(now, client, why);
        self.shared.wake.notify_one();
    }

    /// Tells every client that the job is over, and stops.
    pub fn close(&mut self, reason: &str) {
        let Some(runtime) = self.runtime.take() else { return };
        let now = self.shared.now();
        lock(&self.shared.machine).finish(now, reason);
        let outboxes: Vec<Outbox> = lock(&self.shared.links).values().cloned().collect();
        self.shared.wake.notify_one();
        runtime.block_on(async {
            // The driver queues the farewells; every link then closes by itself or within a moment.
            tokio::task::yield_now().await;
            let all = async {
                while !lock(&self.shared.links).is_empty() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            let _ = tokio::time::timeout(FAREWELL_PATIENCE, all).await;
            join_all(outboxes.iter().map(|outbox| outbox.link().close())).await;
        });
        runtime.shutdown_timeout(TASKS_PATIENCE);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close("the server has stopped");
    }
}

impl Shared {
    pub(crate) fn now(&self) -> Time {
        self.started.elapsed()
    }

    fn pause(&self, limit: Duration) {
        let board = lock(&self.board);
        drop(self.changed.wait_timeout(board, limit).unwrap_or_else(PoisonError::into_inner));
    }

    fn take_outcome(&self, limit: Duration) -> Option<Result<String, Error>> {
        let mut board = lock(&self.board);
        if board.outcome.is_none() {
            board = self.changed.wait_timeout(board, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
        board.outcome.take()
    }

    /// One note for all links that share a reason.
    fn note_once(&self, note: &str) {
        self.noted(|notes| notes.add_once(note));
    }

    fn note(&self, note: &str) {
        self.noted(|notes| notes.add(note));
    }

    /// A note on a client, or on a peer that is none yet (an empty name).
    fn note_of(&self, client: &str, note: &str) {
        self.noted(|notes| notes.add_of(client, note));
    }

    fn noted(&self, add: impl FnOnce(&mut Notes)) {
        add(&mut lock(&self.board).notes);
        self.changed.notify_all();
    }

    /// A peer that never became a client.
    fn turn_away(&self, error: &thalweg_transport::Error) {
        let note = lock(&self.turned_away).note(error.kind(), &error.to_string());
        if let Some(note) = note {
            self.note(&note);
        }
    }

    fn progress_json(&self) -> String {
        let parts = lock(&self.machine).progress_report();
        let clients: serde_json::Map<String, Value> = parts
            .into_iter()
            .map(|(name, state, fraction)| (name, json!({ "phase": state, "sent_fraction": fraction })))
            .collect();
        json!({ "clients": clients }).to_string()
    }

    /// After an input: the driver looks for actions.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    fn outbox(&self, link: LinkId) -> Option<Outbox> {
        lock(&self.links).get(&link).cloned()
    }

    fn observe(&self, machine: &mut proto::Server, id: LinkId, link: &Arc<dyn Link>) {
        let counters = link.counters();
        let traffic = Traffic {
            sent: counters.sent,
            received: counters.received,
            copied: counters.copied,
            records_lost: counters.records_lost,
            retransmissions: counters.retransmissions,
        };
        machine.observe(id, traffic);
    }

    /// Tells the machine the time, and before that, if it ends updates now, what their links have carried.
    fn timeout(&self) {
        let now = self.now();
        let mut links: Vec<(LinkId, Arc<dyn Link>)> = Vec::new();
        if lock(&self.machine).ends_updates(now) {
            links.extend(lock(&self.links).iter().map(|(id, outbox)| (*id, outbox.link().clone())));
        }
        let mut machine = lock(&self.machine);
        links.iter().for_each(|(id, link)| self.observe(&mut machine, *id, link));
        machine.timeout(now);
    }

    /// A new link: its reader starts, the session begins.
    fn attach(self: &Arc<Self>, link: Arc<dyn Link>) -> Result<(), Error> {
        let id = self.next_link.fetch_add(1, Ordering::Relaxed);
        let nonce = random()?;
        let handle = tokio::runtime::Handle::current();
        lock(&self.peers).insert(id, link.peer().clone());
        lock(&self.links).insert(id, Outbox::start(&handle, link.clone()));
        link.tolerate(&self.tolerance);
        let ordered = self.ordered && link.capabilities().settles();
        lock(&self.machine).connected(self.now(), id, nonce, ordered);
        self.wake();
        tokio::spawn(read(self.clone(), id, link, ordered));
        Ok(())
    }

    fn detach(&self, id: LinkId, link: &Arc<dyn Link>, reason: &str) {
        let mut machine = lock(&self.machine);
        self.observe(&mut machine, id, link);
        machine.closed(self.now(), id, reason);
        drop(machine);
        lock(&self.links).remove(&id);
        lock(&self.peers).remove(&id);
        self.wake();
        self.changed.notify_all();
    }

    fn perform(self: &Arc<Self>, action: Action) {
        match action {
            Action::Send { link, message } => {
                if let Some(outbox) = self.outbox(link) {
                    outbox.send(&message);
                }
            }
            Action::SendUpdate { links, round, wanted } => self.send_update(links, round, &wanted),
            Action::CancelUpdate { link } => {
                let sendings = lock(&self.sendings);
                sendings.iter().filter(|s| s.links.contains(&link)).for_each(|s| s.cancel.cancel());
            }
            Action::Close { link } => {
                if let Some(outbox) = self.outbox(link) {
                    outbox.close();
                }
            }
            Action::Fold { sender, weight, holes } => self.fold_staged(sender, weight, holes),
            Action::Unstage { sender } => self.staging.free(sender),
            Action::Joined { client } => self.note_of(&client, &format!("{client} joined")),
            Action::Note { client, what } => self.note_of(&client, &format!("{client}: {what}")),
            Action::Left { client, reason } => {
                let reason = reason.strip_prefix("left: ").unwrap_or(&reason);
                self.note_of(&client, &format!("{client} left: {reason}"));
            }
            Action::Ended(outcome) => self.end_round(outcome),
        }
    }

    /// Sends the model, or part of it, to a group in one call. The loan is taken now, before the round can
    /// end; what was queued for each link goes first.
    fn send_update(self: &Arc<Self>, ids: Vec<LinkId>, round: u32, wanted: &Ranges) {
        let members: Vec<(LinkId, Outbox)> =
            ids.iter().filter_map(|&id| self.outbox(id).map(|outbox| (id, outbox))).collect();
        let loan = match self.model.lend(self.model.range()) {
            Ok(loan) => loan,
            Err(busy) => return self.report_unsent(&ids, round, &busy.to_string()),
        };
        let id = UpdateId { job: self.options.job, round, sender: 0, layout: self.layout.hash() };
        let cancel = Cancel::default();
        let update = Outgoing::new(id, loan, wanted, self.chunk, cancel.clone());
        lock(&self.sendings).push(Sending { links: ids, cancel: cancel.clone() });
        let shared = self.clone();
        tokio::spawn(async move {
            shared.send_to_group(members, &update).await;
            cancel.cancel(); // ends the loan
            lock(&shared.sendings).retain(|s| !s.cancel.is_cancelled());
        });
    }

    fn report_unsent(&self, ids: &[LinkId], round: u32, reason: &str) {
        let mut machine = lock(&self.machine);
        for &id in ids {
            machine.sent(self.now(), id, round, Err(reason.into()));
        }
        drop(machine);
        self.wake();
    }

    /// Members whose earlier messages are out are served by one group send; the others each by their own, as
    /// soon as theirs are out.
    async fn send_to_group(self: &Arc<Self>, members: Vec<(LinkId, Outbox)>, update: &Outgoing) {
        let mut ready = Vec::new();
        let mut behind = Vec::new();
        for (id, outbox) in members {
            let flushed = tokio::time::timeout(GROUP_PATIENCE, outbox.flushed()).await.is_ok();
            if flushed { &mut ready } else { &mut behind }.push((id, outbox));
        }
        let late: Vec<_> = behind
            .into_iter()
            .map(|(id, outbox)| {
                let (shared, update) = (self.clone(), update.clone());
                tokio::spawn(async move {
                    outbox.flushed().await;
                    let report = outbox.link().send_update(&update).await;
                    shared.update_sent(id, outbox.link(), update.id().round, report);
                })
            })
            .collect();
        let links: Vec<Arc<dyn Link>> = ready.iter().map(|(_, outbox)| outbox.link().clone()).collect();
        let done = |index: usize, report| {
            let (id, outbox): &(LinkId, Outbox) = &ready[index];
            self.update_sent(*id, outbox.link(), update.id().round, report);
        };
        self.listener.send_group(&links, update, &done).await;
        for task in late {
            let _ = task.await; // a task that panicked has reported nothing; its link's liveness ends it
        }
    }

    fn update_sent(
        &self,
        id: LinkId,
        link: &Arc<dyn Link>,
        round: u32,
        report: thalweg_transport::Result<SendReport>,
    ) {
        let at = |instant: Instant| instant.saturating_duration_since(self.started);
        // Trying again would not help anybody: a model that fits no message never will.
        if let Some(error) = report.as_ref().err().filter(|e| e.kind() == ErrorKind::Unsupported) {
            self.note(&error.to_string());
            lock(&self.machine).finish(self.now(), &error.to_string());
            return self.wake();
        }
        let outcome = report
            .map(|r| Span { start: at(r.started), end: at(r.ended) })
            .map_err(|error| error.to_string());
        let mut machine = lock(&self.machine);
        self.observe(&mut machine, id, link);
        machine.sent(self.now(), id, round, outcome);
        drop(machine);
        self.wake();
    }

    /// Folds a staged update on a thread of its own.
    fn fold_staged(self: &Arc<Self>, sender: u32, weight: f64, holes: Ranges) {
        let shared = self.clone();
        tokio::task::spawn_blocking(move || {
            // Whatever happens, the round hears what came of it.
            let fold = AssertUnwindSafe(|| shared.fold_update(sender, weight, &holes));
            let outcome =
                catch_unwind(fold).unwrap_or_else(|_| Err("the thread that folded panicked".into()));
            let outcome =
                outcome.map_err(|reason| format!("sent an update that cannot be added up: {reason}"));
            shared.staging.free(sender);
            lock(&shared.machine).folded(shared.now(), sender, outcome);
            shared.wake();
        });
    }

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

    /// Takes the mean into the model, on a thread of its own, and posts the outcome.
    fn end_round(self: &Arc<Self>, outcome: Box<Outcome>) {
        let shared = self.clone();
        tokio::task::spawn_blocking(move || {
            let result = shared.finish(&outcome);
            lock(&shared.board).outcome = Some(result);
            shared.changed.notify_all();
        });
    }

    fn finish(&self, outcome: &Outcome) -> Result<String, Error> {
        let _folding = self.folding.write().unwrap_or_else(PoisonError::into_inner);
        let summary = self.end_sums(outcome);
        // Whatever came of them, they are not for the next round.
        self.accumulator.reset();
        let summary = summary?;
        let seconds = self.now().saturating_sub(outcome.span.start).as_secs_f64();
        let fold = json!({ "uncovered_bytes": summary.uncovered_bytes });
        // All its links are made with the same options.
        let congestion =
            lock(&self.links).values().next().and_then(|outbox| outbox.link().counters().congestion);
        let said = outcome_json(outcome, seconds, fold, congestion, self.options.repair.policy, &self.layout);
        Ok(said.to_string())
    }

    /// The mean, in the model. If there is none, or one that is not finite, the model stays as it was.
    fn end_sums(&self, outcome: &Outcome) -> Result<Summary, Error> {
        if let Some(reason) = &outcome.failure {
            return Err(Error::new("round", "run round", reason.clone()));
        }
        let no_mean = |reason: String| {
            let said = format!("round {} gives no model: {reason}", outcome.round);
            Error::new("round", "take the mean", said)
        };
        self.check_means().map_err(no_mean)?;
        let mut model = self.claim_model()?;
        self.put_mean(&mut model).map_err(no_mean)
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

    /// The model, to write to. Senders of the round that is over were cancelled; one that still holds on to
    /// it after a while loses its link.
    fn claim_model(&self) -> Result<thalweg_arena::Claim, Error> {
        if let Ok(claim) = self.model.claim_within(self.model.range(), LOAN_PATIENCE) {
            return Ok(claim);
        }
        let stuck: Vec<Outbox> = {
            let sendings = lock(&self.sendings);
            let ids = sendings.iter().flat_map(|s| s.links.iter());
            ids.filter_map(|&id| self.outbox(id)).collect()
        };
        stuck.iter().for_each(Outbox::close);
        Ok(self.model.claim_within(self.model.range(), LOAN_PATIENCE * 2)?)
    }
}

/// Accepts links as long as there are any to come.
async fn accept(shared: Arc<Shared>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    while let Ok(permit) = handshakes.clone().acquire_owned().await {
        match shared.listener.accept().await {
            Ok(pending) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    welcome(&shared, pending).await;
                    drop(permit);
                });
            }
            Err(error) => return shared.note(&format!("no further client can connect: {error}")),
        }
    }
}

async fn welcome(shared: &Arc<Shared>, pending: Pending) {
    match pending.await {
        Ok(link) => {
            if let Err(error) = shared.attach(link) {
                shared.note(&error.to_string());
            }
        }
        Err(error) => shared.turn_away(&error),
    }
}

/// Reads one link until it ends.
async fn read(shared: Arc<Shared>, id: LinkId, link: Arc<dyn Link>, ordered: bool) {
    let sink = ServerSink::new(shared.clone(), id, ordered);
    let _holding = holding::watch(link.clone(), {
        let shared = shared.clone();
        move |why| {
            lock(&shared.machine).held(shared.now(), id);
            if let Some(why) = why {
                shared.note_once(&format!("the broker takes no messages at the moment: {why}"));
            }
        }
    });
    let mut admitted = false;
    let reason = loop {
        let message = match link.receive(&sink).await {
            Ok(message) => message,
            Err(error) => {
                if !admitted {
                    shared.turn_away(&error);
                }
                break error.to_string();
            }
        };
        let message = match Control::decode(&message) {
            Ok(message) => message,
            Err(error) => break error.to_string(),
        };
        let mut machine = lock(&shared.machine);
        shared.observe(&mut machine, id, &link);
        machine.control(shared.now(), id, message);
        if !admitted && machine.is_member(id) {
            // Before it hears so, since it may send more from then on.
            link.admit();
            admitted = true;
        }
        drop(machine);
        shared.wake();
    };
    link.close().await;
    shared.detach(id, &link, &reason);
}

/// Performs what the machine asks for, in order, and tells it the time.
async fn drive(shared: Arc<Shared>) {
    loop {
        let (actions, timeout) = {
            let mut machine = lock(&shared.machine);
            let actions: Vec<Action> = std::iter::from_fn(|| machine.poll_action()).collect();
            (actions, machine.poll_timeout(shared.now()))
        };
        if actions.is_empty() {
            let idle = timeout.map_or(Duration::from_secs(3600), |at| at.saturating_sub(shared.now()));
            tokio::select! {
                () = shared.wake.notified() => {}
                () = tokio::time::sleep(idle) => shared.timeout(),
            }
        }
        for action in actions {
            shared.perform(action);
        }
        shared.changed.notify_all();
    }
}
