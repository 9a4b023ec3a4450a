//! Wrappers over any transport, which are transports again: [`Fault`] loses, reorders, repeats, damages and
//! delays chunks and cuts links, [`Throttle`] limits the rate, [`Emulate`] makes a link like one of a
//! network, [`Seal`] encrypts chunks end to end, [`Compress`] sends values in fewer bytes. `Trace` of
//! `crates/testkit` is a layer for tests, which records what passes.
//!
//! A layer acts on what its own side sends (seal and compress: and receives); wrap both sides for both
//! directions. What to do with which chunk is decided by small types without a clock and without IO; tokio
//! only drives them. No layer keeps `fan_out`: a group send goes to each wrapped link by itself.
#![forbid(unsafe_code)]

mod buffers;
mod compress;
mod emulate;
mod ended;
mod fault;
mod lane;
mod pacer;
mod progress;
mod rate;
mod script;
mod seal;
mod throttle;
mod wrap;

#[cfg(any(test, feature = "fuzz"))]
pub use compress::fuzz;
pub use compress::{down, floats, put_back, Compress, Factors, Format, LowRank, Scheme};
pub use emulate::{Directions, Emulate};
pub use fault::Fault;
pub use lane::{Crossing, Lane};
pub use pacer::Pacer;
pub use rate::Rate;
pub use script::{DelayLine, Fate, Script, Step};
pub use seal::Seal;
pub use throttle::Throttle;
pub use wrap::{Layer, Links, Side};
