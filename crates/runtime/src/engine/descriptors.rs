//! The limit on file descriptors of this process.

/// Number of descriptors that a server asks for: for its clients, unauthenticated peers, and the job's own
/// files.
const WANTED: u64 = 16 << 10;
/// The limit that is assumed for a system without one.
#[cfg(not(unix))]
const USUAL: u64 = 1024;

/// Number of descriptors that this process may have. First raises the soft limit towards the number that a
/// server needs, as far as the hard limit allows.
#[cfg(unix)]
pub(crate) fn limit() -> u64 {
    use nix::sys::resource::{getrlimit, setrlimit, Resource};
    // If the system does not answer, 0 gives the smallest admission queue.
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
