//! Cookies: a listener keeps nothing for a peer that has not shown that it receives at its address.
//!
//! A cookie is a time and a MAC (HMAC-SHA256, 16 bytes of it) over that time, the peer's address and the id of
//! its stream, by a key that only the listener has. This is address validation as in RFC 9000, section 8.1.
//!
//! A cookie that is sent to a new address of a peer is a challenge. Its answer also has a proof: with TLS, a MAC of the
//! cookie by a key that only the two ends have. So somebody who only sees the packets cannot answer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ring::hmac::{self, Key, HMAC_SHA256};
use ring::rand::SystemRandom;
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_wire::limits;

use super::packet::{Cookie, Id, Proof};

/// How long a cookie is valid: long enough for the answer to one message. After that, the listener sends a
/// new cookie.
pub(crate) const VALID: Duration = limits::ANSWERED;
const TIME_BYTES: usize = 8;

pub(crate) struct Cookies(Key);

impl Cookies {
    /// Makes a new key.
    pub(crate) fn new(operation: &'static str) -> Result<Self> {
        let none = |_| Error::new(ErrorKind::System, operation, "the system has no random numbers");
        Key::generate(HMAC_SHA256, &SystemRandom::new()).map(Self).map_err(none)
    }

    /// The cookie of a peer at `now`.
    pub(crate) fn make(&self, now: Duration, peer: SocketAddr, id: &Id) -> Cookie {
        let time = (now.as_millis() as u64).to_le_bytes();
        let mac = hmac::sign(&self.0, &mac_input(&time, peer, id));
        let mut cookie = Cookie::default();
        let (first, rest) = cookie.split_at_mut(TIME_BYTES);
        first.copy_from_slice(&time);
        rest.iter_mut().zip(mac.as_ref()).for_each(|(to, from)| *to = *from);
        cookie
    }

    /// Whether this listener made the cookie for this peer and stream, and the cookie has not expired.
    pub(crate) fn check(&self, now: Duration, peer: SocketAddr, id: &Id, cookie: &Cookie) -> bool {
        let made = made(cookie);
        let fresh = made <= now && now - made <= VALID;
        // Compare with a cookie made anew: `hmac::verify` cannot check a MAC of which only 16 of 32 bytes are
        // sent. The comparison takes the same time wherever the bytes differ.
        let expected = self.make(made, peer, id);
        let different = expected.iter().zip(cookie).fold(0, |sum, (a, b)| sum | (a ^ b));
        fresh && different == 0
    }
}

/// The proof in the answer to a challenge. `secret` is known to the two ends only. It is `None` without TLS, and until
/// TLS's handshake is over.
pub(crate) fn proof(secret: Option<&[u8; 32]>, cookie: &Cookie) -> Proof {
    let key = Key::new(HMAC_SHA256, secret.map_or(&[][..], |secret| &secret[..]));
    let mac = hmac::sign(&key, &[b"thalweg address", &cookie[..]].concat());
    let mut proof = Proof::default();
    proof.iter_mut().zip(mac.as_ref()).for_each(|(to, from)| *to = *from);
    proof
}

/// Whether two proofs are the same. It takes the same time wherever they differ.
pub(crate) fn is_same(one: &Proof, other: &Proof) -> bool {
    one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// The time since a cookie was made: about a round trip, if it came at once.
pub(crate) fn age(now: Duration, cookie: &Cookie) -> Duration {
    now.saturating_sub(made(cookie))
}

/// When a cookie was made.
pub(crate) fn made(cookie: &Cookie) -> Duration {
    Duration::from_millis(cookie.first_chunk::<TIME_BYTES>().map_or(0, |time| u64::from_le_bytes(*time)))
}

fn mac_input(time: &[u8; TIME_BYTES], peer: SocketAddr, id: &Id) -> Vec<u8> {
    let ip = match peer.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    [&time[..], &ip, &peer.port().to_le_bytes(), id].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_secret_and_one_cookie() {
        let (one, other) = (Some(&[1; 32]), Some(&[2; 32]));
        let made = proof(one, &[7; 24]);
        assert!(is_same(&made, &proof(one, &[7; 24])));
        for wrong in [proof(other, &[7; 24]), proof(None, &[7; 24]), proof(one, &[8; 24])] {
            assert!(!is_same(&made, &wrong));
        }
        for at in 0..made.len() {
            let mut flipped = made;
            flipped[at] ^= 1;
            assert!(!is_same(&made, &flipped), "byte {at}");
        }
    }

    #[test]
    fn a_cookie_is_of_one_peer_one_stream_one_listener_and_its_time() {
        let (cookies, other) = (Cookies::new("test").unwrap(), Cookies::new("test").unwrap());
        let peer: SocketAddr = "10.0.0.1:7".parse().unwrap();
        let (id, now) = ([1; 16], Duration::from_secs(100));
        let cookie = cookies.make(now, peer, &id);
        assert!(cookies.check(now, peer, &id, &cookie));
        assert!(cookies.check(now + VALID, "[::ffff:10.0.0.1]:7".parse().unwrap(), &id, &cookie));
        assert!(!cookies.check(now + VALID + Duration::from_millis(1), peer, &id, &cookie), "too old");
        assert!(!cookies.check(now - Duration::from_millis(1), peer, &id, &cookie), "of the future");
        for elsewhere in ["10.0.0.1:8", "10.0.0.2:7"] {
            assert!(!cookies.check(now, elsewhere.parse().unwrap(), &id, &cookie));
        }
        assert!(!cookies.check(now, peer, &[2; 16], &cookie));
        assert!(!other.check(now, peer, &id, &cookie));
        for at in 0..cookie.len() {
            let mut flipped = cookie;
            flipped[at] ^= 1;
            assert!(!cookies.check(now, peer, &id, &flipped), "byte {at}");
        }
    }
}
