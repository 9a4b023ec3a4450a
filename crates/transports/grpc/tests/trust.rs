//! The error messages when one end does not trust the other. The checks themselves are tcp's, and are tested
//! there.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use thalweg_transport::{Error, ErrorKind, Link, Result};

mod common;
use common::{link, listen, meet, plain, Trust};

fn refused(outcome: Result<Arc<dyn Link>>, words: &[&str]) -> Error {
    let error = outcome.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Security, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    error
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
async fn tls_at_one_end_only() {
    let trust = Trust::new();
    let encrypted = listen(&trust.listen(false)).await;
    let (client, server) = meet(&*encrypted, &plain()).await;
    refused(client, &["peer speaks TLS", "both ends"]);
    refused(server, &["does not speak TLS", "both ends"]);
    let clear = listen(&plain()).await;
    let (client, server) = meet(&*clear, &trust.connect(None)).await;
    // The server's first bytes are HTTP/2, and not TLS.
    refused(client, &["does not speak TLS", "both ends"]);
    refused(server, &["peer speaks TLS", "both ends"]);
}

#[tokio::test]
async fn both_ends_know_each_other() {
    let trust = Trust::new();
    let listener = listen(&trust.listen(true)).await;
    let (client, server) = link(&*listener, &trust.connect(Some(trust.client("clinic 3", 1)))).await;
    assert_eq!(server.peer().certified.as_deref(), Some("clinic 3"));
    assert_eq!(client.peer().certified.as_deref(), Some("server"));
    assert!(client.peer().binding.is_some());
    assert_eq!(client.peer().binding, server.peer().binding);
}
