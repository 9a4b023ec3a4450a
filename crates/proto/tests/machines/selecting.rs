//! Rounds in which more clients take part than count: exactly as many updates are folded as are selected, by the order of
//! arrival or by the root of a tree.

use std::collections::BTreeSet;

use thalweg_proto::{RoundPlan, Selection, State, Verdict};
use thalweg_wire::tree::{Admit, Arrival};

use crate::common::network::Rng;
use crate::common::party::RoundResult;
use crate::common::{plan, profile, Profile, Setup, World, MS, SECOND};

const CLIENTS: usize = 5;

fn name(index: usize) -> String {
    format!("c{index}")
}

fn counting(result: &RoundResult) -> BTreeSet<String> {
    let parts = result.outcome.participants.iter();
    parts.filter(|part| part.state == State::Whole).map(|part| part.client.clone()).collect()
}

fn reason(result: &RoundResult, client: usize) -> String {
    result.of(&name(client)).reason.clone().unwrap_or_default()
}

/// Clients that finish at almost the same time, while folds take long.
fn crowd(seed: u64, lazy: bool, stale: u32) -> World {
    let setup = Setup { seed, lazy, stale, folding: SECOND, ..Setup::default() };
    World::joined(
        &setup,
        (0..CLIENTS).map(|index| Profile { train: MS * (index as u32 + 1), ..profile(&name(index)) }),
    )
}

fn goal_of(goal: u32, number: u32) -> RoundPlan {
    RoundPlan { enough: 1, goal, ..plan(number, CLIENTS as u32) }
}

#[test]
fn exactly_the_first_updates_count_although_all_arrive_while_these_are_folded() {
    for lazy in [false, true] {
        for goal in 1..CLIENTS {
            let mut world = crowd(1, lazy, 0);
            for number in 1..3 {
                let result = world.round(goal_of(goal as u32, number), 60 * SECOND);
                world.check(&result);
                assert!(result.outcome.complete);
                assert_eq!(counting(&result), (0..goal).map(name).collect(), "lazy: {lazy}");
                let after = (goal..CLIENTS).map(|client| reason(&result, client));
                let arrived = "arrived after the updates with which the round reached its goal";
                // A lazy server folds as soon as it has enough updates.
                assert!(lazy || after.clone().all(|why| why == arrived), "{:?}", after.collect::<Vec<_>>());
                world.pass(SECOND);
                for client in 0..CLIENTS {
                    let last = world.verdicts(client).last().cloned();
                    let expected = if client < goal { Verdict::Accepted } else { Verdict::Late };
                    assert_eq!(last, Some((number, expected)));
                }
            }
        }
    }
}

#[test]
fn the_next_update_takes_the_place_of_one_that_cannot_be_folded() {
    let setup = Setup { folding: SECOND, ..Setup::default() };
    let clients = (0..CLIENTS).map(|index| Profile {
        train: MS * (index as u32 + 1),
        unfoldable_at: (index == 1).then_some(100),
        ..profile(&name(index))
    });
    let mut world = World::joined(&setup, clients);
    let result = world.round(goal_of(3, 1), 60 * SECOND);
    world.check(&result);
    assert_eq!(counting(&result), ["c0", "c2", "c3"].map(str::to_owned).into());
    assert_eq!(result.of("c1").state, State::Rejected);
}

#[test]
fn an_update_that_was_not_selected_counts_in_the_next_round_if_late_ones_may() {
    for is_cut in [false, true] {
        let mut world = crowd(1, false, 1);
        let first = world.round(goal_of(3, 1), 60 * SECOND);
        world.check(&first);
        assert_eq!(counting(&first), (0..3).map(name).collect());
        if is_cut {
            world.cut(4);
        }
        let second = world.round(RoundPlan { goal: 5, ..goal_of(5, 2) }, 60 * SECOND);
        world.check(&second);
        for client in [3, 4] {
            assert_eq!(
                (second.of(&name(client)).state, second.of(&name(client)).staleness),
                (State::Whole, 1)
            );
        }
        world.pass(20 * SECOND);
        for client in [3, 4] {
            assert_eq!(world.verdicts(client), [(1, Verdict::Accepted)]);
        }
    }
}

#[test]
fn a_round_with_a_goal_and_too_few_updates_waits_for_the_end_of_an_outage() {
    let begin = |enough: u32| {
        let mut world = crowd(1, false, 0);
        world.start(RoundPlan { enough, grace: SECOND, outage: 60 * SECOND, ..goal_of(3, 1) });
        (2..CLIENTS).for_each(|client| world.kill(client));
        world.pass(20 * SECOND);
        world
    };
    let enough = begin(2);
    let result = enough.server.results[0].clone();
    enough.check(&result);
    assert_eq!(counting(&result), (0..2).map(name).collect(), "the grace is over");
    assert!(!result.outcome.complete);

    let mut few = begin(3);
    assert!(few.server.results.is_empty(), "it needs an update of a client that is away");
    (2..CLIENTS).for_each(|client| few.restart(client));
    let result = few.finish_round(20 * SECOND);
    few.check(&result);
    assert_eq!(counting(&result).len(), 3, "the others that are back are too many");
    assert!(result.outcome.complete);

    let mut failed = begin(3);
    let result = failed.finish_round(60 * SECOND);
    let why = result.outcome.failure.unwrap_or_default();
    assert!(why.contains("2 of 3 updates came"), "{why}");
}

// What follows is a node of a tree, whose root names the updates.

fn setup(seed: u64) -> Setup {
    Setup { seed, withhold: true, liveness: 2 * SECOND, folding: 20 * MS, ..Setup::default() }
}

fn node(seed: u64) -> World {
    let clients =
        (0..CLIENTS).map(|index| Profile { train: 40 * MS * (index as u32 + 1), ..profile(&name(index)) });
    World::joined(&setup(seed), clients)
}

fn batch(number: u32, batch: u32, expected: usize) -> RoundPlan {
    let selection = Selection::Named { batch };
    RoundPlan { enough: 1, selection, grace: SECOND, ..plan(number, expected as u32) }
}

fn admit(
    world: &mut World,
    at: (u32, u32),
    clients: &[usize],
    last: bool,
    seen: usize,
) -> Option<Vec<Arrival>> {
    let clients = clients.iter().map(|&client| name(client)).collect();
    tell(world, &Admit { round: at.0, batch: at.1, clients, last, seen, enough: true })
}

/// A node gets a request of the root. Returns its answer.
fn tell(world: &mut World, admit: &Admit) -> Option<Vec<Arrival>> {
    let news = world.server.machine.admit(world.now, admit);
    world.server_actions();
    news
}

fn confirm(world: &mut World, round: u32) {
    world.server.machine.confirm(round, true, &BTreeSet::new());
    world.server_actions();
}

#[test]
fn a_node_folds_what_the_root_names_and_keeps_the_rest_for_a_further_batch() {
    let mut world = node(1);
    assert_eq!(admit(&mut world, (1, 1), &[1], false, 0), None, "the batch has not begun");
    world.start(batch(1, 1, CLIENTS));
    world.pass(5 * SECOND);
    assert!(world.server.results.is_empty(), "the root has named nobody");
    let all: Vec<Arrival> = (0..CLIENTS).map(|client| Arrival(name(client), true)).collect();
    assert_eq!(admit(&mut world, (1, 1), &[1], false, 0), Some(all));
    assert_eq!(admit(&mut world, (1, 1), &[], false, CLIENTS), None, "the root knows all");
    world.pass(SECOND);
    assert!(world.server.results.is_empty(), "the root may name others");
    assert_eq!(admit(&mut world, (1, 1), &[1, 3], true, CLIENTS), None, "c3 is still being folded");
    let first = world.finish_round(SECOND);
    world.check(&first);
    assert_eq!(counting(&first), ["c1", "c3"].map(str::to_owned).into());
    assert_eq!(admit(&mut world, (1, 1), &[0], false, 0), Some(Vec::new()), "the batch is over");
    world.pass(5 * SECOND);
    assert!(
        (0..CLIENTS).all(|client| world.verdicts(client).is_empty()),
        "the root knows more than the node"
    );
    world.start(batch(1, 2, 3));
    let waiting: Vec<Arrival> = [0, 2, 4].map(|client| Arrival(name(client), true)).into();
    assert_eq!(admit(&mut world, (1, 2), &[4], false, 0), Some(waiting));
    admit(&mut world, (1, 2), &[4], true, 3);
    let second = world.finish_round(SECOND);
    world.check(&second);
    assert_eq!(counting(&second), ["c4".to_owned()].into());
    confirm(&mut world, 1);
    world.pass(SECOND);
    for client in 0..CLIENTS {
        let counts = [1, 3, 4].contains(&client);
        let expected = if counts { Verdict::Accepted } else { Verdict::Late };
        assert_eq!(world.verdicts(client), [(1, expected)]);
    }
    let made: usize = world.made_count(1);
    assert_eq!(made, CLIENTS, "nobody has trained twice");
    world.start(batch(2, 1, CLIENTS));
    world.pass(5 * SECOND);
    admit(&mut world, (2, 1), &[0, 1, 2, 3, 4], true, 0);
    let third = world.finish_round(SECOND);
    assert!(third.outcome.complete);
}

#[test]
fn a_batch_of_which_nothing_is_named_has_no_sums_and_one_that_is_given_up_ends() {
    let mut world = node(1);
    world.start(batch(1, 1, CLIENTS));
    world.pass(100 * MS);
    admit(&mut world, (1, 1), &[], true, 0);
    let first = world.server.results[0].clone();
    assert!(first.outcome.failure.is_some_and(|why| why.contains("admitted no update")));
    world.start(batch(2, 1, CLIENTS));
    world.pass(5 * SECOND);
    let now = world.now;
    world.server.machine.end_selection(now);
    world.server_actions();
    assert_eq!(world.server.results.len(), 2);
}

#[test]
fn a_batch_ends_by_itself_when_nobody_is_left_who_could_deliver() {
    let mut world = node(1);
    world.start(batch(1, 1, CLIENTS));
    world.pass(60 * MS);
    for client in 1..CLIENTS {
        world.kill(client);
    }
    world.pass(5 * SECOND);
    assert!(world.server.results.is_empty(), "c0 waits for the root");
    admit(&mut world, (1, 1), &[0], false, 0);
    let first = world.finish_round(SECOND);
    world.check(&first);
    assert_eq!(counting(&first), ["c0".to_owned()].into());
}

/// A batch of which all updates are folded but that of the last client, which was away for longer than the grace. The
/// root has not said that the round has enough updates.
fn with_one_away() -> World {
    let mut world = node(1);
    world.start(RoundPlan { outage: 60 * SECOND, ..batch(1, 1, CLIENTS) });
    world.pass(60 * MS);
    world.kill(CLIENTS - 1);
    world.pass(SECOND);
    let clients = (0..CLIENTS - 1).map(name).collect();
    tell(&mut world, &Admit { round: 1, batch: 1, clients, last: false, seen: 0, enough: false });
    world.pass(20 * SECOND);
    assert!(world.server.results.is_empty(), "the root may need the update of the client that is away");
    world
}

#[test]
fn a_batch_waits_for_the_end_of_an_outage_until_the_root_has_enough_updates() {
    let folded: BTreeSet<String> = (0..CLIENTS - 1).map(name).collect();
    let mut enough = with_one_away();
    admit(&mut enough, (1, 1), &[], false, CLIENTS - 1);
    assert_eq!(counting(&enough.server.results[0]), folded, "the grace was over long ago");

    let mut back = with_one_away();
    back.restart(CLIENTS - 1);
    back.pass(5 * SECOND);
    let last = Admit {
        round: 1,
        batch: 1,
        clients: vec![name(CLIENTS - 1)],
        last: false,
        seen: CLIENTS - 1,
        enough: false,
    };
    assert_eq!(tell(&mut back, &last), Some(vec![Arrival(name(CLIENTS - 1), true)]));
    let result = back.finish_round(SECOND);
    back.check(&result);
    assert_eq!(counting(&result).len(), CLIENTS);

    let mut gone = with_one_away();
    let result = gone.finish_round(60 * SECOND);
    gone.check(&result);
    assert_eq!(counting(&result), folded, "the outage takes too long");
}

#[test]
fn the_root_learns_of_a_refused_update_and_of_those_kept_for_a_further_batch_without_asking_again() {
    let clients = (0..CLIENTS).map(|index| Profile {
        train: MS * (index as u32 + 1),
        unfoldable_at: (index == 1).then_some(100),
        ..profile(&name(index))
    });
    let mut world = World::joined(&setup(1), clients);
    world.start(batch(1, 1, CLIENTS));
    world.pass(5 * SECOND);
    admit(&mut world, (1, 1), &[1], false, CLIENTS);
    let before = world.server.arrivals;
    world.pass(SECOND);
    assert_eq!(world.server.arrivals, before + 1);
    assert_eq!(admit(&mut world, (1, 1), &[], false, CLIENTS), Some(vec![Arrival(name(1), false)]));
    admit(&mut world, (1, 1), &[0, 1], true, CLIENTS + 1);
    world.finish_round(SECOND);
    let before = world.server.arrivals;
    world.start(batch(1, 2, 3));
    assert!(world.server.arrivals > before, "updates wait since the first batch");
    assert_eq!(admit(&mut world, (1, 1), &[0], false, 0), Some(Vec::new()), "the first batch is over");
}

#[test]
fn the_deadline_is_the_rounds_and_no_batch_begins_it_anew() {
    let mut world = node(1);
    let until = |number, expected| RoundPlan { deadline: Some(10 * SECOND), ..batch(1, number, expected) };
    world.start(until(1, CLIENTS));
    world.pass(8 * SECOND);
    admit(&mut world, (1, 1), &[0], true, CLIENTS);
    world.finish_round(SECOND);
    world.start(until(2, CLIENTS - 1));
    let began = world.now;
    world.finish_round(20 * SECOND);
    assert!(world.now <= began + 3 * SECOND, "{:?} after {began:?}", world.now);
}

/// Batches with clients that break, hang, die and come back. The root names some of those that have arrived.
fn whatever_happens(seed: u64) {
    let mut rng = Rng::new(seed ^ 0x5e1ec7);
    let mut world = node(seed);
    let mut stays = [true; CLIENTS];
    let mut counted: BTreeSet<String> = BTreeSet::new();
    let batches = 1 + rng.below(3) as u32;
    for number in 1..=batches {
        let before = world.server.results.len();
        let expected = CLIENTS - counted.len();
        if expected == 0 {
            break;
        }
        world.start(batch(1, number, expected));
        let goal = rng.below(expected as u64 + 1) as usize;
        let (mut seen, mut named) = (0, Vec::new());
        while world.server.results.len() == before {
            world.pass(rng.time(60 * MS));
            let index = rng.below(CLIENTS as u64) as usize;
            match rng.below(30) {
                0 => world.cut(index),
                1 if stays.iter().filter(|&&stays| stays).count() > 2 => {
                    world.kill(index);
                    stays[index] = false;
                }
                2 if !stays[index] && !world.clients[index].alive => world.restart(index),
                _ => {}
            }
            let is_last = named.len() >= goal;
            for Arrival(client, can_fold) in
                admit(&mut world, (1, number), &named, is_last, seen).unwrap_or_default()
            {
                seen += 1;
                assert!(can_fold && !counted.contains(&client), "seed {seed}: {client} counts already");
                if named.len() < goal {
                    named.push(client.trim_start_matches('c').parse().expect("a number"));
                }
            }
        }
        let result = world.server.results[before].clone();
        world.check(&result);
        let fresh = counting(&result);
        assert!(
            fresh.is_subset(&named.iter().map(|&client| name(client)).collect()),
            "seed {seed}: {fresh:?}"
        );
        let all: BTreeSet<&String> = result.outcome.participants.iter().map(|part| &part.client).collect();
        assert!(
            all.iter().all(|client| !counted.contains(*client)),
            "seed {seed}: a client is in two batches"
        );
        counted.extend(fresh);
    }
    // If the root says nothing before the next round begins, nothing counts.
    let is_confirmed = rng.chance(0.7);
    if is_confirmed {
        confirm(&mut world, 1);
    } else {
        world.start(batch(2, 1, CLIENTS));
        confirm(&mut world, 1);
    }
    world.pass(30 * SECOND);
    for (index, stays) in stays.into_iter().enumerate() {
        let verdicts: Vec<_> = world.verdicts(index).iter().filter(|(round, _)| *round == 1).collect();
        let accepted = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Accepted).count();
        let counts = usize::from(is_confirmed && counted.contains(&name(index)));
        assert!(accepted <= counts, "seed {seed}: what does not count is not accepted: {verdicts:?}");
        assert!(!stays || accepted == counts, "seed {seed}: what counts is accepted: {verdicts:?}");
        // A client that has only just received the model when a batch ends is asked anew in the next one.
        assert!(!stays || verdicts.len() <= batches as usize, "seed {seed}: {verdicts:?}");
    }
}

#[test]
fn whatever_happens_to_clients_only_named_updates_count_and_each_of_them_once() {
    (0..2000).for_each(whatever_happens);
}
