//! Marks: each frame says how many frames of the other kind were sent before it.
//!
//! Marks are needed because streams overtake each other. A message's mark is the number of chunk streams that
//! had ended before it; the message is delivered when all of them have arrived. A chunk's mark is the number
//! of messages that were sent before it; the chunk is received when the session has got all of them.

use thalweg_wire::HEADER_BYTES;

/// Bytes of a mark: a number, big-endian.
pub(crate) const MARK_BYTES: usize = 8;
/// Bytes before a frame's payload: the mark and the frame's header.
pub(crate) const HEAD_BYTES: usize = MARK_BYTES + HEADER_BYTES;

/// The bytes before a frame's payload.
pub(crate) fn head(mark: u64, header: &[u8; HEADER_BYTES]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..MARK_BYTES].copy_from_slice(&mark.to_be_bytes());
    head[MARK_BYTES..].copy_from_slice(header);
    head
}

/// The mark, and the bytes of the frame's header.
pub(crate) fn split(head: &[u8; HEAD_BYTES]) -> (u64, &[u8]) {
    let (mark, header) = head.split_at(MARK_BYTES);
    (mark.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)), header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_split_as_it_was_made() {
        let header = std::array::from_fn(|i| i as u8);
        for mark in [0, 1, 0x0102_0304_0506_0708, u64::MAX] {
            let head = head(mark, &header);
            assert_eq!(split(&head), (mark, &header[..]));
        }
    }
}
