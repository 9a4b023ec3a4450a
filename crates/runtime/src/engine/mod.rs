//! What every machine needs around it: one tokio runtime a process, links and their outboxes, lending, reading, the clock.
//!
//! ```text
//!   link reader tasks --- messages, chunks --->  machine (one mutex)  --- actions --->  driver task
//!        |                                                                                 |
//!        +-- chunk -> the policy's sink                    outbox per link, group sends, timers, policy
//! ```
//!
//! [`Hub`] drives a machine that listens, [`Dialer`] one that dials. A policy (`star`, `tasks`) says which machine that
//! is, where its chunks go, which bytes a parcel has, and performs what only its machine asks for.

mod admission;
mod crew;
mod descriptors;
mod dialer;
mod holding;
mod hub;
mod landing;
mod notes;
mod outbox;
mod turned_away;

pub use self::admission::vouched;
pub(crate) use self::admission::{Gate, Keys, Peers, Witnessed};
pub(crate) use self::crew::Crew;
pub(crate) use self::descriptors::limit as descriptor_limit;
pub(crate) use self::dialer::{
    dialer_machine, DialOptions, Dialer, DialerMachine, DialerPolicy, KnownAs, FAREWELL_PATIENCE,
};
pub(crate) use self::hub::{hub_machine, Hub, HubMachine, HubOptions, HubPolicy, Lent};
pub(crate) use self::landing::{part, store, Scratch};
pub(crate) use self::turned_away::TurnedAway;

use std::time::Duration;

/// Asked several times a second whether a caller goes on waiting. `None`: it waits for as long as it takes, and its thread
/// is not woken before; so thousands of threads may wait.
pub type GoOn<'a> = Option<&'a (dyn Fn() -> bool + Sync)>;

/// How often a waiting caller is asked whether to go on.
pub(crate) const CALLER_PATIENCE: Duration = Duration::from_millis(100);
/// How long a caller waits at a time that is not asked: it looks again then, though nothing was announced.
const UNASKED_PATIENCE: Duration = Duration::from_secs(3600);

/// How long a caller waits at a time.
pub(crate) fn patience(go_on: GoOn<'_>) -> Duration {
    if go_on.is_some() {
        CALLER_PATIENCE
    } else {
        UNASKED_PATIENCE
    }
}

/// Whether a caller goes on.
pub(crate) fn goes_on(go_on: GoOn<'_>) -> bool {
    go_on.is_none_or(|go_on| go_on())
}
/// How long a chunk that came late may take to be written.
pub(crate) const CHUNK_PATIENCE: Duration = Duration::from_secs(1);
