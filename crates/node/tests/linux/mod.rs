pub mod worker;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use thalweg_dice::Dice;
use thalweg_fold::{Accumulator, Precision, Repair};
use thalweg_node::{Launched, Launcher, Program, Split, Team, TeamConfig};
use thalweg_pool::{Class, Object, Plan, Pool};
use thalweg_wire::{Dtype, Layout, Ranges};

pub const FAULT: &str = "THALWEG_NODE_FAULT";
pub const NODE: &str = "THALWEG_NODE";
const STAGING: usize = 3;
/// Longer than any worker needs, so that none is replaced that goes on.
const PATIENCE: Duration = Duration::from_secs(60);

fn below(dice: &mut Dice, limit: u64) -> u64 {
    dice.draw() % limit
}

fn layout() -> Arc<Layout> {
    let tensors =
        [("h", Dtype::BF16, vec![777]), ("w", Dtype::F32, vec![90_000]), ("n", Dtype::I64, vec![2])];
    Arc::new(Layout::pack(tensors).unwrap())
}

/// This program as a worker; each process gets the next fault of a list, and then none.
struct Faulty(Mutex<VecDeque<String>>);

impl Launcher for Faulty {
    fn launch(&self) -> io::Result<Launched> {
        let fault = self.0.lock().unwrap().pop_front().unwrap_or_else(|| "none".into());
        let program = Program {
            command: vec![std::env::current_exe()?.into()],
            environment: vec![(FAULT.into(), fault.into())],
        };
        program.launch()
    }
}

type Told = (u64, Result<(), String>);

/// A team, and one accumulator that is given the same updates.
struct Bench {
    pool: Pool,
    team: Team,
    single: Accumulator,
    under_way: usize,
    told: (Sender<Told>, Receiver<Told>),
    dice: Dice,
}

struct Case {
    precision: Precision,
    split: Split,
    workers: usize,
    reserve: usize,
    patience: Duration,
    seed: u64,
}

const CASE: Case = Case {
    precision: Precision::Exact,
    split: Split::Ranges,
    workers: 2,
    reserve: 1,
    patience: PATIENCE,
    seed: 1,
};

impl Bench {
    fn new(case: Case, faults: &[String]) -> Self {
        Self::with(case, Box::new(Faulty(Mutex::new(faults.iter().cloned().collect()))))
    }

    fn with(case: Case, launcher: Box<dyn Launcher>) -> Self {
        let Case { precision, split, workers, reserve, patience, seed } = case;
        let class = Class { bytes: layout().bytes(), slots: (STAGING + reserve) as u32 };
        let pool = Pool::new(Plan::new(&[class])).unwrap();
        let config =
            TeamConfig { layout: layout(), precision, pool: pool.clone(), workers, split, reserve, patience };
        let team = Team::new(config, launcher).unwrap();
        let single = Accumulator::new(layout(), precision);
        Self { pool, team, single, under_way: 0, told: channel(), dice: Dice::new(&[seed]) }
    }

    /// An update of small floats; exact sums refuse a `bad` one.
    fn update(&mut self, is_bad: bool) -> Vec<u8> {
        let mut bytes = vec![0; layout().bytes() as usize];
        for (at, byte) in bytes.iter_mut().enumerate() {
            // Exponents of 0x3f, in both types.
            *byte = if at % 2 == 1 { 0x3f } else { self.dice.draw() as u8 };
        }
        if is_bad {
            let at = layout().tensors()[1].range().end as usize;
            bytes[at - 4..at].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        bytes
    }

    fn object(&mut self, bytes: &[u8], came: &Ranges) -> Object {
        let slot = self.pool.claim(0).expect("no more than the staging is under way");
        slot.claim(layout_range()).unwrap().copy_from_slice(bytes);
        let key = [self.dice.draw().to_le_bytes(), self.dice.draw().to_le_bytes()].concat();
        slot.seal(key.try_into().unwrap(), came, Duration::ZERO).unwrap()
    }

    /// Gives the team an update, of which the last part may be missing. Waits for another one to count if the staging is
    /// full.
    fn give(&mut self, number: u64, is_bad: bool) {
        while self.under_way == STAGING {
            drop(self.hear());
        }
        let bytes = self.update(is_bad);
        let mut came = Ranges::full(bytes.len() as u64);
        if number % 4 == 3 && !is_bad {
            came = std::iter::once(thalweg_wire::Range::new(0, 200_000)).collect();
        }
        let weight = 0.5 + number as f64;
        let object = self.object(&bytes, &came);
        if !is_bad {
            self.single.fold_ranges(&bytes, &came, weight).unwrap();
        }
        let told = self.told.0.clone();
        self.under_way += 1;
        self.team.fold(object, weight, Box::new(move |outcome| told.send((number, outcome)).unwrap()));
    }

    fn hear(&mut self) -> Told {
        let told = self.told.1.recv().unwrap();
        self.under_way -= 1;
        told
    }

    fn hear_all(&mut self) -> Vec<Told> {
        (0..self.under_way).map(|_| self.hear()).collect()
    }

    /// The mean of the workers' sums is that of the single accumulator.
    fn check(&mut self, what: &str) {
        let mut mean = vec![0; layout().bytes() as usize];
        for sums in self.team.close().unwrap() {
            let part = sums.part();
            let out = &mut mean[part.start as usize..part.end as usize];
            sums.finish_part(part.start, out, Repair::Zero).unwrap();
        }
        self.team.begin();
        let mut expected = vec![0; mean.len()];
        self.single.finish_and_reset(&mut expected, Repair::Zero).unwrap();
        assert!(mean == expected, "{what}: the mean is another one");
        assert_eq!(self.pool.free(0), self.pool.plan().slots() as usize, "{what}: a slot is still in use");
    }
}

fn layout_range() -> thalweg_wire::Range {
    thalweg_wire::Range::new(0, layout().bytes())
}

fn workers_give_the_bits_of_one_accumulator() {
    for (precision, split, workers) in [
        (Precision::F32, Split::Ranges, 1),
        (Precision::F32, Split::Ranges, 3),
        (Precision::F64, Split::Ranges, 2),
        (Precision::Exact, Split::Ranges, 2),
        (Precision::Exact, Split::Clients, 3),
    ] {
        let mut bench = Bench::new(Case { precision, split, workers, ..CASE }, &[]);
        for round in 0..3 {
            (0..7).for_each(|number| bench.give(number, false));
            assert!(bench.hear_all().iter().all(|(_, outcome)| outcome.is_ok()));
            bench.check(&format!("{precision:?} {split:?} {workers} round {round}"));
        }
        let counts = bench.team.counts();
        assert_eq!((counts.started, counts.died), (workers as u64, 0), "processes serve all rounds");
        assert_eq!(counts.reused, 2 * workers as u64);
        assert!(counts.cpu > 0 && !counts.handovers.last().is_empty());
    }
}

/// A round without updates has sums of nothing.
fn an_empty_round_ends() {
    let mut bench = Bench::new(CASE, &[]);
    bench.check("nothing");
    bench.give(1, false);
    bench.check("something");
}

fn killed_workers_change_no_bit() {
    let (mut killed, seeds) = (0, 150);
    for seed in 0..seeds {
        let mut dice = Dice::new(&[seed, 25]);
        let workers = dice.up_to(3) as usize;
        let exact = dice.hits(0.5);
        let (precision, split) = match (exact, dice.hits(0.5)) {
            (true, true) => (Precision::Exact, Split::Clients),
            (true, false) => (Precision::Exact, Split::Ranges),
            (false, _) => (Precision::F32, Split::Ranges),
        };
        let reserve = below(&mut dice, 3) as usize;
        let deaths = below(&mut dice, 6);
        let faults: Vec<String> = (0..deaths).map(|_| format!("die {}", dice.up_to(15))).collect();
        let mut bench = Bench::new(Case { precision, split, workers, reserve, seed, ..CASE }, &faults);
        for round in 0..2 {
            for number in 0..below(&mut dice, 10) {
                bench.give(number, exact && dice.hits(0.1));
                // At any moment of its work.
                if dice.hits(0.15) {
                    bench.team.kill(below(&mut dice, workers as u64) as usize);
                }
            }
            if dice.hits(0.5) {
                bench.hear_all();
            }
            bench.check(&format!("seed {seed}, round {round}"));
            bench.hear_all();
        }
        killed += bench.team.counts().died;
    }
    assert!(killed > seeds, "only {killed} workers died");
    println!("  {killed} workers died");
}

fn a_refused_update_leaves_nothing_behind() {
    for split in [Split::Ranges, Split::Clients] {
        let mut bench = Bench::new(Case { split, ..CASE }, &[]);
        let mut told = Vec::new();
        for number in 0..9 {
            if bench.under_way == STAGING {
                told.push(bench.hear());
            }
            bench.give(number, number % 3 == 1);
        }
        told.extend(bench.hear_all());
        for (number, outcome) in told {
            match outcome {
                Ok(()) => assert_ne!(number % 3, 1),
                Err(why) => assert!(number % 3 == 1 && why.contains("NaN"), "{number}: {why}"),
            }
        }
        bench.check("refused");
        assert_eq!(bench.team.counts().died, 0);
    }
}

fn workers_that_hang_babble_or_forge_are_replaced() {
    for fault in ["hang 2", "hang 4", "babble 1", "babble 3", "forge 2", "forge 5"] {
        let patience = if fault.starts_with("hang") { Duration::from_millis(200) } else { PATIENCE };
        let mut bench = Bench::new(Case { patience, workers: 1, ..CASE }, &[fault.into()]);
        (0..6).for_each(|number| bench.give(number, false));
        bench.check(fault);
        assert!(bench.team.counts().died >= 1, "{fault}: nobody was replaced");
    }
}

fn a_program_that_cannot_start_fails_the_round() {
    for command in [vec!["/nonexistent/worker".into()], vec!["false".into()]] {
        let program = Program { command, environment: Vec::new() };
        let mut bench = Bench::with(CASE, Box::new(program));
        bench.give(0, false);
        let (_, outcome) = bench.hear();
        let why = outcome.unwrap_err();
        assert!(why.contains("could be started") || why.contains("died"), "{why}");
        assert!(bench.team.close().is_err());
        bench.team.begin();
        assert_eq!(bench.pool.free(0), bench.pool.plan().slots() as usize);
    }
}

/// A node that has worked, and then waits for its end.
pub fn be_a_node() {
    let mut bench = Bench::new(CASE, &[]);
    (0..4).for_each(|number| bench.give(number, false));
    bench.check("a node");
    std::io::stdout().write_all(b".").unwrap();
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

fn workers_end_with_a_node_that_is_killed() {
    let mut node = Command::new(std::env::current_exe().unwrap());
    let mut node = node.env(NODE, "1").stdout(Stdio::piped()).spawn().unwrap();
    node.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    // Threads of the node are its workers' parents.
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.id())).unwrap();
    let children = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap());
    let workers: Vec<i32> = children
        .flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect();
    assert_eq!(workers.len(), CASE.workers);
    let open = |&pid: &i32| pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    let workers: Vec<_> = workers.iter().map(open).collect();
    node.kill().unwrap();
    node.wait().unwrap();
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    for worker in workers {
        let ended = poll(&mut [PollFd::new(&worker, PollFlags::IN)], Some(&patience)).unwrap();
        assert_eq!(ended, 1, "a worker outlives its node");
    }
}

pub fn tests() {
    let all: [(&str, fn()); 7] = [
        ("workers_give_the_bits_of_one_accumulator", workers_give_the_bits_of_one_accumulator),
        ("an_empty_round_ends", an_empty_round_ends),
        ("killed_workers_change_no_bit", killed_workers_change_no_bit),
        ("a_refused_update_leaves_nothing_behind", a_refused_update_leaves_nothing_behind),
        ("workers_that_hang_babble_or_forge_are_replaced", workers_that_hang_babble_or_forge_are_replaced),
        ("a_program_that_cannot_start_fails_the_round", a_program_that_cannot_start_fails_the_round),
        ("workers_end_with_a_node_that_is_killed", workers_end_with_a_node_that_is_killed),
    ];
    for (name, test) in all {
        let started = std::time::Instant::now();
        test();
        println!("test {name} ... ok ({:.1} s)", started.elapsed().as_secs_f64());
    }
}
