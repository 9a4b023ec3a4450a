//! The arena: one page-aligned buffer that holds an update. Tensors are views of it, sending borrows from it,
//! and receiving writes into it, so nothing is copied in between.
//!
//! A range is **lent** (shared, read-only, as [`Bytes`]) or **claimed** (exclusive, writable). The arena
//! keeps a list of both, and refuses a claim that overlaps either, and a loan that overlaps a claim. So safe
//! code can give slices of one buffer to many tasks. The list is short, with one entry for each transfer or
//! stream. A scan of it costs almost nothing compared with a chunk.
//!
//! The memory can also be reached by pointer ([`Arena::as_ptr`]) for views from Python, which Rust cannot
//! see. The rule for these is: no model is trained while its round is being received or sent.
//!
//! An arena is private to the process, or shared with others by a descriptor (`Arena::shared`,
//! `Arena::of_fd`, on Linux). Each process keeps its own list of loans and claims, and the processes must
//! agree on who writes what and when. So a writable descriptor is given to processes of the same program
//! only. Memory that an untrusted process writes is not an arena: it is [`Foreign`], and its bytes are copied
//! out.
//!
//! Values that belong to the memory, such as its registration with a network card, are attached to the arena
//! ([`Arena::attach`]). They are dropped before the memory is.

mod attachments;
mod claim;
mod file;
#[cfg(target_os = "linux")]
mod foreign;
mod registry;
mod room;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod words;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use memmap2::{MmapMut, MmapRaw};
use thalweg_wire::Range;
use thiserror::Error;

pub use attachments::Attached;
pub use claim::Claim;
#[cfg(target_os = "linux")]
pub use foreign::Foreign;
pub use room::{available, room};
#[cfg(target_os = "linux")]
pub use shared::Access;
#[cfg(target_os = "linux")]
pub use words::SharedWords;

/// The reason why memory cannot be allocated or mapped, or a range not be lent or claimed now.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ArenaError {
    /// The range reaches beyond the buffer.
    #[error("bytes {start}..{end} are not in an arena of {length} bytes")]
    OutOfBounds {
        /// First byte of the range.
        start: u64,
        /// One past the last byte of the range.
        end: u64,
        /// Bytes of the arena.
        length: u64,
    },
    /// An overlapping range is lent or claimed.
    #[error("bytes {start}..{end} of the arena are {held}; {BUSY}")]
    Busy {
        /// First byte of the range.
        start: u64,
        /// One past the last byte of the range.
        end: u64,
        /// How the other range is held: "being sent" or "being written".
        held: &'static str,
    },
    /// The memory is shared, and this process may only read it.
    #[error("this process may only read the memory of the arena; {READ_ONLY}")]
    ReadOnly,
    /// The descriptor cannot be mapped as an arena.
    #[error("the descriptor is no memory for {bytes} bytes: {cause}")]
    Descriptor {
        /// Bytes expected.
        bytes: u64,
        /// The reason why it cannot be mapped.
        cause: String,
    },
    /// The system refused the memory.
    #[error("no memory for an arena of {bytes} bytes: {cause}; {MEMORY}")]
    Memory {
        /// Bytes requested.
        bytes: u64,
        /// The system's reason.
        cause: String,
    },
}

const BUSY: &str = "wait until that transfer has ended";
const READ_ONLY: &str = "map it writable, if its owner allows that";
const MEMORY: &str = "use a smaller model or fewer staged updates";

impl ArenaError {
    /// What went wrong, without the hint.
    pub fn cause(&self) -> String {
        match self {
            Self::Busy { start, end, held } => format!("bytes {start}..{end} of the arena are {held}"),
            Self::ReadOnly => "this process may only read the memory of the arena".into(),
            Self::Memory { bytes, cause } => format!("no memory for an arena of {bytes} bytes: {cause}"),
            Self::OutOfBounds { .. } | Self::Descriptor { .. } => self.to_string(),
        }
    }

    /// What a person can do about it, if anything.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Busy { .. } => Some(BUSY),
            Self::ReadOnly => Some(READ_ONLY),
            Self::Memory { .. } => Some(MEMORY),
            Self::OutOfBounds { .. } | Self::Descriptor { .. } => None,
        }
    }
}

#[derive(Clone, Copy)]
struct Hold {
    id: u64,
    range: Range,
    /// Whether the range is claimed; else it is lent.
    exclusive: bool,
}

#[derive(Default)]
struct Holds {
    /// Number of the next entry.
    next: u64,
    list: Vec<Hold>,
}

struct Inner {
    pointer: *mut u8,
    length: u64,
    /// The current loans and claims.
    holds: Mutex<Holds>,
    /// Notified when a loan or claim has ended.
    released: Condvar,
    writable: bool,
    /// The descriptor with which other processes share the memory.
    #[cfg(target_os = "linux")]
    descriptor: Option<std::os::fd::OwnedFd>,
    /// Dropped before the memory, because this field stands before `_map`.
    attachments: attachments::Attachments,
    /// Owns the memory to which `pointer` points. It is not used in any other way.
    _map: MmapRaw,
}

// SAFETY: the memory behind `pointer` lives as long as `_map`, and every slice of it that safe code can get
// is recorded in `holds`, which admits no exclusive range that overlaps another one.
unsafe impl Send for Inner {}
// SAFETY: as above; all shared state is behind the mutex.
unsafe impl Sync for Inner {}

impl Inner {
    fn new(map: MmapRaw, length: u64) -> Self {
        Self {
            pointer: map.as_mut_ptr(),
            length,
            holds: Mutex::default(),
            released: Condvar::new(),
            writable: true,
            #[cfg(target_os = "linux")]
            descriptor: None,
            attachments: attachments::Attachments::default(),
            _map: map,
        }
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        // Nothing can panic while the list is changed, so the list is consistent even if the lock is
        // poisoned.
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn conflict(&self, holds: &Holds, range: Range, exclusive: bool) -> Result<(), ArenaError> {
        let clash =
            holds.list.iter().find(|h| (h.exclusive || exclusive) && !h.range.intersect(range).is_empty());
        clash.map_or(Ok(()), |h| {
            let held = if h.exclusive { "being written" } else { "being sent" };
            Err(ArenaError::Busy { start: range.start, end: range.end, held })
        })
    }

    fn hold(&self, holds: &mut Holds, range: Range, exclusive: bool) -> u64 {
        let id = holds.next;
        holds.next += 1;
        holds.list.push(Hold { id, range, exclusive });
        id
    }

    fn check(&self, range: Range) -> Result<(), ArenaError> {
        if range.start > range.end || range.end > self.length {
            return Err(ArenaError::OutOfBounds { start: range.start, end: range.end, length: self.length });
        }
        Ok(())
    }

    fn release(&self, id: u64) {
        self.holds().list.retain(|h| h.id != id);
        self.released.notify_all();
    }
}

/// A buffer of at least this many bytes is on huge pages, where the system has them.
pub const HUGE: u64 = 4 << 20;

/// One zeroed, page-aligned buffer. Clones are handles to the same memory.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes)", self.len())
    }
}

impl Arena {
    /// A zeroed buffer of `bytes` bytes, on huge pages where the system has them.
    ///
    /// # Errors
    /// [`ArenaError::Memory`] if the system refuses.
    pub fn new(bytes: u64) -> Result<Self, ArenaError> {
        let refused = |cause: String| ArenaError::Memory { bytes, cause };
        let size = usize::try_from(bytes.max(1)).map_err(|e| refused(e.to_string()))?;
        if bytes >= 1 << 20 {
            room(bytes)?;
        }
        let map = MmapMut::map_anon(size).map_err(|e| refused(e.to_string()))?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE {
            // This is only a hint. The first touch of fresh 4 KiB pages costs more than receiving a model.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self::registered(Inner::new(map.into(), bytes)))
    }

    /// Whether this is the only handle, and no range is lent or claimed. So nobody else can read or write the
    /// buffer.
    pub fn is_sole(&self) -> bool {
        Arc::strong_count(&self.inner) == 1
    }

    /// Number of bytes of the buffer.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.inner.length
    }

    /// The range of all bytes.
    pub fn range(&self) -> Range {
        Range::new(0, self.len())
    }

    /// Whether this process may write into the buffer.
    pub fn is_writable(&self) -> bool {
        self.inner.writable
    }

    /// Address of the first byte, for views that keep a handle of this arena. Memory of a read-only arena
    /// must not be written: the write would end the process.
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.pointer
    }

    /// Lends a range for reading. The loan ends when the last clone or slice of the bytes is dropped.
    ///
    /// # Errors
    /// [`ArenaError::OutOfBounds`], or [`ArenaError::Busy`] while part of the range is claimed.
    pub fn lend(&self, range: Range) -> Result<Bytes, ArenaError> {
        self.inner.check(range)?;
        let mut holds = self.inner.holds();
        self.inner.conflict(&holds, range, false)?;
        let id = self.inner.hold(&mut holds, range, false);
        drop(holds);
        Ok(Bytes::from_owner(Loan { inner: self.inner.clone(), range, id }))
    }

    /// Claims a range for writing, exclusively.
    ///
    /// # Errors
    /// [`ArenaError::OutOfBounds`], [`ArenaError::Busy`] while part of it is lent or claimed, or
    /// [`ArenaError::ReadOnly`].
    pub fn claim(&self, range: Range) -> Result<Claim, ArenaError> {
        self.claim_within(range, Duration::ZERO)
    }

    /// Claims a range like [`Arena::claim`], but waits up to `timeout` for others to release it. Blocks the
    /// thread.
    ///
    /// # Errors
    /// Those of [`Arena::claim`], after the wait.
    pub fn claim_within(&self, range: Range, timeout: Duration) -> Result<Claim, ArenaError> {
        self.inner.check(range)?;
        if !self.inner.writable {
            return Err(ArenaError::ReadOnly);
        }
        let deadline = Instant::now() + timeout;
        let mut holds = self.inner.holds();
        loop {
            let busy = match self.inner.conflict(&holds, range, true) {
                Ok(()) => break,
                Err(busy) => busy,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(busy);
            }
            holds = self.inner.released.wait_timeout(holds, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let id = self.inner.hold(&mut holds, range, true);
        drop(holds);
        Ok(Claim::new(self.inner.clone(), id, range))
    }
}

/// A lent range.
struct Loan {
    inner: Arc<Inner>,
    range: Range,
    id: u64,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: in bounds (checked when lent); `holds` admits no writer of this range until this loan is
        // dropped.
        unsafe {
            std::slice::from_raw_parts(
                self.inner.pointer.add(self.range.start as usize),
                self.range.len() as usize,
            )
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.inner.release(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arena {
        Arena::new(8192).unwrap()
    }

    #[test]
    fn is_zeroed_and_page_aligned() {
        let arena = arena();
        assert_eq!(arena.as_ptr() as usize % 4096, 0);
        assert!(arena.lend(arena.range()).unwrap().iter().all(|&b| b == 0));
    }

    #[test]
    fn a_claim_is_exclusive_and_ends_with_its_drop() {
        let arena = arena();
        let mut claim = arena.claim(Range::new(0, 64)).unwrap();
        claim[3] = 7;
        assert!(matches!(arena.claim(Range::new(63, 65)), Err(ArenaError::Busy { .. })));
        assert!(arena.lend(Range::new(0, 1)).unwrap_err().to_string().contains("being written"));
        let beside = arena.claim(Range::new(64, 128)).unwrap();
        drop((claim, beside));
        assert_eq!(arena.lend(Range::new(0, 128)).unwrap()[3], 7);
    }

    #[test]
    fn parts_of_a_claim_are_apart_and_given_back_together() {
        let arena = arena();
        let mut rest = arena.claim(Range::new(64, 1024)).unwrap();
        let mut first = rest.split_to(100).unwrap();
        first.fill(1);
        rest.fill(2);
        assert_eq!((first.range(), rest.range()), (Range::new(64, 164), Range::new(164, 1024)));
        assert!(rest.split_to(861).is_none() && rest.split_to(u64::MAX).is_none());
        let last = rest.split_to(860).unwrap();
        assert!(rest.is_empty() && last.len() == 860);
        drop((first, rest));
        assert!(arena.claim(Range::new(64, 164)).is_err(), "the last part is still held");
        drop(last);
        let bytes = arena.lend(arena.range()).unwrap();
        assert!(bytes[64..164].iter().all(|&b| b == 1) && bytes[164..1024].iter().all(|&b| b == 2));
        assert!(bytes[..64].iter().chain(&bytes[1024..]).all(|&b| b == 0));
    }

    #[test]
    fn parts_of_a_claim_are_put_together_again() {
        let arena = arena();
        let mut first = arena.claim(Range::new(64, 1024)).unwrap();
        let (one, two) = (first.split_to(100).unwrap(), first.split_to(300).unwrap());
        let (mut rest, mut one) = (first, one);
        rest = one.join(rest).unwrap_err();
        one.join(two).unwrap();
        one.join(rest).unwrap();
        assert_eq!(one.range(), Range::new(64, 1024));
        let (mut other, mut next) = (arena.claim(Range::new(0, 64)).unwrap(), one);
        next = other.join(next).unwrap_err();
        drop(next);
        assert!(arena.claim(Range::new(64, 1024)).is_ok(), "a part is still held");
    }

    #[test]
    fn loans_share_and_keep_writers_out_until_the_last_slice_is_gone() {
        let arena = arena();
        let first = arena.lend(arena.range()).unwrap();
        let second = arena.lend(Range::new(10, 20)).unwrap();
        let slice = first.slice(4..8);
        drop((first, second));
        assert!(arena.claim(arena.range()).unwrap_err().to_string().contains("being sent"));
        drop(slice);
        assert!(arena.claim(arena.range()).is_ok());
    }

    #[test]
    fn bounds_are_checked() {
        let arena = arena();
        for range in [Range::new(0, 8193), Range::new(9000, 9001), Range::new(5, 4)] {
            assert!(matches!(arena.lend(range), Err(ArenaError::OutOfBounds { .. })), "{range:?}");
            assert!(matches!(arena.claim(range), Err(ArenaError::OutOfBounds { .. })), "{range:?}");
        }
        assert!(Arena::new(u64::MAX).is_err());
        assert_eq!(Arena::new(0).unwrap().lend(Range::new(0, 0)).unwrap().len(), 0);
    }

    #[test]
    fn a_claim_that_waits_gets_the_range_when_it_is_released() {
        let arena = arena();
        let loan = arena.lend(arena.range()).unwrap();
        let other = arena.clone();
        let waiter = std::thread::spawn(move || {
            other.claim_within(other.range(), Duration::from_secs(60)).map(|c| c.len())
        });
        drop(loan);
        assert_eq!(waiter.join().unwrap(), Ok(8192));
    }
}
