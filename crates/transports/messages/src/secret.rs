//! A secret of two ends: X25519 (RFC 7748) between a hello and its answer.
//!
//! Who stands between the ends, a broker say, and answers for both shares another secret with each. So the proof of a
//! token that is tied to it fails.

use ring::agreement::{agree_ephemeral, EphemeralPrivateKey, UnparsedPublicKey, X25519};
use ring::digest::{digest, SHA256};
use ring::rand::SystemRandom;
use thalweg_transport::{Error, ErrorKind, Result};

use crate::envelope::Tag;

/// One end's half.
pub(crate) struct Half {
    private: Option<EphemeralPrivateKey>,
    /// What the other end is told; zeros if there is to be no secret.
    pub public: [u8; 32],
}

impl Half {
    /// A new one, or none.
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

    /// The secret with the other half, for one link; `member_first` are both public halves, the member's first.
    ///
    /// # Errors
    /// [`ErrorKind::Security`] if the other end has none, or a useless one.
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
                .mend("set security on both sides")
        })
    }
}
