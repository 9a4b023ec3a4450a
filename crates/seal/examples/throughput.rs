//! Measures how fast streams are sealed and opened on one core. Run it by `cargo run --release -p
//! thalweg-seal --example throughput`. With `-- --json` it prints a line of JSON for each cell.
//!
//! Each cell is the fastest of several passes over 16 MiB, in GB/s of plaintext. Passes are short, so that at
//! least one is undisturbed.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use thalweg_seal::{Context, Stream, Streams, Suite};
use thalweg_wire::Ranges;

const BYTES: usize = 16 << 20;
const PASSES: usize = 20;

fn fastest(mut pass: impl FnMut() -> f64) -> f64 {
    let seconds = (0..PASSES).map(|_| pass()).fold(f64::INFINITY, f64::min);
    BYTES as f64 / seconds / 1e9
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn main() {
    let plain = vec![0x5a; BYTES];
    let (mut sealed, mut came, mut opened) = (Vec::new(), Vec::new(), vec![0; BYTES]);
    let json = std::env::args().any(|argument| argument == "--json");
    if !json {
        println!(
            "{:18} {:>7} {:>10} {:>10} {:>10}",
            "cipher", "record", "overhead", "seal GB/s", "open GB/s"
        );
    }
    for suite in Suite::ALL {
        for record in [1432, 16 << 10] {
            let context = Context { job: 1, round: 1, total: BYTES as u64, ..Context::default() };
            let stream: Stream = Streams::new(suite, &[1; 32], b"").only(b"bench", &context, record).unwrap();
            let seal = fastest(|| {
                sealed.clear();
                timed(|| stream.seal(&plain, &mut sealed).unwrap())
            });
            let open = fastest(|| {
                came.clone_from(&sealed);
                timed(|| assert!(stream.open(&mut came, &Ranges::new(), &mut opened).unwrap().is_whole()))
            });
            let (name, overhead) = (suite.name(), stream.grid().overhead());
            if json {
                println!(
                    r#"{{"cipher": "{name}", "record": {record}, "overhead": {overhead}, "seal": {seal}, "open": {open}}}"#
                );
            } else {
                println!("{name:18} {record:7} {:9.2}% {seal:10.2} {open:10.2}", 100.0 * overhead);
            }
        }
    }
}
