//! Data connections: in the clear, for chunks that a layer above has sealed ([`thalweg_transport::Sealed`]).
//!
//! A link under TLS needs every byte of its connections. So where a listener can do without some of the chunks' bytes,
//! control messages have a connection under TLS to themselves, the first, and chunks go on others beside it, in the
//! clear. Of what is on those the path sees frames' headers: who sends what part of which round, and when. It can change
//! nothing of the chunks, since the layer authenticates what the headers say, and reads nothing of them.
//!
//! The client proposes that in its [preamble](mod@crate::preamble), under TLS; the answer says whether it is so. A data
//! connection then begins with a preamble whose magic is `tlwd`, whose streams are counted without the first
//! connection, and behind it
//!
//! | byte | field | |
//! |---|---|---|
//! | 24 | proof | HMAC-SHA-256 of the preamble and of who says it |
//!
//! by a key that both ends have from TLS's exporter (RFC 5705). The listener answers with a proof of its own. Each place
//! of a link is taken once, and those of a link that is whole are gone: a preamble that is sent again joins nothing.

use ring::hmac;
use thalweg_sockets::tls;
use thalweg_transport::{Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsStream;

use crate::link::Duplex;
use crate::preamble::{Preamble, PREAMBLE_BYTES};

/// What a data connection begins with.
pub(crate) const MAGIC: [u8; 4] = *b"tlwd";
const PROOF_BYTES: usize = 32;
/// Bytes in front of the frames that come from a client.
pub(crate) const DATA_BYTES: usize = PREAMBLE_BYTES + PROOF_BYTES;
/// What TLS makes the key of data connections from.
const EXPORTED: &[u8] = b"EXPORTER-thalweg-data";
const CLIENT: &[u8] = b"thalweg tcp data 1 client";
const SERVER: &[u8] = b"thalweg tcp data 1 server";

/// What the two ends of a link prove with that a data connection belongs to it.
#[derive(Clone)]
pub(crate) struct DataKey(hmac::Key);

impl DataKey {
    /// From a secret that TLS gave both ends of the link's first connection, and that nothing else is made from.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// That of a link whose first connection this is.
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

/// A client's: says which connection this is, and hears that it is the link's server that took it.
pub(crate) async fn ask(
    stream: &mut impl Duplex,
    preamble: Preamble,
    key: &DataKey,
    failed: impl Fn(&std::io::Error) -> Error,
) -> Result<()> {
    let said = preamble.encode_as(MAGIC);
    let hello = [&said[..], key.proof(CLIENT, &said).as_ref()].concat();
    stream.write_all(&hello).await.map_err(|e| failed(&e))?;
    stream.flush().await.map_err(|e| failed(&e))?;
    let mut answer = [0; PROOF_BYTES];
    stream.read_exact(&mut answer).await.map_err(|e| failed(&e))?;
    key.check(SERVER, &said, &answer).then_some(()).ok_or_else(|| {
        let context = "whoever took a data connection is not the server of the link";
        Error::new(ErrorKind::Security, "connect", context).hint("look for what changes bytes on the way")
    })
}

/// What a client says on a data connection, whose first four bytes have been read.
pub(crate) struct Asked {
    pub preamble: Preamble,
    said: [u8; PREAMBLE_BYTES],
    proof: [u8; PROOF_BYTES],
}

impl Asked {
    pub(crate) async fn read(
        operation: &'static str,
        stream: &mut impl Duplex,
        failed: impl Fn(&std::io::Error) -> Error,
    ) -> Result<Self> {
        let (mut said, mut proof) = ([0; PREAMBLE_BYTES], [0; PROOF_BYTES]);
        said[..4].copy_from_slice(&MAGIC);
        stream.read_exact(&mut said[4..]).await.map_err(|e| failed(&e))?;
        stream.read_exact(&mut proof).await.map_err(|e| failed(&e))?;
        Ok(Self { preamble: Preamble::decode(operation, &said)?, said, proof })
    }

    /// Whether it was said by the client of the link with this key.
    pub(crate) fn is_proved(&self, key: &DataKey) -> bool {
        key.check(CLIENT, &self.said, &self.proof)
    }

    pub(crate) async fn answer(&self, stream: &mut impl Duplex, key: &DataKey) -> std::io::Result<()> {
        stream.write_all(key.proof(SERVER, &self.said).as_ref()).await?;
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

    /// A client with a key asks a server with another, through somebody who may change what passes.
    async fn shake(client: &DataKey, server: &DataKey, change: impl Fn(&mut [u8])) -> (bool, Result<()>) {
        let (mut here, mut there) = tokio::io::duplex(256);
        let serve = async {
            let mut hello = [0; DATA_BYTES];
            there.read_exact(&mut hello).await.unwrap();
            change(&mut hello);
            let (mut sends, mut reads) = tokio::io::duplex(256);
            sends.write_all(&hello[4..]).await.unwrap();
            let Ok(asked) = Asked::read("test", &mut reads, failed).await else { return false };
            asked.answer(&mut there, server).await.unwrap();
            asked.is_proved(server)
        };
        let (proved, asked) = tokio::join!(serve, ask(&mut here, preamble(), client, failed));
        (proved, asked)
    }

    #[tokio::test]
    async fn both_ends_prove_that_they_have_the_key() {
        let (key, other) = (DataKey::new(&[1; 32]), DataKey::new(&[2; 32]));
        let (proved, asked) = shake(&key, &key, |_| {}).await;
        assert!(proved && asked.is_ok());
        let (proved, asked) = shake(&key, &other, |_| {}).await;
        assert!(!proved && asked.unwrap_err().kind() == ErrorKind::Security);
    }

    #[tokio::test]
    async fn nothing_of_what_is_said_can_be_changed() {
        let key = DataKey::new(&[1; 32]);
        // All but the magic, and the version, which is refused before.
        for at in 5..DATA_BYTES {
            let (proved, _) = shake(&key, &key, |hello| hello[at] ^= 1).await;
            assert!(!proved, "byte {at}");
        }
    }

    #[test]
    fn an_answer_is_no_proof_of_a_client() {
        let (key, said) = (DataKey::new(&[1; 32]), preamble().encode_as(MAGIC));
        assert!(!key.check(CLIENT, &said, key.proof(SERVER, &said).as_ref()));
    }
}
