//! The group send: an update goes to several members at once, and each chunk is published once.
//!
//! The group moves at the pace of its slowest member. When members that have received nearly everything wait
//! for a slower one, their waiting time is counted against it. Once that exceeds the time to send the rest of
//! the update again, the slow member leaves the group and gets the rest separately. So waiting costs at most
//! twice the optimum (ski rental problem; Karlin et al., Competitive snoopy caching, Algorithmica 1988), and
//! members whose pace differs by chance stay together.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use thalweg_transport::{ChunkRef, Error, Outgoing, Result, SendReport};

use crate::envelope::{encode, Kind, Slots, Tag, MAX_SLOTS};
use crate::intake::chunk_cost;
use crate::listener::{Entry, Office};
use crate::send;
use crate::shared::{lock, LinkState};
use crate::{Care, Mailbox, MemberId, Message};

/// Called once for each member, with its index and the outcome.
type Done<'a> = &'a (dyn Fn(usize, Result<SendReport>) + Send + Sync);
/// The send of the rest of an update to a member that has left the group.
type Alone = Pin<Box<dyn std::future::Future<Output = (usize, Result<SendReport>)> + Send>>;

/// The group waits at least this long for a member before it removes that member.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Least pause between two checks for slow members.
const MOMENT: Duration = Duration::from_millis(1);
/// If more bytes than this are published to the group that one member does not need, with no message for this
/// member in between, the group send falls back to separate sends.
const MOST_PASSED: u64 = 32 << 20;

/// Whether a group send pays off. A message to the group crosses the links of all members, so the update must
/// be for at least half of them. For a single member it pays off only if the broker then retains chunks that
/// it does not retain yet.
pub(crate) fn is_worth(office: &Office, members: &[Arc<LinkState>], update: &Outgoing) -> bool {
    let many = 2 * members.len() >= lock(&office.links).values().filter(|entry| entry.is_member()).count();
    office.carrier.nature().group && many && (members.len() > 1 || is_to_be_kept(office, update))
}

/// Whether the broker can retain the update, and does not retain its first chunk yet.
fn is_to_be_kept(office: &Office, update: &Outgoing) -> bool {
    let first = update.chunks().first().filter(|_| office.carrier.keeps());
    let frame = first.and_then(|chunk| update.frame(chunk));
    frame.is_some_and(|(header, _)| lock(&office.kept).number(&header).is_none())
}

/// Sends `update` to `members`, all of this carrier. Calls `done` once for each, with its index.
pub(crate) async fn send(office: &Office, members: Vec<Arc<LinkState>>, update: &Outgoing, done: Done<'_>) {
    let notified: Vec<AtomicBool> = members.iter().map(|_| AtomicBool::new(false)).collect();
    let tell = |index: usize, outcome| {
        notified[index].store(true, Ordering::Relaxed);
        done(index, outcome);
    };
    tokio::select! {
        biased;
        () = update.cancel().cancelled() => {}
        () = Sending::new(office, members, update, &tell).run() => {}
    }
    for (index, notified) in notified.iter().enumerate() {
        if !notified.load(Ordering::Relaxed) {
            done(index, Err(SendReport::cancelled()));
        }
    }
}

/// A member that is still in the group.
struct Member {
    index: usize,
    shared: Arc<LinkState>,
    wire: u64,
    /// How long members that had received nearly everything have waited for this one.
    awaited: Duration,
    /// Whether the member has no credit for the next chunk.
    is_full: bool,
}

/// The state of a group send.
struct Sending<'a> {
    office: &'a Office,
    update: &'a Outgoing,
    tell: Done<'a>,
    /// Members in the group.
    together: Vec<Member>,
    /// Sends to members that have left the group.
    alone: FuturesUnordered<Alone>,
    started: Instant,
    pace: Pace,
}

/// Progress of the group, on tokio's clock, which tests may pause.
struct Pace {
    started: tokio::time::Instant,
    /// Total time that members have waited for others.
    waited: Duration,
    /// Payload sent to the group, and payload of the whole update.
    sent: u64,
    total: u64,
}

impl Pace {
    fn new(total: u64) -> Self {
        Self { started: tokio::time::Instant::now(), waited: Duration::ZERO, sent: 0, total }
    }

    /// How long the rest would take if no member waited for another; at least [`TIMEOUT`].
    fn rest(&self, now: tokio::time::Instant) -> Duration {
        let worked = (now - self.started).saturating_sub(self.waited);
        let rest = (self.total - self.sent) as f64 / self.sent.max(1) as f64;
        TIMEOUT.max(Duration::try_from_secs_f64(worked.as_secs_f64() * rest).unwrap_or(TIMEOUT))
    }
}

impl<'a> Sending<'a> {
    fn new(office: &'a Office, members: Vec<Arc<LinkState>>, update: &'a Outgoing, tell: Done<'a>) -> Self {
        let (together, alone) = (Vec::new(), FuturesUnordered::new());
        let (started, pace) = (Instant::now(), Pace::new(update.payload_bytes()));
        let mut sending = Self { office, update, tell, together, alone, started, pace };
        for (index, shared) in members.into_iter().enumerate() {
            let member = Member { index, shared, wire: 0, awaited: Duration::ZERO, is_full: false };
            if member.shared.ends.slot >= MAX_SLOTS {
                sending.leave(member, 0);
            } else if let Err(error) = send::check_chunks(&member.shared, update) {
                (sending.tell)(index, Err(error));
            } else {
                sending.together.push(member);
            }
        }
        sending
    }

    async fn run(mut self) {
        for at in 0..self.update.chunks().len() {
            let chunk = &self.update.chunks()[at];
            while !self.together.is_empty() {
                self.gather(at, chunk_cost(chunk.range().len())).await;
                if self.is_costly() {
                    for member in std::mem::take(&mut self.together) {
                        self.leave(member, at);
                    }
                }
                if self.together.is_empty() {
                    break;
                }
                match self.publish(chunk, at == 0).await {
                    Ok(true) => {
                        self.pace.sent += chunk.range().len();
                        break;
                    }
                    // Another send has used the credit. Try again.
                    Ok(false) => {}
                    Err(error) => self.fail(&error),
                }
            }
        }
        if !self.together.is_empty() && !self.update.chunks().is_empty() {
            if let Err(error) = self.office.carrier.flush().await {
                self.fail(&error);
            }
        }
        let (chunks, payload) = (self.update.chunks().len() as u64, self.update.payload_bytes());
        for Member { index, wire, .. } in self.together.drain(..) {
            let report = SendReport { chunks, payload, wire, started: self.started, ended: Instant::now() };
            (self.tell)(index, Ok(report));
        }
        while let Some((index, outcome)) = self.alone.next().await {
            (self.tell)(index, outcome);
        }
    }

    /// Whether too many bytes that were not for a member have crossed its link; see [`MOST_PASSED`].
    fn is_costly(&self) -> bool {
        let links = lock(&self.office.links);
        let passed = |entry: &Entry| entry.shared.passed.load(Ordering::Relaxed) > MOST_PASSED;
        links.values().any(|entry| entry.is_member() && passed(entry))
    }

    fn fail(&mut self, error: &Error) {
        for member in self.together.drain(..) {
            (self.tell)(member.index, Err(error.clone().during(send::UPDATE)));
        }
    }

    /// Waits until all members of the group have credit for a chunk of this cost. A member that makes the
    /// others wait for too long leaves the group, and gets the chunks from `at` on separately.
    async fn gather(&mut self, at: usize, bytes: u64) {
        let mut since = None;
        loop {
            let changed = self.office.credit_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (open, ended): (Vec<_>, Vec<_>) =
                self.together.drain(..).partition(|member| !member.shared.has_ended());
            self.together = open;
            for member in ended {
                (self.tell)(member.index, Err(member.shared.closed(send::UPDATE)));
            }
            let now = tokio::time::Instant::now();
            self.count(now.saturating_duration_since(since.unwrap_or(now)));
            self.together.iter_mut().for_each(|member| member.is_full = !member.shared.bulk.has(bytes));
            if self.together.iter().all(|member| !member.is_full) {
                return;
            }
            let waits = |member: &Member| !member.is_full && member.shared.bulk.is_drained();
            let until = self.together.iter().any(waits).then(|| self.part(at, now));
            since = until.map(|_| now);
            if until == Some(now) {
                // A member has left; check again.
                continue;
            }
            tokio::select! {
                () = &mut changed => {}
                Some((index, outcome)) = self.alone.next() => (self.tell)(index, outcome),
                () = tokio::time::sleep_until(until.unwrap_or(now)), if until.is_some() => {}
            }
        }
    }

    /// Charges `waited` to each member whose lack of credit made the group wait.
    fn count(&mut self, waited: Duration) {
        self.pace.waited += waited;
        self.together.iter_mut().filter(|member| member.is_full).for_each(|member| member.awaited += waited);
    }

    /// Removes the members that made the group wait for too long. Returns `now` if it has removed any, and
    /// otherwise the time of the next check. A member is slow compared with the fastest one: the least
    /// waiting time of all members is subtracted from each.
    fn part(&mut self, at: usize, now: tokio::time::Instant) -> tokio::time::Instant {
        let limit = self.pace.rest(now);
        let least = self.together.iter().map(|member| member.awaited).min().unwrap_or_default();
        let over = |member: &Member| member.is_full && member.awaited - least >= limit;
        let (slow, rest): (Vec<_>, Vec<_>) = self.together.drain(..).partition(over);
        self.together = rest;
        let longest = self.together.iter().filter(|member| member.is_full).map(|member| member.awaited).max();
        if slow.is_empty() {
            return now + limit.saturating_sub(longest.unwrap_or_default() - least).max(MOMENT);
        }
        slow.into_iter().for_each(|member| self.leave(member, at));
        if self.together.len() == 1 {
            // One member is left. Send it the rest separately, because a message to the group crosses the
            // links of all members.
            self.together.pop().into_iter().for_each(|member| self.leave(member, at));
        }
        now
    }

    /// Sends the chunks from `at` on to a member separately.
    fn leave(&mut self, member: Member, at: usize) {
        let (whole, started) = (self.update.clone(), self.started);
        let rest = whole.with_chunks(whole.chunks()[at..].iter().cloned());
        self.alone.push(Box::pin(async move {
            let sent = send::update(&member.shared, &rest).await;
            let report = sent.map(|report| SendReport {
                chunks: whole.chunks().len() as u64,
                payload: whole.payload_bytes(),
                wire: member.wire + report.wire,
                started,
                ..report
            });
            (member.index, report)
        }));
    }

    /// Publishes one chunk, while the separate sends continue. Returns false if a member has no credit for it
    /// any more.
    async fn publish(&mut self, chunk: &ChunkRef, first: bool) -> Result<bool> {
        let (office, update, tell) = (self.office, self.update, self.tell);
        let publishing = publish(office, update, &mut self.together, chunk, first);
        tokio::pin!(publishing);
        loop {
            tokio::select! {
                biased;
                published = &mut publishing => return published,
                Some((index, outcome)) = self.alone.next() => tell(index, outcome),
            }
        }
    }
}

async fn publish(
    office: &Office,
    update: &Outgoing,
    members: &mut [Member],
    chunk: &ChunkRef,
    first: bool,
) -> Result<bool> {
    let mut numbers = office.group.lock().await;
    let bytes = chunk.range().len();
    let taken: Vec<_> =
        members.iter().filter_map(|member| member.shared.bulk.try_take(chunk_cost(bytes))).collect();
    if taken.len() < members.len() {
        return Ok(false);
    }
    let (header, payload) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
    let mut slots = Slots::default();
    members.iter().for_each(|member| slots.insert(member.shared.ends.slot));
    let tag = Tag { instance: office.instance, member: MemberId([0; 16]) };
    let mut wire = 0;
    if first {
        let head = encode(tag, &Kind::GroupBegins { slots: slots.clone(), header });
        let message = Message { head: &head, body: &[], care: Care::Hint };
        wire = office.carrier.publish(Mailbox::Group, message).await?;
    }
    numbers.begun += 1;
    let (number, previous) = (numbers.begun, numbers.confirmed);
    taken.into_iter().for_each(|credit| credit.keep());
    let kept = office.carrier.keeps();
    let head = encode(tag, &Kind::GroupChunk { number, previous, slots, header, kept });
    let placed = Placed { members, bytes };
    let (copied, sent) = if kept {
        let message = Message { head: &head, body: &payload, care: Care::Bulk };
        let sent = office.carrier.publish_kept(header.chunk.offset, message).await?;
        lock(&office.kept).insert(number, header);
        (office.carrier.nature().copies_out * bytes, sent)
    } else {
        let (copied, publishing) =
            send::publish_chunk(&*office.carrier, Mailbox::Group, &head, chunk, &payload);
        (copied, publishing.await?)
    };
    drop(placed);
    numbers.confirmed = number;
    office.confirmed.store(number, Ordering::Release);
    for (id, entry) in lock(&office.links).iter() {
        if !members.iter().any(|member| member.shared.ends.tag.member == *id) {
            entry.shared.passed.fetch_add(bytes, Ordering::Relaxed);
        }
    }
    wire += sent;
    share(members, wire, copied);
    Ok(true)
}

/// Counts a chunk as sent when this is dropped: after the chunk was published, or when publishing was
/// cancelled.
struct Placed<'a> {
    members: &'a [Member],
    bytes: u64,
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        for member in self.members {
            member.shared.position.fetch_add(chunk_cost(self.bytes), Ordering::AcqRel);
        }
    }
}

/// Divides the bytes that were sent and copied once among the members, so that their sum is right.
fn share(members: &mut [Member], wire: u64, copied: u64) {
    let count = members.len() as u64;
    let part = |of: u64, index: usize| of / count + u64::from((index as u64) < of % count);
    for (index, member) in members.iter_mut().enumerate() {
        member.wire += part(wire, index);
        member.shared.sent.fetch_add(part(wire, index), Ordering::Relaxed);
        member.shared.copied.fetch_add(part(copied, index), Ordering::Relaxed);
    }
}
