//! Encryption of datagrams, one by one, if the control connection uses TLS.
//!
//! The keys are derived from TLS's exporter (RFC 5705) and the link's key. Each direction of each socket pair
//! has its own, so a datagram that is reflected, or sent to the other pair, does not open. A sealed datagram
//! has the first 8 bytes of the link's key, and in place of the other 8 its number, from which the nonce
//! follows. The 32 bytes of the prefix are authenticated and not encrypted; a tag follows the contents.

use std::sync::{Mutex, PoisonError};

use thalweg_seal::{Cipher, Opener, Sealer, Secret, TAG_BYTES};
use thalweg_transport::{Error, ErrorKind, Kind, Options, Peer, Result, Setting};

use crate::datagram::{Key, PREFIX_BYTES};
use crate::hello::Dialect;

/// Number of bytes of the link's key that a sealed datagram begins with. Its number takes the place of the others.
const KEY: usize = 8;
/// Where the number stands in a sealed datagram.
const NUMBER: std::ops::Range<usize> = KEY..16;

/// The setting that chooses the cipher.
pub const CIPHER: Setting = Setting {
    name: "cipher",
    kind: Kind::Choice { default: "aes-256-gcm", choices: &["aes-256-gcm", "chacha20-poly1305"] },
    meaning: "what seals datagrams under TLS; the listening side's choice counts",
    needs: &[],
};

/// The handshake's byte for the cipher that the options choose. The listening end's choice counts; 0 means
/// that datagrams are not sealed.
pub(crate) fn choice(options: &Options, dialect: &Dialect) -> Result<u8> {
    let chosen = options.own.read(dialect.settings)?;
    Ok(match (&options.tls, chosen.text("cipher")) {
        (None, _) => 0,
        (Some(_), "chacha20-poly1305") => 2,
        (Some(_), _) => 1,
    })
}

/// The secret that a link's keys are derived from; `None` if datagrams are not sealed.
///
/// # Errors
/// [`ErrorKind::Security`] for an unknown cipher, and if one end uses TLS where the other does not.
pub(crate) fn secret(operation: &'static str, choice: u8, peer: &Peer, key: &Key) -> Result<Option<Secret>> {
    let cipher = match choice {
        0 => None,
        1 => Some(Cipher::Aes256Gcm),
        2 => Some(Cipher::ChaCha20Poly1305),
        _ => return Err(disagree(operation)),
    };
    match (cipher, peer.binding) {
        (None, None) => Ok(None),
        (Some(cipher), Some(shared)) => Ok(Some(Secret::new(cipher, &shared, key))),
        _ => Err(disagree(operation)),
    }
}

fn disagree(operation: &'static str) -> Error {
    Error::new(ErrorKind::Security, operation, "the ends do not agree whether and how datagrams are sealed")
        .hint("set tls at both ends, or at neither, and use the same release")
}

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Connecting,
    Listening,
}

/// The keys of one socket, for both directions.
pub(crate) struct Seal {
    sealer: Sealer,
    opener: Mutex<Opener>,
}

impl Seal {
    /// The keys of the socket of `pair` at `end`, for the transport called `name`.
    pub(crate) fn new(secret: &Secret, name: &str, pair: u8, end: End) -> Self {
        let numbers = |end| [b' ', pair, u8::from(end == End::Listening)];
        let label = |end| [b"thalweg ", name.as_bytes(), &numbers(end)].concat();
        let peer = if end == End::Listening { End::Connecting } else { End::Listening };
        Self { sealer: secret.sealer(&label(end)), opener: Mutex::new(secret.opener(&label(peer))) }
    }

    /// Seals in place the datagram that begins at `start` in `out`, and appends its tag.
    pub(crate) fn close(&self, out: &mut Vec<u8>, start: usize) {
        let sealed = (|| {
            let number = self.sealer.number().ok()?;
            let (header, contents) = out.get_mut(start..)?.split_at_mut_checked(PREFIX_BYTES)?;
            header[NUMBER].copy_from_slice(&number.to_le_bytes());
            self.sealer.seal(number, header, contents).ok()
        })();
        match sealed {
            Some(tag) => out.extend_from_slice(&tag),
            // All 2^63 numbers are used up. Drop the datagram, as if it were lost.
            None => out.truncate(start),
        }
    }

    /// Opens a datagram in place and restores the link's key in it. Returns its length without the tag.
    /// Returns `None` if the datagram belongs to another link or direction, was changed, has already arrived,
    /// or is too late for the replay window.
    pub(crate) fn open(&self, key: &Key, datagram: &mut [u8]) -> Option<usize> {
        let length = datagram.len().checked_sub(TAG_BYTES)?;
        let (header, sealed) = datagram.split_at_mut_checked(PREFIX_BYTES)?;
        if header[..KEY] != key[..KEY] {
            return None;
        }
        let number = u64::from_le_bytes(header[NUMBER].try_into().ok()?);
        let mut opener = self.opener.lock().unwrap_or_else(PoisonError::into_inner);
        opener.open(number, header, sealed).ok()?;
        header[NUMBER].copy_from_slice(&key[NUMBER]);
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::{Datagram, Encode, Kind as What};
    use proptest::prelude::*;

    const LINK: Key = *b"a link\'s own key";

    fn ends() -> (Seal, Seal) {
        let secret = Secret::new(Cipher::Aes256Gcm, &[9; 32], &LINK);
        (Seal::new(&secret, "udp", 0, End::Connecting), Seal::new(&secret, "udp", 0, End::Listening))
    }

    fn report(seal: &Seal) -> Vec<u8> {
        let mut out = Vec::new();
        let datagram =
            Datagram { kind: What::Report(5), report_wanted: false, message_count: 6, position: 7 };
        datagram.encode(&LINK, &mut out);
        seal.close(&mut out, 0);
        out
    }

    #[test]
    fn a_datagram_opens_once_and_unchanged() {
        let (here, there) = ends();
        let sealed = report(&here);
        let mut copy = sealed.clone();
        let length = there.open(&LINK, &mut copy).unwrap();
        let found = Datagram::decode(&LINK, &copy[..length]).unwrap();
        assert_eq!((found.kind, found.message_count, found.position), (What::Report(5), 6, 7));
        assert_eq!(there.open(&LINK, &mut sealed.clone()), None, "replayed");
        assert_eq!(here.open(&LINK, &mut report(&here)), None, "sent back");
        let secret = Secret::new(Cipher::Aes256Gcm, &[9; 32], &LINK);
        let other = Seal::new(&secret, "udp", 1, End::Listening);
        assert_eq!(other.open(&LINK, &mut report(&here)), None, "of the other pair");
        let other = Seal::new(&secret, "ltp", 0, End::Listening);
        assert_eq!(other.open(&LINK, &mut report(&here)), None, "of another transport");
        assert_eq!(there.open(&[0; 16], &mut report(&here)), None, "of another link");
    }

    proptest! {
        #[test]
        fn any_flipped_bit_and_any_cut_is_refused(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let (here, there) = ends();
            let sealed = report(&here);
            let mut flipped = sealed.clone();
            let at = at.index(flipped.len());
            flipped[at] ^= 1 << bit;
            prop_assert_eq!(there.open(&LINK, &mut flipped), None);
            prop_assert_eq!(there.open(&LINK, &mut sealed[..at].to_vec()), None);
            prop_assert!(there.open(&LINK, &mut sealed.clone()).is_some());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let (here, _) = ends();
            prop_assert_eq!(here.open(&LINK, &mut bytes.clone()), None);
            prop_assert_eq!(here.open(&LINK, &mut [&LINK[..8], &bytes].concat()), None);
        }
    }
}
