//! Reports how much of an update has arrived, for layers whose chunks have another length on the wire.

/// How much the sink was told of. While a chunk is arriving, that is never more than it has at least. When it
/// has arrived, it is all of it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    begun: u64,
    done: u64,
    told: u64,
}

impl Progress {
    /// A chunk has begun. It has at least `bytes` plain bytes.
    pub fn begin(&mut self, bytes: u64) {
        self.begun += bytes;
    }

    /// `bytes` more bytes of a chunk have arrived. Returns how many to report to the sink.
    pub fn arrived(&mut self, bytes: u64) -> u64 {
        let fresh = bytes.min(self.begun.saturating_sub(self.told));
        self.told += fresh;
        fresh
    }

    /// A chunk of `bytes` plain bytes has arrived. Returns how many to report to the sink.
    pub fn finished(&mut self, bytes: u64) -> u64 {
        self.done += bytes;
        let fresh = self.done.saturating_sub(self.told);
        self.told += fresh;
        fresh
    }
}
