//! A shared secret of both ends: X25519 (RFC 7748), with the public keys in the hello and the welcome.
//!
//! If somebody in the middle, such as a broker, answers for both ends, it shares a different secret with
//! each. A token's proof is bound to the secret, so the proof then fails.

use ring::agreement::{agree_ephemeral, EphemeralPrivateKey, UnparsedPublicKey, X25519};
use ring::digest::{digest, SHA256};
use ring::rand::SystemRandom;
use thalweg_transport::{Error, ErrorKind, Result};

use crate::envelope::Tag;

/// One end's key pair.
pub(crate) struct Half {
    private: Option<EphemeralPrivateKey>,
    /// The public key that the other end receives; zeros without encryption.
    pub public: [u8; 32],
}

impl Half {
    /// Creates a key pair, or none if no secret is `wanted`.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system has no randomness.
    pub(crate) fn new(wanted: bool) -> Result<Self> {
        if !wanted {
            return Ok(Self { private: None, public: [0; 32] });
        }
        let failed = |_| Error::new(ErrorKind::System, "agree on a secret", "the system gives no randomness");
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(failed)?;
        let computed = private.compute_public_key().map_err(failed)?;
        let mut public = [0; 32];
        public.copy_from_slice(computed.as_ref());
        Ok(Self { private: Some(private), public })
    }

    /// Computes the secret of one link from the other end's public key. `member_first` has both public keys,
    /// the member's first.
    ///
    /// # Errors
    /// [`ErrorKind::Security`] if the other end has sent no public key, or an invalid one.
    pub(crate) fn agree(
        self,
        theirs: &[u8; 32],
        tag: Tag,
        member_first: [[u8; 32]; 2],
    ) -> Result<Option<[u8; 32]>> {
        let Some(private) = self.private else { return Ok(None) };
        let agreed = agree_ephemeral(private, &UnparsedPublicKey::new(&X25519, theirs), |shared| {
            let mut text = b"thalweg messages secret 1".to_vec();
            text.extend_from_slice(shared);
            text.extend_from_slice(&tag.instance.to_le_bytes());
            text.extend_from_slice(&tag.member.0);
            member_first.iter().for_each(|half| text.extend_from_slice(half));
            let mut secret = [0; 32];
            secret.copy_from_slice(digest(&SHA256, &text).as_ref());
            secret
        });
        agreed.map(Some).map_err(|_| {
            Error::new(ErrorKind::Security, "agree on a secret", "the other end gives no half of a secret")
                .hint("set security on both sides")
        })
    }
}
