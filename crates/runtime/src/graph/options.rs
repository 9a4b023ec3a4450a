//! What a node is told; the JSON that crosses from Python.

use std::time::Duration;

use serde::Deserialize;
use thalweg_proto::{Waiting, Weighing};
use thalweg_transport::Options;
use thalweg_wire::control::Alike;

use crate::options::{seconds, Layers, PrecisionRule};
use crate::{ClientOptions, Error};

/// Most iterations whose models are taken in early: each takes the memory of a model.
const MOST_AHEAD: u32 = 16;
/// Longest digest.
const MOST_DIGEST: usize = 128;

/// For what a node waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitRule {
    /// For all neighbours' whole models (Algorithm 1 of the paper).
    #[default]
    All,
    /// For nothing (Algorithm 2).
    None,
    /// For the first bytes of each (Algorithm 3).
    FirstChunk,
    /// For all models to be whole or ended, within a time that is measured or given.
    Deadline,
}

/// How neighbours' models and the own one are mixed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MixingRule {
    /// The own model weighs what is missing to 1, for each element.
    #[default]
    Complement,
    /// The mean of what came and of the own model, which has a weight of its own.
    Renormalise,
    /// As complement, with weights that follow from how many neighbours were heard (section 3.5.2). What is given of
    /// neighbour j is 1 / (1 + its degree). Models are put aside until then.
    Paper,
    /// As complement, of what went both ways. Models are put aside until neighbours have told each other what they have.
    Symmetric,
}

impl MixingRule {
    /// When weights are known.
    pub fn weighing(self) -> Weighing {
        match self {
            MixingRule::Complement | MixingRule::Renormalise => Weighing::Arrival,
            MixingRule::Paper => Weighing::Heard,
            MixingRule::Symmetric => Weighing::Mutual,
        }
    }
}

/// Options of a node.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeOptions {
    /// The transport's.
    pub transport: Options,
    /// Wrappers around the transport.
    pub layers: Layers,
    /// Seed of the layers and of the retries' jitter.
    pub seed: u64,
    /// Public key in hex of who issues the neighbours' tokens.
    pub issuer: Option<String>,
    /// Or a secret that all neighbours share.
    pub token: Option<String>,
    /// What this node shows where it dials, in hex.
    pub own_token: Option<String>,
    /// The job's number.
    pub job: u64,
    /// Bytes of payload in a chunk; `None`: what the transport prefers, else 256 KiB.
    pub chunk: Option<u32>,
    /// Least seconds without progress that end a link.
    pub liveness: f64,
    /// What sums are kept in.
    pub precision: PrecisionRule,
    /// For what it waits.
    pub wait: WaitRule,
    /// Seconds it waits at most; `None`: what is measured to be worth it.
    pub deadline: Option<f64>,
    /// Iterations whose models are taken in early.
    pub ahead: u32,
    /// How models are mixed.
    pub mixing: MixingRule,
    /// The share of its model that a node sends in an iteration.
    pub share: f64,
    /// Digest of what of the plan all nodes share.
    pub plan: String,
    /// Digest of the graph.
    pub graph: String,
    /// Checksum of the initial model, if it is to be compared.
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
            plan: String::new(),
            graph: String::new(),
            start: None,
        }
    }
}

impl NodeOptions {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// Which option is impossible, and what it may be.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |what: &str| Err(Error::new("options", "start node", what));
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
            return bad("a deadline goes with wait first-chunk or deadline; leave it out");
        }
        if !(self.share > 0.0 && self.share <= 1.0) {
            return bad("share is the part of a model that is sent in an iteration: more than 0, at most 1");
        }
        if self.ahead > MOST_AHEAD {
            return bad("ahead may be 16 at most: each takes the memory of a model");
        }
        let digests = [Some(&self.plan), Some(&self.graph), self.start.as_ref()];
        if digests.into_iter().flatten().any(|digest| digest.len() > MOST_DIGEST) {
            return bad("plan, graph and start are digests of at most 128 bytes");
        }
        Ok(())
    }

    /// For what the machine waits.
    pub fn waiting(&self) -> Waiting {
        let deadline = self.deadline.map(seconds);
        match self.wait {
            WaitRule::All => Waiting::All,
            WaitRule::None => Waiting::None,
            WaitRule::FirstChunk => Waiting::FirstChunk(deadline.unwrap_or_default()),
            WaitRule::Deadline => Waiting::Deadline(deadline),
        }
    }

    /// What all nodes must have alike.
    pub fn alike(&self) -> Alike {
        Alike {
            plan: start_of_digest(&self.plan),
            graph: start_of_digest(&self.graph),
            start: self.start.as_deref().map(start_of_digest),
        }
    }

    /// The options of the links that it dials.
    pub fn of_dialer(&self) -> ClientOptions {
        ClientOptions {
            transport: self.transport.clone(),
            token: self.own_token.clone(),
            patience: 0.0, // the machine has its own
            seed: self.seed,
            layers: self.layers.clone(),
            tree: false,
        }
    }
}

/// The first 8 bytes of a text's SHA-256.
fn start_of_digest(text: &str) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}
