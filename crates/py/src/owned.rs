//! Wraps objects that only the process that made them may use.

use pyo3::prelude::*;
use thalweg_runtime::{Error, Kind};

use crate::errors::raise;

/// An object of the core that has threads and sockets. After a fork, the child has a copy without the
/// threads, so a call would wait for ever. In the child, using the object is an error, and dropping it does
/// nothing.
pub(crate) struct Owned<T> {
    name: &'static str,
    inner: Option<T>,
    process: u32,
}

impl<T> Owned<T> {
    /// Wraps `inner` for use in this process only. Error messages call the object `name`.
    pub(crate) fn new(name: &'static str, inner: T) -> Self {
        Self { name, inner: Some(inner), process: std::process::id() }
    }

    /// Returns the object in the process that made it. Raises `forked` in any other.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.inner.as_ref().filter(|_| self.is_here()).ok_or_else(|| {
            let (name, owner, here) = (self.name, self.process, std::process::id());
            let cause = format!(
                "it was made in process {owner} and its threads are there, not in process {here}, which was forked"
            );
            raise(Error::new(Kind::Forked, name, cause).hint(
                "make it in the process that uses it, or start processes by the method \"spawn\"",
            ))
        })
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            std::mem::forget(self.inner.take());
        }
    }
}
