//! Reports how much of an update has arrived, for layers whose chunks have another length on the wire.

/// Counts the bytes that are reported to the sink as progress. The final length of a chunk is not known while
/// it arrives, so at most its minimum length is reported. The rest is reported when it has arrived.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    begun: u64,
    done: u64,
    reported: u64,
}

impl Progress {
    /// Counts a chunk that begins to arrive. It will have at least `bytes` bytes after it is opened and
    /// decompressed.
    pub fn begin(&mut self, bytes: u64) {
        self.begun += bytes;
    }

    /// Counts `bytes` more bytes of a chunk, as they arrive on the wire. Returns how many bytes to report to
    /// the sink.
    pub fn arrived(&mut self, bytes: u64) -> u64 {
        let fresh = bytes.min(self.begun.saturating_sub(self.reported));
        self.reported += fresh;
        fresh
    }

    /// Counts a chunk that has arrived, with `bytes` bytes after it was opened and decompressed. Returns how
    /// many bytes to report to the sink.
    pub fn finished(&mut self, bytes: u64) -> u64 {
        self.done += bytes;
        let fresh = self.done.saturating_sub(self.reported);
        self.reported += fresh;
        fresh
    }
}
