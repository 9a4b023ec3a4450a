//! Settings of an endpoint, with the bounds of its tables.

use super::policy::Policy;
use super::rate::Rate;
use super::stream::Patience;
use crate::Time;

/// Settings that all flows of an endpoint share.
#[derive(Debug, Clone)]
pub struct Config {
    /// Ports to listen on. Segments to other ports are answered by a reset.
    pub ports: Vec<u16>,
    /// Bytes of the largest IP packet of the device. It determines the segment size.
    pub mtu: usize,
    /// Whether the device takes superpackets and completes checksums, as [`super::Offload`] says for each
    /// packet.
    pub offload: bool,
    /// Whether to agree to selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Whether to agree to timestamps (RFC 7323).
    pub timestamps: bool,
    /// Shift of our window field (RFC 7323 section 2.2). 10 allows a window of 64 MB.
    pub scale: u8,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// The longest delay of an acknowledgement (RFC 9293 section 3.8.6.3).
    pub ack_delay: Time,
    /// How long a gap waits for reordered packets.
    pub reorder: Reorder,
    /// How a sender learns that a loss was not congestion.
    pub undo: Undo,
    /// What new flows may lose.
    pub policy: Policy,
    /// The rate controller of new flows.
    pub rate: Rate,
    /// Most open gaps of a flow. A segment that would open another is dropped.
    pub gaps: usize,
    /// Most masked holes that a flow remembers so that late data can fill them. Beyond that it forgets the
    /// oldest.
    pub masks: usize,
    /// Bytes of a flow to the client that may wait to be sent or acknowledged.
    pub send_buffer: usize,
    /// Most flows. A connection beyond that gets no answer.
    pub flows: usize,
    /// Most flows whose handshake is not finished. A new one replaces a random one of these.
    pub half_open: usize,
    /// Most resets that wait to be sent.
    pub resets: usize,
    /// Most challenge ACKs a second and flow (RFC 5961 section 7).
    pub challenges: u32,
    /// Retransmissions of the same bytes after which the peer counts as gone.
    pub tries: u32,
    /// Retransmissions of our SYN-ACK.
    pub syn_tries: u32,
    /// The longest silence of a peer; `None` for no limit.
    pub idle: Option<Time>,
    /// How long a flow that we have closed waits for the FIN of the peer.
    pub fin_wait: Time,
    /// How long a closed flow answers retransmissions (TIME-WAIT, 2 MSL).
    pub time_wait: Time,
}

/// What to do about explicit congestion notification (RFC 3168).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ecn {
    /// Do not agree to it.
    Refuse,
    /// Agree, and echo marks: the sender slows down.
    Echo,
    /// Agree, but use marks for the rate controller only.
    Ignore,
}

/// How long a gap waits for reordered packets before it counts as a hole: until enough segments have come after
/// it, or enough time has passed (RACK, RFC 8985). Both limits grow if packets are seen to come later.
#[derive(Debug, Clone, Copy)]
pub struct Reorder {
    /// Segments after the gap, as long as none has been seen to come later.
    pub packets: Option<u32>,
    /// Time limit as a share of the shortest round trip.
    pub share: f64,
    /// Lower bound of the time limit.
    pub least: Time,
    /// Upper bound of the time limit.
    pub most: Time,
}

/// How to make a sender undo the reduction of its window after a retransmission that we asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undo {
    /// Echo a timestamp from before the retransmission (Eifel, RFC 3522). The sender needs timestamps.
    pub eifel: bool,
    /// Report the retransmission as a duplicate (D-SACK, RFC 2883), although it was none.
    pub duplicates: bool,
    /// Report data that comes after a silence as a duplicate. It may be a tail loss probe. The sender then
    /// takes the probe for needless (RFC 8985 section 7.4.2) and reduces nothing.
    pub probes: bool,
    /// The greatest age of such an echo while one recovery follows another; four round trips if that is longer.
    /// A newer echo undoes nothing until the sender has paused. If an acknowledgement reports nothing new, the
    /// sender takes the age of the echo for a round trip, so its next timeout is longer.
    pub oldest: Time,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            mtu: 1500,
            offload: false,
            sack: true,
            timestamps: true,
            scale: 10,
            ecn: Ecn::Refuse,
            ack_delay: Time::from_millis(5),
            reorder: Reorder::default(),
            undo: Undo { eifel: true, duplicates: false, probes: true, oldest: Time::from_secs(600) },
            policy: Policy::default(),
            rate: Rate::default(),
            gaps: 4096,
            masks: 1 << 14,
            send_buffer: 1 << 16,
            flows: 4096,
            half_open: 256,
            resets: 64,
            challenges: 10,
            tries: 10,
            syn_tries: 5,
            idle: None,
            fin_wait: Time::from_secs(60),
            time_wait: Time::from_secs(60),
        }
    }
}

impl Default for Reorder {
    fn default() -> Self {
        let (least, most) = (Time::from_millis(1), Time::from_millis(50));
        Self { packets: Some(3), share: 0.25, least, most }
    }
}

impl Reorder {
    /// How long gaps wait if the shortest round trip is `rtt`.
    pub(super) fn patience(&self, rtt: Option<Time>) -> Patience {
        let share = rtt.unwrap_or_default().mul_f64(self.share.clamp(0.0, 10.0));
        let most = self.most.max(self.least);
        Patience { time: share.max(self.least).min(most), packets: self.packets, most }
    }
}
