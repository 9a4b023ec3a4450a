//! Encryption that survives loss. Records are sealed one by one, and each can be opened by itself.
//!
//! - Each record has a **number**. Its nonce follows from the number (a counter, RFC 5116 section 3.2), so no
//!   nonce is sent. No number is used twice with one key. The caller decides how the number is sent.
//! - A record also authenticates a **header**, which stays readable.
//! - Keys are derived by HKDF-SHA-256 (RFC 5869) from a secret that both ends share, such as TLS's exporter
//!   (RFC 5705), and from a label for each direction and channel. After [`EPOCH`] records the next key is
//!   used, long before the limits of RFC 9001 section 6.6 (2^23 records of AES-GCM).
//! - [`Streams`] seal many bytes as records of one size, which are addressed by their offset.
//! - An [`Opener`] refuses a record that it has opened before, or that is below its anti-replay window (RFC
//!   6479).
//!
//! ```
//! use thalweg_seal::{Cipher, Secret};
//!
//! let secret = Secret::new(Cipher::Aes256Gcm, &[7; 32], b"salt");
//! let sealer = secret.sealer(b"up");
//! let mut opener = secret.opener(b"up");
//! let (number, mut record) = (sealer.number()?, b"weights".to_vec());
//! let tag = sealer.seal(number, b"header", &mut record)?;
//! record.extend_from_slice(&tag);
//! assert_eq!(opener.open(number, b"header", &mut record)?, b"weights");
//! # Ok::<(), thalweg_seal::Refused>(())
//! ```
#![forbid(unsafe_code)]

#[cfg_attr(not(feature = "baselines"), path = "no_cbc.rs")]
mod cbc;
mod grid;
mod replay;
mod size;
mod stream;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey, AES_256_GCM, CHACHA20_POLY1305};
use ring::hkdf::{Prk, Salt, HKDF_SHA256};

pub use grid::Grid;
pub use replay::{Replay, REMEMBERED};
pub use size::{record_cost, record_size, RECORD_LIMITS};
pub use stream::{Context, Opened, Stream, StreamOpener, StreamSealer, Streams, Suite, STREAMS};

/// Bytes that sealing adds to a record.
pub const TAG_BYTES: usize = 16;
/// Number of records under one key.
pub const EPOCH: u64 = 1 << 20;

/// How records are encrypted and authenticated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256 in Galois/Counter mode (RFC 5116): the faster one where the processor has instructions for it.
    #[default]
    Aes256Gcm,
    /// ChaCha20-Poly1305 (RFC 8439): the faster one elsewhere.
    ChaCha20Poly1305,
}

impl Cipher {
    fn algorithm(self) -> &'static ring::aead::Algorithm {
        match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// Why a record was not opened, or not sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Its number was accepted before.
    Replayed,
    /// Its number is below the anti-replay window.
    Old,
    /// It was sealed with another key, number or header, or was damaged or cut.
    Forged,
    /// It does not have the right length, or the stream would have too many records.
    Length,
    /// There are no numbers left for records.
    Exhausted,
    /// This build cannot seal with the suite.
    Suite,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replayed => "the record came before",
            Self::Old => "the record is older than those remembered",
            Self::Forged => "the record was not sealed with this key, number and header",
            Self::Length => "the length is not that of the stream, or no record size fits it",
            Self::Suite => "this build has no baselines, and the cipher is one",
            Self::Exhausted => "no numbers are left for further records",
        })
    }
}

impl std::error::Error for Refused {}

/// The secret from which keys are derived.
#[derive(Clone)]
pub struct Secret {
    cipher: Cipher,
    key: Arc<Prk>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Creates it from a secret that both ends share, and a salt that need not be secret.
    pub fn new(cipher: Cipher, shared: &[u8; 32], salt: &[u8]) -> Self {
        Self { cipher, key: Arc::new(Salt::new(HKDF_SHA256, salt).extract(shared)) }
    }

    /// Creates the sealer of one direction. Create only one for each label. Otherwise numbers would be used
    /// twice.
    pub fn sealer(&self, label: &[u8]) -> Sealer {
        Sealer { keys: Mutex::new(Keys::new(self, label)), next: AtomicU64::new(0) }
    }

    /// Creates the opener of what the [`Sealer`] of this label has sealed.
    pub fn opener(&self, label: &[u8]) -> Opener {
        Opener { keys: Keys::new(self, label), replay: Replay::default() }
    }
}

/// The keys of one direction. The last two are kept.
struct Keys {
    secret: Secret,
    label: Vec<u8>,
    known: Vec<(u64, Arc<LessSafeKey>)>,
}

impl Keys {
    fn new(secret: &Secret, label: &[u8]) -> Self {
        Self { secret: secret.clone(), label: label.to_vec(), known: Vec::new() }
    }

    fn of(&mut self, number: u64) -> Result<Arc<LessSafeKey>, Refused> {
        let epoch = number / EPOCH;
        if let Some((_, key)) = self.known.iter().find(|(known, _)| *known == epoch) {
            return Ok(key.clone());
        }
        let algorithm = self.secret.cipher.algorithm();
        let (numbered, info) = (epoch.to_le_bytes(), [&b"thalweg seal 1"[..], &self.label]);
        let info = [info[0], &[0], info[1], &[0], &numbered];
        let made = self.secret.key.expand(&info, algorithm).map(UnboundKey::from);
        let key = Arc::new(LessSafeKey::new(made.map_err(|_| Refused::Exhausted)?));
        if let [(first, _), (second, _)] = self.known[..] {
            self.known.remove(usize::from(second < first));
        }
        self.known.push((epoch, key.clone()));
        Ok(key)
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Seals the records of one direction. Several threads may use it at once.
pub struct Sealer {
    keys: Mutex<Keys>,
    next: AtomicU64,
}

impl Sealer {
    /// Returns the number of the next record. Each number is returned only once.
    ///
    /// # Errors
    /// [`Refused::Exhausted`] after 2^63 records.
    pub fn number(&self) -> Result<u64, Refused> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < 1 << 63).then_some(number).ok_or(Refused::Exhausted)
    }

    /// Encrypts `record` in place. `number` comes from [`Sealer::number`]. Returns the tag that authenticates
    /// the record and `header`.
    ///
    /// # Errors
    /// [`Refused::Exhausted`] if the record is longer than the cipher allows (64 GiB).
    pub fn seal(&self, number: u64, header: &[u8], record: &mut [u8]) -> Result<[u8; TAG_BYTES], Refused> {
        let key = self.keys.lock().unwrap_or_else(PoisonError::into_inner).of(number)?;
        let tag = key.seal_in_place_separate_tag(nonce(number), Aad::from(header), record);
        let tag = tag.map_err(|_| Refused::Exhausted)?;
        tag.as_ref().try_into().map_err(|_| Refused::Exhausted)
    }
}

/// Opens the records of one direction.
pub struct Opener {
    keys: Keys,
    replay: Replay,
}

impl Opener {
    /// Decrypts a record with its tag, in place. Returns the plaintext. A refused record does not change the
    /// opener.
    ///
    /// # Errors
    /// Why the record is refused.
    pub fn open<'a>(
        &mut self,
        number: u64,
        header: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], Refused> {
        self.replay.check(number)?;
        // Otherwise an attacker could make us derive the keys of any epoch.
        if number / EPOCH > self.replay.newest() / EPOCH + 1 {
            return Err(Refused::Forged);
        }
        let key = self.keys.of(number)?;
        let opened =
            key.open_in_place(nonce(number), Aad::from(header), sealed).map_err(|_| Refused::Forged)?;
        self.replay.mark(number);
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CIPHERS: [Cipher; 2] = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

    fn sealed(sealer: &Sealer, header: &[u8], record: &[u8]) -> (u64, Vec<u8>) {
        let (number, mut bytes) = (sealer.number().unwrap(), record.to_vec());
        let tag = sealer.seal(number, header, &mut bytes).unwrap();
        bytes.extend_from_slice(&tag);
        (number, bytes)
    }

    fn secret(cipher: Cipher) -> Secret {
        Secret::new(cipher, &[5; 32], b"salt")
    }

    #[test]
    fn what_is_lost_or_overtaken_stops_nothing() {
        for cipher in CIPHERS {
            let (sealer, mut opener) = (secret(cipher).sealer(b"up"), secret(cipher).opener(b"up"));
            let all: Vec<_> = (0..10_u8).map(|n| sealed(&sealer, &[n], &[n; 50])).collect();
            for n in [3_u8, 1, 9, 4, 0] {
                let (number, mut bytes) = all[usize::from(n)].clone();
                assert_eq!(opener.open(number, &[n], &mut bytes).unwrap(), [n; 50]);
                assert_ne!(all[usize::from(n)].1[..50], [n; 50], "in the clear");
            }
        }
    }

    #[test]
    fn a_replayed_record_is_refused_and_a_forged_one_first_is_no_replay() {
        let (sealer, mut opener) =
            (secret(Cipher::default()).sealer(b"up"), secret(Cipher::default()).opener(b"up"));
        let (number, bytes) = sealed(&sealer, b"h", b"record");
        let mut forged = bytes.clone();
        forged[0] ^= 1;
        assert_eq!(opener.open(number, b"h", &mut forged), Err(Refused::Forged));
        assert!(opener.open(number, b"h", &mut bytes.clone()).is_ok());
        assert_eq!(opener.open(number, b"h", &mut bytes.clone()), Err(Refused::Replayed));
    }

    #[test]
    fn another_direction_secret_salt_or_cipher_opens_nothing() {
        let sealer = secret(Cipher::Aes256Gcm).sealer(b"up");
        let (number, bytes) = sealed(&sealer, b"h", b"record");
        let others = [
            secret(Cipher::Aes256Gcm).opener(b"down"),
            Secret::new(Cipher::Aes256Gcm, &[6; 32], b"salt").opener(b"up"),
            Secret::new(Cipher::Aes256Gcm, &[5; 32], b"pepper").opener(b"up"),
            secret(Cipher::ChaCha20Poly1305).opener(b"up"),
        ];
        for mut other in others {
            assert_eq!(other.open(number, b"h", &mut bytes.clone()), Err(Refused::Forged));
        }
    }

    #[test]
    fn keys_change_and_the_last_two_are_at_hand() {
        let (sealer, mut opener) =
            (secret(Cipher::default()).sealer(b"up"), secret(Cipher::default()).opener(b"up"));
        let one = |number: u64| {
            let mut bytes = b"record".to_vec();
            let tag = sealer.seal(number, b"h", &mut bytes).unwrap();
            [&bytes[..], &tag].concat()
        };
        assert_ne!(one(0)[..6], one(EPOCH)[..6]);
        for number in [EPOCH - 2, EPOCH, EPOCH - 1, EPOCH + 1, 2 * EPOCH, 3 * EPOCH] {
            assert_eq!(opener.open(number, b"h", &mut one(number)).unwrap(), b"record", "{number}");
        }
        assert_eq!(opener.open(5 * EPOCH, b"h", &mut one(5 * EPOCH)), Err(Refused::Forged), "too far ahead");
        assert_eq!(opener.open(EPOCH, b"h", &mut one(EPOCH)), Err(Refused::Old));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_and_any_cut_is_refused(
            record in prop::collection::vec(any::<u8>(), 0..80),
            at in any::<prop::sample::Index>(),
            bit in 0..8_u8,
        ) {
            for cipher in CIPHERS {
                let (sealer, mut opener) = (secret(cipher).sealer(b"up"), secret(cipher).opener(b"up"));
                let (number, bytes) = sealed(&sealer, b"header", &record);
                let mut damaged = [&b"header"[..], &bytes].concat();
                damaged[at.index(bytes.len() + 6)] ^= 1 << bit;
                let (header, body) = damaged.split_at_mut(6);
                prop_assert_eq!(opener.open(number, header, body), Err(Refused::Forged));
                prop_assert!(opener.open(number ^ 1, b"header", &mut bytes.clone()).is_err());
                let cut = at.index(bytes.len());
                prop_assert!(opener.open(number, b"header", &mut bytes[..cut].to_vec()).is_err());
                prop_assert!(opener.open(number, b"header", &mut bytes.clone()).is_ok());
            }
        }
    }
}
