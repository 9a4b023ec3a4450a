//! Opens libibverbs at run time, and turns its results into errors.

use std::ffi::{c_int, CStr};
use std::io;
use std::sync::OnceLock;

use crate::abi::Functions;
use crate::Error;

const LIBRARY: &CStr = c"libibverbs.so.1";

pub(crate) fn functions() -> Result<&'static Functions, Error> {
    static FUNCTIONS: OnceLock<Result<Functions, Error>> = OnceLock::new();
    let opened = FUNCTIONS.get_or_init(|| {
        // SAFETY: the name is a C string. The library's initialisers are those of rdma-core, which may run at
        // any time.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // SAFETY: after a failure the text is valid until this thread's next call.
            let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
            let text = text.map_or_else(|| "libibverbs.so.1 does not open".into(), CStr::to_string_lossy);
            return Err(Error::NoLibrary(text.into_owned()));
        }
        // SAFETY: the library is never closed. A symbol of libibverbs is the function of that name, in its
        // newest version, which is the one of verbs.h.
        unsafe { Functions::load(|name| libc::dlsym(library, name.as_ptr())) }
            .map_err(|name| Error::NoLibrary(format!("libibverbs.so.1 has no {name}")))
    });
    opened.as_ref().map_err(Clone::clone)
}

pub(crate) fn refused(what: &str, error: &io::Error) -> Error {
    let reason = format!("{what}: {error}");
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) => Error::Locked(reason),
        _ => Error::Refused(reason),
    }
}

pub(crate) fn checked(what: &str, code: c_int) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        -1 => Err(refused(what, &io::Error::last_os_error())),
        code => Err(refused(what, &io::Error::from_raw_os_error(code.abs()))),
    }
}

pub(crate) fn there<T>(what: &str, pointer: *mut T) -> Result<*mut T, Error> {
    let error = io::Error::last_os_error();
    (!pointer.is_null()).then_some(pointer).ok_or_else(|| refused(what, &error))
}
