//! Claims: ranges that are held exclusively.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use thalweg_wire::Range;

use super::Inner;

/// An entry in the arena's list of holds. Dropping this removes the entry.
struct Held {
    inner: Arc<Inner>,
    id: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.inner.release(self.id);
    }
}

/// A range that is held exclusively and may be written.
pub struct Claim {
    hold: Arc<Held>,
    range: Range,
}

impl Claim {
    /// For an exclusive entry of the list. The caller has checked the range.
    pub(super) fn new(inner: Arc<Inner>, id: u64, range: Range) -> Self {
        Self { hold: Arc::new(Held { inner, id }), range }
    }

    /// The range of the arena that is claimed.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Cuts off the first `bytes` bytes as a claim of their own. `None` if there are fewer. The whole range
    /// is released at once, when its last part is dropped.
    pub fn split_to(&mut self, bytes: u64) -> Option<Claim> {
        let at = self.range.start.checked_add(bytes).filter(|&at| at <= self.range.end)?;
        let first = Claim { hold: self.hold.clone(), range: Range::new(self.range.start, at) };
        self.range.start = at;
        Some(first)
    }

    /// Joins the part `next`, which was cut off and follows this one.
    ///
    /// # Errors
    /// Returns `next` if it is of another claim or does not follow this part.
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
        // SAFETY: in bounds (checked when claimed); the range is held exclusively until this claim is
        // dropped, and it does not contain the parts that were cut off.
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
