//! The header that FedRDMA's first version sends with each piece (section 3.1), into the one slot at the receiver.

use thalweg_wire::Range;

use crate::words::RECORD;

const MAGIC: [u8; 4] = *b"tlwp";

/// Which bytes of which chunk follow. With their place instead of a number they can be put together in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The chunk's number.
    pub(crate) number: u64,
    pub(crate) range: Range,
    /// Of the bytes that follow.
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
        out
    }

    /// `None` for what is no header: nothing has been written yet, or something else is being written over it.
    pub(crate) fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let range = Range::new(number(16), number(24));
        let checksum = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let plausible = bytes.starts_with(&MAGIC) && !range.is_empty();
        plausible.then_some(Self { number: number(8), range, checksum })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
