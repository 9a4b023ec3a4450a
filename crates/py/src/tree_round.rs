//! The class `TreeRound`.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use thalweg_proto as proto;
use thalweg_runtime::{Error, Kind};
use thalweg_wire::tree::{Answer, MeanAnswer};

use crate::errors::raise;
use crate::layout::Layout;

fn options(error: impl std::fmt::Display) -> PyErr {
    raise(Error::new(Kind::Options, "run a tree's round", error.to_string()))
}

fn time(seconds: f64) -> Duration {
    crate::limit(Some(seconds)).unwrap_or_default()
}

/// One round of an aggregation tree, at its root: a state machine without IO. Its caller sends what it asks to
/// the nodes, and tells it what they answer. All times are seconds of the caller's clock.
#[pyclass(frozen, module = "thalweg._core")]
pub struct TreeRound {
    inner: Mutex<proto::TreeRound>,
}

impl TreeRound {
    fn machine(&self) -> MutexGuard<'_, proto::TreeRound> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl TreeRound {
    /// Begins a round for a model of this layout. `plan` and `nodes` are JSON.
    #[new]
    fn new(now: f64, layout: &Layout, plan: &str, nodes: &str) -> PyResult<Self> {
        let plan = serde_json::from_str(plan).map_err(options)?;
        let nodes = serde_json::from_str(nodes).map_err(options)?;
        let layout = layout.0.clone();
        let split = Box::new(move |count| thalweg_runtime::parts_of(&layout, count));
        Ok(Self { inner: Mutex::new(proto::TreeRound::new(time(now), plan, nodes, split)) })
    }

    /// What to do next, as JSON; None if there is nothing to do until something happens.
    fn next_step(&self) -> PyResult<Option<String>> {
        let step = self.machine().poll_step();
        step.map(|step| serde_json::to_string(&step)).transpose().map_err(options)
    }

    /// When to call `timeout`; None if nothing is awaited for the sake of time.
    fn timer(&self) -> Option<f64> {
        self.machine().poll_timeout().map(|at| at.as_secs_f64())
    }

    /// The time of `timer` has come.
    fn timeout(&self, now: f64) {
        self.machine().timeout(time(now));
    }

    /// The nodes are in this state now, as JSON, and the processes of these clients have ended.
    fn update(&self, now: f64, nodes: &str, ended: BTreeSet<String>) -> PyResult<()> {
        let nodes = serde_json::from_str(nodes).map_err(options)?;
        self.machine().update(time(now), nodes, ended);
        Ok(())
    }

    /// A node has answered the request `ask` with this head, and a tensor of so many bytes if there is one.
    /// Raises an error of the kind `task` if the head is no answer to that request.
    fn answered(
        &self,
        now: f64,
        ask: u32,
        node: &str,
        head: &[u8],
        tensor_bytes: Option<u64>,
    ) -> PyResult<()> {
        let mut machine = self.machine();
        let Some(request) = machine.request(ask) else { return Ok(()) };
        let mut from = serde_json::Deserializer::from_slice(head);
        let answer = Answer::read(request, &mut from).and_then(|answer| from.end().map(|()| answer));
        let bad =
            |error: serde_json::Error| raise(Error::new(Kind::Task, "read an answer", error.to_string()));
        machine.answered(time(now), ask, node, answer.map_err(bad)?, tensor_bytes);
        Ok(())
    }

    /// A node gives no answer to the request `ask`. `loss` says how the node was lost, if it was.
    fn unanswered(&self, now: f64, ask: u32, node: &str, reason: &str, loss: Option<String>) {
        self.machine().unanswered(time(now), ask, node, reason, loss);
    }

    /// All clients that the step `prove` names have proved that they were there, but for `unproven`.
    fn proven(&self, now: f64, part: usize, unproven: Option<&str>) {
        self.machine().proven(time(now), part, unproven);
    }

    /// The sums that the step `merge` names were merged, or refused for this reason.
    fn merged(&self, now: f64, part: usize, refused: Option<String>) {
        self.machine().merged(time(now), part, refused);
    }

    /// The mean that the step `finish` asked for is in the model. `mean` is JSON.
    fn finished(&self, mean: &str) -> PyResult<()> {
        let mean: MeanAnswer = serde_json::from_str(mean).map_err(options)?;
        self.machine().finished(mean);
        Ok(())
    }

    /// The parent has the sums that the step `export` asked for.
    fn exported(&self) {
        self.machine().exported();
    }

    /// The clients whose updates count so far.
    fn counting(&self) -> Vec<String> {
        self.machine().counting().map(str::to_owned).collect()
    }
}
