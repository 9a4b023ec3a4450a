//! Counts what each thread allocates. The fuzz test checks with it that no decoder trusts a length before it
//! has checked it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with counters.
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

// SAFETY: all calls go to the system's allocator unchanged; counting touches only thread-local integers,
// which need no allocation and no destructor.
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
        // While the block moves, the old and the new one both exist.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `realloc`; `pointer` is from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Maximum number of bytes that this thread has allocated at one time during `work`, beyond those before it.
pub fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = NOW.get();
    PEAK.set(before);
    let result = work();
    ((PEAK.get() - before).max(0) as usize, result)
}
