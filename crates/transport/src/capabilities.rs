//! What a transport can do, as data. Tests and the runtime decide by these values, never by a transport's
//! name.

use serde::{Deserialize, Serialize};

use crate::ALIGNED;

/// Capabilities of a transport.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Every chunk that was sent arrives, or the link breaks.
    pub reliable: bool,
    /// Chunks and control messages arrive in the order they were sent.
    pub ordered: bool,
    /// When a control message arrives, no chunk that was sent before it is still in flight, except chunks
    /// that it has overtaken at the receiver.
    pub settled: bool,
    /// Chunks of a detached update are delivered even while control messages that were sent before them are
    /// held up.
    pub detached: bool,
    /// Chunks arrive as datagrams, which anybody can send. A chunk of a peer that is not admitted is dropped,
    /// and does not end the link.
    pub datagrams: bool,
    /// A group send crosses the sender's own access link only once.
    pub fan_out: bool,
    /// A broker stands between the peers.
    pub broker: bool,
    /// Chunks are received straight into the place that the sink gives.
    pub zero_copy: bool,
    /// Links can be encrypted.
    pub encrypted: bool,
    /// The sender needs nothing but an unmodified kernel TCP stack.
    pub sender_unmodified: bool,
    /// Both ends are alike: bytes can be lost or masked in either direction.
    pub symmetric: bool,
    /// Peers on other machines can be reached.
    pub remote: bool,
    /// Both ends are in one process.
    pub in_process: bool,
    /// The receiver copies bytes straight out of the sender's memory if that is shared (`Arena::shared`).
    /// Other memory is copied into shared memory first.
    pub lends: bool,
    /// The congestion control algorithm can be selected.
    pub congestion: bool,
    /// Retransmissions are counted.
    pub retransmissions: bool,
    /// Maximum number of bytes of payload in one chunk.
    pub max_chunk: u32,
    /// Usual bytes of payload in a chunk, if the plan sets none. 0 leaves the choice to the session.
    pub preferred_chunk: u32,
}

impl Capabilities {
    /// Whether the arrival of a control message shows that no chunk sent before it is still in flight.
    pub fn settles(&self) -> bool {
        self.ordered || self.settled
    }

    /// Bytes of payload in a chunk: `wanted`, else the preferred number, else `usual`. The result is at most
    /// `max_chunk`, and a multiple of [`ALIGNED`] (at least one), so that no chunk begins or ends within a
    /// value.
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
