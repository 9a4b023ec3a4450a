//! A client's link: connecting to the server, the handshake, and reconnecting when the link breaks.

use std::collections::VecDeque;
use std::sync::Arc;

use thalweg_rng::Rng;
use thalweg_wire::control::{
    Challenge, Control, Hello, Holding, Nonce, Proof, Purpose, Refusal, Welcome, VERSIONS,
};
use thalweg_wire::text::{plain, MAX_REASON};
use thalweg_wire::{limits, Difference, Layout, LayoutHash, Ranges};

use super::reaching::Reaching;
use super::{Failure, Session, MIN_HEARTBEAT, SAME_MODEL};
use crate::{micros, Kind, Time};

/// Time before the first retry. It doubles with each retry.
const MIN_BACKOFF: Time = Time::from_millis(100);
/// Longest time between attempts.
const MAX_BACKOFF: Time = Time::from_secs(5);
/// Longest time between attempts in two cases: the client was let in before, and should continue soon after
/// the path is back; or it knows several servers, among which it divides its attempts.
const MAX_BACKOFF_REJOIN: Time = Time::from_secs(1);

/// Interval between parallel attempts to connect, in round trips, and its minimum. While a path is down, an
/// attempt's packets are lost, and the kernel repeats them after ever longer pauses, up to a minute. A new
/// attempt notices sooner that the path is back.
const PACE_RTTS: u32 = 2;
const MIN_PACE: Time = Time::from_secs(1);

/// The settings of a client, which never change.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The client's name, unique in the job.
    pub name: String,
    /// A random number, drawn once per process.
    pub instance: u64,
    /// The layout of the client's model; `None` means that it takes the server's.
    pub layout: Option<Arc<Layout>>,
    /// How long the client tries to be let in by the server before it gives up, whatever the peer does.
    pub timeout: Time,
    /// How long a client that was let in before tries to come back, if that is longer than `timeout`.
    pub outage: Time,
}

/// An action for a client's driver. `P` is the type of the actions that only the policy asks for.
#[derive(Debug)]
pub enum ClientAction<P> {
    /// Connect after this time, then call the machine's `connected` or `unreachable`.
    Connect {
        /// How long to wait first.
        after: Time,
        /// The URL; `None`: the URL that the client was given.
        to: Option<String>,
    },
    /// Sign both nonces and the job with the token, then call the machine's `proven`.
    Prove {
        /// The server's nonce.
        challenge: Nonce,
        /// The number of the server's job.
        job: u64,
        /// Whether the server wants a proof. If not, call `proven` without one.
        token: bool,
    },
    /// Send a message.
    Send(Control),
    /// Send these ranges of the answer to a parcel, then call the machine's `sent`.
    SendParcel {
        /// The number of the parcel that is answered, and of the answer.
        parcel: u32,
        /// The ranges to send.
        wanted: Ranges,
    },
    /// Stop sending this answer.
    Cancel {
        /// The number of the parcel that is answered; `None`: whatever is being sent.
        parcel: Option<u32>,
    },
    /// Close the link, once all messages to it are sent.
    Close,
    /// The server has let the client in.
    Joined(Box<Welcome>),
    /// The client's part in the job is over: how it ended, or `Err` and why it failed.
    Finished(Result<String, Failure>),
    /// An action of the policy.
    Policy(P),
}

/// The consequence of a server's message for the policy.
#[derive(Debug)]
pub(crate) enum ServerEvent {
    /// The policy has nothing to do.
    Nothing,
    /// The server has let the client in.
    Welcomed,
    /// The link has ended, for this reason.
    Lost(String),
    /// A message for the policy, from a server that has let the client in.
    Message(Control),
}

/// The link that the client has now.
#[derive(Debug)]
struct Dialed {
    session: Session,
    challenge: Option<Challenge>,
    /// The Hello was sent.
    greeted: bool,
    /// When the Hello was sent.
    greeted_at: Time,
    /// The Welcome has arrived.
    welcomed: bool,
}

/// The state of a client's connection to its server.
#[derive(Debug)]
pub struct Dial<P> {
    config: ClientConfig,
    purpose: Purpose,
    /// The server's last Welcome.
    welcome: Option<Welcome>,
    /// The silence timeout of the last link that was welcomed.
    silence: Option<Time>,
    /// The round trip of the path, measured when the server last let the client in.
    round_trip: Option<Time>,
    link: Option<Dialed>,
    reaching: Reaching,
    /// Attempts to connect since the client was last let in, or was sent to another URL.
    retries: u32,
    /// State of the random numbers that spread the retries.
    jitter: Rng,
    /// Bytes of chunks received over all links.
    received: u64,
    /// Segments retransmitted over all links; `None` if unknown.
    resent: Option<u64>,
    /// Number of retransmitted segments that were reported to the server.
    counted: u64,
    actions: VecDeque<ClientAction<P>>,
    done: bool,
    targets: Targets,
}

/// The servers to connect to: the client's own (its home), and others that may know where the home is now.
#[derive(Debug, Default)]
struct Targets {
    /// The URL to which a server has sent the client; `None`: the URL that the client was given.
    home: Option<String>,
    /// URLs of other servers of the job.
    others: Vec<String>,
    /// Attempts since the client was last let in, or was sent to another server.
    turn: usize,
    /// Whether the last attempt was at another server than the home.
    is_at_other: bool,
}

impl Targets {
    /// The URL for the next attempt. Attempts alternate between the home and the others, home first.
    fn next(&mut self) -> Option<String> {
        let turn = self.turn;
        self.turn += 1;
        self.is_at_other = turn % 2 == 1 && !self.others.is_empty();
        if self.is_at_other {
            self.others.get(turn / 2 % self.others.len()).cloned()
        } else {
            self.home.clone()
        }
    }
}

impl<P> Dial<P> {
    /// Makes a client that connects at once. `seed` spreads the retries of many clients.
    pub(crate) fn new(config: ClientConfig, purpose: Purpose, seed: u64) -> Self {
        let reaching = Reaching::new(config.timeout, config.outage);
        let actions = VecDeque::from([ClientAction::Connect { after: Time::ZERO, to: None }]);
        Self {
            config,
            purpose,
            welcome: None,
            silence: None,
            round_trip: None,
            link: None,
            reaching,
            retries: 0,
            jitter: Rng::seeded(seed),
            received: 0,
            resent: None,
            counted: 0,
            actions,
            done: false,
            targets: Targets::default(),
        }
    }

    pub(crate) fn poll_action(&mut self) -> Option<ClientAction<P>> {
        self.actions.pop_front()
    }

    pub(crate) fn has_action(&self) -> bool {
        !self.actions.is_empty()
    }

    pub(crate) fn act(&mut self, action: ClientAction<P>) {
        self.actions.push_back(action);
    }

    pub(crate) fn want(&mut self, wanted: P) {
        self.actions.push_back(ClientAction::Policy(wanted));
    }

    pub(crate) fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Interval at which further attempts to connect begin, in parallel to those without an answer. `None` if
    /// no server has let the client in yet, since the RTT is not known then.
    pub(crate) fn pace(&self) -> Option<Time> {
        self.round_trip.map(|trip| MIN_PACE.max(trip.saturating_mul(PACE_RTTS)))
    }

    /// Whether the link keeps the order of messages and chunks; false without a link.
    pub(crate) fn is_ordered(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.session.ordered)
    }

    /// This client's nonce of the present connection, for the proof.
    pub(crate) fn nonce(&self) -> Option<Nonce> {
        self.link.as_ref().map(|l| l.session.nonce)
    }

    /// The hash of this client's layout, or else of the server's.
    pub(crate) fn layout_hash(&self) -> LayoutHash {
        self.known_layout().map(Layout::hash).unwrap_or_default()
    }

    fn known_layout(&self) -> Option<&Layout> {
        self.config.layout.as_deref().or(self.welcome.as_ref().map(|w| &w.layout))
    }

    /// Reports that the link is up. `nonce` must be fresh random bytes; `ordered`: the link keeps the order
    /// of messages and chunks.
    pub(crate) fn connected(&mut self, now: Time, nonce: Nonce, ordered: bool) {
        if self.done {
            return;
        }
        // Use the silence timeout that was measured before, if there is one.
        let session = Session::new(now, nonce, ordered, self.silence.unwrap_or(limits::GREET));
        self.link =
            Some(Dialed { session, challenge: None, greeted: false, greeted_at: now, welcomed: false });
    }

    /// Reports that the server could not be reached. `may_retry`: another attempt can succeed.
    pub(crate) fn unreachable(&mut self, now: Time, why: impl Into<Failure>, may_retry: bool) {
        if self.done {
            return;
        }
        let why = why.into();
        self.reaching.failed(now, why.clone());
        if !may_retry || !self.reaching.may_retry(now) {
            return self.finish(Err(why));
        }
        let (after, to) = (self.backoff(), self.targets.next());
        self.act(ClientAction::Connect { after, to });
    }

    /// The time to wait before the next attempt: exponential back-off, with up to a quarter of random jitter.
    fn backoff(&mut self) -> Time {
        let is_usual = self.targets.others.is_empty() && self.round_trip.is_none();
        let last = if is_usual { MAX_BACKOFF } else { MAX_BACKOFF_REJOIN };
        let base = MIN_BACKOFF.saturating_mul(1 << self.retries.min(6)).min(last);
        self.retries += 1;
        base + base / 4 * ((self.jitter.draw() >> 48) as u32 % 1000) / 1000
    }

    /// Reports that the link has ended. Returns false if there was no link, or the client is done.
    pub(crate) fn closed(&mut self, now: Time, reason: &str) -> bool {
        if self.link.take().is_none() || self.done {
            return false;
        }
        self.retry(now, Failure::transient(Kind::Closed, reason));
        true
    }

    /// Cancels what is being sent, and connects again if the timeout allows it.
    fn retry(&mut self, now: Time, why: impl Into<Failure>) {
        self.act(ClientAction::Cancel { parcel: None });
        self.unreachable(now, why, true);
    }

    /// Handles a message from the server. Returns what it means for the policy.
    pub(crate) fn control(&mut self, now: Time, message: Control) -> ServerEvent {
        let Some(link) = &mut self.link else { return ServerEvent::Nothing };
        link.session.live.message_received(now);
        match message {
            Control::Challenge(challenge) if link.challenge.is_none() => self.challenged(challenge),
            Control::Welcome(welcome) if link.greeted && !link.welcomed => {
                return self.welcomed(now, welcome);
            }
            Control::Refused { code, reason } => return self.refused(now, code, reason),
            Control::Layout(theirs) if link.greeted && !link.welcomed => return self.differs(now, &theirs),
            Control::Bye { reason } => {
                self.act(ClientAction::Close);
                let left = format!("left: {reason}");
                self.finish(Ok(reason));
                return ServerEvent::Lost(left);
            }
            Control::Ping { clock, .. } if link.welcomed => self.send(Control::Pong { clock }),
            Control::Elsewhere { url } if link.greeted => return self.elsewhere(now, url),
            Control::Others { urls } if link.welcomed => self.targets.others = urls,
            message if link.welcomed => {
                if let Some(parcel) = message.settles().filter(|_| self.purpose != Purpose::Graph) {
                    self.count(parcel);
                }
                return ServerEvent::Message(message);
            }
            _ => {}
        }
        ServerEvent::Nothing
    }

    /// Reports how many segments were retransmitted so far over all links. The driver must call this before
    /// it passes on a message that settles a parcel.
    pub(crate) fn observe(&mut self, retransmissions: Option<u64>) {
        self.resent = retransmissions;
    }

    /// Tells the server how many segments were retransmitted since the last such message.
    fn count(&mut self, parcel: u32) {
        let counted = self.counted;
        self.counted = self.resent.unwrap_or(counted).max(counted);
        let retransmissions = self.resent.map(|now| now.saturating_sub(counted));
        self.send(Control::Counted { parcel, retransmissions });
    }

    fn challenged(&mut self, challenge: Challenge) {
        let Some(link) = &mut self.link else { return };
        if challenge.versions.0 > VERSIONS.1 || challenge.versions.1 < VERSIONS.0 {
            let (low, high) = challenge.versions;
            self.act(ClientAction::Close);
            let cause = format!("the server speaks session versions {low}..={high}, we {VERSIONS:?}");
            return self.finish(Err(Failure::hinted(cause, "use one release")));
        }
        let proving =
            ClientAction::Prove { challenge: challenge.nonce, job: challenge.job(), token: challenge.token };
        link.challenge = Some(challenge);
        self.act(proving);
    }

    /// Reports that the proof is made; `None` if the server wanted none. `holding`: the model, update or
    /// tasks that the client still has from before its link broke.
    pub(crate) fn proven(&mut self, now: Time, proof: Option<Proof>, holding: Holding) {
        let layout = self.known_layout().map(Layout::hash);
        let Some(link) = &mut self.link else { return };
        let Some(challenge) = link.challenge.as_ref().filter(|_| !link.greeted) else { return };
        (link.greeted, link.greeted_at) = (true, now);
        let hello = Hello {
            version: challenge.versions.1.min(VERSIONS.1),
            name: self.config.name.clone(),
            instance: self.config.instance,
            nonce: link.session.nonce,
            proof,
            layout,
            holding,
            clock: micros(now),
            purpose: self.purpose,
        };
        self.act(ClientAction::Send(Control::Hello(hello)));
    }

    fn welcomed(&mut self, now: Time, welcome: Welcome) -> ServerEvent {
        let floor = Time::from_micros(welcome.liveness);
        if let Some(link) = &mut self.link {
            let round_trip = now.saturating_sub(link.greeted_at);
            link.session.met(now, round_trip, floor);
            self.round_trip = Some(round_trip);
            self.silence = Some(link.session.silence);
            link.welcomed = true;
        }
        self.reaching.done();
        (self.retries, self.targets.turn) = (0, 0);
        let first = self.welcome.is_none();
        self.welcome = Some(welcome.clone());
        if first {
            self.act(ClientAction::Joined(Box::new(welcome)));
        }
        ServerEvent::Welcomed
    }

    /// Handles a message that says that this client's home is now at `url`.
    fn elsewhere(&mut self, now: Time, url: String) -> ServerEvent {
        self.act(ClientAction::Close);
        self.link = None;
        let reason = format!("its home is at {url} now");
        if self.targets.home.as_ref() != Some(&url) {
            self.retries = 0;
        }
        (self.targets.home, self.targets.turn) = (Some(url), 0);
        self.retry(now, reason.as_str());
        ServerEvent::Lost(reason)
    }

    /// Handles the layout of a server that refused this client's. Tells the server which tensor differs, and
    /// gives up. The server closes the link when this message arrives.
    fn differs(&mut self, now: Time, theirs: &Layout) -> ServerEvent {
        let Some(difference) = self.known_layout().and_then(|ours| ours.difference(theirs)) else {
            return self.refused(
                now,
                Refusal::Layout,
                Failure::hinted(
                    "the server refuses this model, although the layout that it sent is the same",
                    "use one release at both ends",
                ),
            );
        };
        let mismatch = self.mismatch(&difference);
        // Only the home can turn a client away for good.
        if self.targets.is_at_other {
            return self.refused(now, Refusal::Layout, mismatch);
        }
        let (tensor, spec, reason) = (difference.name, difference.ours, mismatch.to_string());
        self.act(ClientAction::Send(Control::Differs { tensor, spec }));
        self.finish(Err(mismatch));
        ServerEvent::Lost(reason)
    }

    /// The error for a peer whose layout differs in this way.
    pub(crate) fn mismatch(&self, difference: &Difference) -> Failure {
        let there = if self.purpose == Purpose::Graph { "neighbour" } else { "server" };
        let described = difference.describe("here", &format!("at the {there}"));
        Failure::hinted(format!("this model differs from the {there}'s: {described}"), SAME_MODEL)
    }

    fn refused(&mut self, now: Time, code: Refusal, why: impl Into<Failure>) -> ServerEvent {
        self.act(ClientAction::Close);
        self.link = None;
        let why = Failure { may_retry: code.may_retry(), ..why.into() };
        let reason = format!("left: {}", why.cause);
        // Only the home can turn a client away for good.
        if code.may_retry() || self.targets.is_at_other {
            self.retry(now, why);
        } else {
            self.finish(Err(why));
        }
        ServerEvent::Lost(reason)
    }

    /// Reports that `bytes` more bytes of chunks have arrived.
    pub(crate) fn progress(&mut self, now: Time, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
        if let Some(link) = &mut self.link {
            link.session.live.progress(now, bytes);
        }
    }

    /// Reports that the link is held up, for example by a broker, and that the server is not the cause. This
    /// time does not count as silence of the server.
    pub(crate) fn held(&mut self, now: Time) {
        if let Some(link) = &mut self.link {
            link.session.live.message_received(now);
        }
    }

    /// Leaves for good, as the application asked. The server closes the link when the Bye arrives.
    pub(crate) fn leave(&mut self, reason: &str) {
        if !self.done {
            let reason = plain(reason, MAX_REASON);
            // The server makes the client a member when it reads the Hello. This may be before the Welcome
            // arrives here.
            let greeted = self.link.as_ref().is_some_and(|link| link.greeted);
            let bye = ClientAction::Send(Control::Bye { reason: reason.clone() });
            self.act(if greeted { bye } else { ClientAction::Close });
            self.finish(Ok(reason));
        }
    }

    pub(crate) fn finish(&mut self, outcome: Result<String, Failure>) {
        if !std::mem::replace(&mut self.done, true) {
            self.link = None;
            self.act(ClientAction::Cancel { parcel: None });
            self.act(ClientAction::Finished(outcome.map_err(|why| why.plain())));
        }
    }

    fn heartbeat(&self) -> Time {
        let interval = self.welcome.as_ref().map_or(limits::GREET, |w| Time::from_micros(w.heartbeat));
        interval.max(MIN_HEARTBEAT)
    }

    /// When the driver must call [`Dial::timeout`] at the latest.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let reached = self.is_reaching().then(|| self.reaching.deadline());
        let Some(link) = &self.link else { return reached };
        let ping = link.welcomed.then(|| link.session.ping_at(self.heartbeat()));
        [ping, Some(link.session.live.deadline()), reached].into_iter().flatten().min()
    }

    /// Whether the client is still trying to be let in.
    fn is_reaching(&self) -> bool {
        !self.done && !self.link.as_ref().is_some_and(|link| link.welcomed)
    }

    /// Gives up if the timeout is over, whatever the peer does. Returns whether it gave up.
    fn give_up(&mut self, now: Time) -> bool {
        if !self.is_reaching() {
            return false;
        }
        self.reaching.trying(now);
        let over = self.reaching.is_over(now);
        if over {
            let reason = self.reaching.reason(self.link.is_some());
            self.act(ClientAction::Close);
            self.finish(Err(reason));
        }
        over
    }

    /// Handles the timers that are due at `now`. `Err` says why the link is dead; the caller must then call
    /// [`Dial::closed`].
    pub(crate) fn timeout(&mut self, now: Time) -> Result<(), String> {
        if self.give_up(now) {
            return Ok(());
        }
        let heartbeat = self.heartbeat();
        let Some(link) = &mut self.link else { return Ok(()) };
        if now >= link.session.live.deadline() {
            let timeout = link.session.live.timeout();
            self.act(ClientAction::Close);
            return Err(format!("the server has sent nothing for {:.1} s", timeout.as_secs_f64()));
        }
        if link.welcomed && link.session.take_due_ping(now, heartbeat) {
            let received = self.received;
            self.send(Control::Ping { clock: micros(now), received });
        }
        Ok(())
    }

    /// Sends a message if the client is let in. Else it drops the message: the policy repeats what matters
    /// after the next Welcome.
    pub(crate) fn send(&mut self, message: Control) {
        if self.link.as_ref().is_some_and(|l| l.welcomed) {
            self.act(ClientAction::Send(message));
        }
    }
}
