//! The server's side: the tasks that each member has, and the stage of each.

mod members;
mod results;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use thalweg_wire::control::{Content, Control, Parcel, Purpose, MAX_HEAD};
use thalweg_wire::{Layout, Ranges, Tolerance};

use super::part::{Judgement, Part, Stage};
use super::{Reply, ReplyState};
use crate::session::{Action, Admission, LinkId, Roster, SessionConfig};
use crate::transfer::{Outgoing, Rule};
use crate::{micros, Time};

/// The settings of a server of tasks, which never change.
#[derive(Debug, Clone)]
pub struct TaskConfig {
    /// The job's number, which every chunk carries.
    pub job: u64,
    /// The role of the members: clients of tasks, or nodes of a tree.
    pub purpose: Purpose,
    /// Payload bytes of a chunk.
    pub chunk: u32,
    /// A link without progress for this long, or longer on a slow link, counts as broken.
    pub liveness: Time,
    /// How long a member may be away before its part in a task is lost.
    pub grace: Time,
    /// Maximum number of members that the job may ever have.
    pub max_members: u32,
    /// Maximum number of tasks that may be open at once.
    pub max_open: usize,
    /// Maximum number of tasks that a member is given at once. Its other tasks wait.
    pub ahead: usize,
    /// Bytes of results that may be staged for folding at the same time. One result is always allowed.
    pub staging: u64,
    /// The greatest size of a result, in bytes.
    pub max_result: u64,
    /// The greatest weight of a result in a mean.
    pub max_weight: f64,
}

/// A task to be opened.
#[derive(Debug, Clone)]
pub struct TaskPlan {
    /// Bytes for the members' application, at most [`MAX_HEAD`].
    pub head: Vec<u8>,
    /// The layout of the task's tensors; may be empty.
    pub layout: Arc<Layout>,
    /// Identifies the tensor bytes. Tasks with the same `bytes_id` have the same bytes, so these are sent
    /// only once.
    pub bytes_id: u64,
    /// The names of the members that get the task.
    pub members: Vec<String>,
    /// How long members may take to answer; `None`: no limit.
    pub deadline: Option<Time>,
    /// The layout that results must have to be folded; `None`: results are handed over one by one.
    pub fold: Option<Arc<Layout>>,
    /// Which bytes of a folded result may be missing. Each element's mean is then taken over the results that
    /// have it. `None`: every byte must arrive.
    pub missing: Option<Arc<Tolerance>>,
    /// Whether the application judges the head and weight of each result before the server asks for its
    /// bytes: [`TaskAction::Judge`].
    pub judged: bool,
}

impl TaskPlan {
    fn rule(&self) -> Rule {
        Rule { stands_in: self.missing.is_some(), tolerance: self.missing.clone().unwrap_or_default() }
    }

    /// An error if this plan can never be a task.
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
            return Err("bytes may be missing only from results that are folded; fold them".into());
        };
        let (of, bytes) = (missing.bytes(), fold.bytes());
        if !missing.is_empty() && of != bytes {
            return Err(format!(
                "the rule for missing bytes is for results of {of} bytes, and results have {bytes}"
            ));
        }
        Ok(())
    }
}

/// A request to the server's driver about a task.
#[derive(Debug)]
pub enum TaskAction {
    /// Ask the application whether it accepts a result with this head and weight, then call
    /// [`TaskServer::judged`].
    Judge {
        /// The task's number.
        task: u32,
        /// The member's number.
        sender: u32,
        /// The member's name.
        member: String,
        /// The result's head.
        head: Vec<u8>,
        /// The result's weight.
        weight: f64,
    },
    /// Fold the received bytes of this result with this weight and free its memory, then call
    /// [`TaskServer::folded`].
    Fold {
        /// The task's number.
        task: u32,
        /// The member's number.
        sender: u32,
        /// The result's weight.
        weight: f64,
        /// The ranges that are missing.
        holes: Ranges,
    },
    /// Free the received bytes of a result.
    Discard {
        /// The task's number.
        task: u32,
        /// The member's number.
        sender: u32,
    },
    /// A member's part in a task is over. If its state is `Done` and the task does not fold, hand over its
    /// result.
    Settled(Box<Reply>),
    /// All parts of a task are over, so its tensors are not needed any more.
    Closed {
        /// The task's number.
        task: u32,
    },
}

/// Where the driver puts a chunk of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskPlace {
    /// Nowhere: the chunk is late, a duplicate, or of no open task.
    Nothing,
    /// Directly into the result's memory, since none of the chunk's bytes have arrived yet.
    New {
        /// The task's number.
        task: u32,
        /// The number of the member whose result it is.
        sender: u32,
        /// Bytes of the whole result.
        total: u64,
    },
    /// Into a buffer first: some of the chunk's bytes have already arrived, and must not be overwritten.
    Part {
        /// The task's number.
        task: u32,
        /// The number of the member whose result it is.
        sender: u32,
        /// Bytes of the whole result.
        total: u64,
    },
}

struct Task {
    plan: TaskPlan,
    /// The parts that are not over, by member number.
    parts: BTreeMap<u32, Part>,
    started: Time,
    deadline: Option<Time>,
    /// The time of the task's next check; it is in [`TaskServer::timers`] under this time.
    timer: Option<Time>,
}

/// The tasks of one member.
#[derive(Debug, Default)]
pub struct Assigned {
    /// The member's open tasks.
    tasks: BTreeSet<u32>,
    /// Tasks that wait to be given to the member, in order.
    queue: VecDeque<u32>,
    /// Tasks that the member has: normally at most [`TaskConfig::ahead`].
    given: BTreeSet<u32>,
    /// Tasks whose results the member is sending.
    returning: BTreeSet<u32>,
    /// The last task of which the member has all bytes: its number, and [`TaskPlan::bytes_id`].
    holds: Option<(u32, u64)>,
}

/// The task that is being sent on a link, and the tasks that wait.
#[derive(Debug, Default)]
pub struct Outbound {
    /// The task whose bytes are being sent.
    sending: Option<u32>,
    /// Tasks that wait until the link is free.
    waiting: VecDeque<u32>,
}

/// The state machine of a server of tasks.
pub struct TaskServer {
    config: TaskConfig,
    roster: Roster<Assigned, Outbound, TaskAction>,
    tasks: BTreeMap<u32, Task>,
    timers: BTreeSet<(Time, u32)>,
    /// The number of the last task.
    last: u32,
    /// Results that wait for staging memory, as (task, member).
    waiting: VecDeque<(u32, u32)>,
    /// Bytes of staging memory that are taken.
    staged: u64,
}

impl TaskServer {
    /// Makes a server without members and tasks.
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
            waiting: VecDeque::new(),
            staged: 0,
        }
    }

    /// How many tasks are open.
    pub fn open_count(&self) -> usize {
        self.tasks.len()
    }

    /// Opens a task and returns its number. Members that are not connected have [`TaskConfig::grace`] to
    /// come.
    ///
    /// # Errors
    /// If too many tasks are open, or the head is too long. If no member is named, or a name is not valid or
    /// occurs twice. If bytes may be missing of results that are not folded.
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

    /// Cancels a task: its results are not wanted any more.
    pub fn cancel(&mut self, now: Time, task: u32) {
        self.end_parts(now, task, ReplyState::Cancelled, |_| "was cancelled".into());
    }

    fn part(&mut self, task: u32, sender: u32) -> Option<&mut Part> {
        self.tasks.get_mut(&task)?.parts.get_mut(&sender)
    }

    /// Gives members their next tasks, as many as each may have. One send gives a task to all members that
    /// get it now.
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
            self.roster.act(Action::SendParcel {
                links,
                parcel,
                difference: false,
                wanted: wanted.unwrap_or_default(),
            });
        }
    }

    /// Takes the next task that a member may be given from its queue.
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

    /// Offers a task to a member. Returns whether the task's chunks must be sent now.
    fn offer(&mut self, now: Time, sender: u32, link: LinkId, number: u32) -> bool {
        let Some(member) = self.roster.member(sender) else { return false };
        let (instance, holds) = (member.instance, member.own.holds);
        let Some(task) = self.tasks.get_mut(&number) else { return false };
        let Some(part) = task.parts.get_mut(&sender) else { return false };
        let plan = &task.plan;
        let bytes = plan.layout.bytes();
        let same_as = holds.filter(|(_, id)| bytes > 0 && *id == plan.bytes_id).map(|(number, _)| number);
        // A process that was offered this task before may have some of its bytes. It will ask for the rest.
        let pushed = bytes > 0 && same_as.is_none() && !part.task_offered;
        let content = if plan.layout.tensors().is_empty() {
            Content::Nothing
        } else {
            Content::Tensors((*plan.layout).clone())
        };
        let deadline = task.deadline.map(|at| micros(at.saturating_sub(now)));
        let head = plan.head.clone();
        (part.stage, part.instance, part.task_offered) = (Stage::Sending, Some(instance), true);
        (part.away, part.sent_at) = (None, now);
        let parcel = Parcel { number, pushed, head, content, same_as, weight: 0.0, deadline };
        self.roster.send(link, Control::Offer(parcel));
        if pushed {
            part.out = Outgoing::pushed();
        }
        pushed
    }

    /// Sets the task's timer to its deadline, or the end of the first grace of a member.
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

    fn overdue(&mut self, now: Time, number: u32) {
        let Some(task) = self.tasks.get(&number) else { return };
        if let Some(limit) = task.deadline.filter(|&at| now >= at) {
            let limit = limit.saturating_sub(task.started).as_secs_f64();
            return self.end_parts(now, number, ReplyState::Late, |part| {
                format!("did not answer by the deadline of {limit} s: it was {}", part.stage.doing())
            });
        }
        let grace = self.config.grace;
        let departed = task.parts.iter().filter(|(_, part)| {
            part.away.is_some_and(|since| now >= since.saturating_add(grace)) && part.stage != Stage::Staged
        });
        let departed: Vec<u32> = departed.map(|(&sender, _)| sender).collect();
        for sender in departed {
            let why = self.roster.member(sender).and_then(|m| m.parting.clone());
            let why = why.unwrap_or_else(|| format!("was not there within {} s", grace.as_secs_f64()));
            self.settle(now, number, sender, ReplyState::Lost, Some(why));
        }
    }

    fn end_parts(&mut self, now: Time, number: u32, state: ReplyState, why: impl Fn(&Part) -> String) {
        let Some(task) = self.tasks.get(&number) else { return };
        // Results that are being folded get into the mean, so these parts go on.
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

    /// Ends a member's part in a task.
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
        self.release(number, sender, part.staged_bytes);
        if let Some(link) = self.roster.link_of(sender) {
            self.tell(link, number, &part, state, reason.as_deref());
            self.watch(now, link, sender);
        }
        let coverage = if done { part.incoming.reassembly().fraction() } else { 0.0 };
        let transfers = part.transfers();
        let answer = part.answer.filter(|_| done);
        let reply = Reply { task: number, sender, member: name, state, reason, answer, coverage, transfers };
        self.roster.want(TaskAction::Settled(Box::new(reply)));
        if last {
            self.close(number);
        }
        // The end may have freed staging memory for another result, and the member may get another task.
        if folds {
            self.make_room(now);
        }
        self.give(now, &[sender]);
    }

    /// Tells a member how its part ended, and stops sending it the task.
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
}
