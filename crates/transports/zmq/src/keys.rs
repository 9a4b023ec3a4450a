//! CURVE keys (ZeroMQ RFC 26), read from the files that `thalweg pki` writes.

use std::io;

use thalweg_transport::{Error, ErrorKind, Options, Result};

use crate::ffi::{key_pair, public_key, z85, Key, Opt, RawSocket};

/// Labels of the blocks with CURVE keys. The listener's public key is in the authority's file, which clients
/// have. The listener's secret key is in the file of the server's key.
const PUBLIC: &str = "THALWEG CURVE PUBLIC KEY";
const SECRET: &str = "THALWEG CURVE SECRET KEY";

/// The keys of one end.
pub(crate) enum Keys {
    /// No encryption.
    None,
    /// At the listener: the listener's secret key.
    Listener(Key),
    /// At a member: the listener's public key. The member creates a key pair of its own for each socket.
    Member(Key),
}

fn bad(operation: &'static str, context: &str, hint: &'static str) -> Error {
    Error::new(ErrorKind::Security, operation, context).hint(hint)
}

/// The key in the block with this label: 32 bytes in base64.
fn block(text: &str, label: &str) -> Option<Key> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    decode(body.trim()).map(|bytes| z85(&bytes))
}

/// Decodes 32 bytes from base64 (RFC 4648): 43 digits and one padding character.
fn decode(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_suffix('=').filter(|digits| digits.len() == 43)?;
    let (mut bytes, mut word, mut bits, mut at) = ([0; 32], 0_u32, 0, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (word, bits) = (word << 6 | u32::from(value), bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes[at] = (word >> bits) as u8;
            (word, at) = (word & ((1 << bits) - 1), at + 1);
        }
    }
    (word == 0).then_some(bytes)
}

impl Keys {
    /// The keys of a listener.
    ///
    /// # Errors
    /// [`ErrorKind::Security`] if there is no key, or a key that clients do not expect;
    /// [`ErrorKind::Unsupported`] for `require_client`, which CURVE cannot do.
    pub(crate) fn listener(options: &Options) -> Result<Self> {
        let (operation, Some(tls)) = ("listen", &options.tls) else { return Ok(Self::None) };
        if tls.require_client {
            let context = "zmq asks clients for no certificates: CURVE has none";
            return Err(Error::new(ErrorKind::Unsupported, operation, context)
                .hint("leave require_client out; clients are known by their tokens"));
        }
        let hint = "take the server.key that `thalweg pki init` of this release writes";
        let secret = tls.identity.as_ref().and_then(|identity| block(&identity.key, SECRET));
        let secret =
            secret.ok_or_else(|| bad(operation, "the server's key file has no key for CURVE", hint))?;
        let public =
            public_key(&secret).map_err(|_| bad(operation, "the server's key for CURVE is none", hint))?;
        if block(&tls.authority, PUBLIC).is_some_and(|expected| expected != public) {
            let context = "the server's key for CURVE is not the one in the authority's file";
            return Err(bad(operation, context, "take both files from the same `thalweg pki init`"));
        }
        Ok(Self::Listener(secret))
    }

    /// The keys of a member.
    ///
    /// # Errors
    /// [`ErrorKind::Security`] if the authority's file has no public key.
    pub(crate) fn member(options: &Options) -> Result<Self> {
        let Some(tls) = &options.tls else { return Ok(Self::None) };
        let hint = "take the ca.crt or the token that `thalweg pki` of this release writes";
        let public = block(&tls.authority, PUBLIC);
        public
            .map(Self::Member)
            .ok_or_else(|| bad("connect", "the authority's file has no key for CURVE", hint))
    }

    /// Sets the keys on a socket.
    pub(crate) fn apply(&self, socket: &mut RawSocket) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Listener(secret) => {
                socket.set(Opt::CurveServer, 1)?;
                socket.set_bytes(Opt::CurveSecret, secret)
            }
            Self::Member(server) => {
                let (public, secret) = key_pair()?;
                socket.set_bytes(Opt::CurveServerKey, server)?;
                socket.set_bytes(Opt::CurvePublic, &public)?;
                socket.set_bytes(Opt::CurveSecret, &secret)
            }
        }
    }

    /// Bytes that encryption adds to a message: the command's name, a nonce, an authenticator and flags (RFC
    /// 26).
    pub(crate) fn overhead(&self) -> u64 {
        match self {
            Self::None => 0,
            _ => 33,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_found_beside_certificates_or_not_at_all() {
        let text = "//////////////////////////////////////////8=";
        let file = format!(
            "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n-----BEGIN {PUBLIC}-----\n{text}\n-----END {PUBLIC}-----\n"
        );
        assert_eq!(block(&file, PUBLIC), Some(z85(&[0xff; 32])));
        assert_eq!(block(&file, SECRET), None);
        for other in [&text[1..], "", "=", &"/".repeat(44), &text.replace('8', "9"), &"é".repeat(22)] {
            assert_eq!(block(&file.replace(text, other), PUBLIC), None, "{other}");
        }
        let (public, secret) = key_pair().unwrap();
        assert_eq!(public_key(&secret).unwrap(), public);
    }
}
