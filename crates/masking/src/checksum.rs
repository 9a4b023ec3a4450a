//! The Internet checksum (RFC 1071), and the pseudo-header that TCP's checksum covers (RFC 9293 section 3.1,
//! RFC 8200 section 8.1).

use super::Address;

/// Sums the bytes as 32-bit words; missing bytes at the end count as zero. [`fold`] reduces the sum to 16
/// bits.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    // Sums of 32-bit words fold to the same value as sums of 16-bit words (RFC 1071 section 2), for half the
    // work.
    let words = bytes.chunks_exact(4);
    let mut rest = [0; 4];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    let all: u64 = words.map(|w| u64::from(u32::from_be_bytes([w[0], w[1], w[2], w[3]]))).sum();
    all + u64::from(u32::from_be_bytes(rest))
}

/// Folds a sum to the 16-bit ones' complement sum, not inverted.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of the pseudo-header: addresses, protocol (TCP) and `length`, the bytes of the TCP segment.
pub(super) fn pseudo(from: &Address, to: &Address, length: usize) -> u64 {
    let address = |address: &Address| match address {
        Address::V4(bytes) => sum(bytes),
        Address::V6(bytes) => sum(bytes),
    };
    address(from) + address(to) + 6 + length as u64
}
