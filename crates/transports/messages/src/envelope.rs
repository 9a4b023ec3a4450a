//! The head of a message: what it is, on which link, and its number.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | magic | `tm` |
//! | 2 | version | 1 |
//! | 3 | kind | of [`Kind`] |
//! | 4 | instance | u64, the listener's; 0 in a hello |
//! | 12 | member | 16 bytes; 0 to a group |
//! | 28 | fields | little-endian, by kind |
//!
//! The number of a chunk is one more than that of the chunk before, and it says the number of the last one before it
//! that was published for certain: what was given up halfway is a gap that the receiver does not mind.

use thalweg_wire::Kind as frame;
use thalweg_wire::{FrameHeader, HEADER_BYTES};

use crate::MemberId;

const MAGIC: [u8; 2] = *b"tm";
const VERSION: u8 = 1;
const COMMON: usize = 28;
/// Most slots that a chunk to the group can address.
pub(crate) const MAX_SLOTS: u32 = 1024;

/// Which link a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    pub instance: u64,
    pub member: MemberId,
}

/// What has been granted and sent so far on a link, all counted from its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// Bytes of chunks that the other end may send.
    pub granted_bulk: u64,
    /// Cost of control messages that the other end may send.
    pub granted_control: u64,
    /// Number of the last control message.
    pub control: u64,
    pub before: Before,
}

/// What has been sent before a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Before {
    /// Number of the last chunk to this mailbox, for certain.
    pub bulk: u64,
    /// Number of the last chunk to the group, for certain.
    pub group: u64,
    /// Cost of all chunks sent to this member, both ways.
    pub position: u64,
}

/// What a message says, but for its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A member asks to be let in, again and again: what it grants, and its half of a secret (zeros in the clear).
    Hello { window: u64, key: [u8; 32] },
    /// The listener's answer, until something else comes: the member's slot, the group's last number, what it grants, its half of a secret.
    Welcome { slot: u32, group: u64, window: u64, key: [u8; 32] },
    /// A chunk for one; the body is its payload.
    Chunk { number: u64, previous: u64, header: FrameHeader },
    /// A chunk for those of the group whose slots' bits are set; whether the post keeps it for who comes later.
    GroupChunk { number: u64, previous: u64, slots: Slots, header: FrameHeader, kept: bool },
    /// A chunk for one who holds its payload: it is that of the group's chunk `group`.
    KeptChunk { number: u64, previous: u64, group: u64, header: FrameHeader },
    /// An update begins: this is the header of its first chunk, which comes behind. It has no number and costs nothing,
    /// since nothing depends on it.
    Begins { header: FrameHeader },
    /// The same, to those of the group whose slots' bits are set.
    GroupBegins { slots: Slots, header: FrameHeader },
    /// A member tells which chunks it holds that the post has kept; the body is of [`crate::shelf`].
    Holds,
    /// A part of a control message: the body is what begins at `offset` of `total` bytes, whose checksum this is.
    Control { number: u64, before: Before, total: u32, offset: u32, checksum: u32 },
    /// How things stand; a sign of life, too.
    Ledger(Ledger),
    /// The link has ended; the body says why.
    Bye,
}

/// A set of slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slots(Vec<u8>);

impl Slots {
    /// Adds one below [`MAX_SLOTS`].
    pub(crate) fn insert(&mut self, slot: u32) {
        let byte = slot as usize / 8;
        if self.0.len() <= byte {
            self.0.resize(byte + 1, 0);
        }
        self.0[byte] |= 1 << (slot % 8);
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.0.get(slot as usize / 8).is_some_and(|byte| byte & (1 << (slot % 8)) != 0)
    }
}

/// The bytes of a head.
pub(crate) fn encode(tag: Tag, kind: &Kind) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, 0]);
    out.extend_from_slice(&tag.instance.to_le_bytes());
    out.extend_from_slice(&tag.member.0);
    let mut put = |numbers: &[u64]| numbers.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
    out[3] = match kind {
        Kind::Hello { window, key } => {
            put(&[*window]);
            out.extend_from_slice(key);
            1
        }
        Kind::Welcome { slot, group, window, key } => {
            put(&[u64::from(*slot), *group, *window]);
            out.extend_from_slice(key);
            2
        }
        Kind::Chunk { number, previous, header } => {
            put(&[*number, *previous]);
            out.extend_from_slice(&header.encode());
            3
        }
        Kind::GroupChunk { number, previous, slots, header, kept } => {
            put(&[*number, *previous, slots.0.len() as u64]);
            out.extend_from_slice(&slots.0);
            out.extend_from_slice(&header.encode());
            if *kept {
                8
            } else {
                4
            }
        }
        Kind::KeptChunk { number, previous, group, header } => {
            put(&[*number, *previous, *group]);
            out.extend_from_slice(&header.encode());
            9
        }
        Kind::Holds => 10,
        Kind::Begins { header } => {
            out.extend_from_slice(&header.encode());
            11
        }
        Kind::GroupBegins { slots, header } => {
            put(&[slots.0.len() as u64]);
            out.extend_from_slice(&slots.0);
            out.extend_from_slice(&header.encode());
            12
        }
        Kind::Control { number, before, total, offset, checksum } => {
            put(&[*number, before.bulk, before.group, before.position]);
            [total, offset, checksum].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
            5
        }
        Kind::Ledger(Ledger { granted_bulk, granted_control, control, before }) => {
            put(&[*granted_bulk, *granted_control, *control, before.bulk, before.group, before.position]);
            6
        }
        Kind::Bye => 7,
    };
    out
}

/// Reads a head; with it, where the body begins. `None` if it is none. Nothing is allocated by a length that the bytes
/// do not have.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Tag, Kind, usize)> {
    let mut rest = Fields(bytes.get(COMMON..)?);
    if bytes[..2] != MAGIC || bytes[2] != VERSION {
        return None;
    }
    let instance = u64::from_le_bytes(bytes[4..12].try_into().ok()?);
    let member = MemberId(bytes[12..COMMON].try_into().ok()?);
    let kind = match bytes[3] {
        1 => Kind::Hello { window: rest.long()?, key: rest.take()? },
        2 => Kind::Welcome {
            slot: u32::try_from(rest.long()?).ok()?,
            group: rest.long()?,
            window: rest.long()?,
            key: rest.take()?,
        },
        3 => Kind::Chunk { number: rest.long()?, previous: rest.long()?, header: rest.header()? },
        kind @ (4 | 8) => Kind::GroupChunk {
            number: rest.long()?,
            previous: rest.long()?,
            slots: rest.slots()?,
            header: rest.header()?,
            kept: kind == 8,
        },
        5 => Kind::Control {
            number: rest.long()?,
            before: rest.before()?,
            total: rest.int()?,
            offset: rest.int()?,
            checksum: rest.int()?,
        },
        6 => Kind::Ledger(Ledger {
            granted_bulk: rest.long()?,
            granted_control: rest.long()?,
            control: rest.long()?,
            before: rest.before()?,
        }),
        7 => Kind::Bye,
        9 => Kind::KeptChunk {
            number: rest.long()?,
            previous: rest.long()?,
            group: rest.long()?,
            header: rest.header()?,
        },
        10 => Kind::Holds,
        11 => Kind::Begins { header: rest.header()? },
        12 => Kind::GroupBegins { slots: rest.slots()?, header: rest.header()? },
        _ => return None,
    };
    Some((Tag { instance, member }, kind, bytes.len() - rest.0.len()))
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn int(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn before(&mut self) -> Option<Before> {
        Some(Before { bulk: self.long()?, group: self.long()?, position: self.long()? })
    }

    fn header(&mut self) -> Option<FrameHeader> {
        FrameHeader::decode(&self.take::<HEADER_BYTES>()?).ok().filter(|header| header.kind == frame::Chunk)
    }

    fn slots(&mut self) -> Option<Slots> {
        let length = usize::try_from(self.long()?).ok().filter(|&n| n <= MAX_SLOTS as usize / 8)?;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Slots(taken.to_vec()))
    }
}

/// A message of each kind, for tests.
#[cfg(test)]
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let tag = Tag { instance: 11, member: MemberId([0x81; 16]) };
    tests::kinds().iter().map(|kind| [&encode(tag, kind)[..], &[7; 48]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HEAD_BYTES;
    use thalweg_wire::{checksum, ChunkHeader, LayoutHash};

    pub(super) fn kinds() -> Vec<Kind> {
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 5, length: 6 };
        let header = FrameHeader::chunk(chunk, 7);
        let mut slots = Slots::default();
        [0, 9, MAX_SLOTS - 1].into_iter().for_each(|slot| slots.insert(slot));
        let before = Before { bulk: 3, group: 4, position: 1 << 40 };
        vec![
            Kind::Hello { window: 5, key: [7; 32] },
            Kind::Welcome { slot: 6, group: 8, window: 9, key: [1; 32] },
            Kind::Chunk { number: 2, previous: 1, header },
            Kind::GroupChunk { number: 2, previous: 1, slots: slots.clone(), header, kept: false },
            Kind::GroupChunk { number: 2, previous: 1, slots: slots.clone(), header, kept: true },
            Kind::KeptChunk { number: 2, previous: 1, group: 7, header },
            Kind::Begins { header },
            Kind::GroupBegins { slots, header },
            Kind::Holds,
            Kind::Control { number: 1, before, total: 12, offset: 3, checksum: checksum(b"x") },
            Kind::Ledger(Ledger { granted_bulk: 1, granted_control: 2, control: 3, before }),
            Kind::Bye,
        ]
    }

    #[test]
    fn every_kind_reads_back_and_leaves_room() {
        let tag = Tag { instance: 11, member: MemberId([0x81; 16]) };
        for kind in kinds() {
            let mut bytes = encode(tag, &kind);
            let head = bytes.len();
            assert!(head <= HEAD_BYTES, "{kind:?} takes {head}");
            bytes.extend_from_slice(b"body");
            assert_eq!(decode(&bytes), Some((tag, kind, head)));
        }
    }

    #[test]
    fn cut_or_damaged_it_is_none_or_something_else_and_never_a_panic() {
        let tag = Tag { instance: 11, member: MemberId([0x81; 16]) };
        for kind in kinds() {
            let bytes = encode(tag, &kind);
            for length in 0..bytes.len() {
                assert_eq!(decode(&bytes[..length]), None);
            }
            for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert_ne!(decode(&damaged), Some((tag, kind.clone(), bytes.len())));
            }
        }
    }

    #[test]
    fn slots_are_a_set() {
        let mut slots = Slots::default();
        slots.insert(17);
        assert!(slots.contains(17) && !slots.contains(16) && !slots.contains(18) && !slots.contains(1000));
    }
}
