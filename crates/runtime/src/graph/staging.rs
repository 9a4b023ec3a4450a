//! Buffers for neighbours' models whose weights are not known yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::lock;

/// A model of which some bytes have arrived.
type Model = Arc<Mutex<Vec<u8>>>;

#[derive(Default)]
struct Places {
    /// The buffers, by iteration and by the neighbour's index.
    used: BTreeMap<(u32, usize), Model>,
    /// Buffers for reuse: touching fresh pages costs more time than receiving a model.
    free: Vec<Model>,
}

/// Buffers, one for each iteration and neighbour of which a chunk has arrived.
pub(crate) struct Stages {
    bytes: usize,
    places: Mutex<Places>,
}

impl Stages {
    /// Buffers for models of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, places: Mutex::default() }
    }

    /// The buffer of a neighbour's model. Bytes that have not arrived have no meaning.
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

    /// Frees the buffers of these iterations.
    pub fn free(&self, rounds: &[u32]) {
        let mut places = lock(&self.places);
        let used = std::mem::take(&mut places.used);
        let (over, left) = used.into_iter().partition(|((round, _), _)| rounds.contains(round));
        places.used = left;
        places.free.extend(BTreeMap::into_values(over));
    }

    /// Frees the buffers of iterations before `round`.
    pub fn free_below(&self, round: u32) {
        let mut places = lock(&self.places);
        let later = places.used.split_off(&(round, 0));
        let over = std::mem::replace(&mut places.used, later);
        places.free.extend(over.into_values());
    }
}
