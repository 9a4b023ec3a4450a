//! A server below another one confirms updates only when the sums that they are in count there.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_proto::{Homes, State, Verdict};

use crate::common::network::Rng;
use crate::common::{plan, profile, Profile, Setup, World, MS, SECOND};

const CLIENTS: usize = 4;

fn name(index: usize) -> String {
    format!("c{index}")
}

fn setup(seed: u64) -> Setup {
    Setup { seed, withhold: true, liveness: 2 * SECOND, folding: 20 * MS, ..Setup::default() }
}

fn clients() -> impl Iterator<Item = Profile> {
    (0..CLIENTS).map(|index| Profile { train: 40 * MS * (index as u32 + 1), ..profile(&name(index)) })
}

/// The sums of a round count or not, and the updates of the clients in `left_out` do not.
fn confirm(world: &mut World, round: u32, counts: bool, left_out: &[usize]) {
    let left_out = left_out.iter().map(|&index| name(index)).collect();
    world.server.machine.confirm(round, counts, &left_out);
    world.server_actions();
}

#[test]
fn a_client_learns_that_its_update_counts_when_its_nodes_sums_count() {
    let mut world = World::joined(&setup(1), clients());
    let result = world.round(plan(1, CLIENTS as u32), 60 * SECOND);
    assert!(result.outcome.complete);
    world.pass(30 * SECOND);
    assert!((0..CLIENTS).all(|index| world.verdicts(index).is_empty()), "too early");
    confirm(&mut world, 1, true, &[2]);
    world.pass(SECOND);
    for index in 0..CLIENTS {
        let expected = if index == 2 { (1, Verdict::Late) } else { (1, Verdict::Accepted) };
        assert_eq!(world.verdicts(index), [expected]);
    }
    world.round(plan(2, CLIENTS as u32), 60 * SECOND);
    confirm(&mut world, 2, false, &[]);
    world.pass(SECOND);
    assert!((0..CLIENTS).all(|index| world.verdicts(index)[1] == (2, Verdict::Late)));
}

#[test]
fn a_client_whose_link_breaks_meanwhile_learns_it_when_it_is_back() {
    let mut world = World::joined(&setup(2), clients());
    world.round(plan(1, CLIENTS as u32), 60 * SECOND);
    world.cut(0);
    world.pass(10 * SECOND);
    assert!(world.verdicts(0).is_empty(), "it is back, and nobody knows yet");
    world.cut(1);
    world.pass(MS);
    confirm(&mut world, 1, true, &[]);
    world.pass(10 * SECOND);
    assert!((0..CLIENTS).all(|index| world.verdicts(index) == [(1, Verdict::Accepted)]));
}

#[test]
fn if_nobody_says_whether_sums_count_their_updates_are_late_when_the_next_round_begins() {
    let mut world = World::joined(&setup(3), clients());
    world.round(plan(1, CLIENTS as u32), 60 * SECOND);
    world.round(plan(2, CLIENTS as u32), 60 * SECOND);
    confirm(&mut world, 1, true, &[]);
    confirm(&mut world, 2, true, &[]);
    world.pass(SECOND);
    let expected = [(1, Verdict::Late), (2, Verdict::Accepted)];
    assert!((0..CLIENTS).all(|index| world.verdicts(index) == expected));
}

/// A node is lost at some moment. An update of it is accepted only if the top counted it, then or at the node
/// where the client goes on.
fn lost(seed: u64) {
    let mut rng = Rng::new(seed ^ 0x5e77);
    let mut world = World::joined(&setup(seed), clients());
    world.start(plan(1, CLIENTS as u32));
    world.pass(rng.time(400 * MS));
    let is_over = !world.server.results.is_empty();
    let counts = is_over && rng.chance(0.5);
    if counts && rng.chance(0.5) {
        confirm(&mut world, 1, true, &[]);
        world.pass(rng.time(4 * MS));
    }
    if rng.chance(0.3) {
        world.cut(rng.below(CLIENTS as u64) as usize);
    }
    world.restart_server(&setup(seed));
    let names: BTreeMap<String, u32> = (0..CLIENTS).map(|index| (name(index), 1)).collect();
    let counted = if counts { names.clone() } else { BTreeMap::new() };
    let homes = Homes { after: names, counted, ..Homes::default() };
    world.server.machine.place_clients(world.now, homes);
    let result = world.round(plan(2, CLIENTS as u32), 60 * SECOND);
    world.check(&result);
    let whole: BTreeSet<&str> = result
        .outcome
        .participants
        .iter()
        .filter(|p| p.state == State::Whole)
        .map(|p| p.client.as_str())
        .collect();
    assert_eq!(whole.len(), CLIENTS, "seed {seed}: {:?}", result.outcome.participants);
    confirm(&mut world, 2, true, &[]);
    world.pass(10 * SECOND);
    for index in 0..CLIENTS {
        let verdicts = world.verdicts(index);
        let first: Vec<_> = verdicts.iter().filter(|(round, _)| *round == 1).collect();
        assert!(first.len() <= 1, "seed {seed}: one update has one verdict: {verdicts:?}");
        let is_accepted = first.first().is_some_and(|(_, verdict)| *verdict == Verdict::Accepted);
        assert_eq!(is_accepted, counts, "seed {seed}: accepted is what counts: {verdicts:?}");
        assert_eq!(verdicts.last(), Some(&(2, Verdict::Accepted)), "seed {seed}");
    }
}

#[test]
fn an_update_is_accepted_if_and_only_if_the_top_counted_it_whenever_its_node_is_lost() {
    (0..1000).for_each(lost);
}
