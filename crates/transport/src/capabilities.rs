//! What a transport can do, as data. Tests and the runtime choose by it, never by a name.

use serde::{Deserialize, Serialize};

use crate::ALIGNED;

/// Capabilities of a transport.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Every chunk sent arrives, or the link breaks.
    pub reliable: bool,
    /// Chunks and control messages arrive in the order they were sent.
    pub ordered: bool,
    /// When a control message comes, no chunk sent before it is still under way, but for those overtaken there.
    pub settled: bool,
    /// Chunks of a detached update are delivered though control messages sent before them are held up.
    pub detached: bool,
    /// Chunks come as datagrams, which anybody can send: those of a peer that is not admitted are only dropped.
    pub datagrams: bool,
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
    /// Both ends are alike: what is lost or masked in one direction may be in the other.
    pub symmetric: bool,
    /// Peers on other machines can be reached.
    pub remote: bool,
    /// Both ends are in one process.
    pub in_process: bool,
    /// The receiver takes bytes out of the sender's memory, if that is shared (`Arena::shared`); others are copied before.
    pub lends: bool,
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

    /// Bytes of payload in a chunk: those `wanted`, else those preferred, else `usual`; no more than there can be, and
    /// a multiple of [`ALIGNED`], so that no chunk begins or ends within a value.
    pub fn chunk(&self, wanted: Option<u32>, usual: u32) -> u32 {
        let preferred = if self.preferred_chunk == 0 { usual } else { self.preferred_chunk };
        let most = wanted.unwrap_or(preferred).min(self.max_chunk);
        let aligned = ALIGNED as u32;
        (most / aligned * aligned).max(aligned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cut_no_value_whatever_their_carrier_takes() {
        let chunk = |max_chunk, preferred_chunk, wanted| {
            Capabilities { max_chunk, preferred_chunk, ..Capabilities::default() }.chunk(wanted, 1 << 18)
        };
        assert_eq!(chunk(4 << 20, 0, None), 1 << 18);
        assert_eq!(chunk(4 << 20, 1344, None), 1344);
        assert_eq!(chunk(4 << 20, 1344, Some(4096)), 4096);
        for most in 1..3000 {
            let found = chunk(most, 61, None);
            assert!(found % 8 == 0 && found > 0 && (found <= most || most < 8), "{found} of {most}");
            assert_eq!(chunk(most, 0, None), (most / 8 * 8).max(8));
        }
    }
}
