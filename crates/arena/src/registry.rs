//! A list of all arenas of the process by their addresses, which finds the arena of a loan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use thalweg_wire::Range;

use crate::{Arena, Inner};

/// For the address of each arena's first byte: the arena's length and its memory.
static ARENAS: Mutex<BTreeMap<usize, (u64, Weak<Inner>)>> = Mutex::new(BTreeMap::new());

fn arenas() -> MutexGuard<'static, BTreeMap<usize, (u64, Weak<Inner>)>> {
    ARENAS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Arena {
    /// Enters the memory into the list, and returns a handle of it.
    pub(crate) fn registered(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        arenas().insert(inner.pointer as usize, (inner.length, Arc::downgrade(&inner)));
        Self { inner }
    }

    /// Returns the arena in which these bytes lie, and their range there. `None` if they lie in no arena, or
    /// if `bytes` is empty. With this, a transport finds what is attached to the memory of a loan.
    pub fn of(bytes: &[u8]) -> Option<(Arena, Range)> {
        let (address, length) = (bytes.as_ptr() as usize, bytes.len() as u64);
        let (start, inner) = {
            let arenas = arenas();
            let (start, (all, inner)) = arenas.range(..=address).next_back()?;
            let at = (address - start) as u64;
            if length == 0 || at + length > *all {
                return None;
            }
            // Unlock the list before this handle is dropped: if it has become the last one, its drop needs
            // the lock too.
            (at, inner.upgrade()?)
        };
        Some((Arena { inner }, Range::new(start, start + length)))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Remove the entry before the memory is unmapped; then another arena may get the addresses.
        arenas().remove(&(self.pointer as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_is_found_in_its_arena_and_nothing_else_is() {
        let (first, second) = (Arena::new(8192).unwrap(), Arena::new(100).unwrap());
        for (arena, range) in
            [(&first, Range::new(5, 8192)), (&second, Range::new(0, 100)), (&first, Range::new(0, 1))]
        {
            let loan = arena.lend(range).unwrap();
            let (found, place) = Arena::of(&loan).unwrap();
            assert_eq!((found.as_ptr(), place), (arena.as_ptr(), range));
            let (_, place) = Arena::of(&loan[loan.len() - 1..]).unwrap();
            assert_eq!(place, Range::new(range.end - 1, range.end));
        }
        assert!(Arena::of(&first.claim(first.range()).unwrap()).is_some(), "a claim, too");
        assert!(Arena::of(&first.lend(first.range()).unwrap()[..0]).is_none(), "no bytes lie nowhere");
        assert!(
            Arena::of(&[1, 2, 3]).is_none()
                && Arena::of(&vec![0; 8192]).is_none()
                && Arena::of(b"").is_none()
        );
    }

    /// The rest of an arena's last page is mapped, but is not part of the arena.
    #[test]
    fn what_lies_behind_an_arena_is_not_in_it() {
        let arena = Arena::new(100).unwrap();
        // SAFETY: the memory is a page.
        let behind = unsafe { std::slice::from_raw_parts(arena.as_ptr().add(96), 5) };
        assert!(Arena::of(behind).is_none() && Arena::of(&behind[..4]).is_some());
    }

    #[test]
    fn an_arena_that_is_gone_is_not_found() {
        let arena = Arena::new(1 << 20).unwrap();
        let address = arena.as_ptr() as usize;
        assert!(arenas().contains_key(&address));
        let loan = arena.lend(Range::new(0, 10)).unwrap();
        drop(arena);
        let (found, _) = Arena::of(&loan).unwrap();
        let memory = Arc::downgrade(&found.inner);
        drop((found, loan));
        assert_eq!(memory.strong_count(), 0);
        // Another arena may have the addresses by now.
        let same = arenas().get(&address).is_some_and(|(_, inner)| inner.ptr_eq(&memory));
        assert!(!same, "a dead arena is still listed");
    }
}
