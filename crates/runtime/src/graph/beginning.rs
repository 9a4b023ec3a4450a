//! What a node is told before an iteration: its neighbours, and the weights of their models.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLockWriteGuard};

use thalweg_fold::{MAX_WEIGHT, MIN_WEIGHT};

use super::doors::{Dialled, Dialling};
use super::means::Means;
use super::node::{bad, out_of_order, Node, Under, Weights};
use super::options::MixingRule;
use crate::engine::{DialOptions, Dialer};
use crate::{lock, random, Error};

/// Weights of an iteration that has not begun, and of the iterations after it.
pub struct Upcoming {
    /// Number of the iteration.
    pub round: u32,
    /// Weights of the iteration `round` by neighbour, as [`Node::begin`] takes them.
    pub weights: Weights,
    /// Weights of the later iterations; `None` if they are the same.
    pub then: Option<Vec<Weights>>,
}

/// Neighbours' weights as the state machine takes them.
type Listed = Vec<(String, f64)>;

/// [`Upcoming`] after the checks, with the node's own weight kept apart.
struct Checked {
    round: u32,
    own: f64,
    weights: Listed,
    then: Option<Vec<Listed>>,
}

impl Node {
    /// Adds neighbours, given by name and address. The node dials those whose name is higher than its own;
    /// the others dial it. With `first`, the weights of its first iteration, the node can use chunks that
    /// neighbours send before it begins that iteration.
    ///
    /// # Errors
    /// Fails for an impossible name or address. `round` for impossible weights, or for an iteration number
    /// that does not rise.
    pub fn meet(&self, neighbours: &BTreeMap<String, String>, first: Option<Upcoming>) -> Result<(), Error> {
        self.open()?;
        let ways = neighbours.iter().map(|(name, url)| Ok((name, self.way_to(name, url)?)));
        let ways = ways.collect::<Result<Vec<_>, Error>>()?;
        let first = first.map(|first| self.checked(first)).transpose()?;
        let seed = self.options.seed ^ u64::from_le_bytes(random()?);
        let indices = {
            let _folding = self.folding_nothing();
            let (indices, stale) = self.shared.tell(|node| {
                let met =
                    ways.iter().zip(0_u64..).map(|((name, _), n)| node.meet(name, seed ^ n).map_err(bad));
                let indices = met.collect::<Result<Vec<_>, Error>>()?;
                let expected =
                    first.map(|first| node.expect(first.round, &first.weights, first.then.as_deref()));
                Ok::<_, Error>((indices, expected.transpose().map_err(out_of_order)?.unwrap_or_default()))
            })?;
            self.shared.free(&stale);
            indices
        };
        for ((name, to), (index, dials)) in ways.into_iter().zip(indices) {
            let Some(to) = to.filter(|_| dials) else { continue };
            let machine = Dialled { shared: self.shared.clone(), index };
            let policy = Dialling { shared: self.shared.clone(), index, name: name.clone() };
            let dialer = Dialer::start(to, machine, policy)?;
            self.shared.dials(index, &dialer);
            dialer.wake();
            lock(&self.dialers).insert(index, dialer);
        }
        Ok(())
    }

    /// How to dial a neighbour; `None` if the neighbour dials this node.
    fn way_to(&self, name: &str, url: &str) -> Result<Option<DialOptions>, Error> {
        if self.name.as_str() >= name {
            return Ok(None);
        }
        let to = DialOptions::new(url, &self.name, self.options.of_dialer(), thalweg_pki::Role::GraphNode)?;
        let (instance, started) = (self.instance, self.shared.started());
        Ok(Some(DialOptions { instance, started, expects: Some(name.into()), ..to }))
    }

    /// Waits until no sink is adding a chunk, and keeps sinks from adding one while the guard lives.
    fn folding_nothing(&self) -> RwLockWriteGuard<'_, ()> {
        self.shared.folding.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks all weights, and separates the node's own weight.
    fn checked(&self, upcoming: Upcoming) -> Result<Checked, Error> {
        let (own, weights) = self.split(upcoming.weights)?;
        let listed = |weights: Weights| self.split(weights).map(|(_, listed)| listed);
        let then = upcoming.then.map(|then| then.into_iter().map(listed).collect()).transpose()?;
        Ok(Checked { round: upcoming.round, own, weights, then })
    }

    /// Separates the node's own weight from the neighbours', and checks both.
    fn split(&self, mut weights: Weights) -> Result<(f64, Listed), Error> {
        let own = weights.remove(&self.name);
        let possible = |weight: f64| (MIN_WEIGHT..=MAX_WEIGHT).contains(&weight);
        if let Some((name, weight)) = weights.iter().find(|(_, weight)| !possible(**weight)) {
            return Err(out_of_order(format!("{weight} is no weight of {name:?}; use one of 2^-30 to 2^40")));
        }
        let own = match (self.options.mixing, own) {
            (MixingRule::Renormalise, Some(own)) if possible(own) => own,
            (MixingRule::Renormalise, _) => {
                let what = format!("renormalise needs the own weight too; give one for {:?}", self.name);
                return Err(out_of_order(what));
            }
            (_, Some(_)) => {
                return Err(out_of_order("the own weight is 1 minus the others; leave it out"));
            }
            // The machine computes the weights later, from the number of neighbours that have sent something.
            // They only become smaller.
            (MixingRule::Paper, None) => 0.0,
            (MixingRule::Complement | MixingRule::Symmetric, None) => {
                let sum: f64 = weights.values().sum();
                if sum > 1.0 + 1e-6 {
                    return Err(out_of_order(format!(
                        "the neighbours' weights sum to {sum}, and leave nothing for the own model; at most 1"
                    )));
                }
                0.0
            }
        };
        Ok((own, weights.into_iter().collect()))
    }

    /// Begins an iteration with these neighbours and weights. `then` gives the weights of the iterations
    /// after it; `None` means the same weights. `to` names the neighbours to which the node sends; `None`
    /// means the neighbours whose models it mixes.
    ///
    /// # Errors
    /// `round` if another iteration is not over, the number does not rise, or a weight is impossible.
    pub fn begin(
        &self,
        round: u32,
        weights: Weights,
        then: Option<Vec<Weights>>,
        to: Option<&[String]>,
    ) -> Result<(), Error> {
        self.open()?;
        let Checked { round, own, weights, then } = self.checked(Upcoming { round, weights, then })?;
        let now = self.shared.now();
        {
            let _folding = self.folding_nothing();
            if let Some(means) = &self.shared.means {
                means.weigh_own(own);
            }
            let own = self.shared.means.as_ref().and_then(Means::own);
            let begun = self.shared.tell(|node| {
                node.weigh_own(own);
                node.begin(now, round, &weights, then.as_deref(), to)
            });
            self.shared.free(&begun.map_err(out_of_order)?);
        }
        let mut under = lock(&self.under);
        *under = Under { requested: round, begun: now, ready: now, own, traffic: under.traffic };
        Ok(())
    }
}
