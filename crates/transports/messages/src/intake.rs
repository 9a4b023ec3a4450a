//! What comes on a link: numbers are checked, credit is kept, and it waits for whoever receives.

use std::sync::Mutex;

use bytes::{Bytes, BytesMut};
use thalweg_wire::{checksum, ChunkHeader, FrameHeader, MAX_CONTROL, MAX_HELLO};
use tokio::sync::mpsc;

use crate::credit::Allowance;
use crate::envelope::{Before, Ledger};
use crate::shared::lock;
use crate::HEAD_BYTES;

/// What a control message costs beside its bytes.
pub(crate) const CONTROL_COST: u64 = 64;
/// Cost of control messages that a member may have under way before it is admitted, whatever its window is: twice that of
/// the largest. Chunks may not be under way then.
pub(crate) const GUEST_WINDOW: u64 = 2 * (MAX_HELLO as u64 + CONTROL_COST);

/// Most announcements that wait to be received; of more than these nothing is kept. A link has one an update.
const ANNOUNCEMENTS: usize = 16;

/// What a chunk costs: its bytes and as much as its head may have, so that small ones are bounded too.
pub(crate) fn chunk_cost(length: u64) -> u64 {
    length + HEAD_BYTES as u64
}

/// Something to receive.
pub(crate) enum Item {
    /// An update begins with this chunk.
    Begins(ChunkHeader),
    Chunk(FrameHeader, Bytes),
    Control(Fragment),
    /// Nothing comes any more.
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

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It waits to be received, or says nothing new.
    Fine,
    /// The other end is to hear of a grant.
    Grant,
    /// Something was lost that must not be.
    Lost(String),
    /// The other end does not keep to the protocol.
    Corrupt(String),
}

/// What has come. The queue holds no more than was granted.
pub(crate) struct Intake {
    ledger: Mutex<Came>,
    put: mpsc::UnboundedSender<Item>,
    get: tokio::sync::Mutex<Inbox>,
}

struct Came {
    control: u64,
    bulk: u64,
    group: u64,
    /// Bytes of chunks that came, that were taken, and that never will.
    seen: u64,
    taken: u64,
    written_off: u64,
    control_waiting: u64,
    announcements: usize,
    bulk_allowance: Allowance,
    control_allowance: Allowance,
    /// Whether the other end may use them.
    open: bool,
}

impl Intake {
    /// Nothing has come yet; the group's numbers begin behind `group`. The allowances, for chunks and for control messages,
    /// are of no use before it is `open`.
    pub(crate) fn new(
        (bulk_allowance, control_allowance): (Allowance, Allowance),
        group: u64,
        open: bool,
    ) -> Self {
        let (put, get) = mpsc::unbounded_channel();
        let came = Came {
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
        Self { ledger: Mutex::new(came), put, get }
    }

    /// The other end may use its windows from now on.
    pub(crate) fn open(&self) {
        lock(&self.ledger).open = true;
    }

    /// What has been granted: bytes of chunks, cost of control messages.
    pub(crate) fn granted(&self) -> (u64, u64) {
        let came = lock(&self.ledger);
        (came.bulk_allowance.granted(), came.control_allowance.granted())
    }

    /// Who receives; one at a time.
    pub(crate) async fn inbox(&self) -> tokio::sync::MutexGuard<'_, Inbox> {
        self.get.lock().await
    }

    /// Nothing comes any more, behind what has come.
    pub(crate) fn end(&self) {
        let _ = self.put.send(Item::End); // the receiver lives as long as we do
    }

    /// An update begins.
    pub(crate) fn begins(&self, chunk: ChunkHeader) {
        let mut came = lock(&self.ledger);
        if came.announcements < ANNOUNCEMENTS {
            came.announcements += 1;
            let _ = self.put.send(Item::Begins(chunk));
        }
    }

    /// A chunk to this end's own mailbox.
    pub(crate) fn chunk(
        &self,
        lossy: bool,
        numbers: (u64, u64),
        header: FrameHeader,
        payload: Bytes,
    ) -> Verdict {
        let mut came = lock(&self.ledger);
        if let Err(verdict) = in_order(&mut came.bulk, lossy, numbers, "chunks") {
            return verdict;
        }
        self.accept(&mut came, lossy, header, payload)
    }

    /// A chunk to the group; `None` if it is for others.
    pub(crate) fn group_chunk(
        &self,
        lossy: bool,
        numbers: (u64, u64),
        chunk: Option<(FrameHeader, Bytes)>,
    ) -> Verdict {
        let mut came = lock(&self.ledger);
        if let Err(verdict) = in_order(&mut came.group, lossy, numbers, "chunks to the group") {
            return verdict;
        }
        chunk.map_or(Verdict::Fine, |(header, payload)| self.accept(&mut came, lossy, header, payload))
    }

    /// A chunk of `length` bytes that should be held here, and is not: a hole.
    pub(crate) fn missing(&self, lossy: bool, numbers: (u64, u64), length: u64) -> Verdict {
        let mut came = lock(&self.ledger);
        if let Err(verdict) = in_order(&mut came.bulk, lossy, numbers, "chunks") {
            return verdict;
        }
        let cost = chunk_cost(length);
        came.seen = came.seen.saturating_add(cost);
        came.taken = came.taken.saturating_add(cost);
        if came.bulk_allowance.take_in(cost) {
            Verdict::Grant
        } else {
            Verdict::Fine
        }
    }

    fn accept(&self, came: &mut Came, lossy: bool, header: FrameHeader, payload: Bytes) -> Verdict {
        let length = payload.len() as u64;
        if !came.open {
            return Verdict::Corrupt("a chunk from a peer that has not proved who it is".into());
        }
        if length != header.length() as u64 {
            return Verdict::Corrupt(format!("{length} bytes in a chunk that says {}", header.length()));
        }
        came.seen = came.seen.saturating_add(chunk_cost(length));
        let (waiting, window) = (came.seen - came.taken, came.bulk_allowance.window());
        // What was written off may still come, where messages of different care overtake each other.
        if waiting > if lossy { 2 * window } else { window } {
            return Verdict::Corrupt(format!("{waiting} bytes of chunks under way; {window} were granted"));
        }
        let _ = self.put.send(Item::Chunk(header, payload));
        Verdict::Fine
    }

    /// A part of a control message.
    pub(crate) fn control(&self, lossy: bool, number: u64, before: &Before, part: Fragment) -> Verdict {
        let mut came = lock(&self.ledger);
        if number <= came.control {
            return Verdict::Fine; // again
        }
        if number != came.control + 1 {
            let lost = number - came.control - 1;
            return Verdict::Lost(format!("{lost} control messages were lost on the way"));
        }
        came.control = number;
        came.control_waiting += Fragment::cost(part.bytes.len());
        let window = if came.open { came.control_allowance.window() } else { GUEST_WINDOW };
        let waiting = came.control_waiting;
        if waiting > window {
            return Verdict::Corrupt(format!(
                "control messages of {waiting} bytes under way; {window} were granted"
            ));
        }
        let verdict = came.reconcile(lossy, before);
        let _ = self.put.send(Item::Control(part));
        verdict
    }

    /// How things stand at the other end.
    pub(crate) fn ledger(&self, lossy: bool, ledger: &Ledger) -> Verdict {
        let mut came = lock(&self.ledger);
        if ledger.control > came.control {
            let lost = ledger.control - came.control;
            return Verdict::Lost(format!("{lost} control messages were lost on the way"));
        }
        came.reconcile(lossy, &ledger.before)
    }

    /// An announcement was taken.
    pub(crate) fn take_announcement(&self) {
        lock(&self.ledger).announcements -= 1;
    }

    /// A chunk was taken. Whether to tell of a grant.
    pub(crate) fn take_chunk(&self, length: usize) -> bool {
        let mut came = lock(&self.ledger);
        let cost = chunk_cost(length as u64);
        came.taken += cost;
        came.bulk_allowance.take_in(cost)
    }

    /// A part of a control message was taken. Whether to tell of a grant.
    pub(crate) fn take_control(&self, length: usize) -> bool {
        let mut came = lock(&self.ledger);
        let cost = Fragment::cost(length);
        came.control_waiting -= cost;
        came.control_allowance.take_in(cost)
    }
}

/// Checks the number of a chunk against the last one that came.
fn in_order(last: &mut u64, lossy: bool, (number, previous): (u64, u64), what: &str) -> Result<(), Verdict> {
    if number <= *last {
        return Err(Verdict::Fine); // again
    }
    if !lossy && previous > *last {
        return Err(Verdict::Lost(format!("{} {what} were lost on the way", previous - *last)));
    }
    *last = number;
    Ok(())
}

impl Came {
    /// Sets what was sent against what came: what is missing never will.
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

/// The receiving end of the queue, and the control message that is not yet whole.
pub(crate) struct Inbox {
    items: mpsc::UnboundedReceiver<Item>,
    part: Option<(Fragment, BytesMut)>,
    ended: bool,
}

impl Inbox {
    /// The next thing; `None` behind the last, again and again.
    pub(crate) async fn next(&mut self) -> Option<Item> {
        if self.ended {
            return None;
        }
        let item = self.items.recv().await.filter(|item| !matches!(item, Item::End));
        self.ended = item.is_none();
        item
    }

    /// Takes in a part of a control message; the message, if that makes it whole.
    ///
    /// # Errors
    /// What is wrong with it, in words.
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

    /// What another end claims to have sent may be any numbers.
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

    /// They cost no credit, so their number is bounded by itself.
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
