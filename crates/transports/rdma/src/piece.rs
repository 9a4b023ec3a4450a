//! The header in front of each piece that FedRDMA's first version writes into the receiver's one slot
//! (section 3.1).

use bytes::Bytes;
use thalweg_rdma_proto::Grant;
use thalweg_transport::Result;
use thalweg_verbs::{Remote, Work};
use thalweg_wire::{checksum, Range};

use crate::entry::Records;
use crate::settings::Style;
use crate::words::RECORD;

const MAGIC: [u8; 4] = *b"tlwp";
/// Bytes of a header's fields. Their checksum follows.
const SAID: usize = 32;

/// A header: it names the bytes of a chunk that follow. It holds their range, not a sequence number, so the
/// receiver can assemble pieces in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The chunk's number.
    pub(crate) number: u64,
    pub(crate) range: Range,
    /// Checksum of the bytes that follow; 0 under the rule that the paper prints (see [`crate::printed`]).
    pub(crate) checksum: u32,
}

impl Piece {
    pub(crate) fn encode(&self) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&self.checksum.to_le_bytes());
        for (at, number) in [(8, self.number), (16, self.range.start), (24, self.range.end)] {
            out[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let own = checksum(&out[..SAID]);
        out[SAID..SAID + 4].copy_from_slice(&own.to_le_bytes());
        out
    }

    /// Decodes a header. `None` if the bytes are no valid header: none was written yet, or the next one is
    /// being written over it. The header's own checksum detects the latter. Without it, one piece's number
    /// beside another's range and checksum would put correct bytes into the wrong chunk.
    pub(crate) fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let range = Range::new(number(16), number(24));
        let short = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let whole = bytes.starts_with(&MAGIC) && short(SAID) == checksum(&bytes[..SAID]);
        let piece = Self { number: number(8), range, checksum: short(4) };
        (whole && !range.is_empty()).then_some(piece)
    }
}

impl Records {
    /// The work request that writes a piece of a chunk with its header, and how many bytes it writes.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn piece(
        &mut self,
        style: Style,
        grant: &Grant,
        range: Range,
        bytes: Bytes,
        slot: Remote,
    ) -> Result<(Work, u64)> {
        let Grant { number, length, address, key } = *grant;
        let at = |start: u64| Remote { address: address.wrapping_add(start), key };
        let headed = range.len() + RECORD as u64;
        if style == Style::Slot {
            let piece = Piece { number, range, checksum: checksum(&bytes) };
            let bytes = vec![self.write(&piece.encode())?, bytes];
            return Ok((Work::Note { bytes, to: slot, note: 0 }, headed));
        }
        // With the printed rule the chunk's header stands in front of its data. It is written together with
        // the first piece.
        if range.start > 0 {
            let to = at(range.start + RECORD as u64);
            return Ok((Work::Write { bytes: vec![bytes], to }, range.len()));
        }
        let whole = Piece { number, range: Range::new(0, length), checksum: 0 };
        let bytes = vec![self.write(&whole.encode())?, bytes];
        Ok((Work::Write { bytes, to: at(0) }, headed))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_two_pieces_is_none() {
        let old = Piece { number: 7, range: Range::new(0, 64), checksum: 9 };
        let new = Piece { number: 8, range: Range::new(64, 128), checksum: 10 };
        for at in 1..SAID + 4 {
            let mut torn = old.encode();
            torn[..at].copy_from_slice(&new.encode()[..at]);
            let whole = [old, new].map(|piece| piece.encode()).contains(&torn);
            assert_eq!(Piece::decode(&torn).is_some(), whole, "{at} bytes of the new one");
        }
    }

    #[test]
    fn headers_come_as_they_were_sent() {
        let piece = Piece { number: 7, range: Range::new(64, 1 << 22), checksum: 9 };
        assert_eq!(Piece::decode(&piece.encode()), Some(piece));
        assert_eq!(Piece::decode(&[0; RECORD]), None);
        let empty = Piece { range: Range::new(5, 5), ..piece };
        assert_eq!(Piece::decode(&empty.encode()), None);
        let samples = [piece.encode().to_vec()];
        let take = |bytes: &[u8]| {
            if let Ok(header) = bytes.try_into() {
                assert!(Piece::decode(header).is_none_or(|piece| !piece.range.is_empty()));
            }
        };
        thalweg_conformance::damage(&samples, |_, _| {}, take);
    }
}
