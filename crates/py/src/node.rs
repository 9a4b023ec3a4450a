//! `Node`.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use thalweg_runtime as runtime;

use crate::arena::Arena;
use crate::errors::{core_error, raise};
use crate::owned::Owned;
use crate::{interruptibly, limit, list, waiting};

/// One node of a graph: it listens from when it is made, and dials its neighbours once it has met them.
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
    let (weights, then) =
        read().map_err(|e| core_error("round", &format!("read weights: {e}; give {{name: weight}}")))?;
    Ok(runtime::Upcoming { round, weights, then })
}

#[pymethods]
impl Node {
    /// Listens at `listen`, a URL, as `name`; `config` is a JSON object of options. The arena holds the own model.
    #[new]
    fn new(py: Python<'_>, arena: &Arena, name: &str, listen: &str, config: &str) -> PyResult<Self> {
        let (memory, layout) = (arena.arena.clone(), arena.layout.clone());
        let (name, listen, config) = (name.to_owned(), listen.to_owned(), config.to_owned());
        // A broker may take its time, and so may the search for a name.
        let inner = interruptibly(py, move || {
            runtime::Node::start(memory, layout, &name, &listen, serde_json::from_str(&config)?)
        })?;
        Ok(Self { inner: Owned::new("Node", inner) })
    }

    /// Where it listens, with the port that the system chose.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.inner.get()?.address())
    }

    /// How many iterations beyond the one that it is in the node keeps chunks of.
    #[getter]
    fn ahead(&self) -> PyResult<u32> {
        Ok(self.inner.get()?.ahead())
    }

    /// Gets to know neighbours, a JSON object of names and URLs. Those with a higher name are dialled. With `weights` of
    /// iteration `first`, and `then`, as `begin` takes them, it takes chunks of neighbours who begin before it does.
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
            .map_err(|e| core_error("options", &format!("read neighbours: {e}; give {{name: url}}")))?;
        let upcoming = weights.map(|weights| upcoming(first, weights, then)).transpose()?;
        let node = self.inner.get()?;
        py.detach(|| node.meet(&neighbours, upcoming)).map_err(raise)
    }

    /// Waits until `count` neighbours are connected or `timeout` seconds are over; returns how many are.
    fn gather(&self, py: Python<'_>, count: usize, timeout: Option<f64>) -> PyResult<usize> {
        let node = self.inner.get()?;
        waiting(py, |go_on| node.gather(count, limit(timeout), go_on))?.map_err(raise)
    }

    /// Names of the neighbours that are connected, as a JSON list.
    fn connected(&self) -> PyResult<String> {
        Ok(list(serde_json::to_string(&self.inner.get()?.connected())))
    }

    /// An iteration begins. `weights`: JSON object of neighbours and weights; `then`: a JSON list of those of
    /// the iterations after it, None if they are the same. `to`: whom to send to, None for those whose models are taken.
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

    /// The model in the arena is trained: sends a copy of it. Returns the number it is sent under.
    fn ready(&self, py: Python<'_>, round: u32) -> PyResult<u32> {
        let node = self.inner.get()?;
        waiting(py, |go_on| node.ready(round, go_on))?.map_err(raise)
    }

    /// Waits as the options say, and mixes what came into the arena. Returns the report as JSON; None if `timeout` seconds
    /// were over first.
    fn wait(&self, py: Python<'_>, round: u32, timeout: Option<f64>) -> PyResult<Option<String>> {
        let node = self.inner.get()?;
        waiting(py, |go_on| node.wait(round, limit(timeout), go_on))?.map_err(raise)
    }

    /// What happened since the last call, as a JSON list.
    fn events(&self) -> PyResult<String> {
        Ok(self.inner.get()?.events())
    }

    /// Waits until each neighbour has the last own model, where neighbours wait for all of it. Returns whether they have it;
    /// not if for as long as `liveness` no more of them got it.
    fn finish_sending(&self, py: Python<'_>) -> PyResult<bool> {
        let node = self.inner.get()?;
        waiting(py, |go_on| node.finish_sending(go_on))
    }

    /// Leaves for good, once what is being sent is out.
    fn close(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let node = self.inner.get()?;
        py.detach(|| node.close(reason));
        Ok(())
    }
}
