//! One link between two peers: handshake, proof, versions, liveness, pings, clocks and counters.
//!
//! A server's links and members are in [`Roster`]; a client's one link, and its way back to the server, in [`Dial`].
//! Both know nothing of what is moved: a policy (star, tasks) owns one of them and is told which messages are for it.

mod clock;
mod dial;
mod liveness;
mod reaching;
mod roster;

use thalweg_wire::control::Nonce;

use crate::Time;

pub(crate) use self::clock::on_our_clock;
pub(crate) use self::dial::{dial_methods, Dial, ServerEvent};
pub use self::dial::{ClientAction, ClientConfig};
pub use self::liveness::Liveness;
pub use self::roster::{other_purpose, Action, Admission, LinkId, Roster, SessionConfig, Traffic};
pub(crate) use self::roster::{roster_methods, Dropped, MemberEvent};

/// Least time between heartbeats, whatever a configuration says.
const LEAST_HEARTBEAT: Time = Time::from_millis(1);

/// What to do about another layout.
const SAME_MODEL: &str = "use the same model and the same tensors at both ends";

/// What both ends know of a link.
#[derive(Debug)]
pub(crate) struct Session {
    /// Drawn by this end.
    pub nonce: Nonce,
    /// Whether a message says that nothing is under way of the chunks sent before it.
    pub ordered: bool,
    pub live: Liveness,
    pinged: Time,
}

impl Session {
    fn new(now: Time, nonce: Nonce, ordered: bool, liveness: Time) -> Self {
        Self { nonce, ordered, live: Liveness::new(now, liveness), pinged: now }
    }

    /// Whether a ping is due; it then counts as sent.
    fn take_due_ping(&mut self, now: Time, heartbeat: Time) -> bool {
        let due = now >= self.pinged + heartbeat;
        if due {
            self.pinged = now;
        }
        due
    }

    /// When the next ping is due.
    fn ping_at(&self, heartbeat: Time) -> Time {
        self.pinged + heartbeat
    }
}
