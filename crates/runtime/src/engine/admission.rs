//! Decides which clients a server admits. A client proves its name and role with a token or a certificate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use thalweg_pki as pki;
use thalweg_proto::{Admission, LinkId};
use thalweg_transport::{Options, Peer};
use thalweg_wire::control::{Hello, Nonce, Proof};

use super::revocations::Revocations;
use crate::{lock, Error, Kind};

/// The peer at the other end of each link.
pub(crate) type Peers = Arc<Mutex<HashMap<LinkId, Peer>>>;
/// The encoded [`ForwardedProof`] of each client that has shown a token, by the client's name. There are at
/// most as many as there are tokens.
pub(crate) type ForwardedProofs = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// The reason why a party on the revocation list is refused or disconnected.
pub(crate) const REVOKED: &str = "its token and certificate were revoked (`thalweg pki revoke`)";

/// The proof that a client must present.
#[derive(Debug, Clone)]
enum Rule {
    /// No proof: the address is loopback, or the transport stays within the process.
    Open,
    /// A token of this issuer, or a certificate. Either must be for the client's name.
    Issuer(pki::Issuer),
    /// A certificate for the client's name.
    Certificate,
}

/// The options by which a server decides whom to admit.
pub(crate) struct Keys<'a> {
    pub transport: &'a Options,
    /// The public key of the issuer of tokens.
    pub issuer: Option<&'a str>,
    /// Alternatively, the secret that all clients share. The public key follows from it.
    pub token: Option<&'a str>,
    /// The role that tokens and certificates must be for.
    pub role: pki::Role,
    /// The job that proofs must be for.
    pub job: u64,
}

/// The admission check of a server.
pub(crate) struct Gate {
    rule: Rule,
    role: pki::Role,
    job: u64,
    peers: Peers,
    proofs: Option<ForwardedProofs>,
    revoked: Option<Arc<Revocations>>,
}

/// A client's proof in the form in which a node of a tree forwards it: with everything that the root needs to
/// check it.
#[derive(Serialize, Deserialize)]
struct ForwardedProof {
    name: String,
    server_nonce: Nonce,
    client_nonce: Nonce,
    binding: Option<[u8; 32]>,
    proof: Proof,
}

impl ForwardedProof {
    fn transcript(&self, job: u64) -> pki::Transcript<'_> {
        pki::Transcript {
            server_nonce: &self.server_nonce,
            client_nonce: &self.client_nonce,
            job,
            name: &self.name,
            binding: self.binding.as_ref(),
        }
    }
}

/// The issuer of tokens that the options name; `None` if they name none.
fn issuer(issuer: Option<&str>, token: Option<&str>) -> Result<Option<pki::Issuer>, Error> {
    let bad =
        |e: pki::PkiError| Error::new(Kind::Options, "read the issuer of tokens", e.cause()).hint(e.hint());
    let shared = || token.map(|token| pki::Secret::shared(token).map(|secret| secret.issuer()));
    issuer.map(pki::Issuer::parse).or_else(shared).transpose().map_err(bad)
}

/// Checks a client's proof for this job, which a node of a tree has forwarded to the root as `bytes`. Returns
/// the client's name. `given` and `token` are the server's options `issuer` and `token`.
///
/// # Errors
/// `refused` if `bytes` is not a valid proof, with the reason.
pub fn check_forwarded_proof(
    given: Option<&str>,
    token: Option<&str>,
    job: u64,
    bytes: &[u8],
) -> Result<String, Error> {
    let refused = |what: &str| Error::new(Kind::Refused, "check a client's proof", what);
    let issuer = issuer(given, token)?.ok_or_else(|| refused("nothing says who issues tokens"))?;
    let forwarded: ForwardedProof =
        postcard::from_bytes(bytes).map_err(|_| refused("it is not in the form of a proof"))?;
    thalweg_wire::text::check_name(&forwarded.name).map_err(|why| refused(&why))?;
    issuer
        .check(pki::Role::Client, &forwarded.transcript(job), &forwarded.proof)
        .map_err(|why| refused(&explain(pki::Role::Client, &forwarded.name, why)))?;
    Ok(forwarded.name)
}

/// Explains to the user why a token was not accepted for the role `required`, and what to do about it.
fn explain(required: pki::Role, name: &str, why: pki::Unproven) -> String {
    let hint = format!("issue one with `thalweg pki issue {name} --role {required}`");
    match why {
        pki::Unproven::Role(role) => {
            format!(
                "the token of {name:?} is for the role {role}, but this server requires {required}; {hint}"
            )
        }
        pki::Unproven::Token => {
            format!("the token of {name:?} is wrong; {hint}, from the server's own pki folder")
        }
        pki::Unproven::Proof => {
            format!("the proof of {name:?} is for another link or job; use the same version on both sides")
        }
    }
}

impl Gate {
    /// Makes the check that the options require.
    ///
    /// # Errors
    /// `security` if other machines can reach the address and neither token nor certificate is required;
    /// `options` for an impossible key.
    pub fn new(keys: &Keys<'_>, local: bool, peers: Peers) -> Result<Self, Error> {
        let certificates = keys.transport.tls.as_ref().is_some_and(|tls| tls.require_client);
        let rule = match issuer(keys.issuer, keys.token)? {
            Some(issuer) => Rule::Issuer(issuer),
            None if certificates => Rule::Certificate,
            None if local => Rule::Open,
            None => {
                let what = "the address can be reached from other machines, and neither token nor client \
                            certificate is asked for";
                return Err(Error::new(Kind::Security, "start server", what)
                    .hint("make both with `thalweg pki init`"));
            }
        };
        Ok(Self { rule, role: keys.role, job: keys.job, peers, proofs: None, revoked: None })
    }

    /// Makes the gate keep the proofs of the clients that it admits. It then admits nobody by a certificate
    /// alone.
    pub fn keeping_proofs(self, proofs: Option<ForwardedProofs>) -> Self {
        Self { proofs, ..self }
    }

    /// Makes the gate refuse the parties on a list, even with a valid token or certificate.
    pub fn refusing(self, revoked: Option<Arc<Revocations>>) -> Self {
        Self { revoked, ..self }
    }

    fn check_certificate(&self, certified: &str, peer: &Peer, hello: &Hello) -> Result<(), String> {
        if certified != hello.name {
            return Err(format!(
                "the certificate is for {certified:?}, the client says it is {:?}; start it with --name {certified}",
                hello.name
            ));
        }
        let (found, role) = (peer.role.as_deref().unwrap_or("none"), self.role);
        if found != role.name() {
            return Err(format!(
                "the certificate of {certified:?} is for the role {found}, and here {role} is asked for; issue one \
                 with `thalweg pki issue {certified} --role {role}`"
            ));
        }
        Ok(())
    }

    fn check_token(
        &self,
        issuer: &pki::Issuer,
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
        let forwarded = ForwardedProof {
            name: hello.name.clone(),
            server_nonce: *challenge,
            client_nonce: hello.nonce,
            binding: peer.binding,
            proof: proof.clone(),
        };
        issuer
            .check(self.role, &forwarded.transcript(self.job), proof)
            .map_err(|why| explain(self.role, &hello.name, why))?;
        if let Some(proofs) = &self.proofs {
            let bytes = postcard::to_stdvec(&forwarded).map_err(|e| e.to_string())?;
            lock(proofs).insert(forwarded.name, bytes);
        }
        Ok(())
    }
}

impl Admission for Gate {
    fn wants_token(&self) -> bool {
        matches!(self.rule, Rule::Issuer(_))
    }

    fn admit(&self, link: LinkId, challenge: &Nonce, hello: &Hello) -> Result<(), String> {
        let peer = lock(&self.peers).get(&link).cloned().unwrap_or_default();
        if let Some(certified) = &peer.certified {
            self.check_certificate(certified, &peer, hello)?;
        }
        let proven = match &self.rule {
            Rule::Open => Ok(()),
            Rule::Issuer(_) if peer.certified.is_some() && self.proofs.is_none() => Ok(()),
            Rule::Issuer(issuer) => self.check_token(issuer, challenge, hello, &peer),
            Rule::Certificate if peer.certified.is_some() => Ok(()),
            Rule::Certificate => Err(format!("client {:?} shows no certificate", hello.name)),
        };
        proven?;
        match &self.revoked {
            Some(list) if list.has(&hello.name) => Err(REVOKED.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_wire::control::{Holding, Purpose, VERSIONS};

    use super::*;

    const CHALLENGE: Nonce = [1; 32];

    fn secret() -> String {
        "07".repeat(32)
    }

    /// A gate for this role and job, with the peers of its links and the proofs that it keeps.
    fn gate(role: pki::Role, job: u64) -> (Gate, Peers, ForwardedProofs) {
        let (transport, secret) = (Options::default(), secret());
        let keys = Keys { transport: &transport, issuer: None, token: Some(&secret), role, job };
        let (peers, proofs) = (Peers::default(), ForwardedProofs::default());
        let gate = Gate::new(&keys, false, peers.clone()).unwrap().keeping_proofs(Some(proofs.clone()));
        (gate, peers, proofs)
    }

    fn token(role: pki::Role, name: &str) -> pki::Token {
        pki::Secret::parse(&secret()).unwrap().issue(role, name).unwrap()
    }

    fn hello(name: &str, token: &pki::Token, role: pki::Role, job: u64) -> Hello {
        let about =
            pki::Transcript { server_nonce: &CHALLENGE, client_nonce: &[2; 32], job, name, binding: None };
        Hello {
            version: VERSIONS.1,
            name: name.into(),
            instance: 1,
            nonce: [2; 32],
            proof: Some(Box::new(token.prove(role, &about))),
            layout: None,
            holding: Holding::Nothing,
            clock: 0,
            purpose: Purpose::Rounds,
        }
    }

    #[test]
    fn a_revoked_party_is_refused_even_with_a_valid_proof() {
        let path = std::env::temp_dir().join(format!("thalweg-revoked-gate-{}", std::process::id()));
        std::fs::write(&path, "client a\ntree-node b\n").unwrap();
        let list = Arc::new(Revocations::open(path.to_str().unwrap(), pki::Role::Client).unwrap());
        std::fs::remove_file(&path).unwrap();
        let (gate, peers, _) = gate(pki::Role::Client, 3);
        let gate = gate.refusing(Some(list));
        let role = pki::Role::Client;
        assert_eq!(gate.admit(1, &CHALLENGE, &hello("a", &token(role, "a"), role, 3)).unwrap_err(), REVOKED);
        assert_eq!(gate.admit(1, &CHALLENGE, &hello("b", &token(role, "b"), role, 3)), Ok(()));
        let gate = gate.keeping_proofs(None);
        let certified = Peer { certified: Some("a".into()), role: Some("client".into()), ..Peer::default() };
        lock(&peers).insert(1, certified);
        assert_eq!(gate.admit(1, &CHALLENGE, &hello("a", &token(role, "a"), role, 3)).unwrap_err(), REVOKED);
    }

    #[test]
    fn a_token_is_accepted_only_for_its_role() {
        for required in pki::Role::ALL {
            let (gate, ..) = gate(required, 3);
            for role in pki::Role::ALL {
                let shown = hello("a", &token(role, "a"), required, 3);
                let found = gate.admit(1, &CHALLENGE, &shown);
                assert_eq!(
                    found.is_ok(),
                    required == role,
                    "{role} where {required} is asked for: {found:?}"
                );
                if let Err(why) = found {
                    let hint = format!("thalweg pki issue a --role {required}");
                    assert!(why.contains(&format!("for the role {role}")) && why.contains(&hint), "{why}");
                }
            }
        }
    }

    #[test]
    fn a_token_or_certificate_is_valid_only_for_its_name() {
        let (gate, ..) = gate(pki::Role::Client, 3);
        let shown = hello("b", &token(pki::Role::Client, "a"), pki::Role::Client, 3);
        assert!(gate.admit(1, &CHALLENGE, &shown).unwrap_err().contains("the token of \"b\" is wrong"));
    }

    #[test]
    fn a_certificate_is_for_a_role_too() {
        let (gate, peers, _) = gate(pki::Role::TreeNode, 3);
        let gate = gate.keeping_proofs(None);
        let shown = Hello { proof: None, ..hello("a", &token(pki::Role::Client, "a"), pki::Role::Client, 3) };
        for (role, right) in [(Some("tree-node"), true), (Some("client"), false), (None, false)] {
            let (certified, role) = (Some("a".into()), role.map(str::to_owned));
            lock(&peers).insert(1, Peer { certified, role, ..Peer::default() });
            let found = gate.admit(1, &CHALLENGE, &shown);
            assert_eq!(found.is_ok(), right, "{found:?}");
            assert!(found.is_ok() || found.unwrap_err().contains("pki issue a --role tree-node"));
        }
        let other = Hello { name: "b".into(), ..shown };
        assert!(gate.admit(1, &CHALLENGE, &other).unwrap_err().contains("--name a"));
    }

    #[test]
    fn a_forwarded_proof_is_valid_only_for_its_job_and_client() {
        let (gate, peers, proofs) = gate(pki::Role::Client, 3);
        let shown = hello("a", &token(pki::Role::Client, "a"), pki::Role::Client, 3);
        gate.admit(1, &CHALLENGE, &shown).unwrap();
        let forwarded = lock(&proofs).get("a").cloned().unwrap();
        let shared = secret();
        assert_eq!(check_forwarded_proof(None, Some(&shared), 3, &forwarded).unwrap(), "a");
        let issuer = pki::Secret::parse(&shared).unwrap().issuer().to_hex();
        assert_eq!(check_forwarded_proof(Some(&issuer), None, 3, &forwarded).unwrap(), "a");
        assert!(check_forwarded_proof(None, Some(&shared), 4, &forwarded)
            .unwrap_err()
            .to_string()
            .contains("link or job"));
        assert!(check_forwarded_proof(None, Some("another"), 3, &forwarded).is_err());
        assert!(check_forwarded_proof(None, None, 3, &forwarded).is_err());
        for at in 0..forwarded.len() {
            let mut damaged = forwarded.clone();
            damaged[at] ^= 1;
            assert!(check_forwarded_proof(None, Some(&shared), 3, &damaged).is_err(), "byte {at}");
            assert!(check_forwarded_proof(None, Some(&shared), 3, &forwarded[..at]).is_err());
        }
        // With a certificate alone there would be no proof to forward.
        let (certified, role) = (Some("a".into()), Some("client".into()));
        lock(&peers).insert(1, Peer { certified, role, ..Peer::default() });
        assert!(gate.admit(1, &CHALLENGE, &Hello { proof: None, ..shown }).is_err());
    }

    #[test]
    fn a_node_of_a_tree_cannot_forge_a_clients_proof() {
        let (shared, transport) = (secret(), Options::default());
        // A node of a tree has only its own token and the issuer's public key.
        let own = token(pki::Role::TreeNode, "west");
        for (name, role) in [("client-7", pki::Role::Client), ("west", pki::Role::Client)] {
            let about = pki::Transcript {
                server_nonce: &CHALLENGE,
                client_nonce: &[2; 32],
                job: 3,
                name,
                binding: None,
            };
            let forwarded = ForwardedProof {
                name: name.into(),
                server_nonce: CHALLENGE,
                client_nonce: [2; 32],
                binding: None,
                proof: Box::new(own.prove(role, &about)),
            };
            let bytes = postcard::to_stdvec(&forwarded).unwrap();
            assert!(check_forwarded_proof(None, Some(&shared), 3, &bytes).is_err(), "{name}");
        }
        let keys = Keys {
            transport: &transport,
            issuer: Some("king"),
            token: None,
            role: pki::Role::Client,
            job: 1,
        };
        assert!(Gate::new(&keys, true, Peers::default()).is_err());
    }
}
