//! A worker's side: reads objects where they lie.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use thalweg_arena::{Access, Arena, ArenaError};
use thalweg_wire::{Range, Ranges};
use thiserror::Error;

use crate::{head, Name, Plan};

/// Why there is no object of a name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The pool has no such slot.
    #[error("the pool has no slot {0}: node and worker must use the same plan")]
    NoSlot(u32),
    /// Another object lies there, or none.
    #[error("slot {0} holds another object by now: its node has freed it")]
    Gone(u32),
    /// What lies at the slot's head cannot be.
    #[error("the head of slot {0} makes no sense: node and worker must have the same version")]
    Head(u32),
    /// This process cannot map it.
    #[error(transparent)]
    Memory(#[from] ArenaError),
}

/// A pool that another process owns, mapped for reading.
#[derive(Debug)]
pub struct Reader {
    arena: Arena,
    plan: Plan,
}

impl Reader {
    /// Maps a pool of this plan.
    ///
    /// # Errors
    /// If the descriptor is of no pool, or of one of another size.
    pub fn new(descriptor: OwnedFd, plan: Plan) -> Result<Self, ArenaError> {
        Ok(Self { arena: Arena::of_fd(descriptor, plan.bytes(), Access::Read)?, plan })
    }

    /// An object.
    ///
    /// # Errors
    /// [`ReadError`] if it does not lie where its name says.
    pub fn read(&self, name: &Name) -> Result<View, ReadError> {
        let place = self.plan.place(name.slot).ok_or(ReadError::NoSlot(name.slot))?;
        let all = self.arena.lend(Range::new(place.head.start, place.body.end))?;
        let head_bytes = place.head.len() as usize;
        let (head, body) = (all.slice(..head_bytes), all.slice(head_bytes..));
        if head::identity(&head) != (name.key, name.generation) {
            return Err(ReadError::Gone(name.slot));
        }
        let came = head::ranges(&head, body.len() as u64).ok_or(ReadError::Head(name.slot))?;
        Ok(View { name: *name, head, body, came })
    }
}

/// An object that is being read.
#[derive(Debug)]
pub struct View {
    name: Name,
    head: Bytes,
    body: Bytes,
    came: Ranges,
}

impl View {
    /// The whole body; where nothing came there is anything.
    pub fn bytes(&self) -> &[u8] {
        &self.body
    }

    /// What came of it.
    pub fn came(&self) -> &Ranges {
        &self.came
    }

    /// Whether the same object still lies there. If not, what was read may have been of another one.
    pub fn is_still_there(&self) -> bool {
        head::identity(&self.head) == (self.name.key, self.name.generation)
    }
}
