//! Damaged messages for decoders, by seed: the stable counterpart of the libFuzzer targets in `fuzz/`.

#[path = "../../wire/tests/fuzz/mutate.rs"]
mod mutate;
#[allow(dead_code, missing_docs)] // of the tests of thalweg-wire, which need more of it
#[path = "../../wire/tests/fuzz/rng.rs"]
mod rng;

pub use mutate::repair;
pub use rng::Rng;

/// Messages that are made without [`FRAMES`].
const DEFAULT: u64 = 100_000;
const FRAMES: &str = "THALWEG_FUZZ_FRAMES";
const SEED: &str = "THALWEG_FUZZ_SEED";

/// Feeds `check` with the samples, then with damaged ones, always the same. `mend` may make a checksum fit again that
/// would hide the rest. `THALWEG_FUZZ_FRAMES` says how many, `THALWEG_FUZZ_SEED` which.
///
/// # Panics
/// Where `check` does; without samples.
pub fn damage(samples: &[Vec<u8>], mend: impl Fn(&mut Rng, &mut [u8]), check: impl Fn(&[u8])) {
    samples.iter().for_each(|sample| check(sample));
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let mut rng = Rng(number(SEED, 1));
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
