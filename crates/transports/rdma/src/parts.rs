//! A destination buffer that is split into parts while RDMA reads fill it.

use std::collections::BTreeMap;

use thalweg_arena::Claim;
use thalweg_wire::Range;

/// A claim. The device holds some of its parts while it reads into them.
pub(crate) struct Parts {
    start: u64,
    address: usize,
    length: u64,
    /// The parts that the device does not hold, by their offset in the claim.
    here: BTreeMap<u64, Claim>,
}

impl Parts {
    pub(crate) fn new(claim: Claim) -> Self {
        let (start, address, length) = (claim.range().start, claim.as_ptr() as usize, claim.len() as u64);
        Self { start, address, length, here: BTreeMap::from([(0, claim)]) }
    }

    /// Whether `part`, which is not empty, lies in this claim.
    pub(crate) fn has(&self, part: &Claim) -> bool {
        let at = part.as_ptr() as usize;
        at >= self.address && at - self.address < self.length as usize
    }

    /// Takes a range out; `None` if the range is empty or the device holds some of it.
    pub(crate) fn take(&mut self, range: Range) -> Option<Claim> {
        let (&at, claim) = self.here.range_mut(..=range.start).next_back()?;
        if at + (claim.len() as u64) < range.end || range.is_empty() {
            return None;
        }
        let mut claim = self.here.remove(&at)?;
        if at < range.start {
            let before = claim.split_to(range.start - at)?;
            self.here.insert(at, before);
        }
        let part = claim.split_to(range.len())?;
        if !claim.is_empty() {
            self.here.insert(range.end, claim);
        }
        Some(part)
    }

    /// Puts a part back and joins it with its neighbours.
    pub(crate) fn put(&mut self, mut part: Claim) {
        let mut at = part.range().start.saturating_sub(self.start);
        if let Some(next) = self.here.remove(&(at + part.len() as u64)) {
            let from = next.range().start.saturating_sub(self.start);
            if let Err(next) = part.join(next) {
                self.here.insert(from, next);
            }
        }
        if let Some((&before, _)) = self.here.range(..at).next_back() {
            if let Some(mut claim) = self.here.remove(&before) {
                match claim.join(part) {
                    Ok(()) => (at, part) = (before, claim),
                    Err(alone) => {
                        self.here.insert(before, claim);
                        part = alone;
                    }
                }
            }
        }
        self.here.insert(at, part);
    }

    /// The whole claim; `None` if the device still holds some of it.
    pub(crate) fn whole(mut self) -> Option<Claim> {
        self.here.remove(&0).filter(|claim| claim.len() as u64 == self.length)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use thalweg_arena::Arena;

    #[test]
    fn parts_come_back_in_any_order_and_are_one() {
        let arena = Arena::new(1_000).unwrap();
        let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]];
        for order in orders {
            let mut parts = Parts::new(arena.claim(Range::new(100, 500)).unwrap());
            let cuts =
                [(0, 50), (50, 200), (300, 400), (200, 300)].map(|(start, end)| Range::new(start, end));
            let mut taken = cuts.map(|cut| Some(parts.take(cut).unwrap()));
            assert!(cuts.iter().all(|&cut| parts.take(cut).is_none()), "taken twice");
            for at in order {
                let part = taken[at].take().unwrap();
                assert!(parts.has(&part));
                parts.put(part);
            }
            // The claim can be cut in another way after its parts have come back.
            let middle = parts.take(Range::new(120, 330)).unwrap();
            assert_eq!(middle.range(), Range::new(220, 430));
            parts.put(middle);
            assert_eq!(parts.whole().unwrap().range(), Range::new(100, 500));
        }
        let mut parts = Parts::new(arena.claim(Range::new(100, 500)).unwrap());
        let part = parts.take(Range::new(0, 10)).unwrap();
        assert!(parts.take(Range::new(390, 401)).is_none() && parts.take(Range::new(20, 20)).is_none());
        assert!(parts.whole().is_none(), "a part is missing");
        drop(part);
    }
}
