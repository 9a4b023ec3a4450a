//! Tests of the simulation: bounds in closed form, consistent counts, and the same outcome for the same seed.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use thalweg_control::simulate::{
    run, Costs, Impossible, Levels, NodeSpec, Outcome, Scenario, Switches, SYSTEMS,
};
use thalweg_control::{Config, Policy, Scaling, Split, Timing, TopPolicy, UPDATE};

const BYTES: u64 = 29_000_000;
/// Bits a second at which 232 MB take 4.2 s.
const RATE: u64 = 441_904_761;

fn scenario(system: &str, nodes: usize, clients: u32) -> Scenario {
    let node = NodeSpec { capacity: 20 * UPDATE, cores: 2, rate: RATE, ingress: None, group: None };
    Scenario {
        nodes: vec![node; nodes],
        clients,
        groups: Vec::new(),
        goal: None,
        bytes: BYTES,
        rounds: 1,
        between: Duration::from_secs(1),
        spread: Duration::ZERO,
        seed: 1,
        sums_bytes: None,
        arrivals: Vec::new(),
        config: Config { split: Split::Clients, workers: 64, ..Config::default() },
        switches: Switches::of(system).unwrap(),
        autoscaler: Default::default(),
        costs: Costs::default(),
    }
}

fn one(scenario: &Scenario) -> Outcome {
    run(scenario).unwrap().remove(0)
}

/// Time of a transfer between nodes at [`RATE`].
fn on_link(bytes: u64) -> Duration {
    Duration::from_nanos((u128::from(bytes) * 8_000_000_000 / u128::from(RATE)) as u64)
}

#[test]
fn one_lazy_worker_folds_eight_updates_in_one_pass() {
    let mut scenario = scenario("lifl", 1, 8);
    scenario.config = Config::default();
    scenario.switches.timing = Timing::Lazy;
    let costs = &scenario.costs;
    let expected = costs.hand_over + costs.folding(8, BYTES);
    let outcome = one(&scenario);
    assert_eq!((outcome.completion, outcome.cpu.fold), (expected, costs.folding(8, BYTES)));
    assert_eq!((outcome.aggregators_created, outcome.reused, outcome.bytes_between), (1, 0, 0));
    assert_eq!(outcome.cpu.start, costs.warm_start);
}

#[test]
fn an_eager_worker_is_done_one_update_after_the_last_one() {
    let mut scenario = scenario("lifl", 1, 5);
    scenario.config = Config::default();
    scenario.spread = Duration::from_secs(100);
    let outcome = one(&scenario);
    let finish = scenario.costs.hand_over + scenario.costs.folding(1, BYTES);
    assert_eq!(outcome.completion, outcome.arrival + finish);
    scenario.switches.timing = Timing::Lazy;
    let lazy = one(&scenario);
    assert_eq!(lazy.completion, lazy.arrival + scenario.costs.hand_over + scenario.costs.folding(5, BYTES));
}

#[test]
fn two_nodes_take_one_transfer_and_one_more_fold() {
    let mut scenario = scenario("lifl", 2, 2);
    scenario.switches.placement = Policy::WorstFit;
    let costs = &scenario.costs;
    let fold = costs.folding(1, BYTES);
    // Both nodes fold at the same time. The second to finish sends its sums to the first.
    let expected = costs.hand_over + fold + on_link(BYTES) + costs.hand_over + fold;
    let outcome = one(&scenario);
    assert_eq!((outcome.completion, outcome.top, outcome.bytes_between), (expected, Some(0), BYTES));
    assert_eq!(outcome.spread, on_link(BYTES));
}

#[test]
fn a_leaf_for_two_and_a_middle_are_three_folds_deep() {
    let mut scenario = scenario("lifl", 1, 4);
    scenario.nodes[0].cores = 64;
    scenario.switches.timing = Timing::Lazy;
    let costs = &scenario.costs;
    let expected = (costs.hand_over + costs.folding(2, BYTES)) * 2;
    let outcome = one(&scenario);
    assert_eq!(outcome.completion, expected);
    assert_eq!((outcome.aggregators_created, outcome.reused, outcome.folded), (2, 1, 4));
}

#[test]
fn a_sharded_top_moves_less_over_each_link_than_one_top() {
    let mut scenario = scenario("lifl", 5, 5);
    scenario.switches.placement = Policy::WorstFit;
    let single = one(&scenario);
    scenario.config.top = TopPolicy::Sharded;
    let sharded = one(&scenario);
    assert_eq!(single.bytes_between, 4 * BYTES);
    assert_eq!(sharded.bytes_between, 4 * BYTES);
    let (gathered, spread) = (single.completion + single.spread, sharded.completion + sharded.spread);
    assert_eq!(single.spread, on_link(BYTES) * 4);
    assert!(spread * 4 < gathered, "{spread:?} of {gathered:?}");
    assert!(sharded.spread <= on_link(BYTES) && sharded.top.is_none());
}

#[test]
fn containers_start_without_a_core() {
    let mut scenario = scenario("sl-h", 1, 1);
    scenario.nodes[0].cores = 1;
    let program = one(&scenario);
    scenario.costs.container_start = Duration::from_secs(2);
    let container = one(&scenario);
    assert_eq!(container.cpu, program.cpu);
    assert!(container.completion >= program.completion + scenario.costs.container_start);
}

#[test]
fn planned_levels_start_cold_in_each_round_and_together() {
    let mut scenario = scenario("sl-h", 1, 4);
    (scenario.rounds, scenario.nodes[0].cores) = (3, 64);
    (scenario.switches.scaling, scenario.costs.container_start) =
        (Scaling::Hierarchy, Duration::from_secs(5));
    for outcome in run(&scenario).unwrap() {
        assert_eq!(outcome.aggregators_created, 4, "two leaves, a middle and the top");
        let start = scenario.costs.container_start;
        assert!(start < outcome.completion && outcome.completion < 2 * start, "{:?}", outcome.completion);
    }
}

#[test]
fn sums_may_be_larger_than_updates() {
    let mut scenario = scenario("lifl", 2, 2);
    scenario.switches.placement = Policy::WorstFit;
    let same = one(&scenario);
    scenario.sums_bytes = Some(2 * BYTES);
    let larger = one(&scenario);
    assert_eq!((same.bytes_between, larger.bytes_between), (BYTES, 2 * BYTES));
    assert_eq!(larger.completion, same.completion + on_link(BYTES));
}

#[test]
fn a_dedicated_node_takes_all_sums_and_no_updates() {
    let mut scenario = scenario("sf", 5, 60);
    scenario.config.top = TopPolicy::Dedicated;
    let outcome = one(&scenario);
    assert_eq!((outcome.nodes_used, outcome.top, outcome.bytes_between), (4, Some(4), 4 * BYTES));
}

#[test]
fn figure_8_uses_as_many_nodes_as_the_paper() {
    let used = |system: &str| [20, 60, 100].map(|updates| one(&scenario(system, 5, updates)).nodes_used);
    assert_eq!((used("lifl"), used("sl-h")), ([1, 3, 5], [5, 5, 5]));
}

#[test]
fn every_system_counts_every_update_once() {
    for system in SYSTEMS {
        for clients in [1, 2, 7, 60] {
            let mut scenario = scenario(system, 5, clients);
            (scenario.rounds, scenario.spread) = (3, Duration::from_secs(3));
            for outcome in run(&scenario).unwrap() {
                assert_eq!((outcome.counted, outcome.folded), (clients, clients), "{system}, {clients}");
            }
        }
    }
}

#[test]
fn warm_workers_serve_the_next_round() {
    let mut scenario = scenario("lifl", 5, 60);
    scenario.rounds = 2;
    let outcomes = run(&scenario).unwrap();
    assert_eq!((outcomes[0].aggregators_created, outcomes[1].aggregators_created), (30, 0));
    assert_eq!(
        outcomes[0].completion, outcomes[1].completion,
        "they were started before the first update came"
    );
}

#[test]
fn cold_starts_delay_an_autoscaled_system_at_each_level_and_planned_workers_once() {
    let mut reactive = scenario("sl-h", 1, 4);
    reactive.costs.cold_start = Duration::from_secs(1);
    let outcome = one(&reactive);
    assert!(outcome.completion > Duration::from_secs(3), "leaf, middle and top one after the other");
    (reactive.switches.scaling, reactive.switches.reuse) = (Scaling::Hierarchy, true);
    let planned = one(&reactive).completion;
    assert!(Duration::from_secs(1) <= planned && planned < Duration::from_secs(2), "{planned:?}");
}

#[test]
fn a_goal_below_the_number_of_clients_ends_the_round() {
    let mut scenario = scenario("lifl", 5, 100);
    (scenario.goal, scenario.spread, scenario.rounds) = (Some(63), Duration::from_secs(60), 3);
    for outcome in run(&scenario).unwrap() {
        assert_eq!((outcome.counted, outcome.folded), (63, 63));
        assert!(outcome.arrival < Duration::from_secs(50) && outcome.draws > 5);
    }
}

#[test]
fn clients_links_can_bind() {
    let mut scenario = scenario("lifl", 1, 10);
    scenario.nodes[0].ingress = Some(RATE);
    let outcome = one(&scenario);
    assert_eq!(outcome.arrival, on_link(BYTES) * 9);
}

#[test]
fn a_broker_and_a_side_process_hold_more_copies() {
    let peak = |system| one(&scenario(system, 1, 8)).peak_bytes;
    assert!(peak("sl-b") > 2 * peak("sf-mono"));
    let cpu = |system| one(&scenario(system, 1, 8)).cpu.moving;
    assert!(cpu("sl") > cpu("sf") && cpu("sf") > cpu("lifl") && cpu("lifl") == Duration::ZERO);
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |change: &dyn Fn(&mut Scenario)| {
        let mut scenario = scenario("lifl", 2, 4);
        change(&mut scenario);
        run(&scenario).unwrap_err()
    };
    assert!(matches!(refused(&|s| s.nodes.clear()), Impossible::Bounds { .. }));
    assert!(matches!(refused(&|s| s.goal = Some(5)), Impossible::Bounds { .. }));
    assert!(matches!(refused(&|s| s.clients = 1 << 30), Impossible::Bounds { .. }));
    let alone = refused(&|s| {
        s.groups = vec![0, 1];
        s.nodes.iter_mut().for_each(|node| node.group = Some(0));
    });
    assert!(alone.to_string().starts_with("round 1: only 2 of 4 updates have a node ("), "{alone}");
    assert!(alone.to_string().contains("2 clients of group 1 without a node"), "{alone}");
}

#[test]
fn ten_thousand_clients_on_a_hundred_nodes_are_simulated() {
    let mut scenario = scenario("lifl", 100, 10_000);
    scenario.nodes.iter_mut().for_each(|node| node.capacity = 100 * UPDATE);
    scenario.spread = Duration::from_secs(60);
    let outcome = one(&scenario);
    assert_eq!((outcome.counted, outcome.folded, outcome.nodes_used), (10_000, 10_000, 100));
    assert_eq!(outcome, one(&scenario), "the same seed");
    let other = one(&Scenario { seed: 2, ..scenario });
    assert_ne!(outcome.arrival, other.arrival);
}

prop_compose! {
    fn any_scenario()(
        system in proptest::sample::select(SYSTEMS.to_vec()),
        nodes in 1_usize..6,
        clients in 1_u32..60,
        spread in 0_u64..4,
        cores in 1_u32..5,
        workers in 1_u32..5,
        split in prop_oneof![Just(Split::Clients), Just(Split::Ranges)],
        top in prop_oneof![Just(TopPolicy::FirstFinished), Just(TopPolicy::Dedicated), Just(TopPolicy::Sharded)],
        placement in prop_oneof![Just(Policy::BestFit), Just(Policy::WorstFit), Just(Policy::FirstFit)],
        reuse in any::<bool>(),
        few in any::<bool>(),
    ) -> Scenario {
        let mut scenario = scenario(system, nodes, clients);
        scenario.nodes.iter_mut().for_each(|node| node.cores = cores);
        scenario.config = Config { workers, split, top, ..scenario.config };
        (scenario.switches.placement, scenario.switches.reuse) = (placement, reuse);
        (scenario.spread, scenario.rounds) = (Duration::from_secs(spread), 2);
        scenario.goal = few.then_some(clients.div_ceil(2));
        scenario
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// All systems in all settings: eager and lazy timing fold the same updates. A round ends no earlier than
    /// its last update, its cores and its links allow, and no later than if everything ran one after the
    /// other.
    #[test]
    fn rounds_keep_to_their_bounds(mut scenario in any_scenario()) {
        scenario.switches.timing = Timing::Eager;
        let eager = run(&scenario).unwrap();
        scenario.switches.timing = Timing::Lazy;
        let lazy = run(&scenario).unwrap();
        let ranges = scenario.config.split == Split::Ranges && scenario.switches.levels == Levels::Tree;
        let parts = if ranges { scenario.config.workers } else { 1 };
        for (eager, lazy) in eager.iter().zip(&lazy) {
            prop_assert_eq!((eager.counted, eager.folded), (lazy.counted, lazy.folded));
            prop_assert_eq!((eager.counted, eager.folded), (scenario.goal(), scenario.goal() * parts));
            prop_assert_eq!((eager.nodes_used, eager.bytes_between), (lazy.nodes_used, lazy.bytes_between));
        }
        for outcome in eager.iter().chain(&lazy) {
            let cores: u32 = scenario.nodes.iter().map(|node| node.cores).sum();
            prop_assert!(outcome.completion >= outcome.arrival);
            prop_assert!(outcome.completion + scenario.between >= (outcome.cpu.fold + outcome.cpu.moving) / cores);
            let per_link = outcome.bytes_between / u64::from(outcome.nodes_used.max(1)) / 2;
            prop_assert!(outcome.completion >= on_link(per_link));
            let work = outcome.cpu.fold + outcome.cpu.moving + outcome.cpu.start;
            let notes = scenario.costs.hand_over * 4 * (outcome.counted + 10) * parts;
            let serial = outcome.arrival + work + on_link(outcome.bytes_between) + notes;
            // With the autoscaler a task may wait for ticks.
            let ticks = if scenario.switches.scaling == Scaling::Knative { Duration::from_secs(60) } else { Duration::ZERO };
            prop_assert!(outcome.completion <= serial + ticks, "{:?} of {serial:?}", outcome.completion);
        }
    }
}
