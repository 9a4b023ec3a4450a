//! The state machine that moves granted parts of updates piece by piece. It takes grants, completions and losses, and
//! returns work requests.
//!
//! The same machine serves both directions. A sender that writes commits each grant with a record in the
//! receiver's ring. A receiver that reads commits nothing.

use std::collections::{BTreeMap, VecDeque};

use thalweg_wire::Range;

use crate::cut::{cut, Cut, MOST_PIECE};
use crate::slots::Slots;
use crate::window::{Flight, Permit, Sent, Window};
use crate::Time;

/// The link ends when this many pairs are lost in a row, and in between no grant is taken and no piece arrives.
const LOSSES: u32 = 3;

/// Settings of a mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// How updates are cut.
    pub cut: Cut,
    /// How much is in flight.
    pub flight: Flight,
    /// Maximum number of work requests in flight. The device's queues must hold as many.
    pub pieces: usize,
    /// Number of slots for commit records; 0 if nothing is committed.
    pub slots: usize,
    /// Maximum number of pieces whose notes the receiver has not read; 0 if pieces have no notes.
    pub notes: usize,
    /// Most bytes that the device moves by one work request. A longer piece takes several.
    pub longest: u64,
}

/// Memory of the peer for one part: a chunk, or a whole update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Number of the part. Numbers grow.
    pub number: u64,
    /// Bytes of the part.
    pub length: u64,
    /// Address of the memory at the peer.
    pub address: u64,
    /// Key to that memory.
    pub key: u32,
}

/// The action of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Moves these bytes of the grant.
    Move(Range),
    /// Writes the commit record into this slot, behind all pieces of the grant.
    Commit(u32),
}

/// A work request for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Number of the work request, for [`Mover::handle_done`].
    pub piece: u64,
    /// The grant that it works on.
    pub grant: Grant,
    /// What the work request does.
    pub task: Task,
}

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The work request was completed.
    Done,
    /// The pair is lost. Nobody knows whether it was completed.
    Lost,
}

/// What to do after a queue pair was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Make another pair.
    Again,
    /// Three pairs were lost in a row without progress: end the link.
    End,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Commit {
    Due,
    Posted,
    Done,
    /// Withdrawn: nothing more is moved or committed.
    Waived,
}

/// Progress of a grant.
#[derive(Debug)]
struct Run {
    grant: Grant,
    /// Whether the grant's memory can be reached: false from a loss of the pair until the next grant.
    open: bool,
    todo: VecDeque<Range>,
    flying: usize,
    commit: Commit,
}

impl Run {
    fn is_over(&self) -> bool {
        self.todo.is_empty() && self.flying == 0 && self.commit == Commit::Done
    }
}

#[derive(Debug)]
struct Flying {
    number: u64,
    task: Task,
    sent: Sent,
}

/// Moves the bytes of grants.
#[derive(Debug)]
pub struct Mover {
    config: Config,
    window: Window,
    slots: Slots,
    runs: BTreeMap<u64, Run>,
    flying: BTreeMap<u64, Flying>,
    ended: VecDeque<u64>,
    next_piece: u64,
    /// Pieces of this pair whose notes the receiver may not have read.
    unread: usize,
    losses: u32,
}

impl Mover {
    /// A mover without grants.
    pub fn new(config: Config) -> Self {
        Self::sharing(config, 1)
    }

    /// A mover for one of `pairs` pairs that a sender uses at the same time. Together they start with as many bytes
    /// in flight as one pair does, but each with a piece at least. Otherwise they know nothing of each other.
    pub fn sharing(config: Config, pairs: usize) -> Self {
        Self {
            config,
            window: Window::new(config.flight, pairs as u64),
            slots: Slots::new(config.slots),
            runs: BTreeMap::new(),
            flying: BTreeMap::new(),
            ended: VecDeque::new(),
            next_piece: 0,
            unread: 0,
            losses: 0,
        }
    }

    /// Bytes that may be in flight at a time.
    pub fn window(&self) -> u64 {
        self.window.bytes()
    }

    /// Length of an adaptive cut's next piece, in bytes.
    pub fn piece(&self) -> u64 {
        self.window.size.bytes()
    }

    /// Bytes in flight.
    pub fn under_way(&self) -> u64 {
        self.window.under_way()
    }

    /// Whether all pieces of a grant are posted or have arrived.
    pub fn is_posted(&self, number: u64) -> bool {
        self.runs.get(&number).is_some_and(|run| run.todo.is_empty())
    }

    /// Work requests in flight for a grant.
    pub fn flying(&self, number: u64) -> usize {
        self.runs.get(&number).map_or(0, |run| run.flying)
    }

    /// The peer grants memory. If the grant's pair was lost, the missing ranges go to the new memory.
    pub fn handle_grant(&mut self, grant: Grant) {
        let config = self.config;
        if self.runs.get(&grant.number).is_some_and(|run| run.commit == Commit::Waived) {
            return;
        }
        let run = self.runs.entry(grant.number).or_insert_with(|| Run {
            grant,
            open: true,
            todo: cut(grant.length, config.cut).into(),
            flying: 0,
            commit: if config.slots > 0 { Commit::Due } else { Commit::Done },
        });
        (run.grant, run.open) = (Grant { length: run.grant.length, ..grant }, true);
        if run.is_over() {
            self.ended.push_back(grant.number);
        }
    }

    /// The peer has taken the chunk, or never will: the grant is over and its slot is free. This counts as
    /// progress: the count of losses starts again.
    pub fn handle_taken(&mut self, number: u64) {
        self.slots.read(number);
        self.runs.remove(&number);
        self.losses = 0;
    }

    /// The receiver has read this many notes more. Returns false if it cannot be so: fewer were unread.
    #[must_use]
    pub fn handle_noted(&mut self, count: usize) -> bool {
        let unread = self.unread.checked_sub(count);
        self.unread = unread.unwrap_or(0);
        unread.is_some()
    }

    /// Whether a piece may be moved: it has no note, or the receiver has room for its note. Otherwise the piece
    /// would not complete before the receiver reads a note, and could not be withdrawn before.
    fn has_room(&self) -> bool {
        self.config.notes == 0 || self.unread < self.config.notes
    }

    /// Moves a range again that was moved and is missing at the peer nevertheless.
    pub fn again(&mut self, number: u64, range: Range) {
        let piece = match self.config.cut {
            Cut::Fixed { piece, .. } | Cut::Forward { piece, .. } => piece.max(1),
            Cut::Adaptive | Cut::Whole => u64::MAX,
        };
        let Some(run) = self.runs.get_mut(&number).filter(|run| run.commit != Commit::Waived) else { return };
        let (mut start, end) = (range.start, range.end.min(run.grant.length));
        while start < end {
            let next = start.saturating_add(piece).min(end);
            run.todo.push_back(Range::new(start, next));
            start = next;
        }
    }

    /// Withdraws a grant. Its work requests in flight stay so until they complete.
    ///
    /// Returns whether the commit record was already posted. Then the peer takes the chunk nevertheless.
    pub fn withdraw(&mut self, number: u64) -> bool {
        let Some(run) = self.runs.get_mut(&number) else { return false };
        if run.commit == Commit::Posted || (run.commit == Commit::Done && self.config.slots > 0) {
            return true;
        }
        run.todo.clear();
        run.commit = Commit::Waived;
        if run.flying == 0 {
            self.runs.remove(&number);
        }
        false
    }

    /// A work request has ended. Requests of a pair that was lost before are not known any more and are
    /// ignored.
    pub fn handle_done(&mut self, now: Time, piece: u64, outcome: Outcome) {
        let Some(Flying { number, task, sent }) = self.flying.remove(&piece) else { return };
        match outcome {
            Outcome::Done => self.window.done(now, sent),
            Outcome::Lost => self.window.lost(sent),
        }
        let Some(run) = self.runs.get_mut(&number) else { return };
        run.flying -= 1;
        if run.commit == Commit::Waived {
            if run.flying == 0 {
                self.runs.remove(&number);
            }
            return;
        }
        match (task, outcome) {
            // The piece is not moved again, so this is progress.
            (Task::Move(_), Outcome::Done) => self.losses = 0,
            (Task::Move(range), Outcome::Lost) => run.todo.push_front(range),
            (Task::Commit(_), Outcome::Done) => run.commit = Commit::Done,
            (Task::Commit(_), Outcome::Lost) => {
                run.commit = Commit::Due;
                self.slots.read(number);
            }
        }
        if run.is_over() {
            self.ended.push_back(number);
        }
    }

    /// The pair is lost. Everything in flight must be moved again, but not before [`Self::handle_grant`]
    /// names the new memory. The peer will have a new ring.
    pub fn handle_lost_pair(&mut self, now: Time) -> Verdict {
        for piece in self.flying.keys().copied().collect::<Vec<_>>() {
            self.handle_done(now, piece, Outcome::Lost);
        }
        for run in self.runs.values_mut() {
            run.open = false;
            // The written record may be unread. Its ring is gone, so write it again.
            if run.commit == Commit::Done && self.config.slots > 0 {
                run.commit = Commit::Due;
            }
        }
        self.ended.clear();
        self.slots.clear();
        self.unread = 0;
        self.window.restart();
        self.losses += 1;
        if self.losses < LOSSES {
            Verdict::Again
        } else {
            Verdict::End
        }
    }

    /// The lowest-numbered grant that has work to do.
    fn ready(&self) -> Option<u64> {
        let ready = |run: &Run| {
            // A pair keeps the order of its work requests, so the record may be posted right behind the
            // pieces. In the mode with one piece at a time, wait until they have completed.
            let behind = run.todo.is_empty() && run.commit == Commit::Due;
            let alone = run.flying == 0 || !matches!(self.config.flight, Flight::One(_));
            run.open && (!run.todo.is_empty() || (behind && alone))
        };
        self.runs.iter().find(|(_, run)| ready(run)).map(|(&number, _)| number)
    }

    /// Length of the longest piece now, in bytes. If few pieces may be in flight, they must be long enough to
    /// fill the window.
    fn longest(&self) -> u64 {
        let longest = match self.config.cut {
            Cut::Adaptive => {
                let share = self.window.bytes() / self.config.pieces.max(1) as u64;
                self.window.size.bytes().max(share.min(MOST_PIECE))
            }
            Cut::Fixed { .. } | Cut::Forward { .. } | Cut::Whole => u64::MAX,
        };
        longest.min(self.config.longest).max(1)
    }

    /// The next work request; `None` if there is none now.
    pub fn poll_work(&mut self, now: Time) -> Option<Job> {
        if self.flying.len() >= self.config.pieces {
            return None;
        }
        let Some(number) = self.ready() else {
            self.window.idle();
            return None;
        };
        let (longest, has_room) = (self.longest(), self.has_room());
        let run = self.runs.get_mut(&number)?;
        let task = if let Some(&whole) = run.todo.front() {
            let range = Range::new(whole.start, whole.end.min(whole.start.saturating_add(longest)));
            if !has_room || self.window.permit(now, range.len()) != Permit::Now {
                return None;
            }
            if range.end == whole.end {
                run.todo.pop_front();
            } else {
                run.todo[0].start = range.end;
            }
            Task::Move(range)
        } else {
            let slot = self.slots.take(number)?;
            run.commit = Commit::Posted;
            Task::Commit(slot)
        };
        let bytes = if let Task::Move(range) = task { range.len() } else { 0 };
        let (piece, grant) = (self.next_piece, run.grant);
        run.flying += 1;
        self.next_piece += 1;
        self.unread += usize::from(self.config.notes > 0 && matches!(task, Task::Move(_)));
        let sent = self.window.sent(now, bytes);
        self.flying.insert(piece, Flying { number, task, sent });
        Some(Job { piece, grant, task })
    }

    /// When [`Self::poll_work`] will return work even if no event occurs before; `None` if only an event can
    /// help. It is later than `now` if `poll_work` returned nothing at the same `now`.
    pub fn poll_timeout(&mut self, now: Time) -> Option<Time> {
        let may_move = self.flying.len() < self.config.pieces && self.has_room();
        let number = self.ready().filter(|_| may_move)?;
        let longest = self.longest();
        let length = self.runs.get(&number)?.todo.front()?.len().min(longest);
        match self.window.permit(now, length) {
            Permit::At(at) => Some(at),
            Permit::Now => Some(now),
            Permit::Wait => None,
        }
    }

    /// The next grant that has been moved completely, and committed if grants are committed.
    pub fn poll_ended(&mut self) -> Option<u64> {
        self.ended.pop_front()
    }
}
