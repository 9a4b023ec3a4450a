//! One exception, with a kind to branch on.

use pyo3::prelude::*;
use pyo3::types::PyString;

pyo3::create_exception!(
    thalweg._core,
    CoreError,
    pyo3::exceptions::PyException,
    "Any error of the core; its text is `operation: cause; hint`, its `kind` says what to branch on."
);

/// An exception of `kind`.
pub(crate) fn core_error(kind: &str, text: &str) -> PyErr {
    Python::attach(|py| {
        let error = CoreError::new_err(text.to_owned());
        // Setting an attribute of a fresh exception only fails without memory; the text is there anyway.
        let _ = error.value(py).setattr("kind", PyString::new(py, kind));
        error
    })
}

/// The runtime's errors as exceptions.
pub(crate) fn raise(error: thalweg_runtime::Error) -> PyErr {
    core_error(error.kind(), &error.to_string())
}
