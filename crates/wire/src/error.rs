//! What can be wrong with bytes or with a layout.

use thiserror::Error;

/// A frame, message or layout that cannot be accepted; each variant names what was wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WireError {
    /// Fewer bytes than the structure needs.
    #[error("truncated: {needed} bytes needed, {found} there")]
    Truncated {
        /// Bytes the structure needs.
        needed: usize,
        /// Bytes there are.
        found: usize,
    },
    /// The first four bytes are not a thalweg frame's.
    #[error("not a thalweg frame (magic {0:02x?}); is the peer another program?")]
    Magic([u8; 4]),
    /// A frame of a version this build does not read.
    #[error("frame version {found}, this build reads {supported}; use the same release at both ends")]
    Version {
        /// Version in the frame.
        found: u8,
        /// Version this build reads.
        supported: u8,
    },
    /// An unknown kind of frame.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// A length over the limit for its kind.
    #[error("length {length} is over the limit of {limit} bytes for this kind of frame")]
    Length {
        /// Length the header states.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// The header's own checksum does not match.
    #[error("header checksum {found:08x}, computed {computed:08x}: the header is corrupt")]
    HeaderChecksum {
        /// In the frame.
        found: u32,
        /// Computed here.
        computed: u32,
    },
    /// The payload's checksum does not match.
    #[error("payload checksum {found:08x}, computed {computed:08x}: the payload is corrupt")]
    PayloadChecksum {
        /// In the frame.
        found: u32,
        /// Computed here.
        computed: u32,
    },
    /// A sealed payload that does not open.
    #[error("sealed payload: {0}")]
    Sealed(String),
    /// A control message that does not decode.
    #[error("control message does not decode: {0}")]
    Message(String),
    /// A layout that is not one.
    #[error("layout: {0}")]
    Layout(String),
}
