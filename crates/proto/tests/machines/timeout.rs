//! A client's timeout ends its attempts, whatever the peer does instead of letting it in.

use crate::common::ClientAction;

use crate::common::{profile, Profile, Setup, World, SECOND};
use thalweg_proto::{Client, ClientConfig, ClientMachine, Time};

fn short_timeout() -> Profile {
    Profile { timeout: 2 * SECOND, ..profile("c") }
}

fn actions(client: &mut Client) -> Vec<ClientAction> {
    std::iter::from_fn(|| client.poll_action()).collect()
}

#[test]
fn a_peer_that_takes_connections_and_says_nothing() {
    let mut world = World::new(&Setup::default());
    world.hang_server(true);
    world.add(short_timeout());
    world.run("it gives up", 3 * SECOND, |w| w.clients[0].seen.finished.is_some());
    assert_eq!(world.now, 2 * SECOND);
    let Some(Err(reason)) = &world.clients[0].seen.finished else { unreachable!("it was not let in") };
    assert!(reason.contains("took the connection") && reason.contains("within 2.0 s"), "{reason}");
}

#[test]
fn a_peer_that_never_answers() {
    let config =
        ClientConfig { name: "c".into(), instance: 1, layout: None, timeout: 2 * SECOND, outage: Time::ZERO };
    let mut client = Client::new(config, 1);
    assert!(matches!(actions(&mut client)[..], [ClientAction::Connect { after: Time::ZERO, .. }]));
    // The machine asks for the time, because nothing has told it yet when the attempts began.
    assert_eq!(client.poll_timeout(), Some(Time::ZERO));
    client.timeout(SECOND);
    assert_eq!(client.poll_timeout(), Some(3 * SECOND));
    client.timeout(3 * SECOND);
    let done = actions(&mut client);
    assert!(
        done.iter()
            .any(|a| matches!(a, ClientAction::Finished(Err(why)) if why.cause.contains("did not answer"))),
        "{done:?}"
    );
    assert!(client.is_done());
    assert_eq!(client.poll_timeout(), None);
    client.connected(4 * SECOND, [2; 32], true);
    assert!(actions(&mut client).is_empty(), "a link that comes later changes nothing");
}

#[test]
fn a_peer_that_breaks_every_link_is_tried_again_until_then() {
    let config =
        ClientConfig { name: "c".into(), instance: 1, layout: None, timeout: 2 * SECOND, outage: Time::ZERO };
    let mut client = Client::new(config, 1);
    client.timeout(Time::ZERO);
    let mut now = Time::ZERO;
    let mut tries = 0;
    while !client.is_done() {
        for action in actions(&mut client) {
            if let ClientAction::Connect { after, .. } = action {
                now = (now + after).min(2 * SECOND);
                client.timeout(now);
                client.unreachable(now, "it speaks another protocol", true);
                tries += 1;
            }
        }
    }
    assert_eq!(now, 2 * SECOND);
    assert!((4..=6).contains(&tries), "{tries}");
}

#[test]
fn who_was_let_in_has_its_whole_timeout_when_the_server_goes() {
    let mut world = World::joined(&Setup::default(), [short_timeout()]);
    world.pass(10 * SECOND);
    world.up = false;
    world.cut(0);
    let gone = world.now;
    world.run("it gives up", 3 * SECOND, |w| w.clients[0].seen.finished.is_some());
    assert_eq!(world.now - gone, 2 * SECOND);
}
