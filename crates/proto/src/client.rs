//! The client's side: join, take the model, offer the update, and come back after a broken connection.

use std::collections::VecDeque;
use std::sync::Arc;

use thalweg_wire::control::{
    Challenge, Control, Hello, Holding, Interval, Nonce, Proof, Refusal, StandIn, Welcome, HELLO_HOLES,
    MAX_HOLES, VERSIONS,
};
use thalweg_wire::text::{plain, MAX_METRICS, MAX_REASON};
use thalweg_wire::{ChunkHeader, Layout, LayoutHash, Range, Ranges, Tolerance};

use crate::reaching::Reaching;
use crate::{micros, Fit, Liveness, Reassembly, Span, Time};

const SETTLE: Time = Time::from_millis(50);
const FIRST_RETRY: Time = Time::from_millis(100);
const LAST_RETRY: Time = Time::from_secs(5);
/// Until the server says otherwise.
const LIVENESS: Time = Time::from_secs(10);
/// Least time between heartbeats, whatever the server says.
const LEAST_HEARTBEAT: Time = Time::from_millis(1);

/// What does not change while a client lives.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Name, unique in the job.
    pub name: String,
    /// Random, once a process.
    pub instance: u64,
    /// Layout of its model; `None` takes the server's.
    pub layout: Option<LayoutHash>,
    /// How long to go on trying to be let in by the server, until when the client gives up whatever the peer does.
    pub patience: Time,
}

/// How an update fared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was folded into the round's sums.
    Accepted,
    /// Its round was over.
    Late,
    /// It was refused.
    Rejected(String),
}

/// What the caller has to do.
#[derive(Debug)]
pub enum ClientAction {
    /// Connect after this time, then tell [`Client::connected`] or [`Client::unreachable`].
    Connect {
        /// How long to wait first.
        after: Time,
    },
    /// Prove the token: HMAC over both nonces, then tell [`Client::proven`].
    Prove {
        /// The server's nonce.
        challenge: Nonce,
        /// Whether a proof is wanted at all.
        token: bool,
    },
    /// Send a message.
    Send(Control),
    /// Send these ranges of the update, then tell [`Client::sent`].
    SendUpdate {
        /// The round.
        round: u32,
        /// What to send.
        wanted: Ranges,
    },
    /// Stop sending.
    CancelUpdate,
    /// Close the link, after what was to be sent on it.
    Close,
    /// The server has let us in.
    Joined(Box<Welcome>),
    /// Mend the model in the arena: this did not come of it. [`ClientAction::Ready`] follows.
    Mend {
        /// What did not come.
        holes: Ranges,
        /// What stands in for it.
        stand_in: StandIn,
    },
    /// The global model of a round is in the arena.
    Ready {
        /// The round.
        round: u32,
        /// JSON object from the server.
        config: String,
    },
    /// How the update submitted fared.
    Verdict {
        /// The round.
        round: u32,
        /// How.
        verdict: Verdict,
    },
    /// The job is over; `Err` if it ended badly for this client.
    Finished(Result<String, String>),
}

#[derive(Debug)]
struct Submission {
    round: u32,
    samples: u64,
    metrics: String,
    /// How many grants are being answered, and what was granted meanwhile by how many more.
    sending: u32,
    waiting: Ranges,
    grants: u32,
}

impl Submission {
    fn new(round: u32, samples: u64, metrics: String) -> Self {
        Self { round, samples, metrics, sending: 0, waiting: Ranges::new(), grants: 0 }
    }

    /// Nothing is granted any more.
    fn forget(&mut self) {
        (self.sending, self.waiting, self.grants) = (0, Ranges::new(), 0);
    }

    /// What to send next, unless something is being sent.
    fn next(&mut self) -> Option<ClientAction> {
        if self.sending > 0 || self.grants == 0 {
            return None;
        }
        self.sending = std::mem::take(&mut self.grants);
        let wanted = std::mem::take(&mut self.waiting);
        Some(ClientAction::SendUpdate { round: self.round, wanted })
    }
}

#[derive(Debug)]
enum Phase {
    Idle,
    Receiving {
        round: u32,
        config: String,
        model: Reassembly,
    },
    /// The model is with the application; `stale` if the round is over.
    Training {
        round: u32,
        stale: bool,
    },
    Submitting(Submission),
}

/// The client's state machine.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    phase: Phase,
    welcome: Option<Welcome>,
    /// What the server said may be lost.
    tolerance: Arc<Tolerance>,
    link: Option<Connection>,
    reaching: Reaching,
    retries: u32,
    jitter: u64,
    received: u64,
    actions: VecDeque<ClientAction>,
    done: bool,
}

#[derive(Debug)]
struct Connection {
    ordered: bool,
    live: Liveness,
    pinged: Time,
    settle: Option<Time>,
    nonce: Nonce,
    challenge: Option<Challenge>,
    /// The Hello has been said.
    greeted: bool,
    welcomed: bool,
}

impl Client {
    /// A client that wants to connect at once. `seed` spreads the retries of many clients.
    pub fn new(config: ClientConfig, seed: u64) -> Self {
        let reaching = Reaching::new(config.patience);
        let mut client = Self {
            config,
            phase: Phase::Idle,
            welcome: None,
            tolerance: Arc::default(),
            link: None,
            reaching,
            retries: 0,
            jitter: seed,
            received: 0,
            actions: VecDeque::new(),
            done: false,
        };
        client.actions.push_back(ClientAction::Connect { after: Time::ZERO });
        client
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<ClientAction> {
        self.actions.pop_front()
    }

    /// What the server said of the job, once it has let us in.
    pub fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    /// What of models and updates may be lost, once the server has let us in.
    pub fn tolerance(&self) -> &Arc<Tolerance> {
        &self.tolerance
    }

    /// Whether nothing more will happen.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The link is up. `nonce` must be fresh random bytes.
    pub fn connected(&mut self, now: Time, nonce: Nonce, ordered: bool) {
        if self.done {
            return;
        }
        let floor = self.welcome.as_ref().map_or(LIVENESS, |w| Time::from_micros(w.liveness));
        let live = Liveness::new(now, floor);
        self.link = Some(Connection {
            ordered,
            live,
            pinged: now,
            settle: None,
            nonce,
            challenge: None,
            greeted: false,
            welcomed: false,
        });
    }

    /// The server could not be reached.
    pub fn unreachable(&mut self, now: Time, reason: &str, may_retry: bool) {
        if self.done {
            return;
        }
        self.reaching.failed(now, reason);
        if !may_retry || !self.reaching.may_retry(now) {
            return self.finish(Err(reason.into()));
        }
        let after = self.backoff();
        self.actions.push_back(ClientAction::Connect { after });
    }

    /// Exponential, with up to a quarter of jitter (splitmix64).
    fn backoff(&mut self) -> Time {
        let base = FIRST_RETRY.saturating_mul(1 << self.retries.min(6)).min(LAST_RETRY);
        self.retries += 1;
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.jitter;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        base + base / 4 * ((z >> 48) as u32 % 1000) / 1000
    }

    /// The link has ended.
    pub fn closed(&mut self, now: Time, reason: &str) {
        if self.link.take().is_none() || self.done {
            return;
        }
        self.retry(now, reason);
    }

    /// Comes back with what it has.
    fn retry(&mut self, now: Time, reason: &str) {
        if let Phase::Submitting(submission) = &mut self.phase {
            submission.forget();
        }
        self.actions.push_back(ClientAction::CancelUpdate);
        self.unreachable(now, reason, true);
    }

    /// A message has come.
    pub fn control(&mut self, now: Time, message: Control) {
        let Some(link) = &mut self.link else { return };
        link.live.heard(now);
        match message {
            Control::Challenge(challenge) if link.challenge.is_none() => self.challenged(challenge),
            Control::Welcome(welcome) if link.greeted && !link.welcomed => self.welcomed(now, welcome),
            Control::Refused { code, reason } => self.refused(now, code, &reason),
            Control::Bye { reason } => {
                self.actions.push_back(ClientAction::Close);
                self.finish(Ok(reason));
            }
            message if link.welcomed => self.told(now, message),
            _ => {}
        }
    }

    /// A message has come from the server that let us in.
    fn told(&mut self, now: Time, message: Control) {
        match message {
            Control::Begin { round, config } => self.begin(round, config),
            Control::End { round, .. } => self.model_end(now, round),
            Control::Grant { round, wanted } => self.granted(round, wanted),
            Control::Accepted { round } => self.settled(round, Verdict::Accepted),
            Control::Rejected { round, reason } => self.settled(round, Verdict::Rejected(reason)),
            Control::Closed { round } => self.round_closed(round),
            Control::Ping { clock, .. } => self.send(Control::Pong { clock }),
            _ => {}
        }
    }

    fn challenged(&mut self, challenge: Challenge) {
        let Some(link) = &mut self.link else { return };
        if challenge.versions.0 > VERSIONS.1 || challenge.versions.1 < VERSIONS.0 {
            let (low, high) = challenge.versions;
            self.actions.push_back(ClientAction::Close);
            let reason = format!(
                "the server speaks session versions {low}..={high}, we {VERSIONS:?}; use one release"
            );
            return self.finish(Err(reason));
        }
        let (nonce, token) = (challenge.nonce, challenge.token);
        link.challenge = Some(challenge);
        self.actions.push_back(ClientAction::Prove { challenge: nonce, token });
    }

    /// The proof is made, or none was wanted.
    pub fn proven(&mut self, now: Time, proof: Option<Proof>) {
        let holding = self.holding();
        let Some(link) = &mut self.link else { return };
        let Some(challenge) = link.challenge.as_ref().filter(|_| !link.greeted) else { return };
        link.greeted = true;
        let hello = Hello {
            version: challenge.versions.1.min(VERSIONS.1),
            name: self.config.name.clone(),
            instance: self.config.instance,
            nonce: link.nonce,
            proof,
            layout: self.config.layout.or(self.welcome.as_ref().map(|w| w.layout.hash())),
            holding,
            clock: micros(now),
        };
        self.actions.push_back(ClientAction::Send(Control::Hello(hello)));
    }

    /// The nonce of this connection, for the proof.
    pub fn nonce(&self) -> Option<Nonce> {
        self.link.as_ref().map(|l| l.nonce)
    }

    fn holding(&self) -> Holding {
        match &self.phase {
            Phase::Idle => Holding::Nothing,
            Phase::Receiving { round, model, .. } if model.holes().count() <= MAX_HOLES => {
                Holding::Model { round: *round, holes: model.holes().longest(HELLO_HOLES) }
            }
            Phase::Receiving { .. } => Holding::Nothing,
            Phase::Training { round, .. } | Phase::Submitting(Submission { round, .. }) => {
                Holding::Round { round: *round }
            }
        }
    }

    fn welcomed(&mut self, now: Time, welcome: Welcome) {
        match Tolerance::new(&welcome.layout, &welcome.allowances) {
            Ok(tolerance) => self.tolerance = Arc::new(tolerance),
            Err(error) => {
                self.actions.push_back(ClientAction::Close);
                return self.finish(Err(format!("what the server says may be lost: {error}")));
            }
        }
        let floor = Time::from_micros(welcome.liveness);
        if let Some(link) = &mut self.link {
            link.live = Liveness::new(now, floor);
            link.welcomed = true;
        }
        self.reaching.done();
        self.retries = 0;
        let first = self.welcome.is_none();
        self.welcome = Some(welcome.clone());
        if first {
            self.actions.push_back(ClientAction::Joined(Box::new(welcome)));
        }
        // A submission under way is offered again; the server knows what it has of it.
        if let Phase::Submitting(submission) = &self.phase {
            let offer = offer(submission, self.layout_hash());
            self.send(offer);
        }
    }

    fn layout_hash(&self) -> LayoutHash {
        self.config.layout.or(self.welcome.as_ref().map(|w| w.layout.hash())).unwrap_or_default()
    }

    fn refused(&mut self, now: Time, code: Refusal, reason: &str) {
        self.actions.push_back(ClientAction::Close);
        self.link = None;
        if code.may_retry() {
            self.retry(now, reason);
        } else {
            self.finish(Err(reason.into()));
        }
    }

    fn begin(&mut self, round: u32, config: String) {
        let total = self.welcome.as_ref().map_or(0, |w| w.layout.bytes());
        self.unsettle();
        match &mut self.phase {
            // The same round again after a broken connection: what is here stays.
            Phase::Receiving { round: known, .. } if *known == round => {}
            Phase::Idle | Phase::Receiving { .. } => {
                self.phase = Phase::Receiving { round, config, model: Reassembly::new(total) };
            }
            Phase::Training { .. } | Phase::Submitting(_) => {}
        }
    }

    /// How a chunk fits into the model being received.
    pub fn place(&mut self, now: Time, chunk: &ChunkHeader) -> Fit {
        let Some(model) = self.receiving(chunk) else { return Fit::Nothing };
        model.touch(now);
        let fit = model.fit(chunk.range());
        if fit == Fit::Nothing {
            model.duplicate();
        }
        fit
    }

    /// The first bytes of a chunk have come; its place is asked for later, when its length is known.
    pub fn begun(&mut self, now: Time, chunk: &ChunkHeader) {
        if let Some(model) = self.receiving(chunk) {
            model.touch(now);
        }
    }

    fn receiving(&mut self, chunk: &ChunkHeader) -> Option<&mut Reassembly> {
        let welcome = self.welcome.as_ref()?;
        let ours = chunk.job == welcome.job && chunk.sender == 0 && chunk.layout == welcome.layout.hash();
        match &mut self.phase {
            Phase::Receiving { round, model, .. } if ours && *round == chunk.round => Some(model),
            _ => None,
        }
    }

    /// `bytes` more bytes of chunks have come.
    pub fn progress(&mut self, now: Time, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
        if let Some(link) = &mut self.link {
            link.live.progress(now, bytes);
        }
    }

    /// Nothing gets through at the moment, for no fault of the server: time does not count against it.
    pub fn held(&mut self, now: Time) {
        if let Some(link) = &mut self.link {
            link.live.heard(now);
        }
    }

    /// A chunk is in its place (`ok`), or came damaged. Returns what of it is new.
    pub fn stored(&mut self, now: Time, chunk: &ChunkHeader, ok: bool) -> Vec<Range> {
        let Some(model) = self.receiving(chunk) else { return Vec::new() };
        if !ok {
            model.corrupt();
            return Vec::new();
        }
        let fresh = model.store(now, chunk.range());
        let more = if model.is_whole() { Time::ZERO } else { SETTLE };
        if let Some(link) = self.link.as_mut().filter(|l| l.settle.is_some()) {
            link.settle = Some(now + more);
        }
        fresh
    }

    /// Nothing of the model is waited for any more.
    fn unsettle(&mut self) {
        if let Some(link) = &mut self.link {
            link.settle = None;
        }
    }

    fn model_end(&mut self, now: Time, ended: u32) {
        let Phase::Receiving { round, model, .. } = &self.phase else { return };
        if *round != ended {
            return;
        }
        let whole = model.is_whole();
        let Some(link) = &mut self.link else { return };
        if !whole && !link.ordered {
            link.settle = Some(now + SETTLE);
            return;
        }
        self.model_conclude(now);
    }

    fn model_conclude(&mut self, now: Time) {
        self.unsettle();
        let Phase::Receiving { round, config, model } = &mut self.phase else { return };
        let round = *round;
        let (holes, stand_in) = (model.holes(), self.welcome.as_ref().and_then(|w| w.stand_in));
        let missing = holes.bytes();
        let owed = if stand_in.is_some() { self.tolerance.owed(&holes) } else { holes.clone() };
        if !owed.is_empty() {
            return self.send(Control::Need { round, holes: owed.first(MAX_HOLES) });
        }
        if let Some(stand_in) = stand_in.filter(|_| missing > 0) {
            self.actions.push_back(ClientAction::Mend { holes, stand_in });
        }
        let span = model.span().unwrap_or(Span { start: now, end: now });
        let received = Interval { start: micros(span.start), end: micros(span.end) };
        let (duplicates, _) = model.faults();
        let config = std::mem::take(config);
        self.phase = Phase::Training { round, stale: false };
        self.send(Control::Received { round, received, duplicates, missing });
        self.actions.push_back(ClientAction::Ready { round, config });
    }

    /// The application has trained: its update of `samples` samples is in the arena.
    ///
    /// # Errors
    /// If the model of that round was never handed out, or the metrics are more than the server keeps.
    pub fn submit(&mut self, round: u32, samples: u64, metrics: String) -> Result<(), String> {
        if metrics.len() > MAX_METRICS {
            let length = metrics.len();
            return Err(format!(
                "metrics of {length} bytes are over {MAX_METRICS}; report fewer or shorter ones"
            ));
        }
        match self.phase {
            Phase::Training { round: current, stale } if current == round => {
                if stale {
                    self.phase = Phase::Idle;
                    self.verdict(round, Verdict::Late);
                    self.send(Control::Idle);
                    return Ok(());
                }
                let submission = Submission::new(round, samples, metrics);
                let offer = offer(&submission, self.layout_hash());
                self.phase = Phase::Submitting(submission);
                self.send(offer);
                Ok(())
            }
            _ => {
                Err(format!("round {round} is not being trained; submit the round that was handed out, once"))
            }
        }
    }

    fn granted(&mut self, granted: u32, wanted: Ranges) {
        if let Phase::Submitting(submission) = &mut self.phase {
            if submission.round == granted {
                wanted.iter().for_each(|range| _ = submission.waiting.insert(range));
                submission.grants = submission.grants.saturating_add(1);
                self.actions.extend(submission.next());
            }
        }
    }

    /// The ranges asked for have been sent, or `Err` why not.
    pub fn sent(&mut self, round: u32, outcome: Result<Span, String>, retransmissions: Option<u64>) {
        let Phase::Submitting(submission) = &mut self.phase else { return };
        if submission.round != round || submission.sending == 0 {
            return; // of a link or a submission that is over
        }
        let grants = std::mem::take(&mut submission.sending);
        let Ok(span) = outcome else { return submission.forget() };
        let next = submission.next();
        let sent = Interval { start: micros(span.start), end: micros(span.end) };
        self.send(Control::End { round, sent, retransmissions });
        for _ in 1..grants {
            self.send(Control::End { round, sent, retransmissions: retransmissions.map(|_| 0) });
        }
        self.actions.extend(next);
    }

    fn settled(&mut self, settled: u32, verdict: Verdict) {
        let Phase::Submitting(submission) = &self.phase else { return };
        if submission.round != settled {
            return;
        }
        // What came by the deadline is accepted, and the rest is of no use.
        if verdict != Verdict::Accepted || submission.sending > 0 {
            self.actions.push_back(ClientAction::CancelUpdate);
        }
        self.phase = Phase::Idle;
        self.verdict(settled, verdict);
    }

    fn round_closed(&mut self, closed: u32) {
        match &mut self.phase {
            Phase::Receiving { round, .. } if *round == closed => {
                self.phase = Phase::Idle;
                self.unsettle();
                self.send(Control::Idle);
            }
            Phase::Training { round, stale } if *round == closed => *stale = true,
            Phase::Submitting(submission) if submission.round == closed => {
                self.actions.push_back(ClientAction::CancelUpdate);
                self.phase = Phase::Idle;
                self.verdict(closed, Verdict::Late);
                self.send(Control::Idle);
            }
            Phase::Idle => self.send(Control::Idle),
            _ => {}
        }
    }

    fn verdict(&mut self, round: u32, verdict: Verdict) {
        self.actions.push_back(ClientAction::Verdict { round, verdict });
    }

    /// The application leaves for good.
    pub fn leave(&mut self, reason: &str) {
        if !self.done {
            let reason = plain(reason, MAX_REASON);
            self.send(Control::Bye { reason: reason.clone() });
            self.actions.push_back(ClientAction::Close);
            self.finish(Ok(reason));
        }
    }

    fn finish(&mut self, outcome: Result<String, String>) {
        if !std::mem::replace(&mut self.done, true) {
            self.link = None;
            self.actions.push_back(ClientAction::CancelUpdate);
            // What a transport says may be a peer's or a broker's words.
            let outcome = outcome.map_err(|reason| plain(&reason, MAX_REASON));
            self.actions.push_back(ClientAction::Finished(outcome));
        }
    }

    fn heartbeat(&self) -> Time {
        let said = self.welcome.as_ref().map_or(LIVENESS / 4, |w| Time::from_micros(w.heartbeat));
        said.max(LEAST_HEARTBEAT)
    }

    /// When [`Client::timeout`] wants to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let reached = self.is_reaching().then(|| self.reaching.deadline());
        let Some(link) = &self.link else { return reached };
        let ping = link.welcomed.then(|| link.pinged + self.heartbeat());
        [ping, link.settle, Some(link.live.deadline()), reached].into_iter().flatten().min()
    }

    /// Whether no server has let it in on a link that it has now.
    fn is_reaching(&self) -> bool {
        !self.done && !self.link.as_ref().is_some_and(|link| link.welcomed)
    }

    /// Gives up once patience is at its end, whatever the peer does meanwhile. Returns whether it did.
    fn give_up(&mut self, now: Time) -> bool {
        if !self.is_reaching() {
            return false;
        }
        self.reaching.trying(now);
        let over = self.reaching.is_over(now);
        if over {
            let reason = self.reaching.reason(self.link.is_some());
            self.actions.push_back(ClientAction::Close);
            self.finish(Err(reason));
        }
        over
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Time) {
        if self.give_up(now) {
            return;
        }
        let heartbeat = self.heartbeat();
        let Some(link) = &mut self.link else { return };
        if now >= link.live.deadline() {
            let reason = format!("the server says nothing for {:.1} s", link.live.patience().as_secs_f64());
            self.actions.push_back(ClientAction::Close);
            return self.closed(now, &reason);
        }
        let settled = link.settle.is_some_and(|at| now >= at);
        if link.welcomed && now >= link.pinged + heartbeat {
            link.pinged = now;
            let received = self.received;
            self.send(Control::Ping { clock: micros(now), received });
        }
        if settled {
            self.model_conclude(now);
        }
    }

    /// Says something, if we are let in: what matters is said anew after the next Welcome.
    fn send(&mut self, message: Control) {
        if self.link.as_ref().is_some_and(|l| l.welcomed) {
            self.actions.push_back(ClientAction::Send(message));
        }
    }

    /// Layout of the global model, once known.
    pub fn layout(&self) -> Option<&Layout> {
        self.welcome.as_ref().map(|w| &w.layout)
    }
}

fn offer(submission: &Submission, layout: LayoutHash) -> Control {
    let Submission { round, samples, metrics, .. } = submission;
    Control::Offer { round: *round, samples: *samples, layout, metrics: metrics.clone() }
}
