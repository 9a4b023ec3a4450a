//! Sinks for tests, which record what a transport does.

use std::sync::Arc;
use std::time::Duration;

use thalweg_arena::{Arena, Claim};
use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, Range, Ranges, WireError};
use tokio::sync::watch;

/// Everything that a [`Recorder`] has recorded.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Number of calls of [`Sink::begun`]: a chunk has begun, and its place is requested later.
    pub begun: u64,
    /// Headers of the chunks that got a place when they arrived, in order of arrival.
    pub placed: Vec<ChunkHeader>,
    /// Headers of the chunks that got a place before they arrived.
    pub prepared: Vec<ChunkHeader>,
    /// Headers and outcomes of the stored chunks, in order.
    pub stored: Vec<(ChunkHeader, Result<(), WireError>)>,
    /// Number of chunks that got no place.
    pub refused: u64,
    /// Sum of the reported progress in bytes.
    pub progress: u64,
    /// Ranges of the update that were stored with a matching checksum.
    pub ranges: Ranges,
}

/// A sink that stores chunks in an arena and records each call. It takes no chunk twice.
pub struct Recorder {
    arena: Arena,
    scratch: bool,
    wanted: Box<dyn Fn(&ChunkHeader) -> bool + Send + Sync>,
    foreseen: Box<dyn Fn(&ChunkHeader) -> bool + Send + Sync>,
    seen: watch::Sender<Recorded>,
}

impl Recorder {
    /// Takes all chunks, into a zeroed arena of `bytes` bytes.
    ///
    /// # Panics
    /// If no memory is left.
    pub fn new(bytes: u64) -> Self {
        let seen = watch::Sender::new(Recorded::default());
        let (wanted, foreseen) = (Box::new(|_: &_| true), Box::new(|_: &_| false));
        Self { arena: Arena::new(bytes).unwrap(), scratch: false, wanted, foreseen, seen }
    }

    /// Receives into scratch buffers instead of places in the arena.
    #[must_use]
    pub fn scratch(self) -> Self {
        Self { scratch: true, ..self }
    }

    /// Takes only chunks for which `wanted` returns true.
    #[must_use]
    pub fn only(self, wanted: impl Fn(&ChunkHeader) -> bool + Send + Sync + 'static) -> Self {
        Self { wanted: Box::new(wanted), ..self }
    }

    /// Gives a place in advance to chunks for which `foreseen` returns true.
    #[must_use]
    pub fn preparing(self, foreseen: impl Fn(&ChunkHeader) -> bool + Send + Sync + 'static) -> Self {
        Self { foreseen: Box::new(foreseen), ..self }
    }

    /// Whether nobody holds a place in the arena. Blocks the thread for up to `timeout` until that is so.
    pub fn is_free(&self, timeout: Duration) -> bool {
        self.arena.claim_within(self.arena.range(), timeout).is_ok()
    }

    /// What was recorded so far.
    pub fn seen(&self) -> watch::Ref<'_, Recorded> {
        self.seen.borrow()
    }

    /// Waits until the record satisfies `condition`.
    ///
    /// # Panics
    /// Never: the recorder keeps its own sender alive.
    pub async fn until(&self, condition: impl FnMut(&Recorded) -> bool) {
        let mut seen = self.seen.subscribe();
        seen.wait_for(condition).await.unwrap();
    }

    /// The stored bytes of a range.
    ///
    /// # Panics
    /// If the range is being written.
    pub fn bytes(&self, range: Range) -> bytes::Bytes {
        self.arena.lend(range).unwrap()
    }

    /// Asserts that the stored bytes equal those of `source`, and that nothing was written elsewhere.
    ///
    /// # Panics
    /// If an assertion fails.
    pub fn check(&self, source: &Arena) {
        assert_eq!(self.arena.len(), source.len());
        let (seen, all) = (self.seen(), self.arena.range());
        let (received, sent) = (self.bytes(all), source.lend(all).unwrap());
        let at = |r: Range| r.start as usize..r.end as usize;
        for range in seen.ranges.iter() {
            assert!(received[at(range)] == sent[at(range)], "bytes {range:?} differ from those sent");
        }
        let touched: Ranges = seen.placed.iter().chain(&seen.prepared).map(ChunkHeader::range).collect();
        for range in touched.holes(all.end).iter() {
            assert!(
                received[at(range)].iter().all(|&b| b == 0),
                "bytes {range:?} were written, but never sent"
            );
        }
    }
}

impl Recorder {
    /// Whether the sink takes the chunk: it is wanted and not stored yet.
    fn takes(&self, chunk: &ChunkHeader) -> bool {
        let fresh = chunk.length == 0 || !self.seen().ranges.covers(chunk.range());
        fresh && (self.wanted)(chunk)
    }
}

impl Sink for Recorder {
    fn prepare(&self, chunk: &ChunkHeader) -> Option<Claim> {
        let claim = (self.takes(chunk) && (self.foreseen)(chunk)).then(|| self.arena.claim(chunk.range()));
        let claim = claim?.ok()?;
        self.seen.send_modify(|seen| seen.prepared.push(*chunk));
        Some(claim)
    }

    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let place = || {
            if self.scratch {
                Some(Target::Scratch(vec![0; chunk.length as usize]))
            } else {
                self.arena.claim(chunk.range()).ok().map(Target::Place)
            }
        };
        let target = self.takes(chunk).then(place).flatten();
        self.seen.send_modify(|seen| match target {
            Some(_) => seen.placed.push(*chunk),
            None => seen.refused += 1,
        });
        target
    }

    fn begun(&self, _: &ChunkHeader) {
        self.seen.send_modify(|seen| seen.begun += 1);
    }

    fn progress(&self, bytes: u64) {
        self.seen.send_modify(|seen| seen.progress += bytes);
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        if let Target::Scratch(buffer) = &target {
            self.arena.claim(chunk.range()).unwrap().copy_from_slice(buffer);
        }
        drop(target);
        self.seen.send_modify(|seen| {
            if outcome.is_ok() {
                seen.ranges.insert(chunk.range());
            }
            seen.stored.push((*chunk, outcome));
        });
    }
}

/// A sink that passes chunks of round n (from 1) to the n-th recorder.
pub struct Router(pub Vec<Arc<Recorder>>);

impl Router {
    fn of(&self, chunk: &ChunkHeader) -> Option<&Recorder> {
        self.0.get((chunk.round as usize).checked_sub(1)?).map(AsRef::as_ref)
    }
}

impl Sink for Router {
    fn prepare(&self, chunk: &ChunkHeader) -> Option<Claim> {
        self.of(chunk)?.prepare(chunk)
    }

    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        self.of(chunk)?.place(chunk)
    }

    fn begun(&self, chunk: &ChunkHeader) {
        if let Some(recorder) = self.of(chunk) {
            recorder.begun(chunk);
        }
    }

    fn progress(&self, bytes: u64) {
        self.0.iter().for_each(|recorder| recorder.progress(bytes));
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        if let Some(recorder) = self.of(chunk) {
            recorder.stored(chunk, target, outcome);
        }
    }
}
