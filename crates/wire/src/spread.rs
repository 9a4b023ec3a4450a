//! An order of an update's elements on the wire in which bytes that are lost together are not neighbours in
//! the model.
//!
//! A lost packet takes a run of bytes from the wire. In the layout's order, this run would be most of one
//! filter, and the mean would learn nothing new about that filter. In the spread order, it is one cache line
//! of each of many filters. Only updates are sent in this order. All clients of a job use the same order, so
//! the server adds the updates as they arrive and restores the layout's order once, in the sum.
//!
//! Each tensor is divided into units of [`ALIGN`] bytes, which hold whole elements of any dtype. Unit `i` on
//! the wire is unit `(first + i * step) mod n` of the tensor's `n` units. `step` is close to the golden
//! section of `n` and coprime to it, so any run of units is spread about evenly (three-distance theorem).
//! `first` follows from the seed. The bytes after a tensor's last whole unit keep their place. Layout, dtypes
//! and the losses of each tensor are the same as without the spread.

use thalweg_rng::Rng;

use crate::{Layout, Tensor, ALIGN};

/// An order of an update's elements. Equal seeds give equal orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    seed: u64,
}

/// (sqrt(5) - 1) / 2, times 2^64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Spread {
    /// The order that belongs to a seed. The seed is not secret.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Copies `update` to `wire`, with its units in the order of sending.
    ///
    /// # Panics
    /// If `update` or `wire` does not have the layout's size.
    pub fn to_wire(self, layout: &Layout, update: &[u8], wire: &mut [u8]) {
        wire.copy_from_slice(update);
        self.units(layout, |sent, place| {
            wire[sent..sent + UNIT].copy_from_slice(&update[place..place + UNIT])
        });
    }

    /// Copies `wire`, whose units are in the order of sending, to `update` in the order of the layout. Undoes
    /// [`Spread::to_wire`].
    ///
    /// # Panics
    /// If `wire` or `update` does not have the layout's size.
    pub fn to_order(self, layout: &Layout, wire: &[u8], update: &mut [u8]) {
        update.copy_from_slice(wire);
        self.units(layout, |sent, place| {
            update[place..place + UNIT].copy_from_slice(&wire[sent..sent + UNIT])
        });
    }

    /// Calls `each` for every unit with its offset on the wire and its offset in the update.
    fn units(self, layout: &Layout, mut each: impl FnMut(usize, usize)) {
        let mut rng = Rng::seeded(self.seed);
        for tensor in layout.tensors() {
            let (count, base) = (units(tensor), tensor.offset as usize);
            let (step, mut unit) = (step(count), rng.draw().checked_rem(count).unwrap_or(0));
            for sent in 0..count as usize {
                each(base + sent * UNIT, base + unit as usize * UNIT);
                unit += step;
                if unit >= count {
                    unit -= count;
                }
            }
        }
    }
}

const UNIT: usize = ALIGN as usize;

fn units(tensor: &Tensor) -> u64 {
    tensor.range().len() / ALIGN
}

/// The smallest number from the golden section of `count` on that is below `count` and coprime to it. 0 if
/// `count` is less than 2.
fn step(count: u64) -> u64 {
    if count < 2 {
        return 0;
    }
    let golden = ((u128::from(count) * u128::from(GOLDEN)) >> 64) as u64;
    // The search always finds a step, because `count - 1` is coprime to `count`.
    (golden.max(1)..count).find(|&step| is_prime_to(step, count)).unwrap_or(1)
}

fn is_prime_to(mut a: u64, mut b: u64) -> bool {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Dtype;

    fn bytes(layout: &Layout) -> Vec<u8> {
        (0..layout.bytes()).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    fn sent(spread: Spread, layout: &Layout) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        spread.units(layout, |sent, place| found.push((sent, place)));
        found
    }

    #[test]
    fn bytes_lost_together_are_apart_in_the_tensor() {
        let layout = Layout::pack([("w", Dtype::F32, vec![512, 256, 3, 3])]).unwrap();
        let units = sent(Spread::new(3), &layout);
        // A full TCP segment has 23 units. Evenly spread, they would be 1/23 of the tensor apart.
        for lost in units.chunks(23).filter(|lost| lost.len() == 23) {
            let mut places: Vec<usize> = lost.iter().map(|(_, place)| *place).collect();
            places.sort_unstable();
            let least = places.windows(2).map(|two| two[1] - two[0]).min().unwrap();
            assert!(least * 23 * 3 > layout.bytes() as usize, "{least} bytes apart");
        }
    }

    #[test]
    fn another_seed_is_another_order_and_the_same_one_the_same() {
        let layout = Layout::pack([("w", Dtype::F32, vec![4096]), ("v", Dtype::F32, vec![4096])]).unwrap();
        let [one, again, other] = [1, 1, 2].map(|seed| sent(Spread::new(seed), &layout));
        assert_eq!(one, again);
        assert_ne!(one, other);
        assert_ne!(one[0].1, one[256].1 - 4 * 4096, "each tensor begins elsewhere");
    }

    #[test]
    fn what_is_no_whole_unit_stays() {
        let layout = Layout::pack([("bias", Dtype::F32, vec![10]), ("w", Dtype::F16, vec![100])]).unwrap();
        let update = bytes(&layout);
        let mut wire = vec![0; update.len()];
        Spread::new(9).to_wire(&layout, &update, &mut wire);
        assert_eq!((&wire[..64], &wire[64 + 192..]), (&update[..64], &update[64 + 192..]));
    }

    proptest! {
        /// Each unit is sent once, stays within its tensor, and returns to its place.
        #[test]
        fn it_is_a_permutation_within_each_tensor(seed in any::<u64>(), sizes in prop::collection::vec(0..900_u64, 1..6)) {
            let tensors = sizes.iter().enumerate().map(|(i, size)| (format!("t{i}"), Dtype::F32, vec![*size]));
            let layout = Layout::pack(tensors).unwrap();
            let (spread, update) = (Spread::new(seed), bytes(&layout));
            let units = sent(spread, &layout);
            for tensor in layout.tensors() {
                let inside = |at: &usize| tensor.offset as usize <= *at && at + UNIT <= tensor.range().end as usize;
                let (from, to): (BTreeSet<usize>, BTreeSet<usize>) =
                    units.iter().filter(|(sent, _)| inside(sent)).copied().unzip();
                prop_assert_eq!(from.len() as u64, super::units(tensor));
                prop_assert!(from == to);
            }
            let (mut wire, mut back) = (vec![0; update.len()], vec![0; update.len()]);
            spread.to_wire(&layout, &update, &mut wire);
            spread.to_order(&layout, &wire, &mut back);
            prop_assert_eq!(back, update);
        }
    }
}
