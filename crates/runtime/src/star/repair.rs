//! Stand-ins for parts of models and updates that did not arrive and are not sent again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use serde::Deserialize;
use thalweg_fold::{check_finite, FoldError, Policy};
use thalweg_wire::control::StandIn;
use thalweg_wire::{Layout, Ranges, Spread};

use crate::lock;

/// What happens to missing parts (the plan's section `[repair]`).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RepairRule {
    /// The policy that gives stand-ins for missing values.
    pub policy: StandIn,
    /// Missing parts are requested again until they arrive. Nothing stands in for them.
    pub resend: bool,
    /// Updates are sent in an order that scatters a run of lost bytes over its tensor.
    pub spread: bool,
    /// Tensors that must arrive completely, whatever the policy. Names may contain `*` and `?`.
    pub critical: Vec<String>,
    /// For each such name, the fraction of a tensor's bytes that may be missing. Losses beyond it are sent
    /// again.
    pub budgets: BTreeMap<String, f64>,
    /// For each such name, a fraction of a tensor's bytes. If more is lost on the way, the update is refused.
    pub refuse: BTreeMap<String, f64>,
}

impl Default for RepairRule {
    fn default() -> Self {
        Self {
            policy: StandIn::default(),
            resend: true,
            spread: false,
            critical: Vec::new(),
            budgets: BTreeMap::new(),
            refuse: BTreeMap::new(),
        }
    }
}

impl RepairRule {
    /// The policy that gives stand-ins for missing parts; `None` if these are requested again.
    pub fn stand_in(&self) -> Option<StandIn> {
        (!self.resend).then_some(self.policy)
    }

    /// The order on the wire for a seed, if it is not the model's order.
    pub fn order(&self, seed: u64) -> Option<Spread> {
        self.spread.then(|| Spread::new(seed))
    }
}

/// The server's side: fills in staged updates.
#[derive(Default)]
pub(crate) struct Filler {
    policy: Policy,
    /// Each client's last update as it was folded, if the policy needs it.
    last: Option<Mutex<HashMap<u32, Vec<u8>>>>,
}

impl Filler {
    pub fn new(stand_in: Option<StandIn>) -> Self {
        let policy = stand_in.map(Policy::from).unwrap_or_default();
        Self { policy, last: (policy == Policy::Last).then(Mutex::default) }
    }

    /// Whether updates without holes must be kept too.
    pub fn keeps_updates(&self) -> bool {
        self.last.is_some()
    }

    /// Whether values of the global model may stand in.
    pub fn reads_global(&self) -> bool {
        !matches!(self.policy, Policy::Renormalise | Policy::Zero)
    }

    /// Forgets the last filled-in update of this sender: it was not folded, so it must not stand in for a
    /// later one.
    pub fn forget(&self, sender: u32) {
        if let Some(last) = &self.last {
            lock(last).remove(&sender);
        }
    }

    /// Fills in an update. Returns the ranges that are to be folded.
    pub fn fill(
        &self,
        layout: &Layout,
        sender: u32,
        update: &mut [u8],
        holes: &Ranges,
        global: &[u8],
    ) -> Result<Ranges, String> {
        let words = |error: FoldError| error.to_string();
        let Some(last) = &self.last else {
            let present = self.policy.fill(layout, update, holes, global, None).map_err(words)?;
            if self.policy == Policy::Rescale {
                check_finite(layout, 0, update).map_err(|defect| format!("rescaled, it holds {defect}"))?;
            }
            return Ok(present);
        };
        let earlier = lock(last).remove(&sender);
        let present = self.policy.fill(layout, update, holes, global, earlier.as_deref()).map_err(words)?;
        let mut copy = earlier.unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(update);
        lock(last).insert(sender, copy);
        Ok(present)
    }
}

/// The client's side: fills in the model in its arena. Where nothing arrived, the arena holds the client's
/// own values.
///
/// The model is not a contribution to a mean. So there is nothing to renormalise or rescale, and own values
/// stay.
pub(crate) fn fill_model(
    layout: &Layout,
    model: &mut [u8],
    holes: &Ranges,
    stand_in: StandIn,
    last: Option<&[u8]>,
) -> Result<(), FoldError> {
    let policy = match stand_in {
        StandIn::Renormalise | StandIn::Rescale | StandIn::KeepLocal => return Ok(()),
        StandIn::Zero | StandIn::Last | StandIn::FedcommLegacy => Policy::from(stand_in),
    };
    let own = model.to_vec();
    policy.fill(layout, model, holes, &own, last).map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use thalweg_wire::{Dtype, Range};

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn values(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn holes() -> Ranges {
        std::iter::once(Range::new(4, 12)).collect()
    }

    #[test]
    fn a_model_is_mended_as_the_policy_says() {
        let layout = Layout::pack([("w", Dtype::F32, vec![4])]).unwrap();
        let old = bytes(&[5.0; 4]);
        for (stand_in, last, expected) in [
            (StandIn::Renormalise, None, [1.0, 7.0, 8.0, 4.0]),
            (StandIn::Rescale, None, [1.0, 7.0, 8.0, 4.0]),
            (StandIn::KeepLocal, None, [1.0, 7.0, 8.0, 4.0]),
            (StandIn::Zero, None, [1.0, 0.0, 0.0, 4.0]),
            (StandIn::Last, Some(&old[..]), [1.0, 5.0, 5.0, 4.0]),
            (StandIn::Last, None, [1.0, 7.0, 8.0, 4.0]),
            #[cfg(feature = "baselines")]
            (StandIn::FedcommLegacy, None, [1.0, 4.0, 0.0, 0.0]),
        ] {
            let mut model = bytes(&[1.0, 7.0, 8.0, 4.0]);
            fill_model(&layout, &mut model, &holes(), stand_in, last).unwrap();
            assert_eq!(values(&model), expected, "{stand_in:?}");
        }
    }

    #[test]
    fn each_client_has_its_own_last_update() {
        let layout = Layout::pack([("w", Dtype::F32, vec![4])]).unwrap();
        let filler = Filler::new(Some(StandIn::Last));
        let global = bytes(&[9.0; 4]);
        let fill = |sender, value, holes: &Ranges| {
            let mut update = bytes(&[value; 4]);
            let present = filler.fill(&layout, sender, &mut update, holes, &global).unwrap();
            assert_eq!(present.bytes(), 16);
            values(&update)
        };
        assert_eq!(fill(1, 1.0, &Ranges::new()), [1.0; 4]);
        assert_eq!(fill(2, 2.0, &holes()), [2.0, 9.0, 9.0, 2.0], "it has sent nothing before");
        assert_eq!(fill(1, 3.0, &holes()), [3.0, 1.0, 1.0, 3.0]);
        assert_eq!(fill(1, 4.0, &holes()), [4.0, 1.0, 1.0, 4.0], "as it was folded");
    }

    #[test]
    fn what_rescaling_makes_infinite_is_refused() {
        let layout = Layout::pack([("w", Dtype::F32, vec![4])]).unwrap();
        let filler = Filler::new(Some(StandIn::Rescale));
        let mut update = bytes(&[f32::MAX; 4]);
        let refused = filler.fill(&layout, 1, &mut update, &holes(), &bytes(&[0.0; 4])).unwrap_err();
        assert!(refused.contains("rescaled"), "{refused}");
    }
}
