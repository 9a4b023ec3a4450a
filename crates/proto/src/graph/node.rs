//! A node: what it knows, and which iterations it accepts chunks of.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_wire::control::Purpose;

use super::announced::Announced;
use super::peer::Peer;
use super::sharing::Size;
use super::terms::{NodeConfig, NodeStep, Waiting};
use super::timing::Pace;
use crate::session::{Admission, Roster, SessionConfig};
use crate::transfer::Rule;
use crate::Time;

/// Most neighbours, ever.
const MAX_NEIGHBOURS: u32 = 1 << 16;
/// Where the last iteration is unknown: no node counts so far.
const UNREACHABLE: u32 = 1 << 31;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Between two iterations.
    Idle,
    Training,
    Waiting,
    /// Neighbours tell each other what they have.
    Swapping,
    Mixing,
}

/// The state machine of a node.
pub struct Node {
    pub(super) config: NodeConfig,
    pub(super) rule: Rule,
    pub(super) roster: Roster<(), (), NodeStep>,
    pub(super) peers: Vec<Peer>,
    /// Places of those that dial, by their numbers among the members.
    pub(super) numbers: BTreeMap<u32, usize>,
    pub(super) stage: Stage,
    /// The iteration that was begun last, 0 before the first.
    pub(super) round: u32,
    pub(super) begun: Time,
    /// Weights of the neighbours that it averages with in this iteration, by place.
    pub(super) weights: BTreeMap<usize, f64>,
    /// Weights of this iteration and of later ones, as far as they are known.
    pub(super) announced: Announced,
    /// Whom it sends to, if these are not the same.
    pub(super) targets: Option<Vec<usize>>,
    pub(super) pace: Pace,
    pub(super) limit: Option<Time>,
    pub(super) deadline: Option<Time>,
    pub(super) timed_out: bool,
    pub(super) fresh: bool,
    pub(super) completed: bool,
    /// Counts since the last report: chunks that came too early to be kept; chunks of another job or layout, or that could not
    /// be added.
    pub(super) early: u64,
    pub(super) bad: u64,
    pub(super) turned_away: Option<(String, String)>,
    /// A timer was set that whoever waits for [`Node::poll_timeout`] may not know of.
    pub(super) timer_set: bool,
}

impl Node {
    /// A node that has met nobody.
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
            completed: false,
            early: 0,
            bad: 0,
            turned_away: None,
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

    /// The last iteration whose chunks the node accepts. An iteration keeps its sums while it is mixed, so it counts here:
    /// there are never more than `ahead` + 1 sums.
    pub(super) fn top(&self) -> u32 {
        let first = if self.stage == Stage::Idle { self.low() } else { self.round };
        first.saturating_add(self.config.ahead)
    }

    /// The last iteration of which an honest neighbour says anything. A node that joins late learns from its neighbours how
    /// far they are, so its own iteration is no bound.
    pub(super) fn last(&self) -> u32 {
        self.config.rounds.unwrap_or(UNREACHABLE)
    }

    /// A neighbour's weight in an iteration, as far as is known.
    pub(super) fn weight(&self, peer: usize, round: u32) -> Option<f64> {
        self.announced.of(round)?.get(&peer).copied()
    }

    /// Chunks that were too early, and chunks that were bad, since the last call.
    pub fn dropped(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.early), std::mem::take(&mut self.bad))
    }

    /// The iteration that was begun last, 0 before the first.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Names of the neighbours that are there.
    pub fn connected_clients(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().filter(|peer| peer.met).map(|peer| peer.name.as_str())
    }

    /// How many neighbours are there.
    pub fn connected_count(&self) -> usize {
        self.peers.iter().filter(|peer| peer.met).count()
    }

    /// When [`Node::timeout`] wants to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let settles = self.peers.iter().filter_map(Peer::settles_at);
        settles.chain(self.roster.next_timer()).chain(self.deadline).min()
    }

    /// Whether [`Node::poll_timeout`] is to be asked again, since the last call of this: chunks and Ends set timers too.
    pub fn take_timer_set(&mut self) -> bool {
        std::mem::take(&mut self.timer_set)
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Time) {
        self.look_at_links(now);
        for place in 0..self.peers.len() {
            let arrivals = self.peers[place].arrivals.iter();
            let settled =
                arrivals.filter(|(_, a)| !a.over && a.incoming.settle().is_some_and(|at| now >= at));
            for round in settled.map(|(&round, _)| round).collect::<Vec<_>>() {
                self.conclude(now, place, round);
            }
        }
        self.stop_swapping(now);
        self.advance(now);
    }
}
