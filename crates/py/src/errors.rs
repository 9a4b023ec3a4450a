//! The module's only exception; its kind tells callers what to do.

use pyo3::prelude::*;
use pyo3::types::PyString;

pyo3::create_exception!(
    thalweg._core,
    CoreError,
    pyo3::exceptions::PyException,
    "Any error of the core; its text is `operation: cause; hint`, its `kind` says what to branch on."
);

/// Makes an exception of `kind`.
pub(crate) fn core_error(kind: &str, text: &str) -> PyErr {
    Python::attach(|py| {
        let error = CoreError::new_err(text.to_owned());
        // Setting an attribute of a new exception fails only without memory. The text is there anyway.
        let _ = error.value(py).setattr("kind", PyString::new(py, kind));
        error
    })
}

/// Turns an error of the runtime into an exception.
pub(crate) fn raise(error: thalweg_runtime::Error) -> PyErr {
    core_error(error.kind(), &error.to_string())
}
