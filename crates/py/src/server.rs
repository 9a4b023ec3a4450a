//! `Server`.

use std::sync::{Mutex, PoisonError, RwLock};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg_runtime as runtime;

use crate::arena::Arena;
use crate::errors::{core_error, raise};
use crate::owned::Owned;
use crate::tree::range;
use crate::{interruptibly, limit, list, waiting};

/// The server's end of a job; it listens from when it is made.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Server {
    inner: Owned<RwLock<Option<runtime::Server>>>,
}

impl Server {
    fn with<T>(&self, f: impl FnOnce(&runtime::Server) -> PyResult<T>) -> PyResult<T> {
        let guard = self.inner.get()?.read().unwrap_or_else(PoisonError::into_inner);
        f(guard.as_ref().ok_or_else(|| core_error("closed", "the server is closed"))?)
    }
}

#[pymethods]
impl Server {
    /// Listens at `listen`, a URL; `config` is a JSON object of options. The arena holds the global model.
    #[new]
    fn new(py: Python<'_>, arena: &Arena, listen: &str, config: &str) -> PyResult<Self> {
        let (memory, layout) = (arena.arena.clone(), arena.layout.clone());
        let (listen, config) = (listen.to_owned(), config.to_owned());
        // A broker may take its time, and so may the search for a name.
        let server = interruptibly(py, move || {
            runtime::Server::start(memory, layout, &listen, serde_json::from_str(&config)?)
        })?;
        Ok(Self { inner: Owned::new("Server", RwLock::new(Some(server))) })
    }

    /// Where it listens, with the port that the system chose.
    #[getter]
    fn address(&self) -> PyResult<String> {
        self.with(|s| Ok(s.address()))
    }

    /// Waits until `clients` are connected or `timeout` seconds are over; returns how many are.
    fn wait(&self, py: Python<'_>, clients: usize, timeout: Option<f64>) -> PyResult<usize> {
        let limit = limit(timeout);
        self.with(|s| waiting(py, |go_on| s.wait(clients, limit, go_on)))
    }

    /// Runs round `number`; clients get `config`, a JSON object. `observer` hears of everybody's progress a
    /// few times a second, as JSON; what it raises ends the round. Returns the outcome as JSON.
    fn round(
        &self,
        py: Python<'_>,
        number: u32,
        config: &str,
        observer: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let raised: Mutex<Option<PyErr>> = Mutex::new(None);
        let go_on = |progress: &str| {
            let told = Python::attach(|py| {
                py.check_signals()?;
                observer.as_ref().map_or(Ok(()), |o| o.call1(py, (progress,)).map(drop))
            });
            told.map_err(|e| *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(e)).is_ok()
        };
        let outcome = self.with(|s| py.detach(|| Ok(s.round(number, config, go_on))))?;
        if let Some(error) = raised.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        outcome.map_err(raise)
    }

    /// Clients that were here and are not connected, as a JSON list of name, why, and whether it left for good.
    fn departed(&self) -> PyResult<String> {
        self.with(|s| Ok(list(serde_json::to_string(&s.departed()))))
    }

    /// Segments retransmitted so far on the way to each client (`down`) and by it (`up`), as a JSON object of names; null
    /// where a transport cannot tell. Waits for at most `timeout` seconds for clients that have yet to say so.
    fn resent(&self, py: Python<'_>, timeout: f64) -> PyResult<String> {
        let limit = crate::limit(Some(timeout)).unwrap_or_default();
        self.with(|s| Ok(py.detach(|| s.resent(limit))))
    }

    /// A client's process has ended for good, for that reason: rounds no longer wait for it.
    #[pyo3(signature = (client, why=""))]
    fn forget(&self, client: &str, why: &str) -> PyResult<()> {
        self.with(|s| {
            s.forget(client, why);
            Ok(())
        })
    }

    /// The root of a tree has decided where clients belong: `homes` is a JSON object with `elsewhere`, the URLs of other
    /// clients' nodes by name, `others`, URLs of other nodes, and the last rounds of clients by name: in `after` those that
    /// they may have been counted in at another node, in `counted` those that they were. `expected` of them are here.
    fn place_clients(&self, expected: u32, homes: &str) -> PyResult<()> {
        let homes = || Ok(serde_json::from_str(homes)?);
        self.with(|s| homes().and_then(|homes| s.place_clients(expected, homes)).map_err(raise))
    }

    /// Names of the clients that are connected, as a JSON list.
    fn clients(&self) -> PyResult<String> {
        self.with(|s| Ok(list(serde_json::to_string(&s.clients()))))
    }

    /// What happened since the last call, in words: who came, who went, and why.
    fn notes(&self) -> PyResult<Vec<String>> {
        self.with(|s| Ok(s.notes()))
    }

    /// What worker processes have done so far, as a JSON object; `None` if the server folds by itself.
    fn tree(&self) -> PyResult<Option<String>> {
        self.with(|s| Ok(s.tree()))
    }

    /// The proofs of these clients, as `(name, bytes)`, for the root's `pki_check_forwarded_proof`; of those that have shown one.
    fn proofs<'py>(
        &self,
        py: Python<'py>,
        names: Vec<String>,
    ) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
        let found = self.with(|s| Ok(s.proofs(&names)))?;
        Ok(found.into_iter().map(|(name, proof)| (name, PyBytes::new(py, &proof))).collect())
    }

    /// Head and cells of the sums of the round that ended last, if rounds end with sums and it had any; of a `part` of them,
    /// the first byte of updates and the one past the last, a copy.
    #[pyo3(signature = (part=None))]
    fn sums<'py>(
        &self,
        py: Python<'py>,
        part: Option<(u64, u64)>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Arena)>> {
        let part = part.map(range).transpose()?;
        let found = self.with(|s| py.detach(|| Ok(s.sums(part))))?.map_err(raise)?;
        Ok(found.map(|sums| {
            let cells = Arena { arena: sums.cells, layout: (*sums.layout).clone() };
            (PyBytes::new(py, &sums.head), cells)
        }))
    }

    /// Tells every client that the job is over, and stops.
    fn close(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let held = self.inner.get()?;
        py.detach(|| {
            let server = held.write().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(mut server) = server {
                server.close(reason);
            }
        });
        Ok(())
    }
}
