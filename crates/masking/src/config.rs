//! What an endpoint is set to, with the bounds of its tables.

use super::policy::Policy;
use super::rate::Rate;
use super::stream::Patience;
use crate::Time;

/// What all flows of an endpoint have in common.
#[derive(Debug, Clone)]
pub struct Config {
    /// Ports that are listened on; segments to others are reset.
    pub ports: Vec<u16>,
    /// Bytes of the largest IP packet of the device; it gives the segment size.
    pub mtu: usize,
    /// Whether the device takes superpackets and completes checksums, as [`super::Offload`] then says of each packet.
    pub offload: bool,
    /// Whether selective acknowledgements are agreed to (RFC 2018).
    pub sack: bool,
    /// Whether timestamps are agreed to (RFC 7323).
    pub timestamps: bool,
    /// How far our window is shifted (RFC 7323 section 2.2): 10 lets it be 64 MB.
    pub scale: u8,
    /// What is done about explicit congestion notification.
    pub ecn: Ecn,
    /// The longest an acknowledgement is delayed (RFC 9293 section 3.8.6.3).
    pub ack_delay: Time,
    /// How long reordering is waited out.
    pub reorder: Reorder,
    /// How senders are told that a loss was none.
    pub undo: Undo,
    /// What new flows may lose.
    pub policy: Policy,
    /// The rate controller of new flows.
    pub rate: Rate,
    /// Gaps of a flow that are open at a time; segments that would open another are dropped.
    pub gaps: usize,
    /// Masked holes of a flow that late data may fill; the oldest is forgotten.
    pub masks: usize,
    /// Bytes of a flow that wait to be sent or acknowledged on the way back.
    pub send_buffer: usize,
    /// Flows; connections beyond it are not answered.
    pub flows: usize,
    /// Flows whose handshake is not finished; any of them makes place for a new one.
    pub half_open: usize,
    /// Resets that wait to be sent.
    pub resets: usize,
    /// Challenge acknowledgements a second, for each flow (RFC 5961 section 7).
    pub challenges: u32,
    /// Retransmissions of the same bytes after which a peer counts as gone.
    pub tries: u32,
    /// Retransmissions of the answer to a SYN.
    pub syn_tries: u32,
    /// How long a peer may be silent, if not for ever.
    pub idle: Option<Time>,
    /// How long a flow that we have closed waits for the peer's end.
    pub fin_wait: Time,
    /// How long a closed flow answers retransmissions (2 MSL).
    pub time_wait: Time,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ecn {
    /// Not agreed to.
    Refuse,
    /// Agreed to; marks are echoed, and the sender slows down.
    Echo,
    /// Agreed to; marks are for the rate controller alone.
    Ignore,
}

/// How long a gap waits for reordered packets before it is a hole: until either is over, as RACK has it (RFC 8985). Both
/// grow where packets are seen to come later than that.
#[derive(Debug, Clone, Copy)]
pub struct Reorder {
    /// Segments that come after it, until some are seen to come later.
    pub packets: Option<u32>,
    /// Share of the shortest round trip.
    pub share: f64,
    /// At least so long.
    pub least: Time,
    /// At most so long.
    pub most: Time,
}

/// How a sender's reduction for a repaired hole is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undo {
    /// The echo of a timestamp from before the repairs (RFC 3522); the sender needs timestamps.
    pub eifel: bool,
    /// A report that the repair came twice (RFC 2883), though it did not.
    pub duplicates: bool,
    /// Such a report of what comes after a silence, which may be a tail loss probe: the sender then takes the probe for
    /// needless (RFC 8985 section 7.4.2), and has nothing to reduce.
    pub probes: bool,
    /// How old such an echo may become while holes follow on each other, or four round trips where that is longer. A newer one
    /// undoes nothing until the sender has paused. Where an acknowledgement reports nothing new, the sender takes the age of its
    /// echo for a round trip, so its next timeout is longer.
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
    /// How long gaps wait where the shortest round trip is `rtt`.
    pub(super) fn patience(&self, rtt: Option<Time>) -> Patience {
        let share = rtt.unwrap_or_default().mul_f64(self.share.clamp(0.0, 10.0));
        let most = self.most.max(self.least);
        Patience { time: share.max(self.least).min(most), packets: self.packets, most }
    }
}
