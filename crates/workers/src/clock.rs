//! Clocks that show the same time in all processes of a machine.

use rustix::time::{clock_gettime, ClockId};

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Nanoseconds of CPU time that this process has used.
pub(crate) fn cpu() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
