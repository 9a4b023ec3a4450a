//! Runs the storms of `hostile` by seed, and bounds their memory.
//!
//! `THALWEG_FUZZ_PACKETS` is the number of packets (default: 200,000), `THALWEG_FUZZ_SEED` the seed.

use thalweg_rng::Rng;

use super::allocator;
use super::hostile::{storm, Outcome};

/// An endpoint with these bounds and its witness never need more memory than this.
const MEMORY: usize = 4 << 20;
/// Bytes of choices for one endpoint. They are enough for some thousand packets.
const CHOICES: usize = 16 << 10;

fn from_environment(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().expect("THALWEG_FUZZ_PACKETS and THALWEG_FUZZ_SEED are plain numbers")
}

fn add(all: &mut Outcome, one: &Outcome) {
    all.seen.iter_mut().zip(one.seen).for_each(|(all, one)| *all += one);
    let (all, one) = (&mut all.counters, &one.counters);
    all.packets += one.packets;
    all.senseless += one.senseless;
    all.checksum += one.checksum;
    all.forged += one.forged;
    all.outdated += one.outdated;
    all.stray += one.stray;
    all.evicted += one.evicted;
    all.crowded += one.crowded;
    all.gaps += one.gaps;
}

#[test]
fn hostile_packets_do_no_harm() {
    let count = from_environment("THALWEG_FUZZ_PACKETS", 200_000);
    let seed = from_environment("THALWEG_FUZZ_SEED", 1);
    let (mut all, mut most, mut storms) = (Outcome::default(), 0, 0);
    let mut bytes = vec![0; CHOICES];
    while all.counters.packets < count {
        let mut rng = Rng::new(&[seed, storms]);
        bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&rng.draw().to_le_bytes()));
        let (peak, one) = allocator::peak(|| storm(&bytes));
        most = most.max(peak);
        storms += 1;
        add(&mut all, &one);
    }
    let Outcome { seen, counters: c } = all;
    println!("{} packets of {count} in {storms} storms, {most} bytes at most, {c:?}", c.packets);
    println!("connected, pieces, holes, finished, ended, forged: {seen:?}");
    assert!(most < MEMORY, "{most} bytes");
    let others = [c.senseless, c.checksum, c.forged, c.outdated, c.stray, c.evicted, c.crowded, c.gaps];
    assert!(
        count < 100_000 || others.into_iter().chain(seen).all(|n| n > 20),
        "it gets everywhere: {c:?} {seen:?}"
    );
}
