//! The control plane of aggregation trees: what it would do, in virtual time too.

use pyo3::prelude::*;
use serde::Serialize;
use serde_json::json;
use thalweg_control::capacity::{knee, Measured};
use thalweg_control::simulate::{self, Scenario, Switches};
use thalweg_control::tag;
use thalweg_wire::Range;

use crate::arena::Arena;
use crate::errors::{core_error, raise};

fn options(error: impl std::fmt::Display) -> PyErr {
    core_error("options", &error.to_string())
}

fn written(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(options)
}

fn scenario(text: &str) -> PyResult<Scenario> {
    serde_json::from_str(text).map_err(options)
}

/// The switches of a system by its name, as JSON.
#[pyfunction]
pub fn tree_system(name: &str) -> PyResult<String> {
    let known = || format!("unknown system {name:?}; take one of {}", simulate::SYSTEMS.join(", "));
    written(&Switches::of(name).ok_or_else(|| options(known()))?)
}

/// What the control plane would do first in a scenario, and why, as JSON.
#[pyfunction]
pub fn tree_plan(given: &str) -> PyResult<String> {
    let (plan, reason) = scenario(given)?.preview().map_err(options)?;
    written(&json!({ "plan": plan, "reasons": reason.told() }))
}

/// A scenario in virtual time: what came of each round, as JSON.
#[pyfunction]
pub fn tree_simulate(py: Python<'_>, given: &str) -> PyResult<String> {
    let scenario = scenario(given)?;
    let outcomes = py.detach(|| simulate::run(&scenario)).map_err(options)?;
    written(&outcomes)
}

/// Where a node's capacity is, as JSON: `measured` is a JSON list of arrival rates with the times of an update.
#[pyfunction]
pub fn tree_knee(measured: &str, significant: f64) -> PyResult<String> {
    let measured: Vec<Measured> = serde_json::from_str(measured).map_err(options)?;
    written(&knee(&measured, significant).map_err(options)?)
}

/// Works for the node whose socket is this process's standard input, until the node closes it.
#[pyfunction]
pub fn tree_work(py: Python<'_>) -> PyResult<()> {
    py.detach(thalweg_runtime::work).map_err(raise)
}

/// In a template, whose standard input is a socket of its node: waits until the node asks for a worker. Returns the descriptor
/// that becomes the worker's standard input, which the caller owns, or None if the node is gone.
#[pyfunction]
pub fn tree_asked(py: Python<'_>) -> PyResult<Option<i32>> {
    py.detach(thalweg_runtime::asked).map_err(raise)
}

/// In a template: tells the node of the worker that was just forked, by its process id. Nobody has waited for it yet.
#[pyfunction]
pub fn tree_forked(py: Python<'_>, process: u32) -> PyResult<()> {
    py.detach(|| thalweg_runtime::forked(process)).map_err(raise)
}

/// Says nothing if notes of workers can go inside the kernel here, and else raises why not.
#[pyfunction]
pub fn tree_routes(py: Python<'_>) -> PyResult<()> {
    py.detach(thalweg_runtime::kernel_routes).map_err(raise)
}

/// Passes messages of at most `most` bytes on between the sockets that are this process's standard input and output, until
/// either ends.
#[pyfunction]
pub fn tree_hop(py: Python<'_>, most: u64) -> PyResult<()> {
    py.detach(|| thalweg_runtime::hop(most)).map_err(raise)
}

/// The top of a tree: adds up the sums of servers, and takes their mean into the model.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Top {
    inner: thalweg_runtime::Top,
}

#[pymethods]
impl Top {
    /// For the model in the arena; `config` is a JSON object of a server's options. With a `part`, the first byte and the
    /// one past the last, it is the top of those bytes alone.
    #[new]
    #[pyo3(signature = (arena, config, part=None))]
    fn new(arena: &Arena, config: &str, part: Option<(u64, u64)>) -> PyResult<Self> {
        let options = serde_json::from_str(config).map_err(options)?;
        let part = part.map(range).transpose()?;
        let inner = thalweg_runtime::Top::new(arena.arena.clone(), arena.layout.clone(), &options, part);
        Ok(Self { inner: inner.map_err(raise)? })
    }

    /// Adds sums of at most so many updates and so much weight, or exactly so much if all are whole: all of them, or none.
    fn merge(
        &self,
        py: Python<'_>,
        head: &[u8],
        cells: &Arena,
        participants: u32,
        weight: f64,
        whole: bool,
    ) -> PyResult<()> {
        let stated = thalweg_runtime::Statement { participants, weight, whole };
        py.detach(|| self.inner.merge(head, &cells.arena, stated)).map_err(raise)
    }

    /// Takes the mean into the model, and forgets the sums. Returns what the fold of a round says, as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.inner.finish()).map_err(raise)
    }

    /// Forgets the sums.
    fn forget(&self) {
        self.inner.forget();
    }
}

/// Bytes of an update as Python says them: the first, and the one past the last.
pub(crate) fn range((start, end): (u64, u64)) -> PyResult<Range> {
    if start > end {
        return Err(options(format!("a part of an update cannot be from {start} to {end}")));
    }
    Ok(Range::new(start, end))
}

/// A schema of Flame as a tree of roles, as JSON.
#[pyfunction]
pub fn tree_schema(text: &str) -> PyResult<String> {
    written(&tag::read(text).map_err(options)?)
}
