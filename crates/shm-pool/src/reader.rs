//! A worker's side of the pool: it reads objects in place.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use thalweg_arena::{Access, Arena, ArenaError};
use thalweg_wire::{Range, Ranges};
use thiserror::Error;

use crate::{head, Name, Plan};

/// Why an object cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The pool has no such slot.
    #[error("the pool has no slot {0}: node and worker must use the same plan")]
    NoSlot(u32),
    /// The slot holds another object or none.
    #[error("slot {0} holds another object by now: its node has freed it")]
    Released(u32),
    /// The head of the slot is invalid.
    #[error("the head of slot {0} makes no sense: node and worker must have the same version")]
    Head(u32),
    /// This process cannot map the memory.
    #[error(transparent)]
    Memory(#[from] ArenaError),
}

/// A pool of another process, mapped for reading.
#[derive(Debug)]
pub struct Reader {
    arena: Arena,
    plan: Plan,
}

impl Reader {
    /// Maps a pool with this plan.
    ///
    /// # Errors
    /// If the descriptor is not that of a pool with this size.
    pub fn new(descriptor: OwnedFd, plan: Plan) -> Result<Self, ArenaError> {
        Ok(Self { arena: Arena::of_fd(descriptor, plan.bytes(), Access::Read)?, plan })
    }

    /// Opens the object with this name.
    ///
    /// # Errors
    /// [`ReadError`] if the slot does not hold this object.
    pub fn read(&self, name: &Name) -> Result<View, ReadError> {
        let place = self.plan.place(name.slot).ok_or(ReadError::NoSlot(name.slot))?;
        let all = self.arena.lend(Range::new(place.head.start, place.body.end))?;
        let head_bytes = place.head.len() as usize;
        let (head, body) = (all.slice(..head_bytes), all.slice(head_bytes..));
        if head::identity(&head) != (name.key, name.generation) {
            return Err(ReadError::Released(name.slot));
        }
        let received = head::ranges(&head, body.len() as u64).ok_or(ReadError::Head(name.slot))?;
        Ok(View { name: *name, head, body, received })
    }
}

/// An object that is open for reading.
#[derive(Debug)]
pub struct View {
    name: Name,
    head: Bytes,
    body: Bytes,
    received: Ranges,
}

impl View {
    /// The whole body. Bytes outside the received ranges are arbitrary.
    pub fn bytes(&self) -> &[u8] {
        &self.body
    }

    /// The ranges of the body that were received.
    pub fn received(&self) -> &Ranges {
        &self.received
    }

    /// Whether the slot still holds this object. If not, the bytes read before may belong to another one.
    pub fn is_still_there(&self) -> bool {
        head::identity(&self.head) == (self.name.key, self.name.generation)
    }
}
