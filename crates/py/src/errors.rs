//! Raises the core's errors as Python's `thalweg.CoreError`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use thalweg_runtime::{Error, Kind};

/// An error of `kind` in `operation`, which is empty if the caller's own call says it.
pub(crate) fn core_error(kind: Kind, operation: &str, cause: impl Into<String>) -> PyErr {
    raise(Error::new(kind, operation, cause))
}

/// Turns an error of the core into an exception: a `thalweg.CoreError`, or in a process without the package a
/// `RuntimeError` with the same text.
pub(crate) fn raise(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let values = (error.cause(), error.advice(), error.kind().name(), error.operation(), error.may_retry());
    Python::attach(|py| match py.import("thalweg.errors") {
        Ok(errors) => match errors.getattr("CoreError").and_then(|class| class.call1(values)) {
            Ok(exception) => PyErr::from_value(exception),
            Err(failure) => failure,
        },
        Err(_) => PyRuntimeError::new_err(error.to_string()),
    })
}
