//! The sums of the open iterations, and mixing them into the node's own model.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use thalweg_fold::{Accumulator, Precision, Replacement};
use thalweg_proto as proto;
use thalweg_proto::{Mixing, Portion};
use thalweg_wire::{Layout, Ranges};

use super::node::{Node, LOAN_TIMEOUT};
use super::options::MixingRule;
use crate::mean::{check_means, take_mean};
use crate::star::written;
use crate::{lock, Error, Kind};

#[derive(Default)]
struct Places {
    used: BTreeMap<u32, Arc<Accumulator>>,
    /// Accumulators for reuse: touching fresh pages costs more time than receiving a model.
    free: Vec<Arc<Accumulator>>,
}

/// Accumulators, one for each iteration of which a chunk has arrived.
pub(crate) struct Slots {
    layout: Arc<Layout>,
    precision: Precision,
    places: Mutex<Places>,
}

impl Slots {
    pub fn new(layout: Arc<Layout>, precision: Precision) -> Self {
        Self { layout, precision, places: Mutex::default() }
    }

    /// The accumulator of an iteration. If there is none yet, assigns a free or a new one.
    pub fn of(&self, round: u32) -> Arc<Accumulator> {
        let mut places = lock(&self.places);
        if let Some(sums) = places.used.get(&round) {
            return sums.clone();
        }
        let sums = places
            .free
            .pop()
            .unwrap_or_else(|| Arc::new(Accumulator::new(self.layout.clone(), self.precision)));
        places.used.insert(round, sums.clone());
        sums
    }

    /// The accumulator of an iteration; `None` if no chunk of it has arrived.
    pub fn get(&self, round: u32) -> Option<Arc<Accumulator>> {
        lock(&self.places).used.get(&round).cloned()
    }

    /// Resets the sums of these iterations, and frees their accumulators.
    pub fn free(&self, rounds: &[u32]) {
        let mut places = lock(&self.places);
        for sums in rounds.iter().filter_map(|round| places.used.remove(round)).collect::<Vec<_>>() {
            sums.reset();
            places.free.push(sums);
        }
    }

    /// Resets the sums of all iterations before `round`, and frees their accumulators. The caller ensures
    /// that no chunk is being added to them.
    pub fn free_below(&self, round: u32) {
        let mut places = lock(&self.places);
        let later = places.used.split_off(&round);
        for (_, sums) in std::mem::replace(&mut places.used, later) {
            sums.reset();
            places.free.push(sums);
        }
    }
}

/// Mixes the neighbours' sums into this node's model. Returns the weight that this node's model had, averaged
/// over its bytes.
///
/// `rule` decides that weight for each element. Under [`MixingRule::Renormalise`] it is `own`, before all
/// weights are scaled to a sum of 1. Under the other rules it is 1 minus the neighbours' weights that
/// arrived. With `fresh` it is 0 wherever a neighbour's bytes arrived. Under `Renormalise`, the sums of the
/// ranges `averaged` already include this node's model.
///
/// # Errors
/// The reason, if the sums give no model or this node's model is not finite. The model is unchanged then.
pub(crate) fn mix(
    sums: &Accumulator,
    model: &mut [u8],
    rule: MixingRule,
    own: f64,
    averaged: &Ranges,
    fresh: bool,
) -> Result<f64, String> {
    let text = |error: thalweg_fold::FoldError| error.to_string();
    let total = model.len().max(1) as f64;
    let mut given = 0.0;
    let mut present = Ranges::new();
    for (bytes, weight) in sums.weights().map_err(text)? {
        given += match rule {
            _ if fresh => bytes.len() as f64,
            MixingRule::Complement | MixingRule::Paper | MixingRule::Symmetric => {
                bytes.len() as f64 * weight.min(1.0)
            }
            MixingRule::Renormalise => {
                let neighbours: u64 = averaged.missing_in(bytes).iter().map(|range| range.len()).sum();
                let with_own = (bytes.len() - neighbours) as f64;
                neighbours as f64 * weight / (weight + own) + with_own * (weight - own) / weight
            }
        };
        present.insert(bytes);
    }
    let repair = match rule {
        _ if fresh => Replacement::KeepLocal,
        MixingRule::Complement | MixingRule::Paper | MixingRule::Symmetric => Replacement::Complement,
        MixingRule::Renormalise => {
            let present: Ranges = present.iter().flat_map(|range| averaged.missing_in(range)).collect();
            for range in present.iter() {
                let bytes = &model[range.start as usize..range.end as usize];
                sums.check(range.start, bytes, own).map_err(text)?;
            }
            sums.fold_ranges(model, &present, own).map_err(text)?;
            Replacement::KeepLocal
        }
    };
    check_means(std::slice::from_ref(sums))?;
    if repair == Replacement::Complement {
        sums.check_own(0, model).map_err(|error| format!("of the own model, {error}"))?;
    }
    take_mean(std::slice::from_ref(sums), model, repair)?;
    Ok(1.0 - given / total)
}

impl Node {
    /// Adds the neighbours' models that were put aside, with the weights that are known now.
    fn add_portions(&self, sums: &Accumulator, round: u32) -> Result<(), String> {
        let Some(stages) = &self.shared.stages else { return Ok(()) };
        for Portion { peer, weight, ranges } in self.shared.look(proto::Node::portions) {
            let model = stages.of(round, peer);
            let added = sums.fold_ranges(&lock(&model), &ranges, weight);
            added.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Makes the mean of all models the own model. Returns the own model's weight in it.
    fn take_means(&self, round: u32) -> Result<f64, String> {
        let means = self.shared.means.as_ref().ok_or("no means were kept")?;
        let (sent, nodes) = self.shared.look(|node| (node.sent_ranges(round), node.group_size(round)));
        let mut model =
            self.arena.claim_within(self.arena.range(), LOAN_TIMEOUT).map_err(|e| e.to_string())?;
        means.take(&sent, &mut model)?;
        let share = sent.bytes() as f64 / (model.len().max(1)) as f64;
        Ok(1.0 - share * (1.0 - 1.0 / nodes as f64))
    }

    /// Mixes an iteration's sums into the own model. Returns the report as JSON.
    ///
    /// # Errors
    /// `round` if the sums give no model.
    pub(super) fn mix(&self, mixing: Mixing) -> Result<String, Error> {
        self.shared.settle_folding();
        let over = self.shared.now();
        let own = lock(&self.under).own;
        let averaged = self.shared.look(|node| node.averaged_ranges().clone());
        let mixed = match self.shared.slots.get(mixing.round) {
            _ if mixing.by_segments => self.take_means(mixing.round),
            None => Ok(1.0),
            Some(sums) => self.add_portions(&sums, mixing.round).and_then(|()| {
                let model = self.arena.claim_within(self.arena.range(), LOAN_TIMEOUT);
                let rule = self.options.mixing;
                model
                    .map_err(|e| e.to_string())
                    .and_then(|mut model| mix(&sums, &mut model, rule, own, &averaged, mixing.fresh))
            }),
        };
        self.shared.free_below(mixing.round.saturating_add(1));
        let (exchanges, dropped) = self.shared.tell(|node| (node.mixed(), node.dropped()));
        let weight = mixed.map_err(|reason| {
            let what = format!("iteration {} gives no model: {reason}", mixing.round);
            Error::new(Kind::Round, "mix", what)
        })?;
        Ok(written(&self.report(&mixing, &exchanges, dropped, weight, over)))
    }
}

#[cfg(test)]
mod tests {
    use thalweg_wire::{Dtype, Range};

    use super::*;

    /// Three neighbours' models of 1.0, and in the first half of the bytes this node's model of 0.0 too.
    #[test]
    fn the_reported_weight_is_the_same_where_the_sums_have_this_nodes_model() {
        let layout = Arc::new(Layout::pack([("w", Dtype::F32, vec![32])]).unwrap());
        let sums = Accumulator::new(layout.clone(), Precision::default());
        let (ones, mut model) = (1.0f32.to_le_bytes().repeat(32), vec![0; 128]);
        for _ in 0..3 {
            sums.fold_ranges(&ones, &Ranges::full(128), 0.25).unwrap();
        }
        let mut averaged = Ranges::new();
        averaged.insert(Range::new(0, 64));
        sums.fold_ranges(&model, &averaged, 0.25).unwrap();
        let own = mix(&sums, &mut model, MixingRule::Renormalise, 0.25, &averaged, false).unwrap();
        assert!((own - 0.25).abs() < 1e-12, "{own}");
        assert_eq!(model, 0.75f32.to_le_bytes().repeat(32));
    }
}
