//! Reads frames from the connection in a task, and passes messages and chunks on to the link.
//!
//! It is a task of its own because a sender waits for the peer's acknowledgements even while nobody receives
//! at this end.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use bytes::Bytes;
use thalweg_arena::{Foreign, SharedWords};
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_wire::Kind as Carries;
use tokio::sync::mpsc;

use crate::frame::{self, Kind, Note, HEAD};
use crate::lend::{MEMORIES, WINDOW};
use crate::link::Shared;

/// Bytes that one call reads from the connection.
const PIECE: usize = 64 << 10;
/// Maximum number of descriptors that may arrive before the frames that they belong to.
const DESCRIPTORS: usize = 4;
const RECEIVE: &str = "receive";

/// What the reader passes on to the link.
pub(crate) enum Received {
    Control(Bytes),
    Chunk(Box<Chunk>),
    /// The peer broke the protocol, or the link was evicted.
    Broken(Error),
}

/// A chunk that lies in the peer's memory.
pub(crate) struct Chunk {
    pub note: Note,
    pub memory: Arc<Foreign>,
    words: Arc<SharedWords>,
}

impl Chunk {
    /// The chunk's shared word.
    pub(crate) fn word(&self) -> &AtomicU32 {
        static NONE: AtomicU32 = AtomicU32::new(crate::lend::REVOKED);
        self.words.word(self.note.word.into()).unwrap_or(&NONE)
    }
}

/// Reads until the link ends.
pub(crate) async fn frames(shared: Arc<Shared>, pass: mpsc::Sender<Received>) {
    let mut reader = Reader::default();
    let outcome = tokio::select! {
        biased;
        outcome = reader.read(&shared, &pass) => outcome,
        error = shared.standing.evicted() => Err(error),
    };
    match outcome {
        Ok(()) => shared.end("the peer has closed the link"),
        Err(error) => {
            shared.refuse(&error.to_string());
            let _ = pass.send(Received::Broken(error)).await; // fails if nobody receives any more
        }
    }
}

fn corrupt(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, RECEIVE, context)
}

#[derive(Default)]
struct Reader {
    /// Bytes that were read from the connection but not decoded yet.
    bytes: Vec<u8>,
    /// Descriptors whose frames have not been decoded yet.
    descriptors: VecDeque<OwnedFd>,
    /// The peer's shared words, once it has shown them.
    words: Option<Arc<SharedWords>>,
    /// The peer's memories that are mapped here, by number.
    memories: HashMap<u64, Arc<Foreign>>,
}

impl Reader {
    /// Reads until the peer ends the connection between two frames.
    async fn read(&mut self, shared: &Shared, pass: &mpsc::Sender<Received>) -> Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let mut at = 0;
            while let Some((kind, body)) = next(&self.bytes[at..], shared)? {
                let frame = self.frame(kind, at + HEAD..at + HEAD + body, shared)?;
                at += HEAD + body;
                if let Some(frame) = frame {
                    let _ = pass.send(frame).await; // fails if nobody receives any more; sending goes on
                }
            }
            self.bytes.drain(..at);
            let received = shared.socket.receive(&mut piece).await.map_err(|e| explain(shared, &e))?;
            if received.bytes == 0 {
                return match self.bytes.is_empty() {
                    true => Ok(()),
                    false => Err(Error::closed(RECEIVE, format!("{} ended the link in a frame", shared.who))),
                };
            }
            shared.received.fetch_add(received.bytes as u64, Ordering::Relaxed);
            self.bytes.extend_from_slice(&piece[..received.bytes]);
            self.descriptors.extend(received.descriptor);
            if self.descriptors.len() > DESCRIPTORS {
                return Err(corrupt("descriptors without frames that they belong to"));
            }
        }
    }

    /// Handles a frame. `body` is the range of its body in `self.bytes`. Returns what is to be passed on.
    fn frame(
        &mut self,
        kind: Kind,
        body: std::ops::Range<usize>,
        shared: &Shared,
    ) -> Result<Option<Received>> {
        let body = &self.bytes[body];
        match kind {
            Kind::Control => return Ok(Some(Received::Control(Bytes::copy_from_slice(body)))),
            Kind::Taken => {
                let count = frame::read_taken(body)?;
                if count as usize > WINDOW || !shared.lending.taken(count) {
                    return Err(corrupt(format!("it has done with {count} chunks more than it was lent")));
                }
                shared.window.add_permits(count as usize);
                shared.returned.send_replace(());
            }
            Kind::Words => {
                let descriptor =
                    self.descriptors.pop_front().ok_or_else(|| corrupt("shared words without memory"))?;
                let words = SharedWords::of_fd(descriptor, WINDOW).map_err(|e| corrupt(e.to_string()))?;
                self.words = Some(Arc::new(words));
            }
            Kind::Memory => {
                let (number, bytes) = (frame::word(body, 0)?, frame::word(body, 1)?);
                let descriptor =
                    self.descriptors.pop_front().ok_or_else(|| corrupt("memory without a descriptor"))?;
                if self.memories.len() >= MEMORIES {
                    return Err(corrupt(format!("more than {MEMORIES} memories")));
                }
                let memory = Foreign::of_fd(descriptor, bytes).map_err(|e| corrupt(e.to_string()))?;
                self.memories.insert(number, Arc::new(memory));
            }
            Kind::Forget => drop(self.memories.remove(&frame::word(body, 0)?)),
            Kind::Chunk => return self.chunk(body.to_vec(), shared).map(Some),
        }
        Ok(None)
    }

    fn chunk(&self, body: Vec<u8>, shared: &Shared) -> Result<Received> {
        let note = Note::decode(&body)?;
        shared.standing.check(Carries::Chunk, note.header.length())?;
        let memory = self.memories.get(&note.memory).cloned();
        let memory = memory.ok_or_else(|| corrupt("a chunk in memory that was not shown"))?;
        let words = self.words.clone().ok_or_else(|| corrupt("a chunk without shared words"))?;
        if usize::from(note.word) >= WINDOW {
            return Err(corrupt(format!("word {} of {WINDOW} shared words", note.word)));
        }
        if shared.noted.fetch_add(1, Ordering::AcqRel) as usize >= WINDOW {
            return Err(corrupt(format!("more than {WINDOW} chunks at a time")));
        }
        Ok(Received::Chunk(Box::new(Chunk { note, memory, words })))
    }
}

/// Kind and body length of the next frame, if all of the frame has arrived.
fn next(bytes: &[u8], shared: &Shared) -> Result<Option<(Kind, usize)>> {
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let (kind, length) = frame::read_head(head)?;
    match kind {
        Kind::Control if length > thalweg_wire::MAX_CONTROL as usize => {
            return Err(corrupt(format!("a control message of {length} bytes")));
        }
        Kind::Control => shared.standing.check(Carries::Control, length)?,
        // A peer that has not proved who it is may not lend anything.
        Kind::Chunk | Kind::Memory | Kind::Words => shared.standing.check(Carries::Chunk, 0)?,
        Kind::Taken | Kind::Forget => {}
    }
    Ok((bytes.len() - HEAD >= length).then_some((kind, length)))
}

fn explain(shared: &Shared, error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::InvalidData => Error::new(ErrorKind::System, RECEIVE, error.to_string()),
        _ => Error::io(RECEIVE, &shared.who, error),
    }
}
