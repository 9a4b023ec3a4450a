//! The Python module `thalweg._core`: one file a class, no logic. Structured values cross as JSON; blocking
//! calls release the interpreter and look for signals several times a second.

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

const LOOK: Duration = Duration::from_millis(50);

/// The compiled core of thalweg.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::arena::Arena;
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::errors::CoreError;
    #[pymodule_export]
    use crate::forward::Forwarder;
    #[pymodule_export]
    use crate::functions::{
        build_info, pki_authority, pki_check_forwarded_proof, pki_issue, pki_issuer, pki_roles, pki_secret,
        pki_token, plain_text, probe_loopback, probe_peer, probe_serve, rdma_devices, transports,
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
        tree_system, tree_work, Top,
    };
    /// Most bytes of JSON that are kept of the metrics of an update.
    #[pymodule_export]
    const MAX_METRICS: usize = thalweg_wire::text::MAX_METRICS;
}

/// Seconds from Python; what is no length of time counts as none.
fn limit(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// A list that was written as JSON. Lists of names can always be.
fn list(written: serde_json::Result<String>) -> String {
    written.unwrap_or_else(|_| "[]".into())
}

/// Looks for signals, such as Ctrl-C, while the core waits. Looking takes the signal's exception away from
/// the interpreter, so it is kept here and raised afterwards.
#[derive(Default)]
struct Signals(Mutex<Option<PyErr>>);

impl Signals {
    /// Whether to go on: no signal came.
    fn none(&self) -> bool {
        let kept = |error| *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        Python::attach(|py| py.check_signals()).map_err(kept).is_ok()
    }

    /// Raises what came.
    fn raise(self) -> PyResult<()> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Serves, as `serve` does, until a signal's handler raises, and raises that. `observer` hears of events, as JSON; what it
/// raises ends it too.
fn observed(
    py: Python<'_>,
    observer: &Py<PyAny>,
    serve: impl FnOnce(&dyn Fn(Option<&str>) -> bool) -> PyResult<()> + Send,
) -> PyResult<()> {
    let raised: Mutex<Option<PyErr>> = Mutex::new(None);
    let go_on = |event: Option<&str>| {
        let told = Python::attach(|py| {
            py.check_signals()?;
            event.map_or(Ok(()), |event| observer.call1(py, (event,)).map(drop))
        });
        let kept = |error| *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        told.map_err(kept).is_ok()
    };
    py.detach(|| serve(&go_on))?;
    raised.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Lets the interpreter go while `wait` waits, and raises what a signal's handler raised meanwhile. Handlers run on
/// Python's main thread only: `wait` is asked nothing on other threads, of which there may be thousands.
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

/// Does what may block for long on a thread of its own, while the caller's thread looks for signals. If one comes, the
/// caller goes on with its exception; the other thread ends when its work does, or with the process.
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
    outcome.ok_or_else(|| core_error("system", "the core: its thread ended without a result"))?.map_err(raise)
}
