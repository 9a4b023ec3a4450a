//! Goodput and holes of unmodified senders under loss, in a table under version control. Each run also checks
//! invariants.
//!
//! `THALWEG_REWRITE=1 cargo test -p thalweg-masking --test unifl table` writes the table anew.

use std::fmt::Write;

use thalweg_linkmodel::Shape;
use thalweg_masking::Time;
use thalweg_masking::{Config, Policy};

use super::congestion::Kind;
use super::recorded::assert_recorded;
use super::sender::Sender;
use super::wire::PORT;
use super::world::World;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/unifl.txt");
const RATE: u64 = 50_000_000;
/// Bytes of a stream: 1.4 s at the link's rate.
const BYTES: u64 = 8 << 20;

/// Fractions of losses that are retransmitted, by name.
const REPAIRS: [(&str, f64); 3] = [("masked", 0.0), ("tenth", 0.1), ("whole", 1.0)];

pub fn link(delay_ms: f64, loss: f64) -> Shape {
    let queue = RATE as f64 / 8.0 * 0.04;
    Shape {
        rate: Some(RATE),
        delay: delay_ms / 2000.0,
        loss,
        queue_bytes: Some(queue as u64),
        ..Shape::default()
    }
}

pub fn config(reliable: f64) -> Config {
    let mut policy = Policy::lossy();
    policy.reliable = reliable;
    Config { ports: vec![PORT], policy, ..Config::default() }
}

fn row(kind: Kind, repair: (&str, f64), loss: f64, rtt: u64) -> String {
    let sender = Sender::new(2, kind, BYTES);
    let mut world = World::new(config(repair.1), vec![sender], &link(rtt as f64, loss), None, 7);
    world.run(Time::from_secs(600));
    let app = &world.apps[0];
    assert_eq!(app.finished, Some(BYTES), "{kind:?} {repair:?} {loss} {rtt}");
    let tally = world.senders[0].tally;
    let holes = app.missing() as f64 / BYTES as f64 * 100.0;
    let ceiling = RATE as f64 * 1e-6 * 1448.0 / 1500.0;
    let share = world.goodput(0) / ceiling * 100.0;
    format!(
        "{:>5} {:>6} {:>6.1} {rtt:>4} {:>8.2} {share:>9.1} {holes:>7.3} {:>6} {:>10} {:>8} {:>7} {:>6.0} {:>6}",
        format!("{kind:?}").to_lowercase(),
        repair.0,
        loss * 100.0,
        world.goodput(0),
        app.holes.count(),
        tally.retransmissions,
        tally.timeouts,
        tally.undone,
        world.senders[0].estimator.longest() * 1000.0,
        world.full,
    )
}

fn table() -> String {
    let mut table = String::from(
        "8 MiB from one sender over 50 Mbit/s with a queue of 40 ms, the delay controller, to the end acknowledged.\n\
         Ceiling: rate x 1448/1500, the loss being in front of the queue. Whole: every hole is repaired and undone by Eifel.\n\
         Rto: the longest timeout in ms that the sender's round trips made. Full: queue drops.\n\n\
         cc    repair loss %  rtt   Mbit/s % ceiling holes %  holes  sent again timeouts  undone    rto   full\n",
    );
    for kind in [Kind::Reno, Kind::Cubic] {
        for repair in REPAIRS {
            for loss in [0.0, 0.001, 0.01, 0.05] {
                for rtt in [10, 40] {
                    writeln!(table, "{}", row(kind, repair, loss, rtt)).expect("a string grows");
                }
            }
        }
    }
    table
}

#[test]
fn behaviour_under_loss_is_as_recorded() {
    assert_recorded(TABLE, &table());
}

/// The fraction of an update that is missing after a path that reorders and loses packets, and the time.
fn missing_after(path: &Shape) -> (f64, Time) {
    let senders = vec![Sender::new(2, Kind::Cubic, BYTES)];
    let mut world = World::new(config(0.0), senders, path, None, 5);
    world.run(Time::from_secs(60));
    assert_eq!(world.apps[0].finished, Some(BYTES));
    (world.apps[0].missing() as f64 / BYTES as f64, world.now)
}

#[test]
fn packets_that_are_overtaken_are_not_lost() {
    let calm = missing_after(&link(40.0, 0.0)).1;
    for (name, shape, loss) in [
        ("jitter", Shape { jitter: 0.002, ..link(40.0, 0.0) }, 0.0),
        ("jitter and loss", Shape { jitter: 0.002, ..link(40.0, 0.01) }, 0.01),
        ("the whole delay skipped", Shape { reorder: 0.01, ..link(40.0, 0.0) }, 0.0),
        ("the same, and loss", Shape { reorder: 0.01, ..link(40.0, 0.01) }, 0.01),
    ] {
        let (missing, took) = missing_after(&shape);
        // Until the receiver has seen how late packets arrive, it takes some late ones for lost.
        assert!((missing - loss).abs() < 0.02, "{name}: {missing} missing");
        // A packet that overtakes others at the head of a burst seems to be in order. It makes the path look
        // shorter, which must not matter.
        assert!(took < calm * 2, "{name}: {took:?} instead of {calm:?}");
    }
}
