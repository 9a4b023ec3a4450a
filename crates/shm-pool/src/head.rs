//! The head of a slot: the object's key and generation, and the ranges of the body that were received.

use thalweg_wire::{Range, Ranges};

use crate::Key;

const FIXED: usize = 32;
const A_RANGE: usize = 16;

/// Number of ranges for which a head of this size has room.
pub(crate) fn capacity(bytes: u64) -> usize {
    (bytes as usize).saturating_sub(FIXED) / A_RANGE
}

/// Writes a head. There must be room for all ranges; see [`capacity`].
pub(crate) fn write(head: &mut [u8], key: Key, generation: u64, received: &Ranges) {
    head[..16].copy_from_slice(&key);
    head[16..24].copy_from_slice(&generation.to_le_bytes());
    head[24..32].copy_from_slice(&(received.count() as u64).to_le_bytes());
    for (range, out) in received.iter().zip(head[FIXED..].chunks_exact_mut(A_RANGE)) {
        out[..8].copy_from_slice(&range.start.to_le_bytes());
        out[8..].copy_from_slice(&range.end.to_le_bytes());
    }
}

/// Reads key and generation from a head.
pub(crate) fn identity(head: &[u8]) -> (Key, u64) {
    let mut key = [0; 16];
    key.copy_from_slice(&head[..16]);
    (key, number(head, 16))
}

/// Reads the ranges that were received of a body of `bytes` bytes; `None` if the head is invalid.
pub(crate) fn ranges(head: &[u8], bytes: u64) -> Option<Ranges> {
    let count = usize::try_from(number(head, 24)).ok().filter(|&n| n <= capacity(head.len() as u64))?;
    let mut received = Ranges::new();
    let mut end = 0;
    for at in (0..count).map(|index| FIXED + index * A_RANGE) {
        let range = Range::new(number(head, at), number(head, at + 8));
        if range.start < end || range.is_empty() || range.end > bytes {
            return None;
        }
        end = range.end;
        received.insert(range);
    }
    Some(received)
}

fn number(head: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(bytes)
}
