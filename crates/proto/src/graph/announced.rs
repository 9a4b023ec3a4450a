//! Neighbours' weights in iterations to come. A chunk of an iteration can be added to its sums once these are known, so
//! they also decide which chunks a node can take before it has begun their iteration.

use std::collections::BTreeMap;

use super::node::{Node, Stage};

/// Weights of neighbours, by place.
pub(super) type Weights = BTreeMap<usize, f64>;

/// Weights from one iteration on.
#[derive(Debug, Default)]
pub(super) struct Announced {
    first: u32,
    /// Of the first iteration and those that follow it.
    weights: Vec<Weights>,
    /// Iterations differ, so those beyond `weights` are not known. Otherwise they are like the last.
    pub changes: bool,
}

impl Announced {
    /// The weights of an iteration, if they are known.
    pub fn of(&self, round: u32) -> Option<&Weights> {
        let at = round.checked_sub(self.first)? as usize;
        self.weights.get(at).or_else(|| self.weights.last().filter(|_| !self.changes))
    }
}

impl Node {
    /// Tells a node that has not begun what its first iteration will be, so that it takes chunks of neighbours who have
    /// begun already. Arguments and result are as for [`Node::begin`]. It does nothing in an iteration. Nor does it where nodes
    /// wait for whole models: there a node asks for what came before it had begun.
    ///
    /// # Errors
    /// If the number does not rise, or somebody was not met.
    pub fn expect(
        &mut self,
        round: u32,
        weights: &[(String, f64)],
        then: Option<&[Vec<(String, f64)>]>,
    ) -> Result<Vec<u32>, String> {
        if self.stage != Stage::Idle || self.waits_for_all() {
            return Ok(Vec::new());
        }
        self.check_number(round)?;
        let announced = self.announced_from(round, weights, then)?;
        self.round = round.saturating_sub(1);
        Ok(self.announce(announced))
    }

    pub(super) fn announced_from(
        &self,
        first: u32,
        weights: &[(String, f64)],
        then: Option<&[Vec<(String, f64)>]>,
    ) -> Result<Announced, String> {
        let later = then.unwrap_or_default().iter().map(|weights| self.places(weights));
        let weights = std::iter::once(self.places(weights)).chain(later).collect::<Result<_, _>>()?;
        Ok(Announced { first, weights, changes: then.is_some() })
    }

    /// Takes new weights. Returns the iterations of which chunks came under other weights: these chunks are dropped here,
    /// and the driver has to drop what it made of them.
    pub(super) fn announce(&mut self, announced: Announced) -> Vec<u32> {
        let before = std::mem::replace(&mut self.announced, announced);
        if self.waits_for_all() {
            return Vec::new(); // their senders were told that all is here, and may have gone on
        }
        let (first, after) = (self.announced.first, &self.announced);
        let differs = |place: usize, round: u32| {
            let weight = |of: &Announced| of.of(round).and_then(|weights| weights.get(&place).copied());
            weight(&before) != weight(after)
        };
        let came = self.peers.iter().enumerate().flat_map(|(place, peer)| {
            peer.arrivals.keys().map(move |&round| (place, round)).filter(|&(_, round)| round >= first)
        });
        let mut stale: Vec<u32> =
            came.filter(|&(place, round)| differs(place, round)).map(|(_, round)| round).collect();
        stale.sort_unstable();
        stale.dedup();
        for peer in &mut self.peers {
            for round in &stale {
                self.early += peer.arrivals.remove(round).map_or(0, |arrival| arrival.chunks);
            }
        }
        stale
    }
}
