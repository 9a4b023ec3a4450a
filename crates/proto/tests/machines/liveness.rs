//! A peer that makes no progress loses its link; a slow peer that makes some keeps it.

use crate::common::{plan, profile, Path, Profile, Setup, World, MS, SECOND};
use thalweg_proto::{ClientMachine, RoundPlan, ServerMachine, Time, Verdict};
use thalweg_wire::limits;

/// A client with these paths on its first connection, and perfect ones after it.
fn first_with(name: &str, up: Path, down: Path) -> Profile {
    Profile { paths: vec![(up, down), (Path::PERFECT, Path::PERFECT)], ..profile(name) }
}

/// A path on which messages pass freely, and chunks move at `rate`.
fn chunks_at(rate: u64) -> Path {
    Path { rate, separate: true, ..Path::PERFECT }
}

fn left(world: &World, name: &str) -> Vec<String> {
    let prefix = format!("-{name}: ");
    world.server.log.iter().filter_map(|l| l.strip_prefix(&prefix)).map(str::to_string).collect()
}

/// When the server first ended a client's link.
fn until_left(world: &mut World, limit: Time) -> Time {
    world.run("somebody is let go", limit, |w| w.server.log.iter().any(|l| l.starts_with('-')));
    world.now
}

#[test]
fn a_byte_a_second_is_no_progress_of_an_update() {
    let mut world = World::joined(&Setup::default(), [first_with("c", chunks_at(1), Path::PERFECT)]);
    world.start(plan(1, 1));
    world.run("it sends", SECOND, |w| w.clients[0].seen.offers > 0);
    let began = world.now;
    let waited = until_left(&mut world, 60 * SECOND) - began;
    assert!(waited >= 10 * SECOND && waited < 11 * SECOND, "{waited:?}");
    assert_eq!(left(&world, "c"), ["no progress for 10.0 s: its update makes no progress"]);
    let result = world.finish_round(10 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete, "it comes back over a better link");
    assert_eq!(world.clients[0].seen.ready, [1], "and goes on where it was");
}

#[test]
fn who_takes_nothing_of_the_model_is_let_go_though_it_talks() {
    let mut world = World::joined(&Setup::default(), [first_with("c", Path::PERFECT, chunks_at(0))]);
    world.start(plan(1, 1));
    let began = world.now;
    let waited = until_left(&mut world, 60 * SECOND) - began;
    assert!(waited >= 10 * SECOND && waited < 11 * SECOND, "{waited:?}");
    assert_eq!(left(&world, "c"), ["no progress for 10.0 s: it does not receive the model"]);
    let result = world.finish_round(10 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete);
}

#[test]
fn a_client_that_hangs_is_let_go_and_waited_for_only_so_long() {
    let mut world = World::joined(&Setup::default(), ["a", "b"].map(profile));
    world.start(RoundPlan { enough: 1, ..plan(1, 2) });
    world.run("b trains", SECOND, |w| !w.clients[1].seen.ready.is_empty());
    let began = world.now;
    world.hang(1);
    let result = world.finish_round(40 * SECOND);
    world.check(&result);
    let took = world.now - began;
    assert!(took >= 20 * SECOND && took < 23 * SECOND, "ten seconds to notice, ten of grace: {took:?}");
    assert_eq!(left(&world, "b"), ["no progress for 10.0 s: it sends nothing"]);
    assert_eq!(left(&world, "a"), Vec::<String>::new());
    assert!(result.of("b").reason.as_ref().is_some_and(|r| r.contains("sends nothing")));
}

/// All clients of a job that needs all of them cannot reach the server for six minutes.
#[test]
fn an_outage_is_a_pause_for_a_patient_job() {
    for (outage, goes_on) in [(600 * SECOND, true), (60 * SECOND, false)] {
        let clients = ["a", "b"].map(|name| Profile { outage: 600 * SECOND, ..profile(name) });
        let mut world = World::joined(&Setup::default(), clients);
        world.start(RoundPlan { outage, ..plan(1, 2) });
        world.run("b trains", SECOND, |w| !w.clients[1].seen.ready.is_empty());
        world.up = false;
        world.cut(0);
        world.cut(1);
        world.pass(360 * SECOND);
        world.up = true;
        assert_eq!(world.server.results.is_empty(), goes_on);
        if !goes_on {
            assert!(world.server.results[0].outcome.failure.is_some());
            continue;
        }
        let result = world.finish_round(10 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete);
        assert_eq!(world.clients[1].seen.ready, [1], "it trains once");
    }
}

#[test]
fn who_connects_and_says_nothing_is_let_go() {
    let mute = Path { rate: 0, ..Path::PERFECT };
    let mut world = World::new(&Setup::default());
    world.add(first_with("c", mute, Path::PERFECT));
    world.run("it is let in over its second link", 60 * SECOND, |w| {
        w.server.machine.connected_clients().count() == 1
    });
    assert!(world.now >= limits::GREET && world.now < limits::GREET + SECOND, "{:?}", world.now);
    assert_eq!(world.clients[0].seen.connections, 2);
}

#[test]
fn a_server_that_hangs_is_left_and_tried_again() {
    let mut world = World::joined(&Setup::default(), [profile("c")]);
    world.hang_server(true);
    world.pass(30 * SECOND);
    assert_eq!(world.clients[0].seen.connections, 3, "ten seconds of silence each");
    world.hang_server(false);
    let result = world.round(plan(1, 1), 20 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete);
}

#[test]
fn a_server_that_is_gone_is_tried_less_and_less_often_until_the_timeout() {
    let mut world = World::joined(&Setup::default(), [profile("c")]);
    world.pass(SECOND); // until the client has received its Welcome
    world.up = false;
    world.cut(0);
    let gone = world.now;
    world.run("it gives up", 70 * SECOND, |w| w.clients[0].seen.finished.is_some());
    let waited = world.now - gone;
    assert!(waited >= 60 * SECOND && waited < 67 * SECOND, "{waited:?}");
    let tries = world.clients[0].seen.connections - 1;
    assert!((50..=62).contains(&tries), "100 ms, 200 ms, ... 1 s, with jitter: {tries} tries");
    assert_eq!(world.clients[0].seen.finished, Some(Err("nobody listens".into())));
    world.pass(60 * SECOND);
    assert_eq!(world.clients[0].seen.connections - 1, tries, "and then no more");
}

#[test]
fn slow_but_moving_survives_both_ways() {
    for (up, down) in [(300, 10_000_000), (10_000_000, 300), (300, 300)] {
        let path = |rate| Path { rate, ..Path::PERFECT };
        let slow = Profile { paths: vec![(path(up), path(down))], ..profile("slow") };
        let mut world = World::joined(&Setup::default(), [slow]);
        let result = world.round(plan(1, 1), 100 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete);
        assert_eq!(
            world.clients[0].seen.connections, 1,
            "{up} B/s up, {down} B/s down: {:?}",
            world.server.log
        );
    }
}

/// The path carries 1.5 kB in 8 s. It falls below the floor's rate only during the stall, and the measured
/// rate allows for that.
#[test]
fn a_stall_of_a_link_known_to_be_slow_is_waited_for() {
    let path = Path { rate: 190, separate: true, ..Path::PERFECT };
    let slow = Profile { paths: vec![(path, Path::PERFECT)], ..profile("slow") };
    let setup = Setup { chunk: 128, elements: 3000, ..Setup::default() };
    let mut world = World::joined(&setup, [slow]);
    world.start(plan(1, 1));
    world.run("half of it is there", 60 * SECOND, |w| w.clients[0].seen.update_chunks >= 40);
    // Nothing moves for half a minute, three times the floor.
    world.net.stall(1, 30 * SECOND);
    let result = world.finish_round(120 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete);
    assert_eq!(left(&world, "slow"), Vec::<String>::new());
}

#[test]
fn heartbeats_keep_a_client_that_trains_for_an_hour() {
    let busy = Profile { train: 3600 * SECOND, ..profile("busy") };
    let mut world = World::joined(&Setup::default(), [busy]);
    let result = world.round(plan(1, 1), 3700 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete);
    assert_eq!(world.clients[0].seen.connections, 1);
    assert_eq!(world.server.log, ["+busy"]);
    let up: u64 = result.outcome.transfers.iter().map(|t| t.wire_bytes).sum();
    assert!(up < 3 * world.server.bytes() as u64, "an hour's heartbeats are no part of the transfer: {up}");
}

/// The same rule with another floor.
#[test]
fn the_floor_is_the_servers_to_choose() {
    let setup = Setup { liveness: 2 * SECOND, ..Setup::default() };
    let mut world = World::joined(&setup, [first_with("c", chunks_at(1), Path::PERFECT)]);
    let result = world.round(plan(1, 1), 10 * SECOND);
    assert!(result.outcome.complete);
    assert_eq!(left(&world, "c"), ["no progress for 2.0 s: its update makes no progress"]);
    world.pass(100 * MS);
    assert_eq!(world.verdicts(0), [(1, Verdict::Accepted)]);
}

#[test]
fn time_does_not_count_while_something_between_them_holds_a_link_up() {
    let mut world = World::joined(&Setup::default(), [first_with("c", chunks_at(1), Path::PERFECT)]);
    world.start(plan(1, 1));
    world.run("it sends", SECOND, |w| w.clients[0].seen.offers > 0);
    let link = world.clients[0].link.expect("it is connected");
    for _ in 0..6 {
        world.pass(9 * SECOND);
        world.server.machine.held(world.now, link);
        world.clients[0].machine.held(world.now);
    }
    assert_eq!(left(&world, "c"), Vec::<String>::new());
    let released = world.now;
    let waited = until_left(&mut world, 60 * SECOND) - released;
    assert!(waited >= 10 * SECOND && waited < 11 * SECOND, "then it counts again: {waited:?}");
}
