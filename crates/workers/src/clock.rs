//! Clocks that all processes of a machine have alike.

use rustix::time::{clock_gettime, ClockId};

/// Nanoseconds of the clock that never goes back.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Nanoseconds of CPU time that this process has had.
pub(crate) fn cpu() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
