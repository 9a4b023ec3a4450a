//! The class `Proxy`: masks loss in front of a TCP server.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use thalweg_runtime as runtime;

use crate::errors::raise;
use crate::observed;
use crate::owned::Owned;

/// A proxy that masks loss in front of any TCP server. It listens when it is made.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Proxy(Owned<Mutex<Option<runtime::Proxy>>>);

impl Proxy {
    fn held(&self) -> PyResult<MutexGuard<'_, Option<runtime::Proxy>>> {
        Ok(self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with<T>(&self, f: impl FnOnce(&mut runtime::Proxy) -> Result<T, runtime::Error>) -> PyResult<T> {
        let mut held = self.held()?;
        let proxy = held.as_mut().ok_or_else(|| {
            raise(
                runtime::Error::new(runtime::Kind::Closed, "proxy", "it has been closed")
                    .hint("open another one"),
            )
        })?;
        f(proxy).map_err(raise)
    }
}

#[pymethods]
impl Proxy {
    /// Opens the proxy that `config` describes, a JSON object, and listens.
    #[new]
    fn new(py: Python<'_>, config: &str) -> PyResult<Self> {
        let opened = py.detach(|| runtime::Proxy::open(config)).map_err(raise)?;
        Ok(Self(Owned::new("Proxy", Mutex::new(Some(opened)))))
    }

    /// The address that it listens at, and whether it masks loss, as JSON.
    #[getter]
    fn listening(&self) -> PyResult<String> {
        self.with(|proxy| Ok(proxy.listening().to_owned()))
    }

    /// Serves until a signal's handler raises, and raises that exception. `observer` is called with events of
    /// connections, as JSON; its exception ends serving, too.
    fn serve(&self, py: Python<'_>, observer: Py<PyAny>) -> PyResult<()> {
        observed(py, &observer, |go_on| self.with(|proxy| proxy.serve(go_on)))
    }

    /// Closes it. It may be called again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.held().map(|mut held| drop(held.take())))
    }
}
