//! The class `Lab`: an emulated network.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use thalweg_lab as lab;
use thalweg_runtime::{Error, Kind};

use crate::errors;
use crate::owned::Owned;

fn raise(error: lab::Error) -> PyErr {
    let kind = match error.kind() {
        lab::ErrorKind::Config => Kind::Config,
        lab::ErrorKind::Permission => Kind::Permission,
        lab::ErrorKind::Unsupported => Kind::Unsupported,
        lab::ErrorKind::InUse => Kind::InUse,
        lab::ErrorKind::System => Kind::System,
    };
    let raised = Error::new(kind, error.operation(), error.cause());
    errors::raise(match error.advice() {
        Some(hint) => raised.hint(hint),
        None => raised,
    })
}

/// Hosts in network namespaces, and the relay between them. It ends with the process that made it.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Lab(Owned<Mutex<Option<lab::Lab>>>);

impl Lab {
    fn held(&self) -> PyResult<MutexGuard<'_, Option<lab::Lab>>> {
        Ok(self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&lab::Lab) -> lab::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| self.held().map(|held| held.as_ref().map(ask)))?
            .ok_or_else(|| {
                errors::raise(Error::new(Kind::Closed, "lab", "it has been closed").hint("make a new one"))
            })?
            .map_err(raise)
    }
}

#[pymethods]
impl Lab {
    /// Makes the network that the JSON in `spec` describes.
    #[new]
    fn new(py: Python<'_>, spec: &str) -> PyResult<Self> {
        let made = py.detach(|| lab::Spec::parse(spec).and_then(|spec| lab::Lab::new(&spec)));
        made.map(|lab| Self(Owned::new("Lab", Mutex::new(Some(lab))))).map_err(raise)
    }

    /// Returns each host's namespace, inode, addresses and devices, as JSON by name.
    fn hosts(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |lab| Ok(lab.hosts().to_string()))
    }

    /// Starts the clock of changes and samples.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |lab| {
            lab.start();
            Ok(())
        })
    }

    /// Changes the shape of a link, in the direction "ab" or "ba" or in both. `shape` is JSON.
    fn set(&self, py: Python<'_>, link: &str, direction: Option<&str>, shape: &str) -> PyResult<()> {
        self.with(py, |lab| lab.set(link, direction, shape))
    }

    /// Returns the counters of links, hosts and relay, as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, lab::Lab::status).map(|status| status.to_string())
    }

    /// Returns the samples of queues and traffic since the last call, as JSON.
    fn samples(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, lab::Lab::samples).map(|samples| samples.to_string())
    }

    /// Returns why the relay has ended; None while it runs.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |lab| Ok(lab.failure()))
    }

    /// Takes the network down. It may be called again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.held().map(|mut held| drop(held.take())))
    }
}

/// Moves the calling thread into a host's namespace. With `hosts_file`, that file replaces /etc/hosts for the
/// thread. It is for a process that is about to execute another program.
#[pyfunction]
#[pyo3(signature = (path, hosts_file=None))]
pub fn enter_namespace(path: &str, hosts_file: Option<&str>) -> PyResult<()> {
    lab::enter(Path::new(path), hosts_file.map(Path::new)).map_err(raise)
}
