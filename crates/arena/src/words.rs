//! Shared words: a few integers that two processes change, to agree on which of them may use a chunk.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use crate::{Access, Arena, ArenaError};

const WORD: usize = std::mem::size_of::<AtomicU32>();

/// A few words of memory that another process maps too, all 0 at first. Either process may change them at any
/// moment, so a reader may trust only that a word is a number.
#[derive(Debug)]
pub struct SharedWords {
    arena: Arena,
    words: usize,
}

impl SharedWords {
    /// Makes `words` words. Give the peer [`SharedWords::descriptor`].
    ///
    /// # Errors
    /// [`ArenaError::Memory`] if the system refuses.
    pub fn shared(words: usize) -> Result<Self, ArenaError> {
        Ok(Self { arena: Arena::shared((words * WORD) as u64, Access::Write)?, words })
    }

    /// Maps `words` words that a peer made.
    ///
    /// # Errors
    /// [`ArenaError::Descriptor`] as [`Arena::of_fd`].
    pub fn of_fd(descriptor: OwnedFd, words: usize) -> Result<Self, ArenaError> {
        let arena = Arena::of_fd(descriptor, (words * WORD) as u64, Access::Write)?;
        Ok(Self { arena, words })
    }

    /// The descriptor for the peer to map.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.arena.descriptor()
    }

    /// The word with index `number`. `None` if there are fewer words.
    pub fn word(&self, number: usize) -> Option<&AtomicU32> {
        // SAFETY: within the arena (checked), page-aligned at its beginning, and mapped as long as `self`
        // lives. The arena is never lent nor claimed, so every access in this process is atomic. Accesses of
        // other processes are like those of another thread.
        (number < self.words).then(|| unsafe { &*self.arena.as_ptr().cast::<AtomicU32>().add(number) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn both_ends_change_the_same_words() {
        let ours = SharedWords::shared(4).unwrap();
        let descriptor = ours.descriptor().unwrap().try_clone_to_owned().unwrap();
        let theirs = SharedWords::of_fd(descriptor, 4).unwrap();
        ours.word(3).unwrap().store(7, Ordering::Release);
        let swapped = theirs.word(3).unwrap().compare_exchange(7, 8, Ordering::AcqRel, Ordering::Acquire);
        assert_eq!(swapped, Ok(7));
        assert_eq!(ours.word(3).unwrap().load(Ordering::Acquire), 8);
        assert_eq!(ours.word(0).unwrap().load(Ordering::Acquire), 0);
        assert!(ours.word(4).is_none());
    }

    #[test]
    fn one_of_another_size_is_refused() {
        let ours = SharedWords::shared(4).unwrap();
        let descriptor = ours.descriptor().unwrap().try_clone_to_owned().unwrap();
        assert!(SharedWords::of_fd(descriptor, 5).is_err());
    }
}
