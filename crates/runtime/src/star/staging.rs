//! Complete updates that wait to be folded, in one arena each. Arenas are kept for the next round, because
//! touching fresh pages costs more time than receiving an update. The session's credits limit the number of
//! arenas in use.

use std::collections::HashMap;
use std::sync::Mutex;

use thalweg_arena::{Arena, Claim};
use thalweg_wire::Range;

use crate::lock;

#[derive(Default)]
struct Places {
    used: HashMap<u32, Arena>,
    free: Vec<Arena>,
}

/// The staging memory.
pub(crate) struct Staging {
    bytes: u64,
    places: Mutex<Places>,
}

impl Staging {
    /// Staging memory for updates of `bytes` bytes each.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, places: Mutex::default() }
    }

    /// A range of the sender's update, for writing. `None` while another chunk is being written there, or if
    /// no memory is left; the chunk is then requested again.
    pub fn claim(&self, sender: u32, range: Range) -> Option<Claim> {
        self.place(sender)?.claim(range).ok()
    }

    /// The sender's update. Bytes that did not arrive have no meaning. `None` if no memory is left.
    pub fn place(&self, sender: u32) -> Option<Arena> {
        let mut places = lock(&self.places);
        if !places.used.contains_key(&sender) {
            let arena = places.free.pop().map_or_else(|| Arena::new(self.bytes).ok(), Some)?;
            places.used.insert(sender, arena);
        }
        places.used.get(&sender).cloned()
    }

    /// Frees the sender's update.
    pub fn free(&self, sender: u32) {
        let mut places = lock(&self.places);
        if let Some(arena) = places.used.remove(&sender) {
            places.free.push(arena);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let staging = Staging::new(4096);
        let mut claim = staging.claim(1, Range::new(0, 64)).unwrap();
        claim[0] = 1;
        assert!(staging.claim(1, Range::new(0, 10)).is_none(), "being written");
        drop(claim);
        let first = staging.place(1).unwrap().as_ptr();
        staging.free(1);
        drop(staging.claim(2, Range::new(0, 64)).unwrap());
        assert_eq!(staging.place(2).unwrap().as_ptr(), first);
        assert_ne!(staging.place(1).unwrap().as_ptr(), first);
    }
}
