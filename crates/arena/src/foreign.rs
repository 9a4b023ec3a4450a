//! Memory that another process may write at any moment. It is never visible as a slice.

use std::os::fd::OwnedFd;

use memmap2::MmapRaw;
use nix::fcntl::SealFlag;

use crate::shared::{options, seals_of};
use crate::ArenaError;

/// The seals that fix the memory's size. The second one also prevents its owner from removing pages in the
/// middle.
const FIXED: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_FUTURE_WRITE);
/// Bytes of a block, the unit in which `stat(2)` reports a file's size on disk.
const BLOCK: u64 = 512;

/// The memory of a shared arena that an untrusted process made, mapped for reading.
///
/// Its owner may write to it at any moment, even while this process reads it. A Rust reference promises that
/// nobody does, so there are no references to this memory. Bytes are copied out ([`Foreign::read`]), and
/// checked where only this process can write. Reading the memory cannot end this process: its size is sealed,
/// and all its pages are allocated.
pub struct Foreign {
    map: MmapRaw,
    length: u64,
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Foreign({} bytes)", self.length)
    }
}

impl Foreign {
    /// Maps the memory of a shared arena of `bytes` bytes that a peer made with [`crate::Access::Read`].
    ///
    /// # Errors
    /// [`ArenaError::Descriptor`] if it has another size, if its owner could remove memory that is read here,
    /// if not all of it is allocated, or if the system refuses.
    pub fn of_fd(descriptor: OwnedFd, bytes: u64) -> Result<Self, ArenaError> {
        let wrong = |cause: String| ArenaError::Descriptor { bytes, cause };
        let seals = seals_of(&descriptor).map_err(wrong)?;
        let write = SealFlag::F_SEAL_WRITE;
        let fixed = seals.contains(FIXED) || seals.contains(SealFlag::F_SEAL_SHRINK.union(write));
        if !fixed {
            return Err(wrong("it is not sealed; its owner could take the memory away".into()));
        }
        let file = std::fs::File::from(descriptor);
        let found = file.metadata().map_err(|e| wrong(e.to_string()))?;
        if bytes == 0 || found.len() != bytes {
            return Err(wrong(format!("it has {} bytes", found.len())));
        }
        if std::os::unix::fs::MetadataExt::blocks(&found).saturating_mul(BLOCK) < bytes {
            return Err(wrong("its memory is not all there; its owner must take it before".into()));
        }
        let size = usize::try_from(bytes).map_err(|e| wrong(e.to_string()))?;
        let map = options(size, false).map_raw_read_only(&file);
        let map = map.map_err(|error| wrong(format!("it cannot be mapped ({error})")))?;
        Ok(Self { map, length: bytes })
    }

    /// Number of bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Copies bytes from offset `start` on, until `into` is full. Bytes that the owner writes meanwhile may
    /// be old or new, each on its own.
    ///
    /// # Errors
    /// [`ArenaError::OutOfBounds`] if the memory ends before; nothing is copied then.
    pub fn read(&self, start: u64, into: &mut [u8]) -> Result<(), ArenaError> {
        let end = start.saturating_add(into.len() as u64);
        if end > self.length {
            return Err(ArenaError::OutOfBounds { start, end, length: self.length });
        }
        // SAFETY: `start` is within the map (checked), and the map lives as long as `self`.
        let from = unsafe { self.map.as_ptr().add(start as usize) };
        // SAFETY: `from` is followed by as many mapped bytes as `into` has (checked), which cannot go away
        // (`of_fd`).
        unsafe { copy(from, into) };
        Ok(())
    }
}

/// Copies bytes that others may be writing. The compiler cannot look into the instruction, so it assumes
/// nothing about the bytes, and they are read once.
///
/// # Safety
/// `from` is followed by `into.len()` readable bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn copy(from: *const u8, into: &mut [u8]) {
    // SAFETY: `rep movsb` reads as many bytes at `from` as `into` has, which the caller promises are
    // readable, and writes them to `into`. The direction flag is clear, as the ABI demands.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") into.len() => _,
            inout("rsi") from => _,
            inout("rdi") into.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies bytes that others may be writing. Each is read once with `read_volatile`, so the compiler assumes
/// nothing about it.
///
/// # Safety
/// `from` is followed by `into.len()` readable bytes.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy(from: *const u8, into: &mut [u8]) {
    const WORD: usize = std::mem::size_of::<u64>();
    let mut at = 0;
    if from.align_offset(WORD) == 0 {
        for to in into.chunks_exact_mut(WORD) {
            // SAFETY: in bounds, as there is a whole word left of `into`; aligned, as `from` is.
            let word = unsafe { from.add(at).cast::<u64>().read_volatile() };
            to.copy_from_slice(&word.to_ne_bytes());
            at += WORD;
        }
    }
    for to in &mut into[at..] {
        // SAFETY: in bounds, as `into` is as long as what may be read.
        *to = unsafe { from.add(at).read_volatile() };
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use nix::fcntl::{fallocate, fcntl, FallocateFlags, FcntlArg};
    use nix::sys::memfd::{memfd_create, MFdFlags};
    use nix::unistd::ftruncate;
    use proptest::prelude::*;

    use super::*;
    use crate::{Access, Arena};

    fn descriptor(arena: &Arena) -> OwnedFd {
        arena.descriptor().unwrap().try_clone_to_owned().unwrap()
    }

    fn memory(bytes: i64, seals: SealFlag, there: bool) -> OwnedFd {
        let made = memfd_create(c"foreign", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&made, bytes).unwrap();
        if there {
            fallocate(&made, FallocateFlags::empty(), 0, bytes).unwrap();
        }
        fcntl(&made, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        made
    }

    fn refusal(descriptor: OwnedFd, bytes: u64) -> String {
        Foreign::of_fd(descriptor, bytes).unwrap_err().to_string()
    }

    #[test]
    fn what_its_owner_writes_is_read_and_nothing_beyond() {
        let owner = Arena::shared(10_000, Access::Read).unwrap();
        let foreign = Foreign::of_fd(descriptor(&owner), 10_000).unwrap();
        owner.claim(owner.range()).unwrap()[9_990..].copy_from_slice(b"0123456789");
        let mut into = [0; 10];
        foreign.read(9_990, &mut into).unwrap();
        assert_eq!(&into, b"0123456789");
        for start in [9_991, 10_000, u64::MAX] {
            let refused = foreign.read(start, &mut into).unwrap_err();
            assert!(matches!(refused, ArenaError::OutOfBounds { .. }), "{refused}");
        }
        foreign.read(10_000, &mut []).unwrap();
        drop(owner);
        foreign.read(9_990, &mut into).unwrap();
        assert_eq!(&into, b"0123456789", "the memory lives as long as a map");
    }

    #[test]
    fn memory_that_could_go_away_is_refused() {
        let shrink = SealFlag::F_SEAL_SHRINK;
        assert!(refusal(memory(4096, SealFlag::F_SEAL_GROW, true), 4096).contains("not sealed"));
        assert!(refusal(memory(4096, shrink, true), 4096).contains("not sealed"), "pages can be taken out");
        let whole = shrink | SealFlag::F_SEAL_FUTURE_WRITE;
        assert!(refusal(memory(1 << 20, whole, false), 1 << 20).contains("not all there"));
        for bytes in [0, 4095, 4097, u64::MAX] {
            assert!(refusal(memory(4096, whole, true), bytes).contains("4096 bytes"), "{bytes}");
        }
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(refusal(null, 1).contains("no seals"));
        assert!(Foreign::of_fd(memory(4096, whole, true), 4096).is_ok());
        assert!(Foreign::of_fd(memory(4096, shrink | SealFlag::F_SEAL_WRITE, true), 4096).is_ok());
    }

    #[test]
    fn an_owner_cannot_take_pages_out_of_the_middle() {
        let owner = Arena::shared(1 << 20, Access::Read).unwrap();
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert!(fallocate(descriptor(&owner), punch, 0, 4096).is_err());
    }

    #[test]
    fn a_writer_at_the_same_time_is_no_harm() {
        let owner = Arena::shared(1 << 20, Access::Read).unwrap();
        let foreign = Foreign::of_fd(descriptor(&owner), 1 << 20).unwrap();
        let mut claim = owner.claim(owner.range()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || (1..=50).for_each(|value| claim.fill(value)));
            let mut into = vec![0; 1 << 20];
            for _ in 0..50 {
                foreign.read(0, &mut into).unwrap();
                assert!(into.iter().all(|&byte| byte <= 50));
            }
        });
    }

    proptest! {
        #[test]
        fn any_part_is_read_as_it_is(start in 0_usize..5_000, length in 0_usize..5_000) {
            let owner = Arena::shared(10_000, Access::Read).unwrap();
            let foreign = Foreign::of_fd(descriptor(&owner), 10_000).unwrap();
            let mut claim = owner.claim(owner.range()).unwrap();
            claim.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 % 251) as u8);
            let mut into = vec![0; length];
            foreign.read(start as u64, &mut into).unwrap();
            prop_assert_eq!(&into[..], &claim[start..start + length]);
        }
    }
}
