//! One update from its offer to its result, message by message.

use crate::common::{model_offer, update_offer, Action, ClientAction};
use thalweg_proto::{ChunkReceiver, ClientMachine, RoundAction, RoundStep, ServerMachine};
use thalweg_wire::control::{Parcel, Purpose};

use crate::common::party::{layout, ServerParty};
use crate::common::{plan, Setup, JOB, MS};
use thalweg_proto::{Client, ClientConfig, LinkId, Span, Time, Verdict};
use thalweg_wire::control::{Challenge, Control, Hello, Holding, Interval, Refusal, Welcome, VERSIONS};
use thalweg_wire::{ChunkHeader, LayoutHash, Range, Ranges};

fn client_actions(client: &mut Client) -> Vec<ClientAction> {
    std::iter::from_fn(|| client.poll_action()).collect()
}

/// Connects a client and lets it in. Returns its next actions.
fn let_in(client: &mut Client, now: Time) -> Vec<ClientAction> {
    client.connected(now, [1; 32], true);
    client.control(
        now,
        Control::Challenge(Challenge { versions: VERSIONS, nonce: [2; 32], token: false, clock: 0 }),
    );
    client.proven(now, None);
    let (heartbeat, liveness) = (2_500_000, 10_000_000);
    let welcome = Welcome {
        sender: 1,
        job: JOB,
        layout: layout(100),
        chunk: 64,
        heartbeat,
        liveness,
        stand_in: None,
        spread: None,
        allowances: Vec::new(),
    };
    client.control(now, Control::Welcome(welcome));
    client_actions(client)
}

fn grant() -> Control {
    Control::Grant { parcel: 1, wanted: Ranges::full(layout(100).bytes()) }
}

/// A client that trains.
fn training(now: Time) -> Client {
    let config =
        ClientConfig { name: "c".into(), instance: 1, layout: None, timeout: Time::MAX, outage: Time::ZERO };
    let mut client = Client::new(config, 1);
    let_in(&mut client, now);
    let all = layout(100);
    let chunk = ChunkHeader {
        job: JOB,
        round: 1,
        sender: 0,
        layout: all.hash(),
        offset: 0,
        length: all.bytes() as u32,
    };
    client.control(now, model_offer(1, layout(100).hash()));
    client.stored(now, &chunk, true);
    client.control(now, Control::End { parcel: 1, sent: Interval::default() });
    client_actions(&mut client);
    client
}

/// A client that is sending its update.
fn sending(now: Time) -> Client {
    let mut client = training(now);
    assert_eq!(client.submit(1, 5.0, "{}".into()), Ok(()));
    client.control(now, grant());
    assert!(sends(&client_actions(&mut client)));
    client
}

fn sends(actions: &[ClientAction]) -> bool {
    actions.iter().any(|a| matches!(a, ClientAction::SendParcel { parcel: 1, .. }))
}

fn ends(actions: &[ClientAction]) -> usize {
    actions.iter().filter(|a| matches!(a, ClientAction::Send(Control::End { .. }))).count()
}

fn cancels(actions: &[ClientAction]) -> bool {
    actions.iter().any(|a| matches!(a, ClientAction::Cancel { .. }))
}

#[test]
fn an_update_interrupted_by_a_refusal_or_a_cut_is_offered_and_sent_again() {
    for refused in [true, false] {
        let mut client = sending(Time::ZERO);
        if refused {
            let reason = "no progress".into();
            client.control(MS, Control::Refused { code: Refusal::Liveness, reason });
        } else {
            client.closed(MS, "cut");
        }
        let actions = client_actions(&mut client);
        assert!(cancels(&actions) && actions.iter().any(|a| matches!(a, ClientAction::Connect { .. })));
        let actions = let_in(&mut client, 2 * MS);
        let offers =
            actions.iter().any(|a| matches!(a, ClientAction::Send(Control::Offer(Parcel { number: 1, .. }))));
        assert!(offers, "{actions:?}");
        // The sender of the old link reports only now. The client must send no End for it.
        client.sent(MS, 1, Ok(Span::default()));
        assert_eq!(ends(&client_actions(&mut client)), 0);
        client.control(3 * MS, grant());
        assert!(sends(&client_actions(&mut client)), "refused {refused}: the grant is taken");
        client.sent(MS, 1, Ok(Span::default()));
        assert_eq!(ends(&client_actions(&mut client)), 1);
    }
}

fn offered(actions: &[ClientAction]) -> Option<bool> {
    actions.iter().find_map(|a| match a {
        ClientAction::Send(Control::Offer(update)) => Some(update.pushed),
        _ => None,
    })
}

#[test]
fn a_client_that_was_granted_a_place_before_its_offer_sends_its_update_at_once() {
    let mut client = training(Time::ZERO);
    client.control(MS, grant());
    assert!(client_actions(&mut client).is_empty(), "there is no update yet");
    assert_eq!(client.submit(1, 5.0, "{}".into()), Ok(()));
    let actions = client_actions(&mut client);
    assert_eq!((offered(&actions), sends(&actions)), (Some(true), true), "{actions:?}");
    client.sent(MS, 1, Ok(Span::default()));
    assert_eq!(ends(&client_actions(&mut client)), 1);
    // The server lacks some of it after all.
    client.control(2 * MS, grant());
    assert!(sends(&client_actions(&mut client)));
}

#[test]
fn a_grant_before_the_offer_counts_for_its_round_and_its_link_only() {
    let mut client = training(Time::ZERO);
    client.control(MS, Control::Grant { parcel: 2, wanted: Ranges::full(8) });
    assert_eq!(client.submit(1, 5.0, "{}".into()), Ok(()));
    let actions = client_actions(&mut client);
    assert_eq!((offered(&actions), sends(&actions)), (Some(false), false), "another round: {actions:?}");
    let mut client = training(Time::ZERO);
    client.control(MS, grant());
    client.closed(MS, "cut");
    let_in(&mut client, 2 * MS);
    assert_eq!(client.submit(1, 5.0, "{}".into()), Ok(()));
    let actions = client_actions(&mut client);
    assert_eq!((offered(&actions), sends(&actions)), (Some(false), false), "another link: {actions:?}");
}

#[test]
fn a_second_grant_while_sending_changes_nothing() {
    let mut client = sending(Time::ZERO);
    client.control(MS, grant());
    assert!(client_actions(&mut client).is_empty());
}

#[test]
fn a_refused_or_late_update_stops_being_sent() {
    let refused = Control::Rejected { parcel: 1, reason: "bad".into() };
    for (message, verdict) in
        [(refused, Verdict::Rejected("bad".into())), (Control::Closed { parcel: 1 }, Verdict::Late)]
    {
        let mut client = sending(Time::ZERO);
        client.control(MS, message);
        let actions = client_actions(&mut client);
        assert!(cancels(&actions), "{actions:?}");
        let told = |a: &ClientAction| matches!(a, ClientAction::Policy(RoundStep::Verdict { verdict: v, .. }) if *v == verdict);
        assert!(actions.iter().any(told), "{actions:?}");
        client.sent(MS, 1, Err("cancelled".into()));
        assert!(client_actions(&mut client).is_empty());
    }
}

/// Only a broken server asks for heartbeats at intervals of 0. The client must not follow that.
#[test]
fn a_heartbeat_of_zero_is_not_followed() {
    let config =
        ClientConfig { name: "c".into(), instance: 1, layout: None, timeout: Time::MAX, outage: Time::ZERO };
    let mut client = Client::new(config, 1);
    client.connected(Time::ZERO, [1; 32], true);
    client.control(
        Time::ZERO,
        Control::Challenge(Challenge { versions: VERSIONS, nonce: [2; 32], token: false, clock: 0 }),
    );
    client.proven(Time::ZERO, None);
    let (heartbeat, liveness) = (0, 10_000_000);
    let welcome = Welcome {
        sender: 1,
        job: JOB,
        layout: layout(100),
        chunk: 64,
        heartbeat,
        liveness,
        stand_in: None,
        spread: None,
        allowances: Vec::new(),
    };
    client.control(Time::ZERO, Control::Welcome(welcome));
    client.timeout(5 * MS);
    assert!(client.poll_timeout().is_some_and(|at| at > 5 * MS));
}

fn server_actions(server: &mut ServerParty) -> Vec<Action> {
    std::iter::from_fn(|| server.machine.poll_action()).collect()
}

/// A server whose round of two clients begins at `now`.
fn with_two(now: Time) -> (ServerParty, Vec<Action>) {
    with_two_in(now, &Setup::default())
}

fn with_two_in(now: Time, setup: &Setup) -> (ServerParty, Vec<Action>) {
    let mut server = ServerParty::new(setup);
    for link in [1, 2] {
        server.machine.connected(now, link, [0; 32], true);
        if setup.keeps_order {
            server.machine.keeps_order(link);
        }
        let (name, holding) = (format!("c{link}"), Holding::Nothing);
        let (nonce, proof, layout) = ([9; 32], None, None);
        let hello = Hello {
            version: VERSIONS.1,
            name,
            instance: 1,
            nonce,
            proof,
            layout,
            holding,
            clock: 0,
            purpose: Purpose::Rounds,
        };
        server.machine.control(now, link, Control::Hello(hello));
    }
    assert_eq!(server.machine.start_round(now, plan(1, 2)), Ok(()));
    let actions = server_actions(&mut server);
    (server, actions)
}

fn grants(actions: &[Action], to: LinkId) -> usize {
    let granted =
        |a: &&Action| matches!(a, Action::Send { link, message: Control::Grant { .. } } if *link == to);
    actions.iter().filter(granted).count()
}

#[test]
fn the_model_goes_to_all_in_one_call_and_holes_are_sent_only_after_it() {
    let (mut server, actions) = with_two(MS);
    let calls: Vec<&Vec<LinkId>> = actions
        .iter()
        .filter_map(|a| if let Action::SendParcel { links, .. } = a { Some(links) } else { None })
        .collect();
    assert_eq!(calls, [&vec![1, 2]]);
    let need = || Control::Grant { parcel: 1, wanted: Ranges::full(512) };
    server.machine.control(2 * MS, 1, need());
    assert!(server_actions(&mut server).is_empty(), "it is still being sent");
    server.machine.sent(3 * MS, 1, 1, Ok(Span { start: MS, end: 3 * MS }));
    let after = server_actions(&mut server);
    let again = |action: &Action| matches!(action, Action::SendParcel { links, .. } if *links == [1]);
    assert!(matches!(&after[..], [Action::Send { message: Control::End { .. }, .. }, holes] if again(holes)));
    server.machine.sent(4 * MS, 1, 1, Ok(Span { start: MS, end: 4 * MS }));
    assert!(matches!(server_actions(&mut server)[..], [Action::Send { message: Control::End { .. }, .. }]));
    server.machine.sent(4 * MS, 1, 1, Ok(Span { start: MS, end: 4 * MS }));
    assert!(server_actions(&mut server).is_empty(), "told twice");
}

#[test]
fn offers_at_the_same_moment_are_granted_once_each() {
    let (mut server, _) = with_two(MS);
    let layout = server.layout.hash();
    let offer = |layout: LayoutHash| update_offer(1, 5.0, layout, "{}");
    server.machine.control(2 * MS, 1, offer(layout));
    server.machine.control(2 * MS, 2, offer(layout));
    server.machine.control(2 * MS, 1, offer(layout));
    let actions = server_actions(&mut server);
    assert_eq!([grants(&actions, 1), grants(&actions, 2)], [1, 1], "{actions:?}");
}

fn pushed(round: u32, layout: LayoutHash) -> Control {
    match update_offer(round, 5.0, layout, "{}") {
        Control::Offer(update) => Control::Offer(Parcel { pushed: true, ..update }),
        other => other,
    }
}

#[test]
fn places_are_granted_with_the_model_if_there_are_enough_and_chunks_keep_their_order() {
    for (places, invites, granted) in [(2, true, 1), (1, true, 0), (2, false, 0)] {
        let (_, actions) = with_two_in(MS, &Setup { places, keeps_order: invites, ..Setup::default() });
        assert_eq!([grants(&actions, 1), grants(&actions, 2)], [granted; 2], "{places} places, {invites}");
    }
}

/// The server takes an update that comes without a Grant only if it has a place. If not, it drops the chunks, and
/// grants all of it when a place is free.
#[test]
fn an_update_that_is_pushed_needs_a_place_as_any_other() {
    let (mut server, _) = with_two_in(MS, &Setup { places: 1, ..Setup::default() });
    let (layout, total) = (server.layout.hash(), server.layout.bytes());
    server.machine.control(2 * MS, 1, pushed(1, layout));
    assert!(server_actions(&mut server).is_empty(), "it needs no Grant");
    server.machine.control(2 * MS, 2, pushed(1, layout));
    for link in [1, 2] {
        let chunk = ChunkHeader { job: JOB, round: 1, sender: link, layout, offset: 0, length: 512 };
        let stored = server.machine.stored(3 * MS, LinkId::from(link), &chunk, Ok(()));
        assert_eq!(stored.is_some(), link == 1);
    }
    server.machine.control(3 * MS, 2, Control::End { parcel: 1, sent: Interval::default() });
    assert!(server_actions(&mut server).is_empty(), "it waits for its place");
    server.machine.control(4 * MS, 1, update_offer(1, 6.0, layout, "{}"));
    assert_eq!(wanted(&server_actions(&mut server)), [Ranges::full(total)], "the first was refused");
}

/// Only one update may be staged. Repeated offers, of this round, of other rounds and of unknown rounds, get
/// no second place. No answer is longer than its offer.
#[test]
fn a_flood_of_offers_takes_no_place_of_others() {
    let (mut server, _) = with_two_in(MS, &Setup { places: 1, ..Setup::default() });
    let layout = server.layout.hash();
    server.machine.control(2 * MS, 1, update_offer(1, 5.0, layout, "{}"));
    assert_eq!(grants(&server_actions(&mut server), 1), 1);
    for flood in 0..10_000_u32 {
        let round = [1, 2, 0, flood][flood as usize % 4];
        server.machine.control(2 * MS, 2, update_offer(round, 5.0, layout, "{}"));
        let actions = server_actions(&mut server);
        let closes = matches!(actions[..], [Action::Send { link: 2, message: Control::Closed { .. } }]);
        assert_eq!((actions.len(), closes), if round == 1 { (0, false) } else { (1, true) }, "{actions:?}");
    }
    // The first update is refused, which frees its place for the next one: one grant for 2,500 offers.
    server.machine.control(3 * MS, 1, update_offer(1, 6.0, layout, "{}"));
    let actions = server_actions(&mut server);
    assert_eq!([grants(&actions, 1), grants(&actions, 2)], [0, 1], "{actions:?}");
}

#[test]
fn an_offer_of_another_layout_or_of_nothing_is_refused_with_the_hint() {
    let (mut server, _) = with_two(MS);
    let ours = server.layout.hash();
    for (link, samples, layout, words) in
        [(1, 5.0, LayoutHash(1), "use the same model"), (2, 0.0, ours, "train on at least one")]
    {
        server.machine.control(2 * MS, link, update_offer(1, samples, layout, "{}"));
        let told = server_actions(&mut server).into_iter().find_map(|a| match a {
            Action::Send { message: Control::Rejected { reason, .. }, .. } => Some(reason),
            _ => None,
        });
        assert!(told.as_ref().is_some_and(|t| t.contains(words)), "{told:?}");
    }
}

fn ranges(all: &[(u64, u64)]) -> Ranges {
    all.iter().map(|&(start, end)| Range::new(start, end)).collect()
}

/// The ranges of the Grants among the actions.
fn wanted(actions: &[Action]) -> Vec<Ranges> {
    let granted = |a: &Action| match a {
        Action::Send { message: Control::Grant { wanted, .. }, .. } => Some(wanted.clone()),
        _ => None,
    };
    actions.iter().filter_map(granted).collect()
}

#[test]
fn what_is_lost_of_an_update_is_asked_for_while_the_rest_comes() {
    let (mut server, _) = with_two(MS);
    let (layout, total) = (server.layout.hash(), server.layout.bytes());
    let offer = update_offer(1, 5.0, layout, "{}");
    server.machine.control(2 * MS, 1, offer);
    assert_eq!(wanted(&server_actions(&mut server)), [Ranges::full(total)]);
    let stored = |server: &mut ServerParty, parts: &[(u64, u64)]| {
        for &(start, end) in parts {
            let chunk = ChunkHeader {
                job: JOB,
                round: 1,
                sender: 1,
                layout,
                offset: start,
                length: (end - start) as u32,
            };
            server.machine.stored(3 * MS, 1, &chunk, Ok(()));
        }
        wanted(&server_actions(server))
    };
    // Chunks have 512 bytes. The server asks again for a range if other bytes of its chunk have arrived, as
    // for 80 to 160. A chunk that is missing altogether, as 512 to 1024, may be on its way over another
    // connection.
    assert_eq!(total / 512, 7);
    assert!(stored(&mut server, &[(0, 80), (160, 512), (1024, 1536), (1536, 1600)]).is_empty());
    assert_eq!(stored(&mut server, &[(1680, 2048), (2048, 2560)]), [ranges(&[(80, 160), (1600, 1680)])]);
    assert!(stored(&mut server, &[(512, 1000)]).is_empty(), "half of the rest has not come");
    assert_eq!(stored(&mut server, &[(2560, 3072), (3072, 3584)]), [ranges(&[(1000, 1024)])]);
    stored(&mut server, &[(3584, 3900)]);
    let end = |server: &mut ServerParty| {
        let end = Control::End { parcel: 1, sent: Interval::default() };
        server.machine.control(4 * MS, 1, end);
        wanted(&server_actions(server))
    };
    assert_eq!(end(&mut server), [ranges(&[(3900, total)])], "nothing is asked for twice");
    stored(&mut server, &[(80, 100), (1600, 1680)]);
    assert_eq!(end(&mut server), [ranges(&[(100, 160)])], "but what was lost once more");
    stored(&mut server, &[(1000, 1024)]);
    assert!(end(&mut server).is_empty());
    stored(&mut server, &[(3900, total), (100, 160)]);
    let end = Control::End { parcel: 1, sent: Interval::default() };
    server.machine.control(4 * MS, 1, end);
    let accepted =
        |a: &Action| matches!(a, Action::Send { link: 1, message: Control::Accepted { parcel: 1 } });
    let actions = server_actions(&mut server);
    assert!(actions.iter().any(|a| matches!(a, Action::Policy(RoundAction::Fold { sender: 1, .. }))));
    assert!(!actions.iter().any(accepted), "it is not folded yet");
    server.machine.folded(5 * MS, 1, Ok(()));
    assert!(server_actions(&mut server).iter().any(accepted));
}

#[test]
fn what_is_granted_while_an_update_is_sent_follows_it_and_each_grant_has_an_end() {
    let mut client = sending(MS);
    for part in [(0, 8), (64, 80), (72, 96)] {
        client.control(MS, Control::Grant { parcel: 1, wanted: ranges(&[part]) });
        assert!(client_actions(&mut client).is_empty(), "one after the other");
    }
    client.sent(MS, 1, Ok(Span { start: MS, end: 2 * MS }));
    let actions = client_actions(&mut client);
    assert_eq!(ends(&actions), 1);
    let next: Vec<&Ranges> = actions
        .iter()
        .filter_map(|a| if let ClientAction::SendParcel { wanted, .. } = a { Some(wanted) } else { None })
        .collect();
    assert_eq!(next, [&ranges(&[(0, 8), (64, 96)])]);
    client.sent(MS, 1, Ok(Span { start: 2 * MS, end: 3 * MS }));
    let actions = client_actions(&mut client);
    assert_eq!(ends(&actions), 3, "one for each grant");
    assert!(!sends(&actions));
}

/// A client counts retransmissions when the server has answered. When the send ends, the update's last bytes
/// are still in the kernel's buffer, and the kernel may retransmit them later.
#[test]
fn what_was_sent_again_is_told_when_the_server_has_answered() {
    let counted = |actions: &[ClientAction]| -> Vec<Option<u64>> {
        let of = |a: &ClientAction| match a {
            ClientAction::Send(Control::Counted { parcel: 1, retransmissions }) => Some(*retransmissions),
            _ => None,
        };
        actions.iter().filter_map(of).collect()
    };
    let rejected = || Control::Rejected { parcel: 1, reason: "no".into() };
    for answer in [Control::Accepted { parcel: 1 }, rejected(), Control::Closed { parcel: 1 }] {
        let mut client = sending(MS);
        client.observe(Some(3));
        client.sent(MS, 1, Ok(Span { start: MS, end: 2 * MS }));
        assert_eq!(counted(&client_actions(&mut client)), [], "not yet");
        client.observe(Some(7));
        client.control(3 * MS, answer.clone());
        assert_eq!(counted(&client_actions(&mut client)), [Some(7)], "{answer:?}");
        client.observe(Some(9));
        client.control(4 * MS, answer.clone());
        assert_eq!(counted(&client_actions(&mut client)), [Some(2)], "{answer:?}");
        client.observe(None);
        client.control(5 * MS, answer.clone());
        assert_eq!(counted(&client_actions(&mut client)), [None], "{answer:?}");
    }
}

#[test]
fn what_was_granted_on_a_broken_link_is_forgotten() {
    let mut client = sending(MS);
    client.control(MS, Control::Grant { parcel: 1, wanted: ranges(&[(0, 8)]) });
    client.closed(2 * MS, "it broke");
    client_actions(&mut client);
    let_in(&mut client, 3 * MS);
    client.control(4 * MS, grant());
    client_actions(&mut client);
    client.sent(MS, 1, Ok(Span { start: MS, end: 2 * MS }));
    let actions = client_actions(&mut client);
    assert_eq!((ends(&actions), sends(&actions)), (1, false));
}
