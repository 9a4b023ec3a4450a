//! The class `Node`: a node of a graph.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use thalweg_runtime as runtime;

use crate::arena::Arena;
use crate::errors::raise;
use crate::owned::Owned;
use crate::{interruptibly, limit, list, waiting};

/// A node of a graph. It listens when it is made, and connects to its neighbours after `meet`.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Node {
    inner: Owned<runtime::Node>,
}

fn upcoming(round: u32, weights: &str, then: Option<&str>) -> PyResult<runtime::Upcoming> {
    let read = || {
        Ok::<_, serde_json::Error>((
            serde_json::from_str(weights)?,
            then.map(serde_json::from_str).transpose()?,
        ))
    };
    let (weights, then) = read().map_err(|e| {
        raise(
            runtime::Error::new(runtime::Kind::Round, "read weights", e.to_string())
                .hint("give {name: weight}"),
        )
    })?;
    Ok(runtime::Upcoming { round, weights, then })
}

#[pymethods]
impl Node {
    /// Listens at the URL `listen` as `name`. `config` is a JSON object of options. The arena holds the
    /// node's own model.
    #[new]
    fn new(py: Python<'_>, arena: &Arena, name: &str, listen: &str, config: &str) -> PyResult<Self> {
        let (memory, layout) = (arena.arena.clone(), arena.layout.clone());
        let (name, listen, config) = (name.to_owned(), listen.to_owned(), config.to_owned());
        // A broker or a name look-up may take long.
        let inner = interruptibly(py, move || {
            runtime::Node::start(memory, layout, &name, &listen, serde_json::from_str(&config)?)
        })?;
        Ok(Self { inner: Owned::new("Node", inner) })
    }

    /// The address that it listens at, with the port that the system chose.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.inner.get()?.address())
    }

    /// For how many iterations after its current one the node accepts chunks.
    #[getter]
    fn ahead(&self) -> PyResult<u32> {
        Ok(self.inner.get()?.ahead())
    }

    /// Tells the node its neighbours: a JSON object of names and URLs. It connects to those with a higher
    /// name. With `weights` (and `then`, see `begin`) of iteration `first`, it accepts chunks of neighbours
    /// that begin earlier.
    #[pyo3(signature = (neighbours, first=1, weights=None, then=None))]
    fn meet(
        &self,
        py: Python<'_>,
        neighbours: &str,
        first: u32,
        weights: Option<&str>,
        then: Option<&str>,
    ) -> PyResult<()> {
        let neighbours: BTreeMap<String, String> = serde_json::from_str(neighbours)
            .map_err(|e| runtime::Error::new(runtime::Kind::Options, "read neighbours", e.to_string()))
            .map_err(|error| raise(error.hint("give {name: url}")))?;
        let upcoming = weights.map(|weights| upcoming(first, weights, then)).transpose()?;
        let node = self.inner.get()?;
        py.detach(|| node.meet(&neighbours, upcoming)).map_err(raise)
    }

    /// Waits until `count` neighbours are connected or `timeout` seconds have passed. Returns how many are
    /// connected.
    fn gather(&self, py: Python<'_>, count: usize, timeout: Option<f64>) -> PyResult<usize> {
        let node = self.inner.get()?;
        waiting(py, |go_on| node.gather(count, limit(timeout), go_on))?.map_err(raise)
    }

    /// Names of the connected neighbours, as a JSON list.
    fn connected(&self) -> PyResult<String> {
        Ok(list(serde_json::to_string(&self.inner.get()?.connected())))
    }

    /// Begins an iteration. `weights` is a JSON object of the neighbours' weights. `then` is a JSON list of
    /// the weights of the next iterations; None if they are the same. `to` has the names of the neighbours to
    /// send to; None for those in `weights`.
    #[pyo3(signature = (round, weights, then, to=None))]
    fn begin(
        &self,
        py: Python<'_>,
        round: u32,
        weights: &str,
        then: Option<&str>,
        to: Option<Vec<String>>,
    ) -> PyResult<()> {
        let runtime::Upcoming { round, weights, then } = upcoming(round, weights, then)?;
        let node = self.inner.get()?;
        py.detach(|| node.begin(round, weights, then, to.as_deref())).map_err(raise)
    }

    /// Sends a copy of the trained model in the arena. Returns the iteration number under which it is sent.
    fn ready(&self, py: Python<'_>, round: u32) -> PyResult<u32> {
        let node = self.inner.get()?;
        waiting(py, |go_on| node.ready(round, go_on))?.map_err(raise)
    }

    /// Waits as the options say, and mixes the received models into the arena. Returns the report as JSON;
    /// None if `timeout` seconds pass first.
    fn wait(&self, py: Python<'_>, round: u32, timeout: Option<f64>) -> PyResult<Option<String>> {
        let node = self.inner.get()?;
        waiting(py, |go_on| node.wait(round, limit(timeout), go_on))?.map_err(raise)
    }

    /// Events since the last call, as a JSON list.
    fn events(&self) -> PyResult<String> {
        Ok(self.inner.get()?.events())
    }

    /// Waits until each neighbour that waits for whole models has the last own model. Returns whether all
    /// have it; false if for `liveness` seconds no more of them got it.
    fn finish_sending(&self, py: Python<'_>) -> PyResult<bool> {
        let node = self.inner.get()?;
        waiting(py, |go_on| node.finish_sending(go_on))
    }

    /// Leaves the job for good, after the running transfers.
    fn close(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let node = self.inner.get()?;
        py.detach(|| node.close(reason));
        Ok(())
    }
}
