//! The preamble, the first bytes of a connection in both directions. It names the link, and the connection's
//! number in it.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | magic | `tlwp` |
//! | 4 | version | 1 |
//! | 5 | stream | number of this connection, from 0 |
//! | 6 | streams | connections of the link, 1 to 16 |
//! | 7 | flags | 1: chunks are sealed, and may go on [data connections](mod@crate::data); else 0 |
//! | 8 | link | 16 random bytes |
//!
//! The listener answers with the same bytes when it has accepted the connection. Under TLS, this answer tells
//! the client that its certificate was accepted. A flag that is missing in the answer is declined.

use ring::rand::{SecureRandom, SystemRandom};
use thalweg_sockets::tls;
use thalweg_transport::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::MAX_STREAMS;

/// Number of bytes of a preamble, before the frames.
pub const PREAMBLE_BYTES: usize = 24;
pub(crate) const MAGIC: [u8; 4] = *b"tlwp";
const VERSION: u8 = 1;

/// Identifies a link. It is random and unguessable, so that nobody else can add a connection to the link.
pub(crate) type LinkId = [u8; 16];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub id: LinkId,
    pub stream: u8,
    pub streams: u8,
    /// In the question: chunks may go on data connections. In the answer: they do.
    pub data: bool,
}

/// A new random link id.
pub(crate) fn new_id() -> Result<LinkId> {
    let mut id = [0; 16];
    let none = |_| Error::new(ErrorKind::System, "connect", "the system has no random numbers");
    SystemRandom::new().fill(&mut id).map_err(none)?;
    Ok(id)
}

impl Preamble {
    pub(crate) fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        self.encode_as(MAGIC)
    }

    pub(crate) fn encode_as(&self, magic: [u8; 4]) -> [u8; PREAMBLE_BYTES] {
        let mut out = [0; PREAMBLE_BYTES];
        out[..4].copy_from_slice(&magic);
        out[4..8].copy_from_slice(&[VERSION, self.stream, self.streams, u8::from(self.data)]);
        out[8..].copy_from_slice(&self.id);
        out
    }

    /// Decodes the bytes after the magic.
    pub(crate) fn decode(operation: &'static str, bytes: &[u8; PREAMBLE_BYTES]) -> Result<Self> {
        let bad = |why: String| Error::new(ErrorKind::Corrupt, operation, why);
        if bytes[4] != VERSION {
            return Err(bad(format!("the peer speaks version {} of tcp links, we {VERSION}", bytes[4]))
                .hint("use the same release at both ends"));
        }
        let (stream, streams, flags) = (bytes[5], bytes[6], bytes[7]);
        if !(1..=MAX_STREAMS).contains(&streams) || stream >= streams || flags > 1 {
            let description = format!("connection {stream} of {streams} with flags {flags}");
            return Err(bad(format!("the peer says {description}, which cannot be")));
        }
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[8..]);
        Ok(Self { id, stream, streams, data: flags == 1 })
    }

    /// Reads a preamble. Refuses another protocol after its first four bytes.
    pub(crate) async fn read(
        operation: &'static str,
        from: &mut (impl AsyncRead + Unpin + ?Sized),
        explain: impl Fn(&std::io::Error) -> Error,
    ) -> Result<Self> {
        let mut bytes = [0; PREAMBLE_BYTES];
        from.read_exact(&mut bytes[..4]).await.map_err(|e| explain(&e))?;
        check_magic(operation, [bytes[0], bytes[1], bytes[2], bytes[3]])?;
        from.read_exact(&mut bytes[4..]).await.map_err(|e| explain(&e))?;
        Self::decode(operation, &bytes)
    }
}

fn check_magic(operation: &'static str, magic: [u8; 4]) -> Result<()> {
    if let Some(error) = tls::unexpected(operation, &magic) {
        return Err(error);
    }
    match magic {
        MAGIC => Ok(()),
        other => {
            let context = format!("the peer is not a thalweg tcp link (it began with {other:02x?})");
            Err(Error::new(ErrorKind::Corrupt, operation, context).hint("check the address and the port"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Preamble {
        Preamble { id: [7; 16], stream: 2, streams: 4, data: false }
    }

    #[test]
    fn round_trips() {
        for preamble in [some(), Preamble { data: true, ..some() }] {
            assert_eq!(Preamble::decode("test", &preamble.encode()).unwrap(), preamble);
        }
        assert_ne!(new_id().unwrap(), new_id().unwrap());
    }

    #[tokio::test]
    async fn refuses_what_cannot_be() {
        let explain = |e: &std::io::Error| Error::io("test", "peer", e);
        for (at, value) in [(4, 2), (5, 4), (6, 0), (6, 17), (7, 2), (0, b'x')] {
            let mut bytes = some().encode();
            bytes[at] = value;
            let error = Preamble::read("test", &mut &bytes[..], explain).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
        }
    }

    #[tokio::test]
    async fn another_protocol_is_known_by_four_bytes() {
        let explain = |e: &std::io::Error| Error::io("test", "peer", e);
        let error = Preamble::read("test", &mut &b"GET "[..], explain).await.unwrap_err();
        assert!(error.to_string().contains("not a thalweg"), "{error}");
        let error = Preamble::read("test", &mut &[0x16, 3, 1, 2][..], explain).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Security);
    }
}
