//! Tests the ledger with workers that are sets of numbers. Whatever dies or is refused, each update must be
//! in the committed sums exactly once or not at all.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use thalweg_fold::{Accumulator, Precision, SumsHead};
use thalweg_rng::Rng;
use thalweg_shm_pool::{Key, Name};
use thalweg_wire::{Dtype, Layout};
use thalweg_workers::{Action, Base, Ledger, Lie, Middle, Order, Split};

const STAGING: usize = 3;

fn below(rng: &mut Rng, limit: u64) -> u64 {
    rng.draw() % limit
}

/// Whether every worker refuses the update with this number.
fn is_bad(sequence: u32) -> bool {
    sequence % 5 == 3
}

fn key(sequence: u32) -> Key {
    let mut key = [7; 16];
    key[..4].copy_from_slice(&sequence.to_le_bytes());
    key
}

fn name(sequence: u32) -> Name {
    Name { slot: sequence, generation: 1, key: key(sequence) }
}

fn head() -> SumsHead {
    let layout = Layout::pack([("w", Dtype::U8, vec![1])]).unwrap();
    Accumulator::new(Arc::new(layout), Precision::F32).head().unwrap()
}

enum Reply {
    Folded(u32),
    Refused(u32),
    Committed(u32),
}

/// A simulated worker process, and the memory of its sums, which outlives the process.
#[derive(Default)]
struct Worker {
    is_alive: bool,
    slots: [BTreeSet<u32>; 2],
    base: Option<usize>,
    has_begun: bool,
    orders: VecDeque<(u32, Order)>,
    /// The sums that each [`Order::Merge`] in `orders` is about.
    others: VecDeque<BTreeSet<u32>>,
    replies: VecDeque<(u32, Reply)>,
}

impl Worker {
    fn open(&self) -> usize {
        self.base.map_or(0, |base| 1 - base)
    }

    fn start(&mut self, base: Option<&Base>) {
        self.is_alive = true;
        self.base = base.map(|base| base.slot as usize);
        self.has_begun = false;
        // The predecessor may have left anything in the uncommitted slot.
        let open = self.open();
        self.slots[open] = BTreeSet::from([999]);
    }

    fn begin(&mut self) {
        let open = self.open();
        if !self.has_begun {
            self.slots[open] = self.base.map(|base| self.slots[base].clone()).unwrap_or_default();
            self.has_begun = true;
        }
    }

    fn merge(&mut self) {
        self.begin();
        let (open, other) = (self.open(), self.others.pop_front().unwrap());
        assert!(self.slots[open].is_disjoint(&other), "an update is merged twice");
        self.slots[open].extend(other);
    }

    fn fold(&mut self, sequence: u32) -> Reply {
        self.begin();
        let open = self.open();
        if is_bad(sequence) {
            return Reply::Refused(sequence);
        }
        assert!(self.slots[open].insert(sequence), "update {sequence} is folded twice");
        Reply::Folded(sequence)
    }

    fn commit(&mut self) -> Reply {
        let open = self.open();
        if self.base.is_none() && !self.has_begun {
            self.slots[open].clear();
        }
        let slot = self.base.filter(|_| !self.has_begun).unwrap_or(open);
        (self.base, self.has_begun) = (Some(slot), false);
        Reply::Committed(slot as u32)
    }

    /// Obeys an order. If `says`, also queues the answer.
    fn obey(&mut self, says: bool) {
        let Some((task, order)) = self.orders.pop_front() else { return };
        let reply = match order {
            Order::Begin => {
                (self.base, self.has_begun) = (None, false);
                None
            }
            Order::Rollback => {
                self.has_begun = false;
                None
            }
            Order::Commit => Some(self.commit()),
            Order::Fold { sequence, .. } => Some(self.fold(sequence)),
            Order::Merge { .. } => {
                self.merge();
                None
            }
        };
        self.replies.extend(reply.filter(|_| says).map(|reply| (task, reply)));
    }
}

struct World {
    rng: Rng,
    ledger: Ledger,
    split: Split,
    middle: Middle,
    reserve: usize,
    workers: Vec<Worker>,
    in_pool: BTreeSet<u32>,
    outcomes: BTreeMap<u32, Result<(), String>>,
    closed: Option<Result<Vec<Option<Base>>, String>>,
    kills: u32,
    head: SumsHead,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(&[seed]);
        let count = rng.up_to(3) as usize;
        let split = if rng.hits(0.5) { Split::Ranges } else { Split::Clients };
        let reserve = below(&mut rng, 4) as usize;
        let middle = match (split, below(&mut rng, 3)) {
            (Split::Ranges, _) | (_, 0) => Middle::Node,
            (_, 1) => Middle::Reused,
            _ => Middle::Own,
        };
        let count = count + usize::from(middle == Middle::Own);
        let workers = std::iter::repeat_with(Worker::default).take(count).collect();
        let mut ledger = Ledger::new(count, split, reserve).with_middle(middle);
        if rng.hits(0.5) {
            ledger.prefer_running();
        }
        let (in_pool, outcomes, kills) = (BTreeSet::new(), BTreeMap::new(), below(&mut rng, 9) as u32);
        Self {
            rng,
            ledger,
            split,
            middle,
            reserve,
            workers,
            in_pool,
            outcomes,
            closed: None,
            kills,
            head: head(),
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.ledger.poll_action() {
            match action {
                Action::Tell { worker, task, order } => {
                    if let Order::Fold { sequence, .. } = order {
                        assert!(self.in_pool.contains(&sequence), "{sequence} is given after its release");
                    }
                    if let Order::Merge { from } = order {
                        let base = self.ledger.base(from).unwrap().slot as usize;
                        let other = self.workers[from].slots[base].clone();
                        self.workers[worker].others.push_back(other);
                    }
                    if self.workers[worker].is_alive {
                        self.workers[worker].orders.push_back((task, order));
                    }
                }
                Action::Release { sequence } => assert!(self.in_pool.remove(&sequence), "released twice"),
                Action::Done { sequence, outcome } => {
                    assert!(self.outcomes.insert(sequence, outcome).is_none(), "two outcomes");
                }
                Action::Closed(bases) => self.closed = Some(bases),
            }
        }
        let done = self.in_pool.iter().filter(|sequence| self.outcomes.contains_key(sequence)).count();
        assert!(done <= self.reserve, "the pool is fuller than it may be");
    }

    fn hear(&mut self, worker: usize) -> Result<(), Lie> {
        let Some((task, reply)) = self.workers[worker].replies.pop_front() else { return Ok(()) };
        match reply {
            Reply::Folded(sequence) => self.ledger.folded(worker, task, sequence, key(sequence)),
            Reply::Refused(sequence) => self.ledger.refused(worker, task, sequence, "it is bad"),
            Reply::Committed(slot) => {
                self.ledger.committed(worker, task, Base { slot, head: self.head.clone() })
            }
        }
    }

    /// Makes something happen to a random worker.
    fn step(&mut self) {
        let worker = below(&mut self.rng, self.workers.len() as u64) as usize;
        let is_alive = self.workers[worker].is_alive;
        match below(&mut self.rng, 10) {
            0 if is_alive && self.kills > 0 => {
                self.kills -= 1;
                // The node still reads answers that were sent. The last order may be carried out without an
                // answer.
                self.workers[worker].obey(false);
                while !self.workers[worker].replies.is_empty() {
                    self.hear(worker).unwrap();
                    self.act();
                }
                self.workers[worker].is_alive = false;
                self.workers[worker].orders.clear();
                self.workers[worker].others.clear();
                self.ledger.died(worker);
            }
            _ if !is_alive => {
                let (round, base) = (self.ledger.round(), self.ledger.base(worker).cloned());
                self.workers[worker].start(base.as_ref());
                self.ledger.started(worker, round);
            }
            1..=4 => self.hear(worker).unwrap(),
            _ => self.workers[worker].obey(true),
        }
        self.act();
    }

    fn round(&mut self, updates: u32) {
        let mut next = 0;
        while next < updates {
            let under_way = next as usize - self.outcomes.len();
            if under_way < STAGING && self.rng.hits(0.2) {
                let active = below(&mut self.rng, self.workers.len() as u64) as usize;
                self.ledger.set_active(active);
                self.in_pool.insert(next);
                assert!(self.in_pool.len() <= STAGING + self.reserve, "an update finds no slot");
                assert_eq!(self.ledger.add(name(next), 1.0), next);
                self.act();
                next += 1;
            }
            self.step();
        }
        self.ledger.close();
        self.act();
        let mut steps = 0;
        while self.closed.is_none() {
            self.step();
            steps += 1;
            assert!(steps < 100_000, "the round does not end");
        }
        let bases = self.closed.take().unwrap().unwrap();
        let good: BTreeSet<u32> = (0..updates).filter(|&sequence| !is_bad(sequence)).collect();
        let counted: BTreeSet<u32> =
            self.outcomes.iter().filter(|(_, o)| o.is_ok()).map(|(&s, _)| s).collect();
        assert_eq!(counted, good);
        assert_eq!(self.outcomes.len(), updates as usize);
        assert!(self.in_pool.is_empty(), "nothing is left in the pool");
        let sums = self
            .workers
            .iter()
            .zip(&bases)
            .filter_map(|(worker, base)| Some(&worker.slots[base.as_ref()?.slot as usize]));
        match self.split {
            Split::Ranges => sums.for_each(|sums| assert_eq!(sums, &good)),
            Split::Clients => {
                let with_sums = sums.clone().count();
                assert!(self.middle == Middle::Node || with_sums == 1, "the middle has all sums");
                let all: Vec<u32> = sums.flatten().copied().collect();
                assert_eq!(all.len(), good.len(), "an update is in two sums");
                assert_eq!(all.into_iter().collect::<BTreeSet<u32>>(), good);
            }
        }
        self.ledger.begin();
        self.outcomes.clear();
        self.act();
    }
}

#[test]
fn each_update_counts_exactly_once_whoever_dies() {
    for seed in 0..2000 {
        let mut world = World::new(seed);
        for _ in 0..3 {
            let updates = below(&mut world.rng, 15) as u32;
            world.round(updates);
        }
    }
}

/// Gives each of three leaves an update, lets them commit in this order, and returns the worker that then gets the
/// middle's work.
fn middle_after(order: [usize; 3], middle: Middle) -> (usize, u64) {
    let workers = 3 + usize::from(middle == Middle::Own);
    let mut ledger = Ledger::new(workers, Split::Clients, 3).with_middle(middle);
    (0..workers).for_each(|worker| ledger.started(worker, 0));
    (0..3).for_each(|sequence| assert_eq!(ledger.add(name(sequence), 1.0), sequence));
    let mut epochs = vec![0; workers];
    while let Some(action) = ledger.poll_action() {
        let Action::Tell { worker, task, order: Order::Fold { sequence, .. } } = action else { continue };
        epochs[worker] = task;
        ledger.folded(worker, task, sequence, key(sequence)).unwrap();
    }
    ledger.close();
    for worker in order {
        ledger.committed(worker, epochs[worker], Base { slot: 0, head: head() }).unwrap();
    }
    let merges = std::iter::from_fn(|| ledger.poll_action()).filter_map(|action| match action {
        Action::Tell { worker, order: Order::Merge { .. }, .. } => Some(worker),
        _ => None,
    });
    let at: BTreeSet<usize> = merges.collect();
    assert_eq!(at.len(), 1);
    (*at.first().unwrap(), ledger.reused())
}

#[test]
fn the_first_leaf_to_finish_becomes_the_middle_and_without_reuse_none_does() {
    assert_eq!(middle_after([2, 0, 1], Middle::Reused), (2, 1));
    assert_eq!(middle_after([1, 2, 0], Middle::Reused), (1, 1));
    assert_eq!(middle_after([1, 2, 0], Middle::Own), (3, 0));
}

#[test]
fn sums_that_cannot_be_added_up_fail_the_round_and_not_the_next() {
    let mut ledger = Ledger::new(2, Split::Clients, 2).with_middle(Middle::Reused);
    (0..2).for_each(|worker| ledger.started(worker, 0));
    (0..2).for_each(|sequence| _ = ledger.add(name(sequence), 1.0));
    let task = tasks(&mut ledger)[0];
    (0..2).for_each(|one: u32| ledger.folded(one as usize, task, one, key(one)).unwrap());
    ledger.close();
    (0..2).for_each(|worker| ledger.committed(worker, task, Base { slot: 0, head: head() }).unwrap());
    ledger.refused(0, task, 1, "no room").unwrap();
    let failed = |action: &Action| matches!(action, Action::Closed(Err(why)) if why.contains("no room"));
    assert!(std::iter::from_fn(|| ledger.poll_action()).any(|action| failed(&action)));
    ledger.begin();
    assert_eq!(ledger.add(name(0), 1.0), 0);
}

fn started() -> Ledger {
    let mut ledger = Ledger::new(1, Split::Ranges, 2);
    ledger.started(0, 0);
    assert_eq!(ledger.add(name(0), 1.0), 0);
    ledger
}

fn tasks(ledger: &mut Ledger) -> Vec<u32> {
    let actions = std::iter::from_fn(|| ledger.poll_action());
    actions.filter_map(|a| if let Action::Tell { task, .. } = a { Some(task) } else { None }).collect()
}

#[test]
fn what_cannot_be_is_a_lie() {
    let mut ledger = started();
    let task = tasks(&mut ledger)[0];
    let base = |slot| Base { slot, head: head() };
    assert!(ledger.folded(0, task, 1, key(1)).is_err(), "it was given no such update");
    assert!(ledger.folded(0, task, 0, key(1)).is_err(), "another key");
    assert!(ledger.refused(0, task, 5, "").is_err());
    assert!(ledger.committed(0, task, base(0)).is_err(), "nobody asked");
    assert_eq!(ledger.folded(0, task + 7, 1, key(1)), Ok(()), "of another epoch: out of date");
    assert_eq!(ledger.folded(0, task, 0, key(0)), Ok(()));
    assert!(ledger.folded(0, task, 0, key(0)).is_err(), "twice");
    ledger.close();
    assert!(ledger.committed(0, task, base(2)).is_err(), "there are two slots");
    assert_eq!(ledger.committed(0, task, base(1)), Ok(()));
}

fn dies_too_often(ledger: &mut Ledger, worker: usize) {
    while ledger.is_wanted(worker) {
        ledger.died(worker);
    }
}

/// The outcome of the round, once it is closed.
fn closed(ledger: &mut Ledger) -> Option<bool> {
    let actions: Vec<Action> = std::iter::from_fn(|| ledger.poll_action()).collect();
    actions.iter().find_map(|a| if let Action::Closed(bases) = a { Some(bases.is_ok()) } else { None })
}

/// Folds two updates at the only leaf that runs, with one slot in reserve, and closes the round.
fn round_with_one_leaf(leaf: usize, other: impl FnOnce(&mut Ledger)) -> Option<bool> {
    let mut ledger = Ledger::new(2, Split::Clients, 1);
    ledger.prefer_running();
    ledger.started(leaf, 0);
    other(&mut ledger);
    for one in 0..2 {
        assert_eq!(ledger.add(name(one), 1.0), one);
    }
    let task = *tasks(&mut ledger).last().unwrap();
    (0..2).for_each(|one| ledger.folded(leaf, task, one, key(one)).unwrap());
    ledger.committed(leaf, task, Base { slot: 0, head: head() }).unwrap();
    ledger.close();
    ledger.committed(leaf, task, Base { slot: 0, head: head() }).unwrap();
    closed(&mut ledger)
}

#[test]
fn a_leaf_without_work_that_does_not_run_fails_no_round_that_others_can_end() {
    for leaf in [0, 1] {
        assert_eq!(round_with_one_leaf(leaf, |_| ()), Some(true), "the other leaf never starts");
        let dies = |ledger: &mut Ledger| dies_too_often(ledger, 1 - leaf);
        assert_eq!(round_with_one_leaf(leaf, dies), Some(true), "the other leaf only dies");
    }
}

#[test]
fn one_leaf_commits_empty_sums_and_any_that_can_start_will_do() {
    let mut ledger = Ledger::new(2, Split::Clients, 1);
    ledger.close();
    dies_too_often(&mut ledger, 0);
    assert_eq!((ledger.has_work(0), ledger.has_work(1)), (false, true));
    ledger.started(1, 0);
    let task = *tasks(&mut ledger).last().unwrap();
    ledger.committed(1, task, Base { slot: 0, head: head() }).unwrap();
    assert_eq!(closed(&mut ledger), Some(true));
    ledger.begin();
    ledger.close();
    (0..2).for_each(|leaf| dies_too_often(&mut ledger, leaf));
    assert_eq!(closed(&mut ledger), Some(false));
}

#[test]
fn a_worker_that_only_dies_fails_the_round_and_not_the_next() {
    let mut ledger = started();
    while ledger.is_wanted(0) {
        ledger.died(0);
        if ledger.is_wanted(0) {
            ledger.started(0, 0);
        }
    }
    ledger.close();
    let failed = |action: &Action| matches!(action, Action::Closed(Err(why)) if why.contains("died"));
    assert!(std::iter::from_fn(|| ledger.poll_action()).any(|action| failed(&action)));
    ledger.begin();
    assert!(ledger.is_wanted(0));
    ledger.started(0, 1);
    ledger.add(name(0), 1.0);
    assert_eq!(tasks(&mut ledger).len(), 1);
}
