//! File descriptors of this process: how many there may be.

/// What a server asks for where the system lets it: clients, and beside them guests and the job's own files.
const WANTED: u64 = 16 << 10;
/// What a system without such a limit is taken to have.
#[cfg(not(unix))]
const USUAL: u64 = 1024;

/// How many descriptors this process may have. The soft limit is raised first, as far as the hard one lets it and a
/// server needs it.
#[cfg(unix)]
pub(crate) fn limit() -> u64 {
    use nix::sys::resource::{getrlimit, setrlimit, Resource};
    // A system that does not say gets the smallest lobby there is.
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let wanted = WANTED.min(hard);
    if soft >= wanted || setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_err() {
        return soft;
    }
    wanted
}

#[cfg(not(unix))]
pub(crate) fn limit() -> u64 {
    WANTED.min(USUAL)
}

#[cfg(all(test, unix))]
mod tests {
    #[test]
    fn the_soft_limit_is_raised_and_never_lowered() {
        use nix::sys::resource::{getrlimit, Resource};
        let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let limit = super::limit();
        let (after, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(limit, after);
        assert!(after >= before && after <= hard);
    }
}
