//! The bytes of a connection. First, each end sends the 8 bytes of [`MAGIC`]. Then frames follow, each with a
//! head and a body. All numbers are little-endian.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | kind | see [`Kind`] |
//! | 1 | reserved | 3 bytes of 0 |
//! | 4 | length | u32, bytes of the body |
//!
//! | kind | body |
//! |---|---|
//! | 1 control | a control message |
//! | 2 chunk | [`Note`]: u64 number of the memory, u64 offset of the first byte in it, u32 ticket, u16 number of its shared word, u16 1 if the header has the payload's checksum; then the header of a frame of `thalweg-wire` |
//! | 3 taken | u32, number of further chunks that the receiver is done with, in the order of their notes |
//! | 4 memory | u64 number of the memory, u64 its bytes; with a descriptor |
//! | 5 forget | u64 number of a memory; no further chunk lies in it |
//! | 6 words | empty; with the descriptor of the shared words |

use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_wire::{FrameHeader, HEADER_BYTES};

/// The first bytes of a connection, in both directions.
pub(crate) const MAGIC: [u8; 8] = *b"tlwshm\x01\0";
/// Number of bytes of a frame's head.
pub(crate) const HEAD: usize = 8;
/// Number of bytes in a chunk's body before the header of the `thalweg-wire` frame.
const NOTE: usize = 24;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Control,
    Chunk,
    Taken,
    Memory,
    Forget,
    Words,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Control, Kind::Chunk, Kind::Taken, Kind::Memory, Kind::Forget, Kind::Words];

    /// Length of the body in bytes, if it is the same for all frames of this kind.
    fn fixed(self) -> Option<usize> {
        match self {
            Kind::Control => None,
            Kind::Chunk => Some(NOTE + HEADER_BYTES),
            Kind::Taken => Some(4),
            Kind::Memory => Some(16),
            Kind::Forget => Some(8),
            Kind::Words => Some(0),
        }
    }
}

/// Tells the peer where a chunk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub memory: u64,
    /// Offset of the chunk's first byte in the memory.
    pub start: u64,
    /// The value of the chunk's shared word as long as the chunk is lent.
    pub ticket: u32,
    pub word: u16,
    /// Whether the header has the checksum of the payload.
    pub checked: bool,
    pub header: FrameHeader,
}

fn corrupt(context: String) -> Error {
    Error::new(ErrorKind::Corrupt, "receive", context)
}

/// Makes the head of a frame.
pub(crate) fn head(kind: Kind, length: usize) -> [u8; HEAD] {
    let mut out = [0; HEAD];
    out[0] = kind as u8 + 1;
    out[4..].copy_from_slice(&(length as u32).to_le_bytes());
    out
}

/// Decodes a head. The length of a control message is not checked here.
pub(crate) fn read_head(bytes: &[u8; HEAD]) -> Result<(Kind, usize)> {
    let [number, a, b, c, rest @ ..] = *bytes;
    let kind = usize::from(number).checked_sub(1).and_then(|at| Kind::ALL.get(at));
    let (Some(&kind), [0, 0, 0]) = (kind, [a, b, c]) else {
        return Err(corrupt(format!("a frame begins with {:?}", [number, a, b, c])));
    };
    let length = u32::from_le_bytes(rest) as usize;
    match kind.fixed() {
        Some(fixed) if fixed != length => Err(corrupt(format!("a {kind:?} frame of {length} bytes"))),
        _ => Ok((kind, length)),
    }
}

/// Makes a frame whose body consists of numbers.
pub(crate) fn numbers(kind: Kind, numbers: &[u64]) -> Vec<u8> {
    let mut out = head(kind, 8 * numbers.len()).to_vec();
    numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
    out
}

/// Makes the frame that tells how many further chunks this end is done with.
pub(crate) fn taken(count: u32) -> Vec<u8> {
    let mut out = head(Kind::Taken, 4).to_vec();
    out.extend(count.to_le_bytes());
    out
}

pub(crate) fn read_taken(body: &[u8]) -> Result<u32> {
    let bytes = body.try_into().map_err(|_| corrupt("a count is cut".into()))?;
    Ok(u32::from_le_bytes(bytes))
}

/// Reads the u64 with index `number` in a body.
pub(crate) fn word(body: &[u8], number: usize) -> Result<u64> {
    let bytes = body.get(8 * number..8 * number + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_le_bytes).ok_or_else(|| corrupt("a frame is cut".into()))
}

impl Note {
    /// The whole frame of the note.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = head(Kind::Chunk, NOTE + HEADER_BYTES).to_vec();
        out.extend(self.memory.to_le_bytes());
        out.extend(self.start.to_le_bytes());
        out.extend(self.ticket.to_le_bytes());
        out.extend(self.word.to_le_bytes());
        out.extend(u16::from(self.checked).to_le_bytes());
        out.extend(self.header.encode());
        out
    }

    /// Decodes the body of a chunk's frame.
    pub(crate) fn decode(body: &[u8]) -> Result<Self> {
        let (note, header) = body.split_at_checked(NOTE).ok_or_else(|| corrupt("a note is cut".into()))?;
        let (memory, start, rest) = (word(note, 0)?, word(note, 1)?, word(note, 2)?);
        let header = FrameHeader::decode(header)?;
        if header.kind != thalweg_wire::Kind::Chunk {
            return Err(corrupt("a note of what is no chunk".into()));
        }
        let (ticket, word, checked) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
        if checked > 1 {
            return Err(corrupt(format!("a note has the flag {checked}")));
        }
        Ok(Self { memory, start, ticket, word, checked: checked == 1, header })
    }
}

#[cfg(test)]
mod tests {
    use thalweg_wire::{ChunkHeader, LayoutHash};

    use super::*;

    fn note() -> Note {
        let (job, round, sender, layout) = (u64::MAX - 1, 2, u32::MAX, LayoutHash(4));
        let chunk = ChunkHeader { job, round, sender, layout, offset: 1 << 40, length: 77 };
        let header = FrameHeader::chunk(chunk, 0xdead_beef);
        Note { memory: 1 << 60, start: 3 << 33, ticket: u32::MAX - 1, word: 515, checked: true, header }
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        for checked in [true, false] {
            let note = Note { checked, ..note() };
            let frame = note.encode();
            let (kind, length) = read_head(frame[..HEAD].try_into().unwrap()).unwrap();
            assert_eq!((kind, length), (Kind::Chunk, frame.len() - HEAD));
            assert_eq!(Note::decode(&frame[HEAD..]).unwrap(), note);
        }
    }

    #[test]
    fn small_frames_are_read_as_they_were_written() {
        let frame = numbers(Kind::Memory, &[7, 1 << 50]);
        assert_eq!(read_head(frame[..HEAD].try_into().unwrap()).unwrap(), (Kind::Memory, 16));
        assert_eq!((word(&frame[HEAD..], 0).unwrap(), word(&frame[HEAD..], 1).unwrap()), (7, 1 << 50));
        assert!(word(&frame[HEAD..], 2).is_err());
        assert_eq!(read_taken(&taken(9)[HEAD..]).unwrap(), 9);
        assert_eq!(read_head(&head(Kind::Words, 0)).unwrap(), (Kind::Words, 0));
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for bytes in [[0; HEAD], [7, 0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0], *b"GET / HT"] {
            assert_eq!(read_head(&bytes).unwrap_err().kind(), ErrorKind::Corrupt, "{bytes:?}");
        }
        assert!(read_head(&head(Kind::Taken, 5)).is_err(), "of another length");
        let frame = note().encode();
        assert!(Note::decode(&frame[HEAD..frame.len() - 1]).is_err() && Note::decode(&[]).is_err());
        let mut flagged = frame.clone();
        flagged[HEAD + 22] = 2;
        assert!(Note::decode(&flagged[HEAD..]).is_err());
    }

    /// Each damaged body must decode to a note or give an error.
    #[test]
    fn damaged_bodies_are_notes_or_errors() {
        let samples = vec![note().encode()[HEAD..].to_vec()];
        let mut read = 0;
        thalweg_conformance::damage(
            &samples,
            |_, _| {},
            |body| {
                assert!(body.len() < 1 << 20);
                if let Ok(note) = Note::decode(body) {
                    assert!(note.header.length() <= thalweg_wire::MAX_CHUNK as usize);
                }
            },
        );
        samples.iter().for_each(|body| read += usize::from(Note::decode(body).is_ok()));
        assert_eq!(read, 1);
    }
}
