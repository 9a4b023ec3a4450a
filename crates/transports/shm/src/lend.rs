//! Tracks the memory that this end lends to the peer: which memory the peer has mapped, and which chunks it
//! is not done with.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use thalweg_arena::{Access, Arena, ArenaError, SharedWords};
use thalweg_transport::{Error, ErrorKind, Outgoing, Result};
use thalweg_wire::{FrameHeader, Range};

use crate::frame::{self, Kind, Note};

/// Maximum number of chunks that are lent to the peer at a time. So a control message waits behind at most
/// this many chunks.
pub(crate) const WINDOW: usize = 8;
/// Maximum number of memories that a peer may have mapped for a link at a time.
pub(crate) const MEMORIES: usize = 64;
/// Value of a shared word whose chunk is not lent.
pub(crate) const REVOKED: u32 = 0;
/// In the link's own shared memory, the room for each chunk is a multiple of this many bytes.
const STEP: u64 = 64 << 10;
const SEND: &str = "send update";

/// Number of a memory, the same for all links of the process. It is attached to the arena and dropped with
/// it.
struct Number(u64, Arc<()>);

fn number_of(arena: &Arena) -> (u64, Weak<()>) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let make = || Ok::<_, Infallible>(Number(NEXT.fetch_add(1, Ordering::Relaxed), Arc::default()));
    arena.attach(make).map_or_else(|never| match never {}, |number| (number.0, Arc::downgrade(&number.1)))
}

/// A chunk that the peer may be reading.
struct Lent {
    /// Number of the call of `send_update` to which the chunk belongs.
    call: u64,
    ticket: u32,
    word: u16,
    /// Keeps the bytes unchanged.
    held: Held,
}

enum Held {
    Loan(#[allow(dead_code)] Bytes), // not read here: the peer reads the bytes
    /// The bytes were copied into the link's own memory, to the slot of the chunk's shared word.
    Own(#[allow(dead_code)] Arena),
    Nothing,
}

#[derive(Default)]
struct State {
    /// The words shared with the peer, once one is needed.
    words: Option<Arc<SharedWords>>,
    /// Memories that the peer has mapped, by number.
    known: HashMap<u64, Weak<()>>,
    /// The link's own shared memory, and the bytes of each of its slots.
    own: Option<(Arena, u64)>,
    /// The chunks that the peer is not done with, in the order of their notes.
    lent: VecDeque<Lent>,
    /// Numbers of the shared words that are free.
    free: Vec<u16>,
    /// The last ticket.
    ticket: u32,
}

/// Frames to be sent in this order, each with the descriptor that belongs to it.
pub(crate) type Frames = Vec<(Vec<u8>, Option<OwnedFd>)>;

/// The frames that tell the peer of one chunk.
pub(crate) struct Noted {
    pub frames: Frames,
    /// Bytes of the chunk's payload.
    pub length: u64,
    /// Bytes that were copied into shared memory for the chunk.
    pub copied: u64,
}

/// The lending side of one end of a link.
#[derive(Default)]
pub(crate) struct Lending {
    state: Mutex<State>,
}

impl Lending {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a chunk to the peer for the call `call`. `None` if the update was cancelled. The caller holds a
    /// permit of the window.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if no shared memory can be allocated.
    pub(crate) fn lend(&self, call: u64, update: &Outgoing, chunk: usize) -> Result<Option<Noted>> {
        let Some((header, sum, payload)) = update.chunks().get(chunk).and_then(|chunk| update.lent(chunk))
        else {
            return Ok(None);
        };
        let mut state = self.state();
        let mut frames = Frames::new();
        let word = state.word(&mut frames).map_err(|e| no_memory(&e))?;
        let shared = Arena::of(&payload).filter(|(arena, _)| arena.descriptor().is_some());
        let copied = if shared.is_some() { 0 } else { payload.len() as u64 };
        let (arena, start, held) = match shared {
            Some((arena, range)) => (arena, range.start, Held::Loan(payload)),
            None => {
                let (arena, start) = state.copy(word, &payload).map_err(|e| no_memory(&e))?;
                (arena.clone(), start, Held::Own(arena))
            }
        };
        let memory = state.announce(&arena, &mut frames).map_err(|e| no_memory(&e))?;
        let ticket = state.next_ticket();
        if let Some(shared_word) = state.words.as_ref().and_then(|words| words.word(word.into())) {
            shared_word.store(ticket, Ordering::Release);
        }
        state.lent.push_back(Lent { call, ticket, word, held });
        let note = Note {
            memory,
            start,
            ticket,
            word,
            checked: sum.is_some(),
            header: FrameHeader::chunk(header, sum.unwrap_or_default()),
        };
        frames.push((note.encode(), None));
        Ok(Some(Noted { frames, length: header.length.into(), copied }))
    }

    /// Records that the peer is done with the next `count` chunks. Returns `false` if fewer chunks were lent.
    pub(crate) fn taken(&self, count: u32) -> bool {
        let mut state = self.state();
        for _ in 0..count {
            let Some(lent) = state.lent.pop_front() else { return false };
            state.free.push(lent.word);
        }
        true
    }

    /// Number of chunks of a call that the peer is not done with.
    pub(crate) fn left(&self, call: u64) -> usize {
        self.state().lent.iter().filter(|lent| lent.call == call).count()
    }

    /// Takes the bytes of a call back. From now on the peer cannot take any of its chunks; a copy in progress
    /// is dropped.
    pub(crate) fn revoke(&self, call: u64) {
        let mut state = self.state();
        let words = state.words.clone();
        for lent in state.lent.iter_mut().filter(|lent| lent.call == call) {
            if let Some(word) = words.as_ref().and_then(|words| words.word(lent.word.into())) {
                // If the value differs, the peer has changed it: it has taken the chunk already.
                _ = word.compare_exchange(lent.ticket, REVOKED, Ordering::AcqRel, Ordering::Acquire);
            }
            if matches!(lent.held, Held::Loan(_)) {
                lent.held = Held::Nothing;
            }
        }
    }

    /// Ends all loans, because the link has ended.
    pub(crate) fn end(&self) {
        self.state().lent.clear();
    }
}

impl State {
    /// A free shared word. The first call makes the words and adds the frame that sends them to the peer.
    fn word(&mut self, frames: &mut Frames) -> std::result::Result<u16, ArenaError> {
        if self.words.is_none() {
            let words = SharedWords::shared(WINDOW)?;
            frames.push((frame::head(Kind::Words, 0).into(), cloned(words.descriptor())?));
            self.words = Some(Arc::new(words));
            self.free = (0..WINDOW as u16).collect();
        }
        let full = || ArenaError::Memory { bytes: 0, cause: "the window is full".into() };
        self.free.pop().ok_or_else(full)
    }

    fn next_ticket(&mut self) -> u32 {
        // Tickets are even: taking a chunk makes its ticket odd. A ticket is never REVOKED.
        self.ticket = self.ticket.wrapping_add(2);
        if self.ticket == REVOKED {
            self.ticket = 2;
        }
        self.ticket
    }

    /// Copies bytes to the slot of a word in the link's own memory. Returns that memory and the slot's
    /// offset.
    fn copy(&mut self, word: u16, bytes: &[u8]) -> std::result::Result<(Arena, u64), ArenaError> {
        let wanted = (bytes.len() as u64).next_multiple_of(STEP).max(STEP);
        let (arena, each) = match self.own.take() {
            Some((arena, each)) if each >= wanted => (arena, each),
            _ => (Arena::shared(wanted * WINDOW as u64, Access::Read)?, wanted),
        };
        self.own = Some((arena.clone(), each));
        let start = u64::from(word) * each;
        arena.claim(Range::new(start, start + bytes.len() as u64))?.copy_from_slice(bytes);
        Ok((arena, start))
    }

    /// Returns the number of a memory. If the peer does not know the memory, adds the frame that shows it.
    /// Then the peer also forgets memories that no longer exist, or the one with the lowest number if it
    /// knows as many as it may.
    fn announce(&mut self, arena: &Arena, frames: &mut Frames) -> std::result::Result<u64, ArenaError> {
        let (number, alive) = number_of(arena);
        if self.known.contains_key(&number) {
            return Ok(number);
        }
        let mut dropped: Vec<u64> = self
            .known
            .iter()
            .filter(|(_, alive)| alive.strong_count() == 0)
            .map(|(number, _)| *number)
            .collect();
        if dropped.is_empty() && self.known.len() >= MEMORIES {
            dropped.extend(self.known.keys().min().copied());
        }
        for number in dropped {
            self.known.remove(&number);
            frames.push((frame::numbers(Kind::Forget, &[number]), None));
        }
        frames.push((frame::numbers(Kind::Memory, &[number, arena.len()]), cloned(arena.descriptor())?));
        self.known.insert(number, alive);
        Ok(number)
    }
}

fn cloned(
    descriptor: Option<std::os::fd::BorrowedFd<'_>>,
) -> std::result::Result<Option<OwnedFd>, ArenaError> {
    let copy = descriptor.map(|descriptor| descriptor.try_clone_to_owned()).transpose();
    copy.map_err(|error| ArenaError::Memory { bytes: 0, cause: error.to_string() })
}

fn no_memory(error: &ArenaError) -> Error {
    Error::new(ErrorKind::System, SEND, format!("no shared memory: {error}"))
        .hint("raise the limit of open files (ulimit -n), or take tcp")
}

#[cfg(test)]
mod tests {
    use thalweg_transport::Cancel;
    use thalweg_wire::{LayoutHash, Ranges};

    use super::*;

    fn update(arena: &Arena) -> Outgoing {
        let id = thalweg_transport::UpdateId { job: 1, round: 1, sender: 1, layout: LayoutHash(1) };
        let bytes = arena.lend(arena.range()).unwrap();
        Outgoing::new(id, bytes, &Ranges::full(arena.len()), 1024, Cancel::default())
    }

    fn kinds(frames: &Frames) -> Vec<Kind> {
        frames.iter().map(|(f, _)| frame::read_head(f[..8].try_into().unwrap()).unwrap().0).collect()
    }

    #[test]
    fn memory_is_told_once_and_forgotten_when_it_is_gone() {
        let lending = Lending::default();
        let first = Arena::shared(4096, Access::Read).unwrap();
        let Noted { frames, copied, .. } = lending.lend(1, &update(&first), 0).unwrap().unwrap();
        assert_eq!((kinds(&frames), copied), (vec![Kind::Words, Kind::Memory, Kind::Chunk], 0));
        assert_eq!(frames.iter().filter(|(_, descriptor)| descriptor.is_some()).count(), 2);
        let Noted { frames, .. } = lending.lend(1, &update(&first), 1).unwrap().unwrap();
        assert_eq!(kinds(&frames), [Kind::Chunk]);
        assert!(lending.taken(2) && !lending.taken(1), "it was lent two");
        drop(first);
        let second = Arena::shared(4096, Access::Read).unwrap();
        let Noted { frames, .. } = lending.lend(2, &update(&second), 0).unwrap().unwrap();
        assert_eq!(kinds(&frames), [Kind::Forget, Kind::Memory, Kind::Chunk]);
    }

    #[test]
    fn a_peer_knows_so_many_memories_at_most() {
        let lending = Lending::default();
        let arenas: Vec<Arena> =
            (0..MEMORIES + 3).map(|_| Arena::shared(64, Access::Read).unwrap()).collect();
        let (mut announced, mut forgotten) = (0, 0);
        for arena in &arenas {
            let Noted { frames, .. } = lending.lend(1, &update(arena), 0).unwrap().unwrap();
            announced += kinds(&frames).iter().filter(|&&kind| kind == Kind::Memory).count();
            forgotten += kinds(&frames).iter().filter(|&&kind| kind == Kind::Forget).count();
            assert!(announced - forgotten <= MEMORIES && lending.taken(1));
        }
        assert_eq!((announced, forgotten), (MEMORIES + 3, 3));
    }

    #[test]
    fn what_is_revoked_is_free_at_once_and_cannot_be_taken() {
        let lending = Lending::default();
        let arena = Arena::shared(4096, Access::Read).unwrap();
        let sent = update(&arena);
        for (call, chunk) in [(1, 0), (2, 1)] {
            lending.lend(call, &sent, chunk).unwrap().unwrap();
        }
        sent.cancel().cancel();
        drop(sent);
        lending.revoke(1);
        assert!(arena.claim(Range::new(0, 1024)).is_err(), "the loan of the second is the same update's");
        lending.revoke(2);
        assert!(arena.claim(arena.range()).is_ok());
        assert_eq!(
            (lending.left(1), lending.left(2)),
            (1, 1),
            "the peer has to say that it has seen the notes"
        );
        let words = lending.state().words.clone().unwrap();
        assert!((0..WINDOW).all(|word| words.word(word).unwrap().load(Ordering::Acquire) == REVOKED));
    }

    #[test]
    fn bytes_of_no_shared_arena_are_copied() {
        let lending = Lending::default();
        let arena = Arena::new(4096).unwrap();
        arena.claim(arena.range()).unwrap().fill(7);
        let Noted { frames, copied, .. } = lending.lend(1, &update(&arena), 3).unwrap().unwrap();
        assert_eq!((kinds(&frames).len(), copied), (3, 1024));
        assert!(arena.claim(arena.range()).is_ok(), "the loan has ended with the copy");
    }
}
