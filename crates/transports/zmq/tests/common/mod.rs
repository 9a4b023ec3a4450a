//! Helpers that several test files use: options, keys, links.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)] // each file uses a part; a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::Factory;
use thalweg_pki::Authority;
use thalweg_transport::{
    Address, Identity, Link, Listener, Options, Result, Settings, Tls, Transport, Value,
};
use thalweg_zmq::Zmq;

pub fn options(pattern: &str) -> Options {
    let own = Settings::default().with("pattern", Value::Text(pattern.into()));
    Options { own, ..Options::default() }
}

pub fn factory(host: &str, listen: Options, connect: Options) -> Factory {
    let relayed = listen.own == options("router").own;
    let mut factory =
        Factory::new(Arc::new(Zmq::default()), &format!("zmq://{host}:0")).options(listen, connect);
    // libzmq closes a listening socket a little later than we do. So use a port where nobody ever listened.
    factory.nobody = Some(Address::parse(&format!("zmq://{host}:1")).unwrap());
    // With the other patterns, most traffic goes to other ports.
    factory.relayed = relayed;
    factory
}

/// The files that `thalweg pki init` writes.
pub struct Trust {
    pub authority: String,
    pub server: Identity,
}

impl Trust {
    pub fn new() -> Self {
        let authority = Authority::new("test", 1).unwrap();
        // Load the keys from files, as users do.
        let loaded = Authority::load(authority.certificate_pem(), &authority.key_pem()).unwrap();
        let server = loaded.issue("server", &["127.0.0.1".into()], 1, thalweg_pki::Role::Server).unwrap();
        let server = Identity { certificate: server.certificate, key: server.key };
        Self { authority: authority.certificate_pem().into(), server }
    }

    pub fn listen(&self, pattern: &str) -> Options {
        let identity = Some(self.server.clone());
        let tls =
            Tls { authority: self.authority.clone(), identity, require_client: false, server_name: None };
        Options { tls: Some(tls), ..options(pattern) }
    }

    pub fn connect(&self, pattern: &str) -> Options {
        let authority = self.authority.clone();
        let tls = Tls { authority, identity: None, require_client: false, server_name: None };
        Options { tls: Some(tls), ..options(pattern) }
    }
}

pub async fn listen(options: &Options) -> Box<dyn Listener> {
    Zmq::default().listen(&Address::parse("zmq://127.0.0.1:0").unwrap(), options).await.unwrap()
}

pub async fn connect(listener: &dyn Listener, options: &Options) -> Result<Arc<dyn Link>> {
    Zmq::default().connect(&listener.address(), options).await
}

/// Opens a link and returns both ends: the client's and the server's.
pub async fn link(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let accept = async {
        loop {
            // Skip errors: each is of a peer that the listener has refused.
            if let Ok(link) = listener.accept().await.unwrap().await {
                return link;
            }
        }
    };
    let (client, server) = tokio::join!(connect(listener, options), accept);
    (client.unwrap(), server)
}
