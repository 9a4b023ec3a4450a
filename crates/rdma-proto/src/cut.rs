//! How an update is cut into pieces: FedRDMA's cuts (sections 3.1, 3.2 and 4), and an adaptive length.

use thalweg_wire::Range;

use crate::Time;

/// Longest piece of an adaptive cut, and the length of FedRDMA's pieces (section 4.1).
pub const MOST_PIECE: u64 = 4 << 20;
/// An update shorter than this gets no Link-Enable piece, the small piece that FedRDMA sends first (section 4.3).
pub const LINK_ENABLED: u64 = 2 << 20;
/// Bytes of FedRDMA's header, which counts as data when an update is cut.
pub const HEADER: u64 = 64;
/// First and shortest piece of an adaptive cut.
const FIRST: u64 = 256 << 10;
const LEAST: u64 = 64 << 10;
/// A piece that takes the path less time than this is too short: work requests would cost more than they are
/// worth. The next one is longer.
const SHORT: Time = Time::from_micros(100);

/// How an update is cut into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The length adapts to the path: see [`Size`].
    Adaptive,
    /// FedRDMA-E: pieces of fixed length, from the last to the first (section 3.2). With Link-Enable a small
    /// piece leaves before all others of a long update (section 4.3).
    Fixed {
        /// Bytes of a piece.
        piece: u64,
        /// Bytes of the Link-Enable piece; `None` for none.
        link_enable: Option<u64>,
    },
    /// FedRDMA's first version (section 3.1): pieces of fixed length, from the first to the last. The header
    /// of each piece does not count.
    Forward {
        /// Bytes of a piece.
        piece: u64,
        /// Bytes of the Link-Enable piece; `None` for none.
        link_enable: Option<u64>,
    },
    /// One piece.
    Whole,
}

/// Length of the next piece of an adaptive cut, in bytes.
#[derive(Debug)]
pub(crate) struct Size(u64);

impl Size {
    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0
    }

    /// A piece has arrived in time. `pace` is the path's rate in bytes per second.
    pub(crate) fn in_time(&mut self, pace: f64) {
        if pace * SHORT.as_secs_f64() > self.0 as f64 {
            self.0 = (2 * self.0).min(MOST_PIECE);
        }
    }

    /// A piece was so late that the device must have retransmitted it. A shorter piece loses less.
    pub(crate) fn late(&mut self) {
        self.0 = (self.0 / 2).max(LEAST);
    }
}

/// The ranges of an update of `length` bytes, in the order in which they are sent. An adaptive cut is one
/// range here; [`Mover`](crate::Mover) splits it later.
///
/// FedRDMA's pieces end at multiples of their length, counted from the start of the header. The data is
/// contiguous at the receiver, because each piece has its own place there.
pub fn cut(length: u64, how: Cut) -> Vec<Range> {
    let (piece, link_enable) = match how {
        Cut::Fixed { piece, link_enable } => (piece.max(HEADER + 1), link_enable),
        Cut::Forward { piece, link_enable } => return forward(length, piece.max(1), link_enable),
        Cut::Adaptive | Cut::Whole => return forward(length, u64::MAX, None),
    };
    let (mut pieces, mut start) = (Vec::new(), 0);
    while start < length {
        let end = ((start + HEADER) / piece + 1).saturating_mul(piece).saturating_sub(HEADER).min(length);
        pieces.push(Range::new(start, end));
        start = end;
    }
    pieces.reverse();
    if let Some(small) = link_enable.filter(|_| length >= LINK_ENABLED) {
        enable(&mut pieces, small.max(1));
    }
    pieces
}

fn forward(length: u64, piece: u64, link_enable: Option<u64>) -> Vec<Range> {
    let (mut pieces, mut start) = (Vec::new(), 0);
    if let Some(small) = link_enable.filter(|&small| length >= LINK_ENABLED && small > 0 && small < piece) {
        pieces.push(Range::new(0, small));
        start = small;
    }
    while start < length {
        let end = start.saturating_add(piece).min(length);
        pieces.push(Range::new(start, end));
        start = end;
    }
    pieces
}

/// Splits the Link-Enable piece off the first piece that is longer, and puts it in front.
fn enable(pieces: &mut Vec<Range>, small: u64) {
    if let Some(first) = pieces.iter_mut().find(|piece| piece.len() > small) {
        let at = first.end - small;
        let enable = Range::new(at, first.end);
        first.end = at;
        pieces.insert(0, enable);
    }
}

/// How many chunks FedRDMA counts for an update (table 3): the pieces of header and data, a Link-Enable chunk
/// from 2 MiB on, and the header's own chunk if there are several pieces.
pub fn count(length: u64, piece: u64, link_enable: Option<u64>) -> u64 {
    let base = (length + HEADER).div_ceil(piece.max(1));
    let enabled = u64::from(link_enable.is_some() && length >= LINK_ENABLED);
    base + enabled + u64::from(enabled == 1 && base > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MTU: Option<u64> = Some(4096);

    /// The paper's update sizes in MiB for LoRA ranks from 4 to 1024, and its numbers of chunks.
    #[test]
    fn counts_are_those_of_table_3() {
        let rows = [(1.1, 1), (2.3, 2), (4.5, 4), (9.0, 5), (18.0, 7), (36.0, 12), (72.0, 21), (144.0, 39)];
        for (mib, chunks) in rows.into_iter().chain([(288.0, 75)]) {
            let bytes = (mib * f64::from(1 << 20)) as u64;
            assert_eq!(count(bytes, MOST_PIECE, MTU), chunks, "{mib} MiB");
            // This implementation posts the pieces, and the commit record as a write of its own.
            let pieces = cut(bytes, Cut::Fixed { piece: MOST_PIECE, link_enable: MTU }).len() as u64;
            assert!(pieces + 1 == chunks || pieces == chunks, "{mib} MiB: {pieces} pieces");
        }
    }

    #[test]
    fn fedrdma_begins_small_and_goes_from_the_last_piece_to_the_first() {
        let length = 10 << 20;
        let pieces = cut(length, Cut::Fixed { piece: 4 << 20, link_enable: MTU });
        assert_eq!(pieces[0], Range::new(length - 4096, length));
        assert!(pieces.windows(2).all(|two| two[1].end == two[0].start));
        assert_eq!((pieces[3], pieces.len()), (Range::new(0, (4 << 20) - 64), 4));
        assert_eq!(cut(length, Cut::Whole), [Range::new(0, length)]);
        assert!([Cut::Whole, Cut::Fixed { piece: 4096, link_enable: MTU }, Cut::Adaptive]
            .into_iter()
            .all(|how| cut(0, how).is_empty()));
    }

    #[test]
    fn pieces_follow_the_pace_within_their_bounds() {
        let mut size = Size::new();
        size.in_time(1.25e9);
        assert_eq!(size.bytes(), FIRST, "10 Gbit/s: 210 us a piece");
        (0..9).for_each(|_| size.in_time(1.25e11));
        assert_eq!(size.bytes(), MOST_PIECE);
        (0..9).for_each(|_| size.late());
        assert_eq!(size.bytes(), LEAST);
    }

    proptest! {
        /// In every mode, each byte is in one piece, no piece is too long or empty, and their number follows
        /// the formula.
        #[test]
        fn pieces_are_all_of_an_update_and_as_many_as_the_formula_says(
            length in 1_u64..40_000_000,
            piece in 4_096_u64..5_000_000,
            small in prop::option::of(1_u64..8_192),
        ) {
            let modes = [
                Cut::Fixed { piece, link_enable: small },
                Cut::Forward { piece, link_enable: small },
                Cut::Whole,
                Cut::Adaptive,
            ];
            for how in modes {
                let mut pieces = cut(length, how);
                let number = pieces.len() as u64;
                let enabled = u64::from(small.is_some() && length >= LINK_ENABLED);
                match how {
                    Cut::Fixed { .. } => {
                        // With several pieces the formula counts the header's own chunk. Here that is the
                        // commit record.
                        let counted = count(length, piece, small);
                        prop_assert!(counted == number || counted == number + 1, "{counted} for {number}");
                        prop_assert!(pieces[usize::from(enabled == 1)..].windows(2).all(|two| two[0].start >= two[1].end));
                        prop_assert!(pieces.iter().all(|range| range.len() <= piece));
                    }
                    Cut::Forward { .. } => {
                        let first = small.filter(|&small| enabled == 1 && small < piece).unwrap_or(0);
                        prop_assert_eq!(number, (length - first).div_ceil(piece) + u64::from(first > 0));
                        prop_assert!(pieces.windows(2).all(|two| two[0].end == two[1].start));
                        prop_assert!(pieces.iter().all(|range| range.len() <= piece));
                    }
                    Cut::Whole | Cut::Adaptive => prop_assert_eq!(number, 1),
                }
                pieces.sort_unstable();
                prop_assert!(pieces.iter().all(|range| !range.is_empty()));
                prop_assert_eq!((pieces[0].start, pieces.last().map(|range| range.end)), (0, Some(length)));
                prop_assert!(pieces.windows(2).all(|two| two[0].end == two[1].start));
            }
        }
    }

    /// Table 3 without FedRDMA-E's additions: the first version sends as many chunks as there are pieces of 4
    /// MiB.
    #[test]
    fn the_first_version_sends_as_many_pieces_as_fit() {
        for (mib, pieces) in [(1.1, 1), (4.5, 2), (36.0, 9), (144.0, 36), (288.0, 72)] {
            let bytes = (mib * f64::from(1 << 20)) as u64;
            assert_eq!(cut(bytes, Cut::Forward { piece: MOST_PIECE, link_enable: None }).len(), pieces);
            let enabled = usize::from(bytes >= LINK_ENABLED);
            let forward = cut(bytes, Cut::Forward { piece: MOST_PIECE, link_enable: MTU });
            assert_eq!(forward.len(), pieces + enabled, "{mib} MiB");
        }
    }
}
