//! Arenas in files, for updates that do not fit into memory.

use std::fs::{remove_file, File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapOptions;

use crate::{Arena, ArenaError, Inner};

/// Number of the next file, which makes the names of a process's files different.
static FILES: AtomicU64 = AtomicU64::new(0);

impl Arena {
    /// A zeroed buffer of `bytes` bytes in a file in `folder`. The file has no name and is deleted with the
    /// arena. The system writes the buffer to the file when memory is short.
    ///
    /// # Errors
    /// [`ArenaError::Memory`] if no file of this length can be made in the folder.
    pub fn in_file(folder: &Path, bytes: u64) -> Result<Self, ArenaError> {
        let refused = |cause: String| ArenaError::Memory { bytes, cause };
        let size = usize::try_from(bytes.max(1)).map_err(|e| refused(e.to_string()))?;
        let within = |error: std::io::Error| refused(format!("in a file in {}: {error}", folder.display()));
        let file = nameless(folder).map_err(within)?;
        reserve(&file, size as u64).map_err(within)?;
        let map = MmapOptions::new().len(size).map_raw(&file).map_err(within)?;
        Ok(Self::registered(Inner::new(map, bytes)))
    }
}

/// Makes a file and removes its name at once, so that nothing is left behind however the process ends.
fn nameless(folder: &Path) -> std::io::Result<File> {
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".thalweg-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    remove_file(path)?;
    Ok(file)
}

/// Allocates the disk blocks now. If the disk were full later, writing to the memory would end the process.
#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    use nix::fcntl::{fallocate, FallocateFlags};
    let length = i64::try_from(bytes).map_err(std::io::Error::other)?;
    fallocate(file, FallocateFlags::empty(), 0, length).map_err(std::io::Error::from)
}

#[cfg(not(target_os = "linux"))]
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    file.set_len(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_holds_what_is_written_and_leaves_no_name() {
        let folder = std::env::temp_dir().join(format!("thalweg-arena-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let arena = Arena::in_file(&folder, 10_000).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        assert!(arena.lend(arena.range()).unwrap().iter().all(|&byte| byte == 0));
        arena.claim(arena.range()).unwrap().fill(7);
        assert!(arena.lend(arena.range()).unwrap().iter().all(|&byte| byte == 7));
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn says_which_folder_has_no_room() {
        let error = Arena::in_file(Path::new("/nowhere"), 64).unwrap_err().to_string();
        assert!(error.contains("/nowhere"), "{error}");
        assert!(Arena::in_file(&std::env::temp_dir(), u64::MAX).is_err());
    }
}
