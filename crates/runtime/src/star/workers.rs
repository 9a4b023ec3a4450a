//! [`Workers`], a reducer whose updates lie in a pool of shared memory and are folded by worker processes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use thalweg_arena::{Arena, Claim};
use thalweg_fold::{Accumulator, Summary, SumsHead};
use thalweg_shm_pool::{Class, Object, Plan, Pool, Slot};
use thalweg_wire::{Layout, Range, Ranges};
use thalweg_workers::{
    Carriage, Count, DataPlane, Doing, Handovers, Launcher, Middle, NodeRoutes, Plans, Program, Split, Start,
    Stretch, Template, Timeline, WorkerPool, WorkerPoolConfig, HANDOVER_BOUNDS,
};

use super::counters::{self, Created, Decisions, Now, Percentiles, Reused, Routed, Started};
use super::reduce::{judge_ranges, Did, Done, Fold, NoMean, Reducer, Worked, Writable};
use super::report::written;
use super::update_filler::UpdateFiller;
use crate::engine::CHUNK_TIMEOUT;
use crate::mean::nothing;
use crate::options::{
    seconds, DataPlaneRule, MiddleRule, RouteRule, ServerOptions, SplitRule, StartRule, WorkerOptions,
};
use crate::{lock, random, Error, Kind};

/// A worker that owes an answer for this long is replaced. Its longest task is one pass over eight updates.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Stages updates in a pool. The sums lie in memory of the worker processes.
pub(crate) struct Workers {
    /// Checks updates on arrival. Nothing is folded into it, so the memory of its sums is never touched.
    judge: Accumulator,
    receiving: RwLock<()>,
    pool: Pool,
    /// For each sender, the slot into which its update is received.
    places: Mutex<HashMap<u32, Slot>>,
    worker_pool: WorkerPool,
    /// The reason why notes go inside the kernel, or why they do not.
    routes_reason: String,
    update_filler: UpdateFiller,
}

impl Workers {
    /// Starts the worker processes for updates of this layout. Their mean becomes the next `model`.
    ///
    /// # Errors
    /// `memory` if there is not enough for the pool and the sums; `unsupported` if the options ask for the
    /// kernel's routes and the kernel has none.
    pub fn new(
        layout: Arc<Layout>,
        model: Arena,
        options: &ServerOptions,
        workers: &WorkerOptions,
    ) -> Result<Self, Error> {
        let memory = |error: String| Error::new(Kind::Memory, "start workers", error);
        let places = options.places(layout.bytes());
        // Use twice as many slots as places: while updates arrive in one half, the updates in the other half
        // are already folded and wait for a commit.
        let class = Class { bytes: layout.bytes(), slots: places.saturating_mul(2) };
        let pool = Pool::new(Plan::new(&[class])).map_err(|e| memory(e.to_string()))?;
        let (routes, routes_reason) = routes(workers.routes)?;
        let config = WorkerPoolConfig {
            layout: layout.clone(),
            precision: options.precision.into(),
            pool: pool.clone(),
            workers: workers.count as usize,
            split: split(workers.split),
            reserve: places as usize,
            timeout: TIMEOUT,
            routes,
            plane: plane(workers),
            start: start(workers.start),
            container_start: seconds(workers.container_start),
            autoscaler: workers.autoscaler,
            plans: workers.plans.clone().map(|config| Plans { config, updates: workers.updates }),
            middle: middle(workers.middle),
        };
        let worker_pool = WorkerPool::new(config, launcher(workers)).map_err(|e| memory(e.to_string()))?;
        Ok(Self {
            judge: Accumulator::new(layout.clone(), options.precision.into()),
            receiving: RwLock::default(),
            pool,
            places: Mutex::default(),
            worker_pool,
            routes_reason,
            update_filler: UpdateFiller::new(layout, model, options),
        })
    }

    /// Seals a sender's update: makes it an object, which nobody changes any more.
    fn seal(&self, update: &Fold) -> Result<Object, String> {
        let Fold { sender, weight, holes } = update;
        let slot = lock(&self.places).remove(sender).ok_or("the pool has no place for it")?;
        let whole = Range::new(0, self.judge.layout().bytes());
        let mut present = Ranges::full(whole.end);
        if self.update_filler.is_due(holes) {
            let mut bytes = slot.claim_within(whole, CHUNK_TIMEOUT).map_err(|e| e.to_string())?;
            present = self.update_filler.fill(*sender, &mut bytes, holes)?;
            judge_ranges(&self.judge, &bytes, &present, *weight).map_err(|e| e.to_string())?;
        }
        let key = random().map_err(|e| e.to_string())?;
        slot.seal(key, &present, CHUNK_TIMEOUT).map_err(|e| e.to_string())
    }
}

impl Reducer for Workers {
    fn receiving(&self) -> RwLockReadGuard<'_, ()> {
        self.receiving.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<(), String> {
        self.judge.check(offset, bytes, weight).map_err(|error| error.to_string())
    }

    fn place(&self, sender: u32, range: Range) -> Option<Claim> {
        let mut places = lock(&self.places);
        if let Some(slot) = places.get(&sender) {
            return slot.claim(range).ok();
        }
        let slot = self.pool.claim(0).ok()?;
        places.entry(sender).or_insert(slot).claim(range).ok()
    }

    fn keep(&self, _range: Range, _bytes: &[u8], _weight: f64) -> Result<(), String> {
        Err("workers fold whole updates".into()) // the options do not allow this
    }

    fn fold(self: Arc<Self>, update: Fold, done: Done) {
        tokio::task::spawn_blocking(move || {
            let _receiving = self.receiving();
            // Call `done` even if sealing panics.
            let sealed = catch_unwind(AssertUnwindSafe(|| self.seal(&update)));
            let sealed = sealed.unwrap_or_else(|_| Err("the thread that sealed it panicked".into()));
            let hub = self.clone();
            let done = move |outcome: Result<(), String>| {
                if outcome.is_err() {
                    hub.update_filler.forget(update.sender);
                }
                done(outcome);
            };
            match sealed {
                Ok(object) => self.worker_pool.fold(object, update.weight, Box::new(done)),
                Err(reason) => done(Err(reason)),
            }
        });
    }

    fn unstage(&self, sender: u32) {
        lock(&self.places).remove(&sender);
    }

    fn unstage_all(&self) {
        let _alone = self.receiving.write().unwrap_or_else(PoisonError::into_inner);
        lock(&self.places).clear();
    }

    fn close(&self, into: Option<Writable<'_>>) -> Result<Summary, NoMean> {
        let _alone = self.receiving.write().unwrap_or_else(PoisonError::into_inner);
        let summary = into.map_or_else(
            || Ok(nothing()),
            |into| {
                let sums = self.worker_pool.close().map_err(NoMean::Sums)?;
                self.update_filler.end(&sums, into)
            },
        );
        // Drop the sums in any case: they must not count in the next round.
        self.worker_pool.begin();
        summary
    }

    fn export(&self, cells: &mut [u8]) -> Result<SumsHead, String> {
        let _alone = self.receiving.write().unwrap_or_else(PoisonError::into_inner);
        let sums = self.worker_pool.close();
        let head = sums
            .and_then(|sums| Accumulator::export_together(&sums, cells).map_err(|error| error.to_string()));
        self.worker_pool.begin();
        head
    }

    fn tree(&self) -> Option<String> {
        let counts = self.worker_pool.counts();
        Some(written(&counters::Workers {
            workers: self.worker_pool.workers(),
            leaves: self.worker_pool.leaves(),
            aggregators_created: counts.started,
            created: Created { leaf: counts.started - counts.middles, middle: counts.middles },
            reused: Reused { middle: counts.reused },
            retired: counts.retired,
            decisions: self.worker_pool.decisions().map(|(count, latest)| Decisions { count, latest }),
            died: counts.died,
            warm: counts.warm,
            commits: counts.commits,
            started: Started { template: counts.forked, program: counts.started - counts.forked },
            start_us: times(&counts.starts),
            resume_us: times(&counts.resumes),
            handover_us: times(&counts.handovers),
            fold_us: times(&counts.folds),
            cpu_seconds: counts.cpu as f64 / 1e9,
            hops_cpu_seconds: counts.carrying as f64 / 1e9,
            pool_bytes: self.pool.bytes(),
            sums_bytes: self.worker_pool.sums_bytes(),
            routes: if self.worker_pool.is_routed() { "kernel" } else { "node" },
            routes_reason: &self.routes_reason,
            notes: counts.kernel.map(notes),
            now: Now {
                folds: counts.folded,
                ready: counts.starts.classes.iter().sum(),
                places: self.pool.plan().slots(),
                free: self.pool.free(0),
                handover_bounds_us: HANDOVER_BOUNDS.map(|bound| bound as f64 / 1e3).to_vec(),
                handover_counts: counts.handovers.classes.to_vec(),
                handover_sum_us: counts.handovers.sum as f64 / 1e3,
            },
        }))
    }

    fn memory(&self) -> Option<(u64, Vec<u64>)> {
        Some(self.worker_pool.memory())
    }

    fn timeline(&self) -> Option<Worked> {
        let (Timeline { stretches, left_out, .. }, now) = self.worker_pool.timeline();
        let before = |at: u64| now.saturating_sub(at) as f64 / 1e9;
        let did = |one: Stretch| Did {
            worker: one.worker + 1,
            what: match one.doing {
                Doing::Start => "start",
                Doing::Fold => "fold",
                Doing::Merge => "merge",
                Doing::Commit => "commit",
                Doing::Died => "died",
            },
            start: before(one.start),
            end: before(one.end),
            updates: one.updates,
        };
        Some(Worked { did: stretches.into_iter().map(did).collect(), left_out })
    }
}

/// The kernel's routes, if they are requested or possible, and the reason for the choice.
fn routes(rule: RouteRule) -> Result<(Option<NodeRoutes>, String), Error> {
    match (rule, (rule != RouteRule::Node).then(NodeRoutes::open)) {
        (RouteRule::Auto, Some(Err(why))) => Ok((None, why)),
        (_, Some(Err(why))) => Err(Error::new(Kind::Unsupported, "route notes inside the kernel", why)
            .hint("take tree.routes = \"node\" (--routes node)")),
        (RouteRule::Auto, Some(Ok(routes))) => Ok((Some(routes), "the kernel can".into())),
        (_, opened) => Ok((opened.and_then(Result::ok), "asked for".into())),
    }
}

/// Checks whether the kernel can route notes here.
///
/// # Errors
/// `unsupported`, with the reason and what to do.
pub fn kernel_routes() -> Result<(), Error> {
    routes(RouteRule::Kernel).map(drop)
}

/// The counts of the kernel program.
fn notes(count: Count) -> Routed {
    Routed { routed: count.direct, passed: count.passed, bytes: count.bytes }
}

fn split(rule: SplitRule) -> Split {
    match rule {
        SplitRule::Ranges => Split::Ranges,
        SplitRule::Clients => Split::Clients,
    }
}

fn middle(rule: MiddleRule) -> Middle {
    match rule {
        MiddleRule::Node => Middle::Node,
        MiddleRule::Reused => Middle::Reused,
        MiddleRule::Own => Middle::Own,
    }
}

fn start(rule: StartRule) -> Start {
    match rule {
        StartRule::Always | StartRule::Template => Start::Always,
        StartRule::Cold => Start::Cold,
    }
}

fn launcher(workers: &WorkerOptions) -> Box<dyn Launcher> {
    let command: Vec<OsString> = workers.command.iter().map(Into::into).collect();
    let program = Program { command, environment: Vec::new() };
    if workers.start != StartRule::Template {
        return Box::new(program);
    }
    let mut template = program.clone();
    template.command.push("template".into());
    Box::new(Template::new(template, program))
}

fn plane(workers: &WorkerOptions) -> DataPlane {
    let carriage = match workers.data_plane {
        DataPlaneRule::Pool => Carriage::Pool,
        DataPlaneRule::Sockets => Carriage::Sockets,
        DataPlaneRule::Broker => Carriage::Broker,
    };
    DataPlane { carriage, side_process: workers.side_process }
}

/// Median and 99th percentile of the latest times, in microseconds.
fn times(all: &Handovers) -> Percentiles {
    let mut last = all.last();
    last.sort_unstable();
    Percentiles { p50: percentile(&last, 50), p99: percentile(&last, 99) }
}

/// The nearest-rank percentile of sorted nanoseconds, in microseconds; `None` for an empty list.
fn percentile(rising: &[u64], percent: usize) -> Option<f64> {
    let rank = (rising.len() * percent).div_ceil(100).max(1);
    rising.get(rank - 1).map(|&nanoseconds| nanoseconds as f64 / 1e3)
}

/// Runs a worker, until its node closes the socket that is this process's standard input.
///
/// # Errors
/// The reason why this process cannot be a worker.
pub fn work() -> Result<(), Error> {
    let socket = input().map_err(|e| Error::new(Kind::System, "start worker", e.to_string()))?;
    thalweg_workers::work(socket).map_err(|reason| Error::new(Kind::System, "work", reason))
}

/// In a template process: waits for the node's request for a worker, on the socket that is this process's
/// standard input. Returns the descriptor of the worker's standard input, which the caller then owns. `None`
/// if the node has closed the socket.
///
/// # Errors
/// `system`, with the system's error.
pub fn asked() -> Result<Option<i32>, Error> {
    let request = input().and_then(|socket| thalweg_workers::next_request(&socket));
    request
        .map(|end| end.map(IntoRawFd::into_raw_fd))
        .map_err(|e| Error::new(Kind::System, "wait for a node's request", e.to_string()))
}

/// In a template process: reports the child that was forked for a request, by its process id. The template
/// has not waited for that child.
///
/// # Errors
/// `system`, with the system's error.
pub fn forked(process: u32) -> Result<(), Error> {
    let sent = input().and_then(|socket| thalweg_workers::forked(&socket, process));
    sent.map_err(|e| Error::new(Kind::System, "tell of a worker", e.to_string()))
}

/// A duplicate of this process's standard input.
fn input() -> io::Result<UnixStream> {
    std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from)
}

/// Forwards messages of at most `most` bytes between the sockets that are this process's standard input and
/// output, until either socket closes. The process is then a broker's queue, or a side process.
///
/// # Errors
/// `system`, with the system's error.
pub fn hop(most: u64) -> Result<(), Error> {
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    let ends = input.and_then(|one| Ok((one, std::io::stdout().as_fd().try_clone_to_owned()?)));
    let passed = ends.and_then(|(one, other)| thalweg_workers::hop(one, other, most));
    passed.map_err(|e| Error::new(Kind::System, "hop", e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(percentile(&[3000], 50), Some(3.0));
        assert_eq!(percentile(&[1000, 2000, 3000, 4000], 50), Some(2.0));
        assert_eq!(percentile(&[1000, 2000, 3000, 4000], 99), Some(4.0));
    }
}
