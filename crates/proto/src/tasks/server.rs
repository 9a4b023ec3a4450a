//! The server's side: which member has which tasks, and how far each has come.

mod members;
mod results;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use thalweg_wire::control::{Content, Control, Parcel, Purpose, MAX_HEAD};
use thalweg_wire::{Layout, Ranges, Tolerance};

use super::part::{Judgement, Part, Stage};
use super::{Reply, ReplyState};
use crate::session::{roster_methods, Action, Admission, LinkId, Roster, SessionConfig};
use crate::transfer::{Outgoing, Rule};
use crate::{micros, Time};

/// What does not change while a server of tasks lives.
#[derive(Debug, Clone)]
pub struct TaskConfig {
    /// The job's number, in every chunk.
    pub job: u64,
    /// What its members are: of tasks, or nodes of a tree.
    pub purpose: Purpose,
    /// Bytes of payload in a chunk.
    pub chunk: u32,
    /// Least time without progress that ends a link.
    pub liveness: Time,
    /// How long a member may be away before its part in a task is lost.
    pub grace: Time,
    /// Most members, ever.
    pub max_members: u32,
    /// Most tasks that may be open at once.
    pub max_open: usize,
    /// Most tasks that a member is given at once; the others wait.
    pub ahead: usize,
    /// Bytes of results that may be staged for folding at a time; one result may always be.
    pub staging: u64,
    /// Most bytes that one result may have.
    pub max_result: u64,
    /// Most that one result may weigh in a mean.
    pub max_weight: f64,
}

/// A task to be opened.
#[derive(Debug, Clone)]
pub struct TaskPlan {
    /// For the members' application, at most [`MAX_HEAD`] bytes.
    pub head: Vec<u8>,
    /// Of its tensors; may be empty.
    pub layout: Arc<Layout>,
    /// Tasks with the same number here have the same bytes, which need not be sent twice.
    pub bytes_id: u64,
    /// To whom.
    pub members: Vec<String>,
    /// Within what time results are wanted.
    pub deadline: Option<Time>,
    /// The layout that results must have to be folded; `None`: they are handed over.
    pub fold: Option<Arc<Layout>>,
    /// What may be missing of a result that is folded: each element's mean is then over those who sent it. `None`: all of a
    /// result has to come.
    pub missing: Option<Arc<Tolerance>>,
    /// The application judges head and weight of each result before any byte of it is asked for: [`TaskAction::Judge`].
    pub judged: bool,
}

impl TaskPlan {
    fn rule(&self) -> Rule {
        Rule { stands_in: self.missing.is_some(), tolerance: self.missing.clone().unwrap_or_default() }
    }

    /// Says why no task can be opened so, if that is the plan's own fault.
    fn possible(&self) -> Result<(), String> {
        if self.members.is_empty() {
            return Err("a task needs at least one member".into());
        }
        if self.head.len() > MAX_HEAD {
            let bytes = self.head.len();
            return Err(format!("a head of {bytes} bytes is over {MAX_HEAD}; send it as a tensor"));
        }
        let Some(missing) = &self.missing else { return Ok(()) };
        let Some(fold) = &self.fold else {
            return Err("only of results that are folded may anything be missing; fold them".into());
        };
        let (of, bytes) = (missing.bytes(), fold.bytes());
        if !missing.is_empty() && of != bytes {
            return Err(format!("what may be missing is said of {of} bytes, and results have {bytes}"));
        }
        Ok(())
    }
}

/// What tasks ask of the server's driver.
#[derive(Debug)]
pub enum TaskAction {
    /// Ask the application whether it takes a result with this head and weight, then tell [`TaskServer::judged`].
    Judge {
        /// The task.
        task: u32,
        /// Whose.
        sender: u32,
        /// The member's name.
        member: String,
        /// The result's head.
        head: Vec<u8>,
        /// The result's weight.
        weight: f64,
    },
    /// Fold what came of the result of `sender` with this weight and free it, then tell [`TaskServer::folded`].
    Fold {
        /// The task.
        task: u32,
        /// Whose.
        sender: u32,
        /// Weight.
        weight: f64,
        /// What did not come of it.
        holes: Ranges,
    },
    /// Free what has come of a result.
    Discard {
        /// The task.
        task: u32,
        /// Whose.
        sender: u32,
    },
    /// A member's part in a task is over. If it is done and the task does not fold, its result is handed over.
    Settled(Box<Reply>),
    /// All parts of a task are over: its tensors are needed no longer.
    Closed {
        /// The task.
        task: u32,
    },
}

/// Where a chunk of a result goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskPlace {
    /// Nowhere: late, duplicate or of no open task.
    Nothing,
    /// Nothing of it is there yet: in place.
    New {
        /// The task.
        task: u32,
        /// Whose result.
        sender: u32,
        /// Bytes of the whole result.
        total: u64,
    },
    /// Part of it is there: aside first.
    Part {
        /// The task.
        task: u32,
        /// Whose result.
        sender: u32,
        /// Bytes of the whole result.
        total: u64,
    },
}

struct Task {
    plan: TaskPlan,
    /// Members whose part is not over, by number.
    parts: BTreeMap<u32, Part>,
    started: Time,
    deadline: Option<Time>,
    timer: Option<Time>,
}

/// What is known of a member.
#[derive(Debug, Default)]
pub(crate) struct Assigned {
    /// Its open tasks.
    tasks: BTreeSet<u32>,
    /// Those that it has not been given yet, in order.
    queue: VecDeque<u32>,
    /// The others, of which there are few.
    given: BTreeSet<u32>,
    /// Those whose results are on their way.
    returning: BTreeSet<u32>,
    /// The last task of which it has all bytes, and what these are.
    holds: Option<(u32, u64)>,
}

/// What is being sent on a link, and what waits for that.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    sending: Option<u32>,
    waiting: VecDeque<u32>,
}

/// The state machine of a server of tasks.
pub struct TaskServer {
    config: TaskConfig,
    roster: Roster<Assigned, Outbound, TaskAction>,
    tasks: BTreeMap<u32, Task>,
    timers: BTreeSet<(Time, u32)>,
    last: u32,
    /// Results that wait for staging, and what of it is used.
    room: VecDeque<(u32, u32)>,
    staged: u64,
}

impl TaskServer {
    roster_methods!(TaskAction);

    /// A server without members and tasks.
    pub fn new(config: TaskConfig, admission: Box<dyn Admission>) -> Self {
        let sessions = SessionConfig {
            job: config.job,
            purpose: config.purpose,
            liveness: config.liveness,
            max_members: config.max_members,
        };
        Self {
            config,
            roster: Roster::new(sessions, admission),
            tasks: BTreeMap::new(),
            timers: BTreeSet::new(),
            last: 0,
            room: VecDeque::new(),
            staged: 0,
        }
    }

    /// How many tasks are open.
    pub fn open_count(&self) -> usize {
        self.tasks.len()
    }

    /// Opens a task; returns its number. Members that are not there have [`TaskConfig::grace`] to come.
    ///
    /// # Errors
    /// If too many tasks are open, nobody is named, somebody is named twice or cannot be named so, the head is too long, or
    /// something may be missing of results that are not folded.
    pub fn open(&mut self, now: Time, plan: TaskPlan) -> Result<u32, String> {
        self.possible(&plan)?;
        let number =
            self.last.checked_add(1).ok_or("the job has had all tasks it can have; start another")?;
        let mut parts = BTreeMap::new();
        for name in &plan.members {
            let sender = self.roster.reserve(name)?;
            if parts.insert(sender, Part::new(number, name)).is_some() {
                return Err(format!("{name:?} is named twice"));
            }
        }
        self.last = number;
        let senders: Vec<u32> = parts.keys().copied().collect();
        let deadline = plan.deadline.map(|limit| now.saturating_add(limit));
        self.tasks.insert(number, Task { plan, parts, started: now, deadline, timer: None });
        for &sender in &senders {
            let away = self.roster.link_of(sender).is_none();
            if let Some(part) = self.part(number, sender) {
                part.away = away.then_some(now);
            }
            if let Some(member) = self.roster.member_mut(sender) {
                member.own.tasks.insert(number);
                member.own.queue.push_back(number);
            }
        }
        self.give(now, &senders);
        self.look_later(number);
        Ok(number)
    }

    fn possible(&self, plan: &TaskPlan) -> Result<(), String> {
        let (open, most) = (self.tasks.len(), self.config.max_open);
        if open >= most {
            return Err(format!(
                "{open} tasks are open, and {most} may be; wait for results, or cancel some"
            ));
        }
        if self.roster.is_finished() {
            return Err("the job is over".into());
        }
        plan.possible()
    }

    /// Nobody wants the results of a task any more.
    pub fn cancel(&mut self, now: Time, task: u32) {
        self.end_parts(now, task, ReplyState::Cancelled, |_| "was cancelled".into());
    }

    fn part(&mut self, task: u32, sender: u32) -> Option<&mut Part> {
        self.tasks.get_mut(&task)?.parts.get_mut(&sender)
    }

    /// Gives members their next tasks, as many as each may have. The same task goes to all of them in one call.
    fn give(&mut self, now: Time, senders: &[u32]) {
        let mut group: BTreeMap<u32, Vec<LinkId>> = BTreeMap::new();
        for &sender in senders {
            let Some(link) = self.roster.link_of(sender) else { continue };
            while let Some(task) = self.next_of(sender) {
                if self.offer(now, sender, link, task) && self.take_turn(link, task) {
                    group.entry(task).or_default().push(link);
                }
                self.watch(now, link, sender);
            }
        }
        for (parcel, links) in group {
            let wanted = self.tasks.get(&parcel).map(|task| Ranges::full(task.plan.layout.bytes()));
            self.roster.act(Action::SendParcel { links, parcel, wanted: wanted.unwrap_or_default() });
        }
    }

    /// The next task that a member may be given.
    fn next_of(&mut self, sender: u32) -> Option<u32> {
        let ahead = self.config.ahead.max(1);
        let own = &mut self.roster.member_mut(sender)?.own;
        if own.given.len() >= ahead {
            return None;
        }
        let next = own.queue.pop_front()?;
        own.given.insert(next);
        Some(next)
    }

    /// Offers a task to a member; returns whether its chunks are to follow.
    fn offer(&mut self, now: Time, sender: u32, link: LinkId, number: u32) -> bool {
        let Some(member) = self.roster.member(sender) else { return false };
        let (instance, holds) = (member.instance, member.own.holds);
        let Some(task) = self.tasks.get_mut(&number) else { return false };
        let Some(part) = task.parts.get_mut(&sender) else { return false };
        let plan = &task.plan;
        let bytes = plan.layout.bytes();
        let same_as = holds.filter(|(_, id)| bytes > 0 && *id == plan.bytes_id).map(|(number, _)| number);
        // A process that may have some of it asks for the rest.
        let pushed = bytes > 0 && same_as.is_none() && !part.known;
        let content = if plan.layout.tensors().is_empty() {
            Content::Nothing
        } else {
            Content::Tensors((*plan.layout).clone())
        };
        let deadline = task.deadline.map(|at| micros(at.saturating_sub(now)));
        let head = plan.head.clone();
        (part.stage, part.instance, part.known) = (Stage::Sending, Some(instance), true);
        (part.away, part.sent_at) = (None, now);
        let parcel = Parcel { number, pushed, head, content, same_as, weight: 0.0, deadline };
        self.roster.send(link, Control::Offer(parcel));
        if pushed {
            part.out = Outgoing::pushed();
        }
        pushed
    }

    /// What is due of all tasks at a later time.
    fn look_later(&mut self, number: u32) {
        let grace = self.config.grace;
        let Some(task) = self.tasks.get_mut(&number) else { return };
        let away = task.parts.values().filter_map(|part| part.away).min();
        let away = away.map(|since| since.saturating_add(grace));
        let next = task.deadline.into_iter().chain(away).min();
        if next != task.timer {
            if let Some(before) = task.timer {
                self.timers.remove(&(before, number));
            }
            if let Some(next) = next {
                self.timers.insert((next, number));
            }
            task.timer = next;
        }
    }

    /// When [`TaskServer::timeout`] wants to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.roster.next_timer().into_iter().chain(self.timers.first().map(|(at, _)| *at)).min()
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Time) {
        self.look_at_links(now);
        while let Some((_, number)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.overdue(now, number);
            // What is still due after that is looked at later, never again at once.
            if let Some(task) = self.tasks.get_mut(&number) {
                if let Some(at) = task.timer.take() {
                    self.timers.remove(&(at, number));
                }
                self.look_later(number);
            }
        }
    }

    fn overdue(&mut self, now: Time, number: u32) {
        let Some(task) = self.tasks.get(&number) else { return };
        if let Some(limit) = task.deadline.filter(|&at| now >= at) {
            let limit = limit.saturating_sub(task.started).as_secs_f64();
            return self.end_parts(now, number, ReplyState::Late, |part| {
                format!("did not answer by the deadline of {limit} s: it was {}", part.stage.doing())
            });
        }
        let grace = self.config.grace;
        let gone = task.parts.iter().filter(|(_, part)| {
            part.away.is_some_and(|since| now >= since.saturating_add(grace)) && part.stage != Stage::Staged
        });
        let gone: Vec<u32> = gone.map(|(&sender, _)| sender).collect();
        for sender in gone {
            let why = self.roster.member(sender).and_then(|m| m.parting.clone());
            let why = why.unwrap_or_else(|| format!("was not there within {} s", grace.as_secs_f64()));
            self.settle(now, number, sender, ReplyState::Lost, Some(why));
        }
    }

    fn end_parts(&mut self, now: Time, number: u32, state: ReplyState, why: impl Fn(&Part) -> String) {
        let Some(task) = self.tasks.get(&number) else { return };
        // What is being folded gets into the mean.
        let open = task.parts.iter().filter(|(_, part)| part.stage != Stage::Staged);
        let ended: Vec<(u32, String)> = open.map(|(&sender, part)| (sender, why(part))).collect();
        for (sender, reason) in ended {
            self.settle(now, number, sender, state, Some(reason));
        }
        if let Some(task) = self.tasks.get_mut(&number) {
            task.deadline = None;
        }
        self.look_later(number);
    }

    /// A member's part is over.
    fn settle(&mut self, now: Time, number: u32, sender: u32, state: ReplyState, reason: Option<String>) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        let Some(mut part) = task.parts.remove(&sender) else { return };
        let (folds, last) = (task.plan.fold.is_some(), task.parts.is_empty());
        let done = state == ReplyState::Done;
        let Some(member) = self.roster.member_mut(sender) else { return };
        let name = member.name.clone();
        member.own.tasks.remove(&number);
        if !member.own.given.remove(&number) {
            member.own.queue.retain(|&waiting| waiting != number);
        }
        member.own.returning.remove(&number);
        if !done && part.is_begun() {
            self.roster.want(TaskAction::Discard { task: number, sender });
        }
        self.release(number, sender, part.room);
        if let Some(link) = self.roster.link_of(sender) {
            self.tell(link, number, &part, state, reason.as_deref());
            self.watch(now, link, sender);
        }
        let coverage = if done { part.incoming.came().fraction() } else { 0.0 };
        let transfers = part.transfers();
        let answer = part.answer.filter(|_| done);
        let reply = Reply { task: number, sender, member: name, state, reason, answer, coverage, transfers };
        self.roster.want(TaskAction::Settled(Box::new(reply)));
        if last {
            self.close(number);
        }
        // Another result may have waited for the room, and another task for the member.
        if folds {
            self.make_room(now);
        }
        self.give(now, &[sender]);
    }

    /// Tells a member what became of its part, and stops what is under way of it.
    fn tell(&mut self, link: LinkId, number: u32, part: &Part, state: ReplyState, reason: Option<&str>) {
        if part.stage == Stage::Queued {
            return;
        }
        let sending = self.roster.on_link(link, |served| {
            served.own.waiting.retain(|&waiting| waiting != number);
            served.own.sending == Some(number)
        });
        if sending == Some(true) {
            self.roster.act(Action::Cancel { link, parcel: Some(number) });
        }
        let message = match state {
            ReplyState::Done => Control::Accepted { parcel: number },
            ReplyState::Failed if part.offered => {
                Control::Rejected { parcel: number, reason: reason.unwrap_or_default().into() }
            }
            _ => Control::Closed { parcel: number },
        };
        self.roster.send(link, message);
    }

    fn close(&mut self, number: u32) {
        if let Some(at) = self.tasks.remove(&number).and_then(|task| task.timer) {
            self.timers.remove(&(at, number));
        }
        self.roster.want(TaskAction::Closed { task: number });
    }

    /// The job is over: everybody is told, nobody is let in any more, and what is open is cancelled.
    pub fn finish(&mut self, now: Time, reason: &str) {
        for number in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.end_parts(now, number, ReplyState::Cancelled, |_| format!("the job is over: {reason}"));
        }
        self.roster.finish(reason);
        for link in self.roster.links() {
            self.roster.act(Action::Cancel { link, parcel: None });
            self.roster.send(link, Control::Bye { reason: reason.into() });
            self.drop_link(now, link, &format!("the job is over: {reason}"));
            self.roster.close(link);
        }
    }
}
