//! Tests of listening and connecting.

use thalweg_transport::{ErrorKind, Options, Tls};
use thalweg_wire::MAX_CHUNK;

use crate::factory::expect_error;
use crate::pair::{link, say};
use crate::{skip, Factory};

/// "Name, also the scheme of its addresses": the transport and its listener have the same.
pub async fn the_name_is_the_scheme(factory: &Factory) {
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    assert_eq!(factory.transport.name(), factory.address.scheme);
    assert_eq!(listener.address().scheme, factory.address.scheme);
}

/// "Where it listens, with the port that the system chose": a client can connect there.
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

/// "[`ErrorKind::InUse`]": an address has only one listener.
pub async fn a_taken_address_is_in_use(factory: &Factory) {
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let second = factory.transport.listen(&listener.address(), &factory.listen).await;
    let error = expect_error(second, &[ErrorKind::InUse]);
    assert!(error.to_string().contains("; "), "no hint in {error}");
    let (client, server) = link(factory, &*listener).await;
    say(&client, &server, "the first is unharmed").await;
}

/// "[`ErrorKind::Unreachable`]": nobody listens there.
pub async fn nobody_there_is_unreachable(factory: &Factory) {
    let address = match &factory.nobody {
        Some(address) => address.clone(),
        None => factory.transport.listen(&factory.address, &factory.listen).await.unwrap().address(),
    };
    let outcome = factory.transport.connect(&address, &factory.connect).await;
    expect_error(outcome, &[ErrorKind::Unreachable]);
}

/// "[`ErrorKind::Unsupported`] for an option the transport cannot honour": it must not ignore the option.
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

/// "Its address, for people": it is not empty.
pub async fn peers_have_an_address_for_people(factory: &Factory) {
    let pair = factory.pair().await;
    assert!(!pair.client.peer().address.is_empty());
    assert!(!pair.server.peer().address.is_empty());
}

/// "Most bytes of payload in one chunk": at least one byte, and at most as many as a frame allows.
pub async fn a_chunk_of_the_greatest_size_is_within_the_frames_limit(factory: &Factory) {
    let pair = factory.pair().await;
    let most = factory.capabilities().max_chunk;
    assert!((1..=MAX_CHUNK).contains(&most), "{most}");
    assert_eq!(pair.client.capabilities().max_chunk, most);
    assert_eq!(pair.server.capabilities().max_chunk, most);
}
