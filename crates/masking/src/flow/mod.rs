//! One connection: the passive side of RFC 9293, masking.

mod data;
mod input;
mod output;

use std::collections::VecDeque;

use thalweg_wire::Range;

use super::config::{Config, Ecn};
use super::event::{Agreed, Counters, Ended, FlowId, Happening, Stats, What};
use super::outgoing::Outgoing;
use super::policy::Policy;
use super::rate::{Control, Share};
use super::segment::{Segment, ACK, CWR, ECE, RST};
use super::stamps::Stamps;
use super::stream::{Patience, Stream};
use super::Tuple;
use crate::Time;

/// Payload bytes where a peer does not say (RFC 9293 section 3.7.1).
const SEGMENT_V4: u16 = 536;
const SEGMENT_V6: u16 = 1220;
/// How long the answer to a SYN waits to be acknowledged, at first.
const SYN_TIMEOUT: Time = Time::from_secs(1);
/// The largest window without scaling.
const UNSCALED: u64 = 65_535;
/// Segments that a resting sender may send after a silence: what it hears of them tells it which of its repairs are lost
/// (RFC 8985 section 6.2), where it would otherwise wait for its timer.
const TRICKLE: u64 = 2;

/// States of RFC 9293 section 3.3.2, as far as a listener gets into them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    SynReceived,
    Established,
    /// The peer has ended its stream.
    CloseWait,
    /// And we ours.
    LastAck,
    /// We have ended ours.
    FinWait1,
    /// And it is acknowledged.
    FinWait2,
    /// Both have, ours is not acknowledged.
    Closing,
    TimeWait,
    Closed,
}

/// What a flow may use of its endpoint.
pub(super) struct Context<'a> {
    pub now: Time,
    pub config: &'a Config,
    pub events: &'a mut VecDeque<(FlowId, Happening)>,
    pub resets: &'a mut VecDeque<Reset>,
    pub counters: &'a mut Counters,
}

/// A segment that belongs to no state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reset {
    pub tuple: Tuple,
    pub sequence: u32,
    /// With it the segment acknowledges (RFC 9293 section 3.10.7.1).
    pub acknowledgement: Option<u32>,
}

impl Context<'_> {
    /// Resets wait in a short queue; beyond it they are not sent.
    pub fn reset(&mut self, reset: Reset) {
        if self.resets.len() < self.config.resets {
            self.resets.push_back(reset);
        }
    }
}

/// What acknowledgements have said and are to say.
#[derive(Debug, Default)]
struct Acks {
    now: bool,
    /// More of the same: a sender without SACK counts duplicates.
    owed: u32,
    deadline: Option<Time>,
    divided: Option<Divided>,
    /// The last one sent.
    sent: u64,
    /// Bytes since.
    bytes: u64,
    /// When the last one was sent, and since when they have followed on each other.
    at: Time,
    train: Time,
    /// Up to where blocks have been reported at least once.
    reported: u64,
    /// Where the latest segment began.
    latest: u64,
    duplicate: Option<Range>,
    /// More is expected at once.
    expecting: bool,
    /// What is not acknowledged yet though it has come: all from here on.
    kept: Option<u64>,
    /// Marks are echoed until the sender says that it has slowed down.
    ece: bool,
    /// Challenges in the second since.
    challenges: (u32, Time),
}

/// What a repair has brought is acknowledged in parts.
#[derive(Debug, Clone, Copy)]
struct Divided {
    /// Up to here so far, by so much more with each of the acknowledgements left.
    end: u64,
    step: u64,
    left: u64,
    /// When all of it is.
    whole: Time,
}

impl Divided {
    /// After an acknowledgement that reports something new, or not; `None` if all is acknowledged.
    fn next(mut self, now: Time, news: bool) -> Option<Self> {
        if news {
            self.end += self.step;
            self.left -= 1;
        }
        (self.left > 0 && now < self.whole).then_some(self)
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
    /// When the answer is sent again.
    syn_at: Option<Time>,
    stamps: Option<Stamps>,
    sack: bool,
    /// Reductions for repaired holes are undone by what is echoed.
    undoes: bool,
    /// Our shift and the peer's, where both agreed.
    scales: Option<(u8, u8)>,
    ecn: bool,
    stream: Stream,
    acks: Acks,
    /// Right edge of the window as advertised.
    edge: u64,
    /// What the application has place for.
    admitted: u64,
    segment: u32,
    control: Box<dyn Control>,
    /// What the flows of its group have in common.
    pub share: Option<Share>,
    pub group: Option<u32>,
    rtt: Option<Time>,
    /// When data last came, or the handshake was done.
    last_data: Option<Time>,
    /// When a sender that is to rest may send a little, and how far.
    trickle: Option<Time>,
    trickled: u64,
    /// The longest silence, if a timer may have run out in it, since the sender has been repairing.
    waited: Time,
    /// When something beyond all before it came.
    last_new: Time,
    /// Without timestamps: the offset whose coming ends a round trip, and since when.
    round: Option<(u64, Time)>,
    last_heard: Time,
    out: Outgoing,
    /// Sequence and acknowledgement of the last window update (RFC 9293 section 3.10.7.4).
    updated: (u32, u32),
    /// When the state itself is over.
    life: Option<Time>,
    ended: bool,
}

impl Flow {
    /// Answers a SYN. `secret`: initial sequence number and clock offset.
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
            edge: control.window().min(UNSCALED),
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
            last_heard: now,
            out,
            updated: (syn.sequence, secret.0),
            life: None,
            ended: false,
        }
    }

    /// Whether nothing is left to be done.
    pub fn is_over(&self) -> bool {
        self.state == State::Closed
    }

    /// What the group is told of it.
    pub fn own_share(&self) -> Share {
        self.control.share()
    }

    /// One past what the peer may have sent: a SYN beyond it is of another connection.
    pub fn next_sequence(&self) -> u32 {
        self.acknowledgement()
    }

    fn patience(&self, config: &Config) -> Patience {
        config.reorder.patience(self.rtt)
    }

    fn push(&self, cx: &mut Context<'_>, what: What<'static>) {
        cx.events.push_back((self.id, Happening::Other(what)));
    }

    /// The application's last word of a flow, once.
    fn end(&mut self, cx: &mut Context<'_>, ended: Ended) {
        if !self.ended {
            self.ended = true;
            self.push(cx, What::Ended(ended));
        }
    }

    fn close_now(&mut self, cx: &mut Context<'_>, ended: Ended) {
        // A handshake that never finished has never been heard of.
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

    /// Bytes for the peer; how many are taken.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::SynReceived | State::Established | State::CloseWait => self.out.write(bytes),
            _ => 0,
        }
    }

    /// Ends our stream (RFC 9293 section 3.10.4).
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

    /// Changes what may be lost.
    pub fn change(&mut self, cx: &mut Context<'_>, change: impl FnOnce(&mut Policy)) {
        self.stream.change(self.acks.reported, change);
        self.resolve(cx);
    }

    /// Late data before an offset is not wanted.
    pub fn forget(&mut self, offset: u64) {
        self.stream.forget(offset);
    }

    /// More follows at once, or need not.
    pub fn expect(&mut self, more: bool) {
        self.acks.expecting = more;
        if !more {
            self.release();
        }
    }

    /// Late bytes were still wanted.
    pub fn filled(&mut self, part: Range) {
        self.stream.filled(part);
    }

    /// The application has place for the stream up to `offset`.
    pub fn admit(&mut self, offset: u64) {
        self.admitted = offset;
        let room = self.edge.saturating_sub(self.stream.highest());
        if room < u64::from(self.segment) && self.grown_edge() > self.edge {
            self.acks.now = true;
        }
    }

    /// Everything whose time has come.
    pub fn timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|at| at <= now);
        if due(self.life) {
            let ended = if self.state == State::TimeWait { Ended::Closed } else { Ended::Silent };
            return self.close_now(cx, ended);
        }
        if due(cx.config.idle.map(|idle| self.last_heard + idle)) {
            return self.abort(cx, Ended::Silent);
        }
        if due(self.acks.deadline) {
            self.acks.deadline = None;
            self.acks.now = true;
            self.acks.kept = self.acks.kept.filter(|&kept| self.acks.sent < kept);
        }
        if due(self.trickle) {
            self.trickle = None;
            self.trickled = self.edge + TRICKLE * u64::from(self.segment);
            self.acks.now = true;
        }
        if due(self.stream.deadline(self.patience(cx.config))) {
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

    /// When `timeout` is to be called at the latest.
    pub fn deadline(&self, config: &Config) -> Option<Time> {
        let idle = config.idle.map(|idle| self.last_heard + idle);
        let stream = self.stream.deadline(self.patience(config));
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
            edge: self.edge,
            unacknowledged: self.out.unacknowledged(),
            rtt: self.rtt,
            tables: self.stream.tables(),
        }
    }
}

/// What answers a segment that belongs to no connection (RFC 9293 section 3.10.7.1); nothing answers a reset.
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
