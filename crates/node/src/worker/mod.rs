//! What runs in a worker's process: it folds what it is told of, and says so. One thread; it ends when its node closes the
//! socket, also by dying.

mod inbox;
mod sums;

use std::io::Write;
use std::os::unix::net::UnixStream;

use inbox::Inbox;
use sums::TwoSums;
use thalweg_arena::{Access, Arena};
use thalweg_fold::Contribution;
use thalweg_pool::{Reader, View};

use crate::clock;
use crate::note::{Kind, Note};
use crate::setup::Setup;

/// Most updates in one pass.
const PASS: usize = 8;
/// Most bytes of a reason.
const MOST_REASON: usize = 2048;

/// Where a worker is in its work; see [`work_with`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It has mapped its memory.
    Ready,
    /// It has read an order, and not obeyed it.
    Told(Kind),
    /// It has obeyed, and not said so.
    Obeyed(Kind),
    /// It has said so.
    Said(Kind),
}

/// Works for the node at the other end of a socket, until it closes it.
///
/// # Errors
/// Why this process is no use: it then ends, and its node starts another.
pub fn work(socket: UnixStream) -> Result<(), String> {
    work_with(socket, &mut |_| {})
}

/// [`work`] that calls `at` at each step: tests end the process there.
///
/// # Errors
/// As [`work`].
pub fn work_with(socket: UnixStream, at: &mut dyn FnMut(Step)) -> Result<(), String> {
    let (setup, pool, sums) = Setup::receive(&socket).map_err(|e| e.to_string())?;
    let reader = Reader::new(pool, setup.plan()).map_err(|e| e.to_string())?;
    let arena = Arena::of_fd(sums, setup.sums_bytes, Access::Write).map_err(|e| e.to_string())?;
    let sums = TwoSums::new(&setup, &arena).map_err(|e| e.to_string())?;
    at(Step::Ready);
    Worker { number: setup.number, reader, sums, socket, replies: Vec::new() }.run(at)
}

struct Worker {
    number: u16,
    reader: Reader,
    sums: TwoSums,
    socket: UnixStream,
    replies: Vec<u8>,
}

/// An update that is to be folded.
struct Held {
    note: Note,
    view: View,
    /// When this process held it.
    since: u64,
}

impl Worker {
    fn run(mut self, at: &mut dyn FnMut(Step)) -> Result<(), String> {
        let mut inbox = Inbox::default();
        while inbox.receive(&mut self.socket).map_err(|e| e.to_string())? {
            while let Some(note) = inbox.next() {
                let mut notes = vec![note.ok_or("the node sent no note")?];
                let kind = notes[0].kind;
                while kind == Kind::Fold && notes.len() < PASS {
                    let Some(note) = inbox.next_of(Kind::Fold) else { break };
                    notes.push(note);
                }
                at(Step::Told(kind));
                self.obey(&notes)?;
                at(Step::Obeyed(kind));
                if self.socket.write_all(&self.replies).is_err() {
                    return Ok(()); // the node is gone
                }
                self.replies.clear();
                at(Step::Said(kind));
            }
        }
        Ok(())
    }

    /// One order, or several folds.
    fn obey(&mut self, notes: &[Note]) -> Result<(), String> {
        match notes[0].kind {
            Kind::Begin => self.sums.begin(),
            Kind::Rollback => self.sums.rollback(),
            Kind::Commit => {
                let (slot, head) = self.sums.commit().map_err(|e| e.to_string())?;
                let mut reply = self.reply(&notes[0], Kind::Committed);
                reply.name.slot = slot as u32;
                let mut following = clock::cpu().to_le_bytes().to_vec();
                following.extend(head.encode());
                self.say(reply, &following);
            }
            Kind::Fold => self.fold(notes),
            Kind::Folded | Kind::Refused | Kind::Committed => {
                return Err("the node sent what only workers say".into());
            }
        }
        Ok(())
    }

    fn fold(&mut self, notes: &[Note]) {
        let mut updates: Vec<Held> = Vec::with_capacity(notes.len());
        for note in notes {
            match self.reader.read(&note.name) {
                Ok(view) => updates.push(Held { note: *note, view, since: clock::now() }),
                Err(error) => self.refuse(note, &error.to_string()),
            }
        }
        while !updates.is_empty() {
            let folded = {
                let together: Vec<Contribution<'_>> = updates.iter().map(Held::contribution).collect();
                self.sums.fold(&together)
            };
            let Err((refused, error)) = folded else { break };
            let held = updates.remove(refused);
            self.refuse(&held.note, &error.to_string());
        }
        for Held { note, view, since } in &updates {
            if view.is_still_there() {
                let reply = self.reply(note, Kind::Folded);
                self.say(reply, &since.to_le_bytes());
            } else {
                // The sums are spoilt; whoever is refused something has all of it taken back.
                self.refuse(note, "the object went away while it was read");
            }
        }
    }

    fn refuse(&mut self, note: &Note, reason: &str) {
        let end =
            (0..=reason.len().min(MOST_REASON)).rev().find(|&at| reason.is_char_boundary(at)).unwrap_or(0);
        let reply = self.reply(note, Kind::Refused);
        self.say(reply, &reason.as_bytes()[..end]);
    }

    fn reply(&self, note: &Note, kind: Kind) -> Note {
        Note { destination: note.source, source: self.number, kind, weight: 0.0, ..*note }
    }

    fn say(&mut self, note: Note, following: &[u8]) {
        let note = Note { following: following.len() as u64, ..note };
        self.replies.extend(note.encode());
        self.replies.extend(following);
    }
}

impl Held {
    fn contribution(&self) -> Contribution<'_> {
        Contribution { bytes: self.view.bytes(), came: self.view.came(), weight: self.note.weight }
    }
}
