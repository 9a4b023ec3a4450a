//! The messages between the two ends of forwarded TCP streams, and the place of a chunk in a stream.
//!
//! One link carries many streams. The near end, which accepts the programs' connections, opens them. Bytes
//! travel as chunks; a chunk's offset holds the stream's number and the position in the stream. Everything
//! else is a message. Positions count the bytes of one direction from the start of the stream.

use serde::{Deserialize, Serialize};

use crate::{text, Ranges};

/// Bits of a chunk's offset that hold the position in its stream. The bits above hold the stream's number.
const POSITION_BITS: u32 = 40;
const POSITION: u64 = (1 << POSITION_BITS) - 1;
/// Stream numbers are less than this.
pub const MOST_STREAMS: u32 = 1 << (64 - POSITION_BITS);
/// Maximum number of bytes of one direction of a stream that may be granted and not yet used.
pub const MOST_WINDOW: u64 = 1 << 30;

/// A message between the two ends of forwarded streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Forward {
    /// Far end: it has let the near end in.
    Ready {
        /// Bytes that the far end buffers for each stream.
        window: u64,
        /// Maximum number of streams that may be open at once.
        streams: u32,
        /// Silence for this long ends the link, in microseconds.
        liveness: u64,
    },
    /// Near end: a program has connected. The far end connects to its target, or answers with
    /// [`Forward::Reset`].
    Open {
        /// The number of the new stream.
        stream: u32,
        /// Bytes of the stream that the near end buffers; all of them are granted now.
        window: u64,
    },
    /// Receiver of a direction: what it has received, and how far the sender may send.
    Credit {
        /// The stream's number.
        stream: u32,
        /// All bytes before this position have arrived.
        received: u64,
        /// The sender may send bytes before this position.
        limit: u64,
    },
    /// Sender of a direction, over a link that loses chunks: it has sent all bytes before a position.
    Sent {
        /// The stream's number.
        stream: u32,
        /// The position after the last byte sent.
        end: u64,
    },
    /// Receiver of a direction: these ranges were sent and did not arrive. At most
    /// [`crate::control::MAX_HOLES`] ranges.
    Missing {
        /// The stream's number.
        stream: u32,
        /// The ranges to send again.
        wanted: Ranges,
    },
    /// Sender of a direction: its program has ended this direction. The other direction goes on.
    End {
        /// The stream's number.
        stream: u32,
        /// Bytes of the whole direction.
        end: u64,
    },
    /// Either end: the stream has ended in both directions, because of an error.
    Reset {
        /// The stream's number.
        stream: u32,
        /// Why, for the user.
        #[serde(deserialize_with = "text::reason")]
        reason: String,
    },
}

/// The offset of a chunk that begins at `position` of `stream`. `stream` must be less than [`MOST_STREAMS`].
pub fn offset(stream: u32, position: u64) -> u64 {
    u64::from(stream) << POSITION_BITS | position & POSITION
}

/// The stream's number in a chunk's offset.
pub fn stream_of(offset: u64) -> u32 {
    u32::try_from(offset >> POSITION_BITS).unwrap_or_default()
}

/// The position in a chunk's offset. The offset holds only the position's low bits; the result is the
/// position with these bits that is closest to `about`. `None` if that would be negative or too large.
pub fn position_of(offset: u64, about: u64) -> Option<u64> {
    let (low, half) = (offset & POSITION, 1 << (POSITION_BITS - 1));
    let same = (about & !POSITION) | low;
    if same > about.saturating_add(half) {
        return same.checked_sub(POSITION + 1);
    }
    if about > same.saturating_add(half) {
        return same.checked_add(POSITION + 1);
    }
    Some(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_chunk_finds_its_place(stream in 0..MOST_STREAMS, about in 0..u64::MAX / 2, ahead in 0..MOST_WINDOW, behind in 0..MOST_WINDOW) {
            for position in [about + ahead, about.saturating_sub(behind)] {
                let offset = offset(stream, position);
                prop_assert_eq!(stream_of(offset), stream);
                prop_assert_eq!(position_of(offset, about), Some(position));
            }
        }
    }

    #[test]
    fn there_is_no_place_before_the_begin() {
        assert_eq!(position_of(offset(3, POSITION), 0), None);
        assert_eq!(position_of(offset(3, 7), POSITION), Some(POSITION + 8));
    }
}
