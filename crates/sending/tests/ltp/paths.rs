//! Tests of paths with jitter, reordering, bursts or much loss. A table under version control has the times
//! and the waste.
//!
//! `THALWEG_REWRITE=1 cargo test -p thalweg-sending --test ltp paths` writes the table anew.

use std::fmt::Write;

use thalweg_linkmodel::{Burst, Shape};
use thalweg_sending::ltp::Rule;
use thalweg_sending::Time;

use super::recorded::assert_recorded;
use super::world::{World, AROUND, PAYLOAD};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/ltp-paths.txt");
const SEEDS: u64 = 5;
/// A transfer that takes longer counts as failed.
const LIMIT: Time = Time::from_secs(60);

/// When the loss begins on paths that are good at first.
const LOSS_BEGINS: Time = Time::from_secs(2);

/// A path: its name, the link to the receiver until [`LOSS_BEGINS`] and after it, the link back, and the
/// chunks that are sent.
struct Path {
    name: &'static str,
    first: Shape,
    there: Shape,
    back: Shape,
    chunks: u32,
}

/// A path of `rate` Mbit/s. `change` makes both directions bad, `lossy` only the one to the receiver.
fn path(
    name: &'static str,
    [megabits, rtt_ms, mib]: [u32; 3],
    change: impl Fn(Shape) -> Shape,
    lossy: impl Fn(Shape) -> Shape,
) -> Path {
    let (rate, delay) = (u64::from(megabits) * 1_000_000, f64::from(rtt_ms) / 2000.0);
    let both = change(Shape { rate: Some(rate), delay, ..Shape::default() });
    let chunks = (mib << 20).div_ceil(PAYLOAD);
    let there = lossy(both.clone());
    Path { name, first: there.clone(), there, back: Shape { rate: None, ..both }, chunks }
}

fn paths() -> Vec<Path> {
    let same = |shape: Shape| shape;
    let loss = |loss: f64| move |shape: Shape| Shape { loss, ..shape };
    let jitter = |keep_order: bool| move |shape: Shape| Shape { jitter: 0.05, keep_order, ..shape };
    let overtaking = |shape: Shape| Shape { reorder: 0.01, ..shape };
    // A quarter of the BDP at 100 Mbit/s and 40 ms.
    let short = |shape: Shape| Shape { queue_bytes: Some(125_000), ..shape };
    let burst = Burst { enter: 0.001, leave: 0.1, loss_bad: 1.0, loss_good: 0.0 };
    let bursts = move |shape: Shape| Shape { burst: Some(burst), ..shape };
    let later = path("70 %, from 2 s on", [20, 400, 4], same, loss(0.7));
    vec![
        path("no loss, no jitter", [20, 200, 4], same, same),
        path("jitter 50 ms, order kept", [20, 200, 4], jitter(true), same),
        path("jitter 50 ms", [20, 200, 4], jitter(false), same),
        path("20 %", [20, 200, 4], same, loss(0.2)),
        path("40 %", [20, 400, 4], same, loss(0.4)),
        path("70 %", [20, 400, 4], same, loss(0.7)),
        path("50 % both ways", [20, 40, 1], loss(0.5), same),
        path("70 % both ways", [20, 40, 1], loss(0.7), same),
        path("80 % both ways", [20, 40, 1], loss(0.8), same),
        Path { first: path("", [20, 400, 4], same, same).there, ..later },
        path("10 %", [50, 40, 8], same, loss(0.1)),
        path("1 % overtake", [100, 40, 8], overtaking, same),
        path("bursts, short queue", [100, 40, 8], short, bursts),
        path("0.3 %", [250, 80, 32], same, loss(0.003)),
        path("no loss, no jitter", [250, 80, 32], same, same),
    ]
}

fn row(path: &Path) -> String {
    let (mut seconds, mut again, mut wasted, mut full) = (Vec::new(), 0, 0, 0);
    for seed in 0..SEEDS {
        let mut world = World::between(&path.first, &path.back, &[Rule::default()], seed);
        world.begin(0, path.chunks, |n| n == 0 || n + 1 == path.chunks);
        world.run(LOSS_BEGINS);
        world.change(&path.there);
        world.run(LIMIT);
        let party = &world.parties[0];
        if let Some((at, ended)) = party.ended {
            assert_eq!(party.received.len(), path.chunks as usize, "{}", path.name);
            seconds.push(at.as_secs_f64());
            again += ended.again;
        }
        wasted += party.packets.saturating_sub(u64::from(path.chunks) + world.lost + world.full);
        full += world.full;
    }
    assert_eq!(seconds.len() as u64, SEEDS, "{}: a sender never ends", path.name);
    let rate = path.there.rate.expect("every path has one") as f64;
    let ideal = f64::from(path.chunks * (PAYLOAD + AROUND)) * 8.0 / rate + 2.0 * path.there.delay;
    let mean = seconds.iter().fold(0.0, |sum, at| sum + at) / seconds.len().max(1) as f64;
    let longest = seconds.iter().copied().fold(0.0, f64::max);
    format!(
        "{:>6} {:>4} {:>7} {:<25} {:>5} {mean:>8.3} {longest:>8.3} {:>7.1} {:>10} {:>7} {:>6}",
        rate / 1e6,
        path.there.delay * 2e3,
        path.chunks,
        path.name,
        SEEDS - seconds.len() as u64,
        if mean > 0.0 { 100.0 * ideal / mean } else { 0.0 },
        again / SEEDS,
        wasted / SEEDS,
        full / SEEDS,
    )
}

fn table() -> String {
    let mut table = String::from(
        "One update over a bad path, from its first packet to its end: means of 5 seeds, and the longest. Loss is on the way\n\
         there, in front of the queue of 100 ms; jitter and overtaking are on both ways. Failed: not at its end after 60 s.\n\
         Ideal: all packets once at the rate, and a round trip. Wasted: packets beside one that came for each chunk.\n\n\
         Mbit/s  rtt  chunks path                     failed  seconds  longest % ideal sent again  wasted   full\n",
    );
    for path in paths() {
        writeln!(table, "{}", row(&path)).expect("a string grows");
    }
    table
}

#[test]
fn bad_paths_are_as_recorded() {
    assert_recorded(TABLE, &table());
}
