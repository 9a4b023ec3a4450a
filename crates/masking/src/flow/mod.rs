//! A flow: one TCP connection with masking. It is the passive side of RFC 9293. Submodules process incoming
//! segments (`input`) and their bytes (`data`), and build the packets to send (`output`).

mod data;
mod input;
mod output;

use std::collections::VecDeque;

use thalweg_wire::Range;

use super::config::{Config, Ecn};
use super::event::{Agreed, Counters, Ended, FlowId, Happening, Stats, What};
use super::outgoing::Outgoing;
use super::policy::Policy;
use super::rate::{Control, GroupRate};
use super::segment::{Segment, ACK, CWR, ECE, RST};
use super::stamps::Stamps;
use super::stream::{ReorderWindow, Stream};
use super::Tuple;
use crate::Time;

/// Maximum segment size in bytes if the peer announces none (RFC 9293 section 3.7.1).
const SEGMENT_V4: u16 = 536;
const SEGMENT_V6: u16 = 1220;
/// The first retransmission timeout of our SYN-ACK. It doubles with each retransmission.
const SYN_TIMEOUT: Time = Time::from_secs(1);
/// The largest value of the 16-bit window field.
const UNSCALED: u64 = 65_535;
/// A frozen window opens by this many segments after a silence. Their ACKs show the sender which of its
/// retransmissions are lost (RFC 8985 section 6.2). Otherwise the sender would wait for its retransmission
/// timer.
const TRICKLE: u64 = 2;

/// The states of RFC 9293 section 3.3.2 that a listener reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    SynReceived,
    Established,
    /// The peer has closed its side.
    CloseWait,
    /// The peer has closed its side, and then we have closed ours.
    LastAck,
    /// We have closed our side.
    FinWait1,
    /// We have closed our side, and the FIN is acknowledged.
    FinWait2,
    /// Both sides are closed; our FIN is not acknowledged.
    Closing,
    TimeWait,
    Closed,
}

/// The parts of its endpoint that a flow may use.
pub(super) struct Context<'a> {
    pub now: Time,
    pub config: &'a Config,
    pub events: &'a mut VecDeque<(FlowId, Happening)>,
    pub resets: &'a mut VecDeque<Reset>,
    pub counters: &'a mut Counters,
}

/// A reset to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reset {
    pub tuple: Tuple,
    pub sequence: u32,
    /// The number that the reset acknowledges, if any (RFC 9293 section 3.10.7.1).
    pub acknowledgement: Option<u32>,
}

impl Context<'_> {
    /// Queues a reset. The queue is bounded; a reset that does not fit is never sent.
    pub fn reset(&mut self, reset: Reset) {
        if self.resets.len() < self.config.resets {
            self.resets.push_back(reset);
        }
    }
}

/// State of our ACKs: what they have reported, and what they still have to report.
#[derive(Debug, Default)]
struct Acks {
    /// Whether to send an ACK at the next poll.
    now: bool,
    /// Duplicate ACKs still to send, since a sender without SACK counts them.
    owed: u32,
    /// When a delayed ACK is due.
    deadline: Option<Time>,
    division: Option<AckDivision>,
    /// The offset that the last ACK acknowledged; the FIN counts as one byte.
    sent: u64,
    /// Bytes that have become acknowledgeable since the last ACK.
    bytes: u64,
    /// When the last ACK was sent, and when the current train of ACKs began (HyStart).
    at: Time,
    train: Time,
    /// SACK blocks have reported everything before this offset at least once.
    reported: u64,
    /// Offset of the segment that arrived last.
    latest: u64,
    /// The range that the next ACK reports as a duplicate (D-SACK, RFC 2883).
    duplicate: Option<Range>,
    /// Whether the application expects more data soon.
    expecting: bool,
    /// If present, bytes from this offset on have arrived, but their ACK is delayed on purpose.
    kept: Option<u64>,
    /// Whether to echo ECN marks. Set by a mark; cleared when the sender says that it has reduced its window
    /// (CWR).
    ece: bool,
    /// Number of challenge ACKs in the current second, and when that second began.
    challenges: (u32, Time),
}

/// ACK division (Savage et al. 1999): several ACKs for the bytes of one segment.
#[derive(Debug, Clone, Copy)]
struct AckDivision {
    /// The offset acknowledged so far, the step of each ACK, and how many ACKs are left.
    end: u64,
    step: u64,
    left: u64,
    /// Latest time at which the receiver acknowledges the rest.
    ends: Time,
}

impl AckDivision {
    /// The state after another ACK. The ACK advances only if `news`: it has something new to report. `None`
    /// if the division has ended.
    fn next(mut self, now: Time, news: bool) -> Option<Self> {
        if news {
            self.end += self.step;
            self.left -= 1;
        }
        (self.left > 0 && now < self.ends).then_some(self)
    }
}

#[derive(Debug)]
pub(super) struct Flow {
    pub id: FlowId,
    pub tuple: Tuple,
    pub state: State,
    irs: u32,
    iss: u32,
    syn_due: bool,
    syn_sent: Option<Time>,
    syn_tries: u32,
    /// When our SYN-ACK is retransmitted.
    syn_at: Option<Time>,
    stamps: Option<Stamps>,
    sack: bool,
    /// Whether the timestamps that we echo can make the sender undo its reductions.
    undoes: bool,
    /// Our window shift and the peer's, if both agreed.
    scales: Option<(u8, u8)>,
    ecn: bool,
    stream: Stream,
    acks: Acks,
    /// Right edge of the window, as advertised.
    right_edge: u64,
    /// Stream offset up to which the application has room.
    admitted: u64,
    segment: u32,
    control: Box<dyn Control>,
    /// The rate and target of the flow's group.
    pub share: Option<GroupRate>,
    pub group: Option<u32>,
    /// Minimum RTT so far.
    rtt: Option<Time>,
    /// When data last arrived, or when the handshake ended.
    last_data: Option<Time>,
    /// While the window is frozen: when it opens by [`TRICKLE`] segments. `trickled` is the right edge after
    /// that.
    trickle: Option<Time>,
    trickled: u64,
    /// The longest silence in the current recovery that may be a retransmission timeout of the sender.
    waited: Time,
    /// When a byte beyond the highest one last arrived.
    last_new: Time,
    /// For senders without timestamps: the offset whose arrival ends the current round trip, and when the
    /// round trip began.
    round: Option<(u64, Time)>,
    last_received: Time,
    out: Outgoing,
    /// Sequence and acknowledgement number of the last window update (RFC 9293 section 3.10.7.4: SND.WL1,
    /// SND.WL2).
    updated: (u32, u32),
    /// When the current state (TIME-WAIT, FIN-WAIT-2) times out.
    life: Option<Time>,
    ended: bool,
}

impl Flow {
    /// Creates the flow for a SYN. `secret`: initial sequence number and timestamp offset.
    pub fn accept(id: FlowId, syn: &Segment, secret: (u32, u32), now: Time, config: &Config) -> Self {
        let (headers, unsaid) = match syn.tuple.local.address {
            super::Address::V4(_) => (40, SEGMENT_V4),
            super::Address::V6(_) => (60, SEGMENT_V6),
        };
        let options = &syn.options;
        let stamps = options.stamps.filter(|_| config.timestamps);
        let stamps = stamps.map(|(value, _)| Stamps::new(now, secret.1, value));
        let ours = config.mtu.clamp(576, 65_535) - headers - if stamps.is_some() { 12 } else { 0 };
        let theirs = options.segment.unwrap_or(unsaid).max(64);
        let segment = usize::from(theirs) - if stamps.is_some() { 12 } else { 0 };
        let segment = segment.min(ours);
        let scales = options.scale.map(|theirs| (config.scale.min(14), theirs));
        let most = UNSCALED << scales.map_or(0, |(ours, _)| ours);
        let out = Outgoing::new(now, config.send_buffer, segment as u64);
        let control = config.rate.control(most, ours as u32, None);
        Self {
            id,
            tuple: syn.tuple,
            state: State::SynReceived,
            irs: syn.sequence,
            iss: secret.0,
            syn_due: true,
            syn_sent: None,
            syn_tries: 0,
            syn_at: Some(now + SYN_TIMEOUT),
            undoes: stamps.is_some() && config.undo.eifel,
            stamps,
            sack: options.sack && config.sack,
            scales,
            ecn: config.ecn != Ecn::Refuse && syn.has(ECE | CWR),
            stream: Stream::new(config.policy.clone(), config.gaps, config.masks, config.reorder.most),
            acks: Acks::default(),
            right_edge: control.window().min(UNSCALED),
            admitted: u64::MAX,
            segment: ours as u32,
            control,
            share: None,
            group: None,
            rtt: None,
            last_data: None,
            trickle: None,
            trickled: 0,
            waited: Time::ZERO,
            last_new: now,
            round: None,
            last_received: now,
            out,
            updated: (syn.sequence, secret.0),
            life: None,
            ended: false,
        }
    }

    /// Whether the flow can be removed.
    pub fn is_over(&self) -> bool {
        self.state == State::Closed
    }

    /// The rate and target that the flow publishes to its group.
    pub fn own_share(&self) -> GroupRate {
        self.control.share()
    }

    /// The sequence number after those that the peer has used, as far as we acknowledge them. A SYN beyond it
    /// belongs to another connection.
    pub fn next_sequence(&self) -> u32 {
        self.acknowledgement()
    }

    fn reorder_window(&self, config: &Config) -> ReorderWindow {
        config.reorder.reorder_window(self.rtt)
    }

    fn push(&self, cx: &mut Context<'_>, what: What<'static>) {
        cx.events.push_back((self.id, Happening::Other(what)));
    }

    /// Emits the last event of the flow, once.
    fn end(&mut self, cx: &mut Context<'_>, ended: Ended) {
        if !self.ended {
            self.ended = true;
            self.push(cx, What::Ended(ended));
        }
    }

    fn close_now(&mut self, cx: &mut Context<'_>, ended: Ended) {
        // The application does not know of a connection whose handshake is unfinished.
        if self.state != State::SynReceived {
            self.end(cx, ended);
        }
        self.state = State::Closed;
    }

    fn agreed(&self) -> Agreed {
        Agreed {
            tuple: self.tuple,
            segment: self.out.segment as u16,
            timestamps: self.stamps.is_some(),
            sack: self.sack,
            scale: self.scales.is_some(),
            ecn: self.ecn,
        }
    }

    /// Queues bytes for the peer. Returns how many fit.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::SynReceived | State::Established | State::CloseWait => self.out.write(bytes),
            _ => 0,
        }
    }

    /// Closes our side (RFC 9293 section 3.10.4).
    pub fn close(&mut self) {
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            State::SynReceived => {}
            _ => return,
        }
        self.out.close();
    }

    /// Resets the connection (RFC 9293 section 3.10.5).
    pub fn abort(&mut self, cx: &mut Context<'_>, ended: Ended) {
        if !matches!(self.state, State::TimeWait | State::Closed) {
            let sequence = super::sequence::number(self.iss.wrapping_add(1), self.out.sent());
            let acknowledgement = Some(self.acknowledgement());
            cx.reset(Reset { tuple: self.tuple, sequence, acknowledgement });
        }
        self.close_now(cx, ended);
    }

    /// Changes the loss policy.
    pub fn change(&mut self, cx: &mut Context<'_>, change: impl FnOnce(&mut Policy)) {
        self.stream.change(self.acks.reported, change);
        self.resolve(cx);
    }

    /// Notes that the application needs no late data before `offset`.
    pub fn forget(&mut self, offset: u64) {
        self.stream.forget(offset);
    }

    /// Sets whether the application expects more data at once.
    pub fn expect(&mut self, more: bool) {
        self.acks.expecting = more;
        if !more {
            self.release();
        }
    }

    /// Notes that the application could still use these late bytes.
    pub fn filled(&mut self, part: Range) {
        self.stream.filled(part);
    }

    /// Notes that the application has room for the stream up to `offset`.
    pub fn admit(&mut self, offset: u64) {
        self.admitted = offset;
        let room = self.right_edge.saturating_sub(self.stream.highest());
        if room < u64::from(self.segment) && self.next_right_edge() > self.right_edge {
            self.acks.now = true;
        }
    }

    /// Runs the timers that are due.
    pub fn timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|at| at <= now);
        if due(self.life) {
            let ended = if self.state == State::TimeWait { Ended::Closed } else { Ended::Silent };
            return self.close_now(cx, ended);
        }
        if due(cx.config.idle.map(|idle| self.last_received + idle)) {
            return self.abort(cx, Ended::Silent);
        }
        if due(self.acks.deadline) {
            self.acks.deadline = None;
            self.acks.now = true;
            self.acks.kept = self.acks.kept.filter(|&kept| self.acks.sent < kept);
        }
        if due(self.trickle) {
            self.trickle = None;
            self.trickled = self.right_edge + TRICKLE * u64::from(self.segment);
            self.acks.now = true;
        }
        if due(self.stream.deadline(self.reorder_window(cx.config))) {
            self.resolve(cx);
        }
        if due(self.syn_at) {
            self.syn_tries += 1;
            self.syn_due = true;
            self.syn_at = Some(now + SYN_TIMEOUT * (1 << self.syn_tries.min(6)));
            if self.syn_tries > cx.config.syn_tries {
                self.close_now(cx, Ended::Silent);
            }
        } else if self.out.handle_timeout(now, cx.config.tries) {
            self.abort(cx, Ended::Silent);
        }
    }

    /// The time of the earliest timer. Call [`Self::timeout`] then.
    pub fn deadline(&self, config: &Config) -> Option<Time> {
        let idle = config.idle.map(|idle| self.last_received + idle);
        let stream = self.stream.deadline(self.reorder_window(config));
        let ours = self.syn_at.or_else(|| self.out.poll_timeout());
        [self.life, idle, self.acks.deadline, self.trickle, stream, ours].into_iter().flatten().min()
    }

    pub fn stats(&self) -> Stats {
        Stats {
            delivered: self.stream.delivered,
            missing: self.stream.missing,
            repaired: self.stream.repaired,
            late: self.stream.late,
            duplicate: self.stream.duplicate,
            highest: self.stream.highest(),
            acknowledged: self.stream.acknowledged(),
            window: self.control.window(),
            rate: self.control.share().rate,
            ramping: self.control.ramping(),
            right_edge: self.right_edge,
            unacknowledged: self.out.unacknowledged(),
            rtt: self.rtt,
            tables: self.stream.tables(),
        }
    }
}

/// The reset that answers a segment without a connection (RFC 9293 section 3.10.7.1). `None` if the segment
/// is itself a reset, which gets no answer.
pub(super) fn refusal(segment: &Segment) -> Option<Reset> {
    let (tuple, sequence) = (segment.tuple, segment.acknowledgement);
    match (segment.has(RST), segment.has(ACK)) {
        (true, _) => None,
        (false, true) => Some(Reset { tuple, sequence, acknowledgement: None }),
        (false, false) => {
            let acknowledgement = Some(segment.sequence.wrapping_add(segment.span()));
            Some(Reset { tuple, sequence: 0, acknowledgement })
        }
    }
}
