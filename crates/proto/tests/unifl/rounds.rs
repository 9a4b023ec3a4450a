//! Rounds of many senders that share a path, and many flows at one endpoint.

use std::fmt::Write;

use thalweg_proto::emulation::Shape;
use thalweg_proto::unifl::{Config, Policy, Rate};
use thalweg_proto::Time;

use super::congestion::Kind;
use super::sender::Sender;
use super::table;
use super::world::World;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/unifl_rounds.txt");
const EACH: u64 = 3 << 20;
const SHARED: u64 = 60_000_000;

/// Eight senders with 50 Mbit/s each, 40 ms, over one link of 60 Mbit/s. Slowest against ideal, Jain's index of what has
/// come when the first is done, and what queues dropped.
fn round(mixed: bool, group: bool, loss: f64, seed: u64) -> (f64, f64, u64, f64) {
    let kind = |i: u8| if mixed && i.is_multiple_of(2) { Kind::Reno } else { Kind::Cubic };
    let senders = (0..8).map(|i| Sender::new(2 + i, kind(i), EACH)).collect();
    let queue = Some((SHARED as f64 / 8.0 * 0.04) as u64);
    let shared = Shape { rate: Some(SHARED), queue_bytes: queue, ..Shape::default() };
    let config = Config { flows: 8, ..table::config(0.0) };
    let mut world = World::new(config, senders, &table::link(40.0, loss), Some(shared), seed);
    if group {
        world = world.grouped();
    }
    world.run(Time::from_secs(60));
    assert!(world.apps.iter().all(|app| app.finished == Some(EACH)), "everybody finishes");
    let ends: Vec<f64> = world.ends.iter().flatten().map(Time::as_secs_f64).collect();
    assert_eq!(ends.len(), 8);
    let rates: Vec<f64> = ends.iter().map(|end| EACH as f64 / end).collect();
    let sum: f64 = rates.iter().sum();
    let jain = sum * sum / (8.0 * rates.iter().map(|r| r * r).sum::<f64>());
    let ideal = (8 * EACH) as f64 * 8.0 / (SHARED as f64 * 1448.0 / 1500.0);
    let missing: u64 = world.apps.iter().map(|app| app.missing()).sum();
    (ends.iter().copied().fold(0.0, f64::max) / ideal, jain, world.full, missing as f64 / (8 * EACH) as f64)
}

#[test]
fn rounds_are_as_recorded_and_fair() {
    let mut now = String::from(
        "Eight updates of 3 MiB at once, 50 Mbit/s and 40 ms each, over one link of 60 Mbit/s with a queue of 40 ms.\n\
         Round: the slowest one's time over the ideal. Jain: of the senders' rates.\n\n\
         senders  group loss %  round   jain holes %   full\n",
    );
    for mixed in [false, true] {
        for group in [false, true] {
            for loss in [0.0, 0.001, 0.01] {
                let (round, jain, full, missing) = round(mixed, group, loss, 11);
                let senders = if mixed { "mixed" } else { "cubic" };
                let (loss, missing) = (loss * 100.0, missing * 100.0);
                writeln!(
                    now,
                    "{senders:>7} {group:>6} {loss:>6.1} {round:>6.3} {jain:>6.3} {missing:>7.3} {full:>6}"
                )
                .expect("a string grows");
                assert!(round < 1.25 && jain > 0.9, "{now}");
            }
        }
    }
    if std::env::var_os("THALWEG_REWRITE").is_some() {
        std::fs::write(TABLE, &now).expect("the snapshot can be written");
    }
    assert_eq!(
        std::fs::read_to_string(TABLE).unwrap_or_default(),
        now,
        "if that is meant, rewrite the table"
    );
}

#[test]
fn hundreds_of_flows_on_one_endpoint() {
    let kind = |i: u8| if i.is_multiple_of(2) { Kind::Reno } else { Kind::Cubic };
    let senders = (0..200).map(|i| Sender::new(2 + i, kind(i), 40_000)).collect();
    let mut world = World::new(table::config(0.0), senders, &table::link(40.0, 0.01), None, 2);
    world.run(Time::from_secs(600));
    assert!(world.apps.iter().all(|app| app.finished == Some(40_000)));
    assert_eq!(world.endpoint.flows(), 200, "in CLOSE-WAIT until we close");
}

/// Trap 16: a masked flow beside an ordinary one, each Cubic, on one bottleneck.
#[test]
fn trap_16_an_ordinary_flow_keeps_its_part() {
    let senders = vec![Sender::new(2, Kind::Cubic, 1 << 30), Sender::new(3, Kind::Cubic, 1 << 30)];
    let shared = Shape { rate: Some(20_000_000), queue_bytes: Some(100_000), ..Shape::default() };
    let mut plain = Config { policy: Policy::critical(), rate: Rate::Fixed(4 << 20), ..table::config(0.0) };
    plain.undo.eifel = false;
    let path = table::link(40.0, 0.0);
    let mut world = World::new(table::config(0.0), senders, &path, Some(shared), 4).apart(1, plain);
    let mut came = |seconds| {
        world.run(Time::from_secs(seconds));
        [0, 1].map(|of| world.apps[of].got.bytes() as f64)
    };
    let (before, after) = (came(10), came(25));
    let [masked, ordinary] = [0, 1].map(|of| after[of] - before[of]);
    let share = masked / (masked + ordinary);
    println!("the masked flow has {share:.3} of the path");
    assert!((masked + ordinary) * 8.0 / 15.0 > 0.85 * 20e6, "the path is used");
    assert!(share <= 0.6, "{share}");
}
