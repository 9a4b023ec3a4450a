//! The class `Server`: a server of rounds.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg_runtime as runtime;
use thalweg_wire::tree::Admit;

use crate::arena::Arena;
use crate::errors::{core_error, raise};
use crate::owned::Owned;
use crate::{interruptibly, limit, list, waiting};

/// The server's end of a job. It listens when it is made.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Server {
    inner: Owned<Arc<RwLock<Option<runtime::Server>>>>,
}

impl Server {
    fn with<T>(&self, f: impl FnOnce(&runtime::Server) -> PyResult<T>) -> PyResult<T> {
        let guard = self.inner.get()?.read().unwrap_or_else(PoisonError::into_inner);
        f(guard
            .as_ref()
            .ok_or_else(|| core_error(thalweg_runtime::Kind::Closed, "", "the server is closed"))?)
    }

    /// Where a node's exchange with other nodes gets the sums of this server's rounds.
    pub(crate) fn sums_source(&self) -> PyResult<runtime::SumsSource> {
        let held = self.inner.get()?.clone();
        Ok(Arc::new(move |part| {
            let server = held.read().unwrap_or_else(PoisonError::into_inner);
            server.as_ref().map_or(Ok(None), |server| server.sums(part))
        }))
    }
}

#[pymethods]
impl Server {
    /// Listens at the URL `listen`. `config` is a JSON object of options. The arena holds the global model.
    #[new]
    fn new(py: Python<'_>, arena: &Arena, listen: &str, config: &str) -> PyResult<Self> {
        let (memory, layout) = (arena.arena.clone(), arena.layout.clone());
        let (listen, config) = (listen.to_owned(), config.to_owned());
        // A broker or a name look-up may take long.
        let server = interruptibly(py, move || {
            runtime::Server::start(memory, layout, &listen, serde_json::from_str(&config)?)
        })?;
        Ok(Self { inner: Owned::new("Server", Arc::new(RwLock::new(Some(server)))) })
    }

    /// The address that it listens at, with the port that the system chose.
    #[getter]
    fn address(&self) -> PyResult<String> {
        self.with(|s| Ok(s.address()))
    }

    /// Waits until `clients` clients are connected or `timeout` seconds have passed. Returns how many are
    /// connected.
    fn wait(&self, py: Python<'_>, clients: usize, timeout: Option<f64>) -> PyResult<usize> {
        let limit = limit(timeout);
        self.with(|s| waiting(py, |go_on| s.wait(clients, limit, go_on)))
    }

    /// Runs round `number`. Clients get `config`, a JSON object. `observer` is called with the progress of
    /// all clients a few times a second, as JSON; its exception ends the round. Returns the outcome as JSON.
    /// With `batch`, its number in the round, only the updates are folded that `admit` names.
    #[pyo3(signature = (number, config, observer, batch=None))]
    fn round(
        &self,
        py: Python<'_>,
        number: u32,
        config: &str,
        observer: Option<Py<PyAny>>,
        batch: Option<u32>,
    ) -> PyResult<String> {
        let raised: Mutex<Option<PyErr>> = Mutex::new(None);
        let go_on = |progress: &str| {
            let outcome = Python::attach(|py| {
                py.check_signals()?;
                observer.as_ref().map_or(Ok(()), |o| o.call1(py, (progress,)).map(drop))
            });
            outcome.map_err(|e| *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(e)).is_ok()
        };
        let outcome = self.with(|s| py.detach(|| Ok(s.round(number, config, batch, go_on))))?;
        if let Some(error) = raised.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        outcome.map_err(raise)
    }

    /// Clients that are not connected any more, as a JSON list of name, reason, and whether the client left
    /// for good.
    fn departed(&self) -> PyResult<String> {
        self.with(|s| Ok(list(serde_json::to_string(&s.departed()))))
    }

    /// Segments retransmitted so far on the way to each client (`down`) and by it (`up`), as a JSON object by
    /// name. Null if a transport does not count them. Waits at most `timeout` seconds for clients that have
    /// not reported yet.
    fn resent(&self, py: Python<'_>, timeout: f64) -> PyResult<String> {
        let limit = crate::limit(Some(timeout)).unwrap_or_default();
        self.with(|s| Ok(py.detach(|| s.resent(limit))))
    }

    /// Tells the server that a client's process has ended for good, and why. Rounds no longer wait for it.
    #[pyo3(signature = (client, why=""))]
    fn forget(&self, client: &str, why: &str) -> PyResult<()> {
        self.with(|s| {
            s.forget(client, why);
            Ok(())
        })
    }

    /// Tells a node of a tree where the root has placed the clients. `homes` is a JSON object. `elsewhere`
    /// has the URLs of other clients' nodes by client name; `others` has the URLs of other nodes. `after` and
    /// `counted` have rounds by client name: the last round in which another node may have counted the
    /// client, and the last in which one did. `expected` clients belong to this node.
    fn place_clients(&self, expected: u32, homes: &str) -> PyResult<()> {
        let homes = || Ok(serde_json::from_str(homes)?);
        self.with(|s| homes().and_then(|homes| s.place_clients(expected, homes)).map_err(raise))
    }

    /// Tells clients whether the sums of a round, in which their updates are, count at the top. Those of the
    /// clients in `left_out` do not count in any case.
    fn confirm(&self, round: u32, counts: bool, left_out: BTreeSet<String>) -> PyResult<()> {
        self.with(|s| s.confirm(round, counts, &left_out).map_err(raise))
    }

    /// Folds the updates that `request`, a JSON object, names, in its batch of its round. Returns the batch's
    /// arrivals that the root does not know, as a JSON list of clients and whether their updates are whole; an
    /// empty list if the batch is over, None if there are none within `timeout` seconds.
    fn admit(&self, py: Python<'_>, request: &str, timeout: f64) -> PyResult<Option<String>> {
        let request: Admit = serde_json::from_str(request).map_err(|error| {
            core_error(thalweg_runtime::Kind::Options, "admit updates", error.to_string())
        })?;
        let limit = limit(Some(timeout)).unwrap_or_default();
        let arrivals = self.with(|s| py.detach(|| s.admit(&request, limit)).map_err(raise))?;
        Ok(arrivals.map(|arrivals| list(serde_json::to_string(&arrivals))))
    }

    /// Names of the connected clients, as a JSON list.
    fn clients(&self) -> PyResult<String> {
        self.with(|s| Ok(list(serde_json::to_string(&s.clients()))))
    }

    /// Log lines since the last call: which clients came and went, and why.
    fn notes(&self) -> PyResult<Vec<String>> {
        self.with(|s| Ok(s.notes()))
    }

    /// Statistics of the worker processes, as a JSON object; None if the server folds by itself.
    fn tree(&self) -> PyResult<Option<String>> {
        self.with(|s| Ok(s.tree()))
    }

    /// Memory in bytes of this process and of each worker process, each with its share of what they share (PSS;
    /// 0 if unknown), as `(server, [worker, ...])`; None if the server folds by itself.
    fn memory(&self, py: Python<'_>) -> PyResult<Option<(u64, Vec<u64>)>> {
        py.detach(|| self.with(|s| Ok(s.memory())))
    }

    /// The proofs of those of the named clients that have shown one, as `(name, bytes)`, for the root's
    /// `pki_check_forwarded_proof`.
    fn proofs<'py>(
        &self,
        py: Python<'py>,
        names: Vec<String>,
    ) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
        let found = self.with(|s| Ok(s.proofs(&names)))?;
        Ok(found.into_iter().map(|(name, proof)| (name, PyBytes::new(py, &proof))).collect())
    }

    /// Head and cells of the sums of the last round; None if rounds do not end with sums, or there were none.
    fn sums<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Arena)>> {
        let found = self.with(|s| py.detach(|| Ok(s.sums(None))))?.map_err(raise)?;
        Ok(found.map(|sums| {
            let cells = Arena { arena: sums.cells, layout: (*sums.layout).clone() };
            (PyBytes::new(py, &sums.head), cells)
        }))
    }

    /// The model that clients had before they trained in the last round, if `layers.compress.down` is on and there
    /// was a round; else None. It shows the memory that the next round changes.
    #[getter]
    fn held(&self) -> PyResult<Option<Arena>> {
        self.with(|s| Ok(s.held().map(|(arena, layout)| Arena { arena, layout: (*layout).clone() })))
    }

    /// Goes on with the clients' model of an earlier server. It is copied.
    fn resume_held(&self, held: &Arena) -> PyResult<()> {
        self.with(|s| s.resume_held(&held.arena).map_err(raise))
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
