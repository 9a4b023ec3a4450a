//! Serves one client after the other, as FedComm's server does: models, updates, and clients that are not
//! waited for.

use crate::common::{plan, profile, Path, Profile, RoundResult, Setup, World, MS, SECOND};
use thalweg_proto::{Direction, Fanout, Gather, Partial, RoundPlan, Span, State};

const NAMES: [&str; 4] = ["client-1", "client-2", "client-3", "client-10"];

/// A client with 20 kB/s in both directions: 4 kB take a little more than 200 ms.
fn slow(name: &str) -> Profile {
    let path = Path { rate: 20_000, delay: 5 * MS, ..Path::PERFECT };
    Profile { paths: vec![(path, path)], ..profile(name) }
}

/// A world whose clients joined in the reverse order of their names.
fn joined(partial: Partial, profiles: impl DoubleEndedIterator<Item = Profile>) -> World {
    let mut world = World::joined(&Setup { partial, ..Setup::default() }, profiles.rev());
    world.pass(SECOND);
    world
}

fn sequential(clients: u32) -> RoundPlan {
    RoundPlan { fanout: Fanout::Sequential, ..plan(1, clients) }
}

fn in_order(clients: u32) -> RoundPlan {
    RoundPlan { gather: Gather::InOrder, ..plan(1, clients) }
}

/// When each client's model or update was being transferred, by name.
fn spans(result: &RoundResult, direction: Direction, names: &[&str]) -> Vec<Span> {
    let of = |name: &str| {
        let mut found = result.outcome.transfers.iter();
        let found = found.find(|t| t.client == name && t.direction == direction);
        found.and_then(|t| if direction == Direction::Down { t.send } else { t.receive })
    };
    names.iter().map(|name| of(name).unwrap_or_else(|| unreachable!("{name}: {result:?}"))).collect()
}

fn index(world: &World, name: &str) -> usize {
    world.clients.iter().position(|c| c.profile.name == name).expect("a client of the world")
}

#[test]
fn the_model_goes_to_one_after_the_other_by_name() {
    for partial in [Partial::Discard, Partial::Keep] {
        let mut world = joined(partial, NAMES.map(slow).into_iter());
        let result = world.round(sequential(4), 10 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete);
        let sent = spans(&result, Direction::Down, &NAMES);
        assert!(sent.windows(2).all(|two| two[0].end <= two[1].start), "{sent:?}");
        let result = world.round(plan(2, 4), 10 * SECOND);
        let sent = spans(&result, Direction::Down, &NAMES);
        assert!(sent.windows(2).all(|two| two[0].end > two[1].start), "at the same time: {sent:?}");
    }
}

#[test]
fn updates_come_one_after_the_other_though_the_last_is_ready_first() {
    for partial in [Partial::Discard, Partial::Keep] {
        let trains = |(at, name)| Profile { train: SECOND - 200 * MS * at as u32, ..slow(name) };
        let mut world = joined(partial, NAMES.into_iter().enumerate().map(trains));
        let result = world.round(in_order(4), 10 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete);
        let came = spans(&result, Direction::Up, &NAMES);
        assert!(came.windows(2).all(|two| two[0].end <= two[1].start), "{came:?}");
        let down = spans(&result, Direction::Down, &NAMES);
        assert!(down.windows(2).all(|two| two[0].end > two[1].start), "the model at the same time: {down:?}");
    }
}

/// The first client in the order receives nothing of the model. The liveness rule ends its link, and then the
/// others get the model.
#[test]
fn a_client_that_takes_nothing_holds_up_the_others_until_it_is_let_go() {
    let deaf = Path { rate: 0, separate: true, ..Path::PERFECT };
    let dead = Profile { paths: vec![(Path::PERFECT, deaf)], ..profile("client-1") };
    let mut world = joined(Partial::Discard, [dead, slow("client-2")].into_iter());
    world.start(RoundPlan { enough: 1, grace: SECOND, ..sequential(2) });
    world.pass(9 * SECOND);
    assert_eq!(world.clients[index(&world, "client-2")].seen.model_chunks, 0, "it is not its turn yet");
    world.run("client-2 has the model", 5 * SECOND, |w| {
        !w.clients[index(w, "client-2")].seen.ready.is_empty()
    });
    assert!(world.server.log.iter().any(|l| l.contains("client-1: no progress for 10.0 s")));
    world.run("client-2 is in", SECOND, |w| !w.verdicts(index(w, "client-2")).is_empty());
}

#[test]
fn who_comes_back_in_the_middle_of_its_turn_gets_the_rest_after_the_others() {
    let mut world = joined(Partial::Discard, NAMES.map(slow).into_iter());
    world.start(sequential(4));
    let first = index(&world, "client-1");
    world.run("it has a part", SECOND, |w| w.clients[first].seen.model_chunks >= 2);
    world.cut(first);
    let result = world.finish_round(10 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete);
    let sent = spans(&result, Direction::Down, &NAMES);
    assert!(sent[1].start < sent[2].start && sent[2].start < sent[3].start && sent[3].end < sent[0].end);
    assert!(world.clients[first].seen.model_chunks <= 10, "8 chunks, and those that were under way");
}

#[test]
fn a_lost_client_holds_up_nobody_and_is_first_again_when_it_is_back() {
    for partial in [Partial::Discard, Partial::Keep] {
        let mut world = joined(partial, NAMES.map(slow).into_iter());
        let first = index(&world, "client-1");
        world.start(in_order(4));
        world.run("it sends", 2 * SECOND, |w| w.clients[first].seen.update_chunks >= 2);
        world.clients[first].profile.paths.push((Path::PERFECT, Path::PERFECT));
        world.cut(first);
        let result = world.finish_round(10 * SECOND);
        world.check(&result);
        assert!(result.outcome.complete);
        let came = spans(&result, Direction::Up, &NAMES);
        assert!(came[1].start < came[0].end, "client-2 did not wait for it: {came:?}");
        assert!(came[0].end <= came[2].start, "nor client-3 overtake it: {came:?}");
        assert!(came[2].end <= came[3].start, "{came:?}");
    }
}

/// There is room for one update. client-2 gets the place while client-1 is away, and then is away itself for
/// a moment. The server must not wait for client-1, which waits for that place.
#[test]
fn a_place_that_was_kept_is_used_before_others_wait_for_it() {
    let setup = Setup { places: 1, ..Setup::default() };
    let mut world =
        World::joined(&setup, [Profile { train: 2 * SECOND, ..slow("client-1") }, slow("client-2")]);
    world.pass(SECOND);
    world.start(in_order(2));
    world.run("client-2 waits for its turn", 2 * SECOND, |w| w.clients[1].seen.offers > 0);
    world.cut(0);
    world.run("client-2 sends", 2 * SECOND, |w| w.clients[1].seen.update_chunks >= 2);
    world.cut(1);
    let result = world.finish_round(10 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete, "{:?}", result.outcome);
}

#[test]
fn a_dead_client_is_waited_for_only_so_long() {
    let mut world = joined(Partial::Discard, NAMES.map(slow).into_iter());
    let first = index(&world, "client-1");
    world.start(RoundPlan { enough: 3, fanout: Fanout::Sequential, ..in_order(4) });
    world.run("it sends", 5 * SECOND, |w| w.clients[first].seen.update_chunks >= 2);
    let began = world.now;
    world.hang(first);
    let result = world.finish_round(40 * SECOND);
    world.check(&result);
    assert_eq!(result.of("client-1").state, State::Lost);
    assert!(result.outcome.participants.iter().filter(|p| p.state == State::Whole).count() == 3);
    let took = world.now - began;
    assert!(took < 22 * SECOND, "ten seconds to notice, ten of grace: {took:?}");
}

/// The first client in the order is a straggler. The round ends at its deadline with the updates that have
/// arrived.
#[test]
fn at_the_deadline_those_behind_a_straggler_are_late_too() {
    let straggler = Profile { train: 60 * SECOND, ..slow("client-2") };
    let mut world = joined(Partial::Discard, [slow("client-1"), straggler, slow("client-3")].into_iter());
    let limited = RoundPlan { enough: 1, deadline: Some(5 * SECOND), ..in_order(3) };
    let result = world.round(limited, 6 * SECOND);
    world.check(&result);
    let states = ["client-1", "client-2", "client-3"].map(|name| result.of(name).state);
    assert_eq!(states, [State::Whole, State::Late, State::Late]);
    let reason = result.of("client-3").reason.clone().unwrap_or_default();
    assert!(reason.contains("waiting to send its update"), "{reason}");
    let next = world.round(RoundPlan { number: 2, ..plan(2, 2) }, 10 * SECOND);
    assert!(next.outcome.complete, "nothing of the turns is left: {:?}", next.outcome);
}

#[test]
fn a_turn_that_a_round_ends_in_is_over_in_the_next() {
    let path = Path { rate: 500, ..Path::PERFECT };
    let crawling = Profile { paths: vec![(Path::PERFECT, path)], ..profile("client-1") };
    let mut world = joined(Partial::Discard, [crawling, slow("client-2")].into_iter());
    let limited = RoundPlan { enough: 0, deadline: Some(SECOND), ..sequential(2) };
    let first = world.round(limited, 2 * SECOND);
    assert!(first.outcome.participants.iter().all(|p| p.state == State::Late), "{:?}", first.outcome);
    world.pass(20 * SECOND);
    let second = world.round(RoundPlan { number: 2, ..sequential(2) }, 60 * SECOND);
    world.check(&second);
    assert!(second.outcome.complete, "{:?}", second.outcome);
}
