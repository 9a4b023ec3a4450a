//! Options of a server and a client: the JSON that Python passes.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use thalweg_control::autoscaler::Knobs;
use thalweg_control::Config;
use thalweg_fold::Precision;
use thalweg_proto::{Choice, Fanout, Gather, Partial};
use thalweg_transport::Options;
use thalweg_wire::control::StandIn;

use crate::registry::BASELINES;
use crate::star::RepairRule;
use crate::{Error, Kind};

/// How much of a partly received update is added to the mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartialRule {
    /// Nothing: the update does not count.
    #[default]
    Discard,
    /// The part that has arrived.
    Keep,
}

impl From<PartialRule> for Partial {
    fn from(rule: PartialRule) -> Self {
        match rule {
            PartialRule::Discard => Partial::Discard,
            PartialRule::Keep => Partial::Keep,
        }
    }
}

/// Number format of the sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionRule {
    /// 32-bit floats.
    #[default]
    F32,
    /// 64-bit floats.
    F64,
    /// 128-bit fixed point: the same bits in whatever order updates arrive.
    Exact,
}

impl From<PrecisionRule> for Precision {
    fn from(rule: PrecisionRule) -> Self {
        match rule {
            PrecisionRule::F32 => Precision::F32,
            PrecisionRule::F64 => Precision::F64,
            PrecisionRule::Exact => Precision::Exact,
        }
    }
}

/// Order in which clients get the global model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FanoutRule {
    /// To all clients at the same time.
    #[default]
    Concurrent,
    /// To one client after the other.
    Sequential,
}

impl From<FanoutRule> for Fanout {
    fn from(rule: FanoutRule) -> Self {
        match rule {
            FanoutRule::Concurrent => Fanout::Concurrent,
            FanoutRule::Sequential => Fanout::Sequential,
        }
    }
}

/// Order in which updates are requested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatherRule {
    /// From all clients at the same time.
    #[default]
    Concurrent,
    /// From one client after the other, in order.
    InOrder,
}

impl From<GatherRule> for Gather {
    fn from(rule: GatherRule) -> Self {
        match rule {
            GatherRule::Concurrent => Gather::Concurrent,
            GatherRule::InOrder => Gather::InOrder,
        }
    }
}

/// How the work on updates is split among worker processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SplitRule {
    /// Each worker folds its own range of bytes of every update.
    #[default]
    Ranges,
    /// Each worker folds some updates as a whole.
    Clients,
}

/// The way of notes between the server and its worker processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteRule {
    /// The kernel if possible, else the server.
    #[default]
    Auto,
    /// The kernel: a program loaded into it puts notes into the receiver's socket.
    Kernel,
    /// The server, over a Unix socket to each worker.
    Node,
}

/// When workers fold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimingRule {
    /// As soon as an update has arrived.
    #[default]
    Eager,
    /// Only when the last expected update has arrived, or no more updates fit.
    Lazy,
}

/// How bytes move between a node and its workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPlaneRule {
    /// In memory that the node and the workers share.
    #[default]
    Pool,
    /// Over sockets.
    Sockets,
    /// Over sockets, through a broker.
    Broker,
}

/// When and how a worker's process starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartRule {
    /// It starts with the server, which runs its program, and stays.
    #[default]
    Always,
    /// It starts with the server by a fork of a template, and stays.
    Template,
    /// It starts with its first update in a round: the server runs its program.
    Cold,
}

/// Who adds up the sums of leaves, with workers that split updates by clients and share memory with the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MiddleRule {
    /// The node's own process.
    #[default]
    Node,
    /// The leaf that has finished first.
    Reused,
    /// A worker that does nothing else.
    Own,
}

/// Options of worker processes that fold updates.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerOptions {
    /// Number of workers.
    pub count: u32,
    /// How the work is split among the workers.
    pub split: SplitRule,
    /// The way of notes to and from the workers.
    #[serde(default)]
    pub routes: RouteRule,
    /// When the workers fold.
    #[serde(default)]
    pub timing: TimingRule,
    /// How bytes move between the node and the workers.
    #[serde(default)]
    pub data_plane: DataPlaneRule,
    /// Whether a side process relays everything that a worker receives and sends.
    #[serde(default)]
    pub side_process: bool,
    /// When and how the workers' processes start.
    #[serde(default)]
    pub start: StartRule,
    /// With cold starts, seconds that each worker waits before its program starts, as for a container.
    #[serde(default)]
    pub container_start: f64,
    /// Settings of the autoscaler, which decides how many workers get updates; `None` for none.
    #[serde(default)]
    pub autoscaler: Option<Knobs>,
    /// The settings by which the load is measured while the job runs, and planned how many leaves get updates and
    /// have a process; `None` for all `count` leaves without a measurement, or if an autoscaler decides.
    #[serde(default)]
    pub plans: Option<Config>,
    /// Number of updates that the first plan is for.
    #[serde(default)]
    pub updates: u32,
    /// Who adds up the leaves' sums.
    #[serde(default)]
    pub middle: MiddleRule,
    /// The program that calls [`work`](crate::work), and its arguments. With the extra argument `hop` it
    /// calls [`hop`](crate::hop). With `template` it calls [`asked`](crate::asked) and
    /// [`forked`](crate::forked).
    pub command: Vec<String>,
}

/// Layers around the transport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Layers {
    /// Rate limit of each direction of each link, such as `20mbit`.
    pub throttle: Option<String>,
    /// Seeded faults.
    pub fault: Option<thalweg_layers::Fault>,
    /// Emulated network links.
    pub emulate: Option<thalweg_layers::Emulate>,
    /// Updates are sealed end to end.
    pub seal: Option<thalweg_layers::Seal>,
    /// Values are sent in fewer bytes.
    pub compress: Option<thalweg_layers::Compress>,
}

/// Options of a server.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerOptions {
    /// Options of the transport.
    pub transport: Options,
    /// Number of clients that the job expects.
    pub expected: u32,
    /// Number of clients that take part in a round, chosen at random; `None`: all.
    pub choose: Option<u32>,
    /// A round succeeds with at least this many complete updates.
    pub enough: u32,
    /// Number of updates with which a round ends at once; `None`: it waits for all clients that take part.
    pub goal: Option<u32>,
    /// How many rounds an update may be late and still count in the mean, with a smaller weight.
    pub stale: u32,
    /// Maximum length of a round, in seconds; `None`: no limit.
    pub deadline: Option<f64>,
    /// Seconds that a client may take to come back after its link was lost.
    pub grace: f64,
    /// The same for a round that has too few updates without it, if that is longer.
    pub outage: f64,
    /// Payload bytes of a chunk. `None`: the size that the transport prefers, else a 64th of an update, 64 KiB
    /// to 256 KiB.
    pub chunk: Option<u32>,
    /// Order in which clients get the global model.
    pub fanout: FanoutRule,
    /// Order in which updates are requested.
    pub gather: GatherRule,
    /// How much of a partly received update is added to the mean.
    pub partial: PartialRule,
    /// The rule for missing parts of models and updates.
    pub repair: RepairRule,
    /// Number format of the sums.
    pub precision: PrecisionRule,
    /// Maximum number of bytes of staged updates. `None`: two updates, or 64 MiB if that is more.
    pub staging: Option<u64>,
    /// A link ends after at least this many seconds without progress.
    pub liveness: f64,
    /// Public key, in hex, of the issuer of the clients' tokens.
    pub issuer: Option<String>,
    /// Alternatively, a secret that all clients share.
    pub token: Option<String>,
    /// File with the clients whose tokens and certificates no longer count. It is read again when it changes.
    pub revoked: Option<String>,
    /// Number of the job.
    pub job: u64,
    /// Seed of the layers, of the choice of clients, and of the order on the wire.
    pub seed: u64,
    /// Layers around the transport.
    pub layers: Layers,
    /// Worker processes that fold updates; `None`: this process folds.
    pub workers: Option<WorkerOptions>,
    /// Whether a round ends with the sums of its updates, from which [`Top`](crate::Top) computes the mean.
    /// The model then stays as it is.
    pub sums: bool,
    /// Whether clients learn only from [`Server::confirm`](crate::Server::confirm) that their updates count.
    pub withhold: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            transport: Options::default(),
            expected: 1,
            choose: None,
            enough: 1,
            goal: None,
            stale: 0,
            deadline: None,
            grace: 10.0,
            outage: 0.0,
            chunk: None,
            fanout: FanoutRule::default(),
            gather: GatherRule::default(),
            partial: PartialRule::default(),
            repair: RepairRule::default(),
            precision: PrecisionRule::default(),
            staging: None,
            liveness: 10.0,
            issuer: None,
            token: None,
            revoked: None,
            job: 1,
            seed: 0,
            layers: Layers::default(),
            workers: None,
            sums: false,
            withhold: false,
        }
    }
}

/// Default payload bytes of a chunk: a chunk and its part of the accumulator fit into the second-level cache.
pub(crate) const DEFAULT_CHUNK: u32 = 256 << 10;
/// Smallest default chunk of a small update. With smaller ones, the work for each chunk shows in rounds over
/// fast paths.
const LEAST_CHUNK: u32 = 64 << 10;
/// A link that breaks loses the chunk that is on its way, so this share of an update: 1 / 64.
const CHUNKS_OF_AN_UPDATE: u64 = 64;
const LEAST_STAGING: u64 = 64 << 20;
/// A server that folds by itself may stage updates in this share of the available memory: 1 / 4. Its clients
/// may be on the same machine.
const SHARE_OF_MEMORY: u64 = 4;

/// Default payload bytes of a chunk of a parcel of `bytes` bytes.
pub(crate) fn usual_chunk(bytes: u64) -> u32 {
    let part = u32::try_from(bytes / CHUNKS_OF_AN_UPDATE / 64 * 64).unwrap_or(u32::MAX);
    part.clamp(LEAST_CHUNK, DEFAULT_CHUNK)
}

impl ServerOptions {
    /// Maximum number of bytes of staged updates, if an update has `update` bytes and `available` bytes of
    /// memory are available.
    ///
    /// A client that waits for a place leaves its link unused. So a server that folds by itself has as many
    /// places as memory allows; they take memory only once they are used. The pool of workers takes its memory
    /// at once, so it is small.
    pub fn staging_bytes(&self, update: u64, available: Option<u64>) -> u64 {
        let memory = available.filter(|_| self.workers.is_none()).unwrap_or(0) / SHARE_OF_MEMORY;
        self.staging.unwrap_or_else(|| update.saturating_mul(2).max(LEAST_STAGING).max(memory))
    }

    /// Maximum number of updates of `update` bytes that workers can have staged at a time.
    pub fn places(&self, update: u64) -> u32 {
        let places = self.staging_bytes(update, None) / update.max(1);
        u32::try_from(places).unwrap_or(u32::MAX).clamp(1, self.wanted().max(1))
    }

    /// Number of clients that take part in a round.
    pub fn wanted(&self) -> u32 {
        self.choose.unwrap_or(self.expected)
    }

    /// How the clients of a round are chosen.
    pub fn choice(&self) -> Choice {
        self.choose.map_or(Choice::ByName, |_| Choice::ByLot { seed: self.seed })
    }

    /// The option that only builds with the feature `baselines` have, if one is set. Transports and layers
    /// check their own options.
    fn baseline(&self) -> Option<&'static str> {
        if self.repair.stand_in() == Some(StandIn::FedcommLegacy) {
            return Some("repair.policy = \"fedcomm-legacy\"");
        }
        let workers = self.workers.as_ref()?;
        if workers.side_process {
            return Some("tree.side_process = true");
        }
        match workers.data_plane {
            DataPlaneRule::Pool => None,
            DataPlaneRule::Sockets => Some("tree.data_plane = \"sockets\""),
            DataPlaneRule::Broker => Some("tree.data_plane = \"broker\""),
        }
    }

    /// Checks the options whose types allow impossible values.
    ///
    /// # Errors
    /// `options`, with the option that is impossible and its possible values.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |what: &str| Err(Error::new(Kind::Options, "start server", what));
        if self.choose.is_some_and(|chosen| chosen == 0 || chosen > self.expected) {
            return bad("choose must be between 1 and the number of clients expected");
        }
        if self.expected == 0 || self.enough == 0 || self.enough > self.wanted() {
            return bad("enough must be between 1 and the number of clients that take part in a round");
        }
        if self.goal.is_some_and(|goal| goal < self.enough || goal > self.wanted()) {
            return bad("goal must be between enough and the number of clients that take part in a round");
        }
        if self.stale > 0 && (self.partial == PartialRule::Keep || self.sums || self.workers.is_some()) {
            return bad(
                "stale needs whole updates that one server folds: partial = discard, without workers or sums",
            );
        }
        let possible = |chunk: u32| chunk > 0 && chunk.is_multiple_of(64) && chunk <= thalweg_wire::MAX_CHUNK;
        if !self.chunk.is_none_or(possible) {
            return bad("chunk must be a multiple of 64 bytes, at most 4 MiB");
        }
        if self.workers.as_ref().is_some_and(|workers| !(0.0..=10.0).contains(&workers.container_start)) {
            return bad("container_start must be 0 to 10 seconds");
        }
        let times = [Some(self.grace), Some(self.outage), Some(self.liveness), self.deadline];
        if times.iter().flatten().any(|t| Duration::try_from_secs_f64(*t).is_err()) {
            return bad("grace, outage, liveness and deadline are seconds, not negative");
        }
        let stands_in = self.repair.stand_in().is_some_and(|policy| policy != StandIn::Renormalise);
        if stands_in && self.partial == PartialRule::Keep {
            return bad(
                "what is folded on arrival is not mended: with partial keep, repair can only renormalise",
            );
        }
        if self.repair.spread && self.repair.stand_in().is_none_or(|p| p == StandIn::FedcommLegacy) {
            return bad("spread is for updates that keep their holes, and not for fedcomm-legacy");
        }
        if !self.repair.refuse.is_empty() && self.partial == PartialRule::Keep {
            return bad(
                "with partial keep an update cannot be refused any more, for it is folded as it comes",
            );
        }
        if let Some(workers) = &self.workers {
            if !(1..=1024).contains(&workers.count) || workers.command.is_empty() {
                return bad("there are 1 to 1024 workers, and a command that starts one");
            }
            if self.partial == PartialRule::Keep {
                return bad("workers fold whole updates: with them partial has to be discard");
            }
        }
        if let Some(compress) = self.layers.compress.filter(|compress| compress.down.is_some()) {
            if compress.scheme.is_none() {
                return bad("compress.down needs compress.scheme: without it clients send whole models");
            }
            if matches!(compress.down, Some(thalweg_layers::Scheme::PowerSgd(_))) {
                return bad("compress.down rounds values: take int8, int4, int2 or topk");
            }
            if self.repair.stand_in().is_some() {
                return bad("compress.down needs repair.resend: a client that lacks a part is out of step");
            }
            if self.sums {
                return bad("compress.down is for a server whose rounds end with a model, not with sums");
            }
        }
        match self.baseline() {
            Some(choice) if !BASELINES => {
                return Err(thalweg_transport::Error::no_baselines("start server", choice).into());
            }
            _ => {}
        }
        if self.liveness < 0.1 {
            return bad("liveness must be at least 0.1 s, or every pause ends a link");
        }
        Ok(())
    }
}

/// Options of a client.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientOptions {
    /// Options of the transport.
    pub transport: Options,
    /// The client's token in hex, or the secret that all clients share.
    pub token: Option<String>,
    /// Seconds for which the client tries to reach the server.
    pub timeout: f64,
    /// Seconds for which it tries to come back after its link was lost, if that is longer than `timeout`.
    pub outage: f64,
    /// Seed of the layers, and of the jitter of retries.
    pub seed: u64,
    /// Layers around the transport.
    pub layers: Layers,
    /// The file that keeps what compression with error feedback has left out, so that a client that starts
    /// anew goes on with it. `None`: it begins with nothing left out.
    pub residual: Option<PathBuf>,
    /// For a client of tasks: whether it joins as a node of an aggregation tree, instead of as a member of
    /// tasks.
    pub tree: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            transport: Options::default(),
            token: None,
            timeout: 30.0,
            outage: 0.0,
            seed: 0,
            layers: Layers::default(),
            residual: None,
            tree: false,
        }
    }
}

/// Seconds as a duration. An impossible value counts as zero, but options are checked before this is called.
pub(crate) fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn staging_follows_the_available_memory_unless_it_is_set() {
        let options = ServerOptions { expected: 16, ..ServerOptions::default() };
        assert_eq!(options.staging_bytes(MIB, None), 64 * MIB);
        assert_eq!(options.staging_bytes(100 * MIB, None), 200 * MIB);
        assert_eq!(options.staging_bytes(100 * MIB, Some(4000 * MIB)), 1000 * MIB);
        assert_eq!(options.staging_bytes(1000 * MIB, Some(4000 * MIB)), 2000 * MIB, "two updates at least");
        let set = ServerOptions { staging: Some(MIB), ..options };
        assert_eq!(set.staging_bytes(100 * MIB, Some(4000 * MIB)), MIB);
    }

    #[test]
    fn the_pool_of_workers_does_not_follow_the_available_memory() {
        let workers = serde_json::from_str(r#"{"count": 2, "split": "clients", "command": []}"#).unwrap();
        let options = ServerOptions { expected: 16, workers: Some(workers), ..ServerOptions::default() };
        assert_eq!(options.staging_bytes(100 * MIB, Some(64_000 * MIB)), 200 * MIB);
        assert_eq!(options.places(100 * MIB), 2);
    }
}
