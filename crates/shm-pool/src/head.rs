//! A slot's head: who the object is, and what came of it.

use thalweg_wire::{Range, Ranges};

use crate::Key;

const FIXED: usize = 32;
const A_RANGE: usize = 16;

/// How many ranges a head of so many bytes can tell.
pub(crate) fn capacity(bytes: u64) -> usize {
    (bytes as usize).saturating_sub(FIXED) / A_RANGE
}

/// Writes a head; there is room, see [`capacity`].
pub(crate) fn write(head: &mut [u8], key: Key, generation: u64, came: &Ranges) {
    head[..16].copy_from_slice(&key);
    head[16..24].copy_from_slice(&generation.to_le_bytes());
    head[24..32].copy_from_slice(&(came.count() as u64).to_le_bytes());
    for (range, out) in came.iter().zip(head[FIXED..].chunks_exact_mut(A_RANGE)) {
        out[..8].copy_from_slice(&range.start.to_le_bytes());
        out[8..].copy_from_slice(&range.end.to_le_bytes());
    }
}

/// Key and generation at a head.
pub(crate) fn identity(head: &[u8]) -> (Key, u64) {
    let mut key = [0; 16];
    key.copy_from_slice(&head[..16]);
    (key, number(head, 16))
}

/// What came of a body of `bytes` bytes; `None` if the head makes no sense.
pub(crate) fn ranges(head: &[u8], bytes: u64) -> Option<Ranges> {
    let count = usize::try_from(number(head, 24)).ok().filter(|&n| n <= capacity(head.len() as u64))?;
    let mut came = Ranges::new();
    let mut end = 0;
    for at in (0..count).map(|index| FIXED + index * A_RANGE) {
        let range = Range::new(number(head, at), number(head, at + 8));
        if range.start < end || range.is_empty() || range.end > bytes {
            return None;
        }
        end = range.end;
        came.insert(range);
    }
    Some(came)
}

fn number(head: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(bytes)
}
