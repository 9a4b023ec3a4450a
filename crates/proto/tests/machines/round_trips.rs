//! Sessions over paths with any round trip: a peer that answers late is slow, not gone.

use crate::common::tasks::{config, Does, TaskWorld};
use crate::common::{plan, profile, Path, Profile, Setup, World, MS, SECOND};
use thalweg_proto::{ReplyState, ServerMachine, Time};

/// Round trips from within a machine to beyond the longest that an unmeasured path may have by half.
pub fn round_trips() -> impl Iterator<Item = Time> {
    let micros = [10, 100, 1_000, 20_000, 200_000, 1_000_000, 4_000_000, 10_000_000, 20_000_000];
    micros.into_iter().map(Time::from_micros)
}

pub fn path(round_trip: Time) -> Path {
    Path { delay: round_trip / 2, ..Path::PERFECT }
}

/// Time for `trips` round trips, and a second for the work.
pub fn within(trips: u32, round_trip: Time) -> Time {
    trips * round_trip + SECOND
}

#[test]
fn a_round_takes_a_few_round_trips_and_no_link_is_lost() {
    for round_trip in round_trips() {
        let far = |name: &str| Profile {
            paths: vec![(path(round_trip), path(round_trip))],
            timeout: 600 * SECOND,
            ..profile(name)
        };
        let mut world = World::new(&Setup::default());
        let (far, near) = (far("far"), profile("near"));
        world.add(far);
        world.add(near);
        world.run("both have joined", within(3, round_trip), |w| {
            w.server.machine.connected_clients().count() == 2
        });
        for number in 1..=3 {
            let result = world.round(plan(number, 2), within(6, round_trip));
            world.check(&result);
            assert!(result.outcome.complete, "{round_trip:?}: {:?}", result.outcome);
            // A quiet time as long as any limit of the configuration.
            world.pass(60 * SECOND);
        }
        let left: Vec<_> = world.server.log.iter().filter(|line| line.starts_with('-')).collect();
        assert!(left.is_empty(), "{round_trip:?}: {left:?}");
    }
}

/// The model takes half a round trip and the update another. Without a place that is granted with the model, Offer and
/// Grant take one more.
#[test]
fn a_place_that_is_granted_with_the_model_saves_a_round_trip() {
    let round_trip = 100 * MS;
    let took = |invites: bool| {
        let mut world = World::new(&Setup { keeps_order: invites, ..Setup::default() });
        world.add(Profile { paths: vec![(path(round_trip), path(round_trip))], ..profile("c") });
        world.run("it has joined", within(3, round_trip), |w| {
            w.server.machine.connected_clients().count() == 1
        });
        let result = world.round(plan(1, 1), within(6, round_trip));
        world.check(&result);
        result.outcome.span.end - result.outcome.span.start
    };
    assert_eq!(took(false) - took(true), round_trip);
}

#[test]
fn a_task_takes_a_few_round_trips_and_no_link_is_lost() {
    for round_trip in round_trips() {
        let mut world = TaskWorld::new(1, config());
        world.add("far", Does::Echoes, path(round_trip));
        world.add("near", Does::Echoes, path(MS));
        world.run("both have joined", within(3, round_trip), |w| w.server.connected_count() == 2);
        let task = world.open(2_000, 7, &["far", "near"], None);
        world.run("it is closed", within(6, round_trip), |w| w.closed.contains(&task));
        let replies = world.replies_to(task);
        for name in ["far", "near"] {
            assert_eq!(replies[name].state, ReplyState::Done, "{round_trip:?}: {replies:?}");
            assert!(replies[name].transfers.iter().all(|way| way.resumed == 0), "{round_trip:?}");
        }
    }
}

/// TCP loses a packet: its retransmission timeout is up to three round trips, and then it starts slowly from one
/// segment. For so long nothing of an update arrives, and no message behind it.
#[test]
fn a_path_that_recovers_from_a_lost_packet_keeps_its_link() {
    for round_trip in round_trips() {
        let slow = Path { rate: 100_000, ..path(round_trip) };
        let far = Profile { paths: vec![(slow, slow)], timeout: 600 * SECOND, ..profile("far") };
        let mut world = World::new(&Setup { chunk: 1024, elements: 30_000, ..Setup::default() });
        world.add(far);
        world.run("it has joined", within(3, round_trip), |w| {
            w.server.machine.connected_clients().count() == 1
        });
        world.start(plan(1, 1));
        world.run("a part of it is there", within(8, round_trip) + 60 * SECOND, |w| {
            w.clients[0].seen.update_chunks >= 40
        });
        let link = world.clients[0].link.expect("it is connected");
        world.net.stall(link, 7 * round_trip);
        let result = world.finish_round(within(20, round_trip) + 60 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete, "{round_trip:?}");
        let left: Vec<_> = world.server.log.iter().filter(|line| line.starts_with('-')).collect();
        assert!(left.is_empty() && world.clients[0].seen.connections == 1, "{round_trip:?}: {left:?}");
    }
}

/// A peer that falls silent is still noticed: after ten of its round trips, and not before the floor.
#[test]
fn a_peer_that_falls_silent_is_gone_after_ten_round_trips() {
    for round_trip in round_trips() {
        let mut world = World::new(&Setup::default());
        world.add(Profile {
            paths: vec![(path(round_trip), path(round_trip))],
            timeout: 600 * SECOND,
            ..profile("c")
        });
        world.run("it has joined", within(3, round_trip), |w| {
            w.server.machine.connected_clients().count() == 1
        });
        world.pass(within(2, round_trip));
        world.clients[0].alive = false;
        let began = world.now;
        world.run("it is let go", 600 * SECOND, |w| w.server.log.iter().any(|line| line.starts_with('-')));
        let waited = world.now - began;
        let limit = (10 * round_trip).max(10 * SECOND);
        // What it sent before may still arrive, half a round trip later. Timers are checked once in a while, hence 3 s.
        assert!(waited + 3 * SECOND >= limit && waited <= limit + round_trip, "{round_trip:?}: {waited:?}");
    }
}
