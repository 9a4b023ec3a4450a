//! Rounds with a goal: exactly that many updates count over all nodes, the first ones, whatever happens to nodes and
//! links. Nobody trains twice in a round.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_proto::{Draw, Time, TopKind, TreeNode, TreePlan, TreeRound, TreeStep};
use thalweg_wire::tree::{Answer, Arrival, Request, State};

use super::batches::OUTAGE;
use super::world::{check, plan, End, Fault, TreeWorld, Updates};
use crate::common::network::{Path, Rng};
use crate::common::{MS, SECOND};

const NODES: [(&str, &[&str]); 4] =
    [("n1", &["a", "b", "c"]), ("n2", &["d"]), ("n3", &["e", "f", "g"]), ("n4", &["h", "i"])];
const CLIENTS: u32 = 9;

fn with_goal(number: u32, goal: u32, clients: Option<u32>, seed: u64) -> TreePlan {
    let draw = Draw { goal, clients, seed, deadline: None, grace: 2_000_000 };
    TreePlan { draw: Some(draw), enough: 0, ..plan(number, TopKind::Dedicated) }
}

/// A tree over paths that are lossy, and deliver chunks out of order, if the seed says so.
fn tree(seed: u64) -> TreeWorld {
    TreeWorld::over(seed, &NODES, |rng: &mut Rng| {
        let delay = rng.time(50 * MS) + MS;
        match seed % 2 {
            0 => Path { delay, ..Path::PERFECT },
            _ => {
                Path { delay, ordered: false, jitter: 40 * MS, loss: 0.05, duplicate: 0.05, ..Path::PERFECT }
            }
        }
    })
}

/// Checks a round's end, and returns the clients whose updates count.
fn judge(world: &TreeWorld, end: &End, goal: u32, seed: u64) -> Updates {
    let counted = check(world, end);
    assert!(counted.len() <= goal as usize, "seed {seed}: {counted:?} of {goal}");
    let once: Updates = world.below.asked.iter().cloned().collect();
    assert_eq!(
        once.len(),
        world.below.asked.len(),
        "seed {seed}: a client trains twice: {:?}",
        world.below.asked
    );
    let End::Over { parts, .. } = end else { unreachable!() };
    if counted.len() < goal as usize {
        // It ends short only if nobody is left.
        for (name, clients) in NODES {
            let is_lost = world.nodes.iter().any(|node| node.name == name && node.loss.is_some());
            for client in clients.iter().filter(|client| !counted.contains(**client)) {
                let fails = world.below.failing.contains(*client);
                assert!(is_lost || fails, "seed {seed}: {client} could have counted: {parts:?}");
            }
        }
    }
    counted
}

#[test]
fn the_first_updates_count_over_all_nodes() {
    for seed in 0..400 {
        let mut world = tree(seed);
        let goal = 1 + (seed % 8) as u32;
        for number in 1..4 {
            world.learned.clear();
            let end = world.run(with_goal(number, goal, None, seed));
            let counted = judge(&world, &end, goal, seed);
            assert_eq!(counted.len(), goal as usize);
            let mut first: Vec<String> = Vec::new();
            for client in &world.learned {
                if first.len() < goal as usize && !first.contains(client) {
                    first.push(client.clone());
                }
            }
            assert_eq!(
                counted,
                first.into_iter().collect(),
                "seed {seed}: the first that the root learned of"
            );
        }
    }
}

#[test]
fn all_count_if_the_goal_is_all_of_them_and_drawn_clients_alone_take_part() {
    for seed in 0..200 {
        let mut world = tree(seed);
        let end = world.run(with_goal(1, CLIENTS, None, seed));
        assert_eq!(judge(&world, &end, CLIENTS, seed).len(), CLIENTS as usize);
        let end = world.run(with_goal(2, 3, Some(6), seed));
        assert_eq!(judge(&world, &end, 3, seed).len(), 3);
        assert_eq!(world.below.asked.len(), 6, "six are drawn");
    }
}

/// How many messages a round has when nothing happens.
fn messages(seed: u64) -> u64 {
    let mut world = tree(seed);
    world.run(with_goal(1, 4, None, seed));
    world.messages
}

#[test]
fn one_fault_at_any_message_of_any_node_leaves_exactly_the_goal() {
    let faults = [
        Fault::Cut,
        Fault::Pause(2 * SECOND),
        Fault::Kill { seen: true },
        Fault::Kill { seen: false },
        Fault::Restart,
    ];
    for seed in 0..6 {
        for at in 1..=messages(seed) {
            for index in 0..NODES.len() {
                for fault in faults {
                    let mut world = tree(seed);
                    world.faults.insert(at, (index, fault));
                    for number in 1..3 {
                        let end = world.run(with_goal(number, 4, None, seed));
                        // Nine clients are there, and a node has three of them at most.
                        assert_eq!(
                            judge(&world, &end, 4, seed).len(),
                            4,
                            "{fault:?} at {at} of node {index}"
                        );
                    }
                }
            }
        }
    }
}

/// Runs a round whose clients may stay away. Returns its end, how many clients deliver, and whether it has waited for
/// the end of the outage.
fn with_clients_away(seed: u64, plan: TreePlan) -> (End, usize, bool) {
    let mut world = tree(seed);
    world.below.absent = 0.4;
    let began = world.tasks.now;
    let end = world.run(plan);
    (end, CLIENTS as usize - world.below.failing.len(), world.tasks.now >= began + OUTAGE)
}

#[test]
fn a_round_waits_for_the_end_of_an_outage_only_while_it_has_too_few_updates() {
    let (mut failed, mut short) = (0, 0);
    for seed in 0..400 {
        let enough = 1 + (seed % 6) as u32;
        let plan = TreePlan { enough, ..with_goal(1, 6, None, seed) };
        let (end, come, has_waited) = with_clients_away(seed, plan);
        match end {
            End::Over { counting, .. } => {
                assert_eq!(counting.len(), come.min(6), "seed {seed}");
                assert!(counting.len() >= enough as usize && !has_waited, "seed {seed}");
                short += usize::from(come < 6);
            }
            End::Failed(why) => {
                assert!(come < enough as usize && has_waited, "seed {seed}: {why}");
                failed += 1;
            }
        }
    }
    assert!(failed > 20 && short > 20, "rounds fail, and end with fewer than the goal: {failed}, {short}");
}

#[test]
fn a_round_waits_for_an_outage_again_if_it_loses_a_node_with_updates_that_made_it_enough() {
    let (mut failed, mut made_up) = (0, 0);
    for seed in 0..80 {
        for at in 10..=60 {
            let mut world = tree(seed);
            world.below.absent = 0.4;
            world.faults.insert(at, (((seed + at) % 4) as usize, Fault::Kill { seen: true }));
            let began = world.tasks.now;
            let end = world.run(TreePlan { enough: 4, ..with_goal(1, 6, None, seed) });
            let has_waited = world.tasks.now >= began + OUTAGE;
            match end {
                End::Over { counting, .. } => made_up += usize::from(counting.len() >= 4),
                End::Failed(why) => {
                    let lives = |client: &&str| {
                        world
                            .nodes
                            .iter()
                            .any(|node| node.loss.is_none() && node.clients.iter().any(|own| own == client))
                    };
                    let is_away = |client: &&str| world.below.failing.contains(*client) && lives(client);
                    let is_anybody_away = NODES.iter().flat_map(|(_, all)| all.iter()).any(is_away);
                    assert!(has_waited || !is_anybody_away, "seed {seed}, {at}: {why}");
                    failed += 1;
                }
            }
        }
    }
    assert!(failed > 50 && made_up > 50, "{failed}, {made_up}");
}

/// A round at its root, whose two nodes `n1` and `n2` have been asked for it and for arrivals. Returns the numbers of the
/// requests for arrivals by node, too.
fn asked() -> (TreeRound, BTreeMap<String, u32>) {
    let node = |name: &str, clients: [&str; 2]| TreeNode {
        name: name.into(),
        clients: clients.map(str::to_owned).into(),
        connected: clients.map(str::to_owned).into(),
        peers: format!("tcp://{name}"),
        ..TreeNode::default()
    };
    let nodes = vec![node("n1", ["a", "b"]), node("n2", ["c", "d"])];
    let mut round =
        TreeRound::new(Time::ZERO, with_goal(1, 2, None, 1), nodes.clone(), Box::new(|_| Vec::new()));
    let mut arrivals = BTreeMap::new();
    while let Some(step) = round.poll_step() {
        let TreeStep::Ask { ask, request, nodes: to, .. } = step else { panic!("{step:?}") };
        match request {
            Request::Wait { .. } => {
                for node in &nodes {
                    let state = State { clients: node.clients.clone() };
                    round.answered(Time::ZERO, ask, &node.name, Answer::State(state), None);
                }
            }
            Request::Admit(_) => arrivals.extend(to.into_iter().map(|node| (node, ask))),
            _ => assert!(matches!(request, Request::Round { .. })),
        }
    }
    (round, arrivals)
}

/// The steps of a round as text.
fn steps(round: &mut TreeRound) -> Vec<String> {
    std::iter::from_fn(|| round.poll_step()).map(|step| format!("{step:?}")).collect()
}

#[test]
fn a_node_that_tells_no_arrivals_or_wrong_ones_is_dropped_and_not_waited_for() {
    let wrong = [
        vec![Arrival("c".into(), true)],
        vec![Arrival("a".into(), true); 5],
        vec![Arrival("nobody".into(), false)],
    ];
    let answers = wrong.into_iter().map(Some).chain([None]);
    for answer in answers {
        let (mut round, arrivals) = asked();
        let n1 = arrivals["n1"];
        match answer {
            Some(wrong) => round.answered(Time::ZERO, n1, "n1", Answer::Arrived(wrong), None),
            None => round.unanswered(Time::ZERO, n1, "n1", "it does not know the request", None),
        }
        let told = vec![Arrival("c".into(), true), Arrival("d".into(), true)];
        round.answered(Time::ZERO, arrivals["n2"], "n2", Answer::Arrived(told), None);
        let steps = steps(&mut round);
        assert!(
            steps.iter().any(|step| step.contains(r#"clients: ["c", "d"], last: true"#)),
            "both updates of n2 count: {steps:?}"
        );
        assert!(!steps.iter().any(|step| step.contains(r#""n1""#)), "n1 is asked nothing more: {steps:?}");
    }
}

#[test]
fn a_round_draws_others_instead_of_waiting_for_the_end_of_an_outage() {
    for seed in 0..200 {
        let plan = TreePlan { enough: 3, ..with_goal(1, 3, Some(4), seed) };
        let (end, _, has_waited) = with_clients_away(seed, plan);
        assert!(!has_waited, "seed {seed}: {end:?}");
    }
}

/// Any number of faults, at any time, with clients that do not deliver and updates that cannot be folded.
fn random(seed: u64) -> bool {
    let mut world = tree(seed);
    let mut rng = Rng::new(seed ^ 0x60a1);
    world.below.absent = if seed.is_multiple_of(3) { 0.3 } else { 0.0 };
    world.below.unfoldable = if seed.is_multiple_of(4) { 0.2 } else { 0.0 };
    for _ in 0..rng.below(6) {
        let (at, index) = (1 + rng.below(120), rng.below(4) as usize);
        let time = rng.time(20 * SECOND);
        let seen = rng.chance(0.5);
        let faults = [Fault::Cut, Fault::Pause(time), Fault::Kill { seen }, Fault::Restart, Fault::Restart];
        world.faults.insert(at, (index, faults[rng.below(5) as usize]));
    }
    let mut kinds = BTreeSet::new();
    for number in 1..4 {
        let goal = 1 + rng.below(u64::from(CLIENTS)) as u32;
        let more = rng.below(u64::from(CLIENTS - goal) + 1) as u32;
        let clients = rng.chance(0.5).then_some(goal + more);
        world.below.failing.clear();
        let end = world.run(with_goal(number, goal, clients, seed));
        kinds.insert(judge(&world, &end, goal, seed).len() == goal as usize);
    }
    kinds.len() == 2
}

#[test]
fn whatever_happens_no_more_updates_count_than_the_goal_and_fewer_only_if_nobody_is_left() {
    let both = (0..4000).filter(|&seed| random(seed)).count();
    assert!(both > 100, "some rounds reach their goal, and some cannot: {both}");
}
