//! What no fuzzer would find.

use thalweg_wire::{checksum, HEADER_BYTES};

/// Bytes whose frame header, at `at`, has the checksum that it must have.
pub fn fitted(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    if let Some(header) = bytes.get_mut(at..at + HEADER_BYTES) {
        let (checked, sum) = header.split_at_mut(HEADER_BYTES - 4);
        sum.copy_from_slice(&checksum(checked).to_le_bytes());
    }
    bytes
}
