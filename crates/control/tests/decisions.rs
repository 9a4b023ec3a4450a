//! Golden tests: decisions and their reasons in words.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use thalweg_control::{
    decide, Client, Config, Node, Plan, Policy, Reason, Scaling, Split, State, Top, TopPolicy, UPDATE,
};

const NOW: Duration = Duration::from_secs(1000);

fn node(capacity: u64) -> Node {
    Node {
        capacity: capacity * UPDATE,
        busy: 0,
        estimate: None,
        needs: Vec::new(),
        workers: 0,
        last_message: NOW,
        group: None,
    }
}

fn clients(homes: &[Option<u32>]) -> Vec<Client> {
    homes.iter().map(|&home| Client { home, ..Client::default() }).collect()
}

/// A state of nodes with capacity 20 and of clients that have no node yet.
fn fresh(nodes: usize, updates: usize) -> State {
    State { nodes: vec![node(20); nodes], clients: clients(&vec![None; updates]), planned: None }
}

fn paper() -> Config {
    Config { split: Split::Clients, workers: 64, ..Config::default() }
}

/// Number of clients of each node.
fn counts(plan: &Plan) -> Vec<(u32, u32)> {
    plan.trees.iter().map(|tree| (tree.node, tree.clients)).collect()
}

fn texts(reason: &Reason) -> Vec<String> {
    reason.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn twenty_updates_go_to_one_node_with_ten_leaves() {
    let (plan, reason) = decide(NOW, &fresh(5, 20), &paper());
    assert_eq!(counts(&plan), [(0, 20)]);
    let tree = &plan.trees[0];
    assert_eq!((tree.leaves, tree.middle, tree.start, tree.stop), (10, true, 10, 0));
    assert_eq!((plan.top, plan.next), (Top::Node { node: 0 }, NOW + Duration::from_secs(120)));
    assert_eq!(
        texts(&reason),
        [
            "20 clients placed on 1 node by best fit: the fullest node with room",
            "node 0: 10 leaves and a middle, for a smoothed queue of 20 (now 20) at 2 a leaf",
            "the top is at node 0: no other has clients",
        ]
    );
}

#[test]
fn worst_fit_spreads_them_over_all_nodes() {
    let (plan, reason) = decide(NOW, &fresh(5, 20), &Config { placement: Policy::WorstFit, ..paper() });
    assert_eq!(counts(&plan), [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]);
    assert_eq!(plan.top, Top::FirstFinished);
    assert_eq!(texts(&reason)[0], "20 clients placed on 5 nodes by worst fit: the emptiest node");
    assert_eq!(texts(&reason)[6], "the top is at whichever of 5 nodes finishes first");
}

#[test]
fn nodes_used_are_the_papers() {
    let used = |updates, placement| {
        let (plan, _) = decide(NOW, &fresh(5, updates), &Config { placement, ..paper() });
        plan.trees.len()
    };
    assert_eq!([20, 60, 100].map(|updates| used(updates, Policy::BestFit)), [1, 3, 5]);
    assert_eq!([20, 60, 100].map(|updates| used(updates, Policy::WorstFit)), [5, 5, 5]);
}

#[test]
fn clients_keep_their_node_while_they_fit() {
    let mut state = fresh(3, 0);
    state.nodes[0].capacity = 2 * UPDATE;
    state.clients = clients(&[Some(0), Some(0), Some(0), Some(2), None, Some(9)]);
    let (plan, reason) = decide(NOW, &state, &paper());
    assert_eq!(plan.homes, [0, 0, 2, 2, 2, 2].map(Some), "node 2 is the fullest with room");
    assert_eq!(
        texts(&reason)[..4],
        [
            "3 clients stay at their node, where they fit",
            "1 client without room where they were",
            "1 client without their node, which is lost or not for them",
            "3 clients placed on 1 node by best fit: the fullest node with room",
        ]
    );
    let (plan, _) = decide(NOW, &state, &Config { keep: false, ..paper() });
    assert_eq!(plan.homes, [0, 0, 1, 1, 1, 1].map(Some));
}

#[test]
fn what_fits_nowhere_overflows_by_worst_fit_and_says_so() {
    let mut state = fresh(2, 43);
    state.nodes[1].busy = 500;
    let (plan, reason) = decide(NOW, &state, &paper());
    assert_eq!(counts(&plan), [(0, 22), (1, 21)]);
    assert_eq!(
        texts(&reason)[..2],
        [
            "39 clients placed on 2 nodes by best fit: the fullest node with room",
            "4 clients without room anywhere placed on 2 nodes by worst fit; the largest room left was 0.5",
        ]
    );
}

#[test]
fn a_lost_node_gives_its_clients_to_others_at_once() {
    let mut state = fresh(2, 0);
    state.clients = clients(&[Some(0), Some(1), Some(1)]);
    state.planned = Some(NOW - Duration::from_secs(1));
    state.nodes[0].workers = 1;
    state.nodes[1].workers = 1;
    state.nodes[0].last_message = NOW - Duration::from_secs(11);
    let (plan, reason) = decide(NOW, &state, &paper());
    assert_eq!((&plan.homes[..], &plan.lost[..]), (&[Some(1); 3][..], &[0][..]));
    assert!(plan.planned, "the set of nodes changed");
    assert_eq!(
        texts(&reason)[..3],
        [
            "node 0 is lost: not heard for 11.0 s",
            "2 clients stay at their node, where they fit",
            "1 client without their node, which is lost or not for them",
        ]
    );
    state.nodes[1].last_message = Duration::ZERO;
    let (plan, reason) = decide(NOW, &state, &paper());
    assert_eq!((plan.homes, plan.top), (vec![None; 3], Top::Nowhere));
    assert_eq!(texts(&reason)[2], "no node is there, so no client has one");
}

#[test]
fn hierarchies_follow_the_smoothed_queue_every_two_minutes() {
    let mut state = fresh(1, 10);
    state.nodes[0].estimate = Some(20_000);
    state.nodes[0].workers = 10;
    state.planned = Some(NOW - Duration::from_secs(119));
    let (plan, reason) = decide(NOW, &state, &paper());
    assert_eq!((plan.trees[0].leaves, plan.planned, plan.next), (10, false, NOW + Duration::from_secs(1)));
    assert_eq!(texts(&reason)[1], "hierarchies stay as they are until 1001.0 s, when they are planned again");
    state.planned = Some(NOW - Duration::from_secs(120));
    let (plan, reason) = decide(NOW, &state, &paper());
    let tree = &plan.trees[0];
    assert_eq!((tree.estimate, tree.leaves, tree.start, tree.stop), (17_000, 9, 0, 1));
    assert_eq!(
        texts(&reason)[1],
        "node 0: 9 leaves and a middle, for a smoothed queue of 17 (now 10) at 2 a leaf"
    );
}

#[test]
fn a_node_that_has_no_clients_any_more_ends_its_workers() {
    let mut state = fresh(2, 3);
    state.nodes[1].workers = 4;
    state.nodes[1].estimate = Some(8_000);
    let (plan, _) = decide(NOW, &state, &paper());
    assert_eq!(counts(&plan), [(0, 3), (1, 0)]);
    assert_eq!((plan.trees[1].leaves, plan.trees[1].stop, plan.top), (0, 4, Top::Node { node: 0 }));
}

#[test]
fn a_dedicated_top_takes_no_clients_and_a_sharded_one_is_everywhere() {
    let (plan, reason) = decide(NOW, &fresh(3, 50), &Config { top: TopPolicy::Dedicated, ..paper() });
    assert_eq!((counts(&plan), plan.top), (vec![(0, 25), (1, 25)], Top::Node { node: 2 }));
    assert_eq!(texts(&reason).last().unwrap(), "the top is at node 2, which takes no clients");
    let (plan, reason) = decide(NOW, &fresh(3, 50), &Config { top: TopPolicy::Sharded, ..paper() });
    assert_eq!(plan.top, Top::Sharded { nodes: vec![0, 1, 2] });
    assert_eq!(texts(&reason).last().unwrap(), "each of 3 nodes is the top for 1/3 of the bytes");
    let (plan, _) = decide(NOW, &fresh(1, 5), &Config { top: TopPolicy::Dedicated, ..paper() });
    assert_eq!(plan.top, Top::Node { node: 0 }, "one node is both");
}

#[test]
fn groups_go_to_nodes_that_serve_them() {
    let mut state = fresh(3, 6);
    (state.nodes[0].group, state.nodes[1].group) = (Some(0), Some(1));
    for (client, group) in state.clients.iter_mut().zip([1, 1, 0, 0, 7, 7]) {
        client.group = Some(group);
    }
    let (plan, _) = decide(NOW, &state, &paper());
    assert_eq!(plan.homes, [1, 1, 0, 0, 2, 2].map(Some), "node 2 serves all");
    state.nodes[2].group = Some(2);
    let (plan, reason) = decide(NOW, &state, &paper());
    assert_eq!(plan.homes, [Some(1), Some(1), Some(0), Some(0), None, None]);
    assert!(texts(&reason)
        .contains(&"2 clients of group 7 without a node: none that is there serves it".to_owned()));
}

#[test]
fn other_scalings_are_not_planned() {
    let fixed = Config { scaling: Scaling::Fixed, workers: 4, ..paper() };
    let (plan, reason) = decide(NOW, &fresh(1, 20), &fixed);
    assert_eq!((plan.trees[0].leaves, texts(&reason)[1].as_str()), (4, "node 0: 4 fixed workers, always"));
    let (plan, reason) = decide(NOW, &fresh(1, 20), &Config { scaling: Scaling::Knative, ..paper() });
    assert_eq!((plan.trees[0].leaves, plan.trees[0].start), (0, 0));
    assert_eq!(texts(&reason)[1], "node 0: the autoscaler starts workers when requests come");
    let (plan, reason) = decide(NOW, &fresh(1, 20), &Config { workers: 2, ..Config::default() });
    assert_eq!((plan.trees[0].leaves, plan.trees[0].middle), (2, false));
    assert_eq!(texts(&reason)[1], "node 0: 2 workers, each for its range of the bytes of all updates");
}

#[test]
fn ten_thousand_clients_fill_a_hundred_nodes() {
    let mut state = fresh(100, 10_000);
    state.nodes.iter_mut().for_each(|node| node.capacity = 100 * UPDATE);
    let (plan, _) = decide(NOW, &state, &paper());
    assert!(plan.trees.iter().all(|tree| tree.clients == 100 && tree.leaves == 50));
    // Another round with all clients at their nodes changes nothing.
    state.clients = clients(&plan.homes);
    for (node, tree) in state.nodes.iter_mut().zip(&plan.trees) {
        (node.workers, node.estimate) = (tree.leaves, Some(tree.estimate));
    }
    let (again, reason) = decide(NOW, &state, &paper());
    assert_eq!(again.homes, plan.homes);
    assert!(again.trees.iter().all(|tree| tree.start == 0 && tree.stop == 0));
    assert_eq!(texts(&reason)[0], "10000 clients stay at their node, where they fit");
}

prop_compose! {
    fn any_state()(
        nodes in proptest::collection::vec((0_u64..30, 0_u64..9000, 0_u32..9, any::<bool>(), proptest::option::of(0_u32..3)), 0..8),
        clients in proptest::collection::vec((proptest::option::of(0_u32..9), 0_u64..3000, proptest::option::of(0_u32..3)), 0..60),
    ) -> State {
        let nodes = nodes.into_iter().map(|(capacity, busy, workers, there, group)| Node {
            busy, workers, group, last_message: if there { NOW } else { Duration::ZERO }, ..node(capacity)
        });
        let clients = clients.into_iter().map(|(home, load, group)| Client { home, load, group });
        State { nodes: nodes.collect(), clients: clients.collect(), planned: None }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No client gets a node that is lost or serves another group. Every client that can have a node has one.
    /// Counts agree. The same state gives the same decision.
    #[test]
    fn every_decision_is_sound(
        state in any_state(),
        placement in prop_oneof![Just(Policy::BestFit), Just(Policy::WorstFit), Just(Policy::FirstFit)],
        top in prop_oneof![Just(TopPolicy::FirstFinished), Just(TopPolicy::Dedicated), Just(TopPolicy::Sharded)],
    ) {
        let config = Config { placement, top, ..paper() };
        let (plan, reason) = decide(NOW, &state, &config);
        prop_assert_eq!(&decide(NOW, &state, &config), &(plan.clone(), reason));
        let serves = |node: usize, client: &Client| {
            let known = &state.nodes[node];
            let taken = plan.top == Top::Node { node: node as u32 } && top == TopPolicy::Dedicated
                && state.nodes.iter().filter(|node| node.last_message == NOW).count() > 1;
            known.last_message == NOW && (known.group.is_none() || known.group == client.group) && !taken
        };
        for (client, home) in state.clients.iter().zip(&plan.homes) {
            match home {
                Some(home) => prop_assert!(serves(*home as usize, client)),
                None if plan.top != Top::Nowhere =>
                    prop_assert!((0..state.nodes.len()).all(|node| !serves(node, client))),
                None => {}
            }
        }
        for tree in &plan.trees {
            let clients = plan.homes.iter().filter(|home| **home == Some(tree.node)).count();
            prop_assert_eq!(tree.clients as usize, clients);
            prop_assert_eq!(state.nodes[tree.node as usize].workers + tree.start, tree.leaves + tree.stop);
        }
    }
}
