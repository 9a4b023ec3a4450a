//! CURVE keys (ZMTP's RFC 26) in PEM blocks beside certificates. An authority has one key pair for all its
//! servers.
//!
//! A CURVE client must know the server's public key before it connects. The client has the authority's file,
//! so the public key is there, behind the certificate. The secret key is in the key files of the authority
//! and of its servers.

use ring::rand::{SecureRandom, SystemRandom};
use x25519_dalek::{PublicKey, StaticSecret};

use crate::PkiError;

/// Label of the block with the public key.
const PUBLIC: &str = "THALWEG CURVE PUBLIC KEY";
/// Label of the block with the secret key.
const SECRET: &str = "THALWEG CURVE SECRET KEY";
/// Digits of base64 (RFC 4648). PEM uses it (RFC 7468): other programs skip the block, but must be able to
/// parse it.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Makes a new key pair. Returns the block with the public key, and the block with the secret key.
pub(crate) fn pair() -> Result<(String, String), PkiError> {
    let mut secret = [0; 32];
    SystemRandom::new().fill(&mut secret).map_err(|_| PkiError::Random)?;
    let secret = StaticSecret::from(secret);
    let public = PublicKey::from(&secret);
    Ok((block(PUBLIC, public.as_bytes()), block(SECRET, secret.as_bytes())))
}

fn block(label: &str, key: &[u8; 32]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", base64(key))
}

/// Base64 of 32 bytes: ten groups of three bytes, and the last two bytes.
fn base64(key: &[u8; 32]) -> String {
    let digit = |word: u32, place: u32| char::from(DIGITS[(word >> (6 * place) & 63) as usize]);
    let group = |three: &[u8]| three.iter().fold(0_u32, |sum, &byte| sum << 8 | u32::from(byte));
    let whole =
        key.chunks_exact(3).flat_map(|three| (0..4).rev().map(move |place| digit(group(three), place)));
    let rest = group(&key[30..]) << 2;
    whole.chain((0..3).rev().map(|place| digit(rest, place))).chain(['=']).collect()
}

/// The block of the secret key in a key file. Empty if there is none.
pub(crate) fn secret_block(text: &str) -> String {
    let (begin, end) = (format!("-----BEGIN {SECRET}-----"), format!("-----END {SECRET}-----"));
    let found = text.find(&begin).zip(text.find(&end)).filter(|(from, to)| from < to);
    found.map_or_else(String::new, |(from, to)| format!("{}{end}\n", &text[from..to]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_other_programs() {
        let key: [u8; 32] = std::array::from_fn(|i| (i * 37 % 256) as u8);
        assert_eq!(base64(&key), "ACVKb5S53gMoTXKXvOEGK1B1mr/kCS5TeJ3C5wwxVns=");
        assert_eq!(base64(&[0xff; 32]), format!("{}8=", "/".repeat(42)));
    }

    #[test]
    fn pairs_differ_and_the_secret_is_found_again() {
        let (public, secret) = pair().unwrap();
        assert_ne!(public, pair().unwrap().0);
        assert_eq!(secret_block(&format!("before\n{secret}after")), secret);
        assert_eq!(secret_block(&public), "");
    }
}
