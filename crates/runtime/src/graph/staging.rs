//! Neighbours' models whose weight is not known yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::lock;

/// A model's bytes, of which some have come.
type Model = Arc<Mutex<Vec<u8>>>;

#[derive(Default)]
struct Places {
    /// By iteration and the neighbour's place.
    used: BTreeMap<(u32, usize), Model>,
    /// Kept, since fresh pages cost more to touch than a model costs to receive.
    free: Vec<Model>,
}

/// A buffer for each neighbour's model of each iteration of which anything came.
pub(crate) struct Stages {
    bytes: usize,
    places: Mutex<Places>,
}

impl Stages {
    /// For models of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, places: Mutex::default() }
    }

    /// A neighbour's model of an iteration. What has not come of it is anything.
    pub fn of(&self, round: u32, peer: usize) -> Model {
        let mut places = lock(&self.places);
        if let Some(model) = places.used.get(&(round, peer)) {
            return model.clone();
        }
        let fresh = || Arc::new(Mutex::new(vec![0; self.bytes]));
        let model = places.free.pop().unwrap_or_else(fresh);
        places.used.insert((round, peer), model.clone());
        model
    }

    /// Frees the stages of these iterations.
    pub fn free(&self, rounds: &[u32]) {
        let mut places = lock(&self.places);
        let used = std::mem::take(&mut places.used);
        let (over, left) = used.into_iter().partition(|((round, _), _)| rounds.contains(round));
        places.used = left;
        places.free.extend(BTreeMap::into_values(over));
    }

    /// Forgets what came of earlier iterations.
    pub fn free_below(&self, round: u32) {
        let mut places = lock(&self.places);
        let later = places.used.split_off(&(round, 0));
        let over = std::mem::replace(&mut places.used, later);
        places.free.extend(over.into_values());
    }
}
