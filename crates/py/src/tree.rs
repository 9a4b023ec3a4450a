//! The control plane of aggregation trees: what it would do, in virtual time too.

use pyo3::prelude::*;
use serde::Serialize;
use serde_json::json;
use thalweg_control::simulate::{self, Scenario, Switches};
use thalweg_control::tag;

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

/// Works for the node whose socket is this process's standard input, until the node closes it.
#[pyfunction]
pub fn tree_work(py: Python<'_>) -> PyResult<()> {
    py.detach(thalweg_runtime::work).map_err(raise)
}

/// A schema of Flame as a tree of roles, as JSON.
#[pyfunction]
pub fn tree_schema(text: &str) -> PyResult<String> {
    written(&tag::read(text).map_err(options)?)
}
