//! Takes the place of `copying` in builds without the feature `baselines`: no connection for copies can be made.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use thalweg_shm_pool::Object;

use crate::data_plane::DataPlane;
use crate::launch::Launcher;
use crate::setup::Setup;

/// Why there are no copies.
const NONE: &str = "data planes that copy are for comparison only, and this build has no baselines";

/// The node's end of a worker's connection for copies.
pub(crate) enum CopyingPlane {}

impl CopyingPlane {
    pub fn new(_: DataPlane, _: &dyn Launcher, _: u64) -> io::Result<(Self, OwnedFd)> {
        Err(io::Error::new(ErrorKind::Unsupported, NONE))
    }

    pub fn ship(&self, _: Arc<Object>) {
        match *self {}
    }

    pub fn cpu(&self) -> u64 {
        match *self {}
    }

    pub fn end(self) {
        match self {}
    }
}

/// The worker's end.
pub(crate) enum WorkerCopyingPlane {}

impl WorkerCopyingPlane {
    pub fn new(_: OwnedFd, _: &OwnedFd, _: &Setup) -> Result<Self, String> {
        Err(NONE.into())
    }

    pub fn receive(&mut self) -> Result<&[u8], String> {
        match *self {}
    }

    pub fn send(&mut self, _: usize) -> Result<(), String> {
        match *self {}
    }
}

/// Refuses to work as a hop.
///
/// # Errors
/// Always.
pub fn hop(_: OwnedFd, _: OwnedFd, _: u64) -> io::Result<()> {
    Err(io::Error::new(ErrorKind::Unsupported, NONE))
}
