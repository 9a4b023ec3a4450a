//! A client of tasks: it receives tasks and sends results.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use thalweg_arena::Arena;
use thalweg_proto as proto;
use thalweg_proto::{Answer, ClientConfig, Failure, TaskStep, TaskVerdict};
use thalweg_transport::Sink;
use thalweg_wire::{Layout, Ranges};

use super::folding::without_bytes;
use super::sinks::TaskSink;
use super::who;
use crate::engine::{DialOptions, Dialer, DialerPolicy, EventQueue, GoOn, Lent, Scratch};
use crate::options::{seconds, usual_chunk, ClientOptions};
use crate::{lock, Error, Kind};

/// Maximum number of bytes of one task.
const MAX_TASK: u64 = 64 << 30;

/// Events for the application.
#[derive(Debug, Clone)]
pub enum TaskEvent {
    /// The server has admitted the client.
    Joined,
    /// A task has arrived.
    Task {
        /// Number of the task.
        task: u32,
        /// Head of the task.
        head: Vec<u8>,
        /// Layout of the task's tensors.
        layout: Arc<Layout>,
        /// The task's tensors. Other tasks may share them, so do not write to them. `None` if the task has no
        /// tensors; empty if they have no bytes.
        arena: Option<Arena>,
        /// Seconds from now until the answer is wanted; `None` for no limit.
        within: Option<f64>,
    },
    /// A task is over.
    Over {
        /// Number of the task.
        task: u32,
        /// How the task ended.
        verdict: TaskVerdict,
    },
    /// The job is over: with a reason, or with an error.
    Finished(Result<String, Failure>),
}

/// The policy of a client of tasks.
#[derive(Default)]
pub(crate) struct Worker {
    /// The tensors of tasks, by task number.
    arenas: Mutex<HashMap<u32, Arena>>,
    /// The tensors of a task that is over, to receive those of the next one. The application may still have them.
    spare: Mutex<Option<Arena>>,
    /// Results of tasks that are not over, by task number.
    answers: Mutex<HashMap<u32, (Arena, Arc<Layout>)>>,
    /// Whether a chunk is a share of its result.
    share: bool,
    events: EventQueue<TaskEvent>,
}

type TaskDialer = Dialer<Worker>;

impl Worker {
    /// The arena of a task. If there is none and `total` gives its length, takes the spare one or makes one.
    pub fn arena(&self, task: u32, total: Option<u64>) -> Option<Arena> {
        let mut arenas = lock(&self.arenas);
        if let Some(arena) = arenas.get(&task) {
            return Some(arena.clone());
        }
        let total = total?;
        let spare = lock(&self.spare).take().filter(|spare| spare.len() == total && spare.is_sole());
        let arena = spare.or_else(|| Arena::new(total).ok())?;
        arenas.insert(task, arena.clone());
        Some(arena)
    }

    /// Frees a task's arena, or keeps it for the next task. The first touch of fresh small pages costs more than
    /// receiving the task's bytes; on huge pages it costs little.
    fn forget(&self, task: u32) {
        let arena = lock(&self.arenas).remove(&task);
        if let Some(arena) = arena.filter(|arena| arena.len() < thalweg_arena::HUGE) {
            *lock(&self.spare) = Some(arena);
        }
    }
}

/// A client of a server of tasks. Several threads may call its methods.
pub struct TaskClient {
    dialer: Arc<TaskDialer>,
}

impl TaskClient {
    /// Starts connecting.
    ///
    /// # Errors
    /// An error for an impossible address, option or token. [`TaskClient::next_event`] reports whether the
    /// server was reached.
    pub fn start(address: &str, name: &str, options: ClientOptions) -> Result<Self, Error> {
        let (timeout, outage, seed) = (seconds(options.timeout), seconds(options.outage), options.seed);
        let (purpose, role) = who(options.tree);
        let to = DialOptions::new(address, name, options, role)?;
        let config = ClientConfig { name: name.into(), instance: to.instance, layout: None, timeout, outage };
        let machine = proto::TaskClient::new(config, purpose, MAX_TASK, seed);
        let worker = Worker { share: to.transport.capabilities().preferred_chunk == 0, ..Worker::default() };
        Ok(Self { dialer: Dialer::start(to, Mutex::new(machine), worker)? })
    }

    /// Waits for the next event; `None` once `go_on` returns false. [`TaskEvent::Finished`] is the last, and comes
    /// again with each later call.
    pub fn next_event(&self, go_on: GoOn<'_>) -> Option<TaskEvent> {
        self.dialer.wait_for(|| self.dialer.policy.events.next(TaskEvent::Finished), go_on)
    }

    /// Whether a task was handed out and its result is still wanted.
    pub fn is_open(&self, task: u32) -> bool {
        lock(&self.dialer.machine).is_open(task)
    }

    /// Sends a result. Its tensors must not be written to until the task is over.
    ///
    /// # Errors
    /// `task` if the task was not handed out, was already answered, or is over.
    pub fn answer(
        &self,
        task: u32,
        head: Vec<u8>,
        tensors: Option<(Arena, Arc<Layout>)>,
        weight: f64,
    ) -> Result<(), Error> {
        let dialer = &self.dialer;
        let layout = tensors.as_ref().map(|(_, layout)| layout.clone()).unwrap_or_default();
        // Store the tensors before the machine knows about the answer: the server may grant it at once.
        let before = tensors.and_then(|tensors| lock(&dialer.policy.answers).insert(task, tensors));
        let outcome = lock(&dialer.machine).answer(task, Answer { head, layout, weight });
        dialer.wake();
        outcome.map_err(|reason| {
            let mut answers = lock(&dialer.policy.answers);
            match before {
                Some(before) => _ = answers.insert(task, before),
                None => _ = answers.remove(&task),
            }
            Error::new(Kind::Task, "answer task", reason)
        })
    }

    /// Tells the server that there will be no result.
    ///
    /// # Errors
    /// `task` if the task was not handed out, was already answered, or is over.
    pub fn refuse(&self, task: u32, reason: &str) -> Result<(), Error> {
        let dialer = &self.dialer;
        let outcome = lock(&dialer.machine).refuse(task, reason);
        dialer.wake();
        outcome.map_err(|reason| Error::new(Kind::Task, "refuse task", reason))
    }

    /// Leaves for good. A caller that waits for an event gets [`TaskEvent::Finished`]. Idempotent.
    pub fn close(&self, reason: &str) {
        self.dialer.close(reason);
    }
}

impl Drop for TaskClient {
    fn drop(&mut self) {
        self.close("the client has stopped");
    }
}

impl DialerPolicy for Worker {
    type Lock = Mutex<proto::TaskClient>;

    fn perform(dialer: &Arc<TaskDialer>, wanted: TaskStep) {
        let policy = &dialer.policy;
        match wanted {
            TaskStep::Ready { task, head, layout, same_as, deadline } => {
                let of = same_as.unwrap_or(task);
                let arena = policy.arena(of, None).or_else(|| without_bytes(&layout));
                if let Some(arena) = arena.clone().filter(|_| of != task) {
                    lock(&policy.arenas).insert(task, arena);
                }
                let within = deadline.map(|at| at.saturating_sub(dialer.now()).as_secs_f64());
                post(dialer, TaskEvent::Task { task, head, layout, arena, within });
            }
            TaskStep::Over { task, verdict } => {
                lock(&policy.answers).remove(&task);
                post(dialer, TaskEvent::Over { task, verdict });
            }
            TaskStep::Forget { task } => policy.forget(task),
        }
    }

    fn joined(dialer: &Arc<TaskDialer>) {
        post(dialer, TaskEvent::Joined);
    }

    fn finished(dialer: &Arc<TaskDialer>, outcome: Result<String, Failure>) {
        dialer.policy.events.finish(outcome);
        dialer.announce();
    }

    fn lend(dialer: &Arc<TaskDialer>, parcel: u32, _wanted: &Ranges) -> Result<Lent, String> {
        let answer = lock(&dialer.policy.answers).get(&parcel).cloned();
        let (arena, layout) = answer.ok_or("the result is needed no longer")?;
        // Leave out the padding that an arena may have behind the layout.
        let bytes = arena.lend(thalweg_wire::Range::new(0, layout.bytes())).map_err(|e| e.to_string())?;
        let chunk = dialer.policy.share.then(|| usual_chunk(layout.bytes()));
        Ok(Lent { chunk, ..Lent::whole(bytes, layout) })
    }

    fn sink(dialer: &Arc<TaskDialer>, ordered: bool) -> Box<dyn Sink> {
        Box::new(TaskSink { dialer: dialer.clone(), ordered, scratch: Scratch::default() })
    }
}

fn post(dialer: &TaskDialer, event: TaskEvent) {
    dialer.policy.events.post(event);
    dialer.announce();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_once_nobody_else_has_it() {
        let worker = Worker::default();
        let place = |task, total| worker.arena(task, Some(total)).unwrap().as_ptr();
        let first = place(1, 8192);
        let held = worker.arena(1, None).unwrap();
        worker.forget(1);
        let second = place(2, 8192);
        assert_ne!(second, first, "the application still reads the first task");
        drop(held);
        worker.forget(2);
        assert_eq!(place(3, 8192), second);
        worker.forget(3);
        assert_eq!(worker.arena(4, Some(4096)).unwrap().len(), 4096, "another size needs another arena");
        worker.forget(4);
        place(5, thalweg_arena::HUGE);
        worker.forget(5);
        assert!(lock(&worker.spare).is_none());
    }
}
