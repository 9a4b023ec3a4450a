//! A link's own registered memory, for bytes that lie in no registered arena.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_arena::{available, Arena};
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::Device;

/// Maximum number of free arenas that are kept for reuse.
const SPARE: usize = 8;

/// Arenas of more bytes are rounded up to [`STEP`]. Shorter ones are rounded up to a power of two, so that they can be
/// reused for chunks of other lengths.
const LARGE: u64 = 32 << 20;
/// The length of large arenas is a multiple of this: of huge pages.
const STEP: u64 = 2 << 20;

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
        let refused = |why: String| Error::new(ErrorKind::System, "register memory", why);
        let bytes = bytes as u64;
        let rounded = if bytes > LARGE {
            bytes.checked_next_multiple_of(STEP)
        } else {
            Some(bytes.next_power_of_two())
        };
        let bytes = rounded.ok_or_else(|| refused("more memory than there can be".into()))?;
        {
            let mut free = self.free();
            let fits = free.iter().enumerate().filter(|(_, arena)| arena.len() >= bytes);
            if let Some((at, _)) = fits.min_by_key(|(_, arena)| arena.len()) {
                return Ok(free.swap_remove(at));
            }
        }
        // The peer chooses this length, and registered memory cannot be swapped out.
        if let Some(free) = available().filter(|free| bytes > LARGE && bytes > free / 2) {
            return Err(refused(format!(
                "an update takes {bytes} bytes, and of {free} that are free half may be used"
            )));
        }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use thalweg_verbs::pretend::{Behaviour, Fabric, Pretend};

    #[test]
    fn arenas_are_used_again_and_a_peer_cannot_have_all_memory() {
        let pool = Pool::new(Arc::new(Pretend::new(&Arc::new(Fabric::default()), Behaviour::default())));
        let lengths =
            [1, 5_000, LARGE, LARGE + 1, 3 * LARGE - 1].map(|bytes| pool.take(bytes as usize).unwrap());
        assert_eq!(lengths.each_ref().map(Arena::len), [1, 8_192, LARGE, LARGE + STEP, 3 * LARGE]);
        let addresses = lengths.each_ref().map(Arena::as_ptr);
        lengths.into_iter().rev().for_each(|arena| pool.give(arena));
        assert_eq!(pool.take(4_097).unwrap().as_ptr(), addresses[1], "the shortest that is long enough");
        assert_eq!(pool.take(LARGE as usize + 9).unwrap().as_ptr(), addresses[3]);
        for bytes in [1 << 50, usize::MAX - 5, usize::MAX] {
            assert_eq!(pool.take(bytes).err().unwrap().kind(), ErrorKind::System);
        }
    }
}
