//! What a server and a client are told; the JSON that crosses from Python.

use std::time::Duration;

use serde::Deserialize;
use thalweg_control::autoscaler::Knobs;
use thalweg_fold::Precision;
use thalweg_proto::{Choice, Fanout, Gather, Partial};
use thalweg_transport::Options;
use thalweg_wire::control::StandIn;

use crate::star::RepairRule;
use crate::Error;

/// What partial updates count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartialRule {
    /// Nothing.
    #[default]
    Discard,
    /// What has arrived.
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

/// What sums are kept in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionRule {
    /// 32-bit floats.
    #[default]
    F32,
    /// 64-bit floats.
    F64,
    /// 128-bit fixed point: the same bits whatever the order of arrival.
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

/// How the global model goes out.
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

/// How updates come in.
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

/// How updates are shared out among worker processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SplitRule {
    /// Each worker folds its range of the bytes of all updates.
    #[default]
    Ranges,
    /// Each worker folds some updates as a whole.
    Clients,
}

/// Who takes notes between the server and its worker processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteRule {
    /// The kernel, where it can.
    #[default]
    Auto,
    /// The kernel: a program of ours in it puts them into the receiver's socket.
    Kernel,
    /// The server, over a Unix socket of each worker.
    Node,
}

/// When workers fold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimingRule {
    /// What is there, at once.
    #[default]
    Eager,
    /// Everything together, when the last update that can come is there, or no more have room.
    Lazy,
}

/// How bytes get between a node and its workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPlaneRule {
    /// They lie in memory that both have.
    #[default]
    Pool,
    /// Over sockets.
    Sockets,
    /// Over sockets through a broker.
    Broker,
}

/// When a worker's process begins, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartRule {
    /// With the server, by its program; it stays.
    #[default]
    Always,
    /// With the server, forked by a template; it stays.
    Template,
    /// With its first update in a round, by its program.
    Cold,
}

/// Processes that fold updates.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerOptions {
    /// How many there are.
    pub count: u32,
    /// How updates are shared out among them.
    pub split: SplitRule,
    /// Who takes notes to and from them.
    #[serde(default)]
    pub routes: RouteRule,
    /// When they fold.
    #[serde(default)]
    pub timing: TimingRule,
    /// How bytes get to and from them.
    #[serde(default)]
    pub data_plane: DataPlaneRule,
    /// Whether a side process mediates what each gets and sends.
    #[serde(default)]
    pub side_process: bool,
    /// When their processes begin, and how.
    #[serde(default)]
    pub start: StartRule,
    /// Decides how many of them get updates.
    #[serde(default)]
    pub autoscaler: Option<Knobs>,
    /// The program that calls [`work`](crate::work), and its arguments. With one more argument, `hop` or `template`, it
    /// calls [`hop`](crate::hop), or [`asked`](crate::asked) and [`forked`](crate::forked).
    pub command: Vec<String>,
}

/// Wrappers around the transport.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Layers {
    /// Rate limit of each direction of each link, such as `20mbit`.
    pub throttle: Option<String>,
    /// Seeded faults.
    pub fault: Option<thalweg_layers::Fault>,
    /// Links like those of a network.
    pub emulate: Option<thalweg_layers::Emulate>,
    /// Updates sealed end to end.
    pub seal: Option<thalweg_layers::Seal>,
    /// Values in fewer bytes.
    pub compress: Option<thalweg_layers::Compress>,
}

/// A server's options.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerOptions {
    /// The transport's.
    pub transport: Options,
    /// Clients there are to be.
    pub expected: u32,
    /// How many of them take part in a round, chosen by lot; `None`: all.
    pub choose: Option<u32>,
    /// Whole updates that are enough.
    pub enough: u32,
    /// Seconds a round may take; `None`: no limit.
    pub deadline: Option<f64>,
    /// Seconds a lost client may take to come back.
    pub grace: f64,
    /// Bytes of payload in a chunk; `None`: what the transport prefers, else 256 KiB.
    pub chunk: Option<u32>,
    /// How the global model goes out.
    pub fanout: FanoutRule,
    /// How updates come in.
    pub gather: GatherRule,
    /// What partial updates count.
    pub partial: PartialRule,
    /// What happens to what did not come.
    pub repair: RepairRule,
    /// What sums are kept in.
    pub precision: PrecisionRule,
    /// Bytes of staged updates; `None`: two updates, or 64 MiB if that is more.
    pub staging: Option<u64>,
    /// Least seconds without progress that end a link.
    pub liveness: f64,
    /// Public key in hex of who issues the clients' tokens.
    pub issuer: Option<String>,
    /// Or a secret that all clients share.
    pub token: Option<String>,
    /// The job's number.
    pub job: u64,
    /// Seed of the layers.
    pub seed: u64,
    /// Wrappers around the transport.
    pub layers: Layers,
    /// Processes that fold updates; `None`: this process does.
    pub workers: Option<WorkerOptions>,
    /// A round ends with the sums of its updates, for [`Top`](crate::Top) to take the mean of, and the model stays as it is.
    pub sums: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            transport: Options::default(),
            expected: 1,
            choose: None,
            enough: 1,
            deadline: None,
            grace: 10.0,
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
            job: 1,
            seed: 0,
            layers: Layers::default(),
            workers: None,
            sums: false,
        }
    }
}

/// Bytes of payload in a chunk: what fits the second-level cache beside the accumulator.
pub(crate) const DEFAULT_CHUNK: u32 = 256 << 10;
const LEAST_STAGING: u64 = 64 << 20;

impl ServerOptions {
    /// Bytes of staged updates of `update` bytes each.
    pub fn staging_bytes(&self, update: u64) -> u64 {
        self.staging.unwrap_or_else(|| update.saturating_mul(2).max(LEAST_STAGING))
    }

    /// Most updates of `update` bytes each that are staged at a time.
    pub fn places(&self, update: u64) -> u32 {
        let places = self.staging_bytes(update) / update.max(1);
        u32::try_from(places).unwrap_or(u32::MAX).clamp(1, self.wanted().max(1))
    }

    /// Clients that a round wants.
    pub fn wanted(&self) -> u32 {
        self.choose.unwrap_or(self.expected)
    }

    /// Which clients take part in a round.
    pub fn choice(&self) -> Choice {
        self.choose.map_or(Choice::ByName, |_| Choice::ByLot { seed: self.seed })
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// Which option is impossible, and what it may be.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |what: &str| Err(Error::new("options", "start server", what));
        if self.choose.is_some_and(|chosen| chosen == 0 || chosen > self.expected) {
            return bad("choose must be between 1 and the number of clients expected");
        }
        if self.expected == 0 || self.enough == 0 || self.enough > self.wanted() {
            return bad("enough must be between 1 and the number of clients that take part in a round");
        }
        let possible = |chunk: u32| chunk > 0 && chunk.is_multiple_of(64) && chunk <= thalweg_wire::MAX_CHUNK;
        if !self.chunk.is_none_or(possible) {
            return bad("chunk must be a multiple of 64 bytes, at most 4 MiB");
        }
        let times = [Some(self.grace), Some(self.liveness), self.deadline];
        if times.iter().flatten().any(|t| Duration::try_from_secs_f64(*t).is_err()) {
            return bad("grace, liveness and deadline are seconds, not negative");
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
        if self.liveness < 0.1 {
            return bad("liveness must be at least 0.1 s, or every pause ends a link");
        }
        Ok(())
    }
}

/// A client's options.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientOptions {
    /// The transport's.
    pub transport: Options,
    /// Its token, in hex, or the secret that all share.
    pub token: Option<String>,
    /// Seconds to go on trying to reach the server.
    pub patience: f64,
    /// Seed of the layers and of the retries' jitter.
    pub seed: u64,
    /// Wrappers around the transport.
    pub layers: Layers,
    /// Of a client of tasks: it joins as a node of an aggregation tree, and not as a member of tasks.
    pub tree: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            transport: Options::default(),
            token: None,
            patience: 30.0,
            seed: 0,
            layers: Layers::default(),
            tree: false,
        }
    }
}

/// Seconds as a duration; a value that is none counts as zero (checked before).
pub(crate) fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}
