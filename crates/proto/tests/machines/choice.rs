//! Rounds with some of the clients, chosen by lot. Tests which clients are chosen, which client replaces one
//! that is lost, and that clients that are not chosen can wait.

use std::collections::BTreeSet;

use crate::common::{plan, profile, Path, Profile, RoundResult, Setup, World, SECOND};
use thalweg_proto::{Choice, Partial, RoundPlan, ServerMachine, State, Verdict};

const CLIENTS: usize = 12;
const CHOSEN: u32 = 3;

fn by_lot(number: u32) -> RoundPlan {
    RoundPlan { choice: Choice::ByLot { seed: 7 }, ..plan(number, CHOSEN) }
}

fn name(index: usize) -> String {
    format!("c{index}")
}

/// Clients with links so slow that they can die during a transfer: 4 kB take 400 ms in each direction.
fn world(partial: Partial) -> World {
    let path = Path { rate: 10_000, ..Path::PERFECT };
    let one = |index| Profile { paths: vec![(path, path); 4], ..profile(&name(index)) };
    World::joined(&Setup { partial, ..Setup::default() }, (0..CLIENTS).map(one))
}

fn each(mut check: impl FnMut(Partial)) {
    [Partial::Discard, Partial::Keep].into_iter().for_each(&mut check);
}

/// Indices of the clients that took part.
fn chosen(result: &RoundResult) -> Vec<usize> {
    let names: BTreeSet<&str> = result.outcome.participants.iter().map(|p| p.client.as_str()).collect();
    (0..CLIENTS).filter(|&index| names.contains(name(index).as_str())).collect()
}

/// Indices of the clients that the seed chooses in a round while all are connected.
fn drawn(number: u32) -> Vec<usize> {
    chosen(&world(Partial::Discard).round(by_lot(number), 10 * SECOND))
}

#[test]
fn as_many_as_are_wanted_take_part_and_the_others_hear_nothing() {
    each(|partial| {
        let mut world = world(partial);
        let mut parts: Vec<Vec<u32>> = vec![Vec::new(); CLIENTS];
        for number in 1..=8 {
            let result = world.round(by_lot(number), 10 * SECOND);
            world.check(&result);
            assert!(result.outcome.complete && result.outcome.expected == CHOSEN);
            let chosen = chosen(&result);
            assert_eq!(chosen.len(), CHOSEN as usize);
            chosen.into_iter().for_each(|index| parts[index].push(number));
        }
        world.pass(20 * SECOND);
        assert!(parts.iter().filter(|rounds| !rounds.is_empty()).count() > CHOSEN as usize, "{parts:?}");
        for (client, rounds) in world.clients.iter().zip(parts) {
            assert_eq!(client.seen.ready, rounds);
            let verdicts: Vec<_> = rounds.iter().map(|&number| (number, Verdict::Accepted)).collect();
            assert_eq!(client.seen.verdicts, verdicts);
            assert_eq!((client.seen.connections, client.seen.refused.len()), (1, 0), "nobody is sent away");
        }
    });
}

#[test]
fn the_seed_and_the_round_choose_and_not_the_order_in_which_clients_came() {
    let first = drawn(1);
    assert_eq!(drawn(1), first);
    assert!((2..6).any(|number| drawn(number) != first));
    let mut backwards =
        World::joined(&Setup::default(), (0..CLIENTS).rev().map(|index| profile(&name(index))));
    assert_eq!(chosen(&backwards.round(by_lot(1), 10 * SECOND)), first);
}

#[test]
fn only_those_who_are_there_are_chosen() {
    let gone = drawn(1);
    each(|partial| {
        let mut world = world(partial);
        gone.iter().for_each(|&index| world.kill(index));
        world.pass(SECOND);
        let result = world.round(by_lot(1), 10 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete && chosen(&result).iter().all(|index| !gone.contains(index)));
    });
}

/// The link has broken, but the server does not know this yet when it chooses.
#[test]
fn the_place_of_one_that_does_not_come_back_goes_to_the_next() {
    let victim = drawn(1)[0];
    each(|partial| {
        for told in [false, true] {
            let mut world = world(partial);
            world.kill(victim);
            world.start(by_lot(1));
            if told {
                world.pass(SECOND / 10);
                let now = world.now;
                world.server.machine.forget(now, &name(victim), "");
                world.server_actions();
            }
            let result = world.finish_round(20 * SECOND);
            world.check(&result);
            assert!(result.outcome.complete && result.outcome.failure.is_none());
            assert_eq!(result.outcome.participants.len(), CHOSEN as usize + 1, "the record names both");
            assert_eq!(result.of(&name(victim)).state, State::Lost);
            let seconds = (result.outcome.span.end - result.outcome.span.start).as_secs_f64();
            assert_eq!(seconds > 10.0, !told, "it is waited for as long as it may come back: {seconds}");
        }
    });
}

#[test]
fn one_that_comes_back_in_time_keeps_its_place() {
    let victim = drawn(1)[0];
    each(|partial| {
        let mut world = world(partial);
        world.start(by_lot(1));
        world.pass(SECOND / 5);
        world.kill(victim);
        world.pass(SECOND);
        world.restart(victim);
        let result = world.finish_round(20 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete);
        assert_eq!(chosen(&result), drawn(1));
    });
}

#[test]
fn one_that_comes_back_too_late_does_not_make_the_round_larger() {
    let victim = drawn(1)[0];
    each(|partial| {
        let mut world = world(partial);
        world.start(RoundPlan { grace: SECOND / 10, ..by_lot(1) });
        world.kill(victim);
        world.pass(SECOND / 5);
        world.restart(victim);
        let result = world.finish_round(20 * SECOND);
        world.check(&result);
        assert_eq!(result.of(&name(victim)).state, State::Lost);
        assert_eq!(
            result.outcome.participants.iter().filter(|p| p.state == State::Whole).count(),
            CHOSEN as usize
        );
    });
}

/// A round with chosen clients has the same quorum rule as any other.
#[test]
fn where_too_few_are_left_the_round_ends_as_its_quorum_says() {
    each(|partial| {
        for (enough, fails) in [(1, false), (2, true)] {
            let mut world = world(partial);
            (1..CLIENTS).for_each(|index| world.kill(index));
            world.pass(SECOND);
            let result = world.round(RoundPlan { enough, ..by_lot(1) }, 20 * SECOND);
            assert_eq!(chosen(&result), [0]);
            assert_eq!(result.outcome.failure.is_some(), fails);
        }
    });
}
