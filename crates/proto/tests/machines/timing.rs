//! Lazy folding: the server folds staged updates together, once no further update can arrive or all places
//! are taken.

use crate::common::{plan, profile, Profile, Setup, World, MS, SECOND};
use thalweg_proto::{RoundPlan, State, Time};

fn lazy(places: u64) -> Setup {
    Setup { lazy: true, places, folding: 20 * MS, ..Setup::default() }
}

fn who_trains(name: &str, time: Time) -> Profile {
    Profile { train: time, ..profile(name) }
}

fn count(world: &World, wanted: &[State]) -> usize {
    let report = world.server.machine.progress_report();
    report.into_iter().filter(|(_, state, _)| wanted.contains(state)).count()
}

const COMING: [State; 4] = [State::Receiving, State::Training, State::Offered, State::Sending];

#[test]
fn nothing_is_folded_before_the_last_update_is_there() {
    let clients = (1..=4).map(|i| who_trains(&format!("c{i}"), 100 * i * MS));
    let mut world = World::joined(&lazy(100), clients);
    world.start(plan(1, 4));
    world.run("the round is over", 10 * SECOND, |w| {
        let is_folded = count(w, &[State::Whole]) > 0;
        assert!(!is_folded || count(w, &COMING) == 0, "an update is folded while others come");
        w.server.results.len() == 1
    });
    let result = world.server.results[0].clone();
    world.check(&result);
    assert!(result.outcome.complete);
}

#[test]
fn those_that_fill_the_staging_area_are_folded_for_the_others() {
    for clients in 1..=7 {
        let all = (0..clients).map(|i| who_trains(&format!("c{i}"), 10 * (i + 1) * MS));
        let mut world = World::joined(&lazy(2), all);
        for number in 1..=2 {
            let result = world.round(plan(number, clients), 10 * SECOND);
            world.check(&result);
            assert!(result.outcome.complete, "{clients} clients");
        }
    }
}

#[test]
fn a_lost_client_is_waited_for_as_long_as_it_may_come_back() {
    let clients = [who_trains("a", 100 * MS), who_trains("b", 5 * SECOND)];
    let mut world = World::joined(&lazy(100), clients);
    world.start(RoundPlan { enough: 1, ..plan(1, 2) });
    world.run("a is there", SECOND, |w| count(w, &[State::Staged]) == 1);
    world.kill(1);
    let lost = world.now;
    world.run("the round is over", 20 * SECOND, |w| w.server.results.len() == 1);
    let result = world.server.results[0].clone();
    world.check(&result);
    assert_eq!((result.of("a").state, result.of("b").state), (State::Whole, State::Lost));
    assert!(world.now - lost >= 10 * SECOND, "it has ten seconds");
}

#[test]
fn what_is_there_at_the_deadline_is_folded() {
    let clients = [who_trains("a", 100 * MS), who_trains("b", 30 * SECOND)];
    let mut world = World::joined(&lazy(100), clients);
    let result = world.round(RoundPlan { enough: 1, deadline: Some(SECOND), ..plan(1, 2) }, 10 * SECOND);
    world.check(&result);
    assert_eq!((result.of("a").state, result.of("b").state), (State::Whole, State::Late));
}
