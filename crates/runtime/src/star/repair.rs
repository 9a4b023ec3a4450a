//! What stands in for parts of models and updates that did not come and are not asked for again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use serde::Deserialize;
use thalweg_fold::{check_finite, FoldError, Policy};
use thalweg_wire::control::StandIn;
use thalweg_wire::{Layout, Ranges, Spread};

use crate::lock;

/// What happens to what did not come.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RepairRule {
    /// What stands in for it.
    pub policy: StandIn,
    /// It is asked for again until it is there; nothing stands in for anything.
    pub resend: bool,
    /// Updates are sent in an order in which bytes lost together are apart in the model.
    pub spread: bool,
    /// Tensors of which nothing may be missing, whatever stands in: names with `*` and `?`.
    pub critical: Vec<String>,
    /// By such names, the share of a tensor's bytes that may be missing; what is lost beyond it is sent again.
    pub budgets: BTreeMap<String, f64>,
    /// By such names, the share of a tensor's bytes whose loss on the way refuses an update.
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
    /// What stands in for parts that did not come; `None`: they are asked for again.
    pub fn stand_in(&self) -> Option<StandIn> {
        (!self.resend).then_some(self.policy)
    }

    /// The order of a seed, if updates are not sent as they are.
    pub fn order(&self, seed: u64) -> Option<Spread> {
        self.spread.then(|| Spread::new(seed))
    }
}

/// The server's side: mends staged updates.
#[derive(Default)]
pub(crate) struct Mender {
    policy: Policy,
    /// Each client's last update as it was folded, if the policy wants it.
    last: Option<Mutex<HashMap<u32, Vec<u8>>>>,
}

impl Mender {
    pub fn new(stand_in: Option<StandIn>) -> Self {
        let policy = stand_in.map(Policy::from).unwrap_or_default();
        Self { policy, last: (policy == Policy::Last).then(Mutex::default) }
    }

    /// Whether an update without holes is of interest too.
    pub fn keeps_updates(&self) -> bool {
        self.last.is_some()
    }

    /// Whether what stands in may be the global model's.
    pub fn reads_global(&self) -> bool {
        !matches!(self.policy, Policy::Renormalise | Policy::Zero)
    }

    /// The update that was mended last was not folded: it stands in for nothing.
    pub fn forget(&self, sender: u32) {
        if let Some(last) = &self.last {
            lock(last).remove(&sender);
        }
    }

    /// Mends an update; returns what of it is to be folded.
    pub fn mend(
        &self,
        layout: &Layout,
        sender: u32,
        update: &mut [u8],
        holes: &Ranges,
        global: &[u8],
    ) -> Result<Ranges, String> {
        let words = |error: FoldError| error.to_string();
        let Some(last) = &self.last else {
            let came = self.policy.mend(layout, update, holes, global, None).map_err(words)?;
            if self.policy == Policy::Rescale {
                check_finite(layout, 0, update).map_err(|defect| format!("rescaled, it holds {defect}"))?;
            }
            return Ok(came);
        };
        let earlier = lock(last).remove(&sender);
        let came = self.policy.mend(layout, update, holes, global, earlier.as_deref()).map_err(words)?;
        let mut copy = earlier.unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(update);
        lock(last).insert(sender, copy);
        Ok(came)
    }
}

/// The client's side: mends the model in its arena, which holds the client's own values where nothing came.
///
/// The model is no contribution to a mean, so that there is nothing to renormalise or to rescale: own values stay.
pub(crate) fn mend_model(
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
    policy.mend(layout, model, holes, &own, last).map(drop)
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
            (StandIn::FedcommLegacy, None, [1.0, 4.0, 0.0, 0.0]),
        ] {
            let mut model = bytes(&[1.0, 7.0, 8.0, 4.0]);
            mend_model(&layout, &mut model, &holes(), stand_in, last).unwrap();
            assert_eq!(values(&model), expected, "{stand_in:?}");
        }
    }

    #[test]
    fn each_client_has_its_own_last_update() {
        let layout = Layout::pack([("w", Dtype::F32, vec![4])]).unwrap();
        let mender = Mender::new(Some(StandIn::Last));
        let global = bytes(&[9.0; 4]);
        let mend = |sender, value, holes: &Ranges| {
            let mut update = bytes(&[value; 4]);
            let came = mender.mend(&layout, sender, &mut update, holes, &global).unwrap();
            assert_eq!(came.bytes(), 16);
            values(&update)
        };
        assert_eq!(mend(1, 1.0, &Ranges::new()), [1.0; 4]);
        assert_eq!(mend(2, 2.0, &holes()), [2.0, 9.0, 9.0, 2.0], "it has sent nothing before");
        assert_eq!(mend(1, 3.0, &holes()), [3.0, 1.0, 1.0, 3.0]);
        assert_eq!(mend(1, 4.0, &holes()), [4.0, 1.0, 1.0, 4.0], "as it was folded");
    }

    #[test]
    fn what_rescaling_makes_infinite_is_refused() {
        let layout = Layout::pack([("w", Dtype::F32, vec![4])]).unwrap();
        let mender = Mender::new(Some(StandIn::Rescale));
        let mut update = bytes(&[f32::MAX; 4]);
        let refused = mender.mend(&layout, 1, &mut update, &holes(), &bytes(&[0.0; 4])).unwrap_err();
        assert!(refused.contains("rescaled"), "{refused}");
    }
}
