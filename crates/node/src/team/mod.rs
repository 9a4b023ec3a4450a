//! Drives the ledger: one thread for each worker, which starts it, hears it, and starts it again when it dies.

mod counts;
mod line;
mod sums;
mod timeline;

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use thalweg_arena::{Arena, ArenaError};
use thalweg_fold::{Accumulator, Precision};
use thalweg_pool::{Object, Pool};
use thalweg_wire::Layout;

pub use counts::{Counts, Handovers, HANDOVER_BOUNDS};
use line::{answer, message, Line};
pub use timeline::{Doing, Stretch, Timeline};

use crate::clock;
use crate::launch::{Launched, Launcher};
use crate::ledger::{Action, Base, Ledger, Split};
use crate::note::{Kind, NOTE_BYTES};
use crate::setup::Setup;

/// Hears whether an update counts.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// What a team is made of.
pub struct TeamConfig {
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
    pub patience: Duration,
}

/// An update that was given to the team.
struct Job {
    object: Option<Object>,
    done: Option<Done>,
}

struct State {
    ledger: Ledger,
    jobs: HashMap<u32, Job>,
    /// By worker, while it runs.
    running: Vec<Option<Line>>,
    closed: Option<Result<Vec<Base>, String>>,
    is_stopping: bool,
    counts: Counts,
    timeline: Timeline,
    /// An update has come in this round.
    has_begun: bool,
}

struct Shared {
    config: TeamConfig,
    launcher: Box<dyn Launcher>,
    setups: Vec<Setup>,
    /// By worker: two slots for sums.
    sums: Vec<Arena>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A node's workers.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts the workers' threads; processes follow.
    ///
    /// # Errors
    /// If there is no memory for the sums.
    pub fn new(config: TeamConfig, launcher: Box<dyn Launcher>) -> Result<Self, ArenaError> {
        let (setups, sums) = sums::shares(&config)?;
        let count = setups.len();
        let state = State {
            ledger: Ledger::new(count, config.split, config.reserve),
            jobs: HashMap::new(),
            running: std::iter::repeat_with(|| None).take(count).collect(),
            closed: None,
            is_stopping: false,
            counts: Counts::default(),
            timeline: Timeline::since(clock::now()),
            has_begun: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { config, launcher, setups, sums, state, changed });
        let serve = |worker| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.serve(worker))
        };
        Ok(Self { threads: (0..count).map(serve).collect(), shared })
    }

    /// How many workers there are: no more than there are stripes in an update.
    pub fn workers(&self) -> usize {
        self.shared.setups.len()
    }

    /// Has an object added to the sums; `done` hears what came of it, on any thread.
    pub fn fold(&self, object: Object, weight: f64, done: Done) {
        let mut state = self.shared.lock();
        if !std::mem::replace(&mut state.has_begun, true) {
            let used = state.running.iter().flatten().filter(|line| line.has_worked).count();
            state.counts.reused += used as u64;
        }
        let sequence = state.ledger.add(object.name(), weight);
        state.jobs.insert(sequence, Job { object: Some(object), done: Some(done) });
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
        sums::committed(&self.shared.config, &self.shared.setups, &self.shared.sums, &bases)
    }

    /// Forgets the round; the next one may begin. Nobody may use the sums that [`Team::close`] gave any more.
    pub fn begin(&self) {
        let mut state = self.shared.lock();
        state.ledger.begin();
        state.has_begun = false;
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
        let running: u64 = state.running.iter().flatten().map(|line| line.cpu).sum();
        Counts { commits: state.ledger.commits(), cpu: state.counts.cpu + running, ..state.counts.clone() }
    }

    /// What workers did since this was asked last, and the nanoseconds of the clock that it has.
    pub fn timeline(&self) -> (Timeline, u64) {
        let now = clock::now();
        let told = std::mem::replace(&mut self.shared.lock().timeline, Timeline::since(now));
        (told, now)
    }

    /// Bytes of memory for sums, that of all workers.
    pub fn sums_bytes(&self) -> u64 {
        self.shared.sums.iter().map(Arena::len).sum()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_stopping = true;
        state.running.iter().flatten().for_each(Line::hang_up);
        drop(state);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            _ = thread.join();
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

    /// Does what the ledger wants. Those who hear of an update hear it without the lock: they may bring the next one.
    fn act(&self, mut state: MutexGuard<'_, State>) {
        let mut heard: Vec<(Done, Result<(), String>)> = Vec::new();
        while let Some(action) = state.ledger.poll_action() {
            match action {
                Action::Tell { worker, task, order } => {
                    let round = state.ledger.round();
                    if let Some(line) = &mut state.running[worker] {
                        line.tell(worker, round, task, order);
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
        drop(state);
        heard.into_iter().for_each(|(done, outcome)| done(outcome));
    }

    /// Keeps a worker running until the team ends.
    fn serve(&self, worker: usize) {
        loop {
            let mut state = self.lock();
            while !state.is_stopping && !state.ledger.is_wanted(worker) {
                state = self.wait(state);
            }
            if state.is_stopping {
                return;
            }
            let (round, base) = (state.ledger.round(), state.ledger.base(worker).cloned());
            drop(state);
            let began = clock::now();
            match self.start(worker, base) {
                Ok(launched) => self.attend(worker, round, began, launched),
                Err(error) => self.give_up(round, &error),
            }
        }
    }

    /// No worker can be started: there is no mean in this round, and the next one is another try.
    fn give_up(&self, round: u32, error: &io::Error) {
        let mut state = self.lock();
        state.ledger.fail(format!("no worker could be started: {error}"));
        self.act(state);
        let mut state = self.lock();
        while !state.is_stopping && state.ledger.round() == round {
            state = self.wait(state);
        }
    }

    fn start(&self, worker: usize, base: Option<Base>) -> io::Result<Launched> {
        let mut launched = self.launcher.launch()?;
        launched.socket.set_write_timeout(Some(self.tick()))?;
        let mut setup = self.setups[worker].clone();
        setup.base = base.map(|base| (base.slot, base.head.encode()));
        let pool = self.config.pool.descriptor();
        let (Some(pool), Some(sums)) = (pool, self.sums[worker].descriptor()) else {
            return Err(io::Error::other("the memory cannot be shared"));
        };
        // One that dies meanwhile is found dead when it is attended to.
        if setup.send(&launched.socket, [pool, sums]).is_err() {
            launched.process.kill();
        }
        Ok(launched)
    }

    /// How often a worker that owes an answer is looked at.
    fn tick(&self) -> Duration {
        (self.config.patience / 4).max(Duration::from_millis(1))
    }

    /// Hears a worker until it ends.
    fn attend(&self, worker: usize, round: u32, began: u64, launched: Launched) {
        let Launched { socket, process } = launched;
        let hearing = socket.try_clone().and_then(|socket| {
            socket.set_read_timeout(Some(self.tick()))?;
            Ok(socket)
        });
        let line = Line::new(socket, process);
        let mut state = self.lock();
        state.counts.started += 1;
        state.timeline.add(Stretch {
            worker,
            doing: Doing::Start,
            start: began,
            end: clock::now(),
            updates: 0,
        });
        if state.is_stopping {
            line.hang_up();
        }
        state.running[worker] = Some(line);
        state.ledger.started(worker, round);
        self.act(state);
        if let Ok(mut socket) = hearing {
            self.hear(worker, &mut socket);
        }
        let line = self.lock().running[worker].take();
        let cpu = line.as_ref().map_or(0, |line| line.cpu);
        line.into_iter().for_each(Line::end);
        let mut state = self.lock();
        state.counts.cpu += cpu;
        if !state.is_stopping {
            state.counts.died += 1;
            let now = clock::now();
            state.timeline.add(Stretch { worker, doing: Doing::Died, start: now, end: now, updates: 0 });
            state.ledger.died(worker);
        }
        self.act(state);
    }

    /// Returns when the worker says nothing more, says what cannot be, or owes an answer for too long.
    fn hear(&self, worker: usize, socket: &mut UnixStream) {
        let mut heard = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let mut quiet = 0;
        loop {
            match socket.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => {
                    heard.extend(&buffer[..read]);
                    quiet = 0;
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    quiet = if self.lock().ledger.is_awaited(worker) { quiet + 1 } else { 0 };
                    if quiet >= 4 {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
            let mut used = 0;
            while let Some((note, following)) = message(&heard[used..]) {
                let Some(note) = note else { return };
                let mut state = self.lock();
                if answer(&mut state.ledger, worker, &note, following).is_err() {
                    return;
                }
                if let Some(line) = &mut state.running[worker] {
                    let handover = line.note_times(&note, following);
                    let stretch = line.stretch(worker, &note, following);
                    line.flush();
                    state.counts.folded += u64::from(note.kind == Kind::Folded);
                    handover.into_iter().for_each(|nanoseconds| state.counts.handovers.add(nanoseconds));
                    stretch.into_iter().for_each(|stretch| state.timeline.add(stretch));
                }
                used += NOTE_BYTES + following.len();
                self.act(state);
            }
            heard.drain(..used);
        }
    }
}
