//! The main loop of a worker process: it obeys the node's orders and answers each. It has one thread. It ends
//! when the node closes the socket, which also happens when the node dies.

#[cfg(feature = "baselines")]
mod copying;
mod saying;
mod sums;

use std::os::unix::net::UnixStream;

#[cfg(feature = "baselines")]
use copying::CopyingPlane;
use saying::Saying;
use sums::TwoSums;
use thalweg_arena::{Access, Arena};
use thalweg_fold::Contribution;
use thalweg_shm_pool::{Reader, View};

use crate::clock;
#[cfg(not(feature = "baselines"))]
use crate::copying::WorkerCopyingPlane as CopyingPlane;
use crate::hearing::{Hearing, Message, WaitOutcome};
use crate::note::{Kind, Note};
use crate::setup::{Setup, Shared};

/// Maximum number of updates that the worker folds in one pass over its sums.
const PASS: usize = 8;
/// Maximum number of bytes of the reason in a [`Kind::Refused`] answer.
const MOST_REASON: usize = 2048;

/// The point that a worker has reached in its work; see [`work_with`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The worker has mapped its memory.
    Ready,
    /// The worker has read an order of this kind and not yet carried it out.
    Ordered(Kind),
    /// The worker has carried out an order of this kind and not yet answered.
    Obeyed(Kind),
    /// The worker has answered an order of this kind.
    Answered(Kind),
}

/// Works for the node at the other end of `socket` until the node closes it.
///
/// # Errors
/// The reason why this process cannot go on. The process should then end; its node starts another one.
pub fn work(socket: UnixStream) -> Result<(), String> {
    work_with(socket, &mut |_| {})
}

/// Like [`work`], but calls `at` at each step. Tests end the process there.
///
/// # Errors
/// The same as [`work`].
pub fn work_with(socket: UnixStream, at: &mut dyn FnMut(Step)) -> Result<(), String> {
    let (setup, Shared { pool, sums, copying, route }) =
        Setup::receive(&socket).map_err(|e| e.to_string())?;
    let reader = Reader::new(pool, setup.plan()).map_err(|e| e.to_string())?;
    let copying = copying.map(|end| CopyingPlane::new(end, &sums, &setup)).transpose()?;
    let arena = Arena::of_fd(sums, setup.memory_bytes, Access::Write).map_err(|e| e.to_string())?;
    let sums = TwoSums::new(&setup, arena).map_err(|e| e.to_string())?;
    let route_copy = route.as_ref().map(|route| route.try_clone()).transpose();
    let hearing = socket.try_clone().and_then(|socket| Ok(Hearing::new(socket, route_copy?)));
    let hearing = hearing.map_err(|e| e.to_string())?;
    at(Step::Ready);
    let mut saying = Saying::new(socket, route);
    saying.say(Note::plain(setup.number, 0, 0, Kind::Ready), &[]);
    if !saying.flush() {
        return Ok(()); // the node is gone
    }
    Worker { number: setup.number, reader, sums, copying, saying }.run(hearing, at)
}

struct Worker {
    number: u16,
    reader: Reader,
    sums: TwoSums,
    /// The connection for copies, if the data plane copies updates and sums.
    copying: Option<CopyingPlane>,
    saying: Saying,
}

/// An update that the worker is about to fold.
struct Held {
    note: Note,
    view: View,
    /// When this process opened the object, in nanoseconds of the monotonic clock.
    since: u64,
}

impl Worker {
    fn run(mut self, mut hearing: Hearing, at: &mut dyn FnMut(Step)) -> Result<(), String> {
        loop {
            match hearing.wait(None) {
                Ok(WaitOutcome::End) => return Ok(()),
                Ok(_) => {}
                Err(_) => return Err("the node sent no note".into()),
            }
            while let Some(Message { note, following }) = hearing.next() {
                let kind = note.kind;
                let mut notes = vec![note];
                while kind == Kind::Fold && notes.len() < self.pass() {
                    let Some(message) = hearing.next_of(Kind::Fold) else { break };
                    notes.push(message.note);
                }
                at(Step::Ordered(kind));
                self.obey(&notes, &following)?;
                at(Step::Obeyed(kind));
                if !self.saying.flush() {
                    return Ok(()); // the node is gone
                }
                at(Step::Answered(kind));
            }
        }
    }

    /// Carries out one order, which `following` belongs to, or several [`Kind::Fold`] orders together.
    fn obey(&mut self, notes: &[Note], following: &[u8]) -> Result<(), String> {
        match notes[0].kind {
            Kind::Begin => self.sums.begin(),
            Kind::Rollback => self.sums.rollback(),
            Kind::Commit => {
                let (slot, head) = self.sums.commit().map_err(|e| e.to_string())?;
                let mut reply = self.reply(&notes[0], Kind::Committed);
                reply.name.slot = slot as u32;
                let mut following = clock::cpu().to_le_bytes().to_vec();
                following.extend(head.encode());
                self.saying.say(reply, &following);
            }
            Kind::Fold => self.fold(notes)?,
            Kind::Merge => match self.sums.merge(notes[0].name.slot, notes[0].sequence, following) {
                Ok(()) => self.saying.say(self.reply(&notes[0], Kind::Merged), &[]),
                Err(error) => self.refuse(&notes[0], &error.to_string()),
            },
            Kind::Send => {
                let base = self.sums.base().ok_or("the node wants sums, and none are committed")?;
                self.copying.as_mut().ok_or("the node wants sums, and gave no connection")?.send(base)?;
            }
            Kind::Folded | Kind::Refused | Kind::Committed | Kind::Ready | Kind::Merged => {
                return Err("the node sent what only workers say".into());
            }
        }
        Ok(())
    }

    /// Maximum number of updates in one pass: one if updates are copied, since there is only one buffer for
    /// copies.
    fn pass(&self) -> usize {
        if self.copying.is_some() {
            1
        } else {
            PASS
        }
    }

    fn fold(&mut self, notes: &[Note]) -> Result<(), String> {
        let mut copying = self.copying.take();
        // The node sends the copy of an update even if the object cannot be read.
        let copy = copying.as_mut().map(CopyingPlane::receive).transpose()?;
        self.fold_all(notes, copy);
        self.copying = copying;
        Ok(())
    }

    fn fold_all(&mut self, notes: &[Note], copy: Option<&[u8]>) {
        let mut updates: Vec<Held> = Vec::with_capacity(notes.len());
        for note in notes {
            match self.reader.read(&note.name) {
                Ok(view) => updates.push(Held { note: *note, view, since: clock::now() }),
                Err(error) => self.refuse(note, &error.to_string()),
            }
        }
        while !updates.is_empty() {
            let folded = {
                let held = updates.iter().map(|held| held.contribution(copy));
                let together: Vec<Contribution<'_>> = held.collect();
                self.sums.fold(&together)
            };
            let Err((refused, error)) = folded else { break };
            let held = updates.remove(refused);
            self.refuse(&held.note, &error.to_string());
        }
        for Held { note, view, since } in &updates {
            if view.is_still_there() {
                let reply = self.reply(note, Kind::Folded);
                self.saying.say(reply, &since.to_le_bytes());
            } else {
                // Refuse the update: the sums now contain wrong bytes. The node answers a refusal with a
                // rollback, which discards them.
                self.refuse(note, "the object went away while it was read");
            }
        }
    }

    fn refuse(&mut self, note: &Note, reason: &str) {
        let end =
            (0..=reason.len().min(MOST_REASON)).rev().find(|&at| reason.is_char_boundary(at)).unwrap_or(0);
        let reply = self.reply(note, Kind::Refused);
        self.saying.say(reply, &reason.as_bytes()[..end]);
    }

    fn reply(&self, note: &Note, kind: Kind) -> Note {
        Note { destination: note.source, source: self.number, kind, weight: 0.0, ..*note }
    }
}

impl Held {
    /// The bytes to fold: the copy, if there is one, else the object in the pool.
    fn contribution<'a>(&'a self, copy: Option<&'a [u8]>) -> Contribution<'a> {
        Contribution {
            bytes: copy.unwrap_or_else(|| self.view.bytes()),
            received: self.view.received(),
            weight: self.note.weight,
        }
    }
}
