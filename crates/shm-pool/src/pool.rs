//! The node's side of the pool. Only the node allocates slots and writes to them.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use thalweg_arena::{Access, Arena, ArenaError, Claim};
use thalweg_wire::{Range, Ranges};
use thiserror::Error;

use crate::plan::Place;
use crate::{head, Key, Name, Plan};

/// All slots of this size class are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("all slots for objects of this size are in use: wait until one was folded, or raise staging")]
pub struct Full;

/// Why a pool cannot be made, or an object cannot be sealed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PoolError {
    /// The pool is larger than the machine's available memory.
    #[error("a pool of {bytes} bytes does not fit the {available} bytes of memory that are available: lower staging or use a smaller model")]
    TooLarge {
        /// Bytes of the pool.
        bytes: u64,
        /// Bytes that the system reports as available.
        available: u64,
    },
    /// The system refuses the memory, or somebody still writes to the slot.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The update was received in more ranges than the head has room for.
    #[error("what came of the update are {found} pieces; {most} can be told: send larger chunks")]
    Pieces {
        /// Number of ranges received.
        found: usize,
        /// Maximum number of ranges that the head has room for.
        most: usize,
    },
}

/// The node's record of its slots, in private memory.
#[derive(Debug)]
struct Slots {
    /// Numbers of the free slots, for each size class.
    free: Vec<Vec<u32>>,
    /// Current generation, for each slot.
    generations: Vec<u64>,
}

#[derive(Debug)]
struct Shared {
    arena: Arena,
    plan: Plan,
    slots: Mutex<Slots>,
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Nothing can panic while the lists are changed, so a poisoned lock has consistent lists.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node's pool. Clones are handles to the same pool.
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Makes a pool with empty slots. It allocates all memory now, so that no later write can fail.
    ///
    /// # Errors
    /// [`PoolError::TooLarge`], [`PoolError::Memory`].
    pub fn new(plan: Plan) -> Result<Self, PoolError> {
        let bytes = plan.bytes();
        // Check first: the kernel would hand out pages until it has to kill a process.
        if let Some(available) = thalweg_arena::available().filter(|&available| bytes > available) {
            return Err(PoolError::TooLarge { bytes, available });
        }
        let arena = Arena::shared(bytes, Access::Read)?;
        let mut free = vec![Vec::new(); plan.classes().len()];
        let count = u32::try_from(plan.slots()).unwrap_or(u32::MAX);
        // In reverse order, so that the slots with the lowest numbers are claimed first.
        for slot in (0..count).rev() {
            if let Some(place) = plan.place(slot) {
                free[place.class].push(slot);
            }
        }
        let slots = Mutex::new(Slots { free, generations: vec![0; count as usize] });
        Ok(Self { shared: Arc::new(Shared { arena, plan, slots }) })
    }

    /// Claims an empty slot of a size class, by the class's index in the plan.
    ///
    /// # Errors
    /// [`Full`] if no slot is empty.
    pub fn claim(&self, class: usize) -> Result<Slot, Full> {
        let mut slots = self.shared.slots();
        let number = slots.free.get_mut(class).and_then(Vec::pop).ok_or(Full)?;
        let generation = &mut slots.generations[number as usize];
        *generation += 1;
        let generation = *generation;
        drop(slots);
        let place = self.shared.plan.place(number).ok_or(Full)?;
        Ok(Slot { shared: self.shared.clone(), number, generation, place })
    }

    /// Number of empty slots of a size class.
    pub fn free(&self, class: usize) -> usize {
        self.shared.slots().free.get(class).map_or(0, Vec::len)
    }

    /// The layout of the pool, which workers need.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Bytes of shared memory of the pool.
    pub fn bytes(&self) -> u64 {
        self.shared.arena.len()
    }

    /// The descriptor that workers map for reading.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.shared.arena.descriptor()
    }
}

/// A slot that the node writes to. It is empty again once it, or the object made from it, is dropped.
#[derive(Debug)]
pub struct Slot {
    shared: Arc<Shared>,
    number: u32,
    generation: u64,
    place: Place,
}

impl Slot {
    /// Claims a part of the body for writing. Nobody else can write there meanwhile.
    ///
    /// # Errors
    /// The same as [`Arena::claim`].
    pub fn claim(&self, part: Range) -> Result<Claim, ArenaError> {
        self.claim_within(part, Duration::ZERO)
    }

    /// Like [`Slot::claim`], but waits up to `timeout` for other writers.
    ///
    /// # Errors
    /// The same as [`Arena::claim_within`].
    pub fn claim_within(&self, part: Range, timeout: Duration) -> Result<Claim, ArenaError> {
        let (start, bytes) = (self.place.body.start, self.place.body.len());
        if part.start > part.end || part.end > bytes {
            return Err(ArenaError::OutOfBounds { start: part.start, end: part.end, length: bytes });
        }
        self.shared.arena.claim_within(Range::new(start + part.start, start + part.end), timeout)
    }

    /// Turns the slot into an object, which nobody can write to. `received` has the ranges that were received.
    /// Waits up to `timeout` until other writers have finished.
    ///
    /// # Errors
    /// [`PoolError::Pieces`], or [`PoolError::Memory`] if somebody still writes. The slot is empty again
    /// then.
    pub fn seal(self, key: Key, received: &Ranges, timeout: Duration) -> Result<Object, PoolError> {
        let (most, found) = (head::capacity(self.place.head.len()), received.count());
        if found > most {
            return Err(PoolError::Pieces { found, most });
        }
        let all = Range::new(self.place.head.start, self.place.body.end);
        let mut claim = self.shared.arena.claim_within(all, timeout)?;
        head::write(&mut claim[..self.place.head.len() as usize], key, self.generation, received);
        drop(claim);
        let bytes = self.shared.arena.lend(self.place.body)?;
        let name = Name { slot: self.number, generation: self.generation, key };
        Ok(Object { bytes, name, _slot: self })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.slots().free[self.place.class].push(self.number);
    }
}

/// A sealed slot, which nobody writes to. When it is dropped, its slot can be claimed again.
#[derive(Debug)]
pub struct Object {
    /// The body. It is dropped before the slot, so that the loan ends before the slot is empty.
    bytes: Bytes,
    name: Name,
    _slot: Slot,
}

impl Object {
    /// The name by which workers find the object.
    pub fn name(&self) -> Name {
        self.name
    }

    /// The body. No clone of it may outlive the object, or the slot cannot be sealed again.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}
