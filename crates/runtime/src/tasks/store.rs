//! Stores results that are arriving or wait to be taken: in memory up to a budget, and beyond that in files.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_arena::{Arena, Claim};
use thalweg_wire::Range;

use crate::lock;

/// Bytes in memory that count against the budget until this is dropped.
#[derive(Debug)]
struct Share {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Whether a result can be folded, as far as is known.
#[derive(Debug, Default)]
pub(crate) enum Verdict {
    /// Every chunk that has arrived can be folded.
    #[default]
    Fine,
    /// Not every chunk has been checked.
    Open,
    /// The result cannot be folded, for this reason.
    Refused(String),
}

impl Verdict {
    /// Whether parts of it must still be checked.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }
}

/// A result's bytes, and their part of the budget.
#[derive(Debug)]
pub(crate) struct Kept {
    pub arena: Arena,
    /// Meaningful for a result that is to be folded.
    pub verdict: Verdict,
    share: Option<Share>,
}

impl Kept {
    fn new(arena: Arena, share: Option<Share>) -> Self {
        Self { arena, verdict: Verdict::default(), share }
    }
}

/// Results, by task and sender.
pub(crate) struct Store {
    budget: u64,
    used: Arc<AtomicU64>,
    folder: PathBuf,
    results: Mutex<HashMap<(u32, u32), Kept>>,
    /// Memory of a folded result, which the next one reuses: touching fresh pages costs more time than
    /// filling them.
    spare: Mutex<Option<Kept>>,
}

impl Store {
    /// Keeps `budget` bytes in memory. Further results lie in unnamed files in `folder`.
    pub fn new(budget: u64, folder: PathBuf) -> Self {
        Self { budget, used: Arc::default(), folder, results: Mutex::default(), spare: Mutex::default() }
    }

    /// A range of a result of `total` bytes, for writing. `None` if it is being written, or no memory is
    /// left; the chunk is then requested again. Without `total` the result must already be here.
    pub fn claim(&self, task: u32, sender: u32, total: Option<u64>, range: Range) -> Option<Claim> {
        let mut results = lock(&self.results);
        if let Some(kept) = results.get(&(task, sender)) {
            return kept.arena.claim(range).ok();
        }
        let kept = self.room(total?)?;
        let claim = kept.arena.claim(range).ok();
        results.insert((task, sender), kept);
        claim
    }

    fn room(&self, bytes: u64) -> Option<Kept> {
        // Drop spare memory of another size first, so that it does not count against the budget.
        if let Some(kept) = lock(&self.spare).take().filter(|kept| kept.arena.len() == bytes) {
            return Some(kept);
        }
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let share = Share { used: self.used.clone(), bytes };
        if before == 0 || before.saturating_add(bytes) <= self.budget {
            return Some(Kept::new(Arena::new(bytes).ok()?, Some(share)));
        }
        drop(share);
        Some(Kept::new(Arena::in_file(&self.folder, bytes).ok()?, None))
    }

    /// Records that not all of a result can be folded or was checked. The first reason for refusing it stays.
    pub fn judged(&self, task: u32, sender: u32, verdict: Verdict) {
        if let Some(kept) = lock(&self.results).get_mut(&(task, sender)) {
            if !matches!(kept.verdict, Verdict::Refused(_)) {
                kept.verdict = verdict;
            }
        }
    }

    /// Takes a result out.
    pub fn take(&self, task: u32, sender: u32) -> Option<Kept> {
        lock(&self.results).remove(&(task, sender))
    }

    /// Keeps the memory of a folded result, for the next result of its size.
    pub fn keep_spare(&self, kept: Kept) {
        if kept.share.is_some() {
            *lock(&self.spare) = Some(Kept { verdict: Verdict::default(), ..kept });
        }
    }

    /// Frees the memory that is kept for the next result.
    pub fn free_spare(&self) {
        *lock(&self.spare) = None;
    }

    /// Bytes in memory.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_beyond_the_budget_lie_in_files() {
        let store = Store::new(100, std::env::temp_dir());
        for sender in 0..4 {
            let mut claim = store.claim(1, sender, Some(40), Range::new(0, 40)).unwrap();
            claim.fill(sender as u8);
            assert!(store.claim(1, sender, Some(40), Range::new(0, 8)).is_none(), "being written");
        }
        assert_eq!(store.used(), 80);
        for sender in 0..4 {
            let kept = store.take(1, sender).unwrap();
            let bytes = kept.arena.lend(kept.arena.range()).unwrap();
            assert!(bytes.iter().all(|&byte| byte == sender as u8));
        }
        assert_eq!(store.used(), 0);
        assert!(store.take(1, 0).is_none());
    }

    #[test]
    fn the_memory_of_a_folded_result_takes_the_next_one_of_its_size() {
        let store = Store::new(100, std::env::temp_dir());
        store.claim(1, 1, Some(64), Range::new(0, 64)).unwrap().fill(7);
        let kept = store.take(1, 1).unwrap();
        let place = kept.arena.as_ptr();
        store.keep_spare(kept);
        assert_eq!(store.used(), 64);
        drop(store.claim(1, 2, Some(64), Range::new(0, 64)).unwrap());
        assert_eq!(store.used(), 64);
        let kept = store.take(1, 2).unwrap();
        assert_eq!(kept.arena.as_ptr(), place);
        store.keep_spare(kept);
        drop(store.claim(1, 3, Some(96), Range::new(0, 96)).unwrap());
        assert_eq!(store.used(), 96, "memory of another size was freed");
        store.keep_spare(store.take(1, 3).unwrap());
        store.free_spare();
        assert_eq!(store.used(), 0);
    }

    #[test]
    fn one_result_larger_than_the_budget_is_held_in_memory_alone() {
        let store = Store::new(10, std::env::temp_dir());
        drop(store.claim(1, 1, Some(64), Range::new(0, 64)).unwrap());
        drop(store.claim(1, 2, Some(8), Range::new(0, 8)).unwrap());
        assert_eq!(store.used(), 64);
    }
}
