//! Updates for tests: arenas with recognisable contents.

use thalweg_arena::Arena;
use thalweg_transport::{Cancel, Outgoing, UpdateId};
use thalweg_wire::{LayoutHash, Ranges};

/// Makes an arena of `bytes` bytes. All blocks of 8 bytes differ from each other, and so do the blocks of two
/// seeds.
///
/// # Panics
/// If no memory is left.
pub fn pattern(bytes: u64, seed: u64) -> Arena {
    let arena = Arena::new(bytes).unwrap();
    refill(&arena, seed);
    arena
}

/// Like [`pattern`], in memory that other processes can map if the system supports that.
///
/// # Panics
/// If no memory is left.
pub fn shared_pattern(bytes: u64, seed: u64) -> Arena {
    #[cfg(target_os = "linux")]
    let arena = Arena::shared(bytes, thalweg_arena::Access::Read).unwrap();
    #[cfg(not(target_os = "linux"))]
    let arena = Arena::new(bytes).unwrap();
    refill(&arena, seed);
    arena
}

/// Writes the pattern of `seed` into an arena that nobody else uses.
pub(crate) fn refill(arena: &Arena, seed: u64) {
    let mut claim = arena.claim(arena.range()).unwrap();
    let mut word = seed;
    for block in claim.chunks_mut(8) {
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15); // odd, so that all words differ
        let mixed = (word ^ (word >> 29)).to_le_bytes();
        block.copy_from_slice(&mixed[..block.len()]);
    }
}

/// The identity of the update of `round`, for tests to which the rest does not matter.
pub fn update_id(round: u32) -> UpdateId {
    UpdateId { job: 0x0102_0304_0506_0708, round, sender: 7, layout: LayoutHash(0x1112_1314_1516_1718) }
}

/// A whole arena as an update in chunks of `chunk` bytes.
///
/// # Panics
/// If part of the arena is being written.
pub fn outgoing(arena: &Arena, id: UpdateId, chunk: u32) -> Outgoing {
    let bytes = arena.lend(arena.range()).unwrap();
    Outgoing::new(id, bytes, &Ranges::full(arena.len()), chunk, Cancel::default())
}
