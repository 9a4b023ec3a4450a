//! Which peers a server lets in, which it refuses, and with which reasons.

use std::sync::Arc;

use crate::common::{Action, ClientAction};
use thalweg_wire::control::Purpose;

use crate::common::party::ServerParty;
use crate::common::{plan, profile, prove, Profile, Setup, World, MS, SECOND};
use thalweg_proto::{Client, ClientConfig, ClientMachine, LinkId, ServerMachine, Time};
use thalweg_wire::control::{Challenge, Control, Hello, Holding, Refusal, VERSIONS};
use thalweg_wire::{limits, Dtype, Layout, LayoutHash, TensorSpec};

/// A server's machine without clients; the test sends the messages.
struct Bare {
    party: ServerParty,
    now: Time,
    challenge: [u8; 32],
}

impl Bare {
    fn new(setup: &Setup) -> Self {
        Self { party: ServerParty::new(setup), now: Time::ZERO, challenge: [0; 32] }
    }

    fn connect(&mut self, link: LinkId) {
        self.party.machine.connected(self.now, link, [link as u8; 32], true);
        let [Action::Send { message: Control::Challenge(challenge), .. }] = &self.actions()[..] else {
            unreachable!("a challenge comes first");
        };
        self.challenge = challenge.nonce; // its first 8 bytes are the job's number
    }

    fn say(&mut self, link: LinkId, message: Control) -> Vec<Action> {
        self.party.machine.control(self.now, link, message);
        self.actions()
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.party.machine.poll_action()).collect()
    }

    fn join(&mut self, link: LinkId, hello: Hello) -> Vec<Action> {
        self.connect(link);
        self.say(link, Control::Hello(hello))
    }
}

fn hello(name: &str, instance: u64) -> Hello {
    Hello {
        version: VERSIONS.1,
        name: name.into(),
        instance,
        nonce: [9; 32],
        proof: None,
        layout: None,
        holding: Holding::Nothing,
        clock: 0,
        purpose: Purpose::Rounds,
    }
}

/// The refusal among the actions. A Close of the link must follow.
fn refusal(actions: &[Action], link: LinkId) -> (Refusal, String) {
    let said = actions.iter().find_map(|a| match a {
        Action::Send { link: to, message: Control::Refused { code, reason } } if *to == link => {
            Some((*code, reason.clone()))
        }
        _ => None,
    });
    assert!(matches!(actions.last(), Some(Action::Close { link: closed }) if *closed == link), "{actions:?}");
    said.unwrap_or_else(|| unreachable!("no refusal in {actions:?}"))
}

fn welcomed(actions: &[Action]) -> Option<u32> {
    actions.iter().find_map(|a| match a {
        Action::Send { message: Control::Welcome(welcome), .. } => Some(welcome.sender),
        _ => None,
    })
}

#[test]
fn another_version_is_refused_at_both_ends() {
    let mut server = Bare::new(&Setup::default());
    let actions = server.join(1, Hello { version: 9, ..hello("c", 1) });
    let (code, reason) = refusal(&actions, 1);
    assert_eq!(code, Refusal::Version);
    let known = format!("version 9 is not within {}..={}", VERSIONS.0, VERSIONS.1);
    assert!(reason.contains(&known) && reason.contains("one release"), "{reason}");
    assert!(server.say(1, Control::Hello(hello("c", 1))).is_empty(), "refused is refused");

    let mut client = client(None);
    let later = format!("{}..={}", VERSIONS.1 + 1, VERSIONS.1 + 2);
    let challenge =
        Challenge { versions: (VERSIONS.1 + 1, VERSIONS.1 + 2), nonce: [1; 32], token: false, clock: 0 };
    client.control(Time::ZERO, Control::Challenge(challenge));
    let actions: Vec<ClientAction> = std::iter::from_fn(|| client.poll_action()).collect();
    let ends = |a: &ClientAction| matches!(a, ClientAction::Finished(Err(why)) if why.cause.contains(&later));
    assert!(
        actions.iter().any(ends) && actions.iter().any(|a| matches!(a, ClientAction::Close)),
        "{actions:?}"
    );
    assert!(client.is_done());
}

fn client(layout: Option<Arc<Layout>>) -> Client {
    let config = ClientConfig { name: "c".into(), instance: 1, layout, timeout: SECOND, outage: Time::ZERO };
    let mut client = Client::new(config, 1);
    assert!(matches!(client.poll_action(), Some(ClientAction::Connect { after: Time::ZERO, .. })));
    client.connected(Time::ZERO, [2; 32], true);
    client
}

#[test]
fn whoever_does_not_say_who_it_is_goes_in_time_whatever_liveness_is() {
    let mut server = Bare::new(&Setup { liveness: 3600 * SECOND, ..Setup::default() });
    server.connect(1);
    assert!(!server.party.machine.is_member(1));
    for _ in 1..limits::GREET.as_secs() {
        server.now += SECOND;
        server.party.machine.progress(server.now, 1, 1 << 20);
        server.party.machine.timeout(server.now);
        assert!(server.actions().is_empty());
    }
    assert_eq!(server.party.machine.poll_timeout(), Some(limits::GREET));
    server.now += SECOND;
    server.party.machine.timeout(server.now);
    assert_eq!(refusal(&server.actions(), 1).0, Refusal::Liveness);
}

#[test]
fn a_member_is_one_from_its_hello_on() {
    let mut server = Bare::new(&Setup::default());
    assert!(welcomed(&server.join(1, hello("c", 1))).is_some());
    assert!(server.party.machine.is_member(1));
    server.say(1, Control::Hello(hello("c", 1)));
    assert!(!server.party.machine.is_member(1), "it was refused");
}

#[test]
fn only_who_knows_the_token_is_let_in() {
    let setup = Setup { token: Some(5), ..Setup::default() };
    for (token, finished) in [(Some(5), false), (Some(6), true), (None, true)] {
        let mut world = World::new(&setup);
        world.add(Profile { token, ..profile("c") });
        world.pass(SECOND);
        let seen = &world.clients[0].seen;
        let why = finished.then(|| Err("wrong token; give the job's token".into()));
        assert_eq!(seen.finished, why);
        assert_eq!(world.server.machine.connected_clients().count(), usize::from(!finished));
        assert_eq!(seen.connections, 1, "a wrong token is not tried again");
    }
}

#[test]
fn a_proof_heard_on_one_connection_is_worth_nothing_on_another() {
    let mut server = Bare::new(&Setup { token: Some(5), ..Setup::default() });
    server.connect(1);
    let proof = prove(5, &server.challenge, &[9; 32], "c");
    let overheard = Hello { proof: Some(proof), ..hello("c", 1) };
    assert_eq!(welcomed(&server.say(1, Control::Hello(overheard.clone()))), Some(1));
    let actions = server.join(2, Hello { instance: 1, ..overheard });
    assert_eq!(refusal(&actions, 2).0, Refusal::Authentication);
    assert_eq!(server.party.machine.connected_clients().count(), 1, "and the first is left in peace");
}

/// The layout of [`crate::common::party::layout`], but with `elements` elements in "b".
fn other(elements: u64) -> Arc<Layout> {
    let tensors = [("a", 333), ("b", elements), ("c", 334)];
    Arc::new(Layout::pack(tensors.map(|(name, n)| (name, Dtype::F32, vec![n]))).expect("a valid layout"))
}

const HINT: &str = "use the same model and the same tensors at both ends";

#[test]
fn both_ends_name_the_first_tensor_that_differs() {
    let setup = Setup { elements: 1000, ..Setup::default() };
    assert_eq!(crate::common::party::layout(1000), *other(334));
    let mut world = World::joined(&setup, [profile("good")]);
    world.add(Profile { layout: Some(other(7)), ..profile("c") });
    world.pass(SECOND);
    let seen = &world.clients[1].seen;
    let told = format!(
        "this model differs from the server's: b is float32 [7] here and float32 [334] at the server; {HINT}"
    );
    assert_eq!(seen.finished, Some(Err(told)));
    assert_eq!(seen.connections, 1, "the same model would be refused again");
    let why = format!("its model differs: b is float32 [334] here and float32 [7] at the client; {HINT}");
    assert_eq!(world.server.log, ["+good".to_string(), format!("!c: {why}")]);
    let departed: Vec<_> = world.server.machine.departed().collect();
    assert_eq!(departed, [("c", why.as_str(), true)]);
    assert_eq!(world.server.machine.connected_clients().count(), 1);

    // The failure of a round that lacks the client says why it is missing.
    world.start(plan(1, 2));
    let failure = world.finish_round(60 * SECOND).outcome.failure.unwrap();
    assert!(failure.contains(&format!("c was not let in: {why}")), "{failure}");

    // The client comes back with the right layout.
    world.add(Profile { layout: Some(other(334)), ..profile("c") });
    world.pass(SECOND);
    assert_eq!(world.server.machine.departed().count(), 0);
    assert_eq!(world.server.machine.connected_clients().count(), 2);
}

/// A client with another layout says Hello. Returns the layout that the server sends it.
fn differing(server: &mut Bare, link: LinkId, name: &str) -> Layout {
    let layout = Some(LayoutHash(0xbad));
    match &server.join(link, Hello { layout, ..hello(name, 1) })[..] {
        [Action::Send { link: to, message: Control::Layout(layout) }] if *to == link => layout.clone(),
        other => unreachable!("{other:?}"),
    }
}

fn refused_clients(actions: &[Action]) -> Vec<(&str, &str)> {
    let found = actions.iter().filter_map(|action| match action {
        Action::TurnedAway { client, reason } => Some((client.as_str(), reason.as_str())),
        _ => None,
    });
    found.collect()
}

#[test]
fn what_a_tensor_is_at_the_server_the_server_knows_itself() {
    let mut server = Bare::new(&Setup { elements: 1000, ..Setup::default() });
    let spec = |n| Some(TensorSpec { dtype: Dtype::I8, shape: vec![n] });
    let says = [
        ("c", spec(9), "c is float32 [334] here and int8 [9] at the client"),
        ("c", None, "c (float32 [334]) is here and missing at the client"),
        ("more", spec(9), "more (int8 [9]) is at the client and missing here"),
        (
            "\x1b[2J b is here",
            spec(1),
            "\"\u{fffd}[2J b is here\" (int8 [1]) is at the client and missing here",
        ),
        ("neither", None, "has layout 0000000000000bad"),
    ];
    let count = says.len();
    for (link, (tensor, spec, expected)) in (1..).zip(says) {
        let name = format!("c{link}");
        assert_eq!(differing(&mut server, link, &name), crate::common::party::layout(1000));
        let actions = server.say(link, Control::Differs { tensor: tensor.into(), spec });
        assert_eq!(refusal(&actions, link).0, Refusal::Layout);
        let [(client, reason)] = refused_clients(&actions)[..] else { unreachable!("{actions:?}") };
        assert!(client == name && reason.contains(expected) && reason.ends_with(HINT), "{reason}");
        assert!(!server.party.machine.is_member(link));
        assert!(server.party.machine.take_reported(link) && !server.party.machine.take_reported(link));
    }
    assert_eq!(server.party.machine.departed().count(), count);
}

#[test]
fn whoever_does_not_say_how_its_layout_differs_is_named_too() {
    let mut server = Bare::new(&Setup::default());
    let hashes = "its model has layout 0000000000000bad, and the one here";
    differing(&mut server, 1, "silent");
    server.now += limits::GREET;
    server.party.machine.timeout(server.now);
    let actions = server.actions();
    assert!(refusal(&actions, 1).1.starts_with(hashes));
    assert!(refused_clients(&actions)[0].1.starts_with(hashes), "{actions:?}");

    differing(&mut server, 2, "gone");
    server.party.machine.closed(server.now, 2, "cut");
    let actions = server.actions();
    assert!(
        matches!(refused_clients(&actions)[..], [("gone", why)] if why.starts_with(hashes)),
        "{actions:?}"
    );

    // The server asked only how the layout differs.
    for (link, message) in [(3, Control::Idle), (4, Control::Hello(hello("c", 1)))] {
        differing(&mut server, link, "stubborn");
        assert_eq!(refusal(&server.say(link, message), link).0, Refusal::Protocol);
    }
    // A Differs is refused from a peer that was not asked.
    server.connect(5);
    let unasked = Control::Differs { tensor: "a".into(), spec: None };
    assert_eq!(refusal(&server.say(5, unasked.clone()), 5).0, Refusal::Protocol);
    assert!(!server.party.machine.take_reported(5), "nothing was said of it");
    server.join(6, hello("in", 1));
    assert_eq!(refusal(&server.say(6, unasked), 6).0, Refusal::Protocol);
}

/// The log names each refused peer, and why, once. Many names cannot fill it.
#[test]
fn the_log_says_who_was_refused_and_why() {
    let mut server = Bare::new(&Setup::default());
    let mut lines = 0;
    for link in 1..=400 {
        let name = if link <= 100 { "again".into() } else { format!("name-{link}") };
        let actions = server.join(link, Hello { version: 1, ..hello(&name, 1) });
        for (client, reason) in refused_clients(&actions) {
            assert!(
                client == name && reason.starts_with("session version 1 is not within"),
                "{client}: {reason}"
            );
            lines += 1;
        }
        let told = server.party.machine.take_reported(link);
        assert_eq!(told, link <= 163, "{link}: otherwise the driver counts it");
    }
    assert_eq!(lines, 64);
    assert_eq!(
        server.party.machine.departed().count(),
        0,
        "a peer that was refused is not among the clients that left"
    );
    let actions = server.join(500, Hello { version: 1, ..hello("\x1b[2J", 1) });
    assert!(refused_clients(&actions).is_empty());
}

/// A client with another layout may try often, and under many names: one line is logged, and the list of
/// departed clients stays bounded.
#[test]
fn other_layouts_fill_no_log_and_no_memory() {
    let mut server = Bare::new(&Setup::default());
    let mut reported = 0;
    for link in 1..=100 {
        differing(&mut server, link, "again");
        let spec = Some(TensorSpec { dtype: Dtype::F64, shape: vec![1] });
        reported += refused_clients(&server.say(link, Control::Differs { tensor: "a".into(), spec })).len();
    }
    assert_eq!(reported, 1);
    for link in 101..=500 {
        differing(&mut server, link, &format!("name-{link}"));
        server.party.machine.closed(server.now, link, "cut");
        server.actions();
    }
    assert_eq!(server.party.machine.departed().count(), 64);
    // The name of a connected client stays its own.
    server.join(501, hello("here", 1));
    differing(&mut server, 502, "here");
    server.party.machine.closed(server.now, 502, "cut");
    assert!(server.party.machine.departed().all(|(name, ..)| name != "here"));
}

#[test]
fn a_server_that_refuses_the_same_layout_is_no_riddle() {
    let mut client = client(Some(other(7)));
    let challenge = Challenge { versions: VERSIONS, nonce: [1; 32], token: false, clock: 0 };
    client.control(Time::ZERO, Control::Layout((*other(8)).clone()));
    assert!(!client.is_done(), "no Hello has been said");
    client.control(Time::ZERO, Control::Challenge(challenge));
    client.proven(Time::ZERO, None);
    client.control(Time::ZERO, Control::Layout((*other(7)).clone()));
    let actions: Vec<ClientAction> = std::iter::from_fn(|| client.poll_action()).collect();
    let ends = |a: &ClientAction| matches!(a, ClientAction::Finished(Err(why)) if why.cause.contains("layout that it sent is the same"));
    assert!(actions.iter().any(ends) && client.is_done(), "{actions:?}");
}

/// The client took the server's layout when it joined, so its arena now has that size.
#[test]
fn a_client_without_a_layout_does_not_change_it_for_another_server() {
    let mut world = World::joined(&Setup { elements: 1000, ..Setup::default() }, [profile("c")]);
    world.run("it has heard so", SECOND, |w| w.clients[0].machine.layout().is_some());
    world.restart_server(&Setup { elements: 500, ..Setup::default() });
    world.run("it gives up", 10 * SECOND, |w| w.clients[0].seen.finished.is_some());
    let Some(Err(reason)) = &world.clients[0].seen.finished else { unreachable!("it has another layout") };
    assert!(reason.contains("a is float32 [333] here and float32 [166] at the server"), "{reason}");
}

#[test]
fn a_name_belongs_to_whoever_is_connected_with_it() {
    let mut world = World::joined(&Setup::default(), [profile("same")]);
    world.add(profile("same"));
    world.pass(3 * SECOND);
    assert_eq!(world.server.machine.connected_clients().count(), 1);
    let refused = &world.clients[1].seen.refused;
    assert!(refused.len() > 2, "it may try again");
    assert!(refused.iter().all(|r| r.contains("\"same\" is connected; choose another name")), "{refused:?}");
    world.kill(0);
    world.run("the name is free", 10 * SECOND, |w| w.server.log.len() == 3);
    assert_eq!(world.server.log[0], "+same");
    assert_eq!(world.server.log[2], "+same");
}

#[test]
fn the_same_process_takes_over_from_its_old_link_though_that_looks_alive() {
    let mut server = Bare::new(&Setup::default());
    assert_eq!(welcomed(&server.join(1, hello("c", 1))), Some(1));
    let actions = server.join(2, hello("c", 1));
    assert_eq!(welcomed(&actions), Some(1), "the same number");
    let closes = actions.iter().filter(|a| matches!(a, Action::Close { link: 1 })).count();
    assert_eq!(closes, 1, "{actions:?}");
    assert!(server.say(1, Control::Ping { clock: 1, received: 0 }).is_empty(), "the old link is dead");
    assert!(matches!(
        server.say(2, Control::Ping { clock: 1, received: 0 })[..],
        [Action::Send { link: 2, .. }]
    ));
    server.party.machine.closed(server.now, 1, "late news");
    assert!(server.actions().is_empty());
    assert_eq!(server.party.machine.connected_clients().count(), 1);
}

/// A model counts only if this server gave it to this very process.
#[test]
fn nobody_is_believed_to_hold_a_round_it_was_not_given() {
    let closed = |actions: &[Action]| {
        let tells = |a: &&Action| matches!(a, Action::Send { message: Control::Closed { parcel: 1 }, .. });
        actions.iter().filter(tells).count()
    };
    let began = |actions: &[Action]| actions.iter().any(|a| matches!(a, Action::SendParcel { .. }));
    let mut server = Bare::new(&Setup::default());
    server.join(1, hello("in", 1));
    server.join(2, hello("out", 1));
    assert_eq!(server.party.machine.start_round(server.now, plan(1, 1)), Ok(()));
    assert!(began(&server.actions()));
    let holding = Holding::Round { round: 1 };
    let actions = server.join(3, Hello { holding: holding.clone(), ..hello("in", 1) });
    assert_eq!(closed(&actions), 0, "it takes part, and goes on");
    assert!(!began(&actions));
    for (link, name, instance) in [(4, "out", 1), (5, "stranger", 1)] {
        let actions = server.join(link, Hello { holding: holding.clone(), ..hello(name, instance) });
        assert_eq!(closed(&actions), 1, "{name}: {actions:?}");
    }
    server.party.machine.closed(server.now, 3, "cut");
    server.actions();
    let actions = server.join(6, Hello { holding, ..hello("in", 2) });
    assert_eq!(closed(&actions), 1, "another process of the same name: {actions:?}");
    let actions = server.say(6, Control::Idle);
    assert!(began(&actions), "once it is idle, it is taken in anew");
}

#[test]
fn messages_out_of_place_end_the_link_and_nothing_else() {
    let mut server = Bare::new(&Setup::default());
    server.join(1, hello("honest", 1));
    server.connect(2);
    let (code, reason) = refusal(&server.say(2, Control::Idle), 2);
    assert_eq!((code, reason.as_str()), (Refusal::Protocol, "the first message must be a Hello"));
    assert!(server.say(2, Control::Hello(hello("c", 2))).is_empty());

    server.join(3, hello("c", 2));
    let (code, reason) = refusal(&server.say(3, Control::Accepted { parcel: 1 }), 3);
    assert_eq!((code, reason.as_str()), (Refusal::Protocol, "this message is the server's to send"));

    server.join(4, hello("c", 2));
    assert_eq!(refusal(&server.say(4, Control::Hello(hello("c", 2))), 4).0, Refusal::Protocol);
    for name in [String::new(), "x".repeat(129)] {
        assert_eq!(refusal(&server.join(5, hello(&name, 3)), 5).0, Refusal::Protocol);
    }
    assert_eq!(server.party.machine.connected_clients().collect::<Vec<_>>(), ["honest"]);
}

/// Clocks at the limits of their range, and messages about rounds that never existed.
#[test]
fn absurd_numbers_are_taken_calmly() {
    let mut server = Bare::new(&Setup::default());
    for (link, clock) in [(1, u64::MAX), (2, 1 << 63), (3, 0)] {
        server.join(link, Hello { clock, ..hello(&format!("c{link}"), 1) });
        let received = thalweg_wire::control::Interval { start: u64::MAX, end: 0 };
        server.say(
            link,
            Control::Received { parcel: u32::MAX, received, duplicates: u64::MAX, missing: u64::MAX },
        );
        server.say(link, Control::End { parcel: 0, sent: received });
        server.say(link, Control::Ping { clock: u64::MAX, received: u64::MAX });
    }
    assert_eq!(server.party.machine.connected_clients().count(), 3);
}

#[test]
fn when_the_job_is_over_everybody_is_told() {
    let mut world = World::joined(&Setup::default(), ["a", "b"].map(profile));
    world.start(plan(1, 2));
    world.pass(20 * MS);
    let now = world.now;
    world.server.machine.finish(now, "all rounds are done");
    world.server_actions();
    assert_eq!(world.server.results.len(), 1, "the round under way ends with it");
    assert!(world.server.results[0].outcome.failure.is_some());
    world.pass(SECOND);
    for client in &world.clients {
        assert_eq!(client.seen.finished, Some(Ok("all rounds are done".into())));
        assert_eq!(client.seen.connections, 1);
    }
    let late = world.add(profile("late"));
    world.pass(SECOND);
    assert_eq!(world.clients[late].seen.finished, Some(Err("the job is over: all rounds are done".into())));
}

#[test]
fn a_full_job_lets_nobody_else_in() {
    let mut world = World::joined(&Setup { max_clients: 1, ..Setup::default() }, [profile("a")]);
    world.add(profile("b"));
    world.pass(SECOND);
    assert_eq!(world.clients[1].seen.finished, Some(Err("the job has its 1 clients".into())));
    world.kill(0);
    world.restart(0);
    world.pass(SECOND);
    assert_eq!(world.server.machine.connected_clients().count(), 1, "its own client may come back");
}

#[test]
fn nobody_waits_for_a_client_that_says_goodbye() {
    let mut world = World::joined(&Setup::default(), ["a", "b"].map(profile));
    world.start(thalweg_proto::RoundPlan { enough: 1, ..plan(1, 2) });
    world.run("b trains", SECOND, |w| !w.clients[1].seen.ready.is_empty());
    world.clients[1].machine.leave("the battery is low");
    world.client_actions(1);
    let result = world.finish_round(SECOND);
    world.check(&result);
    assert_eq!(result.of("b").reason.as_deref(), Some("left: the battery is low"));
    assert_eq!(world.clients[1].seen.finished, Some(Ok("the battery is low".into())));
}
