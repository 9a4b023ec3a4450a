//! Only the result of a fold decides whether an update, or a part of it, is in the mean.

use crate::common::{update_offer, Action};
use thalweg_proto::{RoundAction, ServerMachine};
use thalweg_wire::control::Purpose;

use crate::common::party::{ServerParty, MAX_WEIGHT};
use crate::common::{plan, profile, Path, Profile, RoundResult, Setup, World, JOB, MS, SECOND};
use thalweg_proto::{LinkId, Partial, Place, RoundPlan, State, Time, Traffic, Verdict};
use thalweg_wire::control::{Control, Hello, Holding, Interval, StandIn, VERSIONS};
use thalweg_wire::{ChunkHeader, Range};

/// A byte in the middle of the update.
const BAD: usize = 2048;
const VICTIM: usize = 1;

fn with_bad(partial: Partial) -> World {
    let bad = Profile { unfoldable_at: Some(BAD), ..profile("bad") };
    World::joined(&Setup { partial, folding: 20 * MS, ..Setup::default() }, [profile("good"), bad])
}

fn rejected(world: &World, client: usize, round: u32) {
    let [(of, Verdict::Rejected(reason))] = world.verdicts(client) else {
        panic!("{:?}", world.verdicts(client))
    };
    assert!(*of == round && reason.contains("cannot be folded at byte 2048"), "{reason}");
}

#[test]
fn an_update_that_cannot_be_folded_is_rejected_and_nothing_of_it_counts() {
    let mut world = with_bad(Partial::Discard);
    let result = world.round(RoundPlan { enough: 1, ..plan(1, 2) }, 10 * SECOND);
    world.check(&result);
    assert!(!result.outcome.complete && result.outcome.failure.is_none());
    assert_eq!((result.of("bad").state, result.of("bad").coverage), (State::Rejected, 0.0));
    assert!(result.of("bad").reason.as_ref().unwrap().contains("cannot be folded"));
    world.pass(SECOND);
    rejected(&world, VICTIM, 1);
    assert_eq!(world.verdicts(0), [(1, Verdict::Accepted)]);
}

#[test]
fn a_round_that_lacks_what_could_not_be_folded_says_so() {
    let mut world = with_bad(Partial::Discard);
    let result = world.round(plan(1, 2), 10 * SECOND);
    let reason = result.outcome.failure.unwrap();
    assert!(reason.contains("1 of 2") && reason.contains("bad sent what cannot be folded"), "{reason}");
}

#[test]
fn with_keep_what_was_folded_before_stays_and_is_said_to_be_partial() {
    let mut world = with_bad(Partial::Keep);
    let result = world.round(RoundPlan { enough: 1, ..plan(1, 2) }, 10 * SECOND);
    world.check(&result);
    let (bad, bytes) = (result.of("bad"), world.server.bytes() as f64);
    assert_eq!((bad.state, bad.coverage), (State::Partial, BAD as f64 / bytes));
    assert!(bad.reason.as_ref().unwrap().contains("cannot be folded"));
    world.pass(SECOND);
    rejected(&world, VICTIM, 1);
}

#[test]
fn nobody_hears_accepted_before_the_update_is_folded() {
    let mut world = World::joined(&Setup { folding: SECOND, ..Setup::default() }, [profile("c")]);
    world.start(plan(1, 1));
    world.run("its update is staged", SECOND, |w| state(w, "c") == State::Staged);
    let staged = world.now;
    world.run("it hears", 5 * SECOND, |w| !w.verdicts(0).is_empty());
    assert!(world.now >= staged + SECOND);
    assert_eq!(world.verdicts(0), [(1, Verdict::Accepted)]);
}

fn state(world: &World, client: &str) -> State {
    let report = world.server.machine.progress_report();
    report.into_iter().find(|(name, ..)| name == client).map_or(State::Late, |(_, state, _)| state)
}

/// The client's link breaks while its update is being folded. The client comes back at once, or after the
/// round.
#[test]
fn who_was_away_while_its_update_was_folded_hears_when_it_is_back() {
    for (unfoldable_at, at_once) in [(None, true), (None, false), (Some(BAD), true), (Some(BAD), false)] {
        let victim = Profile { unfoldable_at, ..profile("victim") };
        let setup = Setup { folding: SECOND, ..Setup::default() };
        let mut world = World::joined(&setup, [profile("good"), victim]);
        world.start(RoundPlan { enough: 1, ..plan(1, 2) });
        world.run("it is staged", SECOND, |w| state(w, "victim") == State::Staged);
        world.up = at_once;
        world.cut(VICTIM);
        let result = world.finish_round(12 * SECOND);
        world.check(&result);
        world.up = true;
        world.run("it hears", 12 * SECOND, |w| !w.verdicts(VICTIM).is_empty());
        match unfoldable_at {
            None => {
                assert!(result.outcome.complete);
                assert_eq!(world.verdicts(VICTIM), [(1, Verdict::Accepted)]);
            }
            Some(_) => rejected(&world, VICTIM, 1),
        }
        let second = world.round(RoundPlan { enough: 1, ..plan(2, 2) }, 20 * SECOND);
        assert_eq!(second.outcome.participants.len(), 2, "it takes part again");
    }
}

/// The victim's update arrives slowly. Its process dies after half of it, and another process takes its
/// place.
fn restarted(partial: Partial, deadline: Option<Time>) -> (World, f64) {
    let mut world = World::joined(&Setup { partial, ..Setup::default() }, [profile("good")]);
    world.start(RoundPlan { enough: 1, deadline, ..plan(1, 2) });
    let path = Path { rate: 20_000, delay: 3 * MS, ..Path::PERFECT };
    world.add(Profile { paths: vec![(path, path)], ..profile("victim") });
    world.run("half of it has come", 5 * SECOND, |w| w.clients[VICTIM].seen.update_chunks == 4);
    world.kill(VICTIM);
    world.pass(10 * MS);
    world.restart(VICTIM);
    let came = 4.0 * 512.0 / world.server.bytes() as f64;
    (world, came)
}

fn of_one_process(world: &World, result: &RoundResult, came: f64) {
    world.check(result);
    let victim = result.of("victim");
    assert_eq!((victim.state, victim.coverage), (State::Partial, came), "{victim:?}");
    assert!(victim.reason.as_ref().unwrap().contains("waits for the next round"), "{victim:?}");
}

#[test]
fn with_keep_a_new_process_does_not_go_on_with_the_update_of_the_old_one() {
    let (mut world, came) = restarted(Partial::Keep, None);
    let back = world.now;
    let result = world.finish_round(SECOND);
    assert!(world.now - back < SECOND, "nobody waits for a process that is no more");
    of_one_process(&world, &result, came);
    world.pass(SECOND);
    assert!(world.verdicts(VICTIM).is_empty() && world.clients[VICTIM].seen.ready == [1], "the old one's");
    let second = world.round(plan(2, 2), 20 * SECOND);
    world.check(&second);
    assert!(second.outcome.complete, "it takes part in the next round: {:?}", second.outcome);
}

fn server_actions(server: &mut ServerParty) -> Vec<Action> {
    std::iter::from_fn(|| server.machine.poll_action()).collect()
}

fn hello(server: &mut ServerParty, now: Time, link: LinkId, name: &str, instance: u64, holding: Holding) {
    server.machine.connected(now, link, [0; 32], true);
    let (name, nonce, proof, layout) = (name.into(), [9; 32], None, None);
    let hello = Hello {
        version: VERSIONS.1,
        name,
        instance,
        nonce,
        proof,
        layout,
        holding,
        clock: 0,
        purpose: Purpose::Rounds,
    };
    server.machine.control(now, link, Control::Hello(hello));
}

fn offer(server: &mut ServerParty, now: Time, link: LinkId, weight: f64) {
    let layout = server.layout.hash();
    server.machine.control(now, link, update_offer(1, weight, layout, "{}"));
}

/// A round of two clients, 1 and 2, on links with these numbers. The first may send its update.
fn sending(partial: Partial, plan: RoundPlan, setup: Setup) -> ServerParty {
    let mut server = ServerParty::new(&Setup { partial, ..setup });
    for link in [1, 2] {
        hello(&mut server, MS, link, &format!("c{link}"), 1, Holding::Nothing);
    }
    assert_eq!(server.machine.start_round(MS, plan), Ok(()));
    offer(&mut server, 2 * MS, 1, 5.0);
    server_actions(&mut server);
    server
}

fn chunk(server: &ServerParty, start: u64, end: u64) -> ChunkHeader {
    let layout = server.layout.hash();
    ChunkHeader { job: JOB, round: 1, sender: 1, layout, offset: start, length: (end - start) as u32 }
}

fn store(server: &mut ServerParty, now: Time, link: LinkId, start: u64, end: u64) -> Vec<Range> {
    let chunk = chunk(server, start, end);
    server.machine.stored(now, link, &chunk, Ok(())).map_or_else(Vec::new, |stored| stored.fresh)
}

fn said(actions: &[Action], to: LinkId) -> Vec<Control> {
    let of = |a: &'_ Action| match a {
        Action::Send { link, message } if *link == to => Some(message.clone()),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

fn refusal(actions: &[Action], to: LinkId) -> String {
    let refused = said(actions, to).into_iter().find_map(|message| match message {
        Control::Rejected { parcel: 1, reason } => Some(reason),
        _ => None,
    });
    refused.unwrap_or_else(|| panic!("{actions:?}"))
}

fn end() -> Control {
    Control::End { parcel: 1, sent: Interval::default() }
}

/// A process claims to hold what another process held, or offers an update that it was never asked for.
#[test]
fn no_process_goes_on_where_another_was_whatever_it_says() {
    for partial in [Partial::Keep, Partial::Discard] {
        for holding in [Holding::Nothing, Holding::Round { round: 1 }] {
            let mut server = sending(partial, plan(1, 2), Setup::default());
            let fresh = store(&mut server, 3 * MS, 1, 0, 1024);
            if partial == Partial::Keep {
                let chunk = chunk(&server, 0, 1024);
                server.machine.kept(3 * MS, 1, &chunk, &fresh, Ok(()));
            }
            server.machine.closed(4 * MS, 1, "it died");
            hello(&mut server, 5 * MS, 3, "c1", 2, holding.clone());
            let actions = server_actions(&mut server);
            let closed = said(&actions, 3).contains(&Control::Closed { parcel: 1 });
            assert!(closed || partial == Partial::Discard, "it hears so: {actions:?}");
            // The same process comes back with the same false claim. Now the server knows its instance.
            server.machine.closed(6 * MS, 3, "cut");
            hello(&mut server, 7 * MS, 4, "c1", 2, holding.clone());
            if partial == Partial::Keep {
                offer(&mut server, 8 * MS, 4, 5.0);
                let actions = server_actions(&mut server);
                assert_eq!(said(&actions, 4).last(), Some(&Control::Closed { parcel: 1 }), "{actions:?}");
                assert!(store(&mut server, 9 * MS, 4, 1024, 2048).is_empty());
            }
        }
    }
}

fn traffic(retransmissions: u64) -> Traffic {
    Traffic { retransmissions: Some(retransmissions), ..Traffic::default() }
}

#[test]
fn what_is_sent_again_is_counted_when_it_is_confirmed_and_over_all_links() {
    let mut server = sending(Partial::Discard, plan(1, 2), Setup::default());
    let resent = |server: &mut ServerParty| {
        let of = server.machine.resent().into_iter().find(|(name, ..)| name == "c1");
        of.map(|(_, down, up)| (down, up)).unwrap()
    };
    let received = Control::Received { parcel: 1, received: Interval::default(), duplicates: 0, missing: 0 };
    assert_eq!(resent(&mut server), (None, None));
    server.machine.observe(1, traffic(3));
    server.machine.control(3 * MS, 1, received);
    server.machine.observe(1, traffic(5));
    assert_eq!(resent(&mut server), (Some(5), None), "what comes later counts too");
    offer(&mut server, 4 * MS, 1, MAX_WEIGHT + 1.0);
    assert_eq!(server.machine.uncounted(), 1, "it was answered");
    let counted = |n| Control::Counted { parcel: 1, retransmissions: Some(n) };
    server.machine.control(5 * MS, 1, counted(4));
    assert_eq!(server.machine.uncounted(), 0);
    server.machine.observe(1, traffic(6));
    server.machine.closed(6 * MS, 1, "it broke");
    hello(&mut server, 7 * MS, 3, "c1", 1, Holding::Nothing);
    server.machine.observe(3, traffic(2));
    server.machine.control(8 * MS, 3, counted(1));
    assert_eq!(resent(&mut server), (Some(8), Some(5)));
    server.machine.control(9 * MS, 3, counted(u64::MAX));
    assert_eq!(resent(&mut server), (Some(8), Some(u64::MAX)), "a liar does no harm");
}

#[test]
fn weights_are_judged_when_they_are_offered() {
    let mut server = sending(Partial::Discard, plan(1, 2), Setup::default());
    offer(&mut server, 3 * MS, 2, MAX_WEIGHT + 1.0);
    let reason = refusal(&server_actions(&mut server), 2);
    assert!(
        reason.contains("1099511627777 samples") && reason.contains("divide all clients' numbers"),
        "{reason}"
    );
    // The bytes that have arrived were checked with the weight of the first offer.
    store(&mut server, 3 * MS, 1, 0, 1024);
    offer(&mut server, 4 * MS, 1, 6.0);
    let reason = refusal(&server_actions(&mut server), 1);
    assert!(reason.contains("of 6 samples") && reason.contains("with 5 before"), "{reason}");
}

#[test]
fn a_chunk_that_cuts_an_element_is_refused_by_the_name_of_its_tensor() {
    for partial in [Partial::Keep, Partial::Discard] {
        for (start, finish, tensor) in [(0, 1001, "\"a\""), (3, 1024, "\"a\""), (1345, 2048, "\"b\"")] {
            let mut server = sending(partial, plan(1, 2), Setup::default());
            let chunk = chunk(&server, start, finish);
            assert!(matches!(server.machine.place(3 * MS, 1, &chunk), Place::New { weight: 5.0, .. }));
            assert!(store(&mut server, 3 * MS, 1, start, finish).is_empty());
            let reason = refusal(&server_actions(&mut server), 1);
            assert!(reason.contains(tensor) && reason.contains("multiples of 8"), "{reason}");
        }
        // Gaps between tensors are no elements. The first tensor's 333 floats end at 1332.
        let mut server = sending(partial, plan(1, 2), Setup::default());
        assert_eq!(store(&mut server, 3 * MS, 1, 1332, 1340), [Range::new(1332, 1340)]);
        assert_eq!(store(&mut server, 3 * MS, 1, 1341, 1344), [Range::new(1341, 1344)]);
    }
}

#[test]
fn a_round_ends_only_when_what_is_being_folded_has_been() {
    for (stand_in, outcome) in [
        (None, Ok(())),
        (None, Err("it overflows".to_string())),
        (Some(StandIn::Renormalise), Ok(())),
        (Some(StandIn::Renormalise), Err("it overflows".to_string())),
    ] {
        let plan = RoundPlan { enough: 1, deadline: Some(SECOND), ..plan(1, 2) };
        let mut server = sending(Partial::Keep, plan, Setup { stand_in, ..Setup::default() });
        offer(&mut server, 3 * MS, 2, 7.0);
        let total = server.layout.bytes();
        let other = ChunkHeader { sender: 2, ..chunk(&server, 0, total) };
        let fresh = server.machine.stored(3 * MS, 2, &other, Ok(())).unwrap().fresh;
        server.machine.kept(3 * MS, 2, &other, &fresh, Ok(()));
        server.machine.control(3 * MS, 2, end());
        let half = chunk(&server, 0, 1024);
        let fresh = store(&mut server, 4 * MS, 1, 0, 1024);
        let late = SECOND + MS;
        server.machine.timeout(late);
        let ended = |actions: &[Action]| {
            actions.iter().find_map(|a| match a {
                Action::Policy(RoundAction::Ended(outcome)) => Some(outcome.participants[0].clone()),
                _ => None,
            })
        };
        assert_eq!(ended(&server_actions(&mut server)), None, "a chunk is being folded");
        assert!(store(&mut server, late, 1, 1024, 2048).is_empty(), "and no more begin");
        server.machine.kept(late, 1, &half, &fresh, outcome.clone());
        let part = ended(&server_actions(&mut server)).expect("the round is over");
        match outcome {
            Ok(()) => assert_eq!((part.state, part.coverage), (State::Partial, 1024.0 / total as f64)),
            Err(_) => {
                assert_eq!((part.state, part.coverage), (State::Rejected, 0.0));
                assert!(part.reason.unwrap().contains("it overflows"));
            }
        }
    }
}
