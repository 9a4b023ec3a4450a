//! Counts what each thread has allocated, to see that no length is believed before it is checked.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting.
pub struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let now = NOW.get() + bytes;
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

// SAFETY: all calls go to the system's allocator unchanged; counting touches only thread-local integers, which
// need no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`; `pointer` is from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While it moves, both exist.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `realloc`; `pointer` is from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The most bytes allocated at a time by this thread while `work` runs, above those it began with.
pub fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = NOW.get();
    PEAK.set(before);
    let result = work();
    ((PEAK.get() - before).max(0) as usize, result)
}
