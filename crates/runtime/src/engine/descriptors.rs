//! The limit on file descriptors of this process.

/// Number of descriptors that a server asks for: for its clients, unauthenticated peers, and the job's own
/// files.
const SERVER_DESCRIPTORS: u64 = 16 << 10;
/// The limit that is assumed for a system without one.
#[cfg(not(unix))]
const ASSUMED_LIMIT: u64 = 1024;

/// Raises the soft limit to the number of descriptors that a server needs, as far as the hard limit allows.
/// Returns the new limit.
#[cfg(unix)]
pub(crate) fn limit() -> u64 {
    use nix::sys::resource::{getrlimit, setrlimit, Resource};
    // If the system does not answer, 0 gives the smallest admission queue.
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let wanted = SERVER_DESCRIPTORS.min(hard);
    if soft >= wanted || setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_err() {
        return soft;
    }
    wanted
}

#[cfg(not(unix))]
pub(crate) fn limit() -> u64 {
    SERVER_DESCRIPTORS.min(ASSUMED_LIMIT)
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
