//! Critical tensors, and budgets for missing bytes: over any link, the session asks again for bytes that must
//! arrive.

use crate::common::{plan, profile, Path, Profile, RoundResult, Setup, World, MS, SECOND};
use thalweg_proto::{Direction, Partial, RoundPlan, State, TransferReport, Verdict};
use thalweg_wire::control::StandIn;
use thalweg_wire::{Allowance, Tolerance, WHOLE};

const CLIENTS: u32 = 3;
/// The index of the second of three tensors.
const NAMED: u32 = 1;

fn setup(partial: Partial, budget: u32, refuse: u32) -> Setup {
    let allowances = vec![Allowance { tensor: NAMED, budget, refuse }];
    Setup {
        partial,
        stand_in: Some(StandIn::KeepLocal),
        allowances,
        elements: 6000,
        chunk: 256,
        seed: 5,
        ..Setup::default()
    }
}

fn world(setup: &Setup, loss: f64, ordered: bool) -> World {
    let path = Path { loss, ordered, delay: 5 * MS, ..Path::PERFECT };
    let client = |i| Profile { paths: vec![(path, path)], ..profile(&format!("c{i}")) };
    World::joined(setup, (0..CLIENTS).map(client))
}

fn each(mut check: impl FnMut(Partial, bool)) {
    for partial in [Partial::Discard, Partial::Keep] {
        for ordered in [true, false] {
            check(partial, ordered);
        }
    }
}

fn ups(result: &RoundResult) -> impl Iterator<Item = &TransferReport> {
    result.outcome.transfers.iter().filter(|transfer| transfer.direction == Direction::Up)
}

#[test]
fn a_critical_tensor_comes_whole_while_others_lose() {
    each(|partial, ordered| {
        let setup = setup(partial, 0, WHOLE);
        let mut world = world(&setup, 0.2, ordered);
        let rule = Tolerance::new(&world.server.layout, &setup.allowances).unwrap();
        for number in 1..=3 {
            let result = world.round(plan(number, CLIENTS), 60 * SECOND);
            world.check(&result);
            assert!(result.outcome.failure.is_none());
            for up in ups(&result) {
                assert!(up.missing > 0, "a fifth of the other tensors is lost");
                assert_eq!(up.holes.within(rule.limits()[0].range).next(), None, "{up:?}");
            }
        }
        world.pass(SECOND);
        for i in 0..CLIENTS as usize {
            assert_eq!(world.verdicts(i), [1, 2, 3].map(|round| (round, Verdict::Accepted)));
        }
    });
}

#[test]
fn of_a_tensor_with_a_budget_no_more_is_missing_than_it_allows() {
    each(|partial, ordered| {
        let setup = setup(partial, 100_000, WHOLE);
        let mut world = world(&setup, 0.3, ordered);
        let rule = Tolerance::new(&world.server.layout, &setup.allowances).unwrap();
        let limit = &rule.limits()[0];
        let result = world.round(plan(1, CLIENTS), 60 * SECOND);
        world.check(&result);
        for up in ups(&result) {
            let missing: u64 = up.holes.within(limit.range).map(|hole| hole.len()).sum();
            assert!(missing > 0 && missing <= limit.budget, "{missing} of {limit:?}");
            assert!(up.missing - missing > limit.budget, "the others have no budget");
        }
    });
}

#[test]
fn within_the_budget_nothing_is_sent_twice() {
    each(|partial, ordered| {
        let mut world = world(&setup(partial, 900_000, 950_000), 0.1, ordered);
        let bytes = world.server.bytes() as u64;
        let result = world.round(plan(1, CLIENTS), 60 * SECOND);
        world.check(&result);
        for i in 0..CLIENTS as usize {
            assert_eq!(world.net.payload(i, crate::common::End::Client), bytes);
        }
    });
}

#[test]
fn over_its_limit_an_update_is_refused_and_the_tensor_named() {
    each(|_, ordered| {
        let mut world = world(&setup(Partial::Discard, WHOLE, 50_000), 0.3, ordered);
        let result = world.round(RoundPlan { enough: 1, ..plan(1, CLIENTS) }, 60 * SECOND);
        let failure = result.outcome.failure.as_ref().expect("all lost a third of each tensor");
        assert!(failure.contains("bytes of \"b\""), "{failure}");
        for part in &result.outcome.participants {
            assert_eq!(part.state, State::Rejected);
        }
        world.pass(SECOND);
        let Some((1, Verdict::Rejected(reason))) = world.verdicts(0).last() else { panic!("it is told") };
        assert!(reason.contains("bytes of \"b\""), "{reason}");
    });
}

/// An update that still lacks critical bytes at the deadline is refused.
#[test]
fn at_the_deadline_an_update_without_what_is_critical_is_refused() {
    for ordered in [true, false] {
        let setup = setup(Partial::Discard, 0, WHOLE);
        let quick = Path { ordered, delay: 5 * MS, ..Path::PERFECT };
        let slow = Path { rate: 4000, ..quick }; // of 24 KB, 8 KB arrive in time
        let up = |i| if i == 0 { slow } else { quick };
        let client = |i| Profile { paths: vec![(up(i), quick)], ..profile(&format!("c{i}")) };
        let mut world = World::joined(&setup, (0..CLIENTS).map(client));
        let limited = RoundPlan { deadline: Some(2 * SECOND), enough: 1, ..plan(1, CLIENTS) };
        let result = world.round(limited, 10 * SECOND);
        let part = result.of("c0");
        assert_eq!(part.state, State::Rejected);
        let reason = part.reason.clone().unwrap_or_default();
        assert!(reason.contains("at the deadline") && reason.contains("\"b\""), "{reason}");
        assert_eq!(result.of("c1").state, State::Whole);
        assert!(result.outcome.failure.is_none());
    }
}

/// The rule also holds for the model on its way to a client.
#[test]
fn a_model_lacks_nothing_that_is_critical() {
    each(|partial, ordered| {
        let setup = setup(partial, 0, WHOLE);
        let down = Path { loss: 0.2, ordered, ..Path::PERFECT };
        let quick = Path { ordered, ..Path::PERFECT };
        let client = |i| Profile { paths: vec![(quick, down)], ..profile(&format!("c{i}")) };
        let mut world = World::joined(&setup, (0..CLIENTS).map(client));
        let rule = Tolerance::new(&world.server.layout, &setup.allowances).unwrap();
        let result = world.round(plan(1, CLIENTS), 60 * SECOND);
        world.check(&result);
        let critical: u64 = rule.limits().iter().map(|limit| limit.range.len()).sum();
        let most = world.server.bytes() as u64 - critical;
        let lossy = result.outcome.transfers.iter().filter(|t| t.direction == Direction::Down);
        for transfer in lossy {
            assert!(transfer.missing > 0 && transfer.missing < most / 2, "{transfer:?}");
        }
        let asked: u64 =
            (0..CLIENTS as usize).map(|i| world.net.payload(i, crate::common::End::Server)).sum();
        assert!(asked > u64::from(CLIENTS) * world.server.bytes() as u64, "it was asked for again");
    });
}
