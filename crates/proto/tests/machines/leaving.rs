//! Clients that leave, and the text that they send: it is bounded, made plain, and reported.

use crate::common::{update_offer, Action};
use thalweg_proto::{ClientMachine, RoundAction, ServerMachine};
use thalweg_wire::control::Purpose;

use crate::common::party::ServerParty;
use crate::common::{plan, profile, Setup, World, MS, SECOND};
use thalweg_proto::{LinkId, RoundPlan, Time};
use thalweg_wire::control::{Control, Hello, Holding, Refusal, MAX_METRICS, MAX_REASON, VERSIONS};
use thalweg_wire::text::is_plain;

/// One round in which "b" says goodbye. One update is enough.
fn without_b(words: &str) -> World {
    let mut world = World::joined(&Setup::default(), ["a", "b"].map(profile));
    world.start(RoundPlan { enough: 1, ..plan(1, 2) });
    world.run("b trains", SECOND, |w| !w.clients[1].seen.ready.is_empty());
    world.clients[1].machine.leave(words);
    world.client_actions(1);
    world.finish_round(SECOND);
    world
}

#[test]
fn later_rounds_do_not_wait_for_a_client_that_left_for_good() {
    let mut world = without_b("the battery is low");
    world.start(RoundPlan { enough: 1, ..plan(2, 2) });
    let result = world.finish_round(SECOND);
    assert_eq!(result.outcome.failure, None);
    assert_eq!(result.outcome.participants.len(), 1);
}

#[test]
fn a_round_without_enough_ends_at_once_and_names_those_that_left_before() {
    let mut world = without_b("ValueError: no data");
    world.start(plan(2, 2));
    let result = world.finish_round(SECOND);
    let failure = result.outcome.failure.unwrap();
    assert!(failure.contains("1 of 2") && failure.contains("b left: ValueError: no data"), "{failure}");
    let departed: Vec<_> = world.server.machine.departed().collect();
    assert_eq!(departed, [("b", "left: ValueError: no data", true)]);
}

#[test]
fn a_client_that_comes_back_after_its_farewell_is_in_again() {
    let mut world = without_b("a pause");
    world.restart(1);
    world.pass(SECOND);
    assert_eq!(world.server.machine.departed().count(), 0);
    world.start(plan(2, 2));
    assert!(world.finish_round(SECOND).outcome.complete);
}

/// A client's text that tries to write control characters to a terminal, and is very long.
fn evil() -> String {
    "\x1b[2J\r\n2026-01-01 admin: all is well\u{202e}".repeat(1000)
}

#[test]
fn a_farewell_is_one_plain_line_wherever_it_is_kept() {
    let world = without_b(&evil());
    let result = world.server.results.last().unwrap();
    let reason = result.of("b").reason.clone().unwrap();
    let (_, parting, _) = world.server.machine.departed().next().unwrap();
    let told = world.server.log.iter().find(|l| l.starts_with("-b")).unwrap();
    for text in [reason.as_str(), parting, told.as_str()] {
        assert!(is_plain(text) && text.len() <= MAX_REASON + 8, "{text}");
    }
}

fn hello(name: &str) -> Control {
    let (name, holding) = (name.into(), Holding::Nothing);
    let (nonce, proof, layout) = ([9; 32], None, None);
    Control::Hello(Hello {
        version: VERSIONS.1,
        name,
        instance: 1,
        nonce,
        proof,
        layout,
        holding,
        clock: 0,
        purpose: Purpose::Rounds,
    })
}

fn actions(server: &mut ServerParty) -> Vec<Action> {
    std::iter::from_fn(|| server.machine.poll_action()).collect()
}

#[test]
fn names_that_forge_lines_or_turn_text_are_refused() {
    for (link, name) in [(1, "a\nb"), (2, "\x1b[31mred"), (3, "abc\u{202e}fed"), (4, " "), (5, "")] {
        let mut server = ServerParty::new(&Setup::default());
        server.machine.connected(Time::ZERO, link, [0; 32], true);
        server.machine.control(MS, link, hello(name));
        let refused = actions(&mut server).into_iter().find_map(|action| match action {
            Action::Send { message: Control::Refused { code, reason }, .. } => Some((code, reason)),
            _ => None,
        });
        let (code, reason) = refused.unwrap();
        assert_eq!(code, Refusal::Protocol);
        assert!(is_plain(&reason), "{reason}");
        assert_eq!(server.machine.connected_clients().count(), 0);
    }
}

fn offer(server: &mut ServerParty, round: u32, link: LinkId, metrics: String) -> Vec<Action> {
    let layout = server.layout.hash();
    server.machine.control(2 * MS, link, update_offer(round, 5.0, layout, &metrics));
    actions(server)
}

#[test]
fn metrics_that_are_too_long_are_dropped_and_that_is_said_once() {
    let mut server = ServerParty::new(&Setup::default());
    for link in [1, 2] {
        server.machine.connected(MS, link, [0; 32], true);
        server.machine.control(MS, link, hello(&format!("c{link}")));
    }
    server.machine.start_round(MS, plan(1, 2)).unwrap();
    actions(&mut server);
    let notes = |actions: &[Action]| {
        let said = actions.iter().filter(|a| matches!(a, Action::Note { client, .. } if client == "c1"));
        said.count()
    };
    let long = || "[".repeat(MAX_METRICS + 1);
    assert_eq!(notes(&offer(&mut server, 1, 1, long())), 1);
    assert_eq!(notes(&offer(&mut server, 1, 1, long())), 0, "again");
    assert_eq!(notes(&offer(&mut server, 1, 2, "{}".into())), 0);
    server.machine.finish(3 * MS, "over");
    let ended = actions(&mut server).into_iter().find_map(|action| match action {
        Action::Policy(RoundAction::Ended(outcome)) => Some(outcome),
        _ => None,
    });
    let kept: Vec<String> = ended.unwrap().participants.into_iter().map(|p| p.metrics).collect();
    assert_eq!(kept, ["{}", "{}"]);
}

#[test]
fn an_honest_client_hears_at_once_that_its_metrics_are_too_long() {
    let mut world = World::joined(&Setup::default(), [profile("a")]);
    let error = world.clients[0].machine.submit(1, 1.0, "x".repeat(MAX_METRICS + 1)).unwrap_err();
    assert!(error.contains("fewer or shorter"), "{error}");
}
