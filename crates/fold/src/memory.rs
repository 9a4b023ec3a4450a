//! The memory that the sums of one stripe lie in.

use zerocopy::IntoBytes;

/// Bytes, the first of which has an address that is a multiple of 8.
#[derive(Debug)]
pub(crate) struct Memory(Vec<u64>);

impl Memory {
    /// Zeroed pages that the kernel hands out on first touch, so the first round is slower than the next ones. Huge
    /// pages would help, but asking for them takes an allocator of one's own, and with it unsafe code.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(8)])
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

/// Whether numbers of up to 8 bytes can be read at the first byte's address.
pub(crate) fn is_aligned(bytes: &[u8]) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(8)
}
