//! The receive queue of a link. It checks the numbers of arriving messages, counts credit, and holds messages
//! until the application receives them.

use std::sync::Mutex;

use bytes::{Bytes, BytesMut};
use thalweg_wire::{checksum, ChunkHeader, FrameHeader, MAX_CONTROL, MAX_HELLO};
use tokio::sync::mpsc;

use crate::credit::Allowance;
use crate::envelope::{Before, Ledger};
use crate::shared::lock;
use crate::HEAD_BYTES;

/// Cost of a control message beyond its bytes.
pub(crate) const CONTROL_COST: u64 = 64;
/// Maximum number of control messages, by cost, that a member may have in flight before it is admitted. It is
/// twice the largest message, however large the window is. An unadmitted member may send no chunks.
pub(crate) const UNAUTHENTICATED_PEER_WINDOW: u64 = 2 * (MAX_HELLO as u64 + CONTROL_COST);

/// Maximum number of announcements of updates that wait to be received; further ones are dropped. A link has
/// one for each update.
const ANNOUNCEMENTS: usize = 16;

/// Cost of a chunk: its bytes, plus the maximum length of a head. So the window bounds the number of small
/// chunks too.
pub(crate) fn chunk_cost(length: u64) -> u64 {
    length + HEAD_BYTES as u64
}

/// An entry of the receive queue.
pub(crate) enum Item {
    /// An update begins; this is the header of its first chunk.
    Begins(ChunkHeader),
    Chunk(FrameHeader, Bytes),
    Control(Fragment),
    /// The link has ended: no entry follows.
    End,
}

/// A part of a control message.
pub(crate) struct Fragment {
    pub total: u32,
    pub offset: u32,
    pub checksum: u32,
    pub bytes: Bytes,
}

impl Fragment {
    pub(crate) fn cost(length: usize) -> u64 {
        length as u64 + CONTROL_COST
    }
}

/// The result of processing a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The message was queued, or is a duplicate.
    Fine,
    /// A grant is due to the other end.
    Grant,
    /// A message was lost that must not get lost. The text says which.
    Lost(String),
    /// The other end breaks the protocol.
    Corrupt(String),
}

/// The receive queue. It holds no more than this end has granted.
pub(crate) struct Intake {
    ledger: Mutex<Arrivals>,
    put: mpsc::UnboundedSender<Item>,
    get: tokio::sync::Mutex<Inbox>,
}

/// The numbers and the credit of the messages that have arrived.
struct Arrivals {
    /// Number of the last control message, of the last chunk to this end, and of the last chunk to the group.
    control: u64,
    bulk: u64,
    group: u64,
    /// Cost of chunks that arrived.
    seen: u64,
    /// Cost of chunks that the application has taken.
    taken: u64,
    /// Cost of chunks that will never arrive.
    written_off: u64,
    /// Cost of the control messages in the queue.
    control_waiting: u64,
    announcements: usize,
    bulk_allowance: Allowance,
    control_allowance: Allowance,
    /// Whether the other end was admitted and may use its windows.
    open: bool,
}

impl Intake {
    /// An empty queue. The group's numbers begin after `group`. The other end may use the windows, for chunks
    /// and for control messages, only if the queue is `open`.
    pub(crate) fn new(
        (bulk_allowance, control_allowance): (Allowance, Allowance),
        group: u64,
        open: bool,
    ) -> Self {
        let (put, get) = mpsc::unbounded_channel();
        let arrivals = Arrivals {
            control: 0,
            bulk: 0,
            group,
            seen: 0,
            taken: 0,
            written_off: 0,
            control_waiting: 0,
            announcements: 0,
            bulk_allowance,
            control_allowance,
            open,
        };
        let get = tokio::sync::Mutex::new(Inbox { items: get, part: None, ended: false });
        Self { ledger: Mutex::new(arrivals), put, get }
    }

    /// The other end was admitted and may use its windows.
    pub(crate) fn open(&self) {
        lock(&self.ledger).open = true;
    }

    /// Total cost granted for chunks, and for control messages.
    pub(crate) fn granted(&self) -> (u64, u64) {
        let arrivals = lock(&self.ledger);
        (arrivals.bulk_allowance.granted(), arrivals.control_allowance.granted())
    }

    /// Locks the receiving end of the queue; one task receives at a time.
    pub(crate) async fn inbox(&self) -> tokio::sync::MutexGuard<'_, Inbox> {
        self.get.lock().await
    }

    /// Marks the end of the link, after all that has arrived.
    pub(crate) fn end(&self) {
        // This cannot fail: we own the receiver.
        let _ = self.put.send(Item::End);
    }

    /// Queues the announcement of an update.
    pub(crate) fn begins(&self, chunk: ChunkHeader) {
        let mut arrivals = lock(&self.ledger);
        if arrivals.announcements < ANNOUNCEMENTS {
            arrivals.announcements += 1;
            let _ = self.put.send(Item::Begins(chunk));
        }
    }

    /// Processes a chunk to this end's own mailbox. `numbers` are its number and the confirmed one before it.
    pub(crate) fn chunk(
        &self,
        lossy: bool,
        numbers: (u64, u64),
        header: FrameHeader,
        payload: Bytes,
    ) -> Verdict {
        let mut arrivals = lock(&self.ledger);
        if let Err(verdict) = in_order(&mut arrivals.bulk, lossy, numbers, "chunks") {
            return verdict;
        }
        self.accept(&mut arrivals, lossy, header, payload)
    }

    /// Processes a chunk to the group. `chunk` is `None` if it addresses only other members.
    pub(crate) fn group_chunk(
        &self,
        lossy: bool,
        numbers: (u64, u64),
        chunk: Option<(FrameHeader, Bytes)>,
    ) -> Verdict {
        let mut arrivals = lock(&self.ledger);
        if let Err(verdict) = in_order(&mut arrivals.group, lossy, numbers, "chunks to the group") {
            return verdict;
        }
        chunk.map_or(Verdict::Fine, |(header, payload)| self.accept(&mut arrivals, lossy, header, payload))
    }

    /// Processes a chunk that names a retained payload which this end does not hold. The chunk stays a hole;
    /// its credit is returned.
    pub(crate) fn missing(&self, lossy: bool, numbers: (u64, u64), length: u64) -> Verdict {
        let mut arrivals = lock(&self.ledger);
        if let Err(verdict) = in_order(&mut arrivals.bulk, lossy, numbers, "chunks") {
            return verdict;
        }
        let cost = chunk_cost(length);
        arrivals.seen = arrivals.seen.saturating_add(cost);
        arrivals.taken = arrivals.taken.saturating_add(cost);
        if arrivals.bulk_allowance.take_in(cost) {
            Verdict::Grant
        } else {
            Verdict::Fine
        }
    }

    fn accept(&self, arrivals: &mut Arrivals, lossy: bool, header: FrameHeader, payload: Bytes) -> Verdict {
        let length = payload.len() as u64;
        if !arrivals.open {
            return Verdict::Corrupt("a chunk from a peer that has not proved who it is".into());
        }
        if length != header.length() as u64 {
            return Verdict::Corrupt(format!("{length} bytes in a chunk that says {}", header.length()));
        }
        arrivals.seen = arrivals.seen.saturating_add(chunk_cost(length));
        let (waiting, window) = (arrivals.seen - arrivals.taken, arrivals.bulk_allowance.window());
        // With a lossy carrier, messages of different grades may overtake each other. So a chunk may arrive
        // after it was counted as lost, and up to two windows may wait.
        if waiting > if lossy { 2 * window } else { window } {
            return Verdict::Corrupt(format!("{waiting} bytes of chunks under way; {window} were granted"));
        }
        let _ = self.put.send(Item::Chunk(header, payload));
        Verdict::Fine
    }

    /// Processes a part of a control message.
    pub(crate) fn control(&self, lossy: bool, number: u64, before: &Before, part: Fragment) -> Verdict {
        let mut arrivals = lock(&self.ledger);
        if number <= arrivals.control {
            // Drop a duplicate.
            return Verdict::Fine;
        }
        if number != arrivals.control + 1 {
            let lost = number - arrivals.control - 1;
            return Verdict::Lost(format!("{lost} control messages were lost on the way"));
        }
        arrivals.control = number;
        arrivals.control_waiting += Fragment::cost(part.bytes.len());
        let window =
            if arrivals.open { arrivals.control_allowance.window() } else { UNAUTHENTICATED_PEER_WINDOW };
        let waiting = arrivals.control_waiting;
        if waiting > window {
            return Verdict::Corrupt(format!(
                "control messages of {waiting} bytes under way; {window} were granted"
            ));
        }
        let verdict = arrivals.reconcile(lossy, before);
        let _ = self.put.send(Item::Control(part));
        verdict
    }

    /// Processes the other end's state.
    pub(crate) fn ledger(&self, lossy: bool, ledger: &Ledger) -> Verdict {
        let mut arrivals = lock(&self.ledger);
        if ledger.control > arrivals.control {
            let lost = ledger.control - arrivals.control;
            return Verdict::Lost(format!("{lost} control messages were lost on the way"));
        }
        arrivals.reconcile(lossy, &ledger.before)
    }

    /// Notes that the application has taken an announcement.
    pub(crate) fn take_announcement(&self) {
        lock(&self.ledger).announcements -= 1;
    }

    /// Notes that the application has taken a chunk. Returns whether a grant is due.
    pub(crate) fn take_chunk(&self, length: usize) -> bool {
        let mut arrivals = lock(&self.ledger);
        let cost = chunk_cost(length as u64);
        arrivals.taken += cost;
        arrivals.bulk_allowance.take_in(cost)
    }

    /// Notes that the application has taken a part of a control message. Returns whether a grant is due.
    pub(crate) fn take_control(&self, length: usize) -> bool {
        let mut arrivals = lock(&self.ledger);
        let cost = Fragment::cost(length);
        arrivals.control_waiting -= cost;
        arrivals.control_allowance.take_in(cost)
    }
}

/// Checks a chunk's number against the last one. An error is the verdict on a duplicate, or on loss.
fn in_order(last: &mut u64, lossy: bool, (number, previous): (u64, u64), what: &str) -> Result<(), Verdict> {
    if number <= *last {
        // The message is a duplicate.
        return Err(Verdict::Fine);
    }
    if !lossy && previous > *last {
        return Err(Verdict::Lost(format!("{} {what} were lost on the way", previous - *last)));
    }
    *last = number;
    Ok(())
}

impl Arrivals {
    /// Compares what the other end has sent with what has arrived. If a published chunk is missing, the link
    /// breaks, unless the carrier is lossy. Otherwise the credit of missing chunks is returned: they were
    /// lost, or cancelled while they were published, and will never arrive.
    fn reconcile(&mut self, lossy: bool, before: &Before) -> Verdict {
        if !lossy {
            let (bulk, group) =
                (before.bulk.saturating_sub(self.bulk), before.group.saturating_sub(self.group));
            let lost = bulk.saturating_add(group);
            if lost > 0 {
                return Verdict::Lost(format!("{lost} chunks were lost on the way"));
            }
        }
        let missing = before.position.saturating_sub(self.seen.saturating_add(self.written_off));
        self.written_off = self.written_off.saturating_add(missing);
        if missing > 0 && self.bulk_allowance.take_in(missing) {
            Verdict::Grant
        } else {
            Verdict::Fine
        }
    }
}

/// The receiving end of the queue, with the control message whose parts are being joined.
pub(crate) struct Inbox {
    items: mpsc::UnboundedReceiver<Item>,
    part: Option<(Fragment, BytesMut)>,
    ended: bool,
}

impl Inbox {
    /// Waits for the next entry. Returns `None` once the link has ended, as often as it is called.
    pub(crate) async fn next(&mut self) -> Option<Item> {
        if self.ended {
            return None;
        }
        let item = self.items.recv().await.filter(|item| !matches!(item, Item::End));
        self.ended = item.is_none();
        item
    }

    /// Adds a part of a control message. Returns the message once it is complete.
    ///
    /// # Errors
    /// The reason, in words, if the parts do not fit together or the checksum is wrong.
    pub(crate) fn join(&mut self, part: Fragment) -> Result<Option<Bytes>, String> {
        let whole = part.total as usize;
        if whole > MAX_CONTROL as usize {
            return Err(format!("a control message of {whole} bytes; one has at most {MAX_CONTROL}"));
        }
        if part.offset == 0 && part.bytes.len() == whole && self.part.is_none() {
            return verify(part.checksum, part.bytes).map(Some);
        }
        let (first, mut message) = match self.part.take() {
            Some(begun) => begun,
            None => (Fragment { bytes: Bytes::new(), offset: 0, ..part }, BytesMut::new()),
        };
        let fits = part.offset as usize == message.len() && message.len() + part.bytes.len() <= whole;
        if !fits || part.bytes.is_empty() || (part.total, part.checksum) != (first.total, first.checksum) {
            return Err("parts of a control message do not fit together".into());
        }
        message.extend_from_slice(&part.bytes);
        if message.len() == whole {
            return verify(first.checksum, message.freeze()).map(Some);
        }
        self.part = Some((first, message));
        Ok(None)
    }
}

fn verify(sum: u32, message: Bytes) -> Result<Bytes, String> {
    if checksum(&message) == sum {
        Ok(message)
    } else {
        Err("a control message was damaged on the way".into())
    }
}

#[cfg(test)]
mod tests {
    use thalweg_wire::LayoutHash;

    use super::*;

    fn intake(open: bool) -> Intake {
        Intake::new((Allowance::new(1 << 20), Allowance::new(1 << 20)), 0, open)
    }

    fn part(bytes: usize) -> Fragment {
        Fragment { total: bytes as u32, offset: 0, checksum: 0, bytes: vec![0; bytes].into() }
    }

    /// The other end may claim any numbers. False ones break its own link and nothing else.
    #[test]
    fn numbers_that_cannot_be_break_the_link_and_nothing_else() {
        for lossy in [false, true] {
            let intake = intake(true);
            let before = Before { bulk: u64::MAX, group: u64::MAX, position: u64::MAX };
            let ledger = Ledger { granted_bulk: u64::MAX, granted_control: u64::MAX, control: 0, before };
            for _ in 0..2 {
                let verdict = intake.ledger(lossy, &ledger);
                assert_eq!(matches!(verdict, Verdict::Lost(_)), !lossy, "{verdict:?}");
            }
            assert!(matches!(intake.control(lossy, u64::MAX, &before, part(1)), Verdict::Lost(_)));
        }
    }

    /// Announcements use no credit, so the queue limits their number.
    #[tokio::test]
    async fn of_announcements_few_wait() {
        let intake = intake(true);
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 0, length: 9 };
        (0..1_000).for_each(|round| intake.begins(ChunkHeader { round, ..chunk }));
        let mut inbox = intake.inbox().await;
        let mut rounds = Vec::new();
        for _ in 0..ANNOUNCEMENTS {
            let Some(Item::Begins(chunk)) = inbox.next().await else { panic!("there are more") };
            intake.take_announcement();
            rounds.push(chunk.round);
        }
        intake.begins(chunk);
        intake.end();
        assert!(rounds.into_iter().eq(0..ANNOUNCEMENTS as u32));
        assert!(
            matches!(inbox.next().await, Some(Item::Begins(last)) if last == chunk),
            "there is room again"
        );
        assert!(inbox.next().await.is_none());
    }

    #[test]
    fn before_it_is_open_little_may_be_under_way() {
        let intake = intake(false);
        let nothing = Before::default();
        let most = MAX_HELLO as usize;
        assert_eq!(intake.control(false, 1, &nothing, part(most)), Verdict::Fine);
        assert_eq!(intake.control(false, 2, &nothing, part(most)), Verdict::Fine);
        assert!(matches!(intake.control(false, 3, &nothing, part(0)), Verdict::Corrupt(_)));
        intake.open();
        assert_eq!(intake.control(false, 4, &nothing, part(256 << 10)), Verdict::Fine);
    }
}
