//! What a driver tells [`super::Mux`], and hears from it.

use crate::Time;

/// What does not change while a link lives.
#[derive(Debug, Clone, Copy)]
pub struct ForwardConfig {
    /// Bytes that this end buffers of each stream.
    pub window: u64,
    /// Bytes that the other end buffers of each stream before it has said anything of the stream: what the near end may
    /// send at once. 0 where chunks may overtake messages, and at the far end.
    pub granted: u64,
    /// Streams at a time.
    pub streams: u32,
    /// Most bytes of a chunk.
    pub chunk: u32,
    /// Every chunk arrives, so nothing needs to be asked for again.
    pub reliable: bool,
    /// Least seconds of silence that end the link.
    pub liveness: Time,
}

/// What the driver has to look after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardEvent {
    /// Far end: connect this stream to the target.
    Opened(u32),
    /// There are bytes, or an end, for this stream's program.
    Readable(u32),
    /// There is room for bytes of this stream's program again.
    Writable(u32),
    /// The peer has reset the stream, for this reason: reset the program's connection.
    Reset(u32, String),
}

/// What a stream has for its program.
#[derive(Debug, PartialEq, Eq)]
pub enum Fetched {
    /// These bytes; tell [`super::Mux::took`] when the program has them.
    Bytes(Vec<u8>),
    /// Nothing more, ever.
    End,
    /// Nothing yet.
    Nothing,
    /// The stream is over.
    Gone,
}

/// Chunks to be sent in one go: their offsets and lengths, and their bytes one after the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Offset and length of each chunk.
    pub chunks: Vec<(u64, u32)>,
    /// The bytes of all.
    pub bytes: Vec<u8>,
    /// The streams there are in it.
    pub(super) streams: Vec<u32>,
}
