//! Rounds of an aggregation tree, whatever happens to its nodes and links: the same updates are in all of the
//! mean, none twice, and every client that is not in it is named with a reason.

mod batches;
mod goal;
mod levels;
mod light;
mod middle;
mod nodes;
mod world;

use std::collections::BTreeSet;

use thalweg_proto::{Draw, PartState, TopKind};

use self::world::{check, plan, End, Fault, TreeWorld, Updates};
use crate::common::SECOND;
use crate::round_trips::{path, round_trips, within};

const NODES: [(&str, &[&str]); 3] = [("n1", &["a", "b"]), ("n2", &["c"]), ("n3", &["d", "e"])];
const TOPS: [TopKind; 3] = [TopKind::Dedicated, TopKind::FirstFinished, TopKind::Sharded];

fn all() -> Updates {
    NODES.iter().flat_map(|(_, clients)| clients.iter().map(|name| (*name).to_owned())).collect()
}

/// The clients of a node.
fn of(index: usize) -> Updates {
    NODES[index].1.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn all_updates_count_once_when_nothing_happens() {
    for top in TOPS {
        for seed in 0..50 {
            let mut world = TreeWorld::new(seed, &NODES);
            for number in 1..4 {
                let end = world.run(plan(number, top));
                assert_eq!(check(&world, &end), all(), "{top:?} {seed}");
                let End::Over { mean, .. } = end else { unreachable!() };
                assert_eq!(mean.top.is_some(), top == TopKind::FirstFinished);
                let has: &[&str] = if top == TopKind::Sharded { &["n1", "n2", "n3"] } else { &[] };
                assert_eq!(mean.has, has);
            }
        }
    }
}

/// Requests that follow each other in a round, each of which takes a node a second at most.
const REQUESTS: u32 = 6;

/// A node that answers late is not gone, and is not asked twice.
#[test]
fn a_round_takes_a_few_round_trips_and_no_node_is_lost() {
    for top in TOPS {
        for round_trip in round_trips() {
            let mut world = TreeWorld::over(3, &NODES, |_| path(round_trip));
            for number in 1..4 {
                let (began, before) = (world.tasks.now, world.messages);
                let end = world.run(plan(number, top));
                assert_eq!(check(&world, &end), all(), "{top:?} {round_trip:?}");
                let took = world.tasks.now - began;
                // Each request needs the round trip of the task and that of its result.
                let limit = within(2 * REQUESTS, round_trip) + REQUESTS * SECOND;
                assert!(took <= limit, "{top:?} {round_trip:?}: {took:?}");
                assert!(world.nodes.iter().all(|node| node.loss.is_none()));
                if number == 1 {
                    assert_eq!(world.messages - before, messages(top, 3), "{top:?} {round_trip:?}");
                }
            }
        }
    }
}

/// How many messages a round has when nothing happens.
fn messages(top: TopKind, seed: u64) -> u64 {
    let mut world = TreeWorld::new(seed, &NODES);
    world.run(plan(1, top));
    world.messages
}

/// One fault at each message, at each node.
fn at_each_message(fault: Fault, seeds: u64, mut judge: impl FnMut(&mut TreeWorld, &End, usize, TopKind)) {
    for top in TOPS {
        for seed in 0..seeds {
            for at in 1..=messages(top, seed) {
                for index in 0..NODES.len() {
                    let mut world = TreeWorld::new(seed, &NODES);
                    world.faults.insert(at, (index, fault));
                    let end = world.run(plan(1, top));
                    judge(&mut world, &end, index, top);
                }
            }
        }
    }
}

#[test]
fn a_link_that_breaks_or_hangs_at_any_message_costs_no_update() {
    for fault in [Fault::Cut, Fault::Pause(2 * SECOND)] {
        at_each_message(fault, 4, |world, end, _, _| assert_eq!(check(world, end), all()));
    }
}

#[test]
fn a_node_that_dies_at_any_message_costs_its_own_updates_or_none() {
    for fault in [Fault::Kill { seen: true }, Fault::Kill { seen: false }, Fault::Restart] {
        let mut kinds = BTreeSet::new();
        at_each_message(fault, 4, |world, end, index, top| {
            let left: Updates = all().difference(&of(index)).cloned().collect();
            let counted = check(world, end);
            assert!(counted == all() || counted == left, "{counted:?}");
            kinds.insert(counted.len() == all().len());
            let End::Over { parts, .. } = end else { unreachable!() };
            for part in parts.iter().filter(|part| part.state != PartState::Counts) {
                let why = if fault == Fault::Restart { "started anew" } else { "is gone" };
                assert!(part.reason.contains(why) || part.reason.contains("refused"), "{}", part.reason);
            }
            // The others go on. A node that was started anew takes part again once the root knows.
            let end = world.run(plan(2, top));
            let counted = check(world, &end);
            assert!(counted == left || fault == Fault::Restart && counted == all(), "{counted:?}");
            let end = world.run(plan(3, top));
            assert_eq!(check(world, &end), if fault == Fault::Restart { all() } else { left });
        });
        assert_eq!(kinds.len(), 2, "some nodes die before their sums have left them, and some after");
    }
}

#[test]
fn a_node_that_hangs_for_too_long_is_given_up_and_the_round_ends() {
    at_each_message(Fault::Pause(500 * SECOND), 2, |world, end, index, _| {
        let left: Updates = all().difference(&of(index)).cloned().collect();
        let counted = check(world, end);
        assert!(counted == all() || counted == left, "{counted:?}");
    });
}

/// Any number of faults, at any time, over several rounds.
fn random(top: TopKind, seed: u64) {
    let mut world = TreeWorld::new(seed, &NODES);
    world.below.absent = if seed.is_multiple_of(3) { 0.3 } else { 0.0 };
    for _ in 0..world.rng.below(6) {
        let at = 1 + world.rng.below(80);
        let index = world.rng.below(3) as usize;
        let time = world.rng.time(20 * SECOND);
        let seen = world.rng.chance(0.5);
        let faults = [Fault::Cut, Fault::Pause(time), Fault::Kill { seen }, Fault::Restart, Fault::Restart];
        let fault = faults[world.rng.below(5) as usize];
        world.faults.insert(at, (index, fault));
    }
    for number in 1..5 {
        let enough = 1 + world.rng.below(5) as u32;
        let before = world.below.model.clone();
        match world.run(thalweg_proto::TreePlan { enough, ..plan(number, top) }) {
            end @ End::Over { .. } => assert!(check(&world, &end).len() >= enough as usize),
            End::Failed(reason) => {
                assert!(reason.contains(&format!("round {number}")), "{reason}");
                assert_eq!(world.below.model, before, "a round that fails leaves the model");
                let names = NODES.iter().any(|(name, _)| reason.contains(name));
                assert!(names || world.below.absent > 0.0, "{reason}");
            }
        }
    }
}

#[test]
fn whatever_happens_a_mean_is_of_the_same_updates_everywhere() {
    for top in TOPS {
        (0..1500).for_each(|seed| random(top, seed));
    }
}

#[test]
fn a_round_with_a_goal_counts_exactly_so_many_and_asks_nobody_twice() {
    for seed in 0..500 {
        let mut world = TreeWorld::new(seed, &NODES);
        world.below.absent = if seed % 2 == 0 { 0.3 } else { 0.0 };
        let goal = 1 + (seed % 5) as u32;
        if seed % 4 == 1 {
            let (at, index) = (1 + world.rng.below(40), world.rng.below(3) as usize);
            world.faults.insert(at, (index, Fault::Kill { seen: true }));
        }
        let draw = Draw { goal, clients: Some(goal), seed, deadline: None, grace: 2_000_000 };
        let end =
            world.run(thalweg_proto::TreePlan { draw: Some(draw), enough: 0, ..plan(1, TopKind::Dedicated) });
        let counted = check(&world, &end);
        assert!(counted.len() <= goal as usize, "{counted:?}");
        let asked: Updates = world.below.asked.iter().cloned().collect();
        assert_eq!(asked.len(), world.below.asked.len(), "a client is asked twice: {:?}", world.below.asked);
        let lost: Updates = (0..3).filter(|&n| world.nodes[n].loss.is_some()).flat_map(of).collect();
        let left = all().difference(&asked).any(|client| !lost.contains(client));
        assert!(counted.len() == goal as usize || !left, "it ends short only when nobody is left to ask");
    }
}

#[test]
fn the_seed_and_the_round_draw_clients_and_not_where_these_are() {
    let drawn = |world: &mut TreeWorld, seed: u64, number: u32| {
        let draw = Draw { goal: 2, clients: Some(2), seed, deadline: None, grace: 0 };
        let end = world.run(thalweg_proto::TreePlan { draw: Some(draw), ..plan(number, TopKind::Dedicated) });
        check(world, &end)
    };
    let elsewhere: [(&str, &[&str]); 2] = [("n1", &["e", "c", "a"]), ("n2", &["d", "b"])];
    let (mut one, mut other) = (TreeWorld::new(1, &NODES), TreeWorld::new(2, &elsewhere));
    let mut kinds = BTreeSet::new();
    for number in 1..40 {
        let updates = drawn(&mut one, 7, number);
        assert_eq!(updates, drawn(&mut other, 7, number));
        kinds.insert(updates);
    }
    assert_eq!(kinds.len(), 10, "in time every pair is drawn");
    assert!((1..40).any(|number| drawn(&mut one, 7, number) != drawn(&mut one, 8, number)));
}
