//! Converts between sequence numbers and stream offsets. Sequence numbers wrap at 32 bits on the wire (RFC
//! 9293 section 3.4). This crate uses 64-bit stream offsets.

/// Whether `a` is before `b` modulo 2^32. It compares sequence numbers, and timestamps (RFC 7323 section
/// 5.2).
pub(super) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The stream offset of `sequence` that is nearest to the offset `near`. `base` is the sequence number of the
/// offset 0. A negative result lies before the stream.
pub(super) fn offset(sequence: u32, base: u32, near: u64) -> i64 {
    let distance = sequence.wrapping_sub(base).wrapping_sub(near as u32) as i32;
    near as i64 + i64::from(distance)
}

/// The sequence number of a stream offset.
pub(super) fn number(base: u32, offset: u64) -> u32 {
    base.wrapping_add(offset as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_and_offsets_do_not() {
        for near in [0, 1_u64 << 31, (1 << 32) - 1, 1 << 32, 5 << 32] {
            for distance in [0_i64, 1, 70_000, -1, (1 << 31) - 1, -(1 << 31)] {
                let meant = near as i64 + distance;
                let sequence = 0xffff_fff0_u32.wrapping_add(meant as u32);
                assert_eq!(offset(sequence, 0xffff_fff0, near), meant);
            }
        }
        assert!(before(0xffff_ffff, 0) && !before(0, 0) && !before(5, 4));
        assert_eq!(number(0xffff_fff0, (1 << 32) + 0x10), 0);
    }
}
