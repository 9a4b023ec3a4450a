//! Trees of three levels: the root, middle nodes, and nodes with clients below these. Whatever happens at any level,
//! the root's mean is of the same updates everywhere, and every client that is not in it is named.

use thalweg_proto::{Draw, Time, TopKind, TreePlan};

use super::middle::{Below, Middle};
use super::world::{check, plan, End, Fault, TreeWorld, Updates};
use crate::common::network::{Path, Rng};
use crate::common::{MS, SECOND};

const WEST: Below = &[("w1", &["a", "b"]), ("w2", &["c"])];
const EAST: Below = &[("e1", &["d"]), ("e2", &["e", "f"])];
/// The root's nodes: two middle nodes, and a node with clients.
const ROOT: Below = &[("west", &["a", "b", "c"]), ("east", &["d", "e", "f"]), ("near", &["g"])];

fn updates(nodes: Below) -> Updates {
    nodes.iter().flat_map(|(_, clients)| clients.iter().map(|client| (*client).to_owned())).collect()
}

fn all() -> Updates {
    updates(ROOT)
}

/// The tree, with paths that are lossy and deliver chunks out of order if the seed says so.
fn tree(seed: u64) -> TreeWorld {
    let mut rng = Rng::new(seed ^ 0x3ee);
    let mut path = || {
        let delay = rng.time(50 * MS) + MS;
        match seed % 2 {
            0 => Path { delay, ..Path::PERFECT },
            _ => {
                Path { delay, ordered: false, jitter: 40 * MS, loss: 0.05, duplicate: 0.05, ..Path::PERFECT }
            }
        }
    };
    let (west, east, own) = (path(), path(), path());
    let mut world = TreeWorld::over(seed, ROOT, |_| own);
    world.middles.insert(0, Middle::new("west", WEST, seed + 1000, west));
    world.middles.insert(1, Middle::new("east", EAST, seed + 2000, east));
    world
}

fn west(world: &mut TreeWorld) -> &mut TreeWorld {
    world.middles.get_mut(&0).expect("a middle node").world()
}

#[test]
fn the_mean_is_of_all_updates_when_nothing_happens() {
    for seed in 0..60 {
        let mut world = tree(seed);
        for number in 1..4 {
            let end = world.run(plan(number, TopKind::Dedicated));
            assert_eq!(check(&world, &end), all(), "{seed}");
        }
    }
}

/// How many messages a round has at the root, and at a middle node.
fn messages(seed: u64) -> (u64, u64) {
    let mut world = tree(seed);
    world.run(plan(1, TopKind::Dedicated));
    (world.messages, west(&mut world).messages)
}

/// Checks a round in which one fault happened, and the two rounds after it. `own`: the clients below the fault.
fn judge(mut world: TreeWorld, own: &Updates, fault: Fault) {
    let left: Updates = all().difference(own).cloned().collect();
    let mut last = Updates::new();
    for number in 1..4 {
        let end = world.run(plan(number, TopKind::Dedicated));
        last = check(&world, &end);
        assert!(last == all() || last == left, "{fault:?}: {last:?}");
    }
    let is_back = !matches!(fault, Fault::Kill { .. });
    assert_eq!(last, if is_back { all() } else { left }, "{fault:?}");
}

const FAULTS: [Fault; 5] = [
    Fault::Cut,
    Fault::Pause(Time::from_secs(2)),
    Fault::Kill { seen: true },
    Fault::Kill { seen: false },
    Fault::Restart,
];

#[test]
fn a_fault_of_a_middle_at_any_message_costs_its_own_clients_updates_or_none() {
    for seed in 0..4 {
        for at in 1..=messages(seed).0 {
            for fault in FAULTS {
                let mut world = tree(seed);
                world.faults.insert(at, (0, fault));
                judge(world, &updates(WEST), fault);
            }
        }
    }
}

#[test]
fn a_fault_of_a_node_below_a_middle_costs_its_own_clients_updates_or_none() {
    for seed in 0..4 {
        for at in 1..=messages(seed).1 {
            for fault in FAULTS {
                let mut world = tree(seed);
                west(&mut world).faults.insert(at, (0, fault));
                judge(world, &updates(&WEST[..1]), fault);
            }
        }
    }
}

#[test]
fn a_middle_that_hangs_for_too_long_is_given_up_and_is_back_in_a_later_round() {
    for seed in 0..4 {
        for at in 1..=messages(seed).0 {
            let mut world = tree(seed);
            world.faults.insert(at, (0, Fault::Pause(100 * SECOND)));
            for _ in 1..3 {
                let end = world.run(plan(1, TopKind::Dedicated));
                let counted = check(&world, &end);
                let left: Updates = all().difference(&updates(WEST)).cloned().collect();
                assert!(counted == all() || counted == left, "{counted:?}");
            }
        }
    }
}

/// A fault that the seed chooses.
fn any_fault(rng: &mut Rng) -> Fault {
    let time = rng.time(20 * SECOND);
    let seen = rng.chance(0.5);
    let faults = [Fault::Cut, Fault::Pause(time), Fault::Kill { seen }, Fault::Restart, Fault::Restart];
    faults[rng.below(5) as usize]
}

/// Any number of faults, at any level and any time, over several rounds.
fn random(seed: u64) {
    let mut world = tree(seed);
    let mut rng = Rng::new(seed ^ 0x7e57);
    let absent = if seed.is_multiple_of(3) { 0.3 } else { 0.0 };
    world.below.absent = absent;
    for middle in world.middles.values_mut() {
        let below = middle.world();
        below.below.absent = absent;
        for _ in 0..rng.below(4) {
            let (at, index) = (1 + rng.below(30), rng.below(2) as usize);
            below.faults.insert(at, (index, any_fault(&mut rng)));
        }
    }
    for _ in 0..rng.below(4) {
        let (at, index) = (1 + rng.below(40), rng.below(3) as usize);
        world.faults.insert(at, (index, any_fault(&mut rng)));
    }
    for number in 1..4 {
        let enough = 1 + rng.below(5) as u32;
        let before = world.below.model.clone();
        match world.run(TreePlan { enough, ..plan(number, TopKind::Dedicated) }) {
            end @ End::Over { .. } => assert!(check(&world, &end).len() >= enough as usize),
            End::Failed(reason) => {
                assert!(reason.contains(&format!("round {number}")), "{reason}");
                assert_eq!(world.below.model, before, "a round that fails leaves the model");
            }
        }
    }
}

#[test]
fn whatever_happens_at_any_level_a_mean_is_of_the_same_updates_everywhere() {
    (0..4000).for_each(random);
}

#[test]
fn drawn_clients_take_part_wherever_they_are() {
    for seed in 0..300 {
        let mut world = tree(seed);
        let absent = if seed % 2 == 0 { 0.3 } else { 0.0 };
        world.below.absent = absent;
        world.middles.values_mut().for_each(|middle| middle.world().below.absent = absent);
        let goal = 1 + (seed % 7) as u32;
        if seed % 4 == 1 {
            west(&mut world).faults.insert(1 + seed % 20, (0, Fault::Kill { seen: true }));
        }
        let draw = Draw { goal, clients: Some(goal), seed, deadline: None, grace: 2_000_000 };
        let plan = TreePlan { draw: Some(draw), enough: 0, ..plan(1, TopKind::Dedicated) };
        let end = world.run(plan);
        let counted = check(&world, &end);
        let mut asked = world.below.asked.clone();
        world.middles.values_mut().for_each(|middle| asked.append(&mut middle.world().below.asked));
        let once: Updates = asked.iter().cloned().collect();
        assert_eq!(once.len(), asked.len(), "a client is asked twice: {asked:?}");
        assert!(counted.is_subset(&once) && counted.len() <= goal as usize, "{counted:?}");
        assert!(counted.len() == goal as usize || absent > 0.0 || seed % 4 == 1, "{counted:?} of {goal}");
    }
}
