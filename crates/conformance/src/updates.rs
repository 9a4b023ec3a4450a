//! Updates to send: arenas with a recognisable content.

use thalweg_arena::Arena;
use thalweg_transport::{Cancel, Outgoing, UpdateId};
use thalweg_wire::{LayoutHash, Ranges};

/// Fills an arena of `bytes` bytes so that no two blocks of 8 bytes, nor two seeds, look alike.
///
/// # Panics
/// Without memory.
pub fn pattern(bytes: u64, seed: u64) -> Arena {
    let arena = Arena::new(bytes).unwrap();
    refill(&arena, seed);
    arena
}

/// As [`pattern`], in memory that other processes can map, where the system has such.
///
/// # Panics
/// Without memory.
pub fn shared_pattern(bytes: u64, seed: u64) -> Arena {
    #[cfg(target_os = "linux")]
    let arena = Arena::shared(bytes, thalweg_arena::Access::Read).unwrap();
    #[cfg(not(target_os = "linux"))]
    let arena = Arena::new(bytes).unwrap();
    refill(&arena, seed);
    arena
}

/// Writes the pattern of `seed` into an arena that nobody holds.
pub(crate) fn refill(arena: &Arena, seed: u64) {
    let mut claim = arena.claim(arena.range()).unwrap();
    let mut word = seed;
    for block in claim.chunks_mut(8) {
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15); // odd, so that all words differ
        let mixed = (word ^ (word >> 29)).to_le_bytes();
        block.copy_from_slice(&mixed[..block.len()]);
    }
}

/// The update of `round` in every test that does not care.
pub fn update_id(round: u32) -> UpdateId {
    UpdateId { job: 0x0102_0304_0506_0708, round, sender: 7, layout: LayoutHash(0x1112_1314_1516_1718) }
}

/// All of an arena as an update in chunks of `chunk` bytes.
///
/// # Panics
/// If part of the arena is being written.
pub fn outgoing(arena: &Arena, id: UpdateId, chunk: u32) -> Outgoing {
    let bytes = arena.lend(arena.range()).unwrap();
    Outgoing::new(id, bytes, &Ranges::full(arena.len()), chunk, Cancel::default())
}
