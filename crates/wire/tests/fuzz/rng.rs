//! Seeded random numbers, texts and ranges.

use thalweg_wire::Range;

pub struct Rng(thalweg_rng::Rng);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(thalweg_rng::Rng::seeded(seed))
    }

    pub fn any(&mut self) -> u64 {
        self.0.draw()
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
