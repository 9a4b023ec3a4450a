//! Checks whether the process may allocate more memory. Batch systems limit a process's address space
//! (`ulimit -v`), and a failed allocation aborts the process. So callers that need much memory call [`room`]
//! first, which returns an error instead.

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
    fn what_goes_beyond_the_limit_is_an_error_with_all_numbers() {
        assert!(check(1 << 30, 2 << 30, 512 << 20).is_ok());
        let error = check(2 << 30, 2 << 30, 512 << 20).unwrap_err().to_string();
        for part in ["2147483648 bytes", "2048 MiB", "512 are in use", "ulimit -v"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(check(u64::MAX, u64::MAX - 1, u64::MAX).is_err());
    }
}
