//! The classes `TaskServer` and `TaskClient`.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg_proto::{ReplyState, TaskVerdict};
use thalweg_runtime as runtime;
use thalweg_runtime::TaskEvent;

use crate::arena::Arena;
use crate::errors::{core_error, raise};
use crate::layout::Layout;
use crate::owned::Owned;
use crate::{interruptibly, limit, list, waiting};

/// A reply: member, state, reason, head, weight, fraction of the tensors that arrived, tensors, and transfers
/// as JSON.
type Reply<'py> =
    (String, &'static str, Option<String>, Bound<'py, PyBytes>, f64, f64, Option<Arena>, String);

/// An event: its name, number of the task, head, layout, tensors, seconds until the answer is wanted, and a
/// reason.
type Event<'py> =
    (&'static str, u32, Bound<'py, PyBytes>, Option<Layout>, Option<Arena>, Option<f64>, String);

fn wrap(arena: thalweg_arena::Arena, layout: &thalweg_wire::Layout) -> Arena {
    Arena { arena, layout: layout.clone() }
}

fn unwrap(arena: Option<&Arena>) -> Option<(thalweg_arena::Arena, Arc<thalweg_wire::Layout>)> {
    arena.map(|arena| (arena.arena.clone(), Arc::new(arena.layout.clone())))
}

/// Wraps a Python function as a judge of results. It is called with the member's name, the head as bytes and
/// the weight. It returns None to accept the result, or the reason for refusing it.
fn judge_of(judge: Py<PyAny>) -> runtime::Judge {
    Arc::new(move |member, head, weight| {
        let ask = |py: Python<'_>| {
            let verdict = judge.call1(py, (member, PyBytes::new(py, head), weight));
            verdict
                .and_then(|verdict| verdict.extract::<Option<String>>(py))
                .map_err(|error| error.to_string())
        };
        match Python::try_attach(ask) {
            Some(Ok(None)) => Ok(()),
            Some(Ok(Some(reason))) => Err(reason),
            Some(Err(error)) => Err(format!("cannot be judged: {error}")),
            None => Err("the server's process is ending".into()),
        }
    })
}

fn returned(py: Python<'_>, reply: runtime::TaskReply) -> Reply<'_> {
    let tensors = reply.tensors.map(|(arena, layout)| wrap(arena, &layout));
    let head = PyBytes::new(py, &reply.head);
    let state = word(reply.state);
    let (weight, coverage) = (reply.weight, reply.coverage);
    (reply.member, state, reply.reason, head, weight, coverage, tensors, reply.transfers)
}

fn word(state: ReplyState) -> &'static str {
    match state {
        ReplyState::Done => "done",
        ReplyState::Failed => "failed",
        ReplyState::Lost => "lost",
        ReplyState::Late => "late",
        ReplyState::Cancelled => "cancelled",
    }
}

/// A server that sends tasks to named members. It listens when it is made.
#[pyclass(frozen, module = "thalweg._core")]
pub struct TaskServer {
    inner: Owned<runtime::TaskServer>,
}

#[pymethods]
impl TaskServer {
    /// Listens at the URL `listen`. `config` is a JSON object of options.
    #[new]
    fn new(py: Python<'_>, listen: &str, config: &str) -> PyResult<Self> {
        let (listen, config) = (listen.to_owned(), config.to_owned());
        // A broker or a name look-up may take long.
        let start = move || runtime::TaskServer::start(&listen, serde_json::from_str(&config)?);
        let server = interruptibly(py, start)?;
        Ok(Self { inner: Owned::new("TaskServer", server) })
    }

    /// The address that it listens at, with the port that the system chose.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.inner.get()?.address())
    }

    /// Waits until `members` members are connected or `timeout` seconds have passed. Returns how many are
    /// connected.
    fn wait(&self, py: Python<'_>, members: usize, timeout: Option<f64>) -> PyResult<usize> {
        let (server, limit) = (self.inner.get()?, limit(timeout));
        waiting(py, |go_on| server.wait(members, limit, go_on))
    }

    /// Sends a task and returns its number. Tasks with the same `bytes_id` have the same bytes. If the layout
    /// `fold` is given, results are folded; otherwise they are handed over. `missing` is the fraction of
    /// bytes that may be missing, for each tensor of `fold`. `judge` is called with member, head and weight
    /// of each result before its bytes are requested. It returns None to accept the result, or the reason for
    /// refusing it.
    #[pyo3(signature = (head, arena, bytes_id, members, deadline, fold, missing, judge=None))]
    #[allow(clippy::too_many_arguments)] // called by Python with named arguments
    fn open(
        &self,
        head: &[u8],
        arena: Option<&Arena>,
        bytes_id: u64,
        members: Vec<String>,
        deadline: Option<f64>,
        fold: Option<&Layout>,
        missing: Option<Vec<f64>>,
        judge: Option<Py<PyAny>>,
    ) -> PyResult<u32> {
        let fold = fold.map(|layout| Arc::new(layout.0.clone()));
        let (head, tensors) = (head.to_vec(), unwrap(arena));
        let judge = judge.map(judge_of);
        let task = runtime::NewTask { head, tensors, bytes_id, members, deadline, fold, missing, judge };
        self.inner.get()?.open(task).map_err(raise)
    }

    /// Waits for the next reply to a task. Returns None when there are no more.
    fn next_reply<'py>(
        &self,
        py: Python<'py>,
        task: u32,
        timeout: Option<f64>,
    ) -> PyResult<Option<Reply<'py>>> {
        let (server, limit) = (self.inner.get()?, limit(timeout));
        let reply = waiting(py, |go_on| server.next_reply(task, limit, go_on))?.map_err(raise)?;
        Ok(reply.map(|reply| returned(py, reply)))
    }

    /// Waits for the next reply to one of these tasks. Returns the task's number, and None when that task has
    /// no more replies.
    fn next_reply_of<'py>(
        &self,
        py: Python<'py>,
        tasks: Vec<u32>,
        timeout: Option<f64>,
    ) -> PyResult<(u32, Option<Reply<'py>>)> {
        let (server, limit) = (self.inner.get()?, limit(timeout));
        let found = waiting(py, |go_on| server.next_reply_of(&tasks, limit, go_on))?;
        let (task, reply) = found.map_err(raise)?;
        Ok((task, reply.map(|reply| returned(py, reply))))
    }

    /// The mean of the results of a task that folds them, once all replies have arrived.
    fn mean(&self, py: Python<'_>, task: u32) -> PyResult<Arena> {
        let server = self.inner.get()?;
        let (arena, layout) = py.detach(|| server.mean(task)).map_err(raise)?;
        Ok(wrap(arena, &layout))
    }

    /// Cancels a task: its results are not wanted any more.
    fn cancel(&self, task: u32) -> PyResult<()> {
        self.inner.get()?.cancel(task);
        Ok(())
    }

    /// Forgets a task and the replies that were not taken.
    fn release(&self, task: u32) -> PyResult<()> {
        self.inner.get()?.release(task);
        Ok(())
    }

    /// Members that are not connected any more, as a JSON list of name, reason, and whether the member left
    /// for good.
    fn departed(&self) -> PyResult<String> {
        Ok(list(serde_json::to_string(&self.inner.get()?.departed())))
    }

    /// Segments retransmitted so far on the way to each member (`down`) and by it (`up`), as a JSON object by
    /// name. Null if a transport does not count them. Waits at most `timeout` seconds for members that have
    /// not reported yet.
    fn resent(&self, py: Python<'_>, timeout: f64) -> PyResult<String> {
        let limit = crate::limit(Some(timeout)).unwrap_or_default();
        let server = self.inner.get()?;
        Ok(py.detach(|| server.resent(limit)))
    }

    /// Tells the server that a member's process has ended for good, and why. No task waits for its result any
    /// more.
    #[pyo3(signature = (member, why=""))]
    fn forget(&self, member: &str, why: &str) -> PyResult<()> {
        self.inner.get()?.forget(member, why);
        Ok(())
    }

    /// Names of the connected members, as a JSON list.
    fn clients(&self) -> PyResult<String> {
        Ok(list(serde_json::to_string(&self.inner.get()?.clients())))
    }

    /// Log lines since the last call.
    fn notes(&self) -> PyResult<Vec<String>> {
        Ok(self.inner.get()?.notes())
    }

    /// Tells every member that the job is over, and stops.
    fn close(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let end = self.inner.get()?;
        py.detach(|| end.close(reason));
        Ok(())
    }
}

/// A client that gets tasks. It starts to connect when it is made, and reconnects by itself.
#[pyclass(frozen, module = "thalweg._core")]
pub struct TaskClient {
    inner: Owned<runtime::TaskClient>,
}

impl TaskClient {
    fn event(&self, py: Python<'_>) -> PyResult<TaskEvent> {
        let client = self.inner.get()?;
        let event = waiting(py, |go_on| client.next_event(go_on))?;
        event.ok_or_else(|| core_error(thalweg_runtime::Kind::Interrupted, "", "interrupted"))
    }
}

#[pymethods]
impl TaskClient {
    /// Connects to the server at `url` as `name`. `config` is a JSON object of options.
    #[new]
    fn new(py: Python<'_>, url: &str, name: &str, config: &str) -> PyResult<Self> {
        let start = || -> Result<runtime::TaskClient, runtime::Error> {
            runtime::TaskClient::start(url, name, serde_json::from_str(config)?)
        };
        let client = py.detach(start).map_err(raise)?;
        Ok(Self { inner: Owned::new("TaskClient", client) })
    }

    /// Waits until the server has admitted the client.
    fn join(&self, py: Python<'_>) -> PyResult<()> {
        match self.event(py)? {
            TaskEvent::Joined => Ok(()),
            TaskEvent::Finished(Err(why)) => Err(raise(runtime::Error::failed("", why))),
            _ => Err(core_error(
                thalweg_runtime::Kind::Refused,
                "",
                "the job was over before this client joined",
            )),
        }
    }

    /// Waits for the next event: a task has arrived ("task") or is over ("accepted", "rejected", "closed").
    /// Returns None when the job is over.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Event<'py>>> {
        let none = || PyBytes::new(py, &[]);
        loop {
            match self.event(py)? {
                TaskEvent::Joined => {}
                TaskEvent::Task { task, head, layout, arena, within } => {
                    let head = PyBytes::new(py, &head);
                    let arena = arena.map(|arena| wrap(arena, &layout));
                    let layout = Some(Layout((*layout).clone()));
                    return Ok(Some(("task", task, head, layout, arena, within, String::new())));
                }
                TaskEvent::Over { task, verdict } => {
                    let (how, reason) = match verdict {
                        TaskVerdict::Accepted => ("accepted", String::new()),
                        TaskVerdict::Rejected(reason) => ("rejected", reason),
                        TaskVerdict::Closed => ("closed", String::new()),
                    };
                    return Ok(Some((how, task, none(), None, None, None, reason)));
                }
                TaskEvent::Finished(Ok(_)) => return Ok(None),
                TaskEvent::Finished(Err(why)) => return Err(raise(runtime::Error::failed("", why))),
            }
        }
    }

    /// Whether the application has got this task, and its result is still wanted.
    fn is_open(&self, task: u32) -> PyResult<bool> {
        Ok(self.inner.get()?.is_open(task))
    }

    /// Sends the result of a task.
    fn answer(&self, task: u32, head: &[u8], arena: Option<&Arena>, weight: f64) -> PyResult<()> {
        self.inner.get()?.answer(task, head.to_vec(), unwrap(arena), weight).map_err(raise)
    }

    /// Tells the server that there will be no result.
    fn refuse(&self, task: u32, reason: &str) -> PyResult<()> {
        self.inner.get()?.refuse(task, reason).map_err(raise)
    }

    /// Leaves the job for good.
    fn close(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let end = self.inner.get()?;
        py.detach(|| end.close(reason));
        Ok(())
    }
}
