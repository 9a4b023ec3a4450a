//! Drives the ledger: one thread for each worker, which starts it, hears it, and starts it again when it dies.

mod counts;
mod gather;
mod line;
mod scaling;
mod serve;
mod sums;
mod timeline;

use std::collections::{BTreeSet, HashMap};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use thalweg_arena::{Arena, ArenaError};
use thalweg_control::autoscaler::Knobs;
use thalweg_fold::{Accumulator, Precision};
use thalweg_shm_pool::{Object, Pool};
use thalweg_wire::Layout;

pub use counts::{Counts, Handovers, HANDOVER_BOUNDS};
use line::Line;
use scaling::Scaler;
pub use scaling::Start;
pub use timeline::{Doing, Stretch, Timeline};

use crate::clock;
use crate::copying::DataPlane;
use crate::launch::Launcher;
use crate::ledger::{Action, Base, Ledger, Order, Split};
use crate::note::NOTE_BYTES;
use crate::routes::{inlet, NodeRoutes, Outlet, Routes};
use crate::setup::Setup;

/// Hears whether an update counts.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// What a worker pool is made of.
pub struct WorkerPoolConfig {
    /// The layout of updates.
    pub layout: Arc<Layout>,
    /// What floats are summed up in.
    pub precision: Precision,
    /// Where updates lie.
    pub pool: Pool,
    /// How many workers there are to be.
    pub workers: usize,
    /// How updates are shared out among them.
    pub split: Split,
    /// Most updates that count already and still lie in the pool; a commit makes room.
    pub reserve: usize,
    /// A worker that owes an answer for so long is replaced.
    pub timeout: Duration,
    /// Takes notes inside the kernel; `None`: all go over the workers' Unix sockets.
    pub routes: Option<NodeRoutes>,
    /// How bytes get between the node and its workers.
    pub plane: DataPlane,
    /// When workers' processes begin.
    pub start: Start,
    /// Decides how many of the workers get updates, if leaves are scaled.
    pub autoscaler: Option<Knobs>,
}

/// An update that was given to the worker pool.
struct Job {
    object: Option<Arc<Object>>,
    done: Option<Done>,
}

struct State {
    ledger: Ledger,
    jobs: HashMap<u32, Job>,
    /// By worker, while it runs.
    running: Vec<Option<Line>>,
    /// Numbers of processes that there are.
    parties: BTreeSet<u16>,
    /// The number that the last one got.
    last_party: u16,
    /// By worker: its process was told to end.
    is_retired: Vec<bool>,
    /// By worker: when its process died, until another one is ready.
    died_at: Vec<Option<u64>>,
    scaler: Option<Scaler>,
    closed: Option<Result<Vec<Option<Base>>, String>>,
    is_stopping: bool,
    counts: Counts,
    timeline: Timeline,
    /// An update has come in this round.
    has_begun: bool,
}

/// Ways of notes inside the kernel.
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
    /// By worker: two slots for sums.
    sums: Vec<Arena>,
    /// By worker: the copy of its sums, where the data plane makes one.
    copies: Vec<Arena>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A node's workers.
pub struct WorkerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl WorkerPool {
    /// Starts the workers' threads; processes follow.
    ///
    /// # Errors
    /// If there is no memory for the sums.
    pub fn new(mut config: WorkerPoolConfig, launcher: Box<dyn Launcher>) -> Result<Self, ArenaError> {
        let (setups, sums) = sums::shares(&config)?;
        let copies = sums::copies(&config, &setups)?;
        let count = setups.len();
        let state = State {
            ledger: Ledger::new(count, config.split, config.reserve),
            jobs: HashMap::new(),
            running: std::iter::repeat_with(|| None).take(count).collect(),
            parties: BTreeSet::new(),
            last_party: 0,
            is_retired: vec![false; count],
            died_at: vec![None; count],
            scaler: config.autoscaler.map(Scaler::new),
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
        if let Some(knobs) = shared.config.autoscaler {
            let shared = shared.clone();
            threads.push(std::thread::spawn(move || shared.tick(knobs)));
        }
        Ok(Self { threads, shared })
    }

    /// Whether notes go inside the kernel.
    pub fn is_routed(&self) -> bool {
        self.shared.paths.is_some()
    }

    /// How many workers there are: no more than there are stripes in an update.
    pub fn workers(&self) -> usize {
        self.shared.setups.len()
    }

    /// Has an object added to the sums; `done` hears what came of it, on any thread.
    pub fn fold(&self, object: Object, weight: f64, done: Done) {
        let mut state = self.shared.lock();
        if !std::mem::replace(&mut state.has_begun, true) {
            // A process that was told to end may not have ended yet.
            let stays = state.running.iter().zip(&state.is_retired).filter(|(_, is_retired)| !**is_retired);
            let used = stays.filter_map(|(line, _)| line.as_ref()).filter(|line| line.has_worked).count();
            state.counts.warm += used as u64;
        }
        let sequence = state.ledger.add(object.name(), weight);
        state.jobs.insert(sequence, Job { object: Some(Arc::new(object)), done: Some(done) });
        state.observe();
        self.shared.act(state);
    }

    /// The sums of the round, where the workers have left them: one for each part of updates. Waits until everything that
    /// was given is in them.
    ///
    /// # Errors
    /// Why there are none.
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
        if shared.config.plane.copies() {
            shared.gather(&bases).map_err(|error| format!("workers could not send their sums: {error}"))?;
            return sums::committed(shared, &shared.copies, &bases);
        }
        sums::committed(shared, &shared.sums, &bases)
    }

    /// Forgets the round; the next one may begin. Nobody may use the sums that [`WorkerPool::close`] gave any more.
    pub fn begin(&self) {
        let mut state = self.shared.lock();
        state.ledger.begin();
        state.has_begun = false;
        state.observe();
        state.end_round(self.shared.config.start);
        self.shared.changed.notify_all();
        self.shared.act(state);
    }

    /// Kills a worker's process, if it runs; another takes its place.
    pub fn kill(&self, worker: usize) {
        if let Some(Some(line)) = self.shared.lock().running.get_mut(worker) {
            line.kill();
        }
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        let state = self.shared.lock();
        let sum = |of: fn(&Line) -> u64| state.running.iter().flatten().map(of).sum::<u64>();
        Counts {
            commits: state.ledger.commits(),
            cpu: state.counts.cpu + sum(|line| line.cpu),
            carrying: state.counts.carrying + sum(Line::carrying),
            kernel: self.shared.paths.as_ref().map(|paths| paths.routes.total()),
            ..state.counts.clone()
        }
    }

    /// What workers did since this was asked last, and the nanoseconds of the clock that it has.
    pub fn timeline(&self) -> (Timeline, u64) {
        let now = clock::now();
        let told = std::mem::replace(&mut self.shared.lock().timeline, Timeline::since(now));
        (told, now)
    }

    /// Bytes of memory for sums, that of all workers.
    pub fn sums_bytes(&self) -> u64 {
        self.shared.sums.iter().chain(&self.shared.copies).map(Arena::len).sum()
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
    /// And the end where notes come out that were not routed.
    fn of(routes: NodeRoutes) -> (Self, TcpStream) {
        let NodeRoutes { routes, outlet, inlet, budget } = routes;
        (Self { routes, outlet: Arc::new(Outlet::new(outlet)), budget }, inlet)
    }
}

impl State {
    /// Keeps what a worker has done.
    fn tell(&mut self, stretch: Stretch) {
        if stretch.doing == Doing::Start {
            self.counts.starts.add(stretch.end.saturating_sub(stretch.start));
            let died = self.died_at[stretch.worker].take();
            died.into_iter().for_each(|died| self.counts.resumes.add(stretch.end.saturating_sub(died)));
        }
        self.timeline.add(stretch);
    }

    /// A number for a process, which none has that may still be about.
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
        // Every change leaves the state whole, so a poisoned one is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a note to its worker that the kernel did not route; one that is gone needs none.
    fn pass(&self, party: u16, note: &[u8; NOTE_BYTES]) {
        let mut state = self.lock();
        let line = state.running.iter_mut().flatten().find(|line| line.party == party);
        line.into_iter().for_each(|line| line.pass(note));
    }

    /// Does what the ledger wants. Those who hear of an update hear it without the lock: they may bring the next one.
    fn act(&self, mut state: MutexGuard<'_, State>) {
        let mut heard: Vec<(Done, Result<(), String>)> = Vec::new();
        while let Some(action) = state.ledger.poll_action() {
            match action {
                Action::Tell { worker, task, order } => {
                    let round = state.ledger.round();
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
                    heard.extend(done.map(|done| (done, outcome)));
                }
                Action::Closed(bases) => {
                    state.closed = Some(bases);
                    self.changed.notify_all();
                }
            }
        }
        state.jobs.retain(|_, job| job.object.is_some() || job.done.is_some());
        if !heard.is_empty() {
            state.observe();
        }
        drop(state);
        if self.config.start == Start::Cold {
            self.changed.notify_all(); // a worker may have got work
        }
        heard.into_iter().for_each(|(done, outcome)| done(outcome));
    }

    /// The object whose bytes go with an order.
    fn shipped(&self, state: &State, order: &Order) -> Option<Arc<Object>> {
        let Order::Fold { sequence, .. } = order else { return None };
        let job = state.jobs.get(sequence).filter(|_| self.config.plane.copies())?;
        job.object.clone()
    }
}
