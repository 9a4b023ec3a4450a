//! The server's side: who is connected, what each is told, and the round they take part in.

mod choosing;
mod clock;
mod counting;
mod fanout;
mod joining;
mod leaving;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use thalweg_wire::control::{
    Challenge, Control, Hello, Interval, Nonce, Refusal, StandIn, MAX_HOLES, VERSIONS,
};
use thalweg_wire::{ChunkHeader, Layout, LayoutHash, Range, Ranges, Tolerance};

use self::clock::on_our_clock;
pub(crate) use self::leaving::named;
use crate::outcome::Carried;
use crate::round::Part;
use crate::{micros, Credits, Ending, Fit, Liveness, Outcome, Partial, Round, RoundPlan, Span, State, Time};

/// A connection, numbered by the caller; never used twice.
pub type LinkId = u64;

/// How long chunks may trail behind the end of an update where a link does not keep their order.
const SETTLE: Time = Time::from_millis(50);

/// How long a client may take from connecting until it says who it is. Whatever else it sends does not prolong that.
const HELLO: Time = Time::from_secs(20);

/// Decides whom to let in.
pub trait Admission: Send {
    /// Whether a proof of a token is wanted.
    fn wants_token(&self) -> bool;
    /// Checks a client's proof and certificate against the nonce it was sent.
    ///
    /// # Errors
    /// Cause and mend, for the client's user.
    fn admit(&self, link: LinkId, challenge: &Nonce, hello: &Hello) -> Result<(), String>;
}

/// What does not change during a job.
pub struct ServerConfig {
    /// The job's number, in every chunk.
    pub job: u64,
    /// Layout of the global model.
    pub layout: Arc<Layout>,
    /// Bytes of payload in a chunk.
    pub chunk: u32,
    /// What partial updates count.
    pub partial: Partial,
    /// What stands in for parts that did not come; `None`: they are asked for again.
    pub stand_in: Option<StandIn>,
    /// The seed of the order in which updates are sent, as clients are told it; `None`: as they are.
    pub spread: Option<u64>,
    /// What of models and updates may be lost: the rest is asked for again, whatever stands in.
    pub tolerance: Arc<Tolerance>,
    /// Bytes of updates that may be staged at a time.
    pub staging: u64,
    /// Most samples that one update may be of, as its weight.
    pub max_samples: u64,
    /// Least time without progress that ends a link.
    pub liveness: Time,
    /// Most clients, ever.
    pub max_clients: u32,
}

/// What a link has carried, as its counters say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes of payload copied.
    pub copied: u64,
    /// Sealed records given up on their way in, if updates are sealed.
    pub records_lost: Option<u64>,
    /// Segments retransmitted by the server.
    pub retransmissions: Option<u64>,
}

/// Where a chunk goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// Nowhere: late, duplicate or not of this job.
    Nothing,
    /// Nothing of it is there yet: straight into the sender's staged update, if it is staged.
    New {
        /// Whose it is.
        sender: u32,
        /// Its weight, by which its values are judged before [`Server::stored`].
        weight: f64,
    },
    /// Part of it is there: aside first.
    Part {
        /// Whose it is.
        sender: u32,
        /// Its weight.
        weight: f64,
    },
}

/// What to do with a chunk that has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Whose it is.
    pub sender: u32,
    /// Its weight.
    pub weight: f64,
    /// What of it is new. With [`Partial::Keep`], if there is any, it is to be folded, and [`Server::kept`] told.
    pub fresh: Vec<Range>,
}

/// What the caller has to do.
#[derive(Debug)]
pub enum Action {
    /// Send a message.
    Send {
        /// To whom.
        link: LinkId,
        /// What.
        message: Control,
    },
    /// Send `wanted` of the global model to all `links` in one call, then tell [`Server::sent`] of each.
    SendUpdate {
        /// To whom.
        links: Vec<LinkId>,
        /// The round.
        round: u32,
        /// Which ranges.
        wanted: Ranges,
    },
    /// Stop sending the model of a round that is over to this link, and to the group it was sent to with.
    CancelUpdate {
        /// Whose.
        link: LinkId,
    },
    /// Close a link, after what was to be sent on it.
    Close {
        /// Which.
        link: LinkId,
    },
    /// Fold a staged update with this weight, free its staging, then tell [`Server::folded`] what came of it.
    Fold {
        /// Whose.
        sender: u32,
        /// Weight.
        weight: f64,
        /// What did not come of it, for which something is to stand in.
        holes: Ranges,
    },
    /// Free a staged update without folding it.
    Unstage {
        /// Whose.
        sender: u32,
    },
    /// A client has joined or come back.
    Joined {
        /// Its name.
        client: String,
    },
    /// Something of a client that its server's log should have.
    Note {
        /// Its name.
        client: String,
        /// What.
        what: String,
    },
    /// A client's link has ended.
    Left {
        /// Its name.
        client: String,
        /// Why.
        reason: String,
    },
    /// The round is over.
    Ended(Box<Outcome>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Duty {
    /// Ready for a round.
    Idle,
    /// Takes part in the current round.
    Round,
    /// Still busy with a round that is over.
    Behind,
}

struct Member {
    name: String,
    instance: u64,
    link: Option<LinkId>,
    duty: Duty,
    /// Its process has ended for good.
    gone: bool,
    /// How its update of a round fared, should the link break before it hears so.
    verdict: Option<(u32, Result<(), String>)>,
    /// Why its last link ended.
    parting: Option<String>,
    /// It was said that its metrics are dropped.
    told: bool,
}

struct LinkState {
    nonce: Nonce,
    ordered: bool,
    opened: Time,
    sender: Option<u32>,
    live: Liveness,
    /// The upload's progress is watched while one is granted.
    upload: Option<Liveness>,
    asked: Asked,
    /// The download's progress, as the client's heartbeats tell it.
    download: Option<Liveness>,
    /// Bytes the client said it had received at the last ping.
    told: Option<u64>,
    /// Server's clock minus the client's, in microseconds.
    offset: i64,
    traffic: Traffic,
    base: Traffic,
    /// The round whose model is being sent, and since when.
    sending: Option<(u32, Time)>,
    settle: Option<Time>,
    pinged: Time,
}

/// What is granted on a link, each until its End comes: they come in that order.
#[derive(Debug, Default)]
struct Asked {
    /// The update itself, or what was missing of it when its client came back.
    update: bool,
    /// What was lost of it, and is asked for again.
    lost: VecDeque<Ranges>,
    /// Bytes of the update that are still to come when it is looked for losses next.
    look: u64,
}

impl Asked {
    fn of_update(total: u64) -> Self {
        Self { update: true, lost: VecDeque::new(), look: total / 2 }
    }

    /// A grant has been answered.
    fn ended(&mut self) {
        if !std::mem::take(&mut self.update) {
            self.lost.pop_front();
        }
    }

    /// Those of `holes` that have not been asked for.
    fn fresh(&self, holes: &Ranges) -> Ranges {
        let mut asked = Ranges::new();
        self.lost.iter().flat_map(Ranges::iter).for_each(|range| _ = asked.insert(range));
        holes.iter().flat_map(|hole| asked.missing_in(hole)).collect()
    }
}

/// The server's state machine.
pub struct Server {
    config: ServerConfig,
    admission: Box<dyn Admission>,
    members: BTreeMap<u32, Member>,
    links: BTreeMap<LinkId, LinkState>,
    round: Option<Round>,
    /// Where clients get the model one after the other: whose turn it is, and who waits for what of it.
    turn: Option<LinkId>,
    turns: VecDeque<(LinkId, Ranges)>,
    rates: Credits,
    actions: VecDeque<Action>,
    absent_since: Option<Time>,
    finished: Option<String>,
    /// What was due by then has been seen to.
    advanced: Time,
    /// Something is due that has to wait for chunks that are being folded.
    waits: bool,
}

impl Server {
    /// A server without clients.
    pub fn new(config: ServerConfig, admission: Box<dyn Admission>) -> Self {
        let rates = Credits::new(config.staging, config.layout.bytes());
        Self {
            config,
            admission,
            members: BTreeMap::new(),
            links: BTreeMap::new(),
            round: None,
            turn: None,
            turns: VecDeque::new(),
            rates,
            actions: VecDeque::new(),
            absent_since: None,
            finished: None,
            advanced: Time::ZERO,
            waits: false,
        }
    }

    /// Clients that are connected.
    pub fn connected_clients(&self) -> impl Iterator<Item = &str> {
        self.members.values().filter(|m| m.link.is_some()).map(|m| m.name.as_str())
    }

    /// Whether the client at the other end has been let in, and not out again.
    pub fn is_member(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|state| state.sender.is_some())
    }

    /// Every participant's state and how much of its update has come, 0 to 1.
    pub fn progress_report(&self) -> Vec<(String, State, f64)> {
        let parts = self.round.iter().flat_map(|r| r.parts.values());
        parts.map(|p| (p.client.clone(), p.state, p.incoming.fraction())).collect()
    }

    /// Whether there is something to do.
    pub fn has_action(&self) -> bool {
        !self.actions.is_empty()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A link is up. `nonce` must be fresh random bytes.
    pub fn connected(&mut self, now: Time, link: LinkId, nonce: Nonce, ordered: bool) {
        let live = Liveness::new(now, self.config.liveness);
        let state = LinkState {
            nonce,
            ordered,
            opened: now,
            sender: None,
            live,
            upload: None,
            asked: Asked::default(),
            download: None,
            told: None,
            offset: 0,
            traffic: Traffic::default(),
            base: Traffic::default(),
            sending: None,
            settle: None,
            pinged: now,
        };
        self.links.insert(link, state);
        let token = self.admission.wants_token();
        self.send(
            link,
            Control::Challenge(Challenge { versions: VERSIONS, nonce, token, clock: micros(now) }),
        );
    }

    /// What the link's counters say now; to be told before [`Server::control`], [`Server::sent`] and
    /// [`Server::closed`].
    pub fn observe(&mut self, link: LinkId, traffic: Traffic) {
        if let Some(state) = self.links.get_mut(&link) {
            state.traffic = traffic;
        }
    }

    /// A message has come.
    pub fn control(&mut self, now: Time, link: LinkId, message: Control) {
        let Some(state) = self.links.get_mut(&link) else { return };
        state.live.heard(now);
        match (state.sender, message) {
            (None, Control::Hello(hello)) => self.hello(now, link, &hello),
            (None, _) => self.refuse(now, link, Refusal::Protocol, "the first message must be a Hello"),
            (Some(sender), message) => self.member_says(now, link, sender, message),
        }
        self.advance(now);
    }

    fn member_says(&mut self, now: Time, link: LinkId, sender: u32, message: Control) {
        match message {
            Control::Ping { clock, received } => self.ping(now, link, clock, received),
            Control::Pong { .. } => {}
            Control::Received { round, received, duplicates, missing } => {
                self.received(now, link, sender, round, received, (duplicates, missing));
            }
            Control::Need { round, holes } => self.resend(now, link, round, holes),
            Control::Offer { round, samples, layout, metrics } => {
                let metrics = self.bounded_metrics(sender, metrics);
                let offered = self.acceptable(samples, layout).map(|()| (samples, metrics));
                self.offer(now, link, sender, round, offered);
            }
            Control::End { round, sent, retransmissions } => {
                self.end(now, link, sender, round, sent, retransmissions);
            }
            Control::Idle => self.idle(now, link, sender),
            Control::Bye { reason } => self.bye(now, link, sender, &reason),
            Control::Hello(_) => {
                self.refuse(now, link, Refusal::Protocol, "a second Hello on one connection")
            }
            _ => self.refuse(now, link, Refusal::Protocol, "this message is the server's to send"),
        }
    }

    fn acceptable(&self, samples: u64, layout: LayoutHash) -> Result<(), String> {
        let ours = self.config.layout.hash();
        if layout != ours {
            return Err(format!("offered layout {layout}, the model has {ours}; use the same model"));
        }
        if samples == 0 {
            return Err("offered an update of 0 samples; train on at least one".into());
        }
        let most = self.config.max_samples;
        if samples > most {
            return Err(format!(
                "offered an update of {samples} samples; {most} is the most: divide the numbers of all clients alike"
            ));
        }
        Ok(())
    }

    fn ping(&mut self, now: Time, link: LinkId, clock: u64, received: u64) {
        if let Some(state) = self.links.get_mut(&link) {
            // The client counts over all its links: the first ping of one only says where it stands.
            let more = received.saturating_sub(state.told.unwrap_or(received));
            state.told = Some(received);
            if let Some(live) = &mut state.download {
                live.progress(now, more);
            }
        }
        self.send(link, Control::Pong { clock });
    }

    fn drop_staging_of(&mut self, sender: u32) {
        let staged = |r: &Round| {
            r.credits.holds(sender) && r.parts.get(&sender).is_some_and(|p| p.state != State::Staged)
        };
        if self.config.partial == Partial::Discard && self.round.as_ref().is_some_and(staged) {
            self.actions.push_back(Action::Unstage { sender });
        }
    }

    /// Begins a round with everybody who is ready, or whom its choice falls on.
    ///
    /// # Errors
    /// If one is under way, or the plan can never be met.
    pub fn start_round(&mut self, now: Time, plan: RoundPlan) -> Result<(), String> {
        if let Some(round) = &self.round {
            return Err(format!("round {} is still under way", round.plan.number));
        }
        if plan.expected == 0 || plan.enough > plan.expected {
            return Err(format!(
                "{} of {} updates are wanted: a round needs at least one client and no more updates than clients",
                plan.enough, plan.expected
            ));
        }
        self.absent_since.get_or_insert(now);
        let total = self.config.layout.bytes();
        let credits = match self.config.partial {
            Partial::Discard => self.rates.clone(),
            Partial::Keep => Credits::unbounded(),
        };
        self.round = Some(Round::new(now, plan, total, self.config.partial, credits));
        let links: Vec<LinkId> =
            self.candidates(now).into_iter().filter_map(|s| self.enlist(now, s)).collect();
        self.send_model(now, links, Ranges::full(total));
        self.advance(now);
        Ok(())
    }

    fn offer(
        &mut self,
        now: Time,
        link: LinkId,
        sender: u32,
        round: u32,
        offered: Result<(u64, String), String>,
    ) {
        if !self.takes_part(sender, round) {
            return self.send(link, Control::Closed { round });
        }
        if self.answered(sender, round) {
            return;
        }
        let before = self.part(sender, round).map_or(0, |part| part.samples);
        match (offered, &mut self.round) {
            // What came of it was judged, and perhaps folded, by the weight that it was first offered with.
            (Ok((samples, _)), _) if before > 0 && samples != before => {
                let reason =
                    format!("offered an update of {samples} samples that it had offered as one of {before}");
                self.reject(now, sender, round, &reason);
            }
            (Ok((samples, metrics)), Some(current)) => current.offer(now, sender, samples, metrics),
            (Err(reason), _) => self.reject(now, sender, round, &reason),
            (Ok(_), None) => {}
        }
    }

    fn set_duty(&mut self, sender: u32, duty: Duty) {
        if let Some(member) = self.members.get_mut(&sender) {
            member.duty = duty;
        }
    }

    /// Where a chunk goes.
    pub fn place(&mut self, now: Time, link: LinkId, chunk: &ChunkHeader) -> Place {
        let Some((sender, part)) = self.uploading(link, chunk) else { return Place::Nothing };
        let fit = part.incoming.fit(chunk.range());
        part.incoming.touch(now);
        let weight = part.samples as f64;
        match fit {
            Fit::New => Place::New { sender, weight },
            Fit::Part => Place::Part { sender, weight },
            Fit::Nothing => {
                part.incoming.duplicate();
                Place::Nothing
            }
        }
    }

    /// The first bytes of a chunk have come; its place is asked for later, when its length is known.
    pub fn begun(&mut self, now: Time, link: LinkId, chunk: &ChunkHeader) {
        if let Some((_, part)) = self.uploading(link, chunk) {
            part.incoming.touch(now);
        }
    }

    fn uploading(&mut self, link: LinkId, chunk: &ChunkHeader) -> Option<(u32, &mut Part)> {
        let ours = chunk.job == self.config.job && chunk.layout == self.config.layout.hash();
        let sender = self.links.get(&link)?.sender.filter(|&s| ours && s == chunk.sender)?;
        let part = self.part(sender, chunk.round)?;
        (part.state == State::Sending).then_some((sender, part))
    }

    /// `bytes` more bytes of chunks have come on this link.
    pub fn progress(&mut self, now: Time, link: LinkId, bytes: u64) {
        if let Some(state) = self.links.get_mut(&link) {
            state.live.progress(now, bytes);
            if let Some(upload) = &mut state.upload {
                upload.progress(now, bytes);
            }
        }
    }

    /// Nothing gets through on this link at the moment, for no fault of its peer: time does not count against it.
    pub fn held(&mut self, now: Time, link: LinkId) {
        if let Some(state) = self.links.get_mut(&link) {
            let transfers = state.upload.iter_mut().chain(&mut state.download);
            transfers.chain([&mut state.live]).for_each(|live| live.heard(now));
        }
    }

    /// A chunk is in its place, or came damaged (`Err(None)`), or holds what no update may (`Err(reason)`). One that
    /// cuts an element is refused, for nobody can say what its pieces are worth.
    /// Returns what of it is to be used; it must be used before the round's end is acted on.
    pub fn stored(
        &mut self,
        now: Time,
        link: LinkId,
        chunk: &ChunkHeader,
        outcome: Result<(), Option<String>>,
    ) -> Option<Stored> {
        let cut = outcome.is_ok().then(|| self.cut(chunk)).flatten();
        let outcome = cut.map_or(outcome, |reason| Err(Some(reason)));
        let (keep, waits) = (self.config.partial == Partial::Keep, self.waits);
        let (sender, part) = self.uploading(link, chunk)?;
        let weight = part.samples as f64;
        match outcome {
            // Nothing more is begun, or what is due would wait for ever.
            Ok(()) if keep && waits => None,
            Ok(()) if keep => {
                let fresh = part.incoming.fold(now, chunk.range());
                Some(Stored { sender, weight, fresh })
            }
            Ok(()) => {
                let fresh = part.incoming.store(now, chunk.range());
                let more = if part.incoming.is_whole() { Time::ZERO } else { SETTLE };
                self.settle_later(now, link, more);
                self.look_for_losses(link, sender, chunk);
                Some(Stored { sender, weight, fresh })
            }
            Err(None) => {
                part.incoming.corrupt();
                None
            }
            Err(Some(reason)) => {
                self.reject(now, sender, chunk.round, &reason);
                self.advance(now);
                None
            }
        }
    }

    /// Why a chunk is refused, if it begins or ends within an element.
    fn cut(&self, chunk: &ChunkHeader) -> Option<String> {
        let (range, tensor) = (chunk.range(), self.config.layout.cut_by(chunk.range())?);
        Some(format!(
            "sent a chunk of bytes {}..{}, which cuts an element of tensor {:?}; cut at multiples of 8 bytes, as chunks of \
             the size that the server says are",
            range.start, range.end, tensor.name
        ))
    }

    fn end(&mut self, now: Time, link: LinkId, sender: u32, round: u32, sent: Interval, again: Option<u64>) {
        let started = self.round.as_ref().map_or(now, |r| r.started);
        let Some(state) = self.links.get_mut(&link) else { return };
        state.asked.ended();
        let span = on_our_clock(sent, state.offset, Span { start: started, end: now });
        let carried = upload_traffic(state);
        let ordered = state.ordered;
        let Some(part) = self.part(sender, round).filter(|p| p.state == State::Sending) else { return };
        part.up.carry(carried);
        part.up.retransmissions = sum(part.up.retransmissions, again);
        part.up.extend_send(span);
        let whole = part.incoming.is_whole();
        if let Some(state) = self.links.get_mut(&link) {
            state.settle = (!whole && !ordered).then_some(now + SETTLE);
        }
        if whole || ordered {
            self.conclude(now, link, sender, round);
        }
    }

    /// All that was asked for was sent: either it is whole, or what must come is asked for, or something stands in, or too
    /// much was lost.
    fn conclude(&mut self, now: Time, link: LinkId, sender: u32, number: u32) {
        let Some(part) = self.part(sender, number) else { return };
        if part.incoming.is_folding() {
            // Whether it is whole is not known yet.
            if let Some(state) = self.links.get_mut(&link) {
                state.settle = Some(now + SETTLE);
            }
            return;
        }
        let (holes, samples) = (part.incoming.holes(), part.samples);
        if let Some(reason) = self.too_lossy(now, &holes) {
            return self.reject(now, sender, number, &reason);
        }
        let owed = self.owed(&holes);
        if !owed.is_empty() {
            return self.ask(link, number, &owed);
        }
        if let Some(state) = self.links.get_mut(&link) {
            state.upload = None;
            state.settle = None;
        }
        if let Some(round) = &mut self.round {
            round.arrived(now, sender);
        }
        match self.config.partial {
            Partial::Discard => {
                self.actions.push_back(Action::Fold { sender, weight: samples as f64, holes })
            }
            Partial::Keep => self.answer(sender, number, Ok(())),
        }
    }

    /// Asks for what of this has not been asked for.
    fn ask(&mut self, link: LinkId, round: u32, owed: &Ranges) {
        let Some(state) = self.links.get_mut(&link) else { return };
        let wanted = state.asked.fresh(owed).first(MAX_HOLES);
        if !wanted.is_empty() {
            state.asked.lost.push_back(wanted.clone());
            self.send(link, Control::Grant { round, wanted });
        }
    }

    /// While an update comes, asks for what was lost of it so far: when half of it has come, half of the rest, and so on, so
    /// that at its end hardly more is to be asked for than was lost in the last round trip.
    ///
    /// Where a link keeps the order, what is missing of a chunk of which something has come is lost. One that is missing
    /// altogether may be on its way by another connection.
    fn look_for_losses(&mut self, link: LinkId, sender: u32, chunk: &ChunkHeader) {
        let (total, grid) = (self.config.layout.bytes(), u64::from(self.config.chunk).max(1));
        let left = total.saturating_sub(chunk.offset);
        let Some(state) = self.links.get_mut(&link) else { return };
        if !state.ordered || !state.asked.update || left > state.asked.look {
            return;
        }
        state.asked.look = left / 2;
        let Some(part) = self.part(sender, chunk.round) else { return };
        let holes = part.incoming.holes();
        let lost = self
            .owed(&holes)
            .within(Range::new(0, chunk.offset))
            .flat_map(|hole| begun(hole, grid))
            .collect();
        self.ask(link, chunk.round, &lost);
    }

    /// What of an update's holes nothing may stand in for.
    fn owed(&self, holes: &Ranges) -> Ranges {
        if self.config.stand_in.is_some() {
            self.config.tolerance.owed(holes)
        } else {
            holes.clone()
        }
    }

    /// Why an update with these holes is refused, if it is: more of a tensor was lost than may be, or at the deadline
    /// something is missing that must not.
    fn too_lossy(&self, now: Time, holes: &Ranges) -> Option<String> {
        let tolerance = &self.config.tolerance;
        if let Some((limit, lost)) = tolerance.refused(holes) {
            let (of, most) = (limit.range.len(), limit.refuse);
            return Some(format!(
                "lost {lost} of the {of} bytes of {:?}, of which {most} may be",
                limit.tensor
            ));
        }
        let owed = if self.ends_updates(now) { tolerance.owed(holes) } else { Ranges::new() };
        let first = owed.iter().next()?;
        let (_, limit) = tolerance.touched(first).next()?;
        Some(format!(
            "lacked {} bytes at the deadline that must come, first of {:?}",
            owed.bytes(),
            limit.tensor
        ))
    }

    /// Whether updates that are being sent end here: the deadline has passed, and something stands in for what did not
    /// come. [`Self::timeout`] then counts what [`Self::observe`] was last told of their links.
    pub fn ends_updates(&self, now: Time) -> bool {
        self.config.stand_in.is_some() && self.round.as_ref().is_some_and(|round| round.is_overdue(now))
    }

    /// At the deadline what is still being sent counts as far as it has come.
    fn conclude_overdue(&mut self, now: Time) {
        let Some(round) = self.round.as_ref().filter(|_| self.ends_updates(now)) else { return };
        let number = round.plan.number;
        self.waits |= round.is_folding();
        let begun = |part: &Part| {
            part.state == State::Sending && part.incoming.bytes() > 0 && !part.incoming.is_folding()
        };
        let late: Vec<u32> = round.parts.iter().filter(|(_, part)| begun(part)).map(|(&s, _)| s).collect();
        for sender in late {
            let Some(link) = self.members.get(&sender).and_then(|m| m.link) else { continue };
            let Some(carried) = self.links.get_mut(&link).map(upload_traffic) else { continue };
            if let Some(part) = self.part(sender, number) {
                part.up.carry(carried);
            }
            self.conclude(now, link, sender, number);
        }
    }

    fn idle(&mut self, now: Time, _link: LinkId, sender: u32) {
        if self.members.get(&sender).is_some_and(|m| m.duty == Duty::Behind) {
            // It may have been let off with a part of this very round, if it said that it holds another.
            self.start_over(now, sender, None);
        }
    }

    fn bye(&mut self, now: Time, link: LinkId, sender: u32, reason: &str) {
        self.gone(sender);
        self.drop_link(now, link, &format!("left: {reason}"));
        self.actions.push_back(Action::Close { link });
    }

    fn gone(&mut self, sender: u32) {
        if let Some(member) = self.members.get_mut(&sender) {
            member.gone = true;
        }
        if let Some(part) = self.round.as_mut().and_then(|r| r.parts.get_mut(&sender)) {
            part.gone = true;
        }
    }

    /// A client's process has ended for good, as `why` says if it is not empty: nobody waits for it.
    pub fn forget(&mut self, now: Time, client: &str, why: &str) {
        let found = self.members.iter().find(|(_, m)| m.name == client).map(|(&s, m)| (s, m.link));
        if let Some((sender, link)) = found {
            self.gone(sender);
            if let Some(link) = link {
                self.drop_link(now, link, &ended(why));
                self.actions.push_back(Action::Close { link });
            }
        }
        self.advance(now);
    }

    /// A link has ended.
    pub fn closed(&mut self, now: Time, link: LinkId, reason: &str) {
        self.drop_link(now, link, reason);
        self.advance(now);
    }

    fn drop_link(&mut self, now: Time, link: LinkId, reason: &str) {
        let Some(mut state) = self.links.remove(&link) else { return };
        self.end_turn(now, link);
        let Some(sender) = state.sender else { return };
        let current = self.members.get_mut(&sender).filter(|m| m.link == Some(link));
        let Some(member) = current else { return };
        member.depart(reason);
        let reason = member.parting.clone().unwrap_or_default();
        let client = member.name.clone();
        if !member.gone && self.absent_since.is_some() {
            self.absent_since = Some(now);
        }
        if let Some(round) = &mut self.round {
            if let Some(part) = round.parts.get_mut(&sender) {
                count_broken(now, part, &mut state, round.plan.number);
            }
            round.lost(now, sender, &reason);
        }
        self.actions.push_back(Action::Left { client, reason });
    }

    /// The job is over: everybody is told, nobody is let in any more.
    pub fn finish(&mut self, now: Time, reason: &str) {
        self.finished = Some(reason.into());
        self.end_turns();
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.actions.push_back(Action::CancelUpdate { link });
            self.send(link, Control::Bye { reason: reason.into() });
            self.drop_link(now, link, &format!("the job is over: {reason}"));
            self.actions.push_back(Action::Close { link });
        }
        for sender in self.members.keys().copied().collect::<Vec<_>>() {
            self.gone(sender);
        }
        self.advance(now);
    }

    /// When [`Server::timeout`] wants to be called at the latest; `now` or earlier means at once.
    pub fn poll_timeout(&self, _now: Time) -> Option<Time> {
        let links = self.links.values().map(|l| self.link_timeout_at(l));
        let round = self.round.as_ref().and_then(|r| r.next_timeout(self.advanced, self.absent_since()));
        links.chain(round).min()
    }

    /// Since when somebody may still show up; `None` when nobody can.
    fn absent_since(&self) -> Option<Time> {
        self.absent_since.filter(|_| self.finished.is_none() && !self.is_everybody_accounted_for())
    }

    fn link_timeout_at(&self, link: &LinkState) -> Time {
        let next = match link.sender {
            Some(_) => link.pinged + self.heartbeat(),
            None => link.opened + HELLO,
        };
        let transfers = link.upload.iter().chain(&link.download).map(Liveness::deadline);
        transfers.chain([next]).chain(link.settle).fold(link.live.deadline(), Time::min)
    }

    fn heartbeat(&self) -> Time {
        (self.config.liveness / 4).max(Time::from_millis(1))
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Time) {
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.link_timeout(now, link);
        }
        self.advance(now);
    }

    fn link_timeout(&mut self, now: Time, link: LinkId) {
        let heartbeat = self.heartbeat();
        let Some(state) = self.links.get_mut(&link) else { return };
        if state.sender.is_none() && now >= state.opened + HELLO {
            let reason = format!("it did not say who it is within {} s", HELLO.as_secs());
            return self.refuse(now, link, Refusal::Liveness, &reason);
        }
        let stuck = [
            (Some(&state.live), "it says nothing"),
            (state.upload.as_ref(), "its update makes no progress"),
            (state.download.as_ref(), "it does not take the model"),
        ];
        let stuck = stuck
            .iter()
            .find_map(|(live, what)| live.filter(|l| now >= l.deadline()).map(|l| (l.patience(), *what)));
        if let Some((patience, what)) = stuck {
            let reason = format!("no progress for {:.1} s: {what}", patience.as_secs_f64());
            return self.refuse(now, link, Refusal::Liveness, &reason);
        }
        if state.sender.is_some() && now >= state.pinged + heartbeat {
            state.pinged = now;
            self.send(link, Control::Ping { clock: micros(now), received: 0 });
        }
        self.settle(now, link);
    }

    fn settle(&mut self, now: Time, link: LinkId) {
        let Some(state) = self.links.get_mut(&link) else { return };
        let Some(sender) = state.sender.filter(|_| state.settle.is_some_and(|at| now >= at)) else { return };
        state.settle = None;
        if let Some(number) = self.round.as_ref().map(|r| r.plan.number) {
            self.conclude(now, link, sender, number);
        }
    }

    fn refuse(&mut self, now: Time, link: LinkId, code: Refusal, reason: &str) {
        self.send(link, Control::Refused { code, reason: reason.into() });
        self.drop_link(now, link, reason);
        self.actions.push_back(Action::Close { link });
    }

    fn send(&mut self, link: LinkId, message: Control) {
        self.actions.push_back(Action::Send { link, message });
    }

    fn part(&mut self, sender: u32, round: u32) -> Option<&mut Part> {
        self.round.as_mut().filter(|r| r.plan.number == round)?.parts.get_mut(&sender)
    }

    /// What follows from the state alone: expired places, new grants, the round's end.
    fn advance(&mut self, now: Time) {
        self.advanced = self.advanced.max(now);
        self.waits = false;
        self.conclude_overdue(now);
        self.replace(now);
        let (absent_since, busy) = (self.absent_since(), self.is_somebody_busy());
        let Some(round) = &mut self.round else { return };
        let expired = round.expire(now);
        let (number, grants) = (round.plan.number, round.grants(now));
        let ending = round.ending(now, absent_since, busy);
        // What is being folded gets into the mean, so the outcome has to know of it.
        let held = ending.is_some() && round.is_folding();
        self.waits |= held;
        let ending = ending.filter(|_| !held);
        if self.config.partial == Partial::Discard {
            self.actions.extend(expired.into_iter().map(|sender| Action::Unstage { sender }));
        }
        for (sender, wanted) in grants {
            self.grant(now, sender, number, &wanted);
        }
        if let Some(ending) = ending {
            let ending = self.with_farewells(ending);
            self.end_round(now, &ending);
        }
    }

    /// Whether a client still works on a round that is over, and may come into this one.
    fn is_somebody_busy(&self) -> bool {
        self.members.values().any(|m| m.duty == Duty::Behind && m.link.is_some())
    }

    fn grant(&mut self, now: Time, sender: u32, round: u32, wanted: &Ranges) {
        let Some(link) = self.members.get(&sender).and_then(|m| m.link) else { return };
        let Some(state) = self.links.get_mut(&link) else { return };
        if state.upload.is_none() {
            state.upload = Some(Liveness::new(now, self.config.liveness));
            state.asked = Asked::of_update(self.config.layout.bytes());
            state.base = state.traffic;
            self.send(link, Control::Grant { round, wanted: wanted.first(MAX_HOLES) });
        }
    }

    fn end_round(&mut self, now: Time, ending: &Ending) {
        let Some(round) = self.round.take() else { return };
        let number = round.plan.number;
        self.end_turns();
        self.rates = round.credits.clone();
        for &sender in round.parts.keys() {
            self.rates.release(sender);
            // Whoever has a place may have a staged update, if only of damaged chunks.
            if self.config.partial == Partial::Discard && round.credits.holds(sender) {
                self.actions.push_back(Action::Unstage { sender });
            }
            let Some(member) = self.members.get_mut(&sender).filter(|m| m.duty == Duty::Round) else {
                continue;
            };
            member.duty = Duty::Behind;
            if let Some(link) = member.link {
                if let Some(state) = self.links.get_mut(&link) {
                    (state.upload, state.download, state.settle) = (None, None, None);
                }
                self.actions.push_back(Action::CancelUpdate { link });
                self.actions.push_back(Action::Send { link, message: Control::Closed { round: number } });
            }
        }
        self.actions.push_back(Action::Ended(Box::new(round.outcome(now, ending))));
    }
}

fn ended(why: &str) -> String {
    let (what, colon) = ("its process has ended", if why.is_empty() { "" } else { ": " });
    format!("{what}{colon}{why}")
}

/// The parts of a hole that are of chunks, so many bytes apart, of which something has come.
fn begun(hole: Range, grid: u64) -> impl Iterator<Item = Range> {
    let first = hole.start.checked_next_multiple_of(grid).unwrap_or(u64::MAX).min(hole.end);
    let last = (hole.end - hole.end % grid).max(first);
    [Range::new(hole.start, first), Range::new(last, hole.end)].into_iter().filter(|part| !part.is_empty())
}

fn upload_traffic(state: &mut LinkState) -> Carried {
    let (now, base) = (state.traffic, std::mem::replace(&mut state.base, state.traffic));
    let records = now.records_lost.map(|lost| lost.saturating_sub(base.records_lost.unwrap_or(0)));
    Carried {
        wire: now.received.saturating_sub(base.received),
        copied: now.copied.saturating_sub(base.copied),
        records_lost: records,
    }
}

fn download_traffic(state: &mut LinkState) -> Carried {
    let (now, base) = (state.traffic, std::mem::replace(&mut state.base, state.traffic));
    // Only the client knows what it could not open.
    let (wire, copied) = (now.sent.saturating_sub(base.sent), now.copied.saturating_sub(base.copied));
    Carried { wire, copied, records_lost: None }
}

/// What the link carried of a transfer that its end broke off.
fn count_broken(now: Time, part: &mut Part, state: &mut LinkState, round: u32) {
    if let Some((_, since)) = state.sending.filter(|(number, _)| *number == round) {
        part.down.carry(download_traffic(state));
        part.down.extend_send(Span { start: since, end: now });
    } else if part.state == State::Sending {
        part.up.carry(upload_traffic(state));
    }
}

fn retransmitted(now: Traffic, base: Traffic) -> Option<u64> {
    Some(now.retransmissions?.saturating_sub(base.retransmissions.unwrap_or(0)))
}

fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
    }
}
