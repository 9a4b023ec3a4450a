//! The clients of a tree's node that is lost for good go on at another node. An update that counted is
//! confirmed there and is not folded again. A client that has lost its node asks the other nodes where its
//! home is.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{plan, profile, ClientAction, Profile, Setup, World, MS, SECOND};
use thalweg_proto::{Client, ClientConfig, ClientMachine, Homes, ServerMachine, State, Time, Verdict};
use thalweg_wire::control::{Control, Welcome, MAX_OTHERS};

const CLIENTS: usize = 5;

fn name(index: usize) -> String {
    format!("c{index}")
}

fn setup(seed: u64) -> Setup {
    Setup { seed, liveness: 2 * SECOND, folding: 20 * MS, ..Setup::default() }
}

/// Clients that train for different times, so that each is in another state when the node is lost.
fn clients() -> impl Iterator<Item = Profile> {
    (0..CLIENTS).map(|index| Profile { train: 40 * MS * (index as u32 + 1), ..profile(&name(index)) })
}

/// A node is lost at some moment of its first round. Its sums counted before, or are lost with it.
fn lost(seed: u64, after: u32, counts: bool) {
    let mut world = World::joined(&setup(seed), clients());
    world.start(plan(1, CLIENTS as u32));
    world.pass(after * MS);
    let had: BTreeSet<String> = world
        .server
        .machine
        .progress_report()
        .into_iter()
        .filter(|(_, state, _)| *state == State::Whole)
        .map(|(client, ..)| client)
        .collect();
    let had = if world.server.results.is_empty() { had } else { (0..CLIENTS).map(name).collect() };
    world.restart_server(&setup(seed));
    // The simulated network has one address for a server. From now on, the other node is there.
    let names: BTreeMap<String, u32> = (0..CLIENTS).map(|index| (name(index), 1)).collect();
    let counted = names.clone().into_iter().filter(|(client, _)| counts && had.contains(client)).collect();
    let homes = Homes { after: names, counted, ..Homes::default() };
    world.server.machine.place_clients(world.now, homes);
    // No client takes part in a round in which it may have been counted already.
    world.start_with(plan(1, CLIENTS as u32), 1);
    world.pass(8 * SECOND);
    assert!(world.server.machine.progress_report().is_empty(), "seed {seed}");
    let result = world.finish_round(60 * SECOND);
    assert!(result.outcome.failure.is_some() && result.outcome.participants.is_empty());
    let result = world.round(plan(2, CLIENTS as u32), 60 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete, "seed {seed}: {:?}", result.outcome.participants);
    world.pass(SECOND);
    for index in 0..CLIENTS {
        let verdicts = world.verdicts(index);
        let first: Vec<_> = verdicts.iter().filter(|(round, _)| *round == 1).collect();
        assert!(first.len() <= 1, "one update has one verdict: {verdicts:?}");
        if let Some((_, verdict)) = first.first() {
            // A client that got its result before the node was lost keeps that result.
            let accepted = *verdict == Verdict::Accepted;
            assert!(!accepted || had.contains(&name(index)), "seed {seed}: {verdicts:?}");
            assert!(accepted || !counts || !had.contains(&name(index)), "seed {seed}: {verdicts:?}");
        }
        assert_eq!(verdicts.last(), Some(&(2, Verdict::Accepted)));
    }
}

#[test]
fn whenever_a_node_is_lost_its_clients_count_once_and_take_part_in_the_next_round() {
    for seed in 0..120 {
        lost(seed, 5 * (seed as u32 % 60), seed % 2 == 0);
    }
}

#[test]
fn a_client_of_another_node_is_sent_there() {
    let mut world = World::joined(&setup(1), clients());
    let there = "tcp://10.0.0.2:7070".to_string();
    let elsewhere = BTreeMap::from([(name(1), there.clone())]);
    world.server.machine.place_clients(world.now, Homes { elsewhere, ..Homes::default() });
    world.server_actions();
    world.run("it goes there", SECOND, |w| w.clients[1].seen.sent_to.is_some());
    assert_eq!(world.clients[1].seen.sent_to, Some(there.clone()));
    world.pass(5 * SECOND);
    // In this network all addresses lead to this node, which sends the client away each time.
    assert_eq!(world.server.machine.connected_count(), CLIENTS - 1);
    assert_eq!(world.clients[1].seen.sent_to, Some(there));
    assert!(world.clients[1].seen.finished.is_none());
    world.server.machine.place_clients(world.now, Homes::default());
    world.run("it is let in again", 10 * SECOND, |w| w.server.machine.connected_count() == CLIENTS);
    let result = world.round(plan(1, CLIENTS as u32), 10 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete);
}

#[test]
fn a_round_waits_for_its_own_clients_though_others_have_moved() {
    let mut world = World::joined(&setup(1), clients());
    let there = |index: usize| (name(index), "tcp://10.0.0.2:7070".to_owned());
    let elsewhere: BTreeMap<String, String> = (1..4).map(there).collect();
    world.server.machine.place_clients(world.now, Homes { elsewhere, ..Homes::default() });
    world.server_actions();
    world.run("they go there", SECOND, |w| w.server.machine.connected_count() == 2);
    world.kill(4);
    world.start(plan(1, 2));
    world.pass(SECOND);
    assert!(world.server.results.is_empty(), "a client is away, and three have moved");
    world.restart(4);
    let result = world.finish_round(10 * SECOND);
    world.check(&result);
    assert!(result.outcome.complete, "{:?}", result.outcome);
    assert_eq!(result.outcome.participants.len(), 2);
}

#[test]
fn clients_that_have_moved_are_no_reason_for_a_failure() {
    let mut world = World::joined(&setup(1), clients());
    let there = |index: usize| (name(index), "tcp://10.0.0.2:7070".to_owned());
    let elsewhere: BTreeMap<String, String> = (1..4).map(there).collect();
    world.server.machine.place_clients(world.now, Homes { elsewhere, ..Homes::default() });
    world.server_actions();
    world.run("they go there", SECOND, |w| w.server.machine.connected_count() == 2);
    world.start(plan(1, 3));
    let failure = world.finish_round(60 * SECOND).outcome.failure.expect("a client is missing");
    assert!(!failure.contains("its home is"), "{failure}");
}

fn actions(client: &mut Client) -> Vec<ClientAction> {
    std::iter::from_fn(|| client.poll_action()).collect()
}

/// The URL to which the client connects next.
fn next(client: &mut Client) -> Option<String> {
    let found = actions(client).into_iter().find_map(|action| match action {
        ClientAction::Connect { to, .. } => Some(to),
        _ => None,
    });
    found.expect("it connects")
}

#[test]
fn a_client_without_its_node_asks_the_others_in_turn() {
    let (mut world, others) = (World::joined(&setup(1), clients()), ["tcp://b:1", "tcp://c:1"]);
    let told: Vec<String> = others.iter().map(ToString::to_string).cycle().take(MAX_OTHERS + 3).collect();
    world.server.machine.place_clients(world.now, Homes { others: told, ..Homes::default() });
    world.server_actions();
    world.pass(SECOND);
    let now = world.now;
    let client = &mut world.clients[0].machine;
    client.closed(now, "the node died");
    let mut asked = Vec::new();
    for _ in 0..6 {
        asked.push(next(client));
        client.unreachable(now, "nobody listens", true);
    }
    let home = None;
    let other = |at: usize| Some(others[at].to_string());
    assert_eq!(asked, [home.clone(), other(0), home.clone(), other(1), home.clone(), other(0)]);
}

fn welcome(client: &mut Client, layout: &thalweg_wire::Layout) {
    let challenge = thalweg_wire::control::Challenge {
        versions: thalweg_wire::control::VERSIONS,
        nonce: [1; 32],
        token: false,
        clock: 0,
    };
    client.connected(SECOND, [2; 32], true);
    client.control(SECOND, Control::Challenge(challenge));
    client.proven(SECOND, None);
    let layout = layout.clone();
    client.control(
        SECOND,
        Control::Welcome(Welcome {
            sender: 1,
            job: 1,
            layout,
            chunk: 512,
            heartbeat: 1_000_000,
            liveness: 10_000_000,
            stand_in: None,
            spread: None,
            allowances: Vec::new(),
        }),
    );
}

#[test]
fn only_home_can_send_a_client_away_for_good() {
    let layout = World::new(&setup(1)).server.layout.as_ref().clone();
    let config = ClientConfig {
        name: "c".into(),
        instance: 1,
        layout: None,
        timeout: 60 * SECOND,
        outage: Time::ZERO,
    };
    let mut client = Client::new(config, 1);
    welcome(&mut client, &layout);
    client.control(SECOND, Control::Others { urls: vec!["tcp://b:1".into()] });
    client.closed(SECOND, "the node died");
    assert_eq!(next(&mut client), None);
    client.unreachable(SECOND, "nobody listens", true);
    assert_eq!(next(&mut client).as_deref(), Some("tcp://b:1"));
    client.connected(SECOND, [2; 32], true);
    let code = thalweg_wire::control::Refusal::Authentication;
    client.control(SECOND, Control::Refused { code, reason: "who are you".into() });
    assert!(!client.is_done(), "another node's word does not end it");
    assert_eq!(next(&mut client), None);
    client.connected(SECOND, [2; 32], true);
    client.control(SECOND, Control::Refused { code, reason: "who are you".into() });
    assert!(client.is_done());
}
