//! A node: at which iteration it is, whom it averages with, and for whom it waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_wire::control::{Alike, Control, Purpose};
use thalweg_wire::{Layout, Range, Ranges};

use super::peer::{Exchange, Outcome, Peer};
use super::sharing::Size;
use super::timing::Pace;
use super::weighing::Weighing;
use crate::session::{Action, Admission, ClientAction, LinkId, Roster, SessionConfig};
use crate::transfer::{Outgoing, Rule};
use crate::Time;

/// Most neighbours, ever.
const MAX_NEIGHBOURS: u32 = 1 << 16;

/// For what of its neighbours' models a node waits, once its own is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// For all of them, whole; what is lost is asked for again.
    All,
    /// For nothing: the node mixes with what has arrived.
    None,
    /// For the first bytes of each, but no longer than this.
    FirstChunk(Time),
    /// Until each model is whole or its sender has ended it, but no longer than this. With `None` the limit follows from
    /// the measured lags of the neighbours.
    Deadline(Option<Time>),
}

/// What does not change while a node lives.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its name, unique in the graph.
    pub name: String,
    /// Random, once a process.
    pub instance: u64,
    /// The job's number, in every chunk.
    pub job: u64,
    /// The layout of all models.
    pub layout: Arc<Layout>,
    /// Bytes of payload in a chunk.
    pub chunk: u32,
    /// Least time without progress that ends a link.
    pub liveness: Time,
    /// What is waited for.
    pub waiting: Waiting,
    /// When weights are known.
    pub weighing: Weighing,
    /// How many iterations beyond the current one the node accepts chunks of.
    pub ahead: u32,
    /// The share of its model that a node sends in an iteration, more than 0, in turn; 1 is all of it. All nodes must have
    /// the same.
    pub share: f64,
    /// What all nodes must have alike.
    pub alike: Alike,
}

/// The waiting of an iteration is over: the driver mixes the sums into the own model, then calls [`Node::mixed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mixing {
    /// The iteration.
    pub round: u32,
    /// The node has come back with an old model. It was not sent, and has weight 0 where a neighbour's bytes arrived.
    pub fresh: bool,
    /// A deadline ended the waiting.
    pub timed_out: bool,
    /// How long was to be waited at most.
    pub limit: Option<Time>,
}

/// What a node asks of its driver, besides messages and models to be sent.
#[derive(Debug)]
pub enum NodeStep {
    /// Mix.
    Mix(Mixing),
    /// Drop the sums of earlier iterations.
    Forget {
        /// The first iteration that is still needed.
        below: u32,
    },
    /// A neighbour is there.
    Met {
        /// Its name.
        peer: String,
    },
    /// A neighbour's link has ended.
    Left {
        /// Its name.
        peer: String,
        /// Why.
        reason: String,
    },
    /// Somebody was not let in.
    Refused {
        /// What name it gave.
        peer: String,
        /// Why.
        reason: String,
        /// It is a neighbour whose layout, plan, graph or initial model differs, so a new attempt will fail as well.
        grave: bool,
    },
}

/// What the accepted links of a node ask of its driver.
pub type NodeAction = Action<NodeStep>;

/// Who sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// Whoever is at the other end of a link that was accepted.
    Link(LinkId),
    /// A neighbour that is dialled, by its place ([`Node::meet`]).
    Dialled(usize),
}

/// The new bytes of a chunk, which the driver adds to the sums of the chunk's iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// Whose it is, by place.
    pub peer: usize,
    /// The iteration.
    pub round: u32,
    /// The sender's weight.
    pub weight: f64,
    /// What to add.
    pub fresh: Vec<Range>,
}

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
    begun: Time,
    /// Whom it averages with in this iteration, by place, and in the next if that is not the same.
    pub(super) weights: BTreeMap<usize, f64>,
    then: Option<BTreeMap<usize, f64>>,
    /// Whom it sends to, if these are not the same.
    targets: Option<Vec<usize>>,
    pub(super) pace: Pace,
    pub(super) limit: Option<Time>,
    pub(super) deadline: Option<Time>,
    pub(super) timed_out: bool,
    pub(super) fresh: bool,
    completed: bool,
    /// Chunks that were too early, and that were of another job or layout or could not be added, since the last report.
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
            then: None,
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

    /// A neighbour's weight in an iteration, as far as is known.
    pub(super) fn weight(&self, peer: usize, round: u32) -> Option<f64> {
        let weights = match &self.then {
            _ if round == self.round => &self.weights,
            None => &self.weights,
            Some(then) if round == self.round.saturating_add(1) => then,
            Some(_) => return None,
        };
        weights.get(&peer).copied()
    }

    /// The place of a neighbour that was met.
    fn place_of(&self, name: &str) -> Result<usize, String> {
        let place = self.peers.iter().position(|peer| peer.name == name);
        place.ok_or_else(|| format!("{name:?} is no neighbour that was met; meet it first"))
    }

    fn places(&self, weights: &[(String, f64)]) -> Result<BTreeMap<usize, f64>, String> {
        let mut places = BTreeMap::new();
        for (name, weight) in weights {
            let place = self.place_of(name)?;
            if !(weight.is_finite() && *weight > 0.0) {
                return Err(format!("{weight} is no weight of {name:?}; leave out who counts for nothing"));
            }
            places.insert(place, *weight);
        }
        Ok(places)
    }

    /// Begins an iteration: the node trains, then averages with these neighbours by these weights. `then` has the weights of
    /// the next iteration, for its chunks that arrive early; `None` means the same weights. `to` are those that it sends to;
    /// `None` means those whose models it takes.
    ///
    /// # Errors
    /// If another iteration is not over, the number does not rise, or somebody was not met.
    pub fn begin(
        &mut self,
        now: Time,
        round: u32,
        weights: &[(String, f64)],
        then: Option<&[(String, f64)]>,
        to: Option<&[String]>,
    ) -> Result<(), String> {
        if self.stage != Stage::Idle {
            return Err(format!("iteration {} is not over; call ready and wait first", self.round));
        }
        if round <= self.round {
            let next = self.round.saturating_add(1);
            return Err(format!("iteration {round} is over; go on with {next} or a later one"));
        }
        let weights = self.places(weights)?;
        let then = then.map(|then| self.places(then)).transpose()?;
        let place_of = |to: &[String]| to.iter().map(|name| self.place_of(name)).collect::<Result<_, _>>();
        let targets = to.map(place_of).transpose()?;
        (self.weights, self.then, self.targets) = (weights, then, targets);
        (self.stage, self.begun) = (Stage::Training, now);
        self.go_to(now, round);
        Ok(())
    }

    /// Moves to an iteration: drops what arrived of earlier ones, and handles Ends that arrived before their iteration.
    fn go_to(&mut self, now: Time, round: u32) {
        let before = std::mem::replace(&mut self.round, round);
        for place in 0..self.peers.len() {
            // Of an iteration that is left out nothing more is wanted, and its sender may wait to hear that.
            let ended = self.peers[place].ended;
            if (before..round).contains(&ended) {
                self.acknowledge(now, place, ended);
            }
        }
        for peer in &mut self.peers {
            peer.arrivals.retain(|&of, _| of >= round);
            peer.had.retain(|&of, _| of >= round);
        }
        self.roster.want(NodeStep::Forget { below: round });
        for place in self.weights.keys().copied().collect::<Vec<_>>() {
            self.look_again(now, place);
        }
    }

    /// Stops sending the last own model, before the next one replaces it. With [`Waiting::All`] it does nothing, because
    /// neighbours still wait for that model; [`Node::is_hushed`] says when none does.
    pub fn hush(&mut self) {
        if self.waits_for_all() {
            return;
        }
        for place in 0..self.peers.len() {
            if self.peers[place].out.is_sending() {
                self.cancel(place);
            }
            self.peers[place].out.forget();
        }
    }

    /// Whether the last own model has been sent to all neighbours.
    pub fn is_out(&self) -> bool {
        self.peers.iter().filter(|peer| peer.met).all(|peer| !peer.out.is_sending())
    }

    /// Whether no neighbour needs the last own model any more.
    pub fn is_hushed(&self) -> bool {
        !self.waits_for_all()
            || self.peers.iter().filter(|peer| peer.met).all(|peer| {
                // That all was sent does not do: what came before it had begun this iteration it has to ask for.
                peer.acknowledged >= peer.sending && !peer.out.is_sending() && !peer.out.is_granted()
            })
    }

    /// The own model is trained and may be sent. Returns the iteration it is sent under: `round`, or a later one if most
    /// neighbours are ahead.
    ///
    /// # Errors
    /// If this iteration was not begun.
    pub fn ready(&mut self, now: Time, round: u32) -> Result<u32, String> {
        if self.stage != Stage::Training || round != self.round {
            return Err(format!("iteration {round} is not being trained; begin it first"));
        }
        let number = self.number(round);
        if number > round {
            self.fresh |= !self.completed;
            self.go_to(now, number);
        }
        self.stage = Stage::Waiting;
        self.pace.ready(now, number, now.saturating_sub(self.begun));
        self.limit = match self.config.waiting {
            Waiting::All | Waiting::None => None,
            Waiting::FirstChunk(limit) | Waiting::Deadline(Some(limit)) => Some(limit),
            // What came before the first own update says nothing of how long later ones take.
            Waiting::Deadline(None) if !self.completed => Some(self.config.liveness),
            Waiting::Deadline(None) => {
                let lags = self.awaited().map(|place| &self.peers[place].lag);
                Some(self.pace.limit(lags).unwrap_or(self.config.liveness))
            }
        };
        self.deadline = self.limit.map(|limit| now.saturating_add(limit));
        if self.fresh {
            self.pass(number);
        } else {
            self.send_to_all(number);
        }
        self.advance(now);
        Ok(number)
    }

    /// The iteration to send under. If most neighbours are ahead, chunks under our own number would be late for them, so the
    /// node takes the number that they send next. A node that comes back takes the first number that its neighbours have not
    /// begun.
    fn number(&self, round: u32) -> u32 {
        if self.then.is_some() {
            return round; // another number would be another graph
        }
        let met = || self.weights.keys().map(|&place| &self.peers[place]).filter(|peer| peer.met);
        let most = |mut numbers: Vec<u32>| {
            numbers.sort_unstable_by(|a, b| b.cmp(a));
            numbers.get(numbers.len() / 2).copied().unwrap_or(0)
        };
        let common = || met().map(|peer| peer.from);
        match self.config.waiting {
            Waiting::All => common().max().unwrap_or(0).max(round),
            _ if !self.completed => most(common().collect()).max(round),
            Waiting::Deadline(_) => {
                let theirs = most(met().map(|peer| peer.newest).collect());
                if theirs > round {
                    theirs.saturating_add(1)
                } else {
                    round
                }
            }
            Waiting::None | Waiting::FirstChunk(_) => round,
        }
    }

    /// Tells neighbours that this node sends no model in this iteration: it has come back, and its model is old.
    fn pass(&mut self, number: u32) {
        for place in self.targets() {
            self.tell(place, Control::Closed { parcel: number });
        }
    }

    /// Places of those that it sends to.
    fn targets(&self) -> Vec<usize> {
        self.targets.clone().unwrap_or_else(|| self.weights.keys().copied().collect())
    }

    fn send_to_all(&mut self, number: u32) {
        let wanted = self.size().wanted(number);
        let mut links = Vec::new();
        let mut places = self.targets();
        // With the same order at all nodes, many would send to one node at the same time (incast).
        let first = places.partition_point(|&place| self.peers[place].name < self.config.name);
        places.rotate_left(first);
        for place in places {
            let link = self.link_of(place);
            let peer = &mut self.peers[place];
            if !peer.met {
                continue;
            }
            (peer.out, peer.sending) = (Outgoing::pushed(), number);
            match link {
                Some(link) => links.push(link),
                None => {
                    self.dial_act(place, ClientAction::SendParcel { parcel: number, wanted: wanted.clone() })
                }
            }
        }
        if !links.is_empty() {
            self.roster.act(Action::SendParcel { links, parcel: number, wanted });
        }
    }

    /// Places of the neighbours for which it waits in this iteration.
    fn awaited(&self) -> impl Iterator<Item = usize> + '_ {
        let round = self.round;
        self.weights.keys().copied().filter(move |&place| {
            let peer = &self.peers[place];
            peer.met && peer.from <= round
        })
    }

    /// Looks whether the waiting is over.
    pub(super) fn advance(&mut self, now: Time) {
        if self.stage != Stage::Waiting {
            return;
        }
        let round = self.round;
        let done = match self.config.waiting {
            Waiting::None => true,
            Waiting::FirstChunk(_) => self
                .awaited()
                .all(|place| self.peers[place].is_heard(round) || self.peers[place].is_over(round)),
            Waiting::All | Waiting::Deadline(_) => {
                self.awaited().all(|place| self.peers[place].is_over(round))
            }
        };
        let late = self.deadline.is_some_and(|at| now >= at);
        // The next model replaces this one, and ends what is still being sent of it: give it the same time.
        let leaves = matches!(self.config.waiting, Waiting::Deadline(_)) && !self.is_out();
        if late || (done && !leaves) {
            self.deadline = None;
            self.close_iteration(!done);
        }
    }

    /// The iteration's sums were mixed into the own model. Returns each neighbour's part in it.
    pub fn mixed(&mut self) -> Vec<Exchange> {
        if self.stage != Stage::Mixing {
            return Vec::new();
        }
        let (round, wanted) = (self.round, self.size().wanted(self.round));
        let expected = wanted.bytes();
        let used = |(&place, &weight): (&usize, &f64)| (place, self.final_weight(weight), self.used(place));
        let used: Vec<(usize, f64, Ranges)> = self.weights.iter().map(used).collect();
        let (mutual, chunk) = (self.config.weighing == Weighing::Mutual, u64::from(self.config.chunk.max(1)));
        let exchange = |(place, weight, ranges): (usize, f64, Ranges)| {
            let peer = &mut self.peers[place];
            let arrival = peer.arrivals.remove(&round);
            let came = arrival.as_ref().map(|arrival| arrival.incoming.came());
            let bytes = ranges.bytes();
            let cut = |range: Range| range.end.div_ceil(chunk) - range.start / chunk;
            let outcome = match bytes {
                _ if bytes == expected && came.is_some() => Outcome::Whole,
                0 if !peer.met => Outcome::Away,
                0 => Outcome::Nothing,
                _ => Outcome::Part,
            };
            let (duplicates, corrupt) = came.map_or((0, 0), |came| came.faults());
            Exchange {
                peer: peer.name.clone(),
                weight,
                bytes,
                expected,
                chunks_expected: wanted.iter().map(cut).sum(),
                chunks: match &arrival {
                    Some(_) if mutual => ranges.iter().map(cut).sum(),
                    Some(arrival) => arrival.chunks,
                    None => 0,
                },
                duplicates,
                corrupt,
                late: std::mem::take(&mut peer.late),
                span: came.and_then(|came| came.span()).map(|span| (span.start, span.end)),
                newest: peer.newest,
                outcome,
            }
        };
        let exchanges: Vec<Exchange> = used.into_iter().map(exchange).collect();
        self.fresh &= exchanges.iter().all(|exchange| exchange.bytes == 0);
        (self.stage, self.completed) = (Stage::Idle, true);
        exchanges
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
        self.advance(now);
    }
}
