//! One secret at the server, one token a client, and proofs that do not give the token away.

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::{hex, PkiError};

const TOKEN: &[u8] = b"thalweg token";
const PROOF: &[u8] = b"thalweg proof";
/// Most bytes of a shared token's word.
pub const MAX_WORD: usize = 1024;

/// What the server keeps: every client's token follows from it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

/// What a client keeps: shows that it belongs to the job under its name.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Secret {
    /// A new random secret.
    ///
    /// # Errors
    /// [`PkiError::Random`] if the system has no random numbers.
    pub fn generate() -> Result<Self, PkiError> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).map_err(|_| PkiError::Random)?;
        Ok(Self(bytes))
    }

    /// Reads what [`Secret::to_hex`] wrote; white space around it does not matter.
    ///
    /// # Errors
    /// [`PkiError::Secret`], which does not repeat the text.
    pub fn parse(text: &str) -> Result<Self, PkiError> {
        hex::decode(text.trim()).map(Self).map_err(PkiError::Secret)
    }

    /// 64 hexadecimal digits, for a file that only the server can read.
    pub fn to_hex(&self) -> String {
        hex::encode(&self.0)
    }
}

impl Token {
    /// A token of known bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads a token: 64 hexadecimal digits are one, any other word is hashed to one ([`Token::shared`]).
    ///
    /// # Errors
    /// [`PkiError::Token`] if there is nothing, or more than [`MAX_WORD`] bytes or one word.
    pub fn parse(text: &str) -> Result<Self, PkiError> {
        let word = text.trim();
        if word.is_empty() || word.len() > MAX_WORD || word.contains(char::is_whitespace) {
            return Err(PkiError::Token(format!("{} bytes that are not one word", word.len())));
        }
        Ok(hex::decode(word).map_or_else(|_| Self::shared(word), Self))
    }

    /// A token that everybody of the job shares, from any text: its SHA-256.
    pub fn shared(text: &str) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Self(bytes)
    }

    /// 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        hex::encode(&self.0)
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

/// What a proof is about. A proof is good for no other nonces, name or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transcript<'a> {
    /// Random bytes the server chose for this link.
    pub server_nonce: &'a [u8; 32],
    /// Random bytes the client chose for this link.
    pub client_nonce: &'a [u8; 32],
    /// The client's name.
    pub name: &'a str,
    /// The link's own secret under TLS; ties the proof to it, so that nobody in between can pass it on.
    pub binding: Option<&'a [u8; 32]>,
}

/// The token of the client called `name`: HMAC-SHA256 of "thalweg token" and the name (RFC 2104).
pub fn token_for(secret: &Secret, name: &str) -> Token {
    Token(mac(&secret.0, &[TOKEN, name.as_bytes()].concat()))
}

/// Shows the token without telling it: HMAC-SHA256 of the transcript.
pub fn proof(token: &Token, transcript: &Transcript<'_>) -> [u8; 32] {
    mac(&token.0, &transcript.message())
}

/// Whether `shown` is the proof, compared in constant time.
pub fn verify(token: &Token, transcript: &Transcript<'_>, shown: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &token.0);
    hmac::verify(&key, &transcript.message(), shown).is_ok()
}

impl Transcript<'_> {
    /// No two transcripts give the same bytes: all but the name have a fixed length, once a byte has said
    /// whether there is a binding.
    fn message(&self) -> Vec<u8> {
        let mut out = PROOF.to_vec();
        out.extend_from_slice(self.server_nonce);
        out.extend_from_slice(self.client_nonce);
        out.push(self.binding.is_some().into());
        out.extend_from_slice(self.binding.map_or(&[][..], |b| b));
        out.extend_from_slice(self.name.as_bytes());
        out
    }
}

fn mac(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    let mut out = [0; 32];
    out.copy_from_slice(tag.as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_and_proofs_stay_what_they_are() {
        // Computed with Python's hmac and hashlib; another value would lock out every client in the field.
        let token = token_for(&Secret([7; 32]), "clinic-3");
        assert_eq!(token.to_hex(), "7a70f6225cbd3fbd9524a0e2a36221275b4b683133db8636a7b50d8ed614987e");
        let transcript = Transcript {
            server_nonce: &[1; 32],
            client_nonce: &[2; 32],
            name: "clinic-3",
            binding: Some(&[3; 32]),
        };
        assert_eq!(
            hex::encode(&proof(&token, &transcript)),
            "73c434076c6f08700421350627ee2a25cd6e759476dacc6b1c68a5acc3385f4e"
        );
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // FIPS 180-4, "abc"
        assert_eq!(Token::shared("abc").to_hex(), digest);
    }

    #[test]
    fn words_and_digits_are_tokens() {
        let digits = "0A".repeat(32);
        assert_eq!(Token::parse(&format!(" {digits}\n")).unwrap().to_hex(), digits.to_lowercase());
        assert_eq!(Token::parse("abc\n").unwrap().to_hex(), Token::shared("abc").to_hex());
        for text in ["", " \n", "two words", &"x".repeat(MAX_WORD + 1)] {
            assert!(matches!(Token::parse(text), Err(PkiError::Token(_))), "{text:?}");
        }
    }

    #[test]
    fn secrets_differ_and_never_show() {
        let (one, other) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        assert_ne!(one.to_hex(), other.to_hex());
        assert!(Secret::parse(&format!("{}\n", one.to_hex())).unwrap() == one);
        let error = Secret::parse("hunter2").unwrap_err().to_string();
        assert!(!error.contains("hunter2") && error.contains("64 hexadecimal digits"), "{error}");
        let shown = format!("{one:?} {:?}", token_for(&one, "a"));
        assert_eq!(shown, "Secret(..) Token(..)");
    }

    fn transcript() -> impl Strategy<Value = ([u8; 32], [u8; 32], String, Option<[u8; 32]>)> {
        any::<([u8; 32], [u8; 32], String, Option<[u8; 32]>)>()
    }

    fn of(t: &([u8; 32], [u8; 32], String, Option<[u8; 32]>)) -> Transcript<'_> {
        Transcript { server_nonce: &t.0, client_nonce: &t.1, name: &t.2, binding: t.3.as_ref() }
    }

    proptest! {
        #[test]
        fn a_proof_holds_for_its_transcript_only(key: [u8; 32], one in transcript(), other in transcript()) {
            let token = Token::from_bytes(key);
            let shown = proof(&token, &of(&one));
            prop_assert!(verify(&token, &of(&one), &shown));
            prop_assert_eq!(verify(&token, &of(&other), &shown), one == other);
            let renamed = Transcript { name: "another", ..of(&one) };
            prop_assert_eq!(verify(&token, &renamed, &shown), one.2 == "another");
            let unbound = Transcript { binding: None, ..of(&one) };
            prop_assert_eq!(verify(&token, &unbound, &shown), one.3.is_none());
        }

        #[test]
        fn any_flipped_bit_is_seen(key: [u8; 32], one in transcript(), at in 0..32_usize, bit in 0..8_u8) {
            let token = Token::from_bytes(key);
            let mut shown = proof(&token, &of(&one));
            shown[at] ^= 1 << bit;
            prop_assert!(!verify(&token, &of(&one), &shown));
            prop_assert!(!verify(&token, &of(&one), &shown[..at]));
        }

        #[test]
        fn names_have_their_own_tokens(secret: [u8; 32], one: String, other: String) {
            let secret = Secret(secret);
            let same = token_for(&secret, &one).to_hex() == token_for(&secret, &other).to_hex();
            prop_assert_eq!(same, one == other);
        }
    }
}
