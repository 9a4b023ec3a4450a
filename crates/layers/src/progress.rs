//! How much of an update has come, for layers whose chunks have another length on the wire.

/// How much of it the sink has been told of: all of it once a chunk is there, and meanwhile no more.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    begun: u64,
    done: u64,
    told: u64,
}

impl Progress {
    /// A chunk has begun that holds at least so much.
    pub fn begin(&mut self, bytes: u64) {
        self.begun += bytes;
    }

    /// So much of it has come; how much to tell of.
    pub fn arrived(&mut self, bytes: u64) -> u64 {
        let fresh = bytes.min(self.begun.saturating_sub(self.told));
        self.told += fresh;
        fresh
    }

    /// A chunk that holds so much is there; how much to tell of.
    pub fn finished(&mut self, bytes: u64) -> u64 {
        self.done += bytes;
        let fresh = self.done.saturating_sub(self.told);
        self.told += fresh;
        fresh
    }
}
