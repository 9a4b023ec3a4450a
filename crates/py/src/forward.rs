//! The class `Forwarder`: one end of `thalweg forward`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use thalweg_runtime as runtime;

use crate::errors::raise;
use crate::owned::Owned;
use crate::{interruptibly, observed};

/// One end of a link that carries other programs' TCP streams. It listens when it is made.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Forwarder(Owned<Mutex<Option<runtime::Forwarder>>>);

impl Forwarder {
    fn held(&self) -> PyResult<MutexGuard<'_, Option<runtime::Forwarder>>> {
        Ok(self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with<T>(&self, f: impl FnOnce(&mut runtime::Forwarder) -> Result<T, runtime::Error>) -> PyResult<T> {
        let mut held = self.held()?;
        let forwarder = held.as_mut().ok_or_else(|| {
            raise(
                runtime::Error::new(runtime::Kind::Closed, "forward", "it has been closed")
                    .hint("open another one"),
            )
        })?;
        f(forwarder).map_err(raise)
    }
}

#[pymethods]
impl Forwarder {
    /// Opens the end that `config` describes, a JSON object, and listens. A near end connects to its far end
    /// first.
    #[new]
    fn new(py: Python<'_>, config: String) -> PyResult<Self> {
        let opened = interruptibly(py, move || runtime::Forwarder::open(&config))?;
        Ok(Self(Owned::new("Forwarder", Mutex::new(Some(opened)))))
    }

    /// The addresses that it listens at, as JSON.
    #[getter]
    fn listening(&self) -> PyResult<String> {
        self.with(|forwarder| Ok(forwarder.listening().to_owned()))
    }

    /// Serves until a signal's handler raises, and raises that exception. `observer` is called with events of
    /// links and connections, as JSON; its exception ends serving, too.
    fn serve(&self, py: Python<'_>, observer: Py<PyAny>) -> PyResult<()> {
        observed(py, &observer, |go_on| self.with(|forwarder| forwarder.serve(go_on)))
    }

    /// Closes it. It may be called again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.held().map(|mut held| drop(held.take())))
    }
}
