//! The class `TreeExchange`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg_runtime as runtime;

use crate::arena::Arena;
use crate::errors::raise;
use crate::owned::Owned;
use crate::server::Server;
use crate::{interruptibly, limit, list};

/// A node of a tree among the other nodes: it exchanges sums and means with them as the root asks. It listens
/// for other nodes when it is made.
#[pyclass(frozen, module = "thalweg._core")]
pub struct TreeExchange {
    inner: Owned<runtime::TreeExchange>,
}

#[pymethods]
impl TreeExchange {
    /// Makes the exchange of the node whose clients are connected to `server`, which has the model `arena`.
    /// `config` is a JSON object of options.
    #[new]
    fn new(py: Python<'_>, server: &Server, arena: &Arena, config: &str) -> PyResult<Self> {
        let (memory, layout, sums) = (arena.arena.clone(), arena.layout.clone(), server.sums_source()?);
        let config = config.to_owned();
        let start = move || {
            let options = serde_json::from_str(&config)?;
            runtime::TreeExchange::start(memory, layout, sums, options)
        };
        Ok(Self { inner: Owned::new("TreeExchange", interruptibly(py, start)?) })
    }

    /// The address to which other nodes connect.
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.inner.get()?.address())
    }

    /// Begins a round. If `kept`, the last round's mean becomes the model; otherwise the caller writes the
    /// model that the root has sent.
    #[pyo3(signature = (round, *, kept))]
    fn begin(&self, py: Python<'_>, round: u32, kept: bool) -> PyResult<()> {
        let exchange = self.inner.get()?;
        py.detach(|| exchange.begin(round, kept)).map_err(raise)
    }

    /// Ends the node's own round, which has sums of updates if `holds_sums`.
    #[pyo3(signature = (*, holds_sums))]
    fn ended(&self, holds_sums: bool) -> PyResult<()> {
        self.inner.get()?.ended(holds_sums).map_err(raise)
    }

    /// Does what the root asks for with this head. Returns the answer's head, and perhaps its tensors.
    fn request<'py>(&self, py: Python<'py>, head: &[u8]) -> PyResult<(Bound<'py, PyBytes>, Option<Arena>)> {
        let exchange = self.inner.get()?;
        let request = serde_json::from_slice(head);
        let request = request.map_err(|error| {
            raise(runtime::Error::new(runtime::Kind::Task, "read a request", error.to_string()))
        })?;
        let (head, tensors) = py.detach(|| exchange.request(request)).map_err(raise)?;
        let tensors = tensors.map(|(arena, layout)| Arena { arena, layout: (*layout).clone() });
        Ok((PyBytes::new(py, &head), tensors))
    }

    /// Segments retransmitted so far on the way to each node that joined this one (`down`) and by it (`up`),
    /// as `Server.resent`.
    fn resent(&self, py: Python<'_>, timeout: f64) -> PyResult<String> {
        let (exchange, limit) = (self.inner.get()?, limit(Some(timeout)).unwrap_or_default());
        Ok(py.detach(|| exchange.resent(limit)))
    }

    /// Nodes that had joined this one and are not connected any more, as `TaskServer.departed`.
    fn departed(&self) -> PyResult<String> {
        Ok(list(serde_json::to_string(&self.inner.get()?.departed())))
    }

    /// Leaves all other nodes.
    fn close(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let exchange = self.inner.get()?;
        py.detach(|| exchange.close(reason));
        Ok(())
    }
}
