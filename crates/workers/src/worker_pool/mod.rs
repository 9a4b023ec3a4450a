//! Drives the ledger. One thread for each worker starts the worker's process, reads its messages, and
//! restarts it when it dies.

mod counts;
#[cfg(feature = "baselines")]
mod gather;
mod line;
mod planning;
mod scaling;
mod serve;
mod sums;
mod timeline;

use std::collections::{BTreeSet, HashMap};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thalweg_arena::{Arena, ArenaError};
use thalweg_control::autoscaler::Knobs;
use thalweg_control::Decision;
use thalweg_fold::{Accumulator, Precision};
use thalweg_shm_pool::{Object, Pool};
use thalweg_wire::Layout;

pub use counts::{Counts, Handovers, HANDOVER_BOUNDS};
use line::Line;
pub use planning::Plans;
use planning::{Decided, Planning};
use scaling::Scaler;
pub use scaling::Start;
pub use timeline::{Doing, Stretch, Timeline};

use crate::clock;
use crate::data_plane::DataPlane;
use crate::launch::{memory_of, Launcher};
use crate::ledger::{Action, Base, Ledger, Middle, Order, Split};
use crate::note::NOTE_BYTES;
use crate::routes::{inlet, NodeRoutes, Outlet, Routes};
use crate::setup::Setup;

/// Callback that learns whether an update counts; `Err` says why not.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Configuration of a worker pool.
pub struct WorkerPoolConfig {
    /// The layout of updates.
    pub layout: Arc<Layout>,
    /// The type in which floats are summed.
    pub precision: Precision,
    /// The pool in which updates lie.
    pub pool: Pool,
    /// Number of workers. There are fewer if an update has fewer parts.
    pub workers: usize,
    /// How updates are divided among the workers.
    pub split: Split,
    /// Maximum number of updates that may be done and still lie in the pool. A commit releases them.
    pub reserve: usize,
    /// A worker that owes an answer for this long is replaced.
    pub timeout: Duration,
    /// Sends notes inside the kernel. `None`: all notes go over the workers' Unix sockets.
    pub routes: Option<NodeRoutes>,
    /// How updates and sums get between the node and its workers.
    pub plane: DataPlane,
    /// When the workers' processes start.
    pub start: Start,
    /// How long a worker waits before its process starts, as for a container.
    pub container_start: Duration,
    /// Decides how many leaves get updates. `None`: all leaves get updates.
    pub autoscaler: Option<Knobs>,
    /// Measures the load, and plans how many leaves get updates and have a process. With [`Split::Ranges`] every
    /// plan has all workers. `None`, or with an autoscaler: nothing is measured, and all leaves get updates.
    pub plans: Option<Plans>,
    /// Who adds up the leaves' sums. The node does if the data plane copies, with [`Split::Ranges`], or with
    /// one worker.
    pub middle: Middle,
}

/// An update that the worker pool has not finished. It is finished when its slot is released and `done` was
/// called.
struct Job {
    object: Option<Arc<Object>>,
    done: Option<Done>,
    /// When it arrived; `None` once it is folded.
    arrived: Option<Instant>,
}

struct State {
    ledger: Ledger,
    jobs: HashMap<u32, Job>,
    /// The connection to each worker's process; `None` while there is none.
    running: Vec<Option<Line>>,
    /// Numbers of the processes that may still exist.
    parties: BTreeSet<u16>,
    /// The number that was given out last.
    last_party: u16,
    /// For each worker: whether its process was asked to end.
    is_retired: Vec<bool>,
    /// For each worker: when its last process died, in nanoseconds of the monotonic clock; `None` once a
    /// successor is ready.
    died_at: Vec<Option<u64>>,
    scaler: Option<Scaler>,
    planning: Option<Planning>,
    decided: Decided,
    closed: Option<Result<Vec<Option<Base>>, String>>,
    is_stopping: bool,
    counts: Counts,
    timeline: Timeline,
    /// Whether an update was added in this round.
    has_begun: bool,
}

/// The routes of notes inside the kernel, and the node's own connection to them.
struct Paths {
    routes: Routes,
    outlet: Arc<Outlet>,
    budget: u64,
}

struct Shared {
    config: WorkerPoolConfig,
    paths: Option<Paths>,
    launcher: Box<dyn Launcher>,
    setups: Vec<Setup>,
    /// For each worker: the arena with its two slots for sums.
    sums: Vec<Arena>,
    /// For each worker: an arena for a copy of its sums. Empty if the data plane does not copy.
    copies: Vec<Arena>,
    state: Mutex<State>,
    changed: Condvar,
}

/// The workers of a node.
pub struct WorkerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl WorkerPool {
    /// Starts the workers' threads. The threads start the processes.
    ///
    /// # Errors
    /// An error if the memory for the sums cannot be allocated.
    pub fn new(mut config: WorkerPoolConfig, launcher: Box<dyn Launcher>) -> Result<Self, ArenaError> {
        if config.split == Split::Ranges || config.plane.copies() || config.workers < 2 {
            config.middle = Middle::Node;
        }
        if config.autoscaler.is_some() {
            config.plans = None;
        }
        let (setups, sums) = sums::shares(&config)?;
        let copies = sums::copies(&config, &setups)?;
        let count = setups.len();
        let mut ledger = Ledger::new(count, config.split, config.reserve).with_middle(config.middle);
        let plans = config.plans.as_ref();
        let (planning, first) = plans.map(|plans| Planning::new(plans, ledger.has_middle())).unzip();
        let mut decided = Decided::default();
        first.into_iter().for_each(|first| decided.keep(first));
        if let Some(planning) = &planning {
            ledger.set_active(planning.leaves());
            if config.start == Start::Always {
                ledger.prefer_running();
            }
        }
        let tick = config.autoscaler.map(|knobs| knobs.tick).or(planning.as_ref().map(Planning::every));
        let state = State {
            ledger,
            jobs: HashMap::new(),
            running: std::iter::repeat_with(|| None).take(count).collect(),
            parties: BTreeSet::new(),
            last_party: 0,
            is_retired: vec![false; count],
            died_at: vec![None; count],
            scaler: config.autoscaler.map(Scaler::new),
            planning,
            decided,
            closed: None,
            is_stopping: false,
            counts: Counts::default(),
            timeline: Timeline::since(clock::now()),
            has_begun: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let (paths, unrouted) = config.routes.take().map(Paths::of).unzip();
        let shared = Arc::new(Shared { config, paths, launcher, setups, sums, copies, state, changed });
        let serve = |worker| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.serve(worker))
        };
        let mut threads: Vec<JoinHandle<()>> = (0..count).map(serve).collect();
        let passing = shared.clone();
        let pass = move |socket| inlet(socket, |party, note| passing.pass(party, note));
        threads.extend(unrouted.map(|socket| std::thread::spawn(move || pass(socket))));
        if let Some(tick) = tick {
            let shared = shared.clone();
            threads.push(std::thread::spawn(move || shared.tick(tick)));
        }
        Ok(Self { threads, shared })
    }

    /// Whether notes go inside the kernel.
    pub fn is_routed(&self) -> bool {
        self.shared.paths.is_some()
    }

    /// Number of workers: at most the number of parts of an update.
    pub fn workers(&self) -> usize {
        self.shared.setups.len()
    }

    /// Adds an object to the sums. `done` is called with the outcome, on any thread.
    pub fn fold(&self, object: Object, weight: f64, done: Done) {
        let mut state = self.shared.lock();
        if !std::mem::replace(&mut state.has_begun, true) {
            // A process that was asked to end may still run; it does not count as warm.
            let stays = state.running.iter().zip(&state.is_retired).filter(|(_, is_retired)| !**is_retired);
            let used = stays.filter_map(|(line, _)| line.as_ref()).filter(|line| line.has_worked).count();
            state.counts.warm += used as u64;
        }
        let sequence = state.ledger.add(object.name(), weight);
        let job = Job { object: Some(Arc::new(object)), done: Some(done), arrived: Some(Instant::now()) };
        state.jobs.insert(sequence, job);
        state.planning.iter_mut().for_each(Planning::arrived);
        state.observe();
        self.shared.act(state);
    }

    /// Ends the round and returns its sums: one accumulator for each part of an update. Waits until they
    /// contain all updates.
    ///
    /// # Errors
    /// The reason why there are no sums.
    pub fn close(&self) -> Result<Vec<Accumulator>, String> {
        let mut state = self.shared.lock();
        state.closed = None;
        state.ledger.close();
        self.shared.act(state);
        let mut state = self.shared.lock();
        let bases = loop {
            match state.closed.take() {
                Some(bases) => break bases?,
                None => state = self.shared.wait(state),
            }
        };
        drop(state);
        let shared = &*self.shared;
        #[cfg(feature = "baselines")]
        if shared.config.plane.copies() {
            shared.gather(&bases).map_err(|error| format!("workers could not send their sums: {error}"))?;
            return sums::committed(shared, &shared.copies, &bases);
        }
        sums::committed(shared, &shared.sums, &bases)
    }

    /// Begins the next round and drops the updates of this one. The sums that [`WorkerPool::close`] returned
    /// must not be used any more.
    pub fn begin(&self) {
        let mut state = self.shared.lock();
        state.ledger.begin();
        state.has_begun = false;
        state.observe();
        state.planning.iter_mut().for_each(Planning::ended);
        state.end_round(self.shared.config.start);
        state.retire_unplanned(self.shared.config.middle);
        self.shared.changed.notify_all();
        self.shared.act(state);
    }

    /// Kills a worker's process, if it runs. Another one takes its place.
    pub fn kill(&self, worker: usize) {
        if let Some(Some(line)) = self.shared.lock().running.get_mut(worker) {
            line.kill();
        }
    }

    /// Statistics since the worker pool began.
    pub fn counts(&self) -> Counts {
        let state = self.shared.lock();
        let sum = |of: fn(&Line) -> u64| state.running.iter().flatten().map(of).sum::<u64>();
        Counts {
            commits: state.ledger.commits(),
            reused: state.ledger.reused(),
            cpu: state.counts.cpu + sum(|line| line.cpu),
            carrying: state.counts.carrying + sum(Line::carrying),
            kernel: self.shared.paths.as_ref().map(|paths| paths.routes.total()),
            ..state.counts.clone()
        }
    }

    /// Makes the next plan now. The plans at regular times go on. Nothing happens if nothing is planned, or if
    /// nothing was measured since the last plan.
    pub fn plan(&self) {
        self.shared.plan(&mut self.shared.lock());
    }

    /// Number of plans so far, or of changes by an autoscaler, and the latest of them, oldest first; `None` if the
    /// load is not measured.
    pub fn decisions(&self) -> Option<(u64, Vec<Decision>)> {
        let state = self.shared.lock();
        let is_fixed = state.planning.is_none() && state.scaler.is_none();
        (!is_fixed).then(|| (state.decided.count(), state.decided.latest()))
    }

    /// Number of leaves that get updates, which a plan or an autoscaler may change.
    pub fn leaves(&self) -> usize {
        self.shared.lock().ledger.active()
    }

    /// Memory in bytes of the node's own process and of each worker that runs, each with its share of what they
    /// share (PSS). 0 where the system does not say.
    pub fn memory(&self) -> (u64, Vec<u64>) {
        // Reading takes a while: the kernel looks at each page. So the lock is not held for all workers at once.
        let worker = |worker: usize| self.shared.lock().running[worker].as_ref().map(Line::memory);
        (memory_of("self"), (0..self.workers()).filter_map(worker).collect())
    }

    /// The workers' stretches since the last call, and the current time in nanoseconds of the monotonic
    /// clock.
    pub fn timeline(&self) -> (Timeline, u64) {
        let now = clock::now();
        let timeline = std::mem::replace(&mut self.shared.lock().timeline, Timeline::since(now));
        (timeline, now)
    }

    /// Bytes of memory for the sums of all workers, copies included.
    pub fn sums_bytes(&self) -> u64 {
        let own = self.shared.setups.iter().map(|setup| setup.sums_bytes);
        own.chain(self.shared.copies.iter().map(Arena::len)).sum()
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_stopping = true;
        state.running.iter().flatten().for_each(Line::hang_up);
        drop(state);
        self.shared.paths.iter().for_each(|paths| paths.outlet.close());
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            _ = thread.join();
        }
    }
}

impl Paths {
    /// Returns the routes, and the inlet: the socket that delivers notes the kernel did not route.
    fn of(routes: NodeRoutes) -> (Self, TcpStream) {
        let NodeRoutes { routes, outlet, inlet, budget } = routes;
        (Self { routes, outlet: Arc::new(Outlet::new(outlet)), budget }, inlet)
    }
}

impl State {
    /// Records that a worker has folded an update of this round.
    fn folded(&mut self, sequence: u32) {
        self.counts.folded += 1;
        let arrived = self.jobs.get_mut(&sequence).and_then(|job| job.arrived.take());
        if let (Some(planning), Some(arrived)) = (&mut self.planning, arrived) {
            planning.folded(arrived);
        }
    }

    /// Adds a stretch to the timeline. A start also counts in the start times and the recovery times.
    fn tell(&mut self, stretch: Stretch) {
        if stretch.doing == Doing::Start {
            self.counts.starts.add(stretch.end.saturating_sub(stretch.start));
            let died = self.died_at[stretch.worker].take();
            died.into_iter().for_each(|died| self.counts.resumes.add(stretch.end.saturating_sub(died)));
        }
        self.timeline.add(stretch);
    }

    /// Reserves the number of a process. No other process that may still exist has this number. It is never
    /// 0, which is the node's number.
    fn number(&mut self) -> u16 {
        loop {
            self.last_party = self.last_party.wrapping_add(1);
            if self.last_party != 0 && self.parties.insert(self.last_party) {
                return self.last_party;
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change leaves the state consistent, so a poisoned state can be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a note that the kernel did not route over the worker's Unix socket. A worker that is gone needs
    /// no note.
    fn pass(&self, party: u16, note: &[u8; NOTE_BYTES]) {
        let mut state = self.lock();
        let line = state.running.iter_mut().flatten().find(|line| line.party == party);
        line.into_iter().for_each(|line| line.pass(note));
    }

    /// Carries out the ledger's actions. Calls the `done` callbacks after it has released the lock: they may
    /// add an update.
    fn act(&self, mut state: MutexGuard<'_, State>) {
        let mut finished: Vec<(Done, Result<(), String>)> = Vec::new();
        while let Some(action) = state.ledger.poll_action() {
            match action {
                Action::Tell { worker, task, order } => {
                    let round = state.ledger.round();
                    if let Order::Merge { from } = order {
                        let base = state.ledger.base(from).cloned();
                        if let (Some(base), Some(line)) = (base, &mut state.running[worker]) {
                            line.merge(round, task, from, &base);
                        }
                        continue;
                    }
                    let object = self.shipped(&state, &order);
                    if let Some(line) = &mut state.running[worker] {
                        line.tell(round, task, order);
                        object.into_iter().for_each(|object| line.ship(object));
                    }
                }
                Action::Release { sequence } => {
                    state.jobs.entry(sequence).and_modify(|job| job.object = None);
                }
                Action::Done { sequence, outcome } => {
                    let done = state.jobs.get_mut(&sequence).and_then(|job| job.done.take());
                    finished.extend(done.map(|done| (done, outcome)));
                }
                Action::Closed(bases) => {
                    state.closed = Some(bases);
                    self.changed.notify_all();
                }
            }
        }
        state.jobs.retain(|_, job| job.object.is_some() || job.done.is_some());
        if !finished.is_empty() {
            state.observe();
        }
        let starts_for_work = self.config.start == Start::Cold || state.planning.is_some();
        drop(state);
        if starts_for_work {
            self.changed.notify_all(); // a worker without a process may have got work
        }
        finished.into_iter().for_each(|(done, outcome)| done(outcome));
    }

    /// The object to copy with an order; `None` if the data plane does not copy or the order is no fold.
    fn shipped(&self, state: &State, order: &Order) -> Option<Arc<Object>> {
        let Order::Fold { sequence, .. } = order else { return None };
        let job = state.jobs.get(sequence).filter(|_| self.config.plane.copies())?;
        job.object.clone()
    }
}
