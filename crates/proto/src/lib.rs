//! Session, round and reassembly as state machines without IO.
//!
//! Nothing here opens a socket, spawns a task or reads a clock: `now` is an argument, what happens comes in
//! through methods, what is to be done comes out of `poll_action`. The same code runs live, in tests with a
//! virtual clock and network, and under a fuzzer.
//!
//! ```text
//! server                                   client
//!   Challenge  ------------------------------>
//!   <------------------------------  Hello (proof, what it still holds)
//!   Welcome (number, layout)  --------------->
//!   Begin, chunks, End  --------------------->   into the arena, in place
//!   <------------------------------  Received (or Need: holes)
//!                                            train
//!   <------------------------------  Offer (samples, metrics)
//!   Grant (ranges)  ------------------------->   when the staging budget admits it
//!   <------------------------------  chunks, End
//!   Accepted, once folded (or Grant: holes, Rejected, Closed) -->
//! ```
//!
//! A Grant of holes may also come while chunks are sent: what it is about follows them, and has an End of its own.
#![forbid(unsafe_code)]

mod choice;
mod client;
mod credits;
mod liveness;
mod order;
mod outcome;
mod reaching;
mod reassembly;
mod round;
mod server;

pub use choice::Choice;
pub use client::{Client, ClientAction, ClientConfig, Verdict};
pub use credits::Credits;
pub use liveness::Liveness;
pub use order::{Fanout, Gather};
pub use outcome::{Direction, Outcome, Participation, Span, State, Transfer};
pub use reassembly::{Fit, Reassembly};
pub use round::{Ending, Partial, Round, RoundPlan};
pub use server::{Action, Admission, LinkId, Place, Server, ServerConfig, Stored, Traffic};

/// Time since the machine was made, on a monotonic clock.
pub type Time = std::time::Duration;

/// Microseconds, as messages carry them.
pub fn micros(time: Time) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
