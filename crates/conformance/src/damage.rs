//! Feeds damaged messages to decoders, by seed: the counterpart on stable Rust of the libFuzzer targets in
//! `fuzz/`.

#[path = "../../wire/tests/fuzz/mutate.rs"]
mod mutate;
#[allow(dead_code, missing_docs)] // the tests of thalweg-wire use all of it
#[path = "../../wire/tests/fuzz/rng.rs"]
mod rng;

pub use mutate::repair;
pub use rng::Rng;

/// Number of damaged messages if [`FRAMES`] is not set.
const DEFAULT: u64 = 100_000;
const FRAMES: &str = "THALWEG_FUZZ_FRAMES";
const SEED: &str = "THALWEG_FUZZ_SEED";

/// Calls `check` with each sample, then with damaged samples, which are the same in each run. `mend` may
/// correct a checksum that would hide all other damage. The variable `THALWEG_FUZZ_FRAMES` sets how many,
/// `THALWEG_FUZZ_SEED` which ones.
///
/// # Panics
/// If `check` panics, or there are no samples.
pub fn damage(samples: &[Vec<u8>], mend: impl Fn(&mut Rng, &mut [u8]), check: impl Fn(&[u8])) {
    samples.iter().for_each(|sample| check(sample));
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let mut rng = Rng::new(number(SEED, 1));
    let mut buffer = Vec::new();
    for _ in 0..number(FRAMES, DEFAULT) {
        let (one, other) = (rng.below(samples.len()), rng.below(samples.len()));
        buffer.clear();
        buffer.extend_from_slice(&samples[one]);
        mutate::mutate(&mut rng, &mut buffer, &samples[other]);
        mend(&mut rng, &mut buffer);
        check(&buffer);
    }
}
