//! How much more memory the process may allocate. Batch systems limit a process's address space
//! (`ulimit -v`), and a failed allocation aborts the process. So callers that need much memory call [`room`]
//! first, which returns an error instead. [`available`] tells them how much they may plan with.

use std::path::{Path, PathBuf};

use crate::ArenaError;

/// Bytes that stay free for threads' stacks, buffers of links and other allocations that do not call
/// [`room`].
const RESERVE: u64 = 256 << 20;

/// Checks that the process may allocate `bytes` more.
///
/// # Errors
/// [`ArenaError::Memory`] if the limit of its address space leaves no room.
pub fn room(bytes: u64) -> Result<(), ArenaError> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    match address_space(&read("/proc/self/limits")) {
        Some(limit) => check(bytes, limit, used(&read("/proc/self/status")).unwrap_or(0)),
        None => Ok(()),
    }
}

/// Bytes that the process can probably still allocate: what the system reports as available, or less if a
/// control group or a limit of the address space leaves less. `None` on systems that do not say.
pub fn available() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let system = mem_available(&read(Path::new("/proc/meminfo")))?;
    let groups = groups(&read(Path::new("/proc/self/cgroup")));
    let group = groups.iter().filter_map(|group| {
        let file = |name| read(&group.join(name));
        left_in_group(&file("memory.max"), &file("memory.current"), &file("memory.stat"))
    });
    let status = read(Path::new("/proc/self/status"));
    let address_space = address_space(&read(Path::new("/proc/self/limits")))
        .map(|limit| limit.saturating_sub(used(&status).unwrap_or(0)).saturating_sub(RESERVE));
    group.chain(address_space).chain([system]).min()
}

/// Memory that the system reports as available, in bytes, from `/proc/meminfo`.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// What a control group leaves, in bytes, from its files `memory.max`, `memory.current` and `memory.stat`; `None`
/// without a limit. The kernel gives cached files back before it refuses memory, so they do not count as used.
fn left_in_group(limit: &str, current: &str, stat: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let files = |name| stat.lines().find_map(|line| line.strip_prefix(name)).and_then(number).unwrap_or(0);
    let cached = files("inactive_file ").saturating_add(files("active_file "));
    Some(number(limit)?.saturating_sub(number(current)?.saturating_sub(cached)))
}

/// The folders of the process's control group and of all groups above it (cgroup v2), from
/// `/proc/self/cgroup`.
fn groups(own: &str) -> Vec<PathBuf> {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    let root = Path::new("/sys/fs/cgroup");
    root.join(path).ancestors().take_while(|group| *group != root).map(Path::to_path_buf).collect()
}

fn check(bytes: u64, limit: u64, used: u64) -> Result<(), ArenaError> {
    if used.saturating_add(bytes).saturating_add(RESERVE) <= limit {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    let cause = format!(
        "the address space is limited to {} MiB (ulimit -v), of which {} are in use and {} are kept free",
        mib(limit),
        mib(used),
        mib(RESERVE)
    );
    Err(ArenaError::Memory { bytes, cause })
}

/// The limit of the address space in bytes, if there is one: the soft limit in `/proc/self/limits`.
fn address_space(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes of address space in use, from `/proc/self/status`.
fn used(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_limit_there_is_room() {
        assert_eq!(
            address_space("Max address space         unlimited            unlimited            bytes\n"),
            None
        );
        assert_eq!(address_space(""), None);
    }

    #[test]
    fn a_limit_and_what_is_in_use_are_read() {
        let limits =
            "Max cpu time 1 2 s\nMax address space         3072000000           unlimited            bytes\n";
        assert_eq!(address_space(limits), Some(3_072_000_000));
        assert_eq!(used("VmPeak:\t 9 kB\nVmSize:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(used("Name:\tx\n"), None);
    }

    #[test]
    fn available_memory_and_the_groups_that_limit_it_are_read() {
        assert_eq!(mem_available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 9 kB\n"), None);
        let folders = |own| groups(own).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(folders("3:cpu:/x\n0::/a/b\n"), ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a"]);
        assert!(folders("0::/\n").is_empty(), "the root has no limit");
        assert!(folders("3:cpu:/x\n").is_empty());
        assert_eq!(
            left_in_group("1000\n", "700\n", "anon 200\ninactive_file 400\nactive_file 100\n"),
            Some(800)
        );
        assert_eq!(left_in_group("1000\n", "1200\n", ""), Some(0));
        assert_eq!(left_in_group("max\n", "700\n", ""), None);
    }

    #[test]
    fn what_goes_beyond_the_limit_is_an_error_with_all_numbers() {
        assert!(check(1 << 30, 2 << 30, 512 << 20).is_ok());
        let error = check(2 << 30, 2 << 30, 512 << 20).unwrap_err().to_string();
        for part in ["2147483648 bytes", "2048 MiB", "512 are in use", "ulimit -v"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(check(u64::MAX, u64::MAX - 1, u64::MAX).is_err());
    }
}
