//! A client's link: the way to the server, the handshake, and coming back after a broken connection.

use std::collections::VecDeque;
use std::sync::Arc;

use thalweg_wire::control::{
    Challenge, Control, Hello, Holding, Nonce, Proof, Purpose, Refusal, Welcome, VERSIONS,
};
use thalweg_wire::text::{plain, MAX_REASON};
use thalweg_wire::{Difference, Layout, LayoutHash, Ranges};

use super::reaching::Reaching;
use super::{Session, LEAST_HEARTBEAT, SAME_MODEL};
use crate::{micros, Time};

const FIRST_RETRY: Time = Time::from_millis(100);
const LAST_RETRY: Time = Time::from_secs(5);
/// Where several servers know the way, each is asked more often.
const LAST_RETRY_OF_SEVERAL: Time = Time::from_secs(1);
/// Until the server says otherwise.
const LIVENESS: Time = Time::from_secs(10);

/// What does not change while a client lives.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Name, unique in the job.
    pub name: String,
    /// Random, once a process.
    pub instance: u64,
    /// Layout of its model; `None` takes the server's.
    pub layout: Option<Arc<Layout>>,
    /// How long to go on trying to be let in by the server, until when the client gives up whatever the peer does.
    pub timeout: Time,
}

/// What a client's driver has to do. `P` is what only its policy asks for.
#[derive(Debug)]
pub enum ClientAction<P> {
    /// Connect after this time, then tell the machine's `connected` or `unreachable`.
    Connect {
        /// How long to wait first.
        after: Time,
        /// The URL; `None`: the one that the client was given.
        to: Option<String>,
    },
    /// Prove the token: sign both nonces and the job, then tell the machine's `proven`.
    Prove {
        /// The server's nonce.
        challenge: Nonce,
        /// The server's job.
        job: u64,
        /// Whether a proof is wanted at all.
        token: bool,
    },
    /// Send a message.
    Send(Control),
    /// Send these ranges of the answer of this number, then tell the machine's `sent`.
    SendParcel {
        /// The number of the parcel that is answered.
        parcel: u32,
        /// What to send.
        wanted: Ranges,
    },
    /// Stop sending this answer; `None`: whatever is being sent.
    Cancel {
        /// The number of the parcel that is answered.
        parcel: Option<u32>,
    },
    /// Close the link, after what was to be sent on it.
    Close,
    /// The server has let us in.
    Joined(Box<Welcome>),
    /// The job is over; `Err` if it ended badly for this client.
    Finished(Result<String, String>),
    /// What the policy wants.
    Policy(P),
}

/// What a message from the server means for the policy.
#[derive(Debug)]
pub(crate) enum ServerEvent {
    /// Nothing.
    Nothing,
    /// The server has let us in.
    Welcomed,
    /// The link is over.
    Lost,
    /// A message of a server that let us in.
    Message(Control),
}

#[derive(Debug)]
struct Dialed {
    session: Session,
    challenge: Option<Challenge>,
    /// The Hello has been said.
    greeted: bool,
    welcomed: bool,
}

/// A client's way to its server.
#[derive(Debug)]
pub(crate) struct Dial<P> {
    config: ClientConfig,
    purpose: Purpose,
    welcome: Option<Welcome>,
    link: Option<Dialed>,
    reaching: Reaching,
    retries: u32,
    jitter: u64,
    received: u64,
    /// Segments retransmitted over all links, `None` if unknown; and how many of them the server was told of.
    resent: Option<u64>,
    counted: u64,
    actions: VecDeque<ClientAction<P>>,
    done: bool,
    way: Way,
}

/// Where to connect: at home, or at others that know where home is now.
#[derive(Debug, Default)]
struct Way {
    /// Where a server has sent us; `None`: the address that the client was given.
    home: Option<String>,
    others: Vec<String>,
    /// Attempts since home was reached, or we were sent elsewhere.
    turn: usize,
    /// The last attempt was not at home.
    is_asking: bool,
}

impl Way {
    /// Home and the others in turn, home first.
    fn next(&mut self) -> Option<String> {
        let turn = self.turn;
        self.turn += 1;
        self.is_asking = turn % 2 == 1 && !self.others.is_empty();
        if self.is_asking {
            self.others.get(turn / 2 % self.others.len()).cloned()
        } else {
            self.home.clone()
        }
    }
}

impl<P> Dial<P> {
    /// Wants to connect at once. `seed` spreads the retries of many clients.
    pub fn new(config: ClientConfig, purpose: Purpose, seed: u64) -> Self {
        let reaching = Reaching::new(config.timeout);
        let actions = VecDeque::from([ClientAction::Connect { after: Time::ZERO, to: None }]);
        Self {
            config,
            purpose,
            welcome: None,
            link: None,
            reaching,
            retries: 0,
            jitter: seed,
            received: 0,
            resent: None,
            counted: 0,
            actions,
            done: false,
            way: Way::default(),
        }
    }

    pub fn poll_action(&mut self) -> Option<ClientAction<P>> {
        self.actions.pop_front()
    }

    pub fn has_action(&self) -> bool {
        !self.actions.is_empty()
    }

    pub fn act(&mut self, action: ClientAction<P>) {
        self.actions.push_back(action);
    }

    pub fn want(&mut self, wanted: P) {
        self.actions.push_back(ClientAction::Policy(wanted));
    }

    pub fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref()
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the link keeps the order of messages and chunks; of a link that there is not, no.
    pub fn is_ordered(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.session.ordered)
    }

    /// The nonce of this connection, for the proof.
    pub fn nonce(&self) -> Option<Nonce> {
        self.link.as_ref().map(|l| l.session.nonce)
    }

    /// The hash of this client's layout, or of the server's.
    pub fn layout_hash(&self) -> LayoutHash {
        self.known_layout().map(Layout::hash).unwrap_or_default()
    }

    fn known_layout(&self) -> Option<&Layout> {
        self.config.layout.as_deref().or(self.welcome.as_ref().map(|w| &w.layout))
    }

    /// The link is up. `nonce` must be fresh random bytes.
    pub fn connected(&mut self, now: Time, nonce: Nonce, ordered: bool) {
        if self.done {
            return;
        }
        let floor = self.welcome.as_ref().map_or(LIVENESS, |w| Time::from_micros(w.liveness));
        let session = Session::new(now, nonce, ordered, floor);
        self.link = Some(Dialed { session, challenge: None, greeted: false, welcomed: false });
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
        let (after, to) = (self.backoff(), self.way.next());
        self.act(ClientAction::Connect { after, to });
    }

    /// Exponential, with up to a quarter of jitter (splitmix64).
    fn backoff(&mut self) -> Time {
        let last = if self.way.others.is_empty() { LAST_RETRY } else { LAST_RETRY_OF_SEVERAL };
        let base = FIRST_RETRY.saturating_mul(1 << self.retries.min(6)).min(last);
        self.retries += 1;
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.jitter;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        base + base / 4 * ((z >> 48) as u32 % 1000) / 1000
    }

    /// The link has ended. Returns whether it is to be made anew.
    pub fn closed(&mut self, now: Time, reason: &str) -> bool {
        if self.link.take().is_none() || self.done {
            return false;
        }
        self.retry(now, reason);
        true
    }

    /// Comes back with what it has.
    fn retry(&mut self, now: Time, reason: &str) {
        self.act(ClientAction::Cancel { parcel: None });
        self.unreachable(now, reason, true);
    }

    /// A message has come.
    pub fn control(&mut self, now: Time, message: Control) -> ServerEvent {
        let Some(link) = &mut self.link else { return ServerEvent::Nothing };
        link.session.live.heard(now);
        match message {
            Control::Challenge(challenge) if link.challenge.is_none() => self.challenged(challenge),
            Control::Welcome(welcome) if link.greeted && !link.welcomed => {
                return self.welcomed(now, welcome);
            }
            Control::Refused { code, reason } => return self.refused(now, code, &reason),
            Control::Layout(theirs) if link.greeted && !link.welcomed => return self.differs(now, &theirs),
            Control::Bye { reason } => {
                self.act(ClientAction::Close);
                self.finish(Ok(reason));
            }
            Control::Ping { clock, .. } if link.welcomed => self.send(Control::Pong { clock }),
            Control::Elsewhere { url } if link.greeted => return self.elsewhere(now, url),
            Control::Others { urls } if link.welcomed => self.way.others = urls,
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

    /// How many segments were retransmitted so far over all links; to be told before a message that settles a parcel.
    pub fn observe(&mut self, retransmissions: Option<u64>) {
        self.resent = retransmissions;
    }

    /// Tells the server what was retransmitted since it last heard.
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
            let reason = format!(
                "the server speaks session versions {low}..={high}, we {VERSIONS:?}; use one release"
            );
            return self.finish(Err(reason));
        }
        let proving =
            ClientAction::Prove { challenge: challenge.nonce, job: challenge.job(), token: challenge.token };
        link.challenge = Some(challenge);
        self.act(proving);
    }

    /// The proof is made, or none was wanted. `holding`: what is here after a broken connection.
    pub fn proven(&mut self, now: Time, proof: Option<Proof>, holding: Holding) {
        let layout = self.known_layout().map(Layout::hash);
        let Some(link) = &mut self.link else { return };
        let Some(challenge) = link.challenge.as_ref().filter(|_| !link.greeted) else { return };
        link.greeted = true;
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
            link.session.live = super::Liveness::new(now, floor);
            link.welcomed = true;
        }
        self.reaching.done();
        (self.retries, self.way.turn) = (0, 0);
        let first = self.welcome.is_none();
        self.welcome = Some(welcome.clone());
        if first {
            self.act(ClientAction::Joined(Box::new(welcome)));
        }
        ServerEvent::Welcomed
    }

    /// The server says that this client's home is at another one.
    fn elsewhere(&mut self, now: Time, url: String) -> ServerEvent {
        self.act(ClientAction::Close);
        self.link = None;
        let reason = format!("its home is at {url} now");
        if self.way.home.as_ref() != Some(&url) {
            self.retries = 0;
        }
        (self.way.home, self.way.turn) = (Some(url), 0);
        self.retry(now, &reason);
        ServerEvent::Lost
    }

    /// The server has another layout than this client: says which tensor differs, and gives up. The server closes the link
    /// when it hears so.
    fn differs(&mut self, now: Time, theirs: &Layout) -> ServerEvent {
        let Some(difference) = self.known_layout().and_then(|ours| ours.difference(theirs)) else {
            return self.refused(
                now,
                Refusal::Layout,
                "the server refuses this model, although the layout that it sent is the same; use one release at both ends",
            );
        };
        let reason = self.mismatch_reason(&difference);
        // Only home can send a client away for good.
        if self.way.is_asking {
            return self.refused(now, Refusal::Layout, &reason);
        }
        let (tensor, spec) = (difference.name, difference.ours);
        self.act(ClientAction::Send(Control::Differs { tensor, spec }));
        self.finish(Err(reason));
        ServerEvent::Lost
    }

    /// Why this client does not fit whom it dials, whose layout differs in this way.
    pub fn mismatch_reason(&self, difference: &Difference) -> String {
        let there = if self.purpose == Purpose::Graph { "neighbour" } else { "server" };
        let described = difference.describe("here", &format!("at the {there}"));
        format!("this model differs from the {there}'s: {described}; {SAME_MODEL}")
    }

    fn refused(&mut self, now: Time, code: Refusal, reason: &str) -> ServerEvent {
        self.act(ClientAction::Close);
        self.link = None;
        // Only home can send a client away for good.
        if code.may_retry() || self.way.is_asking {
            self.retry(now, reason);
        } else {
            self.finish(Err(reason.into()));
        }
        ServerEvent::Lost
    }

    /// `bytes` more bytes of chunks have come.
    pub fn progress(&mut self, now: Time, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
        if let Some(link) = &mut self.link {
            link.session.live.progress(now, bytes);
        }
    }

    /// Nothing gets through at the moment, for no fault of the server: time does not count against it.
    pub fn held(&mut self, now: Time) {
        if let Some(link) = &mut self.link {
            link.session.live.heard(now);
        }
    }

    /// The application leaves for good. The server closes the link when it hears so.
    pub fn leave(&mut self, reason: &str) {
        if !self.done {
            let reason = plain(reason, MAX_REASON);
            // Whoever has said Hello is a member once the server reads it, which may be before the Welcome comes here.
            let known = self.link.as_ref().is_some_and(|link| link.greeted);
            let bye = ClientAction::Send(Control::Bye { reason: reason.clone() });
            self.act(if known { bye } else { ClientAction::Close });
            self.finish(Ok(reason));
        }
    }

    pub fn finish(&mut self, outcome: Result<String, String>) {
        if !std::mem::replace(&mut self.done, true) {
            self.link = None;
            self.act(ClientAction::Cancel { parcel: None });
            // What a transport says may be a peer's or a broker's words.
            let outcome = outcome.map_err(|reason| plain(&reason, MAX_REASON));
            self.act(ClientAction::Finished(outcome));
        }
    }

    fn heartbeat(&self) -> Time {
        let interval = self.welcome.as_ref().map_or(LIVENESS / 4, |w| Time::from_micros(w.heartbeat));
        interval.max(LEAST_HEARTBEAT)
    }

    /// When [`Dial::timeout`] wants to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let reached = self.is_reaching().then(|| self.reaching.deadline());
        let Some(link) = &self.link else { return reached };
        let ping = link.welcomed.then(|| link.session.ping_at(self.heartbeat()));
        [ping, Some(link.session.live.deadline()), reached].into_iter().flatten().min()
    }

    /// Whether no server has let it in on a link that it has now.
    fn is_reaching(&self) -> bool {
        !self.done && !self.link.as_ref().is_some_and(|link| link.welcomed)
    }

    /// Gives up once the timeout is over, whatever the peer does meanwhile. Returns whether it did.
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

    /// Time has passed. `Err` says why the link is dead; [`Dial::closed`] is to be told.
    pub fn timeout(&mut self, now: Time) -> Result<(), String> {
        if self.give_up(now) {
            return Ok(());
        }
        let heartbeat = self.heartbeat();
        let Some(link) = &mut self.link else { return Ok(()) };
        if now >= link.session.live.deadline() {
            let timeout = link.session.live.timeout();
            self.act(ClientAction::Close);
            return Err(format!("the server says nothing for {:.1} s", timeout.as_secs_f64()));
        }
        if link.welcomed && link.session.take_due_ping(now, heartbeat) {
            let received = self.received;
            self.send(Control::Ping { clock: micros(now), received });
        }
        Ok(())
    }

    /// Says something, if we are let in: what matters is said anew after the next Welcome.
    pub fn send(&mut self, message: Control) {
        if self.link.as_ref().is_some_and(|l| l.welcomed) {
            self.act(ClientAction::Send(message));
        }
    }
}

/// The methods of a client's machine that are its dial's. The machine has a field `dial`, and methods `welcomed` (a link
/// is up again, or for the first time), `link_lost` and `told`, which takes the server's other messages.
macro_rules! dial_methods {
    ($wanted:ty) => {
        /// The next thing to do.
        pub fn poll_action(&mut self) -> Option<$crate::ClientAction<$wanted>> {
            self.dial.poll_action()
        }

        /// What the server said of the job, once it has let us in.
        pub fn welcome(&self) -> Option<&thalweg_wire::control::Welcome> {
            self.dial.welcome()
        }

        /// Whether nothing more will happen.
        pub fn is_done(&self) -> bool {
            self.dial.is_done()
        }

        /// The nonce of this connection, for the proof.
        pub fn nonce(&self) -> Option<thalweg_wire::control::Nonce> {
            self.dial.nonce()
        }

        /// The link is up. `nonce` must be fresh random bytes.
        pub fn connected(&mut self, now: $crate::Time, nonce: thalweg_wire::control::Nonce, ordered: bool) {
            self.dial.connected(now, nonce, ordered);
        }

        /// The server could not be reached.
        pub fn unreachable(&mut self, now: $crate::Time, reason: &str, may_retry: bool) {
            self.dial.unreachable(now, reason, may_retry);
        }

        /// How many segments were retransmitted so far over all links; to be told before a message that settles a parcel.
        pub fn observe(&mut self, retransmissions: Option<u64>) {
            self.dial.observe(retransmissions);
        }

        /// The link has ended.
        pub fn closed(&mut self, now: $crate::Time, reason: &str) {
            if self.dial.closed(now, reason) {
                self.link_lost();
            }
        }

        /// A message has come.
        pub fn control(&mut self, now: $crate::Time, message: thalweg_wire::control::Control) {
            match self.dial.control(now, message) {
                $crate::session::ServerEvent::Nothing => {}
                $crate::session::ServerEvent::Lost => self.link_lost(),
                $crate::session::ServerEvent::Welcomed => self.welcomed(),
                $crate::session::ServerEvent::Message(message) => self.told(now, message),
            }
        }

        /// `bytes` more bytes of chunks have come.
        pub fn progress(&mut self, now: $crate::Time, bytes: u64) {
            self.dial.progress(now, bytes);
        }

        /// Nothing gets through at the moment, for no fault of the server: time does not count against it.
        pub fn held(&mut self, now: $crate::Time) {
            self.dial.held(now);
        }

        /// The application leaves for good.
        pub fn leave(&mut self, reason: &str) {
            self.dial.leave(reason);
        }
    };
}
pub(crate) use dial_methods;
