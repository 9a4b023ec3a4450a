//! Rounds in which most clients vanish, rounds that end with a part of the clients, and updates that come after
//! their round.

use crate::common::{plan, profile, End, Path, Profile, Setup, World, SECOND};
use thalweg_proto::{Choice, Partial, RoundPlan, ServerMachine, State, Time, Verdict};

fn name(index: usize) -> String {
    format!("c{index}")
}

/// Three clients, of which the last one trains for `seconds`.
fn with_a_slow_one(stale: u32, seconds: u32) -> World {
    let slow = |index: usize| Profile {
        train: if index == 2 { SECOND * seconds } else { SECOND / 10 },
        ..profile(&name(index))
    };
    World::joined(&Setup { stale, ..Setup::default() }, (0..3).map(slow))
}

/// A round that ends with the first two updates.
fn of_two(number: u32) -> RoundPlan {
    RoundPlan { enough: 1, goal: 2, ..plan(number, 3) }
}

#[test]
fn a_round_ends_as_soon_as_its_goal_is_reached() {
    let mut world = with_a_slow_one(0, 5);
    let result = world.round(of_two(1), 2 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete && result.outcome.expected == 2);
    assert_eq!(result.of("c2").state, State::Late);
    world.pass(6 * SECOND);
    assert_eq!(world.verdicts(2), [(1, Verdict::Late)], "its update is refused, and it is told why");
}

#[test]
fn a_late_update_counts_in_the_next_round_with_less_weight() {
    let mut world = with_a_slow_one(1, 2);
    let first = world.round(of_two(1), SECOND);
    world.check(&first);
    assert_eq!((first.of("c2").state, first.of("c2").coverage), (State::Late, 0.0));
    let second = world.round(plan(2, 3), 4 * SECOND);
    world.check(&second);
    let late = second.of("c2");
    assert_eq!((late.state, late.staleness), (State::Whole, 1));
    assert_eq!(late.samples, 10.0 / 2.0_f64.sqrt());
    assert!(late.reason.as_ref().is_some_and(|why| why.contains("the model of round 1")), "{late:?}");
    world.pass(SECOND);
    assert_eq!(world.verdicts(2), [(1, Verdict::Accepted)]);
    let third = world.round(plan(3, 3), 4 * SECOND);
    world.check(&third);
    assert_eq!(
        (third.of("c2").state, third.of("c2").staleness),
        (State::Whole, 0),
        "it trains the newest model again"
    );
}

#[test]
fn an_update_that_is_too_late_is_refused() {
    let mut world = with_a_slow_one(2, 9);
    for number in 1..=4 {
        let result = world.round(of_two(number), SECOND);
        world.check(&result);
    }
    world.pass(10 * SECOND);
    assert_eq!(world.verdicts(2), [(1, Verdict::Late)]);
}

/// The upload of c2 takes a second. Half of it has arrived when the two other updates end round 1.
fn with_a_slow_upload(stale: u32, changed: impl Fn(&mut Profile)) -> World {
    let slow = Path { rate: 4_000, ..Path::PERFECT };
    let one = |index: usize| Profile { train: SECOND / 2, ..profile(&name(index)) };
    let mut profiles: Vec<Profile> = (0..3).map(one).collect();
    profiles[2].train = SECOND / 100;
    profiles[2].paths = vec![(slow, Path::PERFECT); 3];
    changed(&mut profiles[2]);
    let mut world = World::joined(&Setup { stale, ..Setup::default() }, profiles);
    let first = world.round(of_two(1), SECOND);
    world.check(&first);
    let sent = world.net.payload(2, End::Client);
    assert!((1000..3000).contains(&sent), "{sent} bytes");
    world
}

/// The late update is on its way when the round ends, when there is no round, and when the next begins.
#[test]
fn an_upload_goes_on_from_round_to_round() {
    for partial_seconds in [0.3, 0.6, 1.0, 3.0] {
        let mut world = with_a_slow_upload(3, |_| {});
        world.pass(Time::from_secs_f64(partial_seconds));
        let second = world.round(plan(2, 3), 4 * SECOND);
        world.check(&second);
        assert_eq!((second.of("c2").state, second.of("c2").staleness), (State::Whole, 1));
        let (outcome, length) = (&second.outcome, second.outcome.span.end - second.outcome.span.start);
        assert!(outcome.communication_seconds <= length.as_secs_f64(), "{outcome:?}");
        let again = world.net.payload(2, End::Client);
        assert!(
            again <= world.server.bytes() as u64,
            "{partial_seconds}: {again} bytes, and no byte is sent twice"
        );
    }
}

#[test]
fn the_link_of_a_late_client_may_break() {
    for when in 0..12_u32 {
        let mut world = with_a_slow_one(2, 2);
        let first = world.round(of_two(1), SECOND);
        world.check(&first);
        world.pass(SECOND / 4 * when);
        world.cut(2);
        world.pass(SECOND / 5 * (when % 3));
        let second = world.round(plan(2, 3), 20 * SECOND);
        world.check(&second);
        assert_eq!((second.of("c2").state, second.of("c2").staleness), (State::Whole, 1), "{when}");
    }
}

/// A new process of a late client knows nothing of the old model, and gets the newest.
#[test]
fn a_late_client_that_starts_anew_takes_the_newest_model() {
    for when in [0, 1, 3, 9] {
        let mut world = with_a_slow_one(2, 2);
        let first = world.round(of_two(1), SECOND);
        world.check(&first);
        world.pass(SECOND / 4 * when);
        world.kill(2);
        world.restart(2);
        let second = world.round(plan(2, 3), 20 * SECOND);
        world.check(&second);
        assert_eq!(second.of("c2").state, State::Whole, "{when}");
    }
}

/// The server refuses a late update when no round runs. The next round neither waits for it nor counts it.
#[test]
fn a_late_update_that_is_refused_between_rounds_is_over() {
    let mut world = with_a_slow_upload(3, |profile| profile.nan_at = Some(3000));
    world.pass(3 * SECOND);
    assert!(matches!(world.verdicts(2), [(1, Verdict::Rejected(why))] if why.contains("NaN")));
    let second = world.round(RoundPlan { enough: 1, ..plan(2, 3) }, 20 * SECOND);
    assert_eq!((second.of("c0").state, second.of("c1").state), (State::Whole, State::Whole));
    assert_eq!(second.of("c2").staleness, 0, "it takes part in round 2 with the model of round 2");
}

/// A link breaks in an upload when no round runs, and the client is back before the next round begins.
#[test]
fn an_upload_that_breaks_between_rounds_goes_on_in_the_next() {
    for pause in [SECOND / 2, SECOND] {
        let mut world = with_a_slow_upload(3, |_| {});
        world.pass(SECOND / 4);
        world.cut(2);
        world.pass(pause);
        let second = world.round(plan(2, 3), 20 * SECOND);
        world.check(&second);
        assert_eq!((second.of("c2").state, second.of("c2").staleness), (State::Whole, 1), "{pause:?}");
        let sent = world.net.payload(2, End::Client);
        assert!(sent < 2 * world.server.bytes() as u64, "what had arrived is kept: {sent} bytes");
    }
}

/// A new process of a late client joins when no round runs. It takes part in the next round.
#[test]
fn a_late_client_that_starts_anew_between_rounds_takes_part_in_the_next() {
    for is_uploading in [false, true] {
        let mut world = if is_uploading { with_a_slow_upload(2, |_| {}) } else { with_a_slow_one(2, 2) };
        if !is_uploading {
            let first = world.round(of_two(1), SECOND);
            world.check(&first);
        }
        world.pass(SECOND / 4);
        world.kill(2);
        world.restart(2);
        world.pass(SECOND);
        let second = world.round(plan(2, 3), 20 * SECOND);
        world.check(&second);
        assert_eq!((second.of("c2").state, second.of("c2").staleness), (State::Whole, 0));
    }
}

/// Of 100 clients 95 vanish in each round, at any time. Others of them come back in the next. Each round ends
/// with who is there, and nobody starts the server again.
#[test]
fn every_round_ends_with_those_that_are_there() {
    const CLIENTS: usize = 100;
    for (seed, stale, choice) in
        [(1, 0, Choice::ByName), (2, 2, Choice::ByName), (3, 2, Choice::ByLot { seed: 3 })]
    {
        let setup = Setup { seed, stale, partial: Partial::Discard, ..Setup::default() };
        let one =
            |index: usize| Profile { train: SECOND / 20 * (index as u32 % 30), ..profile(&name(index)) };
        let mut world = World::joined(&setup, (0..CLIENTS).map(one));
        let mut is_there = [true; CLIENTS];
        for number in 1..=8 {
            let plan = RoundPlan { enough: 1, grace: SECOND / 2, choice, ..plan(number, CLIENTS as u32) };
            world.start(plan);
            let mut stays = [false; CLIENTS];
            let most = is_there.iter().filter(|&&there| there).count().min(CLIENTS / 20);
            while stays.iter().filter(|&&stays| stays).count() < most {
                let index = world.net.rng.below(CLIENTS as u64) as usize;
                stays[index] = is_there[index];
            }
            for index in 0..CLIENTS {
                let pause = Time::from_millis(world.net.rng.below(20));
                world.pass(pause);
                if is_there[index] && !stays[index] {
                    world.kill(index);
                    is_there[index] = false;
                } else if !is_there[index] && world.net.rng.chance(0.5) {
                    world.restart(index);
                    is_there[index] = true;
                }
            }
            let result = if world.server.results.len() >= number as usize {
                world.server.results[number as usize - 1].clone()
            } else {
                world.finish_round(60 * SECOND)
            };
            world.check(&result);
            assert!(result.outcome.failure.is_none(), "{:?}", result.outcome.failure);
            let counted = result.outcome.participants.iter().filter(|p| p.state == State::Whole).count();
            assert!((1..CLIENTS).contains(&counted), "{counted}");
        }
        let now = world.now;
        world.server.machine.finish(now, "done");
    }
}
