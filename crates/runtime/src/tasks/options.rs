//! Options of a server of tasks: the JSON that Python passes.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use thalweg_transport::Options;

use crate::options::{Layers, PrecisionRule};
use crate::{Error, Kind};

/// Options of a server of tasks.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskServerOptions {
    /// Options of the transport.
    pub transport: Options,
    /// Layers around the transport.
    pub layers: Layers,
    /// Seed of the layers.
    pub seed: u64,
    /// Public key, in hex, of the issuer of the members' tokens.
    pub issuer: Option<String>,
    /// Alternatively, a secret that all members share.
    pub token: Option<String>,
    /// File with the members whose tokens and certificates no longer count. It is read again when it changes.
    pub revoked: Option<String>,
    /// Whether the members are nodes of an aggregation tree. Their tokens must then have that role.
    pub tree: bool,
    /// Number of the job.
    pub job: u64,
    /// Maximum number of payload bytes of a chunk. `None`: the size that the transport prefers, else 256 KiB. Where
    /// the transport prefers no size, a chunk of a smaller task or result is a 64th of it, 64 KiB or more.
    pub chunk: Option<u32>,
    /// A link ends after at least this many seconds without progress.
    pub liveness: f64,
    /// Seconds that a member may be disconnected before its part in a task is lost.
    pub grace: f64,
    /// Maximum number of tasks that may be open at once.
    pub max_open: usize,
    /// Maximum number of tasks that a member gets at once; further tasks wait.
    pub ahead: usize,
    /// Maximum number of bytes of results in memory, arriving or waiting to be taken. Further results lie in
    /// files.
    pub memory: u64,
    /// Folder of the files with further results; `None`: the system's folder for temporary files.
    pub spill: Option<PathBuf>,
    /// Maximum number of bytes of results that wait to be folded. One result is always allowed.
    pub staging: u64,
    /// Maximum number of bytes of one result.
    pub max_result: u64,
    /// Number format of the sums.
    pub precision: PrecisionRule,
}

impl Default for TaskServerOptions {
    fn default() -> Self {
        Self {
            transport: Options::default(),
            layers: Layers::default(),
            seed: 0,
            issuer: None,
            token: None,
            revoked: None,
            tree: false,
            job: 1,
            chunk: None,
            liveness: 10.0,
            grace: 10.0,
            max_open: 4096,
            ahead: 4,
            memory: 1 << 30,
            spill: None,
            staging: 64 << 20,
            max_result: 8 << 30,
            precision: PrecisionRule::default(),
        }
    }
}

impl TaskServerOptions {
    /// Checks the options whose types allow impossible values.
    ///
    /// # Errors
    /// `options`, with the option that is impossible and its possible values.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |what: &str| Err(Error::new(Kind::Options, "start task server", what));
        let possible = |chunk: u32| chunk > 0 && chunk.is_multiple_of(64) && chunk <= thalweg_wire::MAX_CHUNK;
        if !self.chunk.is_none_or(possible) {
            return bad("chunk must be a multiple of 64 bytes, at most 4 MiB");
        }
        if [self.grace, self.liveness].iter().any(|t| Duration::try_from_secs_f64(*t).is_err()) {
            return bad("grace and liveness are seconds, not negative");
        }
        if self.liveness < 0.1 {
            return bad("liveness must be at least 0.1 s, or every pause ends a link");
        }
        if self.max_open == 0 || self.ahead == 0 || self.max_result == 0 {
            return bad("max_open, ahead and max_result must be at least 1");
        }
        Ok(())
    }
}
