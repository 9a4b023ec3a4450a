//! The configuration and the events of [`super::Mux`].

use crate::Time;

/// The settings of a link, which never change.
#[derive(Debug, Clone, Copy)]
pub struct ForwardConfig {
    /// Bytes that this end buffers for each direction of a stream.
    pub window: u64,
    /// Bytes that the near end may send on a new stream before the other end has answered. The other end
    /// buffers as many. 0 at the far end, and where chunks may overtake messages.
    pub granted: u64,
    /// Maximum number of streams that may be open at once.
    pub streams: u32,
    /// Maximum number of bytes of a chunk.
    pub chunk: u32,
    /// Whether every chunk arrives, so that none needs to be sent again.
    pub reliable: bool,
    /// Silence of the peer for this long, or longer on a slow link, ends the link.
    pub liveness: Time,
}

/// An event that the driver must handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardEvent {
    /// Far end: connect this stream to the target.
    Opened(u32),
    /// Bytes, or the end, are ready for this stream's program.
    Readable(u32),
    /// The stream can take bytes of its program again.
    Writable(u32),
    /// The peer has reset the stream, for this reason: reset the program's connection.
    Reset(u32, String),
}

/// The result of [`super::Mux::take`], for a stream's program.
#[derive(Debug, PartialEq, Eq)]
pub enum Fetched {
    /// These bytes. Call [`super::Mux::took`] when the program has them.
    Bytes(Vec<u8>),
    /// The end of the stream.
    End,
    /// No bytes yet.
    Nothing,
    /// The stream does not exist any more.
    Gone,
}

/// Chunks that are sent in one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Offset and length of each chunk.
    pub chunks: Vec<(u64, u32)>,
    /// The bytes of all chunks, one after the other.
    pub bytes: Vec<u8>,
    /// The streams whose chunks it has.
    pub(super) streams: Vec<u32>,
}
