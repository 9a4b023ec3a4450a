//! The way down with `compression.down`: the server sends rounded differences. This is the clients' model, and the
//! difference from its last version.

use std::sync::Mutex;
use std::time::Duration;

use thalweg_arena::{Arena, ArenaError, Claim};
use thalweg_layers::{down, Scheme};
use thalweg_proto::Version;
use thalweg_wire::{checksum, Layout};

use crate::{lock, Error};

/// The latest version of the clients' model.
#[derive(Default)]
struct State {
    /// How many versions there were.
    number: u32,
    /// Whether `held` has a model, made here or by an earlier server.
    is_set: bool,
}

/// The clients' model: the model that each client of a round has before it trains. It differs from the server's
/// model by what rounding has left out so far.
pub(crate) struct Down {
    scheme: Scheme,
    pub held: Arena,
    pub difference: Arena,
    state: Mutex<State>,
}

impl Down {
    /// # Errors
    /// If there is no memory for two more models.
    pub fn new(scheme: Scheme, layout: &Layout) -> Result<Self, Error> {
        let (held, difference) = (Arena::new(layout.bytes())?, Arena::new(layout.bytes())?);
        Ok(Self { scheme, held, difference, state: Mutex::default() })
    }

    /// Makes the next version of the clients' model. `claim` waits until memory that is being sent is free.
    ///
    /// # Errors
    /// The reason why the memory cannot be used.
    pub fn next(
        &self,
        layout: &Layout,
        model: &Arena,
        claim: impl Fn(&Arena) -> Result<Claim, Error>,
    ) -> Result<Version, Error> {
        let (mut held, mut difference) = (claim(&self.held)?, claim(&self.difference)?);
        let model = model.lend(model.range())?;
        let mut state = lock(&self.state);
        let has_difference =
            state.is_set && down::advance(self.scheme, layout, &model, &mut held, &mut difference);
        if !state.is_set {
            down::begin(layout, &model, &mut held);
        }
        *state = State { number: state.number.wrapping_add(1), is_set: true };
        Ok(Version { number: state.number, checksum: checksum(&held), has_difference })
    }

    /// The clients' model, once there is one.
    pub fn current(&self) -> Option<Arena> {
        lock(&self.state).is_set.then(|| self.held.clone())
    }

    /// Goes on with the clients' model of an earlier server.
    ///
    /// # Errors
    /// The reason why the memory cannot be used.
    pub fn resume(&self, held: &Arena) -> Result<(), ArenaError> {
        let given = held.lend(held.range())?;
        self.held.claim_within(self.held.range(), Duration::ZERO)?.copy_from_slice(&given);
        lock(&self.state).is_set = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use thalweg_wire::Dtype;

    use super::*;

    fn claim(arena: &Arena) -> Result<Claim, Error> {
        Ok(arena.claim(arena.range())?)
    }

    fn filled(layout: &Layout, value: impl Fn(usize) -> f32) -> Arena {
        let arena = Arena::new(layout.bytes()).unwrap();
        let mut bytes = arena.claim(arena.range()).unwrap();
        for (at, word) in bytes.chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&value(at).to_le_bytes());
        }
        drop(bytes);
        arena
    }

    fn bytes(arena: &Arena) -> Vec<u8> {
        arena.lend(arena.range()).unwrap().to_vec()
    }

    #[test]
    fn a_server_that_resumes_makes_the_versions_that_it_would_have_made() {
        let layout = Layout::pack([("w", Dtype::F32, vec![1024])]).unwrap();
        let models: Vec<Arena> =
            (0..6).map(|round| filled(&layout, move |at| (at * round) as f32 / 7.0)).collect();
        let (whole, mut part) =
            (Down::new(Scheme::Int4, &layout).unwrap(), Down::new(Scheme::Int4, &layout).unwrap());
        assert!(whole.current().is_none());
        for (round, model) in models.iter().enumerate() {
            if round == 3 {
                let kept = filled(&layout, |_| 0.0);
                kept.claim(kept.range()).unwrap().copy_from_slice(&bytes(&part.current().unwrap()));
                part = Down::new(Scheme::Int4, &layout).unwrap();
                part.resume(&kept).unwrap();
            }
            let (one, other) =
                (whole.next(&layout, model, claim).unwrap(), part.next(&layout, model, claim).unwrap());
            assert_eq!(one.checksum, other.checksum, "round {round}");
            assert_eq!((one.has_difference, other.has_difference), (round > 0, round > 0));
            assert_eq!(bytes(&whole.current().unwrap()), bytes(&part.current().unwrap()));
            assert_eq!(one.number, round as u32 + 1);
        }
        assert_ne!(bytes(&whole.held), bytes(&models[5]), "4 bits leave something out");
    }
}
