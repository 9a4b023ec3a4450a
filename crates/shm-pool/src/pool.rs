//! The node's side: the only one that allocates and writes.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use thalweg_arena::{Access, Arena, ArenaError, Claim};
use thalweg_wire::{Range, Ranges};
use thiserror::Error;

use crate::plan::Place;
use crate::{head, Key, Name, Plan};

/// All slots of a class are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("all slots for objects of this size are in use: wait until one was folded, or raise staging")]
pub struct Full;

/// Why there is no pool, or an object cannot be sealed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PoolError {
    /// The machine has less memory than that.
    #[error("a pool of {bytes} bytes does not fit the {available} bytes of memory that are available: lower staging or use a smaller model")]
    TooLarge {
        /// Bytes wanted.
        bytes: u64,
        /// Bytes that the system says are there.
        available: u64,
    },
    /// The system refuses memory, or a place is being written.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// More pieces than a head has room for.
    #[error("what came of the update are {found} pieces; {most} can be told: send larger chunks")]
    Pieces {
        /// Pieces that came.
        found: usize,
        /// Most there may be.
        most: usize,
    },
}

/// What the node keeps of its slots, in private memory.
#[derive(Debug)]
struct Slots {
    /// By class.
    free: Vec<Vec<u32>>,
    /// By slot.
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
        // Nothing can panic while the lists are changed, so poisoned ones are still whole.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node's pool; clones are handles to the same.
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// All slots of a plan, empty. Their memory is taken now, so that no write can fail later.
    ///
    /// # Errors
    /// [`PoolError::TooLarge`], [`PoolError::Memory`].
    pub fn new(plan: Plan) -> Result<Self, PoolError> {
        let bytes = plan.bytes();
        // The kernel would go on taking pages until it has to end a process.
        if let Some(available) = available().filter(|&available| bytes > available) {
            return Err(PoolError::TooLarge { bytes, available });
        }
        let arena = Arena::shared(bytes, Access::Read)?;
        let mut free = vec![Vec::new(); plan.classes().len()];
        let count = u32::try_from(plan.slots()).unwrap_or(u32::MAX);
        // The first slots are taken first.
        for slot in (0..count).rev() {
            if let Some(place) = plan.place(slot) {
                free[place.class].push(slot);
            }
        }
        let slots = Mutex::new(Slots { free, generations: vec![0; count as usize] });
        Ok(Self { shared: Arc::new(Shared { arena, plan, slots }) })
    }

    /// Takes an empty slot of a class, by its number in the plan.
    ///
    /// # Errors
    /// [`Full`] if there is none.
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

    /// Slots of a class that are empty.
    pub fn free(&self, class: usize) -> usize {
        self.shared.slots().free.get(class).map_or(0, Vec::len)
    }

    /// Where slots lie; workers have to know.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Bytes of shared memory.
    pub fn bytes(&self) -> u64 {
        self.shared.arena.len()
    }

    /// What workers map, for reading.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.shared.arena.descriptor()
    }
}

/// A slot that is being written to. It is empty again when it, or the object that it has become, is dropped.
#[derive(Debug)]
pub struct Slot {
    shared: Arc<Shared>,
    number: u32,
    generation: u64,
    place: Place,
}

impl Slot {
    /// Part of the body, to write to. Nobody else may write there meanwhile.
    ///
    /// # Errors
    /// As [`Arena::claim`].
    pub fn claim(&self, part: Range) -> Result<Claim, ArenaError> {
        self.claim_within(part, Duration::ZERO)
    }

    /// As [`Slot::claim`], waiting up to `timeout` for other writers.
    ///
    /// # Errors
    /// As [`Arena::claim_within`].
    pub fn claim_within(&self, part: Range, timeout: Duration) -> Result<Claim, ArenaError> {
        let (start, bytes) = (self.place.body.start, self.place.body.len());
        if part.start > part.end || part.end > bytes {
            return Err(ArenaError::OutOfBounds { start: part.start, end: part.end, length: bytes });
        }
        self.shared.arena.claim_within(Range::new(start + part.start, start + part.end), timeout)
    }

    /// Makes an object of it, of which `came` has come: it is not written to any more. Writers get `timeout` to let go.
    ///
    /// # Errors
    /// [`PoolError::Pieces`]; [`PoolError::Memory`] if somebody still writes. The slot is empty again then.
    pub fn seal(self, key: Key, came: &Ranges, timeout: Duration) -> Result<Object, PoolError> {
        let (most, found) = (head::capacity(self.place.head.len()), came.count());
        if found > most {
            return Err(PoolError::Pieces { found, most });
        }
        let all = Range::new(self.place.head.start, self.place.body.end);
        let mut claim = self.shared.arena.claim_within(all, timeout)?;
        head::write(&mut claim[..self.place.head.len() as usize], key, self.generation, came);
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

/// Bytes that nobody writes to. When it is dropped, they may become another object.
#[derive(Debug)]
pub struct Object {
    /// Given back before the slot is empty.
    bytes: Bytes,
    name: Name,
    _slot: Slot,
}

impl Object {
    /// What workers are told of it.
    pub fn name(&self) -> Name {
        self.name
    }

    /// The body. The loan must not outlive the object, or its slot cannot be sealed again.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Memory that the system says it can still give.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
