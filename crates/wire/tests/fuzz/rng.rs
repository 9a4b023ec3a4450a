//! A seeded random number generator: SplitMix64.

use thalweg_wire::Range;

pub struct Rng(pub u64);

impl Rng {
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.any() % end.max(1) as u64) as usize
    }

    /// A random number whose number of bits is random, so that small numbers are as frequent as large ones.
    pub fn number(&mut self) -> u64 {
        let shift = self.any() % 64;
        self.any() >> shift
    }

    pub fn range(&mut self) -> Range {
        let (a, b) = (self.number(), self.number());
        Range::new(a.min(b), a.max(b))
    }

    pub fn text(&mut self, most: usize) -> String {
        let length = self.below(most + 1);
        (0..length).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.any() as u8)
    }
}
