//! What a transport can do, as data. Tests and the runtime choose by it, never by a name.

use serde::{Deserialize, Serialize};

/// Capabilities of a transport.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Every chunk sent arrives, or the link breaks.
    pub reliable: bool,
    /// Chunks and control messages arrive in the order they were sent.
    pub ordered: bool,
    /// When a control message comes, no chunk sent before it is still under way, but for those overtaken there.
    pub settled: bool,
    /// One send to a group is sent once on the sender's own access link.
    pub fan_out: bool,
    /// A third party stands between the peers.
    pub broker: bool,
    /// Chunks are received straight into the place the sink names.
    pub zero_copy: bool,
    /// Links can be encrypted.
    pub encrypted: bool,
    /// An unmodified kernel TCP stack suffices at the sender.
    pub sender_unmodified: bool,
    /// Peers on other machines can be reached.
    pub remote: bool,
    /// The congestion control can be chosen.
    pub congestion: bool,
    /// Retransmissions are counted.
    pub retransmissions: bool,
    /// Most bytes of payload in one chunk.
    pub max_chunk: u32,
    /// Bytes of payload in a chunk where nobody says otherwise; 0 leaves it to the session.
    pub preferred_chunk: u32,
}

impl Capabilities {
    /// Whether a control message says that nothing is under way of the chunks sent before it.
    pub fn settles(&self) -> bool {
        self.ordered || self.settled
    }

    /// Bytes of payload in a chunk: those `wanted`, else those preferred, else `usual`; no more than there can be.
    pub fn chunk(&self, wanted: Option<u32>, usual: u32) -> u32 {
        let preferred = if self.preferred_chunk == 0 { usual } else { self.preferred_chunk };
        wanted.unwrap_or(preferred).min(self.max_chunk)
    }
}
