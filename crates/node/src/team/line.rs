//! The node's end of a worker: its process, and what was and is to be told to it.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{send, SendFlags};
use thalweg_fold::SumsHead;

use crate::clock;
use crate::launch::Process;
use crate::ledger::{Base, Ledger, Lie, Order};
use crate::note::{Kind, Note, NOTE_BYTES};
use crate::team::timeline::{Doing, Stretch};

/// A worker that runs.
pub(super) struct Line {
    socket: UnixStream,
    process: Box<dyn Process>,
    /// What the socket had no room for. The ledger tells of each update once, and again after each refusal or death, so
    /// this is bounded by the slots of the pool.
    outbox: Vec<u8>,
    /// Updates that it was told of and has not answered.
    owed: usize,
    /// The update that it was told of while it had nothing to do, and when.
    told: Option<(u32, u64)>,
    /// When it was told to commit, until it has.
    committing: Option<u64>,
    /// Nanoseconds of CPU time, as it said last.
    pub cpu: u64,
    /// It has folded an update.
    pub has_worked: bool,
}

impl Line {
    pub fn new(socket: UnixStream, process: Box<dyn Process>) -> Self {
        Self {
            socket,
            process,
            outbox: Vec::new(),
            owed: 0,
            told: None,
            committing: None,
            cpu: 0,
            has_worked: false,
        }
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits until the process has ended; it writes nowhere any more then.
    pub fn end(mut self) {
        self.process.end();
    }

    pub fn hang_up(&self) {
        _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Tells a worker something, as soon as its socket has room.
    pub fn tell(&mut self, worker: usize, round: u32, task: u32, order: Order) {
        let to = |kind| Note { round, ..Note::plain(0, number_of(worker), task, kind) };
        let note = match order {
            Order::Begin => to(Kind::Begin),
            Order::Rollback => to(Kind::Rollback),
            Order::Commit => to(Kind::Commit),
            Order::Fold { sequence, name, weight } => Note { sequence, name, weight, ..to(Kind::Fold) },
        };
        if note.kind == Kind::Fold {
            self.told = (self.owed == 0).then(|| (note.sequence, clock::now()));
            self.owed += 1;
        }
        if note.kind == Kind::Commit {
            self.committing = Some(clock::now());
        }
        self.outbox.extend(note.encode());
        self.flush();
    }

    /// Sends what the socket takes. A worker that has ended is found dead by whoever hears it.
    pub fn flush(&mut self) {
        while !self.outbox.is_empty() {
            match send(&self.socket, &self.outbox, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return, // the worker answers what it has read, and then there is room
                Err(_) => return self.outbox.clear(),
            }
        }
    }

    /// What a worker has done until it gave this answer.
    pub fn stretch(&mut self, worker: usize, note: &Note, following: &[u8]) -> Option<Stretch> {
        let end = clock::now();
        let (doing, start, updates) = match note.kind {
            Kind::Folded => (Doing::Fold, stated(following)?, 1),
            Kind::Committed => (Doing::Commit, self.committing.take()?, 0),
            Kind::Refused | Kind::Begin | Kind::Rollback | Kind::Commit | Kind::Fold => return None,
        };
        Some(Stretch { worker, doing, start, end, updates })
    }

    /// What an answer says of times; returns the nanoseconds from note to object, if it was told while it had nothing to
    /// do.
    pub fn note_times(&mut self, note: &Note, following: &[u8]) -> Option<u64> {
        let stated = stated(following);
        match note.kind {
            Kind::Committed => self.cpu = stated.map_or(self.cpu, |cpu| cpu.max(self.cpu)),
            Kind::Folded | Kind::Refused => self.owed = self.owed.saturating_sub(1),
            Kind::Begin | Kind::Rollback | Kind::Commit | Kind::Fold => {}
        }
        self.has_worked |= note.kind == Kind::Folded;
        let (_, sent) = self.told.take_if(|(told, _)| note.kind == Kind::Folded && *told == note.sequence)?;
        stated?.checked_sub(sent)
    }
}

/// The time that a worker states behind an answer.
fn stated(following: &[u8]) -> Option<u64> {
    following.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn number_of(worker: usize) -> u16 {
    worker as u16 + 1
}

/// The first message in these bytes, once it is whole: a note, `None` if it is none, and what follows it.
pub(super) fn message(bytes: &[u8]) -> Option<(Option<Note>, &[u8])> {
    let (note, rest) = bytes.split_first_chunk::<NOTE_BYTES>()?;
    let Some(note) = Note::decode(note) else { return Some((None, &[])) };
    Some((Some(note), rest.get(..note.following as usize)?))
}

/// Takes what a worker says into account.
///
/// # Errors
/// [`Lie`] if that cannot be.
pub(super) fn answer(ledger: &mut Ledger, worker: usize, note: &Note, following: &[u8]) -> Result<(), Lie> {
    if note.source != number_of(worker) || note.destination != 0 {
        return Err(Lie("that it is another worker"));
    }
    match note.kind {
        Kind::Folded => ledger.folded(worker, note.task, note.sequence, note.name.key),
        Kind::Refused => {
            ledger.refused(worker, note.task, note.sequence, &String::from_utf8_lossy(following))
        }
        Kind::Committed => {
            let head = following.get(8..).and_then(|head| SumsHead::decode(head).ok());
            let head = head.ok_or(Lie("a head of sums that is none"))?;
            ledger.committed(worker, note.task, Base { slot: note.name.slot, head })
        }
        Kind::Begin | Kind::Rollback | Kind::Commit | Kind::Fold => Err(Lie("what only its node may say")),
    }
}
