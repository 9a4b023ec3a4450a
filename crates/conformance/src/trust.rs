//! Tests of who may connect.

use thalweg_transport::ErrorKind;

use crate::factory::expect_error;
use crate::pair::{link, say};
use crate::{skip, Factory, Recorder};

/// `Listener::accept`: if a peer's handshake fails, its own `Pending` fails, and the listener continues. If
/// the transport has no handshake, the intruder's link fails.
pub async fn an_intruder_harms_nobody(factory: &Factory) {
    let Some(intruder) = &factory.intruder else {
        return skip("the factory names no intruder");
    };
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let intrusion = tokio::spawn(intruder(listener.address()));
    // With a broker, the intruder reaches only the broker.
    if !factory.capabilities().broker {
        let refused = match listener.accept().await.unwrap().await {
            Err(error) => error,
            Ok(link) => link.receive(&Recorder::new(0)).await.unwrap_err(),
        };
        let due = [ErrorKind::Corrupt, ErrorKind::Security, ErrorKind::Closed, ErrorKind::Timeout];
        assert!(due.contains(&refused.kind()), "{:?}", refused.kind());
    }
    intrusion.await.unwrap();
    let (client, server) = link(factory, &*listener).await;
    say(&client, &server, "a peer gets in").await;
}

/// Without trust there is no link: the listener's end fails with [`ErrorKind::Security`], and the client's
/// end with it or with [`ErrorKind::Closed`].
pub async fn a_stranger_is_refused(factory: &Factory) {
    let Some(stranger) = &factory.stranger else {
        return skip("the factory names no stranger");
    };
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let address = listener.address();
    let accept = async {
        match factory.capabilities().broker {
            true => None, // the broker refuses the stranger
            false => Some(listener.accept().await.unwrap().await),
        }
    };
    let knock = async {
        // In some handshakes the client learns of the refusal only after it considers itself connected.
        let link = factory.transport.connect(&address, stranger).await?;
        link.receive(&Recorder::new(0)).await
    };
    let (accepted, knocked) = tokio::join!(accept, knock);
    if let Some(accepted) = accepted {
        expect_error(accepted, &[ErrorKind::Security]);
    }
    expect_error(knocked, &[ErrorKind::Security, ErrorKind::Closed]);
    let (client, server) = link(factory, &*listener).await;
    say(&client, &server, "a peer gets in").await;
}

/// `Peer::binding`: both ends have the same secret.
pub async fn both_ends_share_a_secret(factory: &Factory) {
    let pair = factory.pair().await;
    if factory.listen.tls.is_none() {
        assert_eq!(pair.client.peer().binding, None, "a secret in the clear");
        return skip("the factory does not encrypt");
    }
    let (client, _server) = link(factory, &*pair.listener).await;
    let secret = pair.client.peer().binding;
    assert!(secret.is_some());
    assert_eq!(secret, pair.server.peer().binding);
    assert_ne!(secret, client.peer().binding, "two links share a secret");
}

/// `Peer::certified`: the server knows the name in the client's certificate with mutual TLS, and only then.
pub async fn a_certificate_names_the_peer(factory: &Factory) {
    let pair = factory.pair().await;
    let mutual = factory.listen.tls.as_ref().is_some_and(|tls| tls.require_client);
    assert_eq!(pair.server.peer().certified.is_some(), mutual);
}
