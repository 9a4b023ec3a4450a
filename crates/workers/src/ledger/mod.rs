//! The account of one node: which worker was given, has folded and has committed which update. It decides
//! without IO. Its inputs are the workers' answers, starts and deaths; its outputs are [`Action`]s.
//!
//! - An update is given to its workers: to all of them ([`Split::Ranges`]) or to one ([`Split::Clients`]). If
//!   a commit is due, the update waits until after it.
//! - An update is done when all its workers have folded it and the reserve of pool slots is not used up.
//!   Otherwise it is done after the next commit.
//! - A commit is due when a folded update exceeds the reserve, or when the round closes.
//! - Workers are ordered to commit when each has folded all that it was given, because a commit cannot be
//!   undone.
//! - Objects are released when all workers have committed.
//! - When a worker refuses an update, all workers that got it discard the updates that they have not
//!   committed. The node gives them these updates again, except the refused one.
//! - When a worker dies, its successor takes over the last commit and gets all later updates again.
//! - When the round closes, a middle adds the leaves' committed sums to its own and commits ([`Middle`]).

mod advance;
mod middle;
mod share;
mod words;

use std::collections::{BTreeMap, VecDeque};

use share::Share;
use thalweg_shm_pool::{Key, Name};

use middle::Merging;
pub use middle::Middle;
pub use words::{Action, Base, Lie, Order, Split};

/// If a worker dies more often than this without folding an update or committing in between, it is not
/// started again in this round. The round fails if it has work.
const MOST_DEATHS: u32 = 32;

#[derive(Debug)]
struct Update {
    name: Name,
    weight: f64,
    workers: Vec<usize>,
    is_given: bool,
    is_done: bool,
}

/// The account of one node.
#[derive(Debug)]
pub struct Ledger {
    split: Split,
    /// Maximum number of updates that may be done and still lie in the pool.
    reserve: usize,
    workers: Vec<Share>,
    /// With [`Split::Clients`], only the first `active` workers get updates.
    active: usize,
    /// Updates that lie in the pool, by sequence number.
    updates: BTreeMap<u32, Update>,
    queue: VecDeque<u32>,
    next: u32,
    round: u32,
    is_commit_due: bool,
    is_closing: bool,
    failed: Option<String>,
    commits: u64,
    actions: VecDeque<Action>,
    middle: Middle,
    /// The work of the middle, while it adds up the leaves' sums.
    merging: Option<Merging>,
    /// Leaves in the order in which they committed for the last time in this round.
    finished: Vec<usize>,
    /// Rounds in which a leaf took over the work of the middle.
    reused: u64,
    /// Whether an update is assigned to workers whose process runs, if there are any.
    prefers_running: bool,
}

impl Ledger {
    /// A ledger without updates and without running workers. At most `reserve` updates may be done and still
    /// lie in the pool.
    pub fn new(workers: usize, split: Split, reserve: usize) -> Self {
        let workers: Vec<Share> = std::iter::repeat_with(Share::default).take(workers.max(1)).collect();
        Self {
            split,
            reserve,
            active: workers.len(),
            workers,
            updates: BTreeMap::new(),
            queue: VecDeque::new(),
            next: 0,
            round: 0,
            is_commit_due: false,
            is_closing: false,
            failed: None,
            commits: 0,
            actions: VecDeque::new(),
            middle: Middle::Node,
            merging: None,
            finished: Vec::new(),
            reused: 0,
            prefers_running: false,
        }
    }

    /// From now on updates are assigned to workers whose process runs, if there are any.
    pub fn prefer_running(&mut self) {
        self.prefers_running = true;
    }

    /// Removes and returns the next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Number of the round.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Number of times that all workers have committed.
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// The last commit of a worker in this round.
    pub fn base(&self, worker: usize) -> Option<&Base> {
        self.workers[worker].base.as_ref()
    }

    /// Whether a worker owes an answer to an order.
    pub fn is_awaited(&self, worker: usize) -> bool {
        let worker = &self.workers[worker];
        worker.is_alive && (!worker.given.is_empty() || worker.commit_requested)
    }

    /// Whether a worker that has died should be started again in this round.
    pub fn is_wanted(&self, worker: usize) -> bool {
        self.workers[worker].deaths <= MOST_DEATHS
    }

    /// From now on only the first `workers` workers get updates. The others keep their sums.
    pub fn set_active(&mut self, workers: usize) {
        self.active = workers.clamp(1, self.leaves());
    }

    /// Number of workers that get updates.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Number of updates that are not done yet.
    pub fn under_way(&self) -> usize {
        self.updates.values().filter(|update| !update.is_done).count()
    }

    /// Whether a worker must commit in this round. With [`Split::Ranges`] all workers must; with
    /// [`Split::Clients`], the workers to which an update was assigned. If there are none, one worker must, so that
    /// a round without updates has sums too.
    pub fn is_part(&self, worker: usize) -> bool {
        worker < self.leaves()
            && (self.split == Split::Ranges
                || self.workers[worker].assigned > 0
                || self.empty_round_worker() == Some(worker))
    }

    /// The worker that commits empty sums in a round in which no update was assigned. `None` if one was.
    fn empty_round_worker(&self) -> Option<usize> {
        let leaves = &self.workers[..self.leaves()];
        let cost = |&worker: &usize| {
            let is_away = self.prefers_running && !leaves[worker].is_alive;
            (!leaves[worker].has_committed, !self.is_wanted(worker), is_away)
        };
        leaves.iter().all(|leaf| leaf.assigned == 0).then(|| (0..leaves.len()).min_by_key(cost))?
    }

    /// Whether a worker's process can end without any update having to be folded again.
    pub fn is_idle(&self, worker: usize) -> bool {
        self.workers[worker].is_blank() && !self.has_work(worker)
    }

    /// Whether a worker has an update to fold or a commit to make.
    pub fn has_work(&self, worker: usize) -> bool {
        let of = &self.workers[worker];
        let is_its =
            |(sequence, update): (&u32, &Update)| update.workers.contains(&worker) && !of.has(*sequence);
        let owes_commit = self.is_commit_due && self.is_part(worker) && !of.has_committed;
        let is_middle = self.merging.as_ref().is_some_and(|merging| merging.middle == worker);
        self.failed.is_none() && (owes_commit || is_middle || self.updates.iter().any(is_its))
    }

    /// Adds an update that lies in the pool. Returns its sequence number.
    pub fn add(&mut self, name: Name, weight: f64) -> u32 {
        let sequence = self.next;
        self.next += 1;
        let workers = self.assigned();
        let update = Update { name, weight, workers, is_given: false, is_done: false };
        self.updates.insert(sequence, update);
        if let Some(why) = self.failed.clone() {
            self.drop_update(sequence, Err(why));
            return sequence;
        }
        self.queue.push_back(sequence);
        self.advance();
        sequence
    }

    /// Chooses the workers that fold the next update.
    fn assigned(&mut self) -> Vec<usize> {
        let chosen: Vec<usize> = match self.split {
            Split::Ranges => (0..self.workers.len()).collect(),
            Split::Clients => {
                let load = |&worker: &usize| {
                    let own = self.updates.values().filter(|update| update.workers == [worker]);
                    let is_away = self.prefers_running && !self.workers[worker].is_alive;
                    (!self.is_wanted(worker), is_away, own.count(), self.workers[worker].assigned)
                };
                (0..self.active).min_by_key(load).into_iter().collect()
            }
        };
        chosen.iter().for_each(|&worker| self.workers[worker].assigned += 1);
        chosen
    }

    /// Notes that a worker's process has started. It has taken over the commit that [`Ledger::base`] returned
    /// in `round`.
    pub fn started(&mut self, worker: usize, round: u32) {
        let of = &mut self.workers[worker];
        of.is_alive = true;
        of.forget();
        if round != self.round {
            self.tell(worker, Order::Begin);
        }
        self.give_again(worker);
        self.merge_at(worker);
        self.advance();
    }

    /// Notes that a worker's process has ended on request.
    pub fn left(&mut self, worker: usize) {
        self.workers[worker].is_alive = false;
        self.workers[worker].forget();
    }

    /// Notes that a worker's process has ended without a request.
    pub fn died(&mut self, worker: usize) {
        self.left(worker);
        self.workers[worker].deaths += 1;
        self.fail_if_stuck();
    }

    /// Processes a worker's report that it has added an update to its sums.
    ///
    /// # Errors
    /// [`Lie`] if the worker was not given this update.
    pub fn folded(&mut self, worker: usize, task: u32, sequence: u32, key: Key) -> Result<(), Lie> {
        let of = &mut self.workers[worker];
        if of.task != task || !of.is_alive {
            return Ok(());
        }
        let update = self.updates.get(&sequence).filter(|update| update.name.key == key);
        if update.is_none() || !of.given.remove(&sequence) {
            return Err(Lie("that it folded an update that it was not given"));
        }
        of.folded.insert(sequence);
        of.deaths = 0;
        self.advance();
        Ok(())
    }

    /// Processes a worker's report that it cannot add an update to its sums, and has not added it.
    ///
    /// # Errors
    /// [`Lie`] if the worker was not given this update.
    pub fn refused(&mut self, worker: usize, task: u32, sequence: u32, why: &str) -> Result<(), Lie> {
        let of = &mut self.workers[worker];
        if of.task != task || !of.is_alive {
            return Ok(());
        }
        if self.merging.as_ref().is_some_and(|merging| merging.middle == worker) {
            self.fail(format!("the leaves' sums cannot be added up: {why}"));
            return Ok(());
        }
        if !of.given.contains(&sequence) {
            return Err(Lie("that it refuses an update that it was not given"));
        }
        let Some(update) = self.updates.get(&sequence) else { return Ok(()) };
        // Fail the round: the update is done, or a commit that may contain it is under way in another worker.
        // Neither can be undone.
        if update.is_done || self.is_committing() {
            self.fail(format!("an update that counts already cannot be added again: {why}"));
            return Ok(());
        }
        let workers = update.workers.clone();
        self.drop_update(sequence, Err(why.into()));
        for worker in workers {
            if !self.workers[worker].is_alive {
                continue;
            }
            self.workers[worker].forget();
            self.tell(worker, Order::Rollback);
            self.give_again(worker);
        }
        self.advance();
        Ok(())
    }

    /// Processes a worker's report that it has committed its sums.
    ///
    /// # Errors
    /// [`Lie`] if the worker was not ordered to commit, or if its statement about its sums cannot be true.
    pub fn committed(&mut self, worker: usize, task: u32, base: Base) -> Result<(), Lie> {
        let of = &mut self.workers[worker];
        if of.task != task || !of.is_alive {
            return Ok(());
        }
        if !of.commit_requested {
            return Err(Lie("that it committed without being asked"));
        }
        let is_old = of.base.as_ref().is_some_and(|old| old.slot == base.slot);
        let has_begun = !of.folded.is_empty() || self.merging.is_some();
        if base.slot > 1 || is_old && has_begun {
            return Err(Lie("that its sums lie where they cannot"));
        }
        of.counted += of.folded.len() as u32;
        if base.head.contributions() > of.counted {
            return Err(Lie("that its sums are of more updates than it was given"));
        }
        of.in_base.append(&mut of.folded);
        of.base = Some(base);
        of.commit_requested = false;
        of.has_committed = true;
        of.deaths = 0;
        if self.merging.is_some() {
            self.merged();
            return Ok(());
        }
        self.finished.retain(|&one| one != worker);
        self.finished.push(worker);
        self.advance();
        Ok(())
    }

    /// Closes the round: no more updates will be added. [`Action::Closed`] follows.
    pub fn close(&mut self) {
        if let Some(why) = &self.failed {
            self.actions.push_back(Action::Closed(Err(why.clone())));
            return;
        }
        self.is_closing = true;
        self.advance();
    }

    /// Begins a round. Drops the updates of the previous round.
    pub fn begin(&mut self) {
        for sequence in self.updates.keys().copied().collect::<Vec<_>>() {
            self.drop_update(sequence, Err("the round is over".into()));
        }
        self.round += 1;
        self.next = 0;
        (self.is_commit_due, self.is_closing, self.failed) = (false, false, None);
        self.merging = None;
        self.finished.clear();
        for worker in 0..self.workers.len() {
            let of = &mut self.workers[worker];
            of.forget();
            of.base = None;
            of.in_base.clear();
            (of.has_committed, of.counted, of.deaths, of.assigned) = (false, 0, 0, 0);
            if of.is_alive {
                self.tell(worker, Order::Begin);
            }
        }
    }

    /// Fails the round: it yields no mean. All its updates are dropped.
    pub fn fail(&mut self, why: String) {
        for sequence in self.updates.keys().copied().collect::<Vec<_>>() {
            self.drop_update(sequence, Err(why.clone()));
        }
        let was_merging = self.merging.take().is_some();
        if std::mem::take(&mut self.is_closing) || was_merging {
            self.actions.push_back(Action::Closed(Err(why.clone())));
        }
        self.is_commit_due = false;
        self.failed.get_or_insert(why);
    }
}
