//! Tests of listening and connecting.

use thalweg_transport::{ErrorKind, Options, Tls};
use thalweg_wire::MAX_CHUNK;

use crate::factory::expect_error;
use crate::pair::{link, say};
use crate::{skip, Factory};

/// `Transport::name`: the listener's address has the transport's name as its scheme.
pub async fn the_name_is_the_scheme(factory: &Factory) {
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    assert_eq!(factory.transport.name(), factory.address.scheme);
    assert_eq!(listener.address().scheme, factory.address.scheme);
}

/// `Listener::address` has the port that the system chose: a client can connect there.
pub async fn the_listener_says_the_port_the_system_chose(factory: &Factory) {
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    assert_ne!(listener.address().port, Some(0));
    if factory.address.port == Some(0) {
        let other = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
        assert_ne!(listener.address(), other.address(), "the system chose the same port twice");
    }
    let (client, server) = link(factory, &*listener).await;
    say(&client, &server, "found").await;
}

/// `Transport::listen` at an address that has a listener fails with [`ErrorKind::InUse`].
pub async fn a_taken_address_is_in_use(factory: &Factory) {
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let second = factory.transport.listen(&listener.address(), &factory.listen).await;
    let error = expect_error(second, &[ErrorKind::InUse]);
    assert!(error.to_string().contains("; "), "no hint in {error}");
    let (client, server) = link(factory, &*listener).await;
    say(&client, &server, "the first is unharmed").await;
}

/// `Transport::connect` to an address without a listener fails with [`ErrorKind::Unreachable`].
pub async fn nobody_there_is_unreachable(factory: &Factory) {
    let address = match &factory.nobody {
        Some(address) => address.clone(),
        None => factory.transport.listen(&factory.address, &factory.listen).await.unwrap().address(),
    };
    let outcome = factory.transport.connect(&address, &factory.connect).await;
    expect_error(outcome, &[ErrorKind::Unreachable]);
}

/// An option that the transport cannot honour is not ignored: the call fails with [`ErrorKind::Unsupported`].
pub async fn an_option_it_cannot_honour_is_unsupported(factory: &Factory) {
    let can = factory.capabilities();
    let congestion = Options { congestion: Some("no-such-control".into()), ..factory.listen.clone() };
    let tls = Tls { authority: String::new(), identity: None, require_client: false, server_name: None };
    let encrypted = Options { tls: Some(tls), ..factory.listen.clone() };
    for (name, options, able) in
        [("congestion", congestion, can.congestion), ("tls", encrypted, can.encrypted)]
    {
        if able {
            skip(&format!("it can honour {name}"));
            continue;
        }
        let listened = factory.transport.listen(&factory.address, &options).await;
        expect_error(listened, &[ErrorKind::Unsupported]);
        let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
        let connected = factory.transport.connect(&listener.address(), &options).await;
        expect_error(connected, &[ErrorKind::Unsupported]);
    }
}

/// `Peer::address` is not empty.
pub async fn peers_have_an_address_for_people(factory: &Factory) {
    let pair = factory.pair().await;
    assert!(!pair.client.peer().address.is_empty());
    assert!(!pair.server.peer().address.is_empty());
}

/// `Capabilities::max_chunk` is at least one byte, and at most what a frame can hold.
pub async fn a_chunk_of_the_greatest_size_is_within_the_frames_limit(factory: &Factory) {
    let pair = factory.pair().await;
    let most = factory.capabilities().max_chunk;
    assert!((1..=MAX_CHUNK).contains(&most), "{most}");
    assert_eq!(pair.client.capabilities().max_chunk, most);
    assert_eq!(pair.server.capabilities().max_chunk, most);
}
