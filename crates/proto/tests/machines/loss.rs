//! The cost of loss as a table under version control, so that a review shows how a change of the protocol
//! affects it.
//!
//! `THALWEG_REWRITE=1 cargo test -p thalweg-proto --test machines loss` writes the table again.

use std::fmt::Write;

use crate::common::recorded::assert_recorded;
use crate::common::{plan, profile, End, Path, Profile, Setup, World, MS, SECOND};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/machines/snapshots/loss.txt");
/// An update has 64 KiB, and two gaps between tensors.
const ELEMENTS: u64 = 16 << 10;

/// One row of the table: seconds of one round, bytes that were sent again, and the most passes that an update
/// took.
fn row(loss: f64, chunk: u32, clients: u32) -> String {
    let path =
        Path { rate: 1_000_000, delay: 20 * MS, jitter: 5 * MS, loss, ordered: false, ..Path::PERFECT };
    let setup = Setup { seed: 7, elements: ELEMENTS, chunk, places: 4, ..Setup::default() };
    let client = |i| Profile { paths: vec![(path, path)], ..profile(&format!("c{i}")) };
    let mut world = World::joined(&setup, (0..clients).map(client));
    let result = world.round(plan(1, clients), 60 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete, "loss {loss}, chunk {chunk}, {clients} clients");
    let bytes = world.server.bytes() as u64;
    let sent = |end| (0..clients as usize).map(|c| world.net.payload(c, end)).sum::<u64>();
    let needed = bytes * u64::from(clients);
    let (down, up) = (sent(End::Server) - needed, sent(End::Client) - needed);
    let passes = world.clients.iter().map(|c| c.seen.ends).max().unwrap_or(0);
    let span = result.outcome.span;
    let seconds = (span.end - span.start).as_secs_f64();
    let percent = loss * 100.0;
    format!("{percent:>6.1} {chunk:>6} {clients:>8} {seconds:>9.3} {down:>11} {up:>9} {passes:>7}")
}

fn table() -> String {
    let mut table = String::from(
        "A round of 64 KiB updates over unordered links: 1 MB/s and 20 ms each way, up to 5 ms of reordering.\n\
         Clients train for 0.1 s. Passes: how often the update of the unluckiest client was sent in part.\n\n\
         loss %  chunk  clients   seconds resent down resent up  passes\n",
    );
    for loss in [0.0, 0.001, 0.01, 0.05, 0.1, 0.3] {
        for chunk in [512, 1400, 8192] {
            for clients in [1, 4, 8] {
                writeln!(table, "{}", row(loss, chunk, clients)).expect("a string grows");
            }
        }
    }
    table
}

#[test]
fn behaviour_under_loss_is_as_recorded() {
    assert_recorded(TABLE, &table());
}
