//! Rounds that do not ask again for lost bytes: which updates count, what the report says, and that the
//! rounds continue.

use crate::common::{plan, profile, End, Path, Profile, RoundResult, Setup, World, MS, SECOND};
use thalweg_proto::{Direction, Partial, RoundPlan, State, TransferReport, Verdict};
use thalweg_wire::control::StandIn;

const CLIENTS: u32 = 3;

fn world(partial: Partial, path: Path) -> World {
    let setup = Setup { partial, stand_in: Some(StandIn::KeepLocal), seed: 3, ..Setup::default() };
    let client = |i| Profile { paths: vec![(path, path)], ..profile(&format!("c{i}")) };
    World::joined(&setup, (0..CLIENTS).map(client))
}

fn lossy(loss: f64, ordered: bool) -> Path {
    Path { loss, ordered, delay: 5 * MS, ..Path::PERFECT }
}

fn way<'a>(result: &'a RoundResult, client: &str, direction: Direction) -> &'a TransferReport {
    let ways = &result.outcome.transfers;
    ways.iter().find(|t| t.client == client && t.direction == direction).expect("it was under way")
}

fn each(mut check: impl FnMut(Partial, bool)) {
    for partial in [Partial::Discard, Partial::Keep] {
        for ordered in [true, false] {
            check(partial, ordered);
        }
    }
}

#[test]
fn nothing_is_sent_twice_and_the_outcome_says_what_is_missing() {
    each(|partial, ordered| {
        let mut world = world(partial, lossy(0.2, ordered));
        let bytes = world.server.bytes() as u64;
        let mut holes = vec![Vec::new(); CLIENTS as usize];
        for number in 1..=3 {
            let result = world.round(plan(number, CLIENTS), 30 * SECOND);
            world.check(&result);
            assert!(result.outcome.failure.is_none());
            for (i, holes) in holes.iter_mut().enumerate() {
                let name = format!("c{i}");
                let (up, down) = (way(&result, &name, Direction::Up), way(&result, &name, Direction::Down));
                assert_eq!(up.holes.bytes(), up.missing);
                holes.push(up.holes.clone());
                for way in [up, down] {
                    assert_eq!((way.bytes + way.missing, way.complete), (bytes, way.missing == 0), "{way:?}");
                }
                let part = result.of(&name);
                assert_eq!(part.coverage, up.bytes as f64 / bytes as f64);
                assert_eq!(part.state == State::Whole, up.missing == 0);
                let reason = part.reason.clone().unwrap_or_default();
                assert!(up.missing == 0 || reason.contains(&format!("{} of its {bytes}", up.missing)));
                assert_eq!(world.net.payload(i, End::Client), bytes * u64::from(number), "sent once");
                assert_eq!(world.net.payload(i, End::Server), bytes * u64::from(number), "sent once");
            }
            let missing: u64 = result.outcome.transfers.iter().map(|t| t.missing).sum();
            assert!(missing > 0, "a fifth of all is lost");
        }
        world.pass(SECOND);
        for (i, holes) in holes.iter().enumerate() {
            assert_eq!(world.verdicts(i), [1, 2, 3].map(|round| (round, Verdict::Accepted)));
            assert_eq!(&world.clients[i].seen.lost, holes, "the client knows what did not arrive");
        }
    });
}

/// With `Partial::Keep` the part of an update that came before the round's end counts. Its client must know which
/// part that is.
#[test]
fn a_late_client_knows_which_part_of_its_update_counts() {
    for partial in [Partial::Discard, Partial::Keep] {
        let setup = Setup { partial, elements: 4000, ..Setup::default() };
        let quick = lossy(0.0, true);
        let slow = Path { rate: 4000, ..quick }; // 16 KB take four seconds
        let up = |i| if i == 0 { slow } else { quick };
        let client = |i| Profile { paths: vec![(up(i), quick)], ..profile(&format!("c{i}")) };
        let mut world = World::joined(&setup, (0..CLIENTS).map(client));
        let bytes = world.server.bytes() as u64;
        let plan = RoundPlan { deadline: Some(2 * SECOND), enough: CLIENTS - 1, ..plan(1, CLIENTS) };
        let result = world.round(plan, 10 * SECOND);
        world.check(&result);
        assert!(result.outcome.failure.is_none(), "{:?}", result.outcome);
        world.pass(SECOND);
        assert_eq!(world.verdicts(0), [(1, Verdict::Late)]);
        let came = way(&result, "c0", Direction::Up).bytes;
        assert!(came > 0 && came < bytes);
        let counted = if partial == Partial::Keep { came } else { 0 };
        assert_eq!(world.clients[0].seen.lost[0].bytes(), bytes - counted, "{partial:?}");
    }
}

#[test]
fn without_loss_all_are_whole() {
    each(|partial, ordered| {
        let mut world = world(partial, lossy(0.0, ordered));
        let result = world.round(plan(1, CLIENTS), 10 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete);
        assert!(result.outcome.transfers.iter().all(|t| t.missing == 0 && t.complete));
    });
}

/// A fifth of the chunks loses its middle third on the way. Chunks that are sent again do so too.
#[test]
fn what_chunks_lose_is_sent_again_and_nothing_else() {
    each(|partial, ordered| {
        let setup = Setup { partial, elements: 40_000, chunk: 2048, seed: 4, ..Setup::default() };
        let path = Path { holes: 0.2, ..lossy(0.0, ordered) };
        let client = |i| Profile { paths: vec![(path, path)], ..profile(&format!("c{i}")) };
        let mut world = World::joined(&setup, (0..CLIENTS).map(client));
        let bytes = world.server.bytes() as u64;
        let result = world.round(plan(1, CLIENTS), 30 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete && result.outcome.failure.is_none());
        for i in 0..CLIENTS as usize {
            let (sent, lost) = (world.net.payload(i, End::Client), world.net.holed(i, End::Client));
            assert!(lost > bytes / 20);
            assert_eq!(sent, bytes + lost, "only what was lost is sent twice");
        }
    });
}

#[test]
fn updates_of_which_nothing_came_end_a_round_too() {
    each(|partial, ordered| {
        let mut world = world(partial, lossy(1.0, ordered));
        let bytes = world.server.bytes() as u64;
        let result = world.round(plan(1, CLIENTS), 10 * SECOND);
        world.check(&result);
        assert!(!result.outcome.complete && result.outcome.failure.is_none());
        for i in 0..CLIENTS {
            let part = result.of(&format!("c{i}"));
            assert_eq!((part.state, part.coverage), (State::Partial, 0.0));
            assert_eq!(way(&result, &part.client, Direction::Up).missing, bytes);
        }
    });
}

#[test]
fn what_a_broken_link_held_back_is_still_sent() {
    each(|partial, ordered| {
        let setup = Setup { partial, stand_in: Some(StandIn::Zero), ..Setup::default() };
        let path = |cut_after| Path { cut_after, ..lossy(0.0, ordered) };
        let paths = vec![(path(Some(2000)), path(None)), (path(None), path(None))];
        let mut world = World::joined(&setup, [Profile { paths, ..profile("c") }]);
        let result = world.round(RoundPlan { enough: 1, ..plan(1, 1) }, 30 * SECOND);
        world.check(&result);
        assert_eq!(result.of("c").state, State::Whole, "{:?}", result.outcome);
        assert_eq!(way(&result, "c", Direction::Up).missing, 0);
    });
}

/// At the deadline, an update counts with the bytes that have arrived. The rest is not sent.
#[test]
fn at_the_deadline_an_update_counts_as_far_as_it_has_come() {
    each(|partial, ordered| {
        let setup = Setup { partial, stand_in: Some(StandIn::KeepLocal), elements: 4000, ..Setup::default() };
        let quick = lossy(0.0, ordered);
        let slow = Path { rate: 4000, ..quick }; // 16 KB take four seconds
        let up = |i| if i == 0 { slow } else { quick };
        let client = |i| Profile { paths: vec![(up(i), quick)], ..profile(&format!("c{i}")) };
        let mut world = World::joined(&setup, (0..CLIENTS).map(client));
        let bytes = world.server.bytes() as u64;
        for number in 1..=2 {
            let plan = RoundPlan { deadline: Some(2 * SECOND), ..plan(number, CLIENTS) };
            let result = world.round(plan, 10 * SECOND);
            world.check(&result);
            assert!(result.outcome.failure.is_none() && !result.outcome.complete);
            let part = result.of("c0");
            assert_eq!(part.state, State::Partial);
            assert!(part.coverage > 0.2 && part.coverage < 0.8, "{part:?}");
            assert!(way(&result, "c0", Direction::Up).wire_bytes > 0);
            assert_eq!(result.of("c1").state, State::Whole);
            world.pass(SECOND);
            assert_eq!(world.verdicts(0).last(), Some(&(number, Verdict::Accepted)));
        }
        assert!(world.net.payload(0, End::Client) < 2 * bytes, "the rest was sent");
    });
}
