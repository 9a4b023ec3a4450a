//! A server of tasks: it sends tasks, and folds their results or hands them over.

use std::collections::{HashMap, VecDeque};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, MAX_WEIGHT};
use thalweg_proto as proto;
use thalweg_proto::{Action, LinkId, Reply, ReplyState, ServerMachine, TaskAction, TaskPlan};
use thalweg_transport::{Address, Sink};
use thalweg_wire::control::StandIn;
use thalweg_wire::{ChunkHeader, Layout, Ranges, Tolerance};

use super::folding::{self, SpareSums};
use super::options::TaskServerOptions;
use super::sinks::ResultSink;
use super::store::{Kept, Store};
use super::who;
use crate::engine::{caller_timeout, goes_on, GoOn, Hub, HubOptions, HubPolicy, Lent, Scratch};
use crate::options::{seconds, usual_chunk, DEFAULT_CHUNK};
use crate::star::{written, Transfer};
use crate::{lock, registry, Error, Kind};

/// Maximum number of members that a job may ever have.
const MAX_MEMBERS: u32 = 1 << 16;

/// Accepts a result by its member's name, its head and its weight, or returns the reason for refusing it. It
/// runs on a blocking thread, before any byte of the result is requested.
pub type Judge = Arc<dyn Fn(&str, &[u8], f64) -> Result<(), String> + Send + Sync>;

/// A task to send.
pub struct NewTask {
    /// Head of the task, for the members' application.
    pub head: Vec<u8>,
    /// The task's tensors; `None` if it has none. Do not write to them until every member has them or has
    /// failed.
    pub tensors: Option<(Arena, Arc<Layout>)>,
    /// Tasks with the same number here have the same bytes. A member gets these bytes only once.
    pub bytes_id: u64,
    /// Names of the members that get the task.
    pub members: Vec<String>,
    /// Seconds within which results are wanted; `None` for no limit.
    pub deadline: Option<f64>,
    /// The layout of results that are folded into a mean; `None`: results are handed over.
    pub fold: Option<Arc<Layout>>,
    /// For each tensor of `fold`, in order, the fraction of its bytes that may be missing in a result. No
    /// byte may be missing of a tensor that the task does not have in the same form. `None`: no byte may be
    /// missing at all.
    pub missing: Option<Vec<f64>>,
    /// Judges each result before it is received; `None`: all are accepted.
    pub judge: Option<Judge>,
}

impl NewTask {
    /// The rule that says which bytes of results may be missing.
    fn tolerance(&self) -> Result<Option<Arc<Tolerance>>, Error> {
        let Some(shares) = &self.missing else { return Ok(None) };
        let needs =
            || Error::new(Kind::Options, "open task", "only of results that are folded may parts be missing");
        let fold = self.fold.as_ref().ok_or_else(needs)?;
        let sent = self.tensors.as_ref().map(|(_, layout)| layout.clone()).unwrap_or_default();
        folding::tolerance(fold, shares, &sent).map(|rule| Some(Arc::new(rule)))
    }
}

/// The outcome of one member's part in a task.
pub struct TaskReply {
    /// Name of the member.
    pub member: String,
    /// How the member's part ended.
    pub state: ReplyState,
    /// Why the part is not done; `None` if it is done.
    pub reason: Option<String>,
    /// Head of the result.
    pub head: Vec<u8>,
    /// Weight of the result.
    pub weight: f64,
    /// Fraction of the result's tensors that arrived, from 0 to 1.
    pub coverage: f64,
    /// The result's tensors, if it has any and they were not folded. The arena is empty if they have no
    /// bytes.
    pub tensors: Option<(Arena, Arc<Layout>)>,
    /// The transfers in both directions, as a JSON list.
    pub transfers: String,
}

/// A task that is open, or whose replies have not all been taken.
struct Open {
    tensors: Option<(Arena, Arc<Layout>)>,
    fold: Option<Arc<Accumulator>>,
    judge: Option<Judge>,
    /// Whether parts of results may be missing. Then the task's own tensors must stay until the mean is
    /// taken, as stand-ins.
    holed: bool,
    replies: VecDeque<(Reply, Option<Kept>)>,
    /// Whether all parts are over.
    closed: bool,
    /// Whether the task was released, so nobody will take its replies.
    released: bool,
}

/// The policy of a server of tasks.
pub(crate) struct Tasks {
    pub store: Store,
    open: Mutex<HashMap<u32, Open>>,
    spare_sums: SpareSums,
    /// Whether a chunk is a share of its task.
    share: bool,
    options: TaskServerOptions,
}

pub(super) type TaskHub = Hub<Tasks>;

/// A server that listens and sends tasks. Several threads may call its methods.
pub struct TaskServer {
    hub: Arc<TaskHub>,
}

impl TaskServer {
    /// Starts listening at `address`.
    ///
    /// # Errors
    /// The transport's error for the address, or `options` for an impossible option.
    pub fn start(address: &str, options: TaskServerOptions) -> Result<Self, Error> {
        options.check()?;
        let address = Address::parse(address)?;
        let transport = registry::transport_for(&address, &options.transport, &options.layers, options.seed)?;
        let capabilities = transport.capabilities();
        let chunk = capabilities.chunk(options.chunk, DEFAULT_CHUNK);
        let share = options.chunk.is_none() && capabilities.preferred_chunk == 0;
        let (purpose, role) = who(options.tree);
        let config = proto::TaskConfig {
            job: options.job,
            purpose,
            chunk,
            liveness: seconds(options.liveness),
            grace: seconds(options.grace),
            max_members: MAX_MEMBERS,
            max_open: options.max_open,
            ahead: options.ahead,
            staging: options.staging,
            max_result: options.max_result,
            max_weight: MAX_WEIGHT,
        };
        let hub = HubOptions {
            job: options.job,
            chunk,
            tolerance: Arc::default(),
            transport: options.transport.clone(),
            issuer: options.issuer.clone(),
            token: options.token.clone(),
            role,
            revoked: options.revoked.clone(),
            proofs: None,
            started: Instant::now(),
        };
        let folder = options.spill.clone().unwrap_or_else(std::env::temp_dir);
        let store = Store::new(options.memory, folder);
        let tasks = Tasks { store, open: Mutex::default(), spare_sums: SpareSums::default(), share, options };
        let hub = Hub::start(&transport, &address, hub, |gate, chunk| {
            let machine = proto::TaskServer::new(proto::TaskConfig { chunk, ..config }, gate);
            (Mutex::new(machine), tasks)
        })?;
        Ok(Self { hub })
    }

    /// The address that it listens at, with the port that the system chose.
    pub fn address(&self) -> String {
        self.hub.address()
    }

    /// Names of the connected members.
    pub fn clients(&self) -> Vec<String> {
        self.hub.clients()
    }

    /// Log lines since the last call.
    pub fn notes(&self) -> Vec<String> {
        self.hub.take_notes()
    }

    /// Members that are not connected any more: name, why the link ended, and whether the member left for
    /// good.
    pub fn departed(&self) -> Vec<(String, String, bool)> {
        self.hub.away()
    }

    /// Segments retransmitted so far on the way to each member (`down`) and by it (`up`), as a JSON object by
    /// name. Null if a transport does not count them. Waits at most `limit` for members that have not
    /// reported yet.
    pub fn resent(&self, limit: Duration) -> String {
        self.hub.resent(limit)
    }

    /// Waits until `members` members are connected, `limit` is over, or `go_on` returns false. Returns how
    /// many are connected.
    pub fn wait(&self, members: usize, limit: Option<Duration>, go_on: GoOn<'_>) -> usize {
        self.hub.wait_for_clients(members, limit, go_on)
    }

    /// Tells the server that a member's process has ended for good. The server closes the member's link, and
    /// no task waits for its result. `why` is the reason; an empty `why` means "its process has ended".
    pub fn forget(&self, member: &str, why: &str) {
        self.hub.forget(member, why);
    }

    /// Opens a task. Returns its number.
    ///
    /// # Errors
    /// `task` if too many tasks are open, or no member is named; `options` for an impossible deadline or an
    /// impossible rule of what may be missing.
    pub fn open(&self, task: NewTask) -> Result<u32, Error> {
        let hub = &self.hub;
        if task.deadline.is_some_and(|within| Duration::try_from_secs_f64(within).is_err()) {
            return Err(Error::new(Kind::Options, "open task", "a deadline is seconds, not negative"));
        }
        let layout = task.tensors.as_ref().map(|(_, layout)| layout.clone()).unwrap_or_default();
        let missing = task.tolerance()?;
        if let Some(missing) = &missing {
            hub.tolerate(missing);
        }
        let sums = task.fold.as_ref().map(|layout| hub.policy.sums(layout));
        let plan = TaskPlan {
            head: task.head,
            layout,
            bytes_id: task.bytes_id,
            members: task.members,
            deadline: task.deadline.map(seconds),
            fold: task.fold,
            missing,
            judged: task.judge.is_some(),
        };
        let holed = plan.missing.is_some();
        // Hold this lock while the machine learns of the task: the driver looks the task up here at once.
        let mut open = lock(&hub.policy.open);
        let number = lock(&hub.machine).open(hub.now(), plan);
        let number = number.map_err(|reason| Error::new(Kind::Task, "open task", reason))?;
        let (replies, closed, released) = (VecDeque::new(), false, false);
        let (tensors, judge) = (task.tensors, task.judge);
        open.insert(number, Open { tensors, fold: sums, judge, holed, replies, closed, released });
        drop(open);
        hub.wake();
        Ok(number)
    }

    /// The next reply to a task, in the order of arrival; `None` when there are no more. Waits at most
    /// `limit`, and only while `go_on` returns true.
    ///
    /// # Errors
    /// `timeout` if no reply arrived in time; `interrupted` if `go_on` returned false; `task` if there is no
    /// such task.
    pub fn next_reply(
        &self,
        task: u32,
        limit: Option<Duration>,
        go_on: GoOn<'_>,
    ) -> Result<Option<TaskReply>, Error> {
        self.next_reply_of(&[task], limit, go_on).map(|(_, reply)| reply)
    }

    /// The next reply to one of these tasks, with the task's number; without a reply if that task has no
    /// more. Waits as [`TaskServer::next_reply`] does.
    ///
    /// # Errors
    /// As of [`TaskServer::next_reply`].
    pub fn next_reply_of(
        &self,
        tasks: &[u32],
        limit: Option<Duration>,
        go_on: GoOn<'_>,
    ) -> Result<(u32, Option<TaskReply>), Error> {
        let hub = &self.hub;
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let most = caller_timeout(go_on);
            let left = deadline.map_or(most, |at| at.saturating_duration_since(Instant::now()));
            let look = || {
                let mut open = lock(&hub.policy.open);
                tasks.iter().find_map(|&task| match open.get_mut(&task) {
                    None => Some(Err(unknown(task))),
                    Some(open) => match open.replies.pop_front() {
                        Some((reply, kept)) => {
                            Some(Ok((task, Some(task_reply(reply, kept, open.fold.is_some())))))
                        }
                        None => open.closed.then_some(Ok((task, None))),
                    },
                })
            };
            if let Some(found) = hub.wait_for(left.min(most), look) {
                return found;
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                let waited = limit.unwrap_or_default().as_secs_f64();
                return Err(Error::new(
                    Kind::Timeout,
                    "wait for reply",
                    format!("none came within {waited} s"),
                ));
            }
            if !goes_on(go_on) {
                return Err(Error::new(Kind::Interrupted, "wait for reply", "interrupted"));
            }
        }
    }

    /// The mean of the results of a task that folds them, once all parts are over. An element that nobody
    /// sent gets the task's own value.
    ///
    /// # Errors
    /// `task` if the task does not fold, is still open, or no result was folded.
    pub fn mean(&self, task: u32) -> Result<(Arena, Arc<Layout>), Error> {
        let hub = &self.hub;
        let no_mean = |reason: String| Error::new(Kind::Task, "take the mean", reason);
        let (sums, sent) = {
            let open = lock(&hub.policy.open);
            let open = open.get(&task).ok_or_else(|| unknown(task))?;
            if !open.closed {
                return Err(no_mean(format!("task {task} is still open; take all its replies first")));
            }
            let sums = open.fold.clone();
            let sums = sums.ok_or_else(|| no_mean(format!("task {task} does not fold its results")))?;
            (sums, open.tensors.clone())
        };
        Ok((folding::mean(&sums, sent.as_ref())?, sums.layout().clone()))
    }

    /// Cancels a task: its open parts end as cancelled.
    pub fn cancel(&self, task: u32) {
        lock(&self.hub.machine).cancel(self.hub.now(), task);
        self.hub.wake();
    }

    /// Drops a task with the replies that were not taken. Parts that are still open are cancelled.
    pub fn release(&self, task: u32) {
        self.cancel(task);
        let mut open = lock(&self.hub.policy.open);
        // A task that is still open is removed when it closes.
        if open.get(&task).is_some_and(|task| task.closed) {
            let sums = open.remove(&task).and_then(|task| task.fold);
            if let Some(sums) = sums {
                self.hub.policy.spare_sums.keep(sums);
            }
        } else if let Some(task) = open.get_mut(&task) {
            (task.fold, task.holed, task.replies, task.released) = (None, false, VecDeque::new(), true);
        }
    }

    /// Tells every member that the job is over, and stops. Open parts end as cancelled, and callers that wait
    /// for replies get these. Idempotent.
    pub fn close(&self, reason: &str) {
        self.hub.close(reason);
        // The driver may have ended before it performed the last actions.
        while let Some(action) = next_action(&self.hub) {
            if let Action::Policy(wanted @ (TaskAction::Settled(_) | TaskAction::Closed { .. })) = action {
                Tasks::perform(&self.hub, wanted);
            }
        }
    }
}

impl Drop for TaskServer {
    fn drop(&mut self) {
        self.close("the server has stopped");
    }
}

fn next_action(hub: &TaskHub) -> Option<Action<TaskAction>> {
    lock(&hub.machine).poll_action()
}

fn unknown(task: u32) -> Error {
    Error::new(
        Kind::Task,
        "find task",
        format!("there is no task {task}: it was never sent, or was released"),
    )
}

fn task_reply(reply: Reply, kept: Option<Kept>, folds: bool) -> TaskReply {
    let (head, weight, layout) = match reply.answer {
        Some(answer) => (answer.head, answer.weight, answer.layout),
        None => (Vec::new(), 0.0, Arc::default()),
    };
    let arena = kept.map(|kept| kept.arena).or_else(|| folding::without_bytes(&layout).filter(|_| !folds));
    let transfers = reply.transfers.iter().map(|way| Transfer::new(way, StandIn::default(), &layout));
    TaskReply {
        transfers: written(&transfers.collect::<Vec<_>>()),
        member: reply.member,
        state: reply.state,
        reason: reply.reason,
        head,
        weight,
        coverage: reply.coverage,
        tensors: arena.map(|arena| (arena, layout)),
    }
}

impl HubPolicy for Tasks {
    type Lock = Mutex<proto::TaskServer>;

    fn perform(hub: &Arc<TaskHub>, wanted: TaskAction) {
        let policy = &hub.policy;
        match wanted {
            TaskAction::Judge { task, sender, member, head, weight } => {
                let judge = lock(&policy.open).get(&task).and_then(|open| open.judge.clone());
                let work = hub.clone();
                hub.spawn_blocking(move || {
                    // Report a verdict to the task even if the judge panics.
                    let judging = AssertUnwindSafe(|| match &judge {
                        Some(judge) => judge(&member, &head, weight),
                        None => Err("nobody wants the result any more".into()),
                    });
                    let verdict = catch_unwind(judging).unwrap_or_else(|_| Err("its judge panicked".into()));
                    lock(&work.machine).judged(work.now(), task, sender, verdict);
                    work.wake();
                });
            }
            TaskAction::Fold { task, sender, weight, holes } => {
                folding::fold(hub, task, sender, weight, holes);
            }
            TaskAction::Discard { task, sender } => drop(policy.store.take(task, sender)),
            TaskAction::Settled(reply) => {
                let kept = policy.store.take(reply.task, reply.sender);
                if let Some(open) = lock(&policy.open).get_mut(&reply.task).filter(|open| !open.released) {
                    open.replies.push_back((*reply, kept));
                }
                hub.announce();
            }
            TaskAction::Closed { task } => {
                let mut open = lock(&policy.open);
                let mut judge = None; // drop it after releasing the lock: its destructor may run foreign code
                if let Some(task) = open.get_mut(&task) {
                    task.closed = true;
                    judge = task.judge.take();
                    task.tensors = task.tensors.take().filter(|_| task.holed);
                    if task.fold.is_some() {
                        policy.store.free_spare();
                    }
                }
                open.retain(|_, task| !(task.closed && task.released));
                drop(open);
                drop(judge);
                hub.announce();
            }
        }
    }

    fn lend(&self, parcel: u32, _difference: bool, _wanted: &Ranges) -> Result<Lent, String> {
        let tensors = lock(&self.open).get(&parcel).and_then(|open| open.tensors.clone());
        let (arena, layout) = tensors.ok_or("the task is over")?;
        let bytes = arena.lend(thalweg_wire::Range::new(0, layout.bytes())).map_err(|e| e.to_string())?;
        Ok(Lent { chunk: self.share.then(|| usual_chunk(layout.bytes())), ..Lent::whole(bytes, layout) })
    }

    fn sink(hub: &Arc<TaskHub>, link: LinkId, ordered: bool) -> Box<dyn Sink> {
        Box::new(ResultSink { hub: hub.clone(), link, ordered, scratch: Scratch::default() })
    }
}

impl Tasks {
    fn sums(&self, layout: &Arc<Layout>) -> Arc<Accumulator> {
        self.spare_sums.take(layout, self.options.precision.into())
    }

    /// The sums of a task; `None` if it does not fold.
    pub fn sums_of(&self, task: u32) -> Option<Arc<Accumulator>> {
        lock(&self.open).get(&task).and_then(|open| open.fold.clone())
    }

    /// Checks a chunk of a result that is to be folded. `weight` gives the result's weight, or `None` if it
    /// is not wanted any more.
    pub fn judge(&self, chunk: &ChunkHeader, bytes: &[u8], weight: impl FnOnce() -> Option<f64>) {
        let Some(sums) = self.sums_of(chunk.round) else { return };
        let verdict = weight().and_then(|weight| folding::judged(&sums, chunk, bytes, weight));
        if let Some(verdict) = verdict {
            self.store.judged(chunk.round, chunk.sender, verdict);
        }
    }
}
