//! The frame: a fixed little-endian header, then the payload.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | magic | `tlwg` |
//! | 4 | version | 1 |
//! | 5 | kind | 1 control, 2 chunk |
//! | 6 | flags | u16, 0 |
//! | 8 | length | u32, bytes of payload |
//! | 12 | payload checksum | u32, CRC-32C |
//! | 16 | job | u64 |
//! | 24 | round | u32 |
//! | 28 | sender | u32, 0 is the server |
//! | 32 | layout | u64, [`LayoutHash`] |
//! | 40 | offset | u64, first byte in the parcel |
//! | 48 | header checksum | u32, CRC-32C of bytes 0..48 |
//!
//! Every chunk's header says where the chunk belongs. So lost or reordered chunks never change the place of
//! other values.

use crate::{LayoutHash, Range, WireError};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 52;
/// Maximum number of payload bytes of a chunk.
pub const MAX_CHUNK: u32 = 4 << 20;
/// Maximum number of payload bytes of a control message.
pub const MAX_CONTROL: u32 = 8 << 20;
/// Maximum number of payload bytes of a control message from a peer that has not proved its identity yet. A
/// [`crate::control::Hello`] is never longer.
pub const MAX_HELLO: u32 = 4 << 10;

const MAGIC: [u8; 4] = *b"tlwg";
const VERSION: u8 = 1;
const CHECKED: usize = HEADER_BYTES - 4;

/// The kind of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A [`crate::control::Control`] message.
    Control,
    /// Bytes of a parcel, such as a model or an update.
    Chunk,
}

/// The place of a chunk's bytes: job, round, sender, layout and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The job's number.
    pub job: u64,
    /// The round or task, from 1.
    pub round: u32,
    /// The sender: 0 is the server, others are the client's number.
    pub sender: u32,
    /// The hash of the layout in which `offset` counts.
    pub layout: LayoutHash,
    /// First byte in the parcel.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
}

impl ChunkHeader {
    /// The bytes that the chunk covers.
    pub fn range(&self) -> Range {
        Range::new(self.offset, self.offset.saturating_add(u64::from(self.length)))
    }
}

/// The decoded header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of payload.
    pub kind: Kind,
    /// CRC-32C of the payload.
    pub payload_checksum: u32,
    /// The place of the payload. In a control frame, only `length` has a meaning.
    pub chunk: ChunkHeader,
}

impl FrameHeader {
    /// The header of a control message.
    pub fn control(payload: &[u8]) -> Self {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let chunk =
            ChunkHeader { job: 0, round: 0, sender: 0, layout: LayoutHash::default(), offset: 0, length };
        Self { kind: Kind::Control, payload_checksum: checksum(payload), chunk }
    }

    /// The header of a chunk whose payload checksum is known.
    pub fn chunk(chunk: ChunkHeader, payload_checksum: u32) -> Self {
        Self { kind: Kind::Chunk, payload_checksum, chunk }
    }

    /// Bytes of the payload.
    pub fn length(&self) -> usize {
        self.chunk.length as usize
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = match self.kind {
            Kind::Control => 1,
            Kind::Chunk => 2,
        };
        out[8..12].copy_from_slice(&self.chunk.length.to_le_bytes());
        out[12..16].copy_from_slice(&self.payload_checksum.to_le_bytes());
        out[16..24].copy_from_slice(&self.chunk.job.to_le_bytes());
        out[24..28].copy_from_slice(&self.chunk.round.to_le_bytes());
        out[28..32].copy_from_slice(&self.chunk.sender.to_le_bytes());
        out[32..40].copy_from_slice(&self.chunk.layout.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.chunk.offset.to_le_bytes());
        let sum = checksum(&out[..CHECKED]);
        out[CHECKED..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes and checks a header. The length in it is within the limit of its kind.
    ///
    /// # Errors
    /// A [`WireError`] that says which field is wrong; nothing is allocated.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let bytes: &[u8; HEADER_BYTES] = bytes
            .get(..HEADER_BYTES)
            .and_then(|b| b.try_into().ok())
            .ok_or(WireError::Truncated { needed: HEADER_BYTES, found: bytes.len() })?;
        let magic = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if magic != MAGIC {
            return Err(WireError::Magic(magic));
        }
        if bytes[4] != VERSION {
            return Err(WireError::Version { found: bytes[4], supported: VERSION });
        }
        let (found, computed) = (u32_at(bytes, CHECKED), checksum(&bytes[..CHECKED]));
        if found != computed {
            return Err(WireError::HeaderChecksum { found, computed });
        }
        let (kind, limit) = match bytes[5] {
            1 => (Kind::Control, MAX_CONTROL),
            2 => (Kind::Chunk, MAX_CHUNK),
            other => return Err(WireError::Kind(other)),
        };
        let chunk = ChunkHeader {
            job: u64_at(bytes, 16),
            round: u32_at(bytes, 24),
            sender: u32_at(bytes, 28),
            layout: LayoutHash(u64_at(bytes, 32)),
            offset: u64_at(bytes, 40),
            length: u32_at(bytes, 8),
        };
        if chunk.length > limit {
            return Err(WireError::Length { length: chunk.length.into(), limit: limit.into() });
        }
        Ok(Self { kind, payload_checksum: u32_at(bytes, 12), chunk })
    }

    /// Checks a payload against the header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] for another length, [`WireError::PayloadChecksum`] for other bytes.
    pub fn verify(&self, payload: &[u8]) -> Result<(), WireError> {
        if payload.len() != self.length() {
            return Err(WireError::Truncated { needed: self.length(), found: payload.len() });
        }
        let computed = checksum(payload);
        let found = self.payload_checksum;
        (found == computed).then_some(()).ok_or(WireError::PayloadChecksum { found, computed })
    }
}

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4). It uses the machine's CRC instructions, which are faster
/// here than carry-less multiplication.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// The [`checksum`] of some bytes followed by `bytes`. `before` is the checksum of the former; 0 if there are
/// none.
pub fn checksum_after(before: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(before, bytes)
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(length: u32) -> FrameHeader {
        let chunk =
            ChunkHeader { job: 7, round: 3, sender: 2, layout: LayoutHash(9), offset: 1 << 33, length };
        FrameHeader::chunk(chunk, 0xdead_beef)
    }

    #[test]
    fn checksum_is_castagnoli() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        assert_eq!(checksum_after(checksum_after(0, b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn round_trips() {
        assert_eq!(FrameHeader::decode(&header(4096).encode()), Ok(header(4096)));
    }

    #[test]
    fn refuses_a_length_over_the_limit() {
        let error = FrameHeader::decode(&header(MAX_CHUNK + 1).encode()).unwrap_err();
        assert_eq!(error, WireError::Length { length: (MAX_CHUNK + 1).into(), limit: MAX_CHUNK.into() });
    }

    #[test]
    fn verifies_payloads() {
        let header = FrameHeader::control(b"hello");
        assert_eq!(header.verify(b"hello"), Ok(()));
        assert!(matches!(header.verify(b"hellp"), Err(WireError::PayloadChecksum { .. })));
        assert!(matches!(header.verify(b"hell"), Err(WireError::Truncated { .. })));
    }

    proptest! {
        #[test]
        fn any_single_bit_flip_is_seen(byte in 0..HEADER_BYTES, bit in 0..8_u8) {
            let mut bytes = header(64).encode();
            bytes[byte] ^= 1 << bit;
            prop_assert!(FrameHeader::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = FrameHeader::decode(&bytes);
        }
    }
}
