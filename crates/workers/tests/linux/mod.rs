//! Tests of the worker pool with processes that are killed: workers, templates, hops and nodes. The mean must
//! be that of a single accumulator.

pub mod template;
pub mod worker;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use thalweg_control::Config;
use thalweg_fold::{Accumulator, Precision, Replacement};
use thalweg_rng::Rng;
use thalweg_shm_pool::{Class, Object, Plan, Pool};
use thalweg_wire::{Dtype, Layout, Ranges};
use thalweg_workers::{
    Carriage, DataPlane, Doing, Launched, Launcher, Middle, NodeRoutes, Plans, Process, Program, Split,
    Start, Template, WorkerPool, WorkerPoolConfig,
};

pub const WORKER: &str = "THALWEG_NODE_WORKER";
pub const TEMPLATE: &str = "THALWEG_NODE_TEMPLATE";
/// Variable that names a file. Each template appends a byte to it when it starts.
pub const STARTED: &str = "THALWEG_NODE_STARTED";
pub const HOP: &str = "THALWEG_NODE_HOP";
pub const NODE: &str = "THALWEG_NODE";
/// Variable with the total number of workers to kill, at seeded points.
const KILLS: &str = "THALWEG_KILLS";
const STAGING: usize = 3;
/// Longer than any worker needs, so that no working one is replaced.
const TIMEOUT: Duration = Duration::from_secs(60);

fn below(rng: &mut Rng, limit: u64) -> u64 {
    rng.draw() % limit
}

fn layout() -> Arc<Layout> {
    let tensors =
        [("h", Dtype::BF16, vec![777]), ("w", Dtype::F32, vec![90_000]), ("n", Dtype::I64, vec![2])];
    Arc::new(Layout::pack(tensors).unwrap())
}

/// Launches this program as workers. Each process gets the next fault of a list, or none once the list is
/// empty.
struct Faulty {
    faults: Mutex<VecDeque<String>>,
    launcher: Box<dyn Launcher>,
    /// The file to which each template appends a byte.
    _started: Option<TempPath>,
}

impl Faulty {
    /// With `templates`, workers are forked by templates that fail according to this seed.
    fn new(faults: &[String], templates: Option<u64>) -> Self {
        let faults = Mutex::new(faults.iter().cloned().collect());
        let Some(seed) = templates else {
            return Self { faults, launcher: Box::new(program(Vec::new())), _started: None };
        };
        let started = TempPath::new(seed);
        let environment =
            vec![(TEMPLATE.into(), seed.to_string().into()), (STARTED.into(), started.0.clone().into())];
        let template = Template::new(program(environment), program(Vec::new()));
        let launcher = Box::new(template.with_timeout(Duration::from_secs(1)));
        Self { faults, launcher, _started: Some(started) }
    }
}

fn program(mut environment: Vec<(OsString, OsString)>) -> Program {
    environment.push((WORKER.into(), "1".into()));
    Program { command: vec![std::env::current_exe().unwrap().into()], environment }
}

impl Launcher for Faulty {
    fn launch(&self) -> io::Result<Launched> {
        let launched = self.launcher.launch()?;
        let fault = self.faults.lock().unwrap().pop_front().unwrap_or_else(|| "none".into());
        // The fault is the first line that a worker reads.
        _ = (&launched.socket).write_all(format!("{fault}\n").as_bytes());
        Ok(launched)
    }

    fn hop(&self, one: OwnedFd, other: OwnedFd, most: u64) -> io::Result<Box<dyn Process>> {
        let environment = vec![(HOP.into(), "1".into())];
        Program { command: vec![std::env::current_exe()?.into()], environment }.hop(one, other, most)
    }
}

/// A file that is empty at first and removed on drop.
struct TempPath(PathBuf);

impl TempPath {
    fn new(seed: u64) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{seed}", std::process::id()));
        std::fs::write(&path, []).unwrap();
        Self(path)
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

type FoldOutcome = (u64, Result<(), String>);

/// A worker pool, and a single accumulator that is given the same updates.
struct Bench {
    pool: Pool,
    worker_pool: WorkerPool,
    single: Accumulator,
    under_way: usize,
    outcomes: (Sender<FoldOutcome>, Receiver<FoldOutcome>),
    rng: Rng,
}

struct Case {
    precision: Precision,
    split: Split,
    workers: usize,
    reserve: usize,
    timeout: Duration,
    /// Whether notes go inside the kernel.
    routes: bool,
    /// Maximum number of notes that go inside the kernel to and from each process.
    budget: u64,
    plane: DataPlane,
    start: Start,
    middle: Middle,
    container_start: Duration,
    /// Plans leaves for this many updates at first, and then for what is there, without smoothing.
    planned: Option<u32>,
    /// `Some`: templates fork the workers. `Some(true)`: the templates die at random.
    templates: Option<bool>,
    seed: u64,
}

const CASE: Case = Case {
    precision: Precision::Exact,
    split: Split::Ranges,
    workers: 2,
    reserve: 1,
    timeout: TIMEOUT,
    routes: false,
    budget: u64::MAX,
    plane: DataPlane { carriage: Carriage::Pool, side_process: false },
    start: Start::Always,
    middle: Middle::Node,
    container_start: Duration::ZERO,
    planned: None,
    templates: None,
    seed: 1,
};

impl Bench {
    fn new(case: Case, faults: &[String]) -> Self {
        // Templates with seed 0 do not die.
        let templates = case.templates.map(|die| if die { case.seed + 1 } else { 0 });
        Self::with(case, Box::new(Faulty::new(faults, templates)))
    }

    fn with(case: Case, launcher: Box<dyn Launcher>) -> Self {
        let Case {
            precision,
            split,
            workers,
            reserve,
            timeout,
            routes,
            budget,
            plane,
            start,
            middle,
            seed,
            ..
        } = case;
        let plans = case.planned.map(|updates| Plans {
            config: Config {
                split: match split {
                    Split::Clients => thalweg_control::Split::Clients,
                    Split::Ranges => thalweg_control::Split::Ranges,
                },
                workers: workers as u32,
                inputs: 1,
                history: 0,
                steady: 1,
                ..Config::default()
            },
            updates,
        });
        let class = Class { bytes: layout().bytes(), slots: (STAGING + reserve) as u32 };
        let pool = Pool::new(Plan::new(&[class])).unwrap();
        let routes = routes.then(|| NodeRoutes::open().unwrap().with_budget(budget));
        let config = WorkerPoolConfig {
            layout: layout(),
            precision,
            pool: pool.clone(),
            workers,
            split,
            reserve,
            timeout,
            routes,
            plane,
            start,
            container_start: case.container_start,
            autoscaler: None,
            plans,
            middle,
        };
        let worker_pool = WorkerPool::new(config, launcher).unwrap();
        let single = Accumulator::new(layout(), precision);
        Self { pool, worker_pool, single, under_way: 0, outcomes: channel(), rng: Rng::new(&[seed]) }
    }

    /// An update of small floats. Exact sums refuse it if it `is_bad`.
    fn update(&mut self, is_bad: bool) -> Vec<u8> {
        let mut bytes = vec![0; layout().bytes() as usize];
        for (at, byte) in bytes.iter_mut().enumerate() {
            // The high bytes are 0x3f, which makes small floats in both types.
            *byte = if at % 2 == 1 { 0x3f } else { self.rng.draw() as u8 };
        }
        if is_bad {
            let at = layout().tensors()[1].range().end as usize;
            bytes[at - 4..at].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        bytes
    }

    fn object(&mut self, bytes: &[u8], received: &Ranges) -> Object {
        // The thread that copies an update releases it after the worker has it, perhaps even after the
        // worker's answer.
        let slot = loop {
            match self.pool.claim(0) {
                Ok(slot) => break slot,
                Err(_) => std::thread::yield_now(),
            }
        };
        slot.claim(layout_range()).unwrap().copy_from_slice(bytes);
        let key = [self.rng.draw().to_le_bytes(), self.rng.draw().to_le_bytes()].concat();
        slot.seal(key.try_into().unwrap(), received, Duration::ZERO).unwrap()
    }

    /// Gives the worker pool an update, whose last part may be missing. If staging is full, first waits until
    /// another update counts.
    fn give(&mut self, number: u64, is_bad: bool) {
        while self.under_way == STAGING {
            drop(self.hear());
        }
        let bytes = self.update(is_bad);
        let mut received = Ranges::full(bytes.len() as u64);
        if number % 4 == 3 && !is_bad {
            received = std::iter::once(thalweg_wire::Range::new(0, 200_000)).collect();
        }
        let weight = 0.5 + number as f64;
        let object = self.object(&bytes, &received);
        if !is_bad {
            self.single.fold_ranges(&bytes, &received, weight).unwrap();
        }
        let sender = self.outcomes.0.clone();
        self.under_way += 1;
        self.worker_pool.fold(
            object,
            weight,
            Box::new(move |outcome| sender.send((number, outcome)).unwrap()),
        );
    }

    /// Waits until the worker pool has started this many processes.
    fn wait_for_starts(&self, started: u64) {
        let end = Instant::now() + TIMEOUT;
        while self.worker_pool.counts().started < started {
            assert!(Instant::now() < end, "{started} processes never start: {:?}", self.worker_pool.counts());
            std::thread::yield_now();
        }
    }

    fn hear(&mut self) -> FoldOutcome {
        let outcome = self.outcomes.1.recv().unwrap();
        self.under_way -= 1;
        outcome
    }

    fn hear_all(&mut self) -> Vec<FoldOutcome> {
        (0..self.under_way).map(|_| self.hear()).collect()
    }

    /// Asserts that the mean of the workers' sums equals that of the single accumulator.
    fn check(&mut self, what: &str) {
        let mut mean = vec![0; layout().bytes() as usize];
        for sums in self.worker_pool.close().unwrap() {
            let part = sums.part();
            let out = &mut mean[part.start as usize..part.end as usize];
            sums.finish_part(part.start, out, Replacement::Zero).unwrap();
        }
        self.worker_pool.begin();
        let mut expected = vec![0; mean.len()];
        self.single.finish_and_reset(&mut expected, Replacement::Zero).unwrap();
        assert!(mean == expected, "{what}: the mean is another one");
        assert_eq!(self.pool.free(0), self.pool.plan().slots() as usize, "{what}: a slot is still in use");
    }
}

fn layout_range() -> thalweg_wire::Range {
    thalweg_wire::Range::new(0, layout().bytes())
}

fn workers_give_the_bits_of_one_accumulator(routes: bool) {
    for (precision, split, workers) in [
        (Precision::F32, Split::Ranges, 1),
        (Precision::F32, Split::Ranges, 3),
        (Precision::F64, Split::Ranges, 2),
        (Precision::Exact, Split::Ranges, 2),
        (Precision::Exact, Split::Clients, 3),
    ] {
        let mut bench = Bench::new(Case { precision, split, workers, routes, ..CASE }, &[]);
        for round in 0..3 {
            (0..7).for_each(|number| bench.give(number, false));
            assert!(bench.hear_all().iter().all(|(_, outcome)| outcome.is_ok()));
            bench.check(&format!("{precision:?} {split:?} {workers} round {round}"));
        }
        let counts = bench.worker_pool.counts();
        assert_eq!((counts.started, counts.died), (workers as u64, 0), "processes serve all rounds");
        assert_eq!(counts.warm, 2 * workers as u64);
        assert!(counts.cpu > 0 && !counts.handovers.last().is_empty());
        let (node, each) = bench.worker_pool.memory();
        assert!(node > 0 && each.len() == workers && each.iter().all(|&bytes| bytes > 0));
        let notes = counts.kernel.map(|kernel| (kernel.direct > 40, kernel.passed));
        assert_eq!(notes, routes.then_some((true, 0)), "all notes go inside the kernel, or none");
    }
}

/// Notes beyond the budget go through the node, and keep their order.
fn notes_beyond_the_budget_are_not_lost(routes: bool) {
    for budget in 0..5 {
        let mut bench = Bench::new(Case { routes, budget, ..CASE }, &[]);
        (0..7).for_each(|number| bench.give(number, false));
        bench.check("a budget");
        let Some(kernel) = bench.worker_pool.counts().kernel else { return };
        assert_eq!(kernel.direct, 2 * budget * CASE.workers as u64);
        assert!(kernel.passed > 0);
        assert_eq!(bench.worker_pool.counts().died, 0);
    }
}

#[cfg(feature = "baselines")]
fn every_data_plane_gives_the_same_bits(routes: bool) {
    for (carriage, side_process) in [
        (Carriage::Pool, true),
        (Carriage::Sockets, false),
        (Carriage::Broker, false),
        (Carriage::Broker, true),
    ] {
        for (split, workers) in [(Split::Clients, 2), (Split::Ranges, 2)] {
            let plane = DataPlane { carriage, side_process };
            let mut bench = Bench::new(Case { split, workers, plane, routes, ..CASE }, &[]);
            for round in 0..2 {
                (0..5).for_each(|number| bench.give(number, number == 3));
                bench.hear_all();
                bench.check(&format!("{plane:?} {split:?} round {round}"));
            }
            let counts = bench.worker_pool.counts();
            assert_eq!((counts.started, counts.died), (workers as u64, 0));
            assert_eq!(counts.carrying > 0, plane.hops() > 0, "{plane:?}");
        }
    }
}

/// A round with a data plane that the build lacks fails, and says why.
#[cfg(not(feature = "baselines"))]
fn copies_need_baselines(routes: bool) {
    for (carriage, side_process) in
        [(Carriage::Sockets, false), (Carriage::Broker, false), (Carriage::Pool, true)]
    {
        let plane = DataPlane { carriage, side_process };
        let mut bench = Bench::new(Case { plane, routes, ..CASE }, &[]);
        bench.give(0, false);
        let (_, outcome) = bench.hear();
        let why = outcome.unwrap_err();
        assert!(why.contains("no baselines"), "{why}");
        assert!(bench.worker_pool.close().is_err());
    }
}

fn workers_start_with_their_first_work_and_end_with_the_round(routes: bool) {
    for split in [Split::Clients, Split::Ranges] {
        let mut bench = Bench::new(Case { split, workers: 3, start: Start::Cold, routes, ..CASE }, &[]);
        bench.check("nothing");
        let first = bench.worker_pool.counts().started;
        for round in 0..2 {
            // Each of two leaves gets one update.
            (0..2).for_each(|number| bench.give(number, false));
            bench.check(&format!("{split:?} round {round}"));
            bench.hear_all();
        }
        let counts = bench.worker_pool.counts();
        let started = if split == Split::Clients { (1, 5) } else { (3, 9) };
        assert_eq!((first, counts.started), started, "{split:?}");
        assert_eq!((counts.died, counts.warm), (0, 0), "{split:?}");
    }
}

#[cfg(feature = "baselines")]
/// Workers are also killed while they receive updates and send sums.
fn killed_workers_change_no_bit_whatever_copies_their_bytes(routes: bool) {
    let mut killed = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(&[seed, 61]);
        let carriage = [Carriage::Sockets, Carriage::Broker][below(&mut rng, 2) as usize];
        let plane = DataPlane { carriage, side_process: rng.hits(0.3) };
        let split = [Split::Clients, Split::Ranges][below(&mut rng, 2) as usize];
        let faults: Vec<String> = (0..3).map(|_| format!("die {}", rng.up_to(20))).collect();
        let mut bench = Bench::new(Case { split, plane, seed, routes, ..CASE }, &faults);
        for round in 0..2 {
            for number in 0..6 {
                bench.give(number, rng.hits(0.1));
                if rng.hits(0.15) {
                    bench.worker_pool.kill(below(&mut rng, 2) as usize);
                }
            }
            bench.check(&format!("{plane:?}, seed {seed}, round {round}"));
            bench.hear_all();
        }
        killed += bench.worker_pool.counts().died;
    }
    assert!(killed > 12, "only {killed} workers died");
}

/// A round without updates still yields sums.
fn an_empty_round_ends(routes: bool) {
    let mut bench = Bench::new(Case { routes, ..CASE }, &[]);
    bench.check("nothing");
    bench.give(1, false);
    bench.check("something");
}

/// Kills a worker at a step of its work, at a random moment, or after the node has given an update.
fn killed_workers_change_no_bit(routes: bool) {
    let wanted = std::env::var(KILLS).map_or(60, |kills| kills.parse().expect("a number of kills"));
    let (mut killed, mut started, mut forked, mut seed) = (0, 0, 0, u64::from(routes) << 32);
    while killed < wanted {
        let mut rng = Rng::new(&[seed, 25]);
        let workers = rng.up_to(3) as usize;
        let exact = rng.hits(0.5);
        let (precision, split) = match (exact, rng.hits(0.5)) {
            (true, true) => (Precision::Exact, Split::Clients),
            (true, false) => (Precision::Exact, Split::Ranges),
            (false, _) => (Precision::F32, Split::Ranges),
        };
        let reserve = below(&mut rng, 3) as usize;
        let faults: Vec<String> = (0..below(&mut rng, 6)).map(|_| death(&mut rng)).collect();
        let budget = if rng.hits(0.5) { u64::MAX } else { below(&mut rng, 10) };
        let templates = [None, Some(false), Some(true)][below(&mut rng, 3) as usize];
        let middle = [Middle::Node, Middle::Reused, Middle::Own][below(&mut rng, 3) as usize];
        let case =
            Case { precision, split, workers, reserve, routes, budget, templates, middle, seed, ..CASE };
        let mut bench = Bench::new(case, &faults);
        for round in 0..2 {
            for number in 0..below(&mut rng, 10) {
                bench.give(number, exact && rng.hits(0.1));
                if rng.hits(0.15) {
                    bench.worker_pool.kill(below(&mut rng, workers as u64) as usize);
                }
            }
            if rng.hits(0.5) {
                bench.hear_all();
            }
            bench.check(&format!("seed {seed}, round {round}"));
            bench.hear_all();
        }
        let counts = bench.worker_pool.counts();
        killed += counts.died;
        started += counts.started;
        forked += counts.forked;
        seed += 1;
    }
    println!("  {killed} of {started} workers died, {forked} were forked");
}

/// A leaf takes over the work of the middle and goes on as a leaf; without reuse a process of its own has it.
fn a_middle_adds_up_the_sums_of_the_leaves(routes: bool) {
    for (middle, started, middles, reused) in [(Middle::Reused, 3, 0, 3), (Middle::Own, 4, 1, 0)] {
        let case = Case { split: Split::Clients, workers: 3, middle, routes, ..CASE };
        let mut bench = Bench::new(case, &[]);
        for round in 0..3 {
            (0..7).for_each(|number| bench.give(number, number == 5));
            bench.check(&format!("{middle:?} round {round}"));
            bench.hear_all();
        }
        let counts = bench.worker_pool.counts();
        assert_eq!((counts.started, counts.middles, counts.reused), (started, middles, reused), "{middle:?}");
        assert_eq!((counts.died, counts.retired), (0, 0));
        let (timeline, _) = bench.worker_pool.timeline();
        let merged = timeline.stretches.iter().filter(|stretch| stretch.doing == Doing::Merge);
        let sums: u64 = merged.map(|stretch| stretch.updates).sum();
        assert_eq!(sums, 3 * if middle == Middle::Own { 3 } else { 2 }, "{middle:?}: sums that were added");
    }
    // With one leaf there is nothing to add up.
    let mut bench =
        Bench::new(Case { split: Split::Clients, workers: 1, middle: Middle::Own, routes, ..CASE }, &[]);
    (0..3).for_each(|number| bench.give(number, false));
    bench.check("one leaf");
    assert_eq!(bench.worker_pool.counts().started, 1);
}

/// A node whose workers fold ranges plans nothing, and measures its load.
fn a_node_with_ranges_measures_its_load(routes: bool) {
    let mut bench = Bench::new(Case { planned: Some(3), routes, ..CASE }, &[]);
    (0..3).for_each(|number| bench.give(number, false));
    bench.check("ranges");
    bench.worker_pool.plan();
    let (count, decisions) = bench.worker_pool.decisions().unwrap();
    assert_eq!(count, 2);
    assert!(decisions.iter().all(|decision| decision.leaves == 2 && !decision.middle));
    assert!(decisions[1].rate > 0.0 && decisions[1].seconds > 0.0 && decisions[1].queue > 0.0);
    assert_eq!(bench.worker_pool.counts().retired, 0);
}

/// Leaves start and end while updates arrive, and workers are killed meanwhile.
fn plans_change_under_traffic_and_no_bit_does(routes: bool) {
    let (mut killed, mut retired, mut changes, mut seed) = (0, 0, 0, 0);
    // What plans measure depends on the machine's speed, so there are as many runs as it takes.
    while seed < 20 || changes <= 40 || retired <= 5 || killed <= 5 {
        assert!(seed < 200, "too little happens: {changes} changes, {retired} retired, {killed} died");
        let mut rng = Rng::new(&[seed, 34]);
        let middle = [Middle::Node, Middle::Reused, Middle::Own][below(&mut rng, 3) as usize];
        let faults: Vec<String> = (0..below(&mut rng, 4)).map(|_| death(&mut rng)).collect();
        let start = if rng.hits(0.2) { Start::Cold } else { Start::Always };
        let planned = Some(rng.up_to(4) as u32);
        let templates = rng.hits(0.5).then_some(false);
        let split = Split::Clients;
        let case = Case { split, workers: 4, middle, planned, start, templates, routes, seed, ..CASE };
        let mut bench = Bench::new(case, &faults);
        for round in 0..3 {
            for number in 0..rng.up_to(10) {
                bench.give(number, rng.hits(0.1));
                if rng.hits(0.4) {
                    bench.worker_pool.plan();
                    // The second plan finds only what still waits.
                    (0..below(&mut rng, 2)).for_each(|_| bench.worker_pool.plan());
                }
                if rng.hits(0.1) {
                    bench.worker_pool.kill(below(&mut rng, 4) as usize);
                }
            }
            bench.check(&format!("seed {seed}, round {round}"));
            bench.hear_all();
        }
        let (decided, decisions) = bench.worker_pool.decisions().unwrap();
        assert!(decided as usize >= decisions.len() && decisions[0].number == 1);
        changes += decisions.iter().filter(|one| one.before != one.leaves).count();
        let counts = bench.worker_pool.counts();
        (killed, retired) = (killed + counts.died, retired + counts.retired);
        seed += 1;
    }
    println!("  {changes} changes of plans, {retired} workers retired, {killed} died");
}

/// Workers that no plan needs end; those that it needs again start. The queue is known: the first process and the
/// fifth hang with their first update, so that all updates wait.
fn a_plan_retires_leaves_and_starts_them_again(routes: bool) {
    let case = Case { split: Split::Clients, workers: 3, planned: Some(1), routes, ..CASE };
    let mut bench = Bench::new(case, &["hang 2", "none", "none", "none", "hang 2"].map(String::from));
    for (time, started) in [(0, 1), (1, 5)] {
        bench.wait_for_starts(started);
        (0..3).for_each(|number| bench.give(number, false));
        bench.worker_pool.plan();
        assert_eq!(bench.worker_pool.leaves(), 3, "three updates wait");
        bench.wait_for_starts(started + 2);
        bench.worker_pool.kill(0);
        bench.check("three leaves");
        bench.hear_all();
        // What waited no longer waits: the next round has one update.
        bench.worker_pool.plan();
        bench.give(0, false);
        bench.check("one update");
        bench.hear_all();
        bench.worker_pool.plan();
        assert_eq!(bench.worker_pool.leaves(), 1);
        let (decided, _) = bench.worker_pool.decisions().unwrap();
        bench.worker_pool.plan();
        assert_eq!(bench.worker_pool.decisions().unwrap().0, decided, "no round ran since the last plan");
        let counts = bench.worker_pool.counts();
        assert_eq!((counts.retired, counts.died), (2 * (time + 1), 2 * time + 1));
        bench.worker_pool.kill(0);
    }
}

/// With cold starts the round's first update starts all planned levels at once, the middle too.
fn the_first_update_starts_the_planned_levels(routes: bool) {
    let (split, middle) = (Split::Clients, Middle::Own);
    let case = Case { split, middle, workers: 2, planned: Some(2), start: Start::Cold, routes, ..CASE };
    let mut bench = Bench::new(case, &[]);
    for round in 1..=2 {
        bench.give(0, false);
        bench.wait_for_starts(3 * round);
        bench.check("two leaves and a middle");
        bench.hear_all();
    }
    assert_eq!(bench.worker_pool.counts().died, 0);
}

/// A pool that ends does not wait for containers. If it did, this test would take an hour.
fn a_pool_that_ends_waits_for_no_container(routes: bool) {
    let container_start = Duration::from_secs(3600);
    let mut bench = Bench::new(Case { start: Start::Cold, container_start, routes, ..CASE }, &[]);
    bench.give(0, false);
    assert_eq!(bench.worker_pool.counts().started, 0);
}

/// Launches a limited number of processes.
struct Few {
    launcher: Faulty,
    left: Arc<Mutex<(usize, u64)>>,
}

impl Launcher for Few {
    fn launch(&self) -> io::Result<Launched> {
        let mut left = self.left.lock().unwrap();
        let (allowed, refused) = &mut *left;
        match allowed.checked_sub(1) {
            Some(rest) => *allowed = rest,
            None => {
                *refused += 1;
                return Err(io::Error::other("there are enough processes"));
            }
        }
        self.launcher.launch()
    }

    fn hop(&self, one: OwnedFd, other: OwnedFd, most: u64) -> io::Result<Box<dyn Process>> {
        self.launcher.hop(one, other, most)
    }
}

/// A planned leaf whose process cannot be started fails no round that others can end, and is tried again.
fn a_planned_leaf_that_cannot_start_fails_no_round(routes: bool) {
    let left = Arc::new(Mutex::new((1, 0)));
    let case = Case { split: Split::Clients, workers: 3, planned: Some(3), routes, ..CASE };
    let launcher = Few { launcher: Faulty::new(&[], None), left: left.clone() };
    let mut bench = Bench::with(case, Box::new(launcher));
    bench.wait_for_starts(1);
    while left.lock().unwrap().1 < 2 {
        std::thread::yield_now();
    }
    (0..3).for_each(|number| bench.give(number, false));
    for (number, outcome) in bench.hear_all() {
        assert!(outcome.is_ok(), "update {number}: {outcome:?}");
    }
    left.lock().unwrap().0 = 2;
    bench.check("one leaf of three");
    bench.wait_for_starts(3);
}

fn templates_fork_all_workers(routes: bool) {
    let mut bench = Bench::new(Case { routes, templates: Some(false), ..CASE }, &["die 5".into()]);
    for round in 0..3 {
        (0..4).for_each(|number| bench.give(number, false));
        bench.check(&format!("round {round}"));
        bench.hear_all();
    }
    let counts = bench.worker_pool.counts();
    assert_eq!((counts.started, counts.forked, counts.died), (3, 3, 1));
    assert_eq!((counts.starts.last().len(), counts.resumes.last().len()), (3, 1));
}

/// A template may die before, during or after a fork, again and again; it may hang, or never start.
fn templates_that_are_killed_give_up_no_round(routes: bool) {
    let (mut started, mut forked) = (0, 0);
    for seed in 0..20 {
        let mut rng = Rng::new(&[seed, 9]);
        let faults: Vec<String> = (0..4).map(|_| death(&mut rng)).collect();
        let mut bench = Bench::new(Case { routes, templates: Some(true), seed, ..CASE }, &faults);
        for round in 0..3 {
            for number in 0..5 {
                bench.give(number, false);
                if rng.hits(0.3) {
                    bench.worker_pool.kill(below(&mut rng, 2) as usize);
                }
            }
            bench.check(&format!("seed {seed}, round {round}"));
            assert!(bench.hear_all().iter().all(|(_, outcome)| outcome.is_ok()));
        }
        started += bench.worker_pool.counts().started;
        forked += bench.worker_pool.counts().forked;
    }
    println!("  {forked} of {started} workers were forked");
    assert!(0 < forked && forked < started, "templates always die, or never");
    for command in ["/nonexistent/template", "false"] {
        let never = Program { command: vec![command.into()], environment: Vec::new() };
        let launcher = Box::new(Template::new(never, program(Vec::new())));
        let faults = Mutex::default();
        let mut bench =
            Bench::with(Case { routes, ..CASE }, Box::new(Faulty { faults, launcher, _started: None }));
        bench.give(0, false);
        bench.check(command);
        assert_eq!(bench.worker_pool.counts().forked, 0);
    }
}

fn death(rng: &mut Rng) -> String {
    if rng.hits(0.5) {
        return format!("die {}", rng.up_to(15));
    }
    format!("vanish {}", rng.up_to(2000))
}

fn a_refused_update_leaves_nothing_behind(routes: bool) {
    for split in [Split::Ranges, Split::Clients] {
        let mut bench = Bench::new(Case { split, routes, ..CASE }, &[]);
        let mut outcomes = Vec::new();
        for number in 0..9 {
            if bench.under_way == STAGING {
                outcomes.push(bench.hear());
            }
            bench.give(number, number % 3 == 1);
        }
        outcomes.extend(bench.hear_all());
        for (number, outcome) in outcomes {
            match outcome {
                Ok(()) => assert_ne!(number % 3, 1),
                Err(why) => assert!(number % 3 == 1 && why.contains("NaN"), "{number}: {why}"),
            }
        }
        bench.check("refused");
        assert_eq!(bench.worker_pool.counts().died, 0);
    }
}

fn workers_that_hang_babble_or_forge_are_replaced(routes: bool) {
    for fault in ["hang 2", "hang 4", "babble 1", "babble 3", "forge 2", "forge 5", "lie 3", "lie 6"] {
        let timeout = if fault.starts_with("hang") { Duration::from_millis(200) } else { TIMEOUT };
        let mut bench = Bench::new(Case { timeout, workers: 1, routes, ..CASE }, &[fault.into()]);
        (0..6).for_each(|number| bench.give(number, false));
        bench.check(fault);
        assert!(bench.worker_pool.counts().died >= 1, "{fault}: nobody was replaced");
    }
}

fn a_program_that_cannot_start_fails_the_round(routes: bool) {
    for command in [vec!["/nonexistent/worker".into()], vec!["false".into()]] {
        let program = Program { command, environment: Vec::new() };
        let mut bench = Bench::with(Case { routes, ..CASE }, Box::new(program));
        bench.give(0, false);
        let (_, outcome) = bench.hear();
        let why = outcome.unwrap_err();
        assert!(why.contains("could be started") || why.contains("died"), "{why}");
        assert!(bench.worker_pool.close().is_err());
        bench.worker_pool.begin();
        assert_eq!(bench.pool.free(0), bench.pool.plan().slots() as usize);
    }
}

/// Runs this process as a hop: a broker, or a side process.
pub fn be_a_hop() {
    let most = std::env::args().next_back().unwrap().parse().unwrap();
    let input = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let output = std::io::stdout().as_fd().try_clone_to_owned().unwrap();
    thalweg_workers::hop(input, output, most).unwrap();
}

/// Runs this process as a node that does its work and then waits until it is killed.
pub fn be_a_node() {
    let way = std::env::var(NODE).unwrap();
    let templates = way.ends_with("template").then_some(false);
    let mut bench = Bench::new(Case { routes: way.starts_with("kernel"), templates, ..CASE }, &[]);
    (0..4).for_each(|number| bench.give(number, false));
    bench.check("a node");
    std::io::stdout().write_all(b".").unwrap();
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

fn workers_end_with_a_node_that_is_killed(routes: bool) {
    for by in ["program", "template"] {
        let way = format!("{} {by}", if routes { "kernel" } else { "node" });
        let mut node = Command::new(std::env::current_exe().unwrap());
        let mut node = node.env(NODE, way).stdout(Stdio::piped()).spawn().unwrap();
        node.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let mut workers = children(node.id());
        if by == "template" {
            assert_eq!(workers.len(), 1);
            workers.extend(children(workers[0] as u32));
        }
        assert_eq!(workers.len(), CASE.workers + usize::from(by == "template"));
        let open = |&pid: &i32| pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let workers: Vec<_> = workers.iter().map(open).collect();
        node.kill().unwrap();
        node.wait().unwrap();
        let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
        for worker in workers {
            let ended = poll(&mut [PollFd::new(&worker, PollFlags::IN)], Some(&timeout)).unwrap();
            assert_eq!(ended, 1, "a worker or a template outlives its node");
        }
    }
}

/// The children of a process; each is listed under the thread that started it.
fn children(process: u32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let children = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap());
    children
        .flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

type Test = (&'static str, fn(bool));

pub fn tests() {
    let all: &[Test] = &[
        ("workers_give_the_bits_of_one_accumulator", workers_give_the_bits_of_one_accumulator),
        ("notes_beyond_the_budget_are_not_lost", notes_beyond_the_budget_are_not_lost),
        #[cfg(feature = "baselines")]
        ("every_data_plane_gives_the_same_bits", every_data_plane_gives_the_same_bits),
        #[cfg(not(feature = "baselines"))]
        ("copies_need_baselines", copies_need_baselines),
        #[cfg(feature = "baselines")]
        (
            "killed_workers_change_no_bit_whatever_copies_their_bytes",
            killed_workers_change_no_bit_whatever_copies_their_bytes,
        ),
        (
            "workers_start_with_their_first_work_and_end_with_the_round",
            workers_start_with_their_first_work_and_end_with_the_round,
        ),
        ("an_empty_round_ends", an_empty_round_ends),
        ("killed_workers_change_no_bit", killed_workers_change_no_bit),
        ("a_middle_adds_up_the_sums_of_the_leaves", a_middle_adds_up_the_sums_of_the_leaves),
        ("a_node_with_ranges_measures_its_load", a_node_with_ranges_measures_its_load),
        ("plans_change_under_traffic_and_no_bit_does", plans_change_under_traffic_and_no_bit_does),
        ("a_pool_that_ends_waits_for_no_container", a_pool_that_ends_waits_for_no_container),
        ("the_first_update_starts_the_planned_levels", the_first_update_starts_the_planned_levels),
        ("a_plan_retires_leaves_and_starts_them_again", a_plan_retires_leaves_and_starts_them_again),
        ("a_planned_leaf_that_cannot_start_fails_no_round", a_planned_leaf_that_cannot_start_fails_no_round),
        ("templates_fork_all_workers", templates_fork_all_workers),
        ("templates_that_are_killed_give_up_no_round", templates_that_are_killed_give_up_no_round),
        ("a_refused_update_leaves_nothing_behind", a_refused_update_leaves_nothing_behind),
        ("workers_that_hang_babble_or_forge_are_replaced", workers_that_hang_babble_or_forge_are_replaced),
        ("a_program_that_cannot_start_fails_the_round", a_program_that_cannot_start_fails_the_round),
        ("workers_end_with_a_node_that_is_killed", workers_end_with_a_node_that_is_killed),
    ];
    let kernel = NodeRoutes::open().map(drop);
    for (routes, (name, test)) in
        [false, true].into_iter().flat_map(|routes| all.iter().map(move |test| (routes, test)))
    {
        let way = if routes { "kernel" } else { "node" };
        match &kernel {
            Err(why) if routes => println!("test {name}, routes {way} ... skipped: {why}"),
            _ => {
                let started = std::time::Instant::now();
                test(routes);
                println!("test {name}, routes {way} ... ok ({:.1} s)", started.elapsed().as_secs_f64());
            }
        }
    }
}
