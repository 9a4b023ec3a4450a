//! The Python module `thalweg._core`: one file a class, no logic. Structured values cross as JSON; blocking
//! calls release the interpreter and look for signals several times a second.

#![forbid(unsafe_code)]

use pyo3::prelude::*;

mod arena;
mod client;
mod errors;
mod functions;
mod layout;
mod server;

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
    use crate::functions::{
        build_info, pki_authority, pki_issue, pki_secret, pki_token, probe_loopback, probe_peer, probe_serve,
        transports,
    };
    #[pymodule_export]
    use crate::layout::Layout;
    #[pymodule_export]
    use crate::server::Server;
}

/// Whether to go on: no signal is pending, such as Ctrl-C. The signal's own exception is raised afterwards.
fn no_signal() -> bool {
    Python::attach(|py| py.check_signals().is_ok())
}
