//! A client dies at every point of a round. Tests what its update counts for, and how the client comes back.

use crate::common::{plan, profile, Path, Profile, RoundResult, Setup, World, MS, SECOND};
use thalweg_proto::{Partial, RoundPlan, ServerMachine, State, TransferReport, Verdict};

const VICTIM: usize = 1;

/// The point at which a client dies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Point {
    BeforeHello,
    AfterHello,
    /// Up to this many chunks of its model have arrived.
    Model(u32),
    Training,
    /// The client has sent its offer.
    Offered,
    /// Up to this many chunks of its update have arrived.
    Update(u32),
    /// The client has sent all chunks and the End.
    AfterEnd,
    AfterAccepted,
}

fn points(chunks: u32) -> Vec<Point> {
    let mut points = vec![Point::BeforeHello, Point::AfterHello];
    points.extend((1..chunks).map(Point::Model));
    points.extend([Point::Training, Point::Offered]);
    points.extend((1..=chunks).map(Point::Update));
    points.extend([Point::AfterEnd, Point::AfterAccepted]);
    points
}

fn reached(world: &World, point: Point) -> bool {
    let seen = &world.clients[VICTIM].seen;
    match point {
        Point::BeforeHello => seen.connections > 0,
        Point::AfterHello => seen.hellos > 0,
        Point::Model(n) => seen.model_chunks >= n,
        Point::Training => !seen.ready.is_empty(),
        Point::Offered => seen.offers > 0,
        Point::Update(n) => seen.update_chunks >= n,
        Point::AfterEnd => seen.ends > 0,
        Point::AfterAccepted => !seen.verdicts.is_empty(),
    }
}

/// The victim starts when the good client has joined and a round of two has begun.
fn world_at(point: Point, partial: Partial) -> World {
    let setup = Setup { partial, folding: 20 * MS, ..Setup::default() };
    let mut world = World::joined(&setup, [profile("good")]);
    world.start(RoundPlan { enough: 1, ..plan(1, 2) });
    let path = Path { rate: 20_000, delay: 3 * MS, ..Path::PERFECT };
    world.add(Profile { paths: vec![(path, path)], ..profile("victim") });
    world.run(&format!("{point:?}"), 5 * SECOND, |w| reached(w, point));
    world
}

fn chunks() -> u32 {
    let world = World::new(&Setup::default());
    world.server.layout.bytes().div_ceil(512) as u32
}

fn each_point(mut check: impl FnMut(Point, Partial, World)) {
    for partial in [Partial::Discard, Partial::Keep] {
        for point in points(chunks()) {
            check(point, partial, world_at(point, partial));
        }
    }
}

/// Bytes of the victim's update that the server has.
fn came(world: &World) -> f64 {
    let chunks = f64::from(world.clients[VICTIM].seen.update_chunks);
    (512.0 * chunks).min(world.server.bytes() as f64)
}

#[test]
fn a_client_that_never_comes_back_counts_what_the_rule_says() {
    each_point(|point, partial, mut world| {
        world.kill(VICTIM);
        let (died, came) = (world.now, came(&world));
        let result = if world.server.results.is_empty() {
            world.finish_round(11 * SECOND)
        } else {
            world.server.results[0].clone()
        };
        world.check(&result);
        let bytes = world.server.bytes() as f64;
        let known = result.outcome.participants.iter().find(|p| p.client == "victim");
        let Some(part) = known else {
            // The client's Hello was lost on the way.
            assert!(matches!(point, Point::BeforeHello | Point::AfterHello), "{point:?}");
            return;
        };
        if point == Point::AfterAccepted {
            assert_eq!(part.state, State::Whole, "accepted is accepted");
        } else if partial == Partial::Keep && came > 0.0 {
            assert_eq!((part.state, part.coverage), (State::Partial, came / bytes), "{point:?}");
            assert!(part.reason.is_some());
        } else {
            assert_eq!((part.state, part.coverage), (State::Lost, 0.0), "{point:?}");
            let waited = result.outcome.span.end - died;
            assert!(waited >= 10 * SECOND && waited < 11 * SECOND, "{point:?}: waited for {waited:?}");
        }
    });
}

#[test]
fn nobody_waits_for_a_client_that_is_forgotten() {
    each_point(|point, _, mut world| {
        world.kill(VICTIM);
        let now = world.now;
        world.server.machine.forget(now, "victim", "killed by signal 9");
        world.server_actions();
        let joined = world.server.log.iter().any(|l| l == "+victim");
        let limit = if joined { SECOND } else { 11 * SECOND };
        if world.server.results.is_empty() {
            world.finish_round(limit);
        }
        let result = world.server.results[0].clone();
        world.check(&result);
        assert_eq!(result.outcome.complete, point == Point::AfterAccepted, "{point:?}: {:?}", result.outcome);
    });
}

/// The link breaks at every point and is made anew. The round is complete, and nothing is lost or counted
/// twice.
#[test]
fn the_same_process_goes_on_where_it_was() {
    each_point(|point, _, mut world| {
        world.cut(VICTIM);
        let result = finish(&mut world);
        world.check(&result);
        assert!(result.outcome.complete, "{point:?}: {:?}", result.outcome);
        world.pass(SECOND);
        assert_eq!(world.verdicts(VICTIM), [(1, Verdict::Accepted)], "{point:?}");
        assert_eq!(world.clients[VICTIM].seen.ready, [1], "{point:?}: it trains once");
        let whole = |t: &TransferReport| t.complete && t.bytes == world.server.bytes() as u64;
        assert!(result.outcome.transfers.iter().all(whole), "{point:?}: {:?}", result.outcome.transfers);
        let bytes = world.server.bytes() as u64;
        for end in [crate::common::End::Server, crate::common::End::Client] {
            let sent = world.net.payload(VICTIM, end);
            assert!(sent <= bytes + 3 * 512, "{point:?}: {sent} of {bytes} sent by {end:?}");
        }
    });
}

fn finish(world: &mut World) -> RoundResult {
    if world.server.results.is_empty() {
        return world.finish_round(12 * SECOND);
    }
    world.server.results[0].clone()
}

#[test]
fn a_new_process_starts_over() {
    each_point(|point, partial, mut world| {
        world.kill(VICTIM);
        let came = came(&world);
        world.pass(10 * MS);
        world.restart(VICTIM);
        let result = finish(&mut world);
        world.check(&result);
        if partial == Partial::Keep && came > 0.0 && point != Point::AfterAccepted {
            // The folded part of the old process's update stays, and is not mixed with the new one's.
            let victim = result.of("victim");
            assert_eq!((victim.state, victim.coverage), (State::Partial, came / world.server.bytes() as f64));
            return;
        }
        assert!(result.outcome.complete, "{point:?}: {:?}", result.outcome);
        world.pass(SECOND);
        let sent = world.net.payload(VICTIM, crate::common::End::Client) as f64;
        let bytes = world.server.bytes() as f64;
        if partial == Partial::Discard && matches!(point, Point::Update(_)) {
            assert!(sent >= bytes + came, "{point:?}: its old half is worth nothing");
        }
    });
}

/// The round ends without the client. Then the client comes back, as the same process or a new one.
#[test]
fn who_comes_back_after_the_end_takes_part_in_the_next_round() {
    for fresh in [false, true] {
        each_point(|point, _, mut world| {
            world.up = false; // no client reaches the server meanwhile
            world.cut(VICTIM);
            if fresh {
                world.kill(VICTIM);
            }
            let first = finish(&mut world);
            world.up = true;
            if fresh {
                world.restart(VICTIM);
            }
            world.run("it is back", 10 * SECOND, |w| w.server.machine.connected_clients().count() == 2);
            let second = world.round(plan(2, 2), 20 * SECOND);
            world.check(&second);
            assert!(second.outcome.complete, "{point:?}, fresh {fresh}: {:?}", second.outcome);
            world.pass(SECOND);
            if fresh {
                return;
            }
            let verdicts = world.verdicts(VICTIM);
            let counted =
                first.outcome.participants.iter().any(|p| p.client == "victim" && p.coverage == 1.0);
            let whole = first.outcome.complete;
            assert_eq!(verdicts.last(), Some(&(2, Verdict::Accepted)), "{point:?}");
            if whole {
                assert_eq!(verdicts[0], (1, Verdict::Accepted), "{point:?}: it is told though late");
            } else if verdicts.len() > 1 {
                assert_eq!(verdicts[0], (1, Verdict::Late), "{point:?}, counted {counted}");
            }
        });
    }
}

/// The Accepted of a whole update is lost with the link, and the round ends before the client is back.
#[test]
fn an_accepted_update_is_not_called_late_afterwards() {
    for partial in [Partial::Discard, Partial::Keep] {
        // The server must know of the update before its end is on its way.
        let setup = Setup { partial, keeps_order: false, ..Setup::default() };
        let mut world = World::joined(&setup, [profile("good"), profile("victim")]);
        world.start(plan(1, 2));
        world.run("its end is on its way", SECOND, |w| w.clients[VICTIM].seen.ends > 0);
        let said = world.server.machine.progress_report();
        assert!(said.iter().any(|(name, state, _)| name == "victim" && *state == State::Sending));
        world.run("it is in", SECOND, |w| {
            let report = w.server.machine.progress_report();
            report.iter().all(|(name, state, _)| name != "victim" || *state != State::Sending)
        });
        world.cut(VICTIM);
        assert!(world.verdicts(VICTIM).is_empty());
        let result = finish(&mut world);
        assert!(result.outcome.complete);
        world.pass(SECOND);
        assert_eq!(world.verdicts(VICTIM), [(1, Verdict::Accepted)]);
    }
}

/// The server is restarted during a round, so clients hold a model of a job that it does not know.
#[test]
fn a_restarted_server_takes_nothing_of_the_old_rounds_for_its_own() {
    for point in points(chunks()) {
        let mut world = world_at(point, Partial::Discard);
        world.restart_server(&Setup::default());
        // The round's number is the same, but its model is another one with the same layout.
        world.start_with(plan(1, 2), 0xabcd);
        let result = world.finish_round(20 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete, "{point:?}: {:?}", result.outcome);
    }
}
