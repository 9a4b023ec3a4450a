//! When a neighbour's chunks get their weight: as they come, or when the waiting is over.
//!
//! With [`Weighing::Mutual`] two neighbours then swap what each has of the other's model, and both use what went both ways:
//! the weights are symmetric at every byte, so mixing does not move the mean of all models, whatever is lost. Chunks that
//! come after a node has said what it has are not used. A node waits for the other's word only if it has something of it;
//! then the other has sent its model, and says its word when its own waiting ends. If that takes longer than it may, the node
//! ends the link.

use thalweg_wire::control::{Control, MAX_HOLES};
use thalweg_wire::Ranges;

use super::node::{Node, Stage};
use super::terms::{Mixing, NodeStep};
use crate::Time;

/// When weights are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Weighing {
    /// As chunks come: they are added to the sums at once.
    #[default]
    Arrival,
    /// When it is known how many neighbours were heard (udp-dpsgd, section 3.5.2). The weight that is given of neighbour j
    /// is 1 / (1 + its degree), and becomes 1 / (1 + the larger of its degree and the number heard).
    Heard,
    /// When it is known what the neighbour has of this node's model.
    Mutual,
}

/// What of a neighbour's model goes into the sums, and with what weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Portion {
    /// Whose it is, by place.
    pub peer: usize,
    /// Its weight.
    pub weight: f64,
    /// Which bytes.
    pub ranges: Ranges,
}

impl Node {
    /// The waiting is over: mixes, or first swaps with the neighbours what came.
    pub(super) fn close_iteration(&mut self, now: Time, timed_out: bool) {
        self.timed_out = timed_out;
        if self.config.weighing != Weighing::Mutual || self.fresh {
            return self.mix();
        }
        self.stage = Stage::Swapping;
        // Who has sent its model waits for no longer than this node did, unless nodes wait for all.
        let longest = self.limit.unwrap_or_default().saturating_add(self.config.liveness);
        self.deadline = (!self.waits_for_all()).then(|| now.saturating_add(longest));
        self.timer_set |= self.deadline.is_some();
        let round = self.round;
        for place in self.weights.keys().copied().collect::<Vec<_>>() {
            let peer = &mut self.peers[place];
            let mut reported = Ranges::new();
            if let Some(arrival) = peer.arrivals.get_mut(&round).filter(|_| peer.apart < round) {
                // More ranges than a message holds are left out by both.
                reported = arrival.incoming.came().received().first(MAX_HOLES);
                arrival.reported = reported.clone();
            }
            self.tell(place, Control::Have { parcel: round, got: reported });
        }
        self.swap();
    }

    /// Looks whether the neighbours have said what they have of this node's model.
    pub(super) fn swap(&mut self) {
        if self.stage != Stage::Swapping {
            return;
        }
        if !self.weights.keys().any(|&place| self.owes(place)) {
            self.mix();
        }
    }

    /// Whether a neighbour has still to say what it has of this node's model.
    fn owes(&self, place: usize) -> bool {
        let (peer, round) = (&self.peers[place], self.round);
        let has_some = peer.arrivals.get(&round).is_some_and(|arrival| !arrival.reported.is_empty());
        // What it said of an iteration that was not open yet is that it had nothing.
        has_some && peer.met && peer.apart < round && peer.told < round
    }

    /// Ends the links of neighbours that do not say in time what they have. The end of a link is what both ends notice, so
    /// neither uses the other's model of this iteration.
    pub(super) fn stop_swapping(&mut self, now: Time) {
        if self.stage != Stage::Swapping || self.deadline.is_none_or(|at| now < at) {
            return;
        }
        self.deadline = None;
        for place in self.weights.keys().copied().filter(|&place| self.owes(place)).collect::<Vec<_>>() {
            let reason = format!(
                "{:?} has sent its model of iteration {} and does not say what it has of ours",
                self.peers[place].name, self.round
            );
            self.hang_up(now, place, &reason);
        }
    }

    fn mix(&mut self) {
        (self.stage, self.deadline) = (Stage::Mixing, None);
        let (round, fresh, timed_out, limit) = (self.round, self.fresh, self.timed_out, self.limit);
        self.roster.want(NodeStep::Mix(Mixing { round, fresh, timed_out, limit }));
    }

    /// A neighbour says what it has of our model of an iteration.
    pub(super) fn has(&mut self, place: usize, round: u32, got: Ranges) {
        if self.config.weighing != Weighing::Mutual {
            return;
        }
        let open = (self.round..=self.top()).contains(&round);
        let peer = &mut self.peers[place];
        peer.told = peer.told.max(round);
        if open {
            peer.had.insert(round, got);
        }
        self.swap();
    }

    /// How many neighbours were heard in this iteration.
    fn heard(&self) -> usize {
        self.weights.keys().filter(|&&place| self.peers[place].is_heard(self.round)).count()
    }

    /// A neighbour's weight in the iteration that is mixed.
    pub(super) fn final_weight(&self, weight: f64) -> f64 {
        match self.config.weighing {
            Weighing::Heard => weight.min(1.0 / (1 + self.heard()) as f64),
            Weighing::Arrival | Weighing::Mutual => weight,
        }
    }

    /// What of a neighbour's model is used in the iteration that is mixed.
    pub(super) fn used(&self, place: usize) -> Ranges {
        let (peer, round) = (&self.peers[place], self.round);
        let Some(arrival) = peer.arrivals.get(&round) else { return Ranges::new() };
        if self.config.weighing != Weighing::Mutual || self.fresh {
            return arrival.incoming.came().received().clone();
        }
        let Some(had) = peer.had.get(&round) else { return Ranges::new() };
        arrival.reported.iter().flat_map(|range| had.within(range)).collect()
    }

    /// What is to be added to the sums before they are mixed. Nothing if weights were known as chunks came: they were added
    /// then.
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
