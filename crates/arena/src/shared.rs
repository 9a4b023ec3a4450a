//! Arenas that several processes map: memory with a descriptor but without a name (`memfd_create(2)`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::MmapOptions;
use nix::errno::Errno;
use nix::fcntl::{fallocate, fcntl, FallocateFlags, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::unistd::ftruncate;

use crate::{Arena, ArenaError, Inner};

/// What a process may do with the memory of a shared arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only lend it.
    Read,
    /// Lend it and claim it.
    Write,
}

impl Arena {
    /// A zeroed buffer of `bytes` bytes that other processes can map: give them [`Arena::descriptor`]. All of
    /// it is allocated now, so that touching it later cannot fail.
    ///
    /// Nobody can ever change its size. `others` says what other processes may do. With [`Access::Read`],
    /// only this arena can write: the kernel refuses all others (`F_SEAL_FUTURE_WRITE`).
    ///
    /// # Errors
    /// [`ArenaError::Memory`] if the system refuses.
    pub fn shared(bytes: u64, others: Access) -> Result<Self, ArenaError> {
        let refused = |cause: String| ArenaError::Memory { bytes, cause };
        let system = |error: nix::Error| refused(in_words(error));
        let size = i64::try_from(bytes.max(1)).map_err(|e| refused(e.to_string()))?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let descriptor = memfd_create(c"thalweg-arena", flags).map_err(system)?;
        ftruncate(&descriptor, size).map_err(system)?;
        fallocate(&descriptor, FallocateFlags::empty(), 0, size).map_err(system)?;
        let map = options(size as usize, true).map_raw(&descriptor).map_err(|e| refused(e.to_string()))?;
        let mut seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        if others == Access::Read {
            seals |= SealFlag::F_SEAL_FUTURE_WRITE;
        }
        fcntl(&descriptor, FcntlArg::F_ADD_SEALS(seals)).map_err(system)?;
        let mut inner = Inner::new(map, bytes);
        inner.descriptor = Some(descriptor);
        Ok(Self::registered(inner))
    }

    /// The descriptor that another process maps to share this arena's memory. `None` if the arena is not
    /// shared.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// Maps the memory of a shared arena of `bytes` bytes that another process made.
    ///
    /// # Errors
    /// [`ArenaError::Descriptor`] if it has another size; if its size can change, which could end this
    /// process; if it is read-only and `access` is [`Access::Write`]; or if the system refuses.
    pub fn of_fd(descriptor: OwnedFd, bytes: u64, access: Access) -> Result<Self, ArenaError> {
        let wrong = |cause: String| ArenaError::Descriptor { bytes, cause };
        let seals = seals_of(&descriptor).map_err(wrong)?;
        if !seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW) {
            return Err(wrong("its size is not sealed; its owner could take the memory away".into()));
        }
        let file = std::fs::File::from(descriptor);
        let found = file.metadata().map_err(|e| wrong(e.to_string()))?.len();
        if found != bytes.max(1) {
            return Err(wrong(format!("it has {found} bytes; both ends must use the same layout and plan")));
        }
        let size = usize::try_from(found).map_err(|e| wrong(e.to_string()))?;
        let map = match access {
            Access::Read => options(size, true).map_raw_read_only(&file),
            Access::Write => options(size, true).map_raw(&file),
        };
        let map = map.map_err(|error| wrong(format!("it cannot be mapped ({error})")))?;
        let mut inner = Inner::new(map, bytes);
        inner.descriptor = Some(file.into());
        inner.writable = access == Access::Write;
        Ok(Self::registered(inner))
    }
}

/// The seals of a descriptor's memory, or the reason why it has none.
pub(crate) fn seals_of(descriptor: &OwnedFd) -> Result<SealFlag, String> {
    let seals = fcntl(descriptor, FcntlArg::F_GET_SEALS)
        .map_err(|error| format!("it has no seals ({}); it must come from a shared arena", error.desc()))?;
    Ok(SealFlag::from_bits_retain(seals))
}

/// Options of a mapping. With `now`, all pages are mapped at once, because the first touch of each costs more
/// later.
pub(crate) fn options(size: usize, now: bool) -> MmapOptions {
    let mut options = MmapOptions::new();
    options.len(size);
    if now {
        options.populate();
    }
    options
}

/// Describes an error of the system. Names the limit if the user can raise it.
fn in_words(error: Errno) -> String {
    let limit = match error {
        Errno::EFBIG => " (ulimit -f limits shared memory too)",
        Errno::EMFILE => " (raise ulimit -n)",
        _ => "",
    };
    format!("{}{limit}", error.desc())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use thalweg_wire::Range;

    use super::*;

    fn descriptor(arena: &Arena) -> OwnedFd {
        arena.descriptor().unwrap().try_clone_to_owned().unwrap()
    }

    fn refusal(descriptor: OwnedFd, bytes: u64, access: Access) -> String {
        Arena::of_fd(descriptor, bytes, access).unwrap_err().to_string()
    }

    #[test]
    fn what_one_writes_the_other_reads() {
        for access in [Access::Read, Access::Write] {
            let ours = Arena::shared(10_000, access).unwrap();
            let theirs = Arena::of_fd(descriptor(&ours), 10_000, access).unwrap();
            assert!(ours.is_writable() && theirs.is_writable() == (access == Access::Write));
            assert_ne!(ours.as_ptr(), theirs.as_ptr());
            assert!(theirs.lend(theirs.range()).unwrap().iter().all(|&byte| byte == 0));
            ours.claim(Range::new(9_000, 9_003)).unwrap().copy_from_slice(b"abc");
            assert_eq!(theirs.lend(Range::new(9_000, 9_003)).unwrap(), "abc");
            drop(ours);
            assert_eq!(
                theirs.lend(Range::new(9_000, 9_003)).unwrap(),
                "abc",
                "the memory lives as long as a map"
            );
        }
    }

    #[test]
    fn a_writable_map_is_written_from_both_sides() {
        let ours = Arena::shared(64, Access::Write).unwrap();
        let theirs = Arena::of_fd(descriptor(&ours), 64, Access::Write).unwrap();
        theirs.claim(theirs.range()).unwrap().fill(3);
        assert!(ours.lend(ours.range()).unwrap().iter().all(|&byte| byte == 3));
    }

    #[test]
    fn others_cannot_write_what_is_for_reading() {
        let ours = Arena::shared(4096, Access::Read).unwrap();
        let refused = refusal(descriptor(&ours), 4096, Access::Write);
        assert!(refused.contains("cannot be mapped"), "{refused}");
        let file = std::fs::File::from(descriptor(&ours));
        assert!((&file).write(b"x").is_err() && file.write_at(b"x", 0).is_err());
        let theirs = Arena::of_fd(descriptor(&ours), 4096, Access::Read).unwrap();
        assert_eq!(theirs.claim(Range::new(0, 1)).unwrap_err(), ArenaError::ReadOnly);
        ours.claim(ours.range()).unwrap()[0] = 1;
        assert_eq!(theirs.lend(Range::new(0, 1)).unwrap()[0], 1, "its owner writes on");
    }

    #[test]
    fn nobody_can_change_the_size_or_the_seals() {
        let ours = Arena::shared(8192, Access::Write).unwrap();
        let file = std::fs::File::from(descriptor(&ours));
        assert!(file.set_len(4096).is_err() && file.set_len(16384).is_err());
        assert!(fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
    }

    #[test]
    fn what_is_no_shared_arena_is_refused() {
        let unsealed =
            memfd_create(c"unsealed", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 4096).unwrap();
        let copy = || unsealed.try_clone().unwrap();
        assert!(refusal(copy(), 4096, Access::Read).contains("size is not sealed"));
        fcntl(&unsealed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
        assert!(refusal(copy(), 4096, Access::Read).contains("size is not sealed"), "it can still shrink");
        fcntl(&unsealed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert!(Arena::of_fd(copy(), 4096, Access::Read).is_ok());
        for bytes in [0, 4095, 4097, u64::MAX] {
            assert!(refusal(copy(), bytes, Access::Read).contains("4096 bytes"), "{bytes}");
        }
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(refusal(null, 1, Access::Read).contains("no seals"));
        assert!(matches!(Arena::shared(u64::MAX, Access::Read), Err(ArenaError::Memory { .. })));
        assert!(Arena::new(64).unwrap().descriptor().is_none());
    }

    #[test]
    fn an_empty_arena_is_shared_too() {
        let ours = Arena::shared(0, Access::Read).unwrap();
        let theirs = Arena::of_fd(descriptor(&ours), 0, Access::Read).unwrap();
        assert_eq!(theirs.lend(theirs.range()).unwrap().len(), 0);
    }
}
