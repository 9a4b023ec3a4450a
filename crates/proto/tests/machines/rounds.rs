//! Rounds on perfect links: bytes, means, outcomes, transfers, deadlines.

use crate::common::{plan, profile, Path, Profile, Setup, World, MS, SECOND};
use thalweg_proto::{Direction, Partial, RoundPlan, State, TransferReport, Verdict};

fn profiles(clients: u64) -> Vec<Profile> {
    let one = |i| Profile { samples: 3 + 7 * i, skew: 13 * SECOND * i as u32, ..profile(&format!("c{i}")) };
    (0..clients).map(one).collect()
}

#[test]
fn everybody_gets_the_model_and_the_mean_is_exact() {
    for partial in [Partial::Discard, Partial::Keep] {
        for clients in 1..=8 {
            let setup = Setup { partial, seed: clients, ..Setup::default() };
            let mut world = World::joined(&setup, profiles(clients));
            for number in 1..=3 {
                let result = world.round(plan(number, clients as u32), 10 * SECOND);
                world.check(&result);
                assert!(result.outcome.complete && result.outcome.failure.is_none());
                assert_eq!(result.outcome.participants.len(), clients as usize);
                assert!(result.outcome.participants.iter().all(|p| p.state == State::Whole));
            }
            world.pass(SECOND);
            for client in &world.clients {
                assert_eq!(client.seen.ready, [1, 2, 3]);
                assert_eq!(client.seen.verdicts, [1, 2, 3].map(|n| (n, Verdict::Accepted)));
                assert_eq!(client.seen.connections, 1);
            }
        }
    }
}

/// 4 kB are sent at 10 kB/s with 100 ms of delay. The client's clock is an hour ahead.
#[test]
fn transfers_tell_when_and_how_much_on_the_servers_clock() {
    let path = Path { rate: 10_000, delay: 100 * MS, ..Path::PERFECT };
    let profile = Profile { skew: 3600 * SECOND, paths: vec![(path, path)], ..profile("far") };
    let setup = Setup::default();
    let mut world = World::joined(&setup, [profile]);
    world.pass(5 * SECOND);
    let began = world.now;
    let outcome = world.round(plan(1, 1), 10 * SECOND).outcome;
    let bytes = world.server.bytes() as u64;
    assert_eq!((outcome.span.start, outcome.span.end), (began, world.now));
    assert_eq!(outcome.transfers.len(), 2);
    for transfer in &outcome.transfers {
        plausible(transfer, bytes);
        let span = transfer.span().unwrap();
        assert!(began <= span.start && span.end <= world.now, "{span:?} within the round");
        let seconds = (span.end - span.start).as_secs_f64();
        let ideal = transfer.wire_bytes as f64 / 1e4 + 0.1;
        assert!(
            (seconds - ideal).abs() < 0.12,
            "{:?}: {seconds} s, {ideal} s on the link",
            transfer.direction
        );
    }
    let chunks = bytes.div_ceil(u64::from(setup.chunk));
    let header = thalweg_wire::HEADER_BYTES as u64;
    for (total, direction) in [(outcome.bytes_down, Direction::Down), (outcome.bytes_up, Direction::Up)] {
        let least = bytes + chunks * header;
        assert!((least..least + 300).contains(&total), "{direction:?}: {total} bytes, at least {least}");
    }
    let both: f64 =
        outcome.transfers.iter().map(|t| t.span().unwrap()).map(|s| (s.end - s.start).as_secs_f64()).sum();
    assert!((outcome.communication_seconds - both).abs() < 1e-6, "the two do not overlap");
}

fn plausible(transfer: &TransferReport, bytes: u64) {
    assert!(transfer.complete);
    assert_eq!(transfer.bytes, bytes);
    assert!(transfer.wire_bytes > bytes);
    assert_eq!((transfer.duplicates, transfer.corrupt, transfer.resumed), (0, 0, 0));
    let (Some(send), Some(receive)) = (transfer.send, transfer.receive) else { unreachable!("{transfer:?}") };
    assert!(send.start < send.end && receive.start < receive.end && send.start <= receive.start);
}

#[test]
fn a_client_that_joins_late_is_taken_in() {
    let mut world = World::joined(&Setup::default(), profiles(1));
    world.start(plan(1, 2));
    world.pass(5 * SECOND);
    assert!(world.server.results.is_empty(), "the round waits for the second");
    world.add(profile("late"));
    let result = world.finish_round(SECOND);
    world.check(&result);
    assert!(result.outcome.complete);
}

#[test]
fn a_client_that_never_shows_up_is_waited_for_only_so_long() {
    let mut world = World::joined(&Setup::default(), profiles(1));
    let result = world.round(RoundPlan { enough: 1, ..plan(1, 2) }, 11 * SECOND);
    assert!(!result.outcome.complete && result.outcome.failure.is_none());
    assert_eq!(result.outcome.span.end, result.outcome.span.start + 10 * SECOND);
    let result = world.round(RoundPlan { enough: 2, ..plan(2, 2) }, 11 * SECOND);
    let failure = result.outcome.failure.unwrap();
    assert!(failure.contains("1 of 2 updates came") && failure.contains("2 are needed"), "{failure}");
    assert!(result.outcome.span.end - result.outcome.span.start < SECOND, "it has been waited for already");
}

#[test]
fn clients_beyond_those_wanted_wait_for_the_next_round() {
    let mut world = World::joined(&Setup::default(), profiles(3));
    let result = world.round(plan(1, 2), 10 * SECOND);
    assert!(result.outcome.complete && result.outcome.participants.len() == 2);
    let result = world.round(plan(2, 3), 10 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete && result.outcome.participants.len() == 3);
}

/// Two fast clients and one that trains for a minute.
fn with_a_straggler(setup: &Setup) -> World {
    let straggler = Profile { train: 60 * SECOND, ..profile("slow") };
    World::joined(setup, profiles(2).into_iter().chain([straggler]))
}

#[test]
fn at_the_deadline_k_of_n_are_enough_and_the_late_one_joins_a_later_round() {
    for partial in [Partial::Discard, Partial::Keep] {
        let mut world = with_a_straggler(&Setup { partial, ..Setup::default() });
        let limited = |number| RoundPlan { enough: 2, deadline: Some(5 * SECOND), ..plan(number, 3) };
        let first = world.round(limited(1), 6 * SECOND);
        world.check(&first);
        assert!(!first.outcome.complete && first.outcome.failure.is_none());
        assert_eq!(first.outcome.span.end, first.outcome.span.start + 5 * SECOND);
        let late = first.of("slow");
        assert_eq!((late.state, late.coverage), (State::Late, 0.0));
        assert!(late.reason.as_ref().unwrap().contains("still training"), "{late:?}");

        let second = world.round(limited(2), 6 * SECOND);
        assert_eq!(second.outcome.participants.len(), 2, "the straggler is not asked again meanwhile");
        assert!(!second.outcome.complete);
        world.pass(60 * SECOND);
        assert_eq!(world.verdicts(2), [(1, Verdict::Late)]);
        world.clients[2].profile.train = SECOND;
        let third = world.round(limited(3), 6 * SECOND);
        world.check(&third);
        assert!(third.outcome.complete);
        assert_eq!(world.clients[2].seen.ready, [1, 3]);
    }
}

#[test]
fn below_k_the_round_fails_and_says_why() {
    let mut world = with_a_straggler(&Setup::default());
    let strict = RoundPlan { enough: 3, deadline: Some(5 * SECOND), ..plan(1, 3) };
    let result = world.round(strict, 6 * SECOND);
    let failure = result.outcome.failure.clone().unwrap();
    assert_eq!(failure, "round 1: 2 of 3 updates came by the deadline of 5 s, 3 are needed");
    assert!(result.of("slow").reason.is_some());
    assert_eq!(result.of("c0").state, State::Whole, "what came is still told");
}

/// All clients still work on a round that is over. The next round must wait for them, and not fail at once.
#[test]
fn a_round_waits_for_clients_that_are_still_busy_with_the_one_before() {
    let slow = |i| Profile { train: 60 * SECOND, ..profile(&format!("c{i}")) };
    let mut world = World::joined(&Setup::default(), [slow(1), slow(2)]);
    let first = world.round(RoundPlan { deadline: Some(SECOND), ..plan(1, 2) }, 2 * SECOND);
    assert!(first.outcome.failure.is_some());
    let second = world.round(plan(2, 2), 200 * SECOND);
    world.check(&second);
    assert!(second.outcome.complete, "{:?}", second.outcome);
}

/// The client's update and the server's Closed cross each other on the way.
#[test]
fn an_update_that_comes_too_late_is_refused_and_counts_nothing() {
    let each = [Partial::Discard, Partial::Keep];
    // Without a place that is granted with the model, the update comes a round trip later.
    let invited = each.map(|partial| (partial, true, &[700, 900, 1000, 1100, 1200, 1300][..]));
    let others = each.map(|partial| (partial, false, &[900, 1500, 1700, 1900, 2000, 2100][..]));
    for (partial, invites, deadlines) in invited.into_iter().chain(others) {
        let path = Path { delay: 400 * MS, rate: 20_000, ..Path::PERFECT };
        let far = Profile { paths: vec![(path, path)], ..profile("far") };
        for deadline in deadlines.iter().map(|&ms| ms * MS) {
            let setup = Setup { partial, keeps_order: invites, ..Setup::default() };
            let mut world = World::joined(&setup, [profile("near"), far.clone()]);
            let limited = RoundPlan { enough: 1, deadline: Some(deadline), ..plan(1, 2) };
            let result = world.round(limited, 5 * SECOND);
            world.check(&result);
            let far = result.of("far");
            assert!(matches!(far.state, State::Late | State::Partial), "{deadline:?}: {far:?}");
            world.pass(5 * SECOND);
            assert!(world.server.staged.is_empty());
            let verdicts = world.verdicts(1);
            assert!(verdicts.is_empty() || verdicts == [(1, Verdict::Late)], "{verdicts:?}");
            let next = world.round(plan(2, 2), 10 * SECOND);
            world.check(&next);
            assert!(next.outcome.complete, "it is idle again after a deadline of {deadline:?}");
        }
    }
}

#[test]
fn one_bad_value_refuses_the_update_in_words() {
    for partial in [Partial::Discard, Partial::Keep] {
        let bad = Profile { nan_at: Some(2048), ..profile("bad") };
        let mut world = World::joined(&Setup { partial, ..Setup::default() }, [profile("good"), bad]);
        let result = world.round(RoundPlan { enough: 1, ..plan(1, 2) }, 10 * SECOND);
        let bad = result.of("bad");
        assert_eq!(bad.reason.as_deref(), Some("sent a NaN"));
        let counted = if partial == Partial::Keep { 2048.0 / world.server.bytes() as f64 } else { 0.0 };
        assert_eq!(bad.coverage, counted);
        assert_eq!(bad.state, if partial == Partial::Keep { State::Partial } else { State::Rejected });
        world.pass(SECOND);
        assert_eq!(world.verdicts(1), [(1, Verdict::Rejected("sent a NaN".into()))]);
        world.clients[1].profile.nan_at = None;
        assert!(world.round(plan(2, 2), 10 * SECOND).outcome.complete);
    }
}

#[test]
fn a_round_ends_as_soon_as_its_last_update_is_refused() {
    let bad = Profile { nan_at: Some(2048), ..profile("bad") };
    let mut world = World::joined(&Setup::default(), [bad]);
    let result = world.round(plan(1, 1), 10 * SECOND);
    assert!(result.outcome.failure.is_some_and(|f| f.ends_with("bad sent a NaN")));
    assert!(result.outcome.span.end - result.outcome.span.start < 200 * MS, "{:?}", result.outcome.span);
}

#[test]
fn the_model_of_a_round_that_is_over_is_sent_no_further() {
    let down = Path { rate: 1000, ..Path::PERFECT };
    let slow = Profile { paths: vec![(Path::PERFECT, down)], ..profile("slow") };
    let mut world = World::joined(&Setup { chunk: 128, ..Setup::default() }, [profile("c"), slow]);
    world.pass(SECOND);
    let limited = RoundPlan { enough: 1, deadline: Some(SECOND), ..plan(1, 2) };
    let result = world.round(limited, 2 * SECOND);
    assert_eq!(result.of("slow").state, State::Late);
    world.pass(10 * SECOND);
    let sent = world.net.payload(1, crate::common::End::Server);
    assert!((100..1200).contains(&sent), "{sent} bytes in a second at 1 kB/s");
}

#[test]
fn a_round_of_nobody_or_a_second_one_at_a_time_is_refused() {
    let mut world = World::joined(&Setup::default(), profiles(1));
    let machine = &mut world.server.machine;
    assert!(machine.start_round(world.now, plan(1, 0)).unwrap_err().contains("at least one"));
    assert!(machine
        .start_round(world.now, RoundPlan { enough: 3, ..plan(1, 2) })
        .unwrap_err()
        .contains("3 of 2"));
    assert_eq!(machine.start_round(world.now, plan(1, 1)), Ok(()));
    assert!(machine.start_round(world.now, plan(2, 1)).unwrap_err().contains("still under way"));
}
