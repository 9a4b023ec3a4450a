//! Tokens: a secret issues them, each has one holder, and everybody who knows the issuer can check the
//! proofs.
//!
//! A token is an Ed25519 key (RFC 8032) of its holder, and a credential: the issuer's signature over the
//! role, the name and the holder's public key. A proof is the holder's signature over the [`Transcript`] of a
//! link. Checking it needs only the issuer's public key. So a node of a tree that admits clients cannot forge
//! proofs.

use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair, UnparsedPublicKey, ED25519};

use crate::{hex, PkiError, Role};

const CREDENTIAL: &[u8] = b"thalweg credential 2";
const PROOF: &[u8] = b"thalweg proof 2";
/// Maximum number of bytes of the word that is a shared secret.
pub const MAX_WORD: usize = 1024;
const SEED: usize = 32;
const TOKEN: usize = SEED + 64;

/// The issuer's secret key. Whoever has it can issue every token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SEED]);

/// The public key of a [`Secret`]. It checks the proofs of the secret's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issuer([u8; 32]);

/// The private key and the credential of a token's holder.
#[derive(Clone)]
pub struct Token {
    seed: [u8; SEED],
    credential: [u8; 64],
}

/// The holder's public key (32 bytes), the credential and the signature (64 bytes each, in halves).
pub type Proof = [[u8; 32]; 5];

/// The reason why a proof is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unproven {
    /// The issuer has issued no such token for this name.
    Token,
    /// The token is for another role.
    Role(Role),
    /// The token is valid, but the proof is for another link, job or name.
    Proof,
}

impl Secret {
    /// A new random secret.
    ///
    /// # Errors
    /// [`PkiError::Random`] if the system has no random numbers.
    pub fn generate() -> Result<Self, PkiError> {
        Ok(Self(random()?))
    }

    /// Parses the output of [`Secret::to_hex`]. White space around it is ignored.
    ///
    /// # Errors
    /// [`PkiError::Secret`]; it does not repeat the text.
    pub fn parse(text: &str) -> Result<Self, PkiError> {
        hex::decode(text.trim()).map(Self).map_err(PkiError::Secret)
    }

    /// A secret that all parties of a job share: 64 hexadecimal digits, or the SHA-256 of any other word.
    ///
    /// # Errors
    /// [`PkiError::Token`] if the text is empty, is longer than [`MAX_WORD`] bytes, or is not one word.
    pub fn shared(text: &str) -> Result<Self, PkiError> {
        let word = text.trim();
        if word.is_empty() || word.len() > MAX_WORD || word.contains(char::is_whitespace) {
            return Err(PkiError::Token(format!("{} bytes that are not one word", word.len())));
        }
        Ok(Self(hex::decode(word).unwrap_or_else(|_| digest(word))))
    }

    /// The secret in 64 hexadecimal digits, for a file that only its owner can read.
    pub fn to_hex(&self) -> String {
        hex::encode(&self.0)
    }

    /// The public key that checks the proofs of this secret's tokens.
    pub fn issuer(&self) -> Issuer {
        Issuer(public(&key(&self.0)))
    }

    /// Issues a new token for this role and name.
    ///
    /// # Errors
    /// [`PkiError::Random`] if the system has no random numbers.
    pub fn issue(&self, role: Role, name: &str) -> Result<Token, PkiError> {
        let seed = random()?;
        let signature = key(&self.0).sign(&credential(role, name, &public(&key(&seed))));
        Ok(Token { seed, credential: joined(signature.as_ref()) })
    }
}

impl Issuer {
    /// Parses the output of [`Issuer::to_hex`]. White space around it is ignored.
    ///
    /// # Errors
    /// [`PkiError::Issuer`] if the text is not 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, PkiError> {
        hex::decode(text.trim()).map(Self).map_err(PkiError::Issuer)
    }

    /// The public key in 64 hexadecimal digits. It is not secret.
    pub fn to_hex(&self) -> String {
        hex::encode(&self.0)
    }

    /// Checks that the holder of a token for this role and the transcript's name made this proof for this
    /// transcript.
    ///
    /// # Errors
    /// The reason why the proof is not accepted.
    pub fn check(&self, role: Role, transcript: &Transcript<'_>, shown: &Proof) -> Result<(), Unproven> {
        let [holder, c0, c1, s0, s1] = shown;
        let given = [*c0, *c1].concat();
        let holds = |role| verifies(&self.0, &credential(role, transcript.name, holder), &given);
        if !holds(role) {
            let other = Role::ALL.into_iter().find(|other| holds(*other));
            return Err(other.map_or(Unproven::Token, Unproven::Role));
        }
        if !verifies(holder, &transcript.message(role), &[*s0, *s1].concat()) {
            return Err(Unproven::Proof);
        }
        Ok(())
    }
}

impl Token {
    /// Parses a token of 192 hexadecimal digits. Any other word is a secret that all parties share; it issues
    /// a token for this role and name.
    ///
    /// # Errors
    /// [`PkiError::Token`] if the text is not one word, [`PkiError::Random`] if the system has no random
    /// numbers.
    pub fn of(text: &str, role: Role, name: &str) -> Result<Self, PkiError> {
        match hex::decode::<TOKEN>(text.trim()) {
            Ok(bytes) => {
                let (seed, credential) = bytes.split_at(SEED);
                Ok(Self { seed: joined(seed), credential: joined(credential) })
            }
            Err(_) => Secret::shared(text)?.issue(role, name),
        }
    }

    /// The token in 192 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        hex::encode(&[&self.seed[..], &self.credential[..]].concat())
    }

    /// Makes a proof of the role and the transcript's name. It does not reveal the token.
    pub fn prove(&self, role: Role, transcript: &Transcript<'_>) -> Proof {
        let own = key(&self.seed);
        let signature = own.sign(&transcript.message(role));
        let [c0, c1] = halves(&self.credential);
        let [s0, s1] = halves(signature.as_ref());
        [public(&own), c0, c1, s0, s1]
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)") // never gets into a log
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)") // never gets into a log
    }
}

/// The values to which a proof is bound. A proof is valid for no other nonces, job, name or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transcript<'a> {
    /// Random bytes that the server chose for this link.
    pub server_nonce: &'a [u8; 32],
    /// Random bytes that the client chose for this link.
    pub client_nonce: &'a [u8; 32],
    /// The job's number, so that a proof cannot be used for another job.
    pub job: u64,
    /// The client's name.
    pub name: &'a str,
    /// The link's exported secret under TLS. It binds the proof to this link, so that nobody in between can
    /// use it elsewhere.
    pub binding: Option<&'a [u8; 32]>,
}

impl Transcript<'_> {
    /// The bytes that are signed. Different transcripts give different bytes: a byte says whether there is a
    /// binding, and all fields but the name, which comes last, have fixed lengths.
    fn message(&self, role: Role) -> Vec<u8> {
        let mut out = PROOF.to_vec();
        out.push(role.byte());
        out.extend_from_slice(self.server_nonce);
        out.extend_from_slice(self.client_nonce);
        out.extend_from_slice(&self.job.to_le_bytes());
        out.push(self.binding.is_some().into());
        out.extend_from_slice(self.binding.map_or(&[][..], |b| b));
        out.extend_from_slice(self.name.as_bytes());
        out
    }
}

fn credential(role: Role, name: &str, holder: &[u8; 32]) -> Vec<u8> {
    [CREDENTIAL, &[role.byte()], holder, name.as_bytes()].concat()
}

fn key(seed: &[u8; SEED]) -> Ed25519KeyPair {
    // This fails only for a seed of another length, and the type fixes the length.
    Ed25519KeyPair::from_seed_unchecked(seed).unwrap_or_else(|_| unreachable!("a seed of {SEED} bytes"))
}

fn public(key: &Ed25519KeyPair) -> [u8; 32] {
    joined(key.public_key().as_ref())
}

fn verifies(by: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, by).verify(message, signature).is_ok()
}

/// Copies bytes into an array. Keys and signatures have exactly the array's length.
fn joined<const BYTES: usize>(bytes: &[u8]) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    out
}

fn halves(signature: &[u8]) -> [[u8; 32]; 2] {
    [joined(signature), joined(signature.get(32..).unwrap_or_default())]
}

fn digest(text: &str) -> [u8; 32] {
    joined(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref())
}

fn random() -> Result<[u8; 32], PkiError> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| PkiError::Random)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_and_proofs_stay_what_they_are() {
        // These values were computed with Python's cryptography 50. Another value would lock out every holder
        // of a token.
        let secret = Secret([7; 32]);
        let token = Token {
            seed: [8; 32],
            credential: joined(
                key(&secret.0).sign(&credential(Role::Client, "clinic-3", &public(&key(&[8; 32])))).as_ref(),
            ),
        };
        assert_eq!(
            secret.issuer().to_hex(),
            "ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c"
        );
        assert_eq!(token.to_hex(), "0808080808080808080808080808080808080808080808080808080808080808bb1af5cc77468cd6657084024730ef659376a5b55a7ba5a059f2f68a579f726f1bfe01082cbf6eac6c8b55cc67e2201f7792595ce6d55b34245542146e090d06");
        let transcript = Transcript {
            server_nonce: &[1; 32],
            client_nonce: &[2; 32],
            job: 9,
            name: "clinic-3",
            binding: Some(&[3; 32]),
        };
        let shown = token.prove(Role::Client, &transcript);
        assert_eq!(hex::encode(&shown[3..].concat()), "19f54e59e287e316f7691b134596f61ad1aaa8666a7ae7bfa573353cd43648e2a8f38d7e84dfda36e6ed861a6336d81f03f8bc29b734ea0e636748e7e2b3040f");
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // FIPS 180-4, "abc"
        assert_eq!(Secret::shared("abc\n").unwrap().to_hex(), digest);
    }

    #[test]
    fn words_and_digits_are_shared_secrets() {
        let digits = "0A".repeat(32);
        assert_eq!(Secret::shared(&format!(" {digits}\n")).unwrap().to_hex(), digits.to_lowercase());
        for text in ["", " \n", "two words", &"x".repeat(MAX_WORD + 1)] {
            assert!(matches!(Secret::shared(text), Err(PkiError::Token(_))), "{text:?}");
            assert!(Token::of(text, Role::Client, "a").is_err());
        }
        let secret = Secret::shared("correct-horse").unwrap();
        let token = Token::of("correct-horse", Role::Client, "a").unwrap();
        assert_eq!(secret.issuer().check(Role::Client, &ABOUT, &token.prove(Role::Client, &ABOUT)), Ok(()));
        let again = Token::of(&token.to_hex(), Role::Client, "ignored").unwrap();
        assert_eq!(again.to_hex(), token.to_hex());
    }

    const ABOUT: Transcript<'_> =
        Transcript { server_nonce: &[1; 32], client_nonce: &[2; 32], job: 3, name: "a", binding: None };

    #[test]
    fn secrets_differ_and_never_show() {
        let (one, other) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        assert_ne!(one.to_hex(), other.to_hex());
        assert!(Secret::parse(&format!("{}\n", one.to_hex())).unwrap() == one);
        assert_eq!(Issuer::parse(&format!("{}\n", one.issuer().to_hex())), Ok(one.issuer()));
        let error = Secret::parse("hunter2").unwrap_err().to_string();
        assert!(!error.contains("hunter2") && error.contains("64 hexadecimal digits"), "{error}");
        let shown = format!("{one:?} {:?}", one.issue(Role::Client, "a").unwrap());
        assert_eq!(shown, "Secret(..) Token(..)");
    }

    #[test]
    fn a_token_is_good_for_its_role_name_and_issuer_only() {
        let (secret, stranger) = (Secret([7; 32]), Secret([8; 32]));
        for role in Role::ALL {
            let token = secret.issue(role, "a").unwrap();
            for wanted in Role::ALL {
                // The holder may name any role in what it signs.
                for signed in [role, wanted] {
                    let found = secret.issuer().check(wanted, &ABOUT, &token.prove(signed, &ABOUT));
                    let right = if wanted == role { Ok(()) } else { Err(Unproven::Role(role)) };
                    assert_eq!(found, right, "{role} as {signed} where {wanted} is asked for");
                }
            }
            let shown = token.prove(role, &ABOUT);
            assert_eq!(stranger.issuer().check(role, &ABOUT, &shown), Err(Unproven::Token));
            let renamed = Transcript { name: "b", ..ABOUT };
            assert_eq!(
                secret.issuer().check(role, &renamed, &token.prove(role, &renamed)),
                Err(Unproven::Token)
            );
            let elsewhere = Transcript { job: 4, ..ABOUT };
            assert_eq!(secret.issuer().check(role, &elsewhere, &shown), Err(Unproven::Proof));
        }
    }

    #[test]
    fn a_credential_cannot_be_taken_along_by_another_key() {
        let secret = Secret([7; 32]);
        let mut mine = secret.issue(Role::Client, "mine").unwrap();
        let theirs = secret.issue(Role::Client, "a").unwrap();
        mine.credential = theirs.credential;
        let shown = mine.prove(Role::Client, &ABOUT);
        assert_eq!(secret.issuer().check(Role::Client, &ABOUT, &shown), Err(Unproven::Token));
        // The other holder's public key is not secret, but it cannot sign anything.
        let mut posed = mine.prove(Role::Client, &ABOUT);
        posed[0] = theirs.prove(Role::Client, &ABOUT)[0];
        assert_eq!(secret.issuer().check(Role::Client, &ABOUT, &posed), Err(Unproven::Proof));
    }

    type Parts = ([u8; 32], [u8; 32], u64, String, Option<[u8; 32]>);

    fn of(t: &Parts) -> Transcript<'_> {
        Transcript { server_nonce: &t.0, client_nonce: &t.1, job: t.2, name: &t.3, binding: t.4.as_ref() }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_proof_holds_for_its_transcript_only(key: [u8; 32], one: Parts, other: Parts) {
            let secret = Secret(key);
            let token = secret.issue(Role::TreeNode, &one.3).unwrap();
            let shown = token.prove(Role::TreeNode, &of(&one));
            let check = |transcript: &Transcript<'_>| secret.issuer().check(Role::TreeNode, transcript, &shown).is_ok();
            prop_assert!(check(&of(&one)));
            prop_assert_eq!(check(&of(&other)), one == other);
            prop_assert_eq!(check(&Transcript { name: "another", ..of(&one) }), one.3 == "another");
            prop_assert_eq!(check(&Transcript { binding: None, ..of(&one) }), one.4.is_none());
            let elsewhere = Transcript { job: one.2.wrapping_add(1), ..of(&one) };
            prop_assert!(!check(&elsewhere));
        }

        #[test]
        fn any_flipped_bit_is_seen(key: [u8; 32], one: Parts, part in 0..5_usize, at in 0..32_usize, bit in 0..8_u8) {
            let secret = Secret(key);
            let token = secret.issue(Role::Client, &one.3).unwrap();
            let mut shown = token.prove(Role::Client, &of(&one));
            shown[part][at] ^= 1 << bit;
            prop_assert!(secret.issuer().check(Role::Client, &of(&one), &shown).is_err());
        }
    }
}
