//! An update on its way out: its bytes, and the chunks in which a link sends them, in sending order.
//! [`Cancel`] stops the senders and ends the loan of the update's memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_wire::{checksum, ChunkHeader, FrameHeader, Layout, LayoutHash, Range, Ranges};
use tokio::sync::Notify;

/// The fields that the headers of all chunks of an update have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateId {
    /// Number of the job.
    pub job: u64,
    /// Number of the round, from 1.
    pub round: u32,
    /// 0 for the server, else the client's number.
    pub sender: u32,
    /// Hash of the update's layout.
    pub layout: LayoutHash,
}

/// Tells the senders of an update to stop at once, and ends the loan of its bytes. Clones share the flag.
/// Each [`Outgoing`] has its own.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    cancelled: AtomicBool,
    notify: Notify,
    /// The loan of the arena. It is held here, so that cancelling ends it even while somebody still holds the
    /// update.
    loan: Mutex<Bytes>,
    borrowed: Arc<Borrowed>,
}

/// Counts the loans of which somebody still holds bytes.
#[derive(Debug, Default)]
struct Borrowed {
    /// Number of loans that are still held.
    loans: AtomicUsize,
    /// Notified when `loans` becomes 0.
    released: Notify,
}

/// A loan that notifies `borrowed` when its last bytes have been dropped.
struct Loan {
    bytes: Bytes,
    borrowed: Arc<Borrowed>,
}

impl Loan {
    fn watched(bytes: Bytes, borrowed: &Arc<Borrowed>) -> Bytes {
        borrowed.loans.fetch_add(1, Ordering::AcqRel);
        Bytes::from_owner(Self { bytes, borrowed: borrowed.clone() })
    }
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // Drop the bytes before the waiters are notified.
        self.bytes = Bytes::new();
        if self.borrowed.loans.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.borrowed.released.notify_waiters();
        }
    }
}

impl Cancel {
    fn loan(&self) -> MutexGuard<'_, Bytes> {
        self.0.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the loan of an update's bytes, unless the update was cancelled before.
    fn hold(&self, bytes: Bytes) {
        let mut loan = self.loan();
        if !self.is_cancelled() {
            *loan = if bytes.is_empty() { bytes } else { Loan::watched(bytes, &self.0.borrowed) };
        }
    }

    /// Stops the senders. The loan ends when they have dropped the chunks that they are sending;
    /// [`Cancel::released`] waits for that.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        *self.loan() = Bytes::new();
        self.0.notify.notify_waiters();
    }

    /// Whether the update was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Waits until nobody holds bytes of the loan any more: the update was cancelled, and the senders have
    /// dropped the chunks that they were sending. From then on the memory may be written to. Returns at once
    /// if nothing is lent.
    pub async fn released(&self) {
        let borrowed = &self.0.borrowed;
        loop {
            let released = borrowed.released.notified();
            if borrowed.loans.load(Ordering::Acquire) == 0 {
                return;
            }
            released.await;
        }
    }

    /// Waits until the update is cancelled.
    pub async fn cancelled(&self) {
        loop {
            let notified = self.0.notify.notified();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }
}

/// One chunk of an update: its bytes in the buffer, with the checksum and the copy that its senders share.
/// Clones are the same chunk.
#[derive(Debug, Clone)]
pub struct ChunkRef {
    /// The range of the update that the chunk's header names.
    range: Range,
    /// Offset of the chunk's payload in the loan, in bytes.
    at: u64,
    /// CRC-32C of the payload, once a sender has computed it.
    checksum: Arc<OnceLock<u32>>,
    /// The shared copy of the payload. It exists while a sender holds it.
    copy: Arc<Mutex<Weak<Vec<u8>>>>,
}

impl ChunkRef {
    fn new(range: Range, at: u64) -> Self {
        Self { range, at, checksum: Arc::default(), copy: Arc::default() }
    }

    /// The range of the update that the chunk covers.
    pub fn range(&self) -> Range {
        self.range
    }

    /// CRC-32C of the chunk's `payload`, which is what [`Outgoing::frame`] or [`Outgoing::run`] returned. The
    /// first call computes it; later calls, also of the chunk's other senders, reuse it.
    pub fn checksum(&self, payload: &[u8]) -> u32 {
        *self.checksum.get_or_init(|| checksum(payload))
    }

    /// Returns a copy of the chunk's `payload`, and whether this call made it. `payload` is what
    /// [`Outgoing::frame`] returned. Senders that need a copy at the same time share one; it lasts as long as
    /// a sender holds it.
    pub fn copy(&self, payload: &[u8]) -> (Arc<Vec<u8>>, bool) {
        let mut kept = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = kept.upgrade() {
            return (copy, false);
        }
        let copy = Arc::new(payload.to_vec());
        *kept = Arc::downgrade(&copy);
        (copy, true)
    }
}

/// An update, or a part of one, to be sent. Cloning is cheap: the sends of a group share bytes and checksums.
#[derive(Debug, Clone)]
pub struct Outgoing {
    id: UpdateId,
    chunks: Arc<[ChunkRef]>,
    cancel: Cancel,
    /// Layout of the tensors, if it is known.
    layout: Option<Arc<Layout>>,
    /// Whether chunks may overtake control messages.
    detached: bool,
}

impl Outgoing {
    /// Cuts the `wanted` ranges of `bytes` into chunks of `chunk` bytes. `bytes` is a whole update, lent by
    /// its arena. Chunks start at multiples of `chunk`, so that the same bytes are always cut alike.
    ///
    /// The parts of `wanted` beyond the end of `bytes` are left out.
    pub fn new(id: UpdateId, bytes: Bytes, wanted: &Ranges, chunk: u32, cancel: Cancel) -> Self {
        Self::part(id, bytes, 0, wanted, chunk, cancel)
    }

    /// Like [`Outgoing::new`], where `bytes` are the part of the update that begins at byte `start`. The parts
    /// of `wanted` outside of it are left out.
    pub fn part(id: UpdateId, bytes: Bytes, start: u64, wanted: &Ranges, chunk: u32, cancel: Cancel) -> Self {
        let (chunk, total) = (u64::from(chunk.max(1)), start.saturating_add(bytes.len() as u64));
        let mut chunks = Vec::new();
        for range in wanted.iter() {
            let end = range.end.min(total);
            let mut at = range.start.max(start);
            while at < end {
                let next = (at / chunk + 1).saturating_mul(chunk).min(end);
                chunks.push(ChunkRef::new(Range::new(at, next), at - start));
                at = next;
            }
        }
        cancel.hold(bytes);
        Self { id, chunks: chunks.into(), cancel, layout: None, detached: false }
    }

    /// Makes chunks whose payloads lie one after the other in `bytes`. `chunks` has the offset and the length
    /// of each. Layers that change payloads use this. Chunks that reach beyond the end of `bytes` are left
    /// out.
    pub fn packed(
        id: UpdateId,
        bytes: Bytes,
        chunks: impl IntoIterator<Item = (u64, u32)>,
        cancel: Cancel,
    ) -> Self {
        let mut at = 0;
        let chunks = chunks.into_iter().map(|(offset, length)| {
            let range = Range::new(offset, offset.saturating_add(length.into()));
            let chunk = ChunkRef::new(range, at);
            at = at.saturating_add(length.into());
            chunk
        });
        let total = bytes.len() as u64;
        let chunks = chunks.filter(|chunk| chunk.at.saturating_add(chunk.range.len()) <= total).collect();
        cancel.hold(bytes);
        Self { id, chunks, cancel, layout: None, detached: false }
    }

    /// Returns an update with this chunk alone, whose payload is `bytes`. The chunk keeps the checksum of its
    /// original payload. The fault layer damages chunks in this way.
    #[must_use]
    pub fn with_payload(&self, chunk: &ChunkRef, bytes: Bytes) -> Self {
        let cancel = Cancel::default();
        cancel.hold(bytes);
        Self {
            id: self.id,
            chunks: [ChunkRef { at: 0, copy: Arc::default(), ..chunk.clone() }].into(),
            cancel,
            layout: self.layout.clone(),
            detached: self.detached,
        }
    }

    /// The same update, but its chunks may overtake control messages that were sent before them: a chunk's
    /// header alone tells the receiver what to do with it. A transport that sends chunks apart from messages
    /// ([`crate::Capabilities::detached`]) then delivers them even while a message is held up.
    #[must_use]
    pub fn detached(self) -> Self {
        Self { detached: true, ..self }
    }

    /// The same update, detached if `other` is. Layers that send another update in place of `other` use this.
    #[must_use]
    pub fn detached_like(self, other: &Self) -> Self {
        Self { detached: other.detached, ..self }
    }

    /// Whether the chunks may overtake control messages.
    pub fn is_detached(&self) -> bool {
        self.detached
    }

    /// The same update with the layout of its tensors, for layers that change values.
    #[must_use]
    pub fn of(self, layout: Arc<Layout>) -> Self {
        Self { layout: Some(layout), ..self }
    }

    /// The layout of the update's tensors, if [`Outgoing::of`] set one.
    pub fn layout(&self) -> Option<&Arc<Layout>> {
        self.layout.as_ref()
    }

    /// The same update with other chunks, or with its chunks in another order (for layers).
    #[must_use]
    pub fn with_chunks(&self, chunks: impl IntoIterator<Item = ChunkRef>) -> Self {
        Self { chunks: chunks.into_iter().collect(), ..self.clone() }
    }

    /// The chunks, in sending order.
    pub fn chunks(&self) -> &[ChunkRef] {
        &self.chunks
    }

    /// The fields that all chunks have in common.
    pub fn id(&self) -> UpdateId {
        self.id
    }

    /// The flag that stops this update's senders.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// The arena that lends the bytes, for transports that attach something to it. `None` once cancelled, and
    /// if the bytes are not an arena's. [`Arena::of`] says where a chunk's payload lies in the arena.
    pub fn arena(&self) -> Option<Arena> {
        let loan = self.cancel.loan();
        Arena::of(&loan).map(|(arena, _)| arena)
    }

    /// Bytes of payload in all chunks.
    pub fn payload_bytes(&self) -> u64 {
        self.chunks.iter().map(|c| c.range.len()).sum()
    }

    /// Returns a chunk's header and its payload, which is borrowed from the arena. `None` once cancelled. The
    /// first call computes the chunk's checksum; later calls reuse it.
    pub fn frame(&self, chunk: &ChunkRef) -> Option<(FrameHeader, Bytes)> {
        let payload = self.payload(chunk)?;
        let sum = chunk.checksum(&payload);
        Some((FrameHeader::chunk(self.header(chunk), sum), payload))
    }

    /// Returns a chunk's header, its checksum if there is one already, and its payload. `None` once
    /// cancelled. This is for transports that move bytes within the machine's memory, where computing a
    /// checksum costs a pass over the bytes and finds no errors. They compute none, but carry one that
    /// exists, such as the one of a chunk that a layer has damaged.
    pub fn lent(&self, chunk: &ChunkRef) -> Option<(ChunkHeader, Option<u32>, Bytes)> {
        let payload = self.payload(chunk)?;
        Some((self.header(chunk), chunk.checksum.get().copied(), payload))
    }

    /// Groups the chunks into runs, as ranges of their indices. The chunks of a run lie one after the other,
    /// both in the update and in memory. From the second on they have the same length; only the last may be
    /// shorter.
    pub fn runs(&self) -> Vec<std::ops::Range<usize>> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for (at, chunk) in self.chunks.iter().enumerate() {
            match runs.last_mut().filter(|run| self.continues(run, chunk)) {
                Some(run) => run.end = at + 1,
                None => runs.push(at..at + 1),
            }
        }
        runs
    }

    fn continues(&self, run: &std::ops::Range<usize>, chunk: &ChunkRef) -> bool {
        let last = &self.chunks[run.end - 1];
        let length = if run.len() == 1 { chunk.range.len() } else { self.chunks[run.start + 1].range.len() };
        let follows = last.range.end == chunk.range.start && last.at + last.range.len() == chunk.at;
        follows && chunk.range.len() <= length && (run.len() == 1 || last.range.len() == length)
    }

    /// Returns the header of the first chunk of a run and the payload of the whole run, which is borrowed from
    /// the arena. `None` once cancelled, or if the run is empty.
    pub fn run(&self, run: &std::ops::Range<usize>) -> Option<(ChunkHeader, Bytes)> {
        let chunks = self.chunks.get(run.clone())?;
        let (first, last) = (chunks.first()?, chunks.last()?);
        let loan = self.cancel.loan();
        let range = first.at as usize..(last.at + last.range.len()) as usize;
        let lent = !self.cancel.is_cancelled() && range.start <= range.end && range.end <= loan.len();
        lent.then(|| (self.header(first), loan.slice(range)))
    }

    fn header(&self, chunk: &ChunkRef) -> ChunkHeader {
        let UpdateId { job, round, sender, layout } = self.id;
        let (offset, length) = (chunk.range.start, chunk.range.len() as u32);
        ChunkHeader { job, round, sender, layout, offset, length }
    }

    fn payload(&self, chunk: &ChunkRef) -> Option<Bytes> {
        let loan = self.cancel.loan();
        let range = chunk.at as usize..(chunk.at + chunk.range.len()) as usize;
        (!self.cancel.is_cancelled() && range.end <= loan.len()).then(|| loan.slice(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> UpdateId {
        UpdateId { job: 1, round: 2, sender: 3, layout: LayoutHash(4) }
    }

    #[test]
    fn cuts_at_multiples_of_the_chunk() {
        let wanted: Ranges = [Range::new(5, 30), Range::new(90, 200)].into_iter().collect();
        let update = Outgoing::new(id(), Bytes::from(vec![7; 100]), &wanted, 16, Cancel::default());
        let cut: Vec<(u64, u64)> = update.chunks().iter().map(|c| (c.range.start, c.range.end)).collect();
        assert_eq!(cut, [(5, 16), (16, 30), (90, 96), (96, 100)]);
        assert_eq!(update.payload_bytes(), 35);
        let (header, payload) = update.frame(&update.chunks()[3]).unwrap();
        assert_eq!((header.chunk.offset, header.chunk.length), (96, 4));
        assert_eq!(header.verify(&payload), Ok(()));
    }

    #[test]
    fn runs_are_contiguous_and_even() {
        let wanted: Ranges = [Range::new(5, 50), Range::new(90, 100)].into_iter().collect();
        let bytes = Bytes::from((0..100).collect::<Vec<u8>>());
        let update = Outgoing::new(id(), bytes, &wanted, 16, Cancel::default());
        assert_eq!(update.runs(), [0..4, 4..6], "5 to 50 in chunks of 11, 16, 16 and 2; 90 to 100 in two");
        let (first, payload) = update.run(&(0..4)).unwrap();
        assert_eq!((first.offset, first.length, payload.len(), payload[0]), (5, 11, 45, 5));
        let sum = update.chunks()[1].checksum(&payload[11..27]);
        assert_eq!(update.frame(&update.chunks()[1]).unwrap().0.payload_checksum, sum);
        let chunks = [(0, 4), (4, 4), (8, 2), (10, 2), (12, 4), (20, 4)];
        let update = Outgoing::packed(id(), Bytes::from(vec![1; 20]), chunks, Cancel::default());
        assert_eq!(update.runs(), [0..3, 3..5, 5..6]);
        let order = [1, 0].map(|at: usize| update.chunks()[at].clone());
        assert_eq!(update.with_chunks(order).runs(), [0..1, 1..2], "in another order");
        assert!(update.run(&(2..9)).is_none() && update.run(&(0..0)).is_none());
        update.cancel().cancel();
        assert!(update.run(&(0..1)).is_none());
    }

    #[test]
    fn a_part_of_an_update_is_cut_as_the_whole_is() {
        let wanted: Ranges = [Range::new(5, 30), Range::new(90, 200)].into_iter().collect();
        let bytes = Bytes::from((20..100).collect::<Vec<u8>>());
        let update = Outgoing::part(id(), bytes, 20, &wanted, 16, Cancel::default());
        let frames: Vec<_> = update.chunks().iter().map(|c| update.frame(c).unwrap()).collect();
        let cut: Vec<_> = frames.iter().map(|(header, payload)| (header.chunk.range(), payload[0])).collect();
        assert_eq!(cut, [(20, 30), (90, 96), (96, 100)].map(|(a, b)| (Range::new(a, b), a as u8)));
    }

    #[test]
    fn senders_share_a_copy_as_long_as_one_holds_it() {
        let update =
            Outgoing::new(id(), Bytes::from(vec![7; 100]), &Ranges::full(100), 64, Cancel::default());
        let (first, other) = (update.chunks()[0].clone(), &update.chunks()[1]);
        let (_, payload) = update.frame(&first).unwrap();
        let (copy, made) = first.copy(&payload);
        assert!(made && copy[..] == payload[..]);
        let (again, made) = update.chunks()[0].copy(&payload);
        assert!(!made && Arc::ptr_eq(&copy, &again) && other.copy(&payload[..36]).1);
        drop((copy, again));
        assert!(first.copy(&payload).1);
    }

    #[test]
    fn packed_chunks_lie_anywhere() {
        let bytes = Bytes::from_static(b"abcdefgh");
        let update = Outgoing::packed(id(), bytes, [(900, 3), (5, 5), (7, 1)], Cancel::default());
        let frames: Vec<_> = update.chunks().iter().map(|c| update.frame(c).unwrap()).collect();
        let buffers: Vec<_> =
            frames.iter().map(|(header, payload)| (header.chunk.offset, &payload[..])).collect();
        assert_eq!(buffers, [(900, &b"abc"[..]), (5, b"defgh")], "there is nothing left for the third");
        assert!(frames.iter().all(|(header, payload)| header.verify(payload).is_ok()));
    }

    #[test]
    fn another_payload_has_the_first_ones_checksum() {
        let update =
            Outgoing::new(id(), Bytes::from(vec![7; 100]), &Ranges::full(100), 16, Cancel::default());
        let chunk = &update.chunks()[2];
        let (right, _) = update.frame(chunk).unwrap();
        let other = update.with_payload(chunk, Bytes::from(vec![8; 16]));
        let (header, payload) = other.frame(&other.chunks()[0]).unwrap();
        assert_eq!((header, &payload[..]), (right, &[8; 16][..]));
        assert!(header.verify(&payload).is_err());
    }

    #[test]
    fn the_arena_of_a_loan_is_found() {
        let arena = thalweg_arena::Arena::new(64).unwrap();
        let lent = |bytes| Outgoing::new(id(), bytes, &Ranges::full(64), 16, Cancel::default());
        let update = lent(arena.lend(Range::new(8, 64)).unwrap());
        assert_eq!(update.arena().unwrap().as_ptr(), arena.as_ptr());
        let payload = update.frame(&update.chunks()[1]).unwrap().1;
        assert_eq!(Arena::of(&payload).unwrap().1, Range::new(24, 40));
        assert_eq!(update.with_chunks([]).arena().unwrap().as_ptr(), arena.as_ptr());
        let other = update.with_payload(&update.chunks()[0], Bytes::from(vec![0; 16]));
        assert!(other.arena().is_none() && lent(Bytes::from_static(&[1; 64])).arena().is_none());
        assert!(lent(Bytes::new()).arena().is_none());
        update.cancel().cancel();
        assert!(update.arena().is_none());
    }

    #[tokio::test]
    async fn released_waits_for_the_last_borrower() {
        let arena = thalweg_arena::Arena::new(64).unwrap();
        let cancel = Cancel::default();
        cancel.released().await; // nothing is lent
        let bytes = arena.lend(arena.range()).unwrap();
        let update = Outgoing::new(id(), bytes, &Ranges::full(64), 16, cancel.clone());
        let (first, second) = (update.frame(&update.chunks()[0]), update.frame(&update.chunks()[3]));
        let mut released = tokio::spawn(async move { cancel.released().await });
        let is_waiting = async |released: &mut tokio::task::JoinHandle<()>| {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            !released.is_finished()
        };
        assert!(is_waiting(&mut released).await, "it was not even stopped");
        drop(first);
        update.cancel().cancel();
        assert!(is_waiting(&mut released).await, "a chunk is still being sent");
        drop(second);
        released.await.unwrap();
        assert!(arena.claim(arena.range()).is_ok());
        update.cancel().released().await;
    }

    #[test]
    fn what_was_stopped_before_takes_no_loan() {
        let arena = thalweg_arena::Arena::new(64).unwrap();
        let cancel = Cancel::default();
        cancel.cancel();
        let bytes = arena.lend(arena.range()).unwrap();
        let update = Outgoing::new(id(), bytes, &Ranges::full(64), 16, cancel);
        assert!(arena.claim(arena.range()).is_ok() && update.frame(&update.chunks()[0]).is_none());
    }

    #[test]
    fn cancelling_ends_the_loan_though_the_update_lives() {
        let arena = thalweg_arena::Arena::new(64).unwrap();
        let cancel = Cancel::default();
        let bytes = arena.lend(arena.range()).unwrap();
        let update = Outgoing::new(id(), bytes, &Ranges::full(64), 16, cancel.clone());
        assert!(arena.claim(arena.range()).is_err());
        cancel.cancel();
        assert!(update.cancel().is_cancelled() && update.frame(&update.chunks()[0]).is_none());
        assert!(arena.claim(arena.range()).is_ok());
    }
}
