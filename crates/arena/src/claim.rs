//! Ranges that are held exclusively.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use thalweg_wire::Range;

use super::Inner;

/// An entry of the list, which ends with it.
struct Held {
    inner: Arc<Inner>,
    id: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.inner.release(self.id);
    }
}

/// An exclusively held, writable range.
pub struct Claim {
    hold: Arc<Held>,
    range: Range,
}

impl Claim {
    /// Of an exclusive entry of the list, which is checked.
    pub(super) fn new(inner: Arc<Inner>, id: u64, range: Range) -> Self {
        Self { hold: Arc::new(Held { inner, id }), range }
    }

    /// Which bytes of the arena these are.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Cuts the first `bytes` bytes off as a claim of their own; `None` if there are fewer. All that was claimed at once
    /// is given back at once, when the last part of it is dropped.
    pub fn split_to(&mut self, bytes: u64) -> Option<Claim> {
        let at = self.range.start.checked_add(bytes).filter(|&at| at <= self.range.end)?;
        let first = Claim { hold: self.hold.clone(), range: Range::new(self.range.start, at) };
        self.range.start = at;
        Some(first)
    }

    /// Puts a part that was cut off back behind this one.
    ///
    /// # Errors
    /// The part, if it was claimed otherwise or does not follow.
    pub fn join(&mut self, next: Claim) -> Result<(), Claim> {
        if !Arc::ptr_eq(&self.hold, &next.hold) || self.range.end != next.range.start {
            return Err(next);
        }
        self.range.end = next.range.end;
        Ok(())
    }
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Claim({}..{})", self.range.start, self.range.end)
    }
}

impl Deref for Claim {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: in bounds (checked when claimed); the range is held exclusively until we drop, and parts that were cut off
        // are not in it.
        unsafe {
            std::slice::from_raw_parts(
                self.hold.inner.pointer.add(self.range.start as usize),
                self.range.len() as usize,
            )
        }
    }
}

impl DerefMut for Claim {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only slice from this claim.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.hold.inner.pointer.add(self.range.start as usize),
                self.range.len() as usize,
            )
        }
    }
}
