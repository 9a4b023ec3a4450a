//! An iteration from its start until the sums are mixed into the node's own model: its number, the neighbours
//! that the node sends to, and those that it waits for.

use std::collections::BTreeMap;

use thalweg_wire::control::Control;
use thalweg_wire::{Range, Ranges};

use super::node::{Node, Stage};
use super::peer::{Exchange, Outcome, Peer};
use super::terms::{NodeStep, Waiting};
use super::weighing::Weighing;
use crate::session::{Action, ClientAction};
use crate::transfer::Outgoing;
use crate::Time;

impl Node {
    /// The index in `peers` of the neighbour with this name. An error if [`Node::meet`] was not called for
    /// it.
    fn index_of(&self, name: &str) -> Result<usize, String> {
        let index = self.peers.iter().position(|peer| peer.name == name);
        index.ok_or_else(|| format!("{name:?} is no neighbour that was met; meet it first"))
    }

    pub(super) fn indices(&self, weights: &[(String, f64)]) -> Result<BTreeMap<usize, f64>, String> {
        let mut indices = BTreeMap::new();
        for (name, weight) in weights {
            let index = self.index_of(name)?;
            if !(weight.is_finite() && *weight > 0.0) {
                return Err(format!("{weight} is no weight of {name:?}; leave out who counts for nothing"));
            }
            indices.insert(index, *weight);
        }
        Ok(indices)
    }

    /// Begins an iteration. The node trains, then averages with the neighbours in `weights` by these weights.
    /// `then` has the weights of the following iterations, for chunks that arrive early; `None` means that
    /// these have the same weights. `to` names the neighbours that the node sends to; `None` means those in
    /// `weights`.
    ///
    /// Returns the iterations whose sums the driver must drop before it adds another chunk, because their
    /// chunks arrived when other weights were known.
    ///
    /// # Errors
    /// If another iteration is not over, `round` is not higher than the last one, or [`Node::meet`] was not
    /// called for a name.
    pub fn begin(
        &mut self,
        now: Time,
        round: u32,
        weights: &[(String, f64)],
        then: Option<&[Vec<(String, f64)>]>,
        to: Option<&[String]>,
    ) -> Result<Vec<u32>, String> {
        if self.stage != Stage::Idle {
            return Err(format!("iteration {} is not over; call ready and wait first", self.round));
        }
        self.check_number(round)?;
        let announced = self.announced_from(round, weights, then)?;
        let indices = |to: &[String]| to.iter().map(|name| self.index_of(name)).collect::<Result<_, _>>();
        let targets = to.map(indices).transpose()?;
        (self.weights, self.targets) = (announced.of(round).cloned().unwrap_or_default(), targets);
        let stale = self.announce(announced);
        (self.stage, self.begun) = (Stage::Training, now);
        self.go_to(now, round);
        Ok(stale)
    }

    pub(super) fn check_number(&self, round: u32) -> Result<(), String> {
        if round > self.round {
            return Ok(());
        }
        let next = self.round.saturating_add(1);
        Err(format!("iteration {round} is over; go on with {next} or a later one"))
    }

    /// Moves to an iteration. Drops chunks of earlier iterations, and handles Ends that arrived before their
    /// iteration.
    fn go_to(&mut self, now: Time, round: u32) {
        let before = std::mem::replace(&mut self.round, round);
        for index in 0..self.peers.len() {
            // The node skips these iterations and needs no more of them. The sender may wait for this
            // acknowledgement.
            let ended = self.peers[index].ended;
            if (before..round).contains(&ended) {
                self.acknowledge(now, index, ended);
            }
        }
        for peer in &mut self.peers {
            peer.arrivals.retain(|&of, _| of >= round);
            peer.had.retain(|&of, _| of >= round);
        }
        self.roster.want(NodeStep::Forget { below: round });
        self.begin_segments(now, round);
        for index in self.weights.keys().copied().collect::<Vec<_>>() {
            self.look_again(now, index);
        }
    }

    /// Stops sending this node's last model, before the next one replaces it. With [`Waiting::All`] it does
    /// nothing, because neighbours still wait for that model; then [`Node::is_hushed`] tells when none needs
    /// it any more.
    pub fn hush(&mut self) {
        if self.waits_for_all() {
            return;
        }
        for index in 0..self.peers.len() {
            if self.peers[index].out.is_sending() {
                self.cancel(index);
            }
            self.peers[index].out.forget();
        }
    }

    /// Whether no connected neighbour is being sent this node's last model any more.
    pub fn is_out(&self) -> bool {
        let sends = |peer: &Peer| peer.out.is_sending() || peer.passing.is_sending();
        !self.peers.iter().filter(|peer| peer.met).any(sends)
    }

    /// Whether no neighbour needs this node's last model any more.
    pub fn is_hushed(&self) -> bool {
        self.needing() == 0
    }

    /// How many neighbours need this node's last model and may not have it yet. Always 0 except with
    /// [`Waiting::All`].
    pub fn needing(&self) -> usize {
        // It is not enough that the model was sent. A neighbour that had not begun this iteration yet dropped
        // the chunks, and asks for them again.
        let has = |peer: &&Peer| {
            let idle = !peer.out.is_sending() && !peer.out.is_granted() && !peer.passing.is_busy();
            peer.acknowledged >= peer.sending && idle
        };
        let met = self.peers.iter().filter(|peer| peer.met && self.waits_for_all());
        met.filter(|peer| !has(peer)).count()
    }

    /// Reports that the node's own model is trained. The node sends it to its neighbours. Returns the
    /// iteration under which it is sent: `round`, or a later one if most neighbours are ahead.
    ///
    /// # Errors
    /// If `round` is not the iteration that was begun last, or it is not being trained.
    pub fn ready(&mut self, now: Time, round: u32) -> Result<u32, String> {
        if self.stage != Stage::Training || round != self.round {
            return Err(format!("iteration {round} is not being trained; begin it first"));
        }
        let number = self.number(round).min(self.last()).max(round);
        if number > round {
            self.fresh |= !self.completed;
            self.go_to(now, number);
        }
        self.open_segments(now, number);
        self.stage = Stage::Waiting;
        self.pace.ready(now, number, now.saturating_sub(self.begun));
        self.limit = match self.config.waiting {
            Waiting::All | Waiting::None => None,
            Waiting::FirstChunk(limit) | Waiting::Deadline(Some(limit)) => Some(limit),
            // Lags measured before the node's first update do not predict later lags.
            Waiting::Deadline(None) if !self.completed => Some(self.config.liveness),
            Waiting::Deadline(None) => {
                let lags = self.awaited().map(|index| &self.peers[index].lag);
                Some(self.pace.limit(lags).unwrap_or(self.config.liveness))
            }
        };
        self.deadline = self.limit.map(|limit| now.saturating_add(limit));
        // If a node dials all its neighbours, no action wakes the driver that waits for this deadline.
        self.timer_set |= self.deadline.is_some();
        if self.fresh {
            self.pass(number);
        } else {
            self.send_to_all(number);
        }
        self.look_at_pieces(number);
        self.advance(now);
        Ok(number)
    }

    /// The iteration under which the node's own model is sent. If most neighbours are ahead, they would drop
    /// chunks under the node's own number as late, so the node takes the number that they send next. A node
    /// that joins late takes the first number that its neighbours have not begun.
    fn number(&self, round: u32) -> u32 {
        if self.announced.changes {
            return round; // in another iteration the graph differs
        }
        let met = || self.weights.keys().map(|&index| &self.peers[index]).filter(|peer| peer.met);
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

    /// Tells neighbours that this node sends no model in this iteration, because it has come back with an old
    /// one.
    fn pass(&mut self, number: u32) {
        for index in self.targets() {
            self.tell(index, Control::Closed { parcel: number });
        }
    }

    /// Indices in `peers` of the neighbours that the node sends to.
    fn targets(&self) -> Vec<usize> {
        self.targets.clone().unwrap_or_else(|| self.weights.keys().copied().collect())
    }

    fn send_to_all(&mut self, number: u32) {
        if self.is_averaging(number) {
            return self.send_segments(number);
        }
        let wanted = self.size().wanted(number);
        let mut links = Vec::new();
        for index in self.targets_in_turn() {
            let link = self.link_of(index);
            let peer = &mut self.peers[index];
            if !peer.met {
                continue;
            }
            (peer.out, peer.sending) = (Outgoing::pushed(), number);
            match link {
                Some(link) => links.push(link),
                None => {
                    self.dial_act(index, ClientAction::SendParcel { parcel: number, wanted: wanted.clone() })
                }
            }
        }
        if !links.is_empty() {
            self.roster.act(Action::SendParcel { links, parcel: number, difference: false, wanted });
        }
    }

    /// Sends each neighbour the segment of this node's model that the neighbour owns.
    fn send_segments(&mut self, number: u32) {
        for index in self.targets_in_turn() {
            let (wanted, link) = (self.segment(number, index), self.link_of(index));
            let peer = &mut self.peers[index];
            (peer.out, peer.sending) = (Outgoing::pushed(), number);
            match link {
                Some(link) => {
                    self.roster.act(Action::SendParcel {
                        links: vec![link],
                        parcel: number,
                        difference: false,
                        wanted,
                    });
                }
                None => self.dial_act(index, ClientAction::SendParcel { parcel: number, wanted }),
            }
        }
    }

    /// Indices in `peers` of the neighbours that the node sends to, in sending order. Each node begins with the
    /// neighbour that follows it in the order of names. If all nodes used the same order, many would send to
    /// one node at the same time (incast).
    pub(super) fn targets_in_turn(&self) -> Vec<usize> {
        let mut indices = self.targets();
        let first = indices.partition_point(|&index| self.peers[index].name < self.config.name);
        indices.rotate_left(first);
        indices
    }

    /// Indices in `peers` of the neighbours that the node waits for in this iteration.
    fn awaited(&self) -> impl Iterator<Item = usize> + '_ {
        let round = self.round;
        self.weights.keys().copied().filter(move |&index| {
            let peer = &self.peers[index];
            peer.met && peer.from <= round
        })
    }

    /// Ends the waiting if its condition is met or its deadline has passed.
    pub(super) fn advance(&mut self, now: Time) {
        if self.stage != Stage::Waiting {
            return;
        }
        let round = self.round;
        let done = match self.config.waiting {
            Waiting::None => true,
            Waiting::FirstChunk(_) => self
                .awaited()
                .all(|index| self.peers[index].has_sent(round) || self.peers[index].is_over(round)),
            Waiting::All if self.is_averaging(round) => self.has_all_means(),
            Waiting::All | Waiting::Deadline(_) => {
                self.awaited().all(|index| self.peers[index].is_over(round))
            }
        };
        let late = self.deadline.is_some_and(|at| now >= at);
        // The node's next model replaces this one and cancels its transfers. So this one may be sent until
        // the deadline.
        let leaves = matches!(self.config.waiting, Waiting::Deadline(_)) && !self.is_out();
        if late || (done && !leaves) {
            self.deadline = None;
            self.close_iteration(now, !done);
        }
    }

    /// Reports that the iteration's sums were mixed into the node's own model. Returns what each neighbour
    /// contributed.
    pub fn mixed(&mut self) -> Vec<Exchange> {
        if self.stage != Stage::Mixing {
            return Vec::new();
        }
        let (round, wanted) = (self.round, self.size().wanted(self.round));
        if std::mem::take(&mut self.by_segments) {
            return self.mixed_by_segments();
        }
        let expected = wanted.bytes();
        let used = |(&index, &weight): (&usize, &f64)| (index, self.final_weight(weight), self.used(index));
        let used: Vec<(usize, f64, Ranges)> = self.weights.iter().map(used).collect();
        let (mutual, chunk) = (self.config.weighing == Weighing::Mutual, u64::from(self.config.chunk.max(1)));
        let exchange = |(index, weight, ranges): (usize, f64, Ranges)| {
            let peer = &mut self.peers[index];
            let arrival = peer.arrivals.remove(&round);
            let reassembly = arrival.as_ref().map(|arrival| arrival.incoming.reassembly());
            let bytes = ranges.bytes();
            let cut = |range: Range| range.end.div_ceil(chunk) - range.start / chunk;
            let outcome = match bytes {
                _ if bytes == expected && reassembly.is_some() => Outcome::Whole,
                0 if !peer.met => Outcome::Away,
                0 => Outcome::Nothing,
                _ => Outcome::Part,
            };
            let (duplicates, corrupt) = reassembly.map_or((0, 0), |reassembly| reassembly.faults());
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
                span: reassembly.and_then(|reassembly| reassembly.span()).map(|span| (span.start, span.end)),
                newest: peer.newest,
                outcome,
            }
        };
        let exchanges: Vec<Exchange> = used.into_iter().map(exchange).collect();
        self.fresh &= exchanges.iter().all(|exchange| exchange.bytes == 0);
        (self.stage, self.completed) = (Stage::Idle, true);
        exchanges
    }
}
