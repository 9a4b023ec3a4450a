//! Raises the core's errors as Python's `thalweg.CoreError`.

use pyo3::prelude::*;
use thalweg_runtime::Error;

/// An error of `kind` in `operation`, which is empty if the caller's own call says it.
pub(crate) fn core_error(kind: &str, operation: &str, cause: impl Into<String>) -> PyErr {
    raise(Error::new(kind, operation, cause))
}

/// Turns an error of the core into an exception.
pub(crate) fn raise(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let values = (error.cause(), error.advice(), error.kind(), error.operation(), error.may_retry());
    let made = |py: Python<'_>| {
        let class = py.import("thalweg.errors")?.getattr("CoreError")?;
        Ok(PyErr::from_value(class.call1(values)?))
    };
    Python::attach(|py| made(py).unwrap_or_else(|error: PyErr| error))
}
