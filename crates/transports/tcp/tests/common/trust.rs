//! Certificates for tests of tcp and of other transports over TCP.
#![allow(dead_code, clippy::unwrap_used)] // each file uses a part; a panic is how tests report

use thalweg_pki::Authority;
use thalweg_transport::{Identity, Options, Tls};

use super::plain;

/// An authority, and the certificate that it has issued for a server on this machine.
pub struct Trust {
    pub authority: Authority,
    pub server: Identity,
}

impl Trust {
    pub fn new() -> Self {
        let authority = Authority::new("test authority", 30).unwrap();
        let hosts = ["127.0.0.1".to_owned(), "::1".into(), "localhost".into(), "10.77.0.2".into()];
        let server = identity(authority.issue("server", &hosts, 30, thalweg_pki::Role::Server).unwrap());
        Self { authority, server }
    }

    pub fn client(&self, name: &str, days: i64) -> Identity {
        identity(self.authority.issue(name, &[], days, thalweg_pki::Role::Client).unwrap())
    }

    /// Options of a server.
    pub fn listen(&self, require_client: bool) -> Options {
        self.options(Some(self.server.clone()), require_client)
    }

    /// Options of a client.
    pub fn connect(&self, own: Option<Identity>) -> Options {
        self.options(own, false)
    }

    fn options(&self, identity: Option<Identity>, require_client: bool) -> Options {
        let authority = self.authority.certificate_pem().to_owned();
        Options { tls: Some(Tls { authority, identity, require_client, server_name: None }), ..plain() }
    }
}

pub fn identity(made: thalweg_pki::Identity) -> Identity {
    Identity { certificate: made.certificate, key: made.key }
}
