//! Functions for aggregation trees: the control plane's decisions and simulation, worker processes, and the
//! classes `Top` and `TreeBalancer`.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde_json::json;
use thalweg_control::capacity::{knee, Measured, Useless};
use thalweg_control::simulate::{self, Impossible, Scenario, Switches};
use thalweg_control::tag;
use thalweg_control::{Balancer, NodeLoad};

use crate::arena::Arena;
use crate::errors::{core_error, raise};

fn options(error: impl std::fmt::Display) -> PyErr {
    core_error(thalweg_runtime::Kind::Options, "", error.to_string())
}

fn impossible(operation: &str, cause: impl Into<String>, hint: impl Into<String>) -> PyErr {
    raise(thalweg_runtime::Error::new(thalweg_runtime::Kind::Options, operation, cause).hint(hint))
}

fn cannot(why: Impossible) -> PyErr {
    impossible("", why.cause(), why.hint())
}

fn written(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(options)
}

fn scenario(text: &str) -> PyResult<Scenario> {
    serde_json::from_str(text).map_err(options)
}

/// Returns the switches of a system by name, as JSON.
#[pyfunction]
pub fn tree_system(name: &str) -> PyResult<String> {
    let unknown = || {
        let known = simulate::SYSTEMS.join(", ");
        impossible("", format!("unknown system {name:?}"), format!("take one of {known}"))
    };
    written(&Switches::of(name).ok_or_else(unknown)?)
}

/// Returns the control plane's first decision in a scenario and its reasons, as JSON.
#[pyfunction]
pub fn tree_plan(given: &str) -> PyResult<String> {
    let (plan, reason) = scenario(given)?.preview().map_err(cannot)?;
    written(&json!({ "plan": plan, "reasons": reason.texts() }))
}

/// Simulates a scenario in virtual time. Returns the outcome of each round, as JSON.
#[pyfunction]
pub fn tree_simulate(py: Python<'_>, given: &str) -> PyResult<String> {
    let scenario = scenario(given)?;
    let outcomes = py.detach(|| simulate::run(&scenario)).map_err(cannot)?;
    written(&outcomes)
}

/// Finds a node's capacity; returns JSON. `measured` is a JSON list of arrival rates and the time of an
/// update at each. A time that is `significant` times that of the first rate counts as overload.
#[pyfunction]
pub fn tree_knee(measured: &str, significant: f64) -> PyResult<String> {
    let measured: Vec<Measured> = serde_json::from_str(measured).map_err(options)?;
    let useless = |why: Useless| impossible("", why.cause(), why.hint());
    written(&knee(&measured, significant).map_err(useless)?)
}

/// Works for the node whose socket is this process's standard input, until the node closes it.
#[pyfunction]
pub fn tree_work(py: Python<'_>) -> PyResult<()> {
    py.detach(thalweg_runtime::work).map_err(raise)
}

/// For a template, whose standard input is a socket of its node: waits until the node requests a worker.
/// Returns the descriptor that becomes the worker's standard input and that the caller owns, or None if the
/// node is gone.
#[pyfunction]
pub fn tree_asked(py: Python<'_>) -> PyResult<Option<i32>> {
    py.detach(thalweg_runtime::asked).map_err(raise)
}

/// For a template: reports the worker that was just forked to the node, by its process id. The template must
/// not have waited for it yet.
#[pyfunction]
pub fn tree_forked(py: Python<'_>, process: u32) -> PyResult<()> {
    py.detach(|| thalweg_runtime::forked(process)).map_err(raise)
}

/// Checks that notes of workers can go inside the kernel here. Raises the reason if they cannot.
#[pyfunction]
pub fn tree_routes(py: Python<'_>) -> PyResult<()> {
    py.detach(thalweg_runtime::kernel_routes).map_err(raise)
}

/// Passes messages of at most `most` bytes between this process's standard input and output, which are
/// sockets, until either is closed.
#[pyfunction]
pub fn tree_hop(py: Python<'_>, most: u64) -> PyResult<()> {
    py.detach(|| thalweg_runtime::hop(most)).map_err(raise)
}

/// The top of a tree: adds up the sums of nodes, and writes their mean into the model. A middle node's top gives the
/// sums to its parent instead.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Top {
    inner: thalweg_runtime::Top,
}

#[pymethods]
impl Top {
    /// Makes a top for the model in the arena. `config` is a JSON object of a server's options.
    #[new]
    fn new(arena: &Arena, config: &str) -> PyResult<Self> {
        let options = serde_json::from_str(config).map_err(options)?;
        let inner = thalweg_runtime::Top::new(arena.arena.clone(), arena.layout.clone(), &options, None);
        Ok(Self { inner: inner.map_err(raise)? })
    }

    /// Merges a node's sums, of at most `participants` updates with at most the weight `weight`, or exactly
    /// these if all are `whole`. Merges all of the sums, or nothing.
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

    /// Writes the mean into the model, and forgets the sums. Returns the summary of the fold, as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.inner.finish()).map_err(raise)
    }

    /// The merged sums for the parent: their head and their cells.
    fn export<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Arena)> {
        let sums = py.detach(|| self.inner.export()).map_err(raise)?;
        let cells = Arena { arena: sums.cells, layout: (*sums.layout).clone() };
        Ok((PyBytes::new(py, &sums.head), cells))
    }
}

/// Decides again and again which clients move from overloaded nodes to others.
#[pyclass(frozen, module = "thalweg._core")]
pub struct TreeBalancer {
    inner: Mutex<Balancer>,
}

#[pymethods]
impl TreeBalancer {
    /// Makes a balancer that has seen no measurement. `config` is a JSON object.
    #[new]
    fn new(config: &str) -> PyResult<Self> {
        let config = serde_json::from_str(config).map_err(options)?;
        Ok(Self { inner: Mutex::new(Balancer::new(config)) })
    }

    /// Returns the next decision as JSON. `nodes` is a JSON list of all nodes, with what each has measured since
    /// the last decision.
    fn decide(&self, nodes: &str) -> PyResult<String> {
        let nodes: Vec<NodeLoad> = serde_json::from_str(nodes).map_err(options)?;
        let mut balancer = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        written(&balancer.decide(&nodes))
    }
}

/// Reads a schema of Flame as a tree of roles. Returns JSON.
#[pyfunction]
pub fn tree_schema(text: &str) -> PyResult<String> {
    let fault = |fault: tag::Fault| impossible(&format!("line {}", fault.line), fault.cause, fault.hint);
    written(&tag::read(text).map_err(fault)?)
}
