//! Errors in received bytes, and in layouts.

use thiserror::Error;

/// A frame, message or layout that cannot be accepted. Each variant names what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WireError {
    /// There are fewer bytes than the structure needs.
    #[error("truncated: {needed} bytes needed, {found} there")]
    Truncated {
        /// Bytes that the structure needs.
        needed: usize,
        /// Bytes that were found.
        found: usize,
    },
    /// The first four bytes are not those of a thalweg frame.
    #[error("not a thalweg frame (magic {0:02x?}); is the peer another program?")]
    Magic([u8; 4]),
    /// This build does not support the frame's version.
    #[error("frame version {found}, this build reads {supported}; use the same release at both ends")]
    Version {
        /// The version in the frame.
        found: u8,
        /// The version that this build reads.
        supported: u8,
    },
    /// The kind of frame is unknown.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The length is over the limit for this kind of frame.
    #[error("length {length} is over the limit of {limit} bytes for this kind of frame")]
    Length {
        /// The length that the header states, in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The checksum of the header does not match.
    #[error("header checksum {found:08x}, computed {computed:08x}: the header is corrupt")]
    HeaderChecksum {
        /// The checksum in the frame.
        found: u32,
        /// The checksum of the received bytes.
        computed: u32,
    },
    /// The checksum of the payload does not match.
    #[error("payload checksum {found:08x}, computed {computed:08x}: the payload is corrupt")]
    PayloadChecksum {
        /// The checksum in the frame.
        found: u32,
        /// The checksum of the received bytes.
        computed: u32,
    },
    /// A sealed payload cannot be opened.
    #[error("sealed payload: {0}")]
    Sealed(String),
    /// A control message cannot be decoded.
    #[error("control message does not decode: {0}")]
    Message(String),
    /// The layout is not valid.
    #[error("layout: {0}")]
    Layout(String),
}
