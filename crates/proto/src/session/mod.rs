//! One link between two peers: handshake, proof, versions, liveness, pings, clocks and counters.
//!
//! A [`Roster`] holds a server's links and members. A [`Dial`] holds a client's one link, and reconnects it
//! when it breaks. Neither knows what is transferred. A [`ServerMachine`] is a roster and a policy, a
//! [`ClientMachine`] is a dial and a policy; the policies are star, tasks and graph.

mod client_machine;
mod clock;
mod dial;
mod failure;
mod liveness;
mod reaching;
mod roster;
mod server_machine;

use thalweg_wire::control::Nonce;
use thalweg_wire::limits;

use crate::Time;

pub use self::client_machine::ClientMachine;
pub(crate) use self::clock::on_our_clock;
pub use self::dial::{ClientAction, ClientConfig, Dial};
pub use self::failure::Failure;
pub use self::liveness::Liveness;
pub(crate) use self::roster::Dropped;
pub use self::roster::{other_purpose, Action, Admission, LinkId, Roster, SessionConfig, Traffic};
pub use self::server_machine::ServerMachine;

/// Shortest time between heartbeats, whatever the configuration says.
const MIN_HEARTBEAT: Time = Time::from_millis(1);

/// The hint of an error about different layouts.
const SAME_MODEL: &str = "use the same model and the same tensors at both ends";

/// The state of a link that client and server both keep.
#[derive(Debug)]
pub(crate) struct Session {
    /// The nonce that this end drew for the connection.
    pub nonce: Nonce,
    /// Whether the link keeps the order of messages and chunks: when a message arrives, no chunk that was
    /// sent before it is still on its way.
    pub ordered: bool,
    /// Whether, in addition, no chunk overtakes a message that was sent before it.
    pub in_order: bool,
    pub live: Liveness,
    /// Time without progress after which the peer is gone: the job's liveness, or ten round trips of the path if that is
    /// longer.
    pub silence: Time,
    /// When the last ping was sent.
    pinged: Time,
}

impl Session {
    /// A new session. The peer may be silent for `silence` until [`Session::met`].
    fn new(now: Time, nonce: Nonce, ordered: bool, silence: Time) -> Self {
        Self { nonce, ordered, in_order: false, live: Liveness::new(now, silence), silence, pinged: now }
    }

    /// Notes that the peer has answered the handshake, which took `round_trip`. `liveness` is the job's.
    fn met(&mut self, now: Time, round_trip: Time, liveness: Time) {
        self.silence = limits::stall(liveness, round_trip);
        self.live = Liveness::new(now, self.silence);
    }

    /// Whether a ping is due at `now`. If so, the caller must send it: it counts as sent.
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
