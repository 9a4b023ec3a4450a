//! What the two ends of a forwarded TCP connection say to each other, and how a chunk names its place in a stream.
//!
//! One link carries many streams. The end that accepts programs' connections, the near end, opens them. Bytes travel
//! as chunks whose offset holds the stream's number and the position in the stream; everything else is a message.
//! Positions count bytes from the begin of a stream, in each direction by itself.

use serde::{Deserialize, Serialize};

use crate::{text, Ranges};

/// Bits of a chunk's offset that are the position in its stream; those above are the stream's number.
const POSITION_BITS: u32 = 40;
const POSITION: u64 = (1 << POSITION_BITS) - 1;
/// Streams are numbered from 0 to one below this.
pub const MOST_STREAMS: u32 = 1 << (64 - POSITION_BITS);
/// Most bytes of one direction of a stream that may be granted and not yet be used.
pub const MOST_WINDOW: u64 = 1 << 30;

/// A message between the two ends of forwarded streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Forward {
    /// Far end: the near end is let in.
    Ready {
        /// Bytes of each stream that the far end buffers.
        window: u64,
        /// Streams there may be at a time.
        streams: u32,
        /// Microseconds of silence that end the link.
        liveness: u64,
    },
    /// Near end: a program has connected. The far end connects to its target, or says [`Forward::Reset`].
    Open {
        /// The new stream.
        stream: u32,
        /// Bytes of the stream that the near end buffers, all granted now.
        window: u64,
    },
    /// Receiver of a direction: this much has come, and this much may be sent in all.
    Credit {
        /// The stream.
        stream: u32,
        /// Everything before this position is here.
        received: u64,
        /// Nothing from this position on may be sent yet.
        limit: u64,
    },
    /// Sender of a direction, over a link that loses chunks: all before this position has been sent.
    Sent {
        /// The stream.
        stream: u32,
        /// One past the last byte sent.
        end: u64,
    },
    /// Receiver of a direction: of what was sent, this did not come. At most [`crate::control::MAX_HOLES`] ranges.
    Missing {
        /// The stream.
        stream: u32,
        /// What is to be sent again.
        wanted: Ranges,
    },
    /// Sender of a direction: its program has ended this direction. The other direction goes on.
    End {
        /// The stream.
        stream: u32,
        /// Bytes of the direction in all.
        end: u64,
    },
    /// Either: the stream is over in both directions, and not well.
    Reset {
        /// The stream.
        stream: u32,
        /// Why, for a person.
        #[serde(deserialize_with = "text::reason")]
        reason: String,
    },
}

/// The offset of a chunk that begins at `position` of `stream`, a number below [`MOST_STREAMS`].
pub fn offset(stream: u32, position: u64) -> u64 {
    u64::from(stream) << POSITION_BITS | position & POSITION
}

/// The stream of a chunk, by its offset.
pub fn stream_of(offset: u64) -> u32 {
    u32::try_from(offset >> POSITION_BITS).unwrap_or_default()
}

/// The position of a chunk by its offset, which has only the low bits of it: of all positions with these bits the one
/// next to `about`. `None` if there is none.
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
