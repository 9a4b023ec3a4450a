//! A link's own registered memory, for bytes that lie in no registered arena.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_arena::Arena;
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::Device;

/// Maximum number of free arenas that are kept for reuse.
const SPARE: usize = 8;

/// A pool of registered arenas.
pub(crate) struct Pool {
    device: Arc<dyn Device>,
    free: Mutex<Vec<Arena>>,
}

impl Pool {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, free: Mutex::default() }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Arena>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An arena of at least `bytes` bytes for the caller alone.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if no memory is left, or no more may be locked.
    pub(crate) fn take(&self, bytes: usize) -> Result<Arena> {
        let bytes = (bytes as u64).next_power_of_two();
        {
            let mut free = self.free();
            if let Some(at) = free.iter().position(|arena| arena.len() >= bytes) {
                return Ok(free.swap_remove(at));
            }
        }
        let refused = |why: String| Error::new(ErrorKind::System, "register memory", why);
        let arena = Arena::new(bytes).map_err(|error| refused(error.to_string()))?;
        self.device.register(&arena).map_err(|error| refused(error.to_string()))?;
        Ok(arena)
    }

    /// Returns an arena that is not in use any more.
    pub(crate) fn give(&self, arena: Arena) {
        let mut free = self.free();
        if free.len() < SPARE {
            free.push(arena);
        }
    }
}
