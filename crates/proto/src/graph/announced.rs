//! The neighbours' weights in coming iterations. A node can add a chunk to its iteration's sums only if it
//! knows the sender's weight in that iteration. So these weights also decide which chunks a node can accept
//! before it begins their iteration.

use std::collections::BTreeMap;

use super::node::{Node, Stage};

/// Weights of neighbours, by index in `Node::peers`.
pub(super) type Weights = BTreeMap<usize, f64>;

/// The weights of an iteration and of later ones.
#[derive(Debug, Default)]
pub(super) struct Announced {
    /// The number of the first iteration.
    first: u32,
    /// The weights of the first iteration, and of those that follow it.
    weights: Vec<Weights>,
    /// Whether weights change between iterations. If so, weights beyond `weights` are unknown; else they
    /// equal the last known ones.
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
    /// Tells a node in advance what its first iteration will be. It can then accept chunks of neighbours that
    /// have begun already. Arguments and result are those of [`Node::begin`]. Does nothing while an iteration
    /// runs. Does nothing with [`Waiting::All`](super::Waiting::All) either, where the node asks again for
    /// chunks that arrived too early.
    ///
    /// # Errors
    /// If `round` is not higher than the last iteration, or [`Node::meet`] was not called for a name.
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
        let later = then.unwrap_or_default().iter().map(|weights| self.indices(weights));
        let weights = std::iter::once(self.indices(weights)).chain(later).collect::<Result<_, _>>()?;
        Ok(Announced { first, weights, changes: then.is_some() })
    }

    /// Replaces the known weights. Returns the iterations in which a neighbour whose chunks have arrived now
    /// has another weight. The node forgets these chunks, and the driver must drop the sums that contain
    /// them.
    pub(super) fn announce(&mut self, announced: Announced) -> Vec<u32> {
        let before = std::mem::replace(&mut self.announced, announced);
        if before.of(self.announced.first) != self.announced.of(self.announced.first) {
            self.retry_segments();
        }
        if self.waits_for_all() {
            return Vec::new(); // the senders got a receipt for the whole model, and may have departed on
        }
        let (first, after) = (self.announced.first, &self.announced);
        let differs = |index: usize, round: u32| {
            let weight = |of: &Announced| of.of(round).and_then(|weights| weights.get(&index).copied());
            weight(&before) != weight(after)
        };
        let arrived = self.peers.iter().enumerate().flat_map(|(index, peer)| {
            peer.arrivals.keys().map(move |&round| (index, round)).filter(|&(_, round)| round >= first)
        });
        let mut stale: Vec<u32> =
            arrived.filter(|&(index, round)| differs(index, round)).map(|(_, round)| round).collect();
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
