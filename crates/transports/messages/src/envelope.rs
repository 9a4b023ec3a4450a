//! The head of a message: its kind, its link and its number.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | magic | `tm` |
//! | 2 | version | 1 |
//! | 3 | kind | of [`Kind`] |
//! | 4 | instance | u64, chosen by the listener; 0 in a hello |
//! | 12 | member | 16 bytes; 0 in a message to the group |
//! | 28 | fields | little-endian, by kind |
//!
//! Chunks are numbered consecutively. Each chunk also has the number of the last chunk before it whose
//! publication was confirmed. The sender leaves a gap in the numbers if it is cancelled while it publishes a
//! chunk. Because of the second number, the receiver does not take that gap for loss.

use thalweg_wire::Kind as frame;
use thalweg_wire::{FrameHeader, HEADER_BYTES};

use crate::MemberId;

const MAGIC: [u8; 2] = *b"tm";
const VERSION: u8 = 1;
const COMMON: usize = 28;
/// Maximum number of slots in the bit set of a chunk to the group.
pub(crate) const MAX_SLOTS: u32 = 1024;

/// The link that a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    pub instance: u64,
    pub member: MemberId,
}

/// The state of one direction of a link. All values count from the link's beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// Total cost of chunks that the other end may send.
    pub granted_bulk: u64,
    /// Total cost of control messages that the other end may send.
    pub granted_control: u64,
    /// Number of the last control message sent.
    pub control: u64,
    pub before: Before,
}

/// How far the sender had come when it published a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Before {
    /// Number of the last chunk to this mailbox whose publication was confirmed.
    pub bulk: u64,
    /// Number of the last chunk to the group whose publication was confirmed.
    pub group: u64,
    /// Total cost of the chunks sent to this member, through its own mailbox and through the group.
    pub position: u64,
}

/// A message without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A member asks for a link; it repeats this until the listener answers. Has the window that it grants,
    /// and its public key (zeros without encryption).
    Hello { window: u64, key: [u8; 32] },
    /// The listener's answer, repeated until another message of the member arrives. Has the member's slot,
    /// the group's last number, the window that the listener grants, and its public key.
    Welcome { slot: u32, group: u64, window: u64, key: [u8; 32] },
    /// A chunk for one end; the body is its payload.
    Chunk { number: u64, previous: u64, header: FrameHeader },
    /// A chunk for the members of the group whose slots' bits are set. `kept` says that the broker retains it
    /// for members that join later.
    GroupChunk { number: u64, previous: u64, slots: Slots, header: FrameHeader, kept: bool },
    /// A chunk whose payload the member already holds: the payload of the group's chunk number `group`.
    KeptChunk { number: u64, previous: u64, group: u64, header: FrameHeader },
    /// Announces an update: has the header of its first chunk, which follows. Nothing depends on this
    /// message, so it has no number and uses no credit.
    Begins { header: FrameHeader },
    /// Announces an update to the members of the group whose slots' bits are set.
    GroupBegins { slots: Slots, header: FrameHeader },
    /// A member tells which retained chunks it holds. [`crate::shelf`] defines the body.
    Holds,
    /// A part of a control message. The body begins at `offset` of the message's `total` bytes; `checksum` is
    /// the checksum of the whole message.
    Control { number: u64, before: Before, total: u32, offset: u32, checksum: u32 },
    /// The sender's state; also a keep-alive.
    Ledger(Ledger),
    /// The link has ended; the body has the reason.
    Bye,
}

/// A set of slots, as bits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slots(Vec<u8>);

impl Slots {
    /// Adds a slot, which must be less than [`MAX_SLOTS`].
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

/// Encodes a head.
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

/// Decodes a head. Returns the offset of the body too; `None` if the bytes are not a valid head. Never
/// allocates more than the bytes have.
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

/// One encoded message of each kind.
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
