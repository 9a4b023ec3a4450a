//! Which peers are trusted, and what a person is told when trust fails.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, ErrorKind, Identity, Link, Options, Result, Tls, Transport};

mod common;
use common::{identity, link, listen, meet, plain, Trust};

fn refused(outcome: Result<Arc<dyn Link>>, words: &[&str]) -> Error {
    let error = outcome.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Security, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    error
}

fn with_identity(options: Options, own: Identity) -> Options {
    let tls = options.tls.map(|tls| Tls { identity: Some(own), ..tls });
    Options { tls, ..options }
}

#[tokio::test]
async fn an_expired_client_certificate() {
    let trust = Trust::new();
    let listener = listen(&trust.listen(true)).await;
    let late = trust.connect(Some(trust.client("clinic-3", 0)));
    let (client, server) = meet(&*listener, &late).await;
    refused(client, &["refused our certificate", "expired", "pki issue"]);
    refused(server, &["certificate that has expired", "clocks"]);
    link(&*listener, &trust.connect(Some(trust.client("clinic-3", 1)))).await;
}

#[tokio::test]
async fn an_expired_server_certificate() {
    let trust = Trust::new();
    let expired = identity(
        trust.authority.issue("server", &["127.0.0.1".into()], -1, thalweg_pki::Role::Server).unwrap(),
    );
    let listener = listen(&with_identity(trust.listen(false), expired)).await;
    let (client, server) = meet(&*listener, &trust.connect(None)).await;
    refused(client, &["certificate that has expired", "pki issue"]);
    refused(server, &["refused our certificate", "expired"]);
}

#[tokio::test]
async fn an_unknown_authority() {
    let (trust, other) = (Trust::new(), Trust::new());
    let listener = listen(&trust.listen(true)).await;
    let (client, server) = meet(&*listener, &other.connect(None)).await;
    refused(client, &["authority that is not trusted here", "same authority"]);
    refused(server, &["does not trust the authority"]);
    let impostor = trust.connect(Some(other.client("clinic-3", 1)));
    let (client, server) = meet(&*listener, &impostor).await;
    refused(client, &["does not trust the authority", "same authority"]);
    refused(server, &["authority that is not trusted here"]);
}

#[tokio::test]
async fn a_missing_client_certificate() {
    let trust = Trust::new();
    let listener = listen(&trust.listen(true)).await;
    let (client, server) = meet(&*listener, &trust.connect(None)).await;
    refused(client, &["wants a certificate from us", "pki issue", "tls.identity"]);
    refused(server, &["showed no certificate"]);
}

#[tokio::test]
async fn a_wrong_host_name_and_a_chosen_one() {
    let trust = Trust::new();
    let elsewhere = identity(
        trust.authority.issue("server", &["fl.example.org".into()], 1, thalweg_pki::Role::Server).unwrap(),
    );
    let listener = listen(&with_identity(trust.listen(false), elsewhere)).await;
    let (client, server) = meet(&*listener, &trust.connect(None)).await;
    refused(client, &["another name", "fl.example.org", "tls.server_name"]);
    server.map(|_| ()).unwrap_err();
    let mut named = trust.connect(None);
    named.tls.as_mut().unwrap().server_name = Some("fl.example.org".into());
    link(&*listener, &named).await;
}

#[tokio::test]
async fn a_certificate_for_another_purpose() {
    let trust = Trust::new();
    let listener = listen(&trust.listen(true)).await;
    let (client, server) = meet(&*listener, &trust.connect(Some(trust.server.clone()))).await;
    refused(client, &["refused our certificate"]);
    refused(server, &["another purpose"]);
}

#[tokio::test]
async fn tls_at_one_end_only() {
    let trust = Trust::new();
    let encrypted = listen(&trust.listen(false)).await;
    let (client, server) = meet(&*encrypted, &plain()).await;
    refused(client, &["peer speaks TLS", "both ends"]);
    refused(server, &["does not speak TLS", "both ends"]);
    let clear = listen(&plain()).await;
    let (client, server) = meet(&*clear, &trust.connect(None)).await;
    let error = client.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.to_string().contains("server has tls set"), "{error}");
    refused(server, &["peer speaks TLS", "both ends"]);
}

#[tokio::test]
async fn what_cannot_be_set_up_says_why() {
    let trust = Trust::new();
    let at = Address::parse("tcp://127.0.0.1:0").unwrap();
    let none = Options { tls: trust.listen(false).tls.map(|t| Tls { identity: None, ..t }), ..plain() };
    let no_link = |e: Error| -> Result<Arc<dyn Link>> { Err(e) };
    let listening = Tcp.listen(&at, &none).await.map(|_| ()).unwrap_err();
    refused(no_link(listening), &["needs a certificate of its own", "pki issue"]);
    let other = trust.client("x", 1);
    let mixed = Identity { certificate: trust.server.certificate.clone(), key: other.key };
    let listening =
        Tcp.listen(&at, &with_identity(trust.listen(false), mixed)).await.map(|_| ()).unwrap_err();
    refused(no_link(listening), &["check the certificates and the key"]);
    let mut empty = trust.connect(None);
    empty.tls.as_mut().unwrap().authority = "nothing".into();
    refused(
        Tcp.connect(&Address::parse("tcp://127.0.0.1:1").unwrap(), &empty).await,
        &["holds no certificate"],
    );
}

#[tokio::test]
async fn both_ends_know_each_other() {
    let trust = Trust::new();
    let listener = listen(&trust.listen(true)).await;
    let (client, server) = link(&*listener, &trust.connect(Some(trust.client("clinic 3", 1)))).await;
    assert_eq!(server.peer().certified.as_deref(), Some("clinic 3"));
    assert_eq!(server.peer().role.as_deref(), Some("client"));
    assert_eq!(client.peer().certified.as_deref(), Some("server"));
    assert!(client.peer().binding.is_some());
    assert_eq!(client.peer().binding, server.peer().binding);
}
