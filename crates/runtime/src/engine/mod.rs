//! The engine runs a state machine: it owns the tokio runtime, the links and their outboxes, the loans, and
//! the clock.
//!
//! ```text
//!   link reader tasks --- messages, chunks --->  machine (one mutex)  --- actions --->  driver task
//!        |                                                                                 |
//!        +-- chunk -> the policy's sink                    outbox per link, group sends, timers, policy
//! ```
//!
//! [`Hub`] drives a machine that listens, [`Dialer`] one that dials. A policy (`star`, `tasks`, `graph`)
//! chooses the machine, the sink for chunks and the bytes of parcels. It also performs the actions that only
//! its machine has.

mod admission;
mod connecting;
mod descriptors;
mod dialer;
mod event_queue;
mod holding;
mod hub;
mod landing;
mod machine_lock;
mod notes;
mod outbox;
mod rejected_peers;
mod revocations;
mod task_set;

pub use self::admission::check_forwarded_proof;
pub(crate) use self::admission::{ForwardedProofs, Gate, Keys, Peers};
pub(crate) use self::descriptors::limit as descriptor_limit;
pub(crate) use self::dialer::{DialOptions, Dialer, DialerPolicy, FAREWELL_TIMEOUT};
pub(crate) use self::event_queue::EventQueue;
pub(crate) use self::hub::{Hub, HubOptions, HubPolicy, Lent};
pub(crate) use self::landing::{part, store, Scratch};
pub(crate) use self::machine_lock::{ClientLock, ServerLock};
pub(crate) use self::rejected_peers::RejectedPeers;
pub(crate) use self::task_set::TaskSet;

use std::time::Duration;

/// Called several times a second while a caller waits; false ends the wait. `None`: the caller waits as long
/// as necessary, and its thread is not woken in between. So thousands of threads may wait.
pub type GoOn<'a> = Option<&'a (dyn Fn() -> bool + Sync)>;

/// Interval at which a waiting caller is asked whether to go on.
pub(crate) const CALLER_TIMEOUT: Duration = Duration::from_millis(100);
/// How long one wait of a caller without `GoOn` lasts. After that the caller checks its condition, even if
/// nothing was announced.
const UNASKED_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long one wait of a caller lasts.
pub(crate) fn caller_timeout(go_on: GoOn<'_>) -> Duration {
    if go_on.is_some() {
        CALLER_TIMEOUT
    } else {
        UNASKED_TIMEOUT
    }
}

/// Whether a caller goes on waiting.
pub(crate) fn goes_on(go_on: GoOn<'_>) -> bool {
    go_on.is_none_or(|go_on| go_on())
}
/// How long to wait until a late chunk is written and its memory is released.
pub(crate) const CHUNK_TIMEOUT: Duration = Duration::from_secs(1);
