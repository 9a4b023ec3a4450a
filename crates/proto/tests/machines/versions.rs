//! Models that are sent as differences: which clients get one. `World` checks at each client that the difference and
//! the model that it has give the round's model.

use crate::common::world::Versions;
use crate::common::{plan, profile, Setup, World, MS, SECOND};
use crate::faults::faulty_world;
use thalweg_proto::{Choice, RoundPlan};

fn with_versions(clients: usize) -> World {
    let setup = Setup::default();
    let mut world = World::joined(&setup, (0..clients).map(|index| profile(&format!("c{index}"))));
    world.versions = Some(Versions::default());
    world
}

/// How many clients have got a difference so far, and how many the whole model.
fn ready(world: &World) -> (u32, u32) {
    world.versions.as_ref().map_or((0, 0), |versions| versions.ready)
}

#[test]
fn a_client_in_step_gets_the_difference_and_a_newcomer_the_whole_model() {
    let mut world = with_versions(2);
    for number in 1..=3 {
        let result = world.round(plan(number, 2), 30 * SECOND);
        world.check(&result);
    }
    assert_eq!(ready(&world), (4, 2), "only the first round sends the whole model");
    world.add(profile("c2"));
    world.pass(SECOND);
    let result = world.round(plan(4, 3), 30 * SECOND);
    world.check(&result);
    assert_eq!(ready(&world), (6, 3), "the newcomer gets the whole model");
    let result = world.round(plan(5, 3), 30 * SECOND);
    world.check(&result);
    assert_eq!(ready(&world), (9, 3), "and is in step from then on");
}

#[test]
fn who_missed_a_round_or_began_anew_gets_the_whole_model() {
    let mut world = with_versions(3);
    world.round(plan(1, 3), 30 * SECOND);
    // A draw takes two of three clients. The third one misses the round.
    let drawn = |number| RoundPlan { choice: Choice::ByLot { seed: 7 }, ..plan(number, 2) };
    world.round(drawn(2), 30 * SECOND);
    assert_eq!(ready(&world), (2, 3));
    world.round(plan(3, 3), 30 * SECOND);
    assert_eq!(ready(&world), (4, 4), "one missed round 2");
    world.kill(0);
    world.pass(SECOND);
    world.restart(0);
    world.pass(SECOND);
    world.round(plan(4, 3), 30 * SECOND);
    assert_eq!(ready(&world), (6, 5), "a new process has no model");
}

#[test]
fn a_round_that_is_tried_again_has_a_version_of_its_own() {
    let mut world = with_versions(2);
    world.round(plan(1, 2), 30 * SECOND);
    // The round fails while both clients train its model.
    world.start_with(RoundPlan { enough: 2, deadline: Some(50 * MS), ..plan(2, 2) }, 20);
    let failed = world.finish_round(10 * SECOND);
    assert!(failed.outcome.failure.is_some());
    world.pass(SECOND);
    world.start_with(plan(2, 2), 21);
    let result = world.finish_round(30 * SECOND);
    assert!(result.outcome.complete);
    assert_eq!(ready(&world), (4, 2));
}

#[test]
fn a_server_that_begins_anew_sends_the_whole_model() {
    let mut world = with_versions(2);
    world.round(plan(1, 2), 30 * SECOND);
    world.restart_server(&Setup::default());
    world.pass(30 * SECOND);
    let result = world.round(plan(2, 2), 60 * SECOND);
    world.check(&result);
    assert_eq!(ready(&world), (0, 4));
}

/// Links break, chunks are lost and damaged, clients begin anew and are drawn by lot. Each client that trains has
/// exactly the round's model.
#[test]
fn all_clients_have_the_same_model_over_faulty_links() {
    let (mut differences, mut whole) = (0, 0);
    for seed in 0..300 {
        let (mut world, clients) = faulty_world(seed);
        world.versions = Some(Versions::default());
        for number in 1..=4 {
            let choice = if seed % 2 == 0 { Choice::ByName } else { Choice::ByLot { seed } };
            let expected = if seed % 2 == 0 { clients } else { clients.div_ceil(2) };
            let result = world.round(RoundPlan { choice, ..plan(number, expected) }, 600 * SECOND);
            if result.outcome.failure.is_none() {
                world.check(&result);
            }
            if seed % 3 == 0 {
                let index = (seed / 3) as usize % clients as usize;
                world.kill(index);
                world.pass(SECOND);
                world.restart(index);
            }
            world.pass(20 * SECOND);
        }
        let ready = ready(&world);
        differences += ready.0;
        whole += ready.1;
    }
    assert!(differences > whole / 2, "{differences} differences, {whole} whole models");
}
