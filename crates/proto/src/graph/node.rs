//! The state of a node, its timers, and the range of iterations whose chunks it accepts.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_wire::control::Purpose;

use super::announced::Announced;
use super::peer::Peer;
use super::segments::Segments;
use super::sharing::Size;
use super::terms::{NodeConfig, NodeStep, Waiting};
use super::timing::Pace;
use crate::session::{Admission, Roster, SessionConfig};
use crate::transfer::Rule;
use crate::Time;

/// Maximum number of neighbours that a node may ever have.
const MAX_NEIGHBOURS: u32 = 1 << 16;
/// Stands for the last iteration where its number is unknown. No node reaches this number.
const UNREACHABLE: u32 = 1 << 31;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Between two iterations.
    Idle,
    /// The iteration was begun; the node's own model is being trained.
    Training,
    /// The node's own model is ready; the node waits for its neighbours' models.
    Waiting,
    /// The waiting is over; the node and its neighbours tell each other which bytes they have
    /// ([`Weighing::Mutual`](super::Weighing::Mutual)).
    Swapping,
    /// The driver mixes the sums into the node's own model.
    Mixing,
}

/// The state machine of a node.
pub struct Node {
    pub(super) config: NodeConfig,
    /// Which bytes of a model may stay missing.
    pub(super) rule: Rule,
    pub(super) roster: Roster<(), (), NodeStep>,
    pub(super) peers: Vec<Peer>,
    /// Index in `peers` of each neighbour that dials this node, by its member number in the roster.
    pub(super) numbers: BTreeMap<u32, usize>,
    pub(super) stage: Stage,
    /// The iteration that was begun last; 0 before the first.
    pub(super) round: u32,
    /// When the current iteration began.
    pub(super) begun: Time,
    /// Weights of the neighbours that the node averages with in this iteration, by index in `peers`.
    pub(super) weights: BTreeMap<usize, f64>,
    /// Weights of this iteration and of later ones, where they are known.
    pub(super) announced: Announced,
    /// Indices in `peers` of the neighbours that the node sends to. `None`: those in `weights`.
    pub(super) targets: Option<Vec<usize>>,
    pub(super) pace: Pace,
    /// Longest time that the node waits in this iteration after its own model is ready; `None`: no limit.
    pub(super) limit: Option<Time>,
    /// When the current waiting or swapping ends at the latest.
    pub(super) deadline: Option<Time>,
    /// A deadline ended the waiting of this iteration.
    pub(super) timed_out: bool,
    /// The node joined late and skipped iterations, so its model is old and it does not send it.
    pub(super) fresh: bool,
    /// The iteration that is being mixed was averaged by segments.
    pub(super) by_segments: bool,
    /// The node has completed at least one iteration.
    pub(super) completed: bool,
    /// Chunks that came too early to be kept, since the last report.
    pub(super) early: u64,
    /// Chunks that belong to another job or layout, or could not be added, since the last report.
    pub(super) bad: u64,
    /// Name and reason of the refused peer that was reported last.
    pub(super) reported_refusal: Option<(String, String)>,
    pub(super) segments: Segments,
    /// A timer was set since the last [`Node::take_timer_set`], so the driver may wait for a time that is too
    /// late.
    pub(super) timer_set: bool,
}

impl Node {
    /// Makes a node without neighbours; [`Node::meet`] adds them.
    pub fn new(config: NodeConfig, admission: Box<dyn Admission>) -> Self {
        let sessions = SessionConfig {
            job: config.job,
            purpose: Purpose::Graph,
            liveness: config.liveness,
            max_members: MAX_NEIGHBOURS,
        };
        let stands_in = config.waiting != Waiting::All;
        Self {
            config,
            rule: Rule { stands_in, tolerance: Arc::default() },
            roster: Roster::new(sessions, admission),
            peers: Vec::new(),
            numbers: BTreeMap::new(),
            stage: Stage::Idle,
            round: 0,
            begun: Time::ZERO,
            weights: BTreeMap::new(),
            announced: Announced::default(),
            targets: None,
            pace: Pace::default(),
            limit: None,
            deadline: None,
            timed_out: false,
            fresh: false,
            by_segments: false,
            completed: false,
            early: 0,
            bad: 0,
            reported_refusal: None,
            segments: Segments::default(),
            timer_set: false,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.config.layout.bytes()
    }

    pub(super) fn size(&self) -> Size {
        Size { bytes: self.bytes(), share: self.config.share }
    }

    pub(super) fn waits_for_all(&self) -> bool {
        self.config.waiting == Waiting::All
    }

    /// The first iteration whose chunks the node accepts.
    pub(super) fn low(&self) -> u32 {
        match self.stage {
            Stage::Training | Stage::Waiting => self.round,
            Stage::Idle | Stage::Swapping | Stage::Mixing => self.round.saturating_add(1),
        }
    }

    /// The last iteration whose chunks the node accepts. The sums of the current iteration are kept until
    /// they are mixed, so it counts here. There are never more than `ahead` + 1 sums.
    pub(super) fn top(&self) -> u32 {
        let first = if self.stage == Stage::Idle { self.low() } else { self.round };
        first.saturating_add(self.config.ahead)
    }

    /// The last iteration of the job. A message about a later one breaks the protocol. The bound cannot be
    /// this node's own iteration, because a node that joins late learns from its neighbours how far they are.
    pub(super) fn last(&self) -> u32 {
        self.config.rounds.unwrap_or(UNREACHABLE)
    }

    /// A neighbour's weight in an iteration; `None` if it is unknown or the neighbour has none.
    pub(super) fn weight(&self, peer: usize, round: u32) -> Option<f64> {
        self.announced.of(round)?.get(&peer).copied()
    }

    /// Counts of chunks since the last call: those that came too early, and those that were bad.
    pub fn dropped(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.early), std::mem::take(&mut self.bad))
    }

    /// The iteration that was begun last; 0 before the first.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Whether a timer was set since the last call of this method. If so, the driver must ask
    /// [`poll_timeout`](crate::ServerMachine::poll_timeout) again: chunks and Ends set timers too.
    pub fn take_timer_set(&mut self) -> bool {
        std::mem::take(&mut self.timer_set)
    }
}
