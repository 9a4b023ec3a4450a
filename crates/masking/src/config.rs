//! Settings of an endpoint, and the bounds of its tables.

use super::policy::Policy;
use super::rate::Rate;
use super::stream::ReorderWindow;
use crate::Time;

/// Settings that all flows of an endpoint share.
#[derive(Debug, Clone)]
pub struct Config {
    /// Ports to listen on. The endpoint answers segments to other ports by a reset.
    pub ports: Vec<u16>,
    /// The largest IP packet of the device, in bytes. It determines the segment size.
    pub mtu: usize,
    /// Whether the device cuts superpackets into segments and completes checksums. [`super::Offload`] says
    /// for each packet what the device has to do.
    pub offload: bool,
    /// Whether to agree to selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Whether to agree to timestamps (RFC 7323).
    pub timestamps: bool,
    /// Shift of our window field (RFC 7323 section 2.2). 10 allows a window of 64 MiB.
    pub scale: u8,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// The longest delay of an acknowledgement (RFC 9293 section 3.8.6.3).
    pub ack_delay: Time,
    /// How long a gap waits for reordered packets.
    pub reorder: Reorder,
    /// How a sender learns that a loss was not congestion.
    pub undo: Undo,
    /// The loss policy of new flows.
    pub policy: Policy,
    /// The rate controller of new flows.
    pub rate: Rate,
    /// Maximum number of open gaps of a flow. A segment that would open another one is dropped.
    pub gaps: usize,
    /// Maximum number of masked holes that a flow remembers so that late data can fill them. Beyond that it
    /// forgets the oldest.
    pub masks: usize,
    /// Maximum number of bytes of a flow that wait to be sent to the client, or to be acknowledged by it.
    pub send_buffer: usize,
    /// Maximum number of flows. Beyond that, the endpoint does not answer new connections.
    pub flows: usize,
    /// Maximum number of flows whose handshake is not finished. Beyond that, a new one replaces a random one
    /// of them.
    pub half_open: usize,
    /// Maximum number of resets that wait to be sent.
    pub resets: usize,
    /// Maximum number of challenge ACKs of a flow in a second (RFC 5961 section 7).
    pub challenges: u32,
    /// The peer counts as lost after more successive retransmission timeouts than this.
    pub tries: u32,
    /// Maximum number of retransmissions of our SYN-ACK.
    pub syn_tries: u32,
    /// The flow is reset after this long without a segment from the peer; `None` for no limit.
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
    /// Agree, and echo congestion marks (ECE), so that the sender slows down.
    Echo,
    /// Agree, but do not echo marks. Only the rate controller uses them.
    Ignore,
}

/// How long a gap waits for reordered packets before it counts as a hole: until enough segments have arrived
/// after it, or enough time has passed (RACK, RFC 8985). Both limits grow when the flow sees packets arrive
/// later.
#[derive(Debug, Clone, Copy)]
pub struct Reorder {
    /// A gap counts as a hole after this many later segments have arrived. The number grows when the flow sees
    /// more reordering. `None`: no limit by number.
    pub packets: Option<u32>,
    /// Time limit as a multiple of the minimum RTT.
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
    /// Report the retransmission as a duplicate (D-SACK, RFC 2883), although the receiver had not received
    /// its data.
    pub duplicates: bool,
    /// Report data that arrives after a silence as a duplicate, since it may be a tail loss probe. The sender
    /// then concludes that the probe was unnecessary (RFC 8985 section 7.4.2) and keeps its window.
    pub probes: bool,
    /// The maximum age of the echo that `eifel` uses, while one recovery follows another. The limit is four
    /// round trips if that is longer. A newer echo undoes nothing until the sender has paused. But if an ACK
    /// reports nothing new, the sender takes the age of the echo for an RTT, and its next timeout is longer.
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
    /// How long gaps wait if the minimum RTT is `rtt`.
    pub(super) fn reorder_window(&self, rtt: Option<Time>) -> ReorderWindow {
        let share = rtt.unwrap_or_default().mul_f64(self.share.clamp(0.0, 10.0));
        let most = self.most.max(self.least);
        ReorderWindow { time: share.max(self.least).min(most), packets: self.packets, most }
    }
}
