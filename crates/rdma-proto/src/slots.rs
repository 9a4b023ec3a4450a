//! The sender's view of the receiver's ring of commit records, and the limit on a receiver's grants.

use std::collections::HashMap;

/// The ring of slots at the receiver, one for each commit record, as the sender knows it. A pointer goes
/// round it (FedRDMA-E, section 3.2). Unlike there, a slot is reused only after the receiver has said that it
/// has read it.
#[derive(Debug)]
pub struct Slots {
    /// For each slot, the grant whose record is in it and may be unread.
    unread: Vec<Option<u64>>,
    next: usize,
    places: HashMap<u64, usize>,
}

impl Slots {
    /// A ring of `count` empty slots.
    pub fn new(count: usize) -> Self {
        Self { unread: vec![None; count], next: 0, places: HashMap::new() }
    }

    /// The next slot, for the record of `number`; `None` while that slot holds an unread record.
    pub fn take(&mut self, number: u64) -> Option<u32> {
        let at = self.next;
        let slot = self.unread.get_mut(at).filter(|slot| slot.is_none())?;
        *slot = Some(number);
        self.places.insert(number, at);
        self.next = (at + 1) % self.unread.len();
        Some(at as u32)
    }

    /// Frees the slot of `number`: the receiver has read its record, or never will, because the pair is lost.
    pub fn read(&mut self, number: u64) {
        if let Some(at) = self.places.remove(&number) {
            self.unread[at] = None;
        }
    }

    /// Frees all slots: the ring is new, so no record that was written before will be read.
    pub fn clear(&mut self) {
        *self = Self::new(self.unread.len());
    }
}

/// Limits a receiver's grants: their bytes and their number.
#[derive(Debug)]
pub struct Credits {
    bytes: u64,
    grants: usize,
    limits: (u64, usize),
}

impl Credits {
    /// Limits of `bytes` bytes and `grants` grants, with nothing granted yet.
    pub fn new(bytes: u64, grants: usize) -> Self {
        Self { bytes: 0, grants: 0, limits: (bytes, grants) }
    }

    /// Takes credit for a grant; false if there is not enough now. A single grant may exceed the limit of
    /// bytes.
    pub fn take(&mut self, bytes: u64) -> bool {
        let fits = self.grants == 0
            || (self.grants < self.limits.1 && self.bytes.saturating_add(bytes) <= self.limits.0);
        if fits {
            self.grants += 1;
            self.bytes = self.bytes.saturating_add(bytes);
        }
        fits
    }

    /// Returns the credit of a grant.
    pub fn give(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.grants = self.grants.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn credits_bound_bytes_and_grants() {
        let mut credits = Credits::new(100, 3);
        assert!(credits.take(900), "one is always possible");
        assert!(!credits.take(1));
        credits.give(900);
        assert!(credits.take(60) && credits.take(40) && !credits.take(1));
        credits.give(40);
        assert!(credits.take(10) && credits.take(0) && !credits.take(0), "three at most");
    }

    proptest! {
        /// A slow reader, and rings of few slots, down to one.
        #[test]
        fn no_slot_is_overwritten_unread(count in 1_usize..5, reads in prop::collection::vec(any::<bool>(), 1..200)) {
            let mut slots = Slots::new(count);
            let mut ring: Vec<Option<u64>> = vec![None; count];
            let (mut written, mut read) = (0_u64, 0_u64);
            for reads in reads {
                if reads && read < written {
                    ring.iter_mut().filter(|slot| **slot == Some(read)).for_each(|slot| *slot = None);
                    slots.read(read);
                    read += 1;
                } else if let Some(slot) = slots.take(written) {
                    let slot = &mut ring[slot as usize];
                    prop_assert_eq!(*slot, None, "an unread record would be gone");
                    *slot = Some(written);
                    written += 1;
                } else {
                    prop_assert_eq!(written - read, count as u64, "there was room");
                }
            }
        }
    }
}
