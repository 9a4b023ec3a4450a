//! Options of a node: the JSON that Python passes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_proto::{Node, Waiting, Weighing};
use thalweg_transport::Options;
use thalweg_wire::control::Alike;

use crate::options::{seconds, Layers, PrecisionRule};
use crate::{ClientOptions, Error, Kind};

/// Maximum number of iterations for which chunks are accepted early. Each takes the memory of a model.
const MAX_AHEAD: u32 = 16;
/// With `auto`, segments are used if they save at least this many bytes in an iteration: 20 ms at 100 Mbit/s.
/// They cost one more path delay.
const MIN_SEGMENT_SAVING: u64 = 256 << 10;
/// Longest digest of a plan or graph, in bytes.
const MAX_DIGEST: usize = 128;

/// The condition for which a node waits before it mixes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitRule {
    /// Waits for all neighbours' complete models (the paper's Algorithm 1).
    #[default]
    All,
    /// Waits for nothing (Algorithm 2).
    None,
    /// Waits for the first bytes of each neighbour's model (Algorithm 3).
    FirstChunk,
    /// Waits until each model is complete or has ended, but at most for a time limit, which is given or
    /// measured.
    Deadline,
}

/// How neighbours' models and the own model are mixed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MixingRule {
    /// For each element, the own model's weight is 1 minus the weights that arrived.
    #[default]
    Complement,
    /// The weighted mean of the neighbours' values that arrived and the own model, which has its own weight.
    Renormalise,
    /// Like `Complement`, but the weights depend on how many neighbours sent something (the paper's section
    /// 3.5.2). The given weight of neighbour j is 1 / (1 + its degree). Models are staged until the weights
    /// are known.
    Paper,
    /// Like `Complement`, but only ranges that arrived in both directions count. Models are staged until the
    /// neighbours have told each other which ranges they have.
    Symmetric,
}

/// Whether nodes on a full graph with equal weights average by segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeRule {
    /// Always by whole models.
    #[default]
    Whole,
    /// By segments if graph and weights allow it and it saves enough; else by whole models.
    Auto,
    /// By segments if graph and weights allow it, even if it saves little.
    Segments,
}

impl MixingRule {
    /// The time at which the weights are known.
    pub fn weighing(self) -> Weighing {
        match self {
            MixingRule::Complement | MixingRule::Renormalise => Weighing::Arrival,
            MixingRule::Paper => Weighing::Senders,
            MixingRule::Symmetric => Weighing::Mutual,
        }
    }
}

/// Options of a node.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeOptions {
    /// Options of the transport.
    pub transport: Options,
    /// Layers around the transport.
    pub layers: Layers,
    /// Seed of the layers, and of the jitter of retries.
    pub seed: u64,
    /// Public key, in hex, of the issuer of the neighbours' tokens.
    pub issuer: Option<String>,
    /// Alternatively, a secret that all nodes share.
    pub token: Option<String>,
    /// The token, in hex, that this node presents where it dials.
    pub own_token: Option<String>,
    /// Number of the job.
    pub job: u64,
    /// Payload bytes of a chunk. `None`: the size that the transport prefers, else 256 KiB.
    pub chunk: Option<u32>,
    /// A link ends after at least this many seconds without progress.
    pub liveness: f64,
    /// Precision of the sums.
    pub precision: PrecisionRule,
    /// The condition for which the node waits before it mixes.
    pub wait: WaitRule,
    /// Longest wait, in seconds. `None`: a time derived from measurements.
    pub deadline: Option<f64>,
    /// Number of later iterations for which chunks are accepted early.
    pub ahead: u32,
    /// How models are mixed.
    pub mixing: MixingRule,
    /// Fraction of its model that a node sends in an iteration: more than 0, at most 1.
    pub share: f64,
    /// Whether models are exchanged by segments.
    pub exchange: ExchangeRule,
    /// The number of the job's last iteration, an upper bound for numbers that neighbours send. `None`: there
    /// is no such bound.
    pub rounds: Option<u32>,
    /// Digest of the part of the plan that all nodes share.
    pub plan: String,
    /// Digest of the graph.
    pub graph: String,
    /// Checksum of the initial model, if nodes are to compare it.
    pub start: Option<String>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            transport: Options::default(),
            layers: Layers::default(),
            seed: 0,
            issuer: None,
            token: None,
            own_token: None,
            job: 1,
            chunk: None,
            liveness: 10.0,
            precision: PrecisionRule::default(),
            wait: WaitRule::default(),
            deadline: None,
            ahead: 1,
            mixing: MixingRule::default(),
            share: 1.0,
            exchange: ExchangeRule::default(),
            rounds: None,
            plan: String::new(),
            graph: String::new(),
            start: None,
        }
    }
}

impl NodeOptions {
    /// Checks the options whose types allow impossible values.
    ///
    /// # Errors
    /// `options`, with the option that is impossible and its possible values.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |what: &str| Err(Error::new(Kind::Options, "start node", what));
        let possible = |chunk: u32| chunk > 0 && chunk.is_multiple_of(64) && chunk <= thalweg_wire::MAX_CHUNK;
        if !self.chunk.is_none_or(possible) {
            return bad("chunk must be a multiple of 64 bytes, at most 4 MiB");
        }
        let times = [Some(self.liveness), self.deadline];
        if times.iter().flatten().any(|t| Duration::try_from_secs_f64(*t).is_err()) {
            return bad("liveness and deadline are seconds, not negative");
        }
        if self.liveness < 0.1 {
            return bad("liveness must be at least 0.1 s, or every pause ends a link");
        }
        if self.wait == WaitRule::FirstChunk && self.deadline.is_none() {
            return bad("first-chunk needs a deadline in seconds, or a lost neighbour would hold up the node for ever");
        }
        if self.deadline.is_some() && matches!(self.wait, WaitRule::All | WaitRule::None) {
            return Err(Error::new(
                Kind::Options,
                "start node",
                "a deadline goes with wait first-chunk or deadline",
            )
            .hint("leave it out"));
        }
        if !(self.share > 0.0 && self.share <= 1.0) {
            return bad("share is the part of a model that is sent in an iteration: more than 0, at most 1");
        }
        if self.ahead > MAX_AHEAD {
            return bad("ahead may be 16 at most: each takes the memory of a model");
        }
        let digests = [Some(&self.plan), Some(&self.graph), self.start.as_ref()];
        if digests.into_iter().flatten().any(|digest| digest.len() > MAX_DIGEST) {
            return bad("plan, graph and start are digests of at most 128 bytes");
        }
        Ok(())
    }

    /// How many bytes averaging by segments must save in an iteration to be used; `None`: it is never used.
    ///
    /// # Errors
    /// `options` if `exchange` is `segments`, and another option does not allow that.
    pub fn segments(&self) -> Result<Option<u64>, Error> {
        let obstacle = if self.wait != WaitRule::All {
            Some("wait all")
        } else if !matches!(self.mixing, MixingRule::Complement | MixingRule::Renormalise) {
            Some("mixing complement or renormalise")
        } else if self.layers.compress.is_some() {
            Some("no compression, which would round the mean differently at each node")
        } else {
            None
        };
        match (self.exchange, obstacle) {
            (ExchangeRule::Segments, Some(need)) => {
                let what = format!("exchange segments needs {need}");
                Err(Error::new(Kind::Options, "start node", what).hint("use exchange auto"))
            }
            (ExchangeRule::Segments, None) => Ok(Some(0)),
            (ExchangeRule::Auto, None) => Ok(Some(MIN_SEGMENT_SAVING)),
            (ExchangeRule::Whole, _) | (ExchangeRule::Auto, Some(_)) => Ok(None),
        }
    }

    /// The wait rule in the form that the state machine needs.
    pub fn waiting(&self) -> Waiting {
        let deadline = self.deadline.map(seconds);
        match self.wait {
            WaitRule::All => Waiting::All,
            WaitRule::None => Waiting::None,
            WaitRule::FirstChunk => Waiting::FirstChunk(deadline.unwrap_or_default()),
            WaitRule::Deadline => Waiting::Deadline(deadline),
        }
    }

    /// The digests that must be equal at all nodes.
    pub fn alike(&self) -> Alike {
        Alike {
            plan: start_of_digest(&self.plan),
            graph: start_of_digest(&self.graph),
            start: self.start.as_deref().map(start_of_digest),
        }
    }

    /// Options of the links that the node dials.
    pub fn of_dialer(&self) -> ClientOptions {
        ClientOptions {
            transport: self.transport.clone(),
            token: self.own_token.clone(),
            outage: 0.0,
            timeout: Node::TIMEOUT.as_secs_f64(),
            seed: self.seed,
            layers: self.layers.clone(),
            residual: None,
            tree: false,
        }
    }
}

/// The first 8 bytes of a text's SHA-256.
fn start_of_digest(text: &str) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a panic is how tests report
    use thalweg_wire::limits;

    use super::*;
    use crate::engine::DialOptions;

    /// With less time, a node would give up each attempt on a path with a long round trip, and begin anew for ever.
    #[test]
    fn an_attempt_to_connect_to_a_neighbour_has_the_whole_time_of_one() {
        for scheme in ["tcp", "udp", "ltp", "quic"] {
            let (url, dialer) = (format!("{scheme}://localhost:1"), NodeOptions::default().of_dialer());
            let to = DialOptions::new(&url, "a", dialer, thalweg_pki::Role::GraphNode).unwrap();
            assert_eq!(to.options.connect_timeout(), limits::CONNECT, "{scheme}");
        }
    }
}
