//! When a neighbour's chunks get their weight: on arrival, or when the waiting is over.
//!
//! With [`Weighing::Mutual`], two neighbours tell each other at the end of the waiting which bytes of the
//! other's model they have. Both then use only the bytes that arrived in both directions. So the weights are
//! symmetric at every byte, and mixing does not move the mean of all models, whatever is lost. A node does
//! not use chunks that arrive after its Have.
//!
//! A node waits for a neighbour's Have only if it has bytes of that neighbour's model. Then the neighbour has
//! sent its model, and sends its Have when its own waiting ends. If that takes too long, the node ends the
//! link.

use thalweg_wire::control::{Control, MAX_HOLES};
use thalweg_wire::Ranges;

use super::node::{Node, Stage};
use super::terms::{Mixing, NodeStep};
use crate::Time;

/// When the weight of a chunk is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Weighing {
    /// When the chunk arrives: it is added to the sums at once.
    #[default]
    Arrival,
    /// When the waiting is over and it is known from how many neighbours bytes arrived (udp-dpsgd, section
    /// 3.5.2). The plan's weight of neighbour j is 1 / (1 + its degree). It becomes 1 / (1 + the larger of
    /// that degree and the number of neighbours heard).
    Senders,
    /// When the neighbour has said which bytes of this node's model it has.
    Mutual,
}

/// The ranges of one neighbour's model that go into the sums, and their weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Portion {
    /// The neighbour's index.
    pub peer: usize,
    /// The weight by which the ranges are multiplied.
    pub weight: f64,
    /// The ranges, in bytes of the model.
    pub ranges: Ranges,
}

impl Node {
    /// Ends the waiting: begins to mix, or with [`Weighing::Mutual`] first tells each neighbour which bytes
    /// of its model arrived.
    pub(super) fn close_iteration(&mut self, now: Time, timed_out: bool) {
        self.timed_out = timed_out;
        self.by_segments = self.is_averaging(self.round);
        if self.by_segments {
            self.close_segments(now, self.round);
        }
        if self.config.weighing != Weighing::Mutual || self.fresh {
            return self.mix();
        }
        self.stage = Stage::Swapping;
        // A neighbour that has sent its model waits no longer than this node did, except with
        // `Waiting::All`.
        let longest = self.limit.unwrap_or_default().saturating_add(self.config.liveness);
        self.deadline = (!self.waits_for_all()).then(|| now.saturating_add(longest));
        self.timer_set |= self.deadline.is_some();
        let round = self.round;
        for index in self.weights.keys().copied().collect::<Vec<_>>() {
            let peer = &mut self.peers[index];
            let mut reported = Ranges::new();
            if let Some(arrival) = peer.arrivals.get_mut(&round).filter(|_| peer.apart < round) {
                // A message holds at most `MAX_HOLES` ranges. Neither node uses the ranges beyond these.
                reported = arrival.incoming.reassembly().received().first(MAX_HOLES);
                arrival.reported = reported.clone();
            }
            self.tell(index, Control::Have { parcel: round, got: reported });
        }
        self.swap();
    }

    /// Begins to mix once all neighbours have said which bytes of this node's model they have.
    pub(super) fn swap(&mut self) {
        if self.stage != Stage::Swapping {
            return;
        }
        if !self.weights.keys().any(|&index| self.owes(index)) {
            self.mix();
        }
    }

    /// Whether a neighbour's Have for this iteration is still to come.
    fn owes(&self, index: usize) -> bool {
        let (peer, round) = (&self.peers[index], self.round);
        let has_some = peer.arrivals.get(&round).is_some_and(|arrival| !arrival.reported.is_empty());
        // A Have for an iteration that this node does not accept yet counts in `last_have`, but is not
        // stored. It is empty, because this node has sent nothing of that iteration.
        has_some && peer.met && peer.apart < round && peer.last_have < round
    }

    /// Ends the links of neighbours whose Have does not arrive in time. Both nodes notice the end of the
    /// link, so neither uses the other's model of this iteration.
    pub(super) fn stop_swapping(&mut self, now: Time) {
        if self.stage != Stage::Swapping || self.deadline.is_none_or(|at| now < at) {
            return;
        }
        self.deadline = None;
        for index in self.weights.keys().copied().filter(|&index| self.owes(index)).collect::<Vec<_>>() {
            let reason = format!(
                "{:?} has sent its model of iteration {} and does not say what it has of ours",
                self.peers[index].name, self.round
            );
            self.hang_up(now, index, &reason);
        }
    }

    fn mix(&mut self) {
        (self.stage, self.deadline) = (Stage::Mixing, None);
        let (round, fresh, timed_out, limit) = (self.round, self.fresh, self.timed_out, self.limit);
        let by_segments = self.by_segments;
        self.roster.want(NodeStep::Mix(Mixing { round, fresh, timed_out, by_segments, limit }));
    }

    /// A neighbour's Have has arrived: `got` are the ranges of this node's model that it has.
    pub(super) fn has(&mut self, index: usize, round: u32, got: Ranges) {
        if self.config.weighing != Weighing::Mutual {
            return;
        }
        let open = (self.round..=self.top()).contains(&round);
        let peer = &mut self.peers[index];
        peer.last_have = peer.last_have.max(round);
        if open {
            peer.had.insert(round, got);
        }
        self.swap();
    }

    /// How many neighbours have sent bytes of this iteration.
    fn senders(&self) -> usize {
        self.weights.keys().filter(|&&index| self.peers[index].has_sent(self.round)).count()
    }

    /// A neighbour's weight in the iteration that is being mixed. `weight` is the weight that was planned.
    pub(super) fn final_weight(&self, weight: f64) -> f64 {
        match self.config.weighing {
            Weighing::Senders => weight.min(1.0 / (1 + self.senders()) as f64),
            Weighing::Arrival | Weighing::Mutual => weight,
        }
    }

    /// The ranges of a neighbour's model that are used in the iteration that is being mixed.
    pub(super) fn used(&self, index: usize) -> Ranges {
        let (peer, round) = (&self.peers[index], self.round);
        let Some(arrival) = peer.arrivals.get(&round) else { return Ranges::new() };
        if self.config.weighing != Weighing::Mutual || self.fresh {
            return arrival.incoming.reassembly().received().clone();
        }
        let Some(had) = peer.had.get(&round) else { return Ranges::new() };
        arrival.reported.iter().flat_map(|range| had.within(range)).collect()
    }

    /// The ranges that the driver must add to the sums before it mixes them. Empty with
    /// [`Weighing::Arrival`]: those chunks were added when they arrived.
    pub fn portions(&self) -> Vec<Portion> {
        if self.stage != Stage::Mixing || self.config.weighing == Weighing::Arrival {
            return Vec::new();
        }
        let portions = self.weights.iter().map(|(&peer, &weight)| {
            let (weight, ranges) = (self.final_weight(weight), self.used(peer));
            Portion { peer, weight, ranges }
        });
        portions.filter(|portion| !portion.ranges.is_empty()).collect()
    }
}
