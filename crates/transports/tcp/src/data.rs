//! Data connections: connections without TLS, for chunks that a layer above has sealed
//! ([`thalweg_transport::Sealed`]).
//!
//! TLS needs every byte of its connection. If the listener can do without some bytes of the chunks, only the
//! first connection of the link is under TLS and carries the control messages. Chunks go on data connections
//! beside it. An observer of the path sees the headers of their frames: who sends which part of which round,
//! and when. It cannot read the chunks, nor change them or their headers unnoticed, because the layer
//! authenticates both.
//!
//! The client proposes data connections in its [preamble](mod@crate::preamble), under TLS. The answer accepts
//! or declines them. A data connection then begins with a preamble with the magic `tlwd`, in which the number
//! of streams does not count the first connection. Behind it follows
//!
//! | byte | field | |
//! |---|---|---|
//! | 24 | proof | HMAC-SHA-256 of the sender's role and the preamble |
//!
//! The key of the HMAC comes from TLS's exporter (RFC 5705), so both ends have it. The listener answers with
//! a proof of its own. Each place of a link is taken once, and the places of a complete link are gone, so a
//! replayed preamble joins nothing.

use ring::hmac;
use thalweg_sockets::tls;
use thalweg_transport::{Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsStream;

use crate::link::Duplex;
use crate::preamble::{Preamble, PREAMBLE_BYTES};

/// First bytes of a data connection.
pub(crate) const MAGIC: [u8; 4] = *b"tlwd";
const PROOF_BYTES: usize = 32;
/// Number of bytes that a client sends before its frames.
pub(crate) const DATA_BYTES: usize = PREAMBLE_BYTES + PROOF_BYTES;
/// Label of the exporter (RFC 5705) that gives the key of data connections.
const EXPORTED: &[u8] = b"EXPORTER-thalweg-data";
const CLIENT: &[u8] = b"thalweg tcp data 1 client";
const SERVER: &[u8] = b"thalweg tcp data 1 server";

/// The HMAC key with which the two ends of a link prove that a data connection belongs to it.
#[derive(Clone)]
pub(crate) struct DataKey(hmac::Key);

impl DataKey {
    /// Makes the key from a secret that TLS gave both ends of the link's first connection. Nothing else is
    /// derived from this secret.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The key of the link whose first connection is `stream`.
    pub(crate) fn of<T>(operation: &'static str, stream: &TlsStream<T>) -> Result<Self> {
        tls::exported(operation, stream, EXPORTED).map(|secret| Self::new(&secret))
    }

    fn proof(&self, who: &[u8], preamble: &[u8; PREAMBLE_BYTES]) -> hmac::Tag {
        hmac::sign(&self.0, &[who, preamble].concat())
    }

    fn check(&self, who: &[u8], preamble: &[u8; PREAMBLE_BYTES], proof: &[u8]) -> bool {
        hmac::verify(&self.0, &[who, preamble].concat(), proof).is_ok()
    }
}

/// Client: sends the preamble of a data connection with its proof, and checks that the answer comes from the
/// link's server.
pub(crate) async fn ask(
    stream: &mut impl Duplex,
    preamble: Preamble,
    key: &DataKey,
    failed: impl Fn(&std::io::Error) -> Error,
) -> Result<()> {
    let encoded = preamble.encode_as(MAGIC);
    let hello = [&encoded[..], key.proof(CLIENT, &encoded).as_ref()].concat();
    stream.write_all(&hello).await.map_err(|e| failed(&e))?;
    stream.flush().await.map_err(|e| failed(&e))?;
    let mut answer = [0; PROOF_BYTES];
    stream.read_exact(&mut answer).await.map_err(|e| failed(&e))?;
    key.check(SERVER, &encoded, &answer).then_some(()).ok_or_else(|| {
        let context = "the peer that accepted a data connection is not the link's server";
        Error::new(ErrorKind::Security, "connect", context).hint("look for what changes bytes on the way")
    })
}

/// What a client sends at the start of a data connection. The first four bytes have been read before.
pub(crate) struct Hello {
    pub preamble: Preamble,
    encoded: [u8; PREAMBLE_BYTES],
    proof: [u8; PROOF_BYTES],
}

impl Hello {
    pub(crate) async fn read(
        operation: &'static str,
        stream: &mut impl Duplex,
        failed: impl Fn(&std::io::Error) -> Error,
    ) -> Result<Self> {
        let (mut encoded, mut proof) = ([0; PREAMBLE_BYTES], [0; PROOF_BYTES]);
        encoded[..4].copy_from_slice(&MAGIC);
        stream.read_exact(&mut encoded[4..]).await.map_err(|e| failed(&e))?;
        stream.read_exact(&mut proof).await.map_err(|e| failed(&e))?;
        Ok(Self { preamble: Preamble::decode(operation, &encoded)?, encoded, proof })
    }

    /// Whether the client of the link with this key has sent it.
    pub(crate) fn is_proved(&self, key: &DataKey) -> bool {
        key.check(CLIENT, &self.encoded, &self.proof)
    }

    pub(crate) async fn answer(&self, stream: &mut impl Duplex, key: &DataKey) -> std::io::Result<()> {
        stream.write_all(key.proof(SERVER, &self.encoded).as_ref()).await?;
        stream.flush().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preamble() -> Preamble {
        Preamble { id: [7; 16], stream: 1, streams: 2, data: true }
    }

    fn failed(error: &std::io::Error) -> Error {
        Error::io("test", "peer", error)
    }

    /// A client with a key asks a server with another key. `change` alters the bytes on their way.
    async fn shake(client: &DataKey, server: &DataKey, change: impl Fn(&mut [u8])) -> (bool, Result<()>) {
        let (mut here, mut there) = tokio::io::duplex(256);
        let serve = async {
            let mut hello = [0; DATA_BYTES];
            there.read_exact(&mut hello).await.unwrap();
            change(&mut hello);
            let (mut sends, mut reads) = tokio::io::duplex(256);
            sends.write_all(&hello[4..]).await.unwrap();
            let Ok(hello) = Hello::read("test", &mut reads, failed).await else { return false };
            hello.answer(&mut there, server).await.unwrap();
            hello.is_proved(server)
        };
        let (proved, outcome) = tokio::join!(serve, ask(&mut here, preamble(), client, failed));
        (proved, outcome)
    }

    #[tokio::test]
    async fn both_ends_prove_that_they_have_the_key() {
        let (key, other) = (DataKey::new(&[1; 32]), DataKey::new(&[2; 32]));
        let (proved, outcome) = shake(&key, &key, |_| {}).await;
        assert!(proved && outcome.is_ok());
        let (proved, outcome) = shake(&key, &other, |_| {}).await;
        assert!(!proved && outcome.unwrap_err().kind() == ErrorKind::Security);
    }

    #[tokio::test]
    async fn nothing_of_what_is_said_can_be_changed() {
        let key = DataKey::new(&[1; 32]);
        // All bytes but the magic and the version, whose errors are found before the proof is checked.
        for at in 5..DATA_BYTES {
            let (proved, _) = shake(&key, &key, |hello| hello[at] ^= 1).await;
            assert!(!proved, "byte {at}");
        }
    }

    #[test]
    fn an_answer_is_no_proof_of_a_client() {
        let (key, encoded) = (DataKey::new(&[1; 32]), preamble().encode_as(MAGIC));
        assert!(!key.check(CLIENT, &encoded, key.proof(SERVER, &encoded).as_ref()));
    }
}
