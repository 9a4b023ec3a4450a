//! Seeded random numbers for everything that has to happen the same way twice.
//!
//! SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 17): a few lines whose
//! sequence no release of anything can change, so that a seed means the same for ever.
#![forbid(unsafe_code)]

/// A seeded sequence of numbers.
#[derive(Debug, Clone, Default)]
pub struct Rng(u64);

impl Rng {
    /// A sequence of its own for each list of numbers.
    pub fn new(seeds: &[u64]) -> Self {
        let mix = |state: u64, &seed: &u64| Rng(state ^ seed).draw();
        Self(seeds.iter().fold(0, mix))
    }

    /// The sequence of SplitMix64 that starts at this state.
    pub const fn seeded(state: u64) -> Self {
        Self(state)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether a chance of `probability` comes true.
    pub fn hits(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Evenly from 1 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        1 + self.draw() % most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_splitmix64() {
        let mut rng = Rng(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.draw()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn seeds_differ_by_every_number_and_its_place() {
        let first = |seeds: &[u64]| Rng::new(seeds).draw();
        let all = [first(&[1, 2, 3]), first(&[1, 3, 2]), first(&[2, 1, 3]), first(&[1, 2]), first(&[0, 0])];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
        assert_eq!(first(&[1, 2, 3]), first(&[1, 2, 3]));
    }

    #[test]
    fn probabilities_hold() {
        let mut rng = Rng::new(&[7]);
        let hits = (0..100_000).filter(|_| rng.hits(0.02)).count();
        assert!((1_800..2_200).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !rng.hits(0.0) && rng.hits(1.0)));
    }
}
