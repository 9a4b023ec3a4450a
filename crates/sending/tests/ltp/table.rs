//! Tests of goodput under loss, which they write as a table under version control.
//!
//! `THALWEG_REWRITE=1 cargo test -p thalweg-sending --test ltp table` writes the table anew.

use std::fmt::Write;

use thalweg_linkmodel::Shape;
use thalweg_sending::ltp::Rule;
use thalweg_sending::Time;

use super::recorded::assert_recorded;
use super::world::{World, AROUND, PAYLOAD};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/ltp.txt");
const RATE: u64 = 100_000_000;
/// Chunks of a transfer: 12.9 MB, 1.1 s of the rate.
const CHUNKS: u32 = 9_600;

pub fn link(rtt: f64, loss: f64) -> Shape {
    let queue = RATE as f64 / 8.0 * 0.04;
    Shape { rate: Some(RATE), delay: rtt / 2000.0, loss, queue_bytes: Some(queue as u64), ..Shape::default() }
}

fn row(fraction: f64, loss: f64, rtt: u64) -> String {
    let mut world = World::new(&link(rtt as f64, loss), &[Rule { fraction, deadline: None }], 7);
    world.begin(0, CHUNKS, |n| n == 0 || n + 1 == CHUNKS);
    world.run(Time::from_secs(600));
    let party = &world.parties[0];
    let (at, ended) = party.ended.unwrap();
    let received = party.received.len() as f64;
    assert!(
        received >= fraction * f64::from(CHUNKS) && party.received.contains(&(CHUNKS - 1)),
        "{fraction} {loss} {rtt}"
    );
    let goodput = received * f64::from(PAYLOAD) * 8.0 / at.as_secs_f64() / 1e6;
    let ceiling = RATE as f64 / 1e6 * f64::from(PAYLOAD) / f64::from(PAYLOAD + AROUND);
    let holes = 100.0 - received / f64::from(CHUNKS) * 100.0;
    format!(
        "{fraction:>8.2} {:>6.1} {rtt:>4} {:>8.3} {goodput:>8.2} {:>9.1} {holes:>7.3} {:>10} {:>6}",
        loss * 100.0,
        at.as_secs_f64(),
        goodput / ceiling * 100.0,
        ended.again,
        world.full,
    )
}

fn table() -> String {
    let mut table = String::from(
        "12.9 MB from one sender over 100 Mbit/s with a queue of 40 ms, loss both ways, from the first packet to its end.\n\
         Ceiling: rate x 1344/1464, the loss being in front of the queue. Full: queue drops.\n\n\
         fraction loss %  rtt  seconds   Mbit/s % ceiling holes % sent again   full\n",
    );
    for fraction in [1.0, 0.98] {
        for loss in [0.0, 0.001, 0.01, 0.05, 0.2] {
            for rtt in [1, 10, 40, 200] {
                writeln!(table, "{}", row(fraction, loss, rtt)).expect("a string grows");
            }
        }
    }
    table
}

#[test]
fn behaviour_under_loss_is_as_recorded() {
    assert_recorded(TABLE, &table());
}
