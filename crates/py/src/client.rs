//! The class `Client`: a client of rounds.

use std::sync::{PoisonError, RwLock};

use pyo3::prelude::*;
use thalweg_proto::{Failure, Verdict};
use thalweg_runtime as runtime;
use thalweg_runtime::ClientEvent;

use crate::arena::Arena;
use crate::errors::{core_error, raise};
use crate::owned::Owned;
use crate::waiting;

/// A client's end of a job. It starts to connect when it is made, and reconnects by itself.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Client {
    inner: Owned<RwLock<Option<runtime::Client>>>,
}

impl Client {
    fn with<T>(&self, f: impl FnOnce(&runtime::Client) -> PyResult<T>) -> PyResult<T> {
        let guard = self.inner.get()?.read().unwrap_or_else(PoisonError::into_inner);
        f(guard
            .as_ref()
            .ok_or_else(|| core_error(thalweg_runtime::Kind::Closed, "", "the client is closed"))?)
    }

    /// Waits for the next event. Raises a signal's exception if that comes first.
    fn event(&self, py: Python<'_>) -> PyResult<ClientEvent> {
        let event = self.with(|c| waiting(py, |go_on| c.next_event(go_on)))?;
        event.ok_or_else(|| core_error(thalweg_runtime::Kind::Interrupted, "", "interrupted"))
    }
}

fn finished(outcome: Result<String, Failure>) -> PyResult<()> {
    outcome.map(drop).map_err(|why| raise(runtime::Error::failed("", why)))
}

#[pymethods]
impl Client {
    /// Connects to the server at `url` as `name`. `config` is a JSON object of options. Without an arena the
    /// client uses the server's layout.
    #[new]
    fn new(py: Python<'_>, url: &str, name: &str, config: &str, arena: Option<&Arena>) -> PyResult<Self> {
        let model = arena.map(|a| (a.arena.clone(), a.layout.clone()));
        let start = || -> Result<runtime::Client, runtime::Error> {
            runtime::Client::start(url, name, serde_json::from_str(config)?, model)
        };
        let client = py.detach(start).map_err(raise)?;
        Ok(Self { inner: Owned::new("Client", RwLock::new(Some(client))) })
    }

    /// The arena of the model, once the client has joined.
    #[getter]
    fn arena(&self) -> PyResult<Arena> {
        let model = self.with(|c| Ok(c.model()))?;
        let (arena, layout) = model.ok_or_else(|| {
            core_error(thalweg_runtime::Kind::Round, "", "not joined yet: call join() first")
        })?;
        Ok(Arena { arena, layout: (*layout).clone() })
    }

    /// Waits until the server has admitted the client.
    fn join(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            match self.event(py)? {
                ClientEvent::Joined => return Ok(()),
                ClientEvent::Finished(outcome) => {
                    finished(outcome)?;
                    return Err(core_error(
                        thalweg_runtime::Kind::Refused,
                        "",
                        "the job was over before this client joined",
                    ));
                }
                ClientEvent::Ready { .. } | ClientEvent::Verdict { .. } => {}
            }
        }
    }

    /// Waits until the next round's global model is in the arena. Returns the round and its config as JSON,
    /// or None when the job is over.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(u32, String)>> {
        loop {
            match self.event(py)? {
                ClientEvent::Ready { round, config } => return Ok(Some((round, config))),
                ClientEvent::Finished(outcome) => return finished(outcome).map(|()| None),
                ClientEvent::Joined | ClientEvent::Verdict { .. } => {}
            }
        }
    }

    /// Submits the update in the arena, trained on `samples` samples. Returns `accepted`, `late` if the round
    /// was over, or `done` if the job was over. Raises `rejected` if the server refuses the update.
    fn submit(&self, py: Python<'_>, round: u32, samples: f64, metrics: String) -> PyResult<&'static str> {
        // Compressing the update takes a while, in which other Python threads can run.
        self.with(|c| py.detach(|| c.submit(round, samples, metrics)).map_err(raise))?;
        loop {
            match self.event(py)? {
                ClientEvent::Verdict { verdict: Verdict::Accepted, .. } => return Ok("accepted"),
                ClientEvent::Verdict { verdict: Verdict::Late, .. } => return Ok("late"),
                ClientEvent::Verdict { verdict: Verdict::Rejected(reason), .. } => {
                    return Err(core_error(
                        runtime::Kind::Rejected,
                        "",
                        format!("the server refused the update: {reason}"),
                    ));
                }
                ClientEvent::Finished(outcome) => return finished(outcome).map(|()| "done"),
                ClientEvent::Joined | ClientEvent::Ready { .. } => {}
            }
        }
    }

    /// Bytes sent and received on the current connection, as a pair.
    #[getter]
    fn traffic(&self) -> PyResult<(u64, u64)> {
        self.with(|c| Ok(c.traffic()))
    }

    /// Congestion control of the current connection; None if it has none.
    #[getter]
    fn congestion(&self) -> PyResult<Option<String>> {
        self.with(|c| Ok(c.congestion()))
    }

    /// Leaves the job for good.
    fn close(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let held = self.inner.get()?;
        py.detach(|| {
            let client = held.write().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(mut client) = client {
                client.close(reason);
            }
        });
        Ok(())
    }
}
