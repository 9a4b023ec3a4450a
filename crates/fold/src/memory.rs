//! The memory of the sums of one stripe. It is the accumulator's own, or lent by the caller.

use std::ops::DerefMut;

use zerocopy::IntoBytes;

use crate::FoldError;

#[cfg(target_endian = "big")]
compile_error!("sums are exported as they lie in memory, little-endian");

/// Memory that a caller lends to an accumulator for the sums of a stripe. Each call of `deref` must return
/// the same bytes.
pub type LentMemory = Box<dyn DerefMut<Target = [u8]> + Send>;

/// Bytes whose address is a multiple of 8.
pub(crate) enum Memory {
    Own(Vec<u64>),
    Lent(LentMemory),
}

impl Memory {
    /// Zeroed memory of the accumulator. The kernel maps each page at its first use, so the first round is
    /// slower than later ones. Huge pages would help. But requesting them takes an allocator of our own, and
    /// so unsafe code.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self::Own(vec![0; bytes.div_ceil(8)])
    }

    /// Memory that a caller has lent; it must have `bytes` bytes.
    pub(crate) fn lent(piece: Option<LentMemory>, bytes: usize) -> Result<Self, FoldError> {
        let piece = piece.ok_or(FoldError::Memory { found: 0, bytes })?;
        if piece.len() != bytes {
            return Err(FoldError::Memory { found: piece.len(), bytes });
        }
        if is_aligned(&piece) {
            return Ok(Self::Lent(piece));
        }
        Err(FoldError::Misaligned)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(words) => words.as_bytes(),
            Self::Lent(piece) => piece,
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(words) => words.as_mut_bytes(),
            Self::Lent(piece) => piece,
        }
    }

    /// The same bytes at an address where numbers can be read: `bytes` itself, or a copy in this memory.
    pub(crate) fn readable<'a>(&'a mut self, bytes: &'a [u8]) -> &'a [u8] {
        if is_aligned(bytes) {
            return bytes;
        }
        if self.bytes().len() < bytes.len() {
            *self = Self::zeroed(bytes.len());
        }
        let copy = &mut self.bytes_mut()[..bytes.len()];
        copy.copy_from_slice(bytes);
        copy
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whose = if matches!(self, Self::Own(_)) { "own" } else { "lent" };
        write!(f, "Memory({} bytes, {whose})", self.bytes().len())
    }
}

/// Whether the address of the first byte is a multiple of 8.
fn is_aligned(bytes: &[u8]) -> bool {
    bytes.is_empty() || (bytes.as_ptr() as usize).is_multiple_of(8)
}
