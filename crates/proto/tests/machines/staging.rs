//! The staging area has room for only a few updates.

use crate::common::{plan, profile, Path, Profile, Setup, World, MS, SECOND};
use thalweg_proto::{RoundPlan, State};

fn with_rate(name: &str, rate: u64) -> Profile {
    let path = Path { rate, ..Path::PERFECT };
    Profile { train: 10 * MS, paths: vec![(path, Path::PERFECT)], ..profile(name) }
}

fn states(world: &World, state: State) -> Vec<String> {
    let report = world.server.machine.progress_report();
    report.into_iter().filter(|(_, s, _)| *s == state).map(|(name, ..)| name).collect()
}

/// After every event the world checks that at most two updates hold places.
#[test]
fn six_clients_share_two_places() {
    let setup = Setup { places: 2, folding: 30 * MS, ..Setup::default() };
    let mut world = World::joined(&setup, (0..6).map(|i| with_rate(&format!("c{i}"), 100_000)));
    for number in 1..=3 {
        let result = world.round(plan(number, 6), 10 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete);
    }
    assert_eq!(world.server.busiest, 2, "both places are used");
}

#[test]
fn an_update_larger_than_the_whole_area_gets_in_alone() {
    let mut world = World::joined(&Setup { places: 0, ..Setup::default() }, ["a", "b", "c"].map(profile));
    let result = world.round(plan(1, 3), 10 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete);
    assert_eq!(world.server.busiest, 1);
}

/// Three clients have a hundredth of the others' rate. Once the server knows this, they leave a place to the
/// fast ones.
#[test]
fn slow_senders_neither_hog_the_places_nor_starve() {
    let slow = ["s0", "s1", "s2"].map(|name| with_rate(name, 4_000));
    let fast = ["f0", "f1", "f2", "f3"].map(|name| with_rate(name, 400_000));
    let fast = fast.map(|f| Profile { train: 200 * MS, ..f }); // so the slow clients are first in the queue
    let mut world = World::joined(&Setup { places: 2, ..Setup::default() }, slow.into_iter().chain(fast));
    let first = world.round(plan(1, 7), 60 * SECOND);
    assert!(first.outcome.complete);
    world.start(plan(2, 7));
    let mut fast_at = None;
    world.run("the round is over", 60 * SECOND, |w| {
        let sending = states(w, State::Sending);
        let slow_sending = sending.iter().filter(|name| name.starts_with('s')).count();
        let fast_wait = states(w, State::Offered).iter().any(|name| name.starts_with('f'));
        assert!(slow_sending < 2 || !fast_wait, "slow ones hold both places: {sending:?}");
        let fast_in = states(w, State::Whole).iter().filter(|name| name.starts_with('f')).count();
        if fast_in == 4 && fast_at.is_none() {
            fast_at = Some(w.now);
        }
        w.server.results.len() == 2
    });
    let second = world.server.results[1].clone();
    world.check(&second);
    assert!(second.outcome.complete, "nobody starves");
    let waited = fast_at.map(|at| at - second.outcome.span.start);
    assert!(waited.is_some_and(|time| time < SECOND), "the fast ones waited for slow ones: {waited:?}");
}

#[test]
fn who_breaks_off_keeps_its_place_for_the_grace_and_then_gives_it_up() {
    let setup = Setup { places: 1, ..Setup::default() };
    let mut world = World::joined(&setup, [with_rate("a", 4_000)]);
    world.start(RoundPlan { enough: 1, ..plan(1, 2) });
    world.run("a sends", SECOND, |w| states(w, State::Sending) == ["a"]);
    world.add(with_rate("b", 400_000));
    world.run("b waits", SECOND, |w| states(w, State::Offered) == ["b"]);
    world.kill(0);
    let broke = world.now;
    world.run("b is in", 20 * SECOND, |w| states(w, State::Offered).is_empty());
    assert!((world.now - broke).as_secs() == 10, "{:?}", world.now - broke);
    let result = world.finish_round(SECOND);
    world.check(&result);
    assert_eq!((result.of("a").state, result.of("b").state), (State::Lost, State::Whole));
}

/// The client's link breaks while it waits in the queue. It must not get a place while it is away.
#[test]
fn who_breaks_off_in_the_queue_is_not_granted_a_place() {
    let setup = Setup { places: 1, ..Setup::default() };
    let mut world = World::joined(&setup, [with_rate("a", 4_000)]);
    world.start(RoundPlan { enough: 1, ..plan(1, 3) });
    world.run("a sends", SECOND, |w| states(w, State::Sending) == ["a"]);
    let b = world.add(with_rate("b", 400_000));
    world.run("b waits", SECOND, |w| states(w, State::Offered) == ["b"]);
    world.kill(b);
    world.add(with_rate("c", 400_000));
    let result = world.finish_round(30 * SECOND);
    world.check(&result);
    let states = ["a", "b", "c"].map(|name| result.of(name).state);
    assert_eq!(states, [State::Whole, State::Lost, State::Whole]);
}
