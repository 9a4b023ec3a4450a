//! Reads and writes TCP options: maximum segment size (RFC 9293 section 3.2), window scale and timestamps
//! (RFC 7323), SACK (RFC 2018) and D-SACK (RFC 2883). The reader skips all others.

const END: u8 = 0;
const PAD: u8 = 1;
const SEGMENT: u8 = 2;
const SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const STAMPS: u8 = 8;
/// Maximum number of bytes of options in a TCP header.
pub(super) const MOST: usize = 40;
/// Maximum number of blocks in a SACK option.
const BLOCKS: usize = 4;

/// The options of a segment from the peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Maximum segment size (MSS) that the peer accepts.
    pub segment: Option<u16>,
    /// Shift of the peer's window field. More than 14 counts as 14 (RFC 7323 section 2.3).
    pub scale: Option<u8>,
    pub sack: bool,
    /// TSval and TSecr.
    pub stamps: Option<(u32, u32)>,
    /// SACK blocks: each has its first sequence number, and one past its last.
    pub blocks: [Option<(u32, u32)>; BLOCKS],
}

impl Options {
    /// Reads the options. An impossible length ends the list, as in other TCP implementations.
    pub fn read(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind == END {
                break;
            }
            if kind == PAD {
                bytes = rest;
                continue;
            }
            let Some(&length) = rest.first() else { break };
            let length = usize::from(length);
            if length < 2 || length > bytes.len() {
                break;
            }
            let (option, rest) = bytes.split_at(length);
            bytes = rest;
            match (kind, &option[2..]) {
                (SEGMENT, &[a, b]) => options.segment = Some(u16::from_be_bytes([a, b])),
                (SCALE, &[shift]) => options.scale = Some(shift.min(14)),
                (SACK_PERMITTED, []) => options.sack = true,
                (STAMPS, &[a, b, c, d, e, f, g, h]) => {
                    let stamps = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
                    options.stamps = Some(stamps);
                }
                (SACK, blocks) => {
                    for (place, block) in options.blocks.iter_mut().zip(blocks.chunks_exact(8)) {
                        *place = Some((word(&block[..4]), word(&block[4..])));
                    }
                }
                _ => {}
            }
        }
        options
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// Options to send. [`Self::bytes`] pads them to whole 32-bit words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    bytes: [u8; MOST],
    length: usize,
}

impl Written {
    pub fn new() -> Self {
        Self { bytes: [PAD; MOST], length: 0 }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.next_multiple_of(4).min(MOST)]
    }

    pub fn segment(&mut self, size: u16) {
        let [a, b] = size.to_be_bytes();
        self.put(&[SEGMENT, 4, a, b]);
    }

    pub fn scale(&mut self, shift: u8) {
        self.put(&[PAD, SCALE, 3, shift]);
    }

    pub fn sack_permitted(&mut self) {
        self.put(&[PAD, PAD, SACK_PERMITTED, 2]);
    }

    pub fn stamps(&mut self, value: u32, echo: u32) {
        let (v, e) = (value.to_be_bytes(), echo.to_be_bytes());
        self.put(&[PAD, PAD, STAMPS, 10, v[0], v[1], v[2], v[3], e[0], e[1], e[2], e[3]]);
    }

    /// Number of SACK blocks that still fit.
    pub fn room_for_blocks(&self) -> usize {
        (MOST - self.length).saturating_sub(4) / 8
    }

    /// Adds as many blocks as fit.
    pub fn blocks(&mut self, blocks: &[(u32, u32)]) {
        let count = blocks.len().min(self.room_for_blocks());
        if count == 0 {
            return;
        }
        self.put(&[PAD, PAD, SACK, 2 + 8 * count as u8]);
        for (start, end) in &blocks[..count] {
            self.put(&start.to_be_bytes());
            self.put(&end.to_be_bytes());
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if let Some(place) = self.bytes.get_mut(self.length..end) {
            place.copy_from_slice(bytes);
            self.length = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut written = Written::new();
        written.segment(1460);
        written.sack_permitted();
        written.stamps(7, 0xffff_ffff);
        written.scale(10);
        let stamps = Some((7, u32::MAX));
        let expected =
            Options { segment: Some(1460), scale: Some(10), sack: true, stamps, ..Options::default() };
        assert_eq!(Options::read(written.bytes()), expected);
        assert_eq!(written.bytes().len() % 4, 0);
    }

    #[test]
    fn blocks_are_read_and_half_of_one_is_not() {
        let mut written = Written::new();
        written.blocks(&[(1, 2), (u32::MAX, 3)]);
        let blocks = [Some((1, 2)), Some((u32::MAX, 3)), None, None];
        assert_eq!(Options::read(written.bytes()).blocks, blocks);
        let cut = [SACK, 14, 0, 0, 0, 1, 0, 0, 0, 2, 9, 9, 9, 9];
        assert_eq!(Options::read(&cut).blocks, [Some((1, 2)), None, None, None]);
        assert_eq!(Options::read(&[SACK, 40]).blocks, [None; 4], "longer than what there is");
    }

    #[test]
    fn three_blocks_fit_beside_timestamps_and_four_without() {
        let mut written = Written::new();
        assert_eq!(written.room_for_blocks(), 4);
        written.stamps(1, 2);
        assert_eq!(written.room_for_blocks(), 3);
        written.blocks(&[(1, 2); 9]);
        assert_eq!(written.bytes().len(), 12 + 4 + 24);
    }

    #[test]
    fn false_lengths_end_the_list() {
        for bytes in [&[2, 0][..], &[2, 1, 1], &[2, 9, 1], &[2], &[3, 3, 200, 8, 11], &[0, 2, 4, 1, 1]] {
            let options = Options::read(bytes);
            assert!(options.segment.is_none() && options.scale.is_none_or(|s| s == 14), "{bytes:?}");
        }
    }
}
