//! Reads packets from the broker, each into a buffer of its own size.

use bytes::{Buf, BufMut, BytesMut};
use thalweg_transport::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::packets::{length, too_long, Incoming, Version};

/// Bytes to read while the length of a packet is unknown. Bytes of the next packet among them are moved once
/// more.
const FIRST: usize = 512;
/// Maximum number of bytes of one read. The buffer must be initialised for as many bytes as a read asks for.
const READ: usize = 128 << 10;
const RECEIVE: &str = "receive";

/// The receiving half of a connection.
pub(crate) struct Inbox {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
    version: Version,
    most: usize,
    /// Bytes still to skip of a packet that was too long.
    skip: usize,
}

impl Inbox {
    /// A reader that accepts packets of up to `most` bytes. A longer message, from a foreign client of the
    /// broker, is skipped after its header. With version 5 the broker does not send such messages.
    pub(crate) fn new(stream: Box<dyn AsyncRead + Send + Unpin>, version: Version, most: usize) -> Self {
        Self { stream, buffer: BytesMut::new(), version, most, skip: 0 }
    }

    /// Reads the next packet. Returns its length in bytes too. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for bytes that are not MQTT; [`ErrorKind::Closed`] at the end of the
    /// connection.
    pub(crate) async fn next(&mut self) -> Result<(Incoming, u64)> {
        let corrupt = |why: String| {
            Error::new(ErrorKind::Corrupt, RECEIVE, format!("what is no MQTT: {why}"))
                .hint("check that a broker listens at the address, and whether it wants TLS")
        };
        loop {
            while self.skip > 0 {
                let skipped = self.skip.min(self.buffer.len());
                self.buffer.advance(skipped);
                self.skip -= skipped;
                if self.skip > 0 {
                    self.fill(Some(self.skip.min(READ))).await?;
                }
            }
            let whole = length(&self.buffer[..self.buffer.len().min(5)]).map_err(corrupt)?;
            match whole {
                Some(whole) if whole > self.most => match too_long(&self.buffer).map_err(corrupt)? {
                    Some(found) => {
                        self.skip = whole;
                        return Ok((found, whole as u64));
                    }
                    None => self.fill(None).await?,
                },
                Some(whole) if self.buffer.len() >= whole => {
                    let packet = self.buffer.split_to(whole);
                    let read = self.version.read(packet).map_err(corrupt)?;
                    return Ok((read, whole as u64));
                }
                whole => self.fill(whole).await?,
            }
        }
    }

    /// Reads once: up to the end of a packet of `whole` bytes, or [`FIRST`] bytes if its length is unknown.
    async fn fill(&mut self, whole: Option<usize>) -> Result<()> {
        let missing = whole.map_or(FIRST, |whole| whole - self.buffer.len());
        self.buffer.reserve(missing);
        let mut room = (&mut self.buffer).limit(missing.min(READ));
        match self.stream.read_buf(&mut room).await {
            Ok(0) => Err(Error::closed(RECEIVE, "the broker hung up")),
            Ok(_) => Ok(()),
            Err(error) => Err(Error::io(RECEIVE, "the connection to the broker broke", &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::{publish, Retain};

    #[tokio::test]
    async fn packets_come_whole_however_they_are_cut() {
        let sizes = [0, 1, 500, 600, 200_000, 3];
        let bytes: Vec<u8> = sizes
            .iter()
            .flat_map(|&n| publish(Version::V5, "t", (0, 0, Retain::No), b"h", &vec![n as u8; n]))
            .collect();
        for cut in [1, 7, 511, 513, 1 << 20] {
            let (mut far, near) = tokio::io::duplex(cut);
            let copy = bytes.clone();
            tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut far, &copy).await });
            let mut inbox = Inbox::new(Box::new(near), Version::V5, 1 << 20);
            for n in sizes {
                let (Incoming::Publish { payload, .. }, _) = inbox.next().await.unwrap() else { panic!() };
                assert_eq!((payload.len(), payload[0]), (n + 1, b'h'));
            }
            assert_eq!(inbox.next().await.unwrap_err().kind(), ErrorKind::Closed);
        }
    }

    #[tokio::test]
    async fn too_long_a_packet_is_refused_before_it_is_read() {
        let (mut far, near) = tokio::io::duplex(64);
        tokio::io::AsyncWriteExt::write_all(&mut far, &[0x90, 0xff, 0xff, 0xff, 0x7f]).await.unwrap();
        let mut inbox = Inbox::new(Box::new(near), Version::V311, 1 << 20);
        assert_eq!(inbox.next().await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(inbox.buffer.capacity() < 4096);
    }

    #[tokio::test]
    async fn too_long_a_message_is_passed_over_and_costs_little() {
        let long = vec![7; 8 << 20];
        let bytes: Vec<u8> = [(0, 0), (1, 258), (2, 7)]
            .iter()
            .flat_map(|&(qos, id)| publish(Version::V311, "a/topic", (qos, id, Retain::No), b"", &long))
            .chain(publish(Version::V311, "t", (0, 0, Retain::No), b"", b"next"))
            .collect();
        for cut in [1 << 10, 1 << 20] {
            let (mut far, near) = tokio::io::duplex(cut);
            let copy = bytes.clone();
            tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut far, &copy).await });
            let mut inbox = Inbox::new(Box::new(near), Version::V311, 1 << 20);
            for expected in [(0, 0), (258, 1), (7, 2)] {
                let (Incoming::TooLong { id, qos }, _) = inbox.next().await.unwrap() else { panic!() };
                assert_eq!((id, qos), expected);
            }
            let (Incoming::Publish { payload, .. }, _) = inbox.next().await.unwrap() else { panic!() };
            assert_eq!(payload, "next");
            assert!(inbox.buffer.capacity() <= 4 * READ, "{}", inbox.buffer.capacity());
        }
    }
}
