//! The Python module `thalweg._core`: one file for each class, without logic of its own. Structured values
//! are passed as JSON. Blocking calls release the interpreter, and check for signals several times a second.

#![forbid(unsafe_code)]

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use thalweg_runtime as runtime;
use thalweg_runtime::GoOn;

use crate::errors::{core_error, raise};

mod arena;
mod client;
mod errors;
mod forward;
mod functions;
mod lab;
mod layout;
mod node;
mod owned;
mod proxy;
mod server;
mod tasks;
mod tree;
mod tree_exchange;
mod tree_round;

const LOOK: Duration = Duration::from_millis(50);

/// The compiled core of thalweg.
#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::arena::Arena;
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::forward::Forwarder;
    #[pymodule_export]
    use crate::functions::{
        build_info, error_kinds, pki_authority, pki_check_forwarded_proof, pki_describe, pki_has_signed,
        pki_issue, pki_issuer, pki_roles, pki_secret, pki_token, plain_text, probe_loopback, probe_peer,
        probe_serve, rdma_devices, transports,
    };
    #[pymodule_export]
    use crate::lab::{enter_namespace, Lab};
    #[pymodule_export]
    use crate::layout::Layout;
    #[pymodule_export]
    use crate::node::Node;
    #[pymodule_export]
    use crate::proxy::Proxy;
    #[pymodule_export]
    use crate::server::Server;
    #[pymodule_export]
    use crate::tasks::{TaskClient, TaskServer};
    #[pymodule_export]
    use crate::tree::{
        tree_asked, tree_forked, tree_hop, tree_knee, tree_plan, tree_routes, tree_schema, tree_simulate,
        tree_system, tree_work, Top, TreeBalancer,
    };
    #[pymodule_export]
    use crate::tree_exchange::TreeExchange;
    #[pymodule_export]
    use crate::tree_round::TreeRound;
    /// Whether this build has the ways of papers that only comparisons need.
    #[pymodule_export]
    const BASELINES: bool = thalweg_runtime::BASELINES;
    /// Maximum number of bytes of an update's metrics, as JSON, that the core keeps.
    #[pymodule_export]
    const MAX_METRICS: usize = thalweg_wire::text::MAX_METRICS;

    /// Adds the class of the errors that the core raises. It is written in Python, beside the other errors. A
    /// worker of a tree loads the core without the package, and then there is no such class.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        match module.py().import("thalweg.errors") {
            Ok(errors) => module.add("CoreError", errors.getattr("CoreError")?),
            Err(_) => Ok(()),
        }
    }
}

/// Seconds from Python as a duration. Negative and other impossible values count as 0.
fn limit(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// A JSON list. Serializing a list of names cannot fail, so an error counts as an empty list.
fn list(written: serde_json::Result<String>) -> String {
    written.unwrap_or_else(|_| "[]".into())
}

/// Checks for signals, such as Ctrl-C, while the core waits. The check takes the exception out of the
/// interpreter. So it is kept here and raised afterwards.
#[derive(Default)]
struct Signals(Mutex<Option<PyErr>>);

impl Signals {
    /// Whether to continue: no signal's handler has raised.
    fn none(&self) -> bool {
        let kept = |error| *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        Python::attach(|py| py.check_signals()).map_err(kept).is_ok()
    }

    /// Raises the exception of a signal's handler, if there was one.
    fn raise(self) -> PyResult<()> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Runs `serve` until a signal's handler raises, and raises that exception. `observer` is called with each
/// event, as JSON; its exception ends `serve`, too.
fn observed(
    py: Python<'_>,
    observer: &Py<PyAny>,
    serve: impl FnOnce(&dyn Fn(Option<&str>) -> bool) -> PyResult<()> + Send,
) -> PyResult<()> {
    let raised: Mutex<Option<PyErr>> = Mutex::new(None);
    let go_on = |event: Option<&str>| {
        let outcome = Python::attach(|py| {
            py.check_signals()?;
            event.map_or(Ok(()), |event| observer.call1(py, (event,)).map(drop))
        });
        let kept = |error| *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        outcome.map_err(kept).is_ok()
    };
    py.detach(|| serve(&go_on))?;
    raised.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Releases the interpreter while `wait` runs. Then raises what a signal's handler raised meanwhile. Handlers
/// run only on Python's main thread, so on other threads, of which there may be thousands, `wait` gets no
/// check for signals.
fn waiting<T: Send>(py: Python<'_>, wait: impl FnOnce(GoOn<'_>) -> T + Send) -> PyResult<T> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    let is_main = threading.call_method0("get_ident")?.eq(main)?;
    let signals = Signals::default();
    let none = || signals.none();
    let outcome = py.detach(|| wait(is_main.then_some(&none)));
    signals.raise()?;
    Ok(outcome)
}

/// Runs `work`, which may block for long, on a new thread, while the caller's thread checks for signals.
/// After a signal the caller continues with its exception; the other thread ends with its work or with the
/// process.
fn interruptibly<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, runtime::Error> + Send + 'static,
) -> PyResult<T> {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || drop(done.send(work())));
    let signals = Signals::default();
    let none = || signals.none();
    let outcome = py.detach(move || loop {
        match result.recv_timeout(LOOK) {
            Ok(outcome) => break Some(outcome),
            Err(RecvTimeoutError::Timeout) if none() => {}
            Err(_) => break None,
        }
    });
    signals.raise()?;
    outcome
        .ok_or_else(|| {
            core_error(thalweg_runtime::Kind::System, "the core", "its thread ended without a result")
        })?
        .map_err(raise)
}
