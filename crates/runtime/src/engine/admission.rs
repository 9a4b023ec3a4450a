//! Who is let in: a token's proof, or a certificate for the name given.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use thalweg_pki as pki;
use thalweg_proto::{Admission, LinkId};
use thalweg_transport::{Options, Peer};
use thalweg_wire::control::{Hello, Nonce};

use crate::{lock, Error};

/// Who is at the other end of each link.
pub(crate) type Peers = Arc<Mutex<HashMap<LinkId, Peer>>>;

/// What a client has to show.
enum Rule {
    /// Nothing: loopback, or a transport within the process.
    Open,
    /// A token that follows from this secret and its name, or a certificate for its name.
    Secret(pki::Secret),
    /// The one token all share, or a certificate for its name.
    Shared(pki::Token),
    /// A certificate for its name.
    Certificate,
}

/// By what a server knows whom to let in.
pub(crate) struct Keys<'a> {
    pub transport: &'a Options,
    pub secret: Option<&'a str>,
    pub token: Option<&'a str>,
}

/// The gate of a server.
pub(crate) struct Gate {
    rule: Rule,
    peers: Peers,
}

impl Gate {
    /// What the options ask for.
    ///
    /// # Errors
    /// If the address can be reached from elsewhere and nothing is asked for.
    pub fn new(keys: &Keys<'_>, local: bool, peers: Peers) -> Result<Self, Error> {
        let certificates = keys.transport.tls.as_ref().is_some_and(|tls| tls.require_client);
        let bad = |e: pki::PkiError| Error::new("options", "read secret", e.to_string());
        let rule = match (keys.secret, keys.token) {
            (Some(secret), _) => Rule::Secret(pki::Secret::parse(secret).map_err(bad)?),
            (None, Some(token)) => Rule::Shared(pki::Token::parse(token).map_err(bad)?),
            (None, None) if certificates => Rule::Certificate,
            (None, None) if local => Rule::Open,
            (None, None) => {
                let what = "the address can be reached from other machines, and neither token nor client \
                            certificate is asked for; make both with `thalweg pki init`";
                return Err(Error::new("security", "start server", what));
            }
        };
        Ok(Self { rule, peers })
    }

    fn check_token(
        &self,
        token: &pki::Token,
        challenge: &Nonce,
        hello: &Hello,
        peer: &Peer,
    ) -> Result<(), String> {
        let Some(proof) = &hello.proof else {
            return Err(format!(
                "client {:?} shows neither token nor certificate; start it with --token-file",
                hello.name
            ));
        };
        let transcript = pki::Transcript {
            server_nonce: challenge,
            client_nonce: &hello.nonce,
            name: &hello.name,
            binding: peer.binding.as_ref(),
        };
        if pki::verify(token, &transcript, proof) {
            return Ok(());
        }
        Err(format!(
            "the token of client {:?} is wrong; issue one for this name with `thalweg pki issue`, from the \
             server's own pki folder",
            hello.name
        ))
    }
}

impl Admission for Gate {
    fn wants_token(&self) -> bool {
        matches!(self.rule, Rule::Secret(_) | Rule::Shared(_))
    }

    fn admit(&self, link: LinkId, challenge: &Nonce, hello: &Hello) -> Result<(), String> {
        let peer = lock(&self.peers).get(&link).cloned().unwrap_or_default();
        if let Some(certified) = &peer.certified {
            return if *certified == hello.name {
                Ok(())
            } else {
                Err(format!(
                    "the certificate is for {certified:?}, the client says it is {:?}; start it with --name \
                     {certified}",
                    hello.name
                ))
            };
        }
        match &self.rule {
            Rule::Open => Ok(()),
            Rule::Secret(secret) => {
                self.check_token(&pki::token_for(secret, &hello.name), challenge, hello, &peer)
            }
            Rule::Shared(token) => self.check_token(token, challenge, hello, &peer),
            Rule::Certificate => Err(format!("client {:?} shows no certificate", hello.name)),
        }
    }
}
