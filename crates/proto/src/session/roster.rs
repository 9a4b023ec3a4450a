//! A server's links and members: which peers are let in and under which number, which are connected, and
//! which make no progress.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use thalweg_wire::control::{Challenge, Control, Hello, Nonce, Purpose, Refusal, Welcome, VERSIONS};
use thalweg_wire::text::{check_name, plain, MAX_NAME, MAX_REASON};
use thalweg_wire::{limits, Layout, LayoutHash, Ranges, TensorSpec};

use super::{Liveness, Session, MIN_HEARTBEAT, SAME_MODEL};
use crate::transfer::{both, Carried};
use crate::{micros, Time};

/// The number of a connection, given by the caller and never used twice.
pub type LinkId = u64;

/// How long a peer may take from connecting until its Hello. Other messages do not prolong this time.
const HELLO_TIMEOUT: Time = limits::GREET;
/// The server remembers at most this many clients with another layout.
const MAX_MISMATCHES: usize = 64;
/// The server logs at most this many names and reasons of other peers that it refuses.
const MAX_REFUSALS: usize = 64;

/// Decides which peers are let in.
pub trait Admission: Send {
    /// Whether a client must prove that it has a token.
    fn wants_token(&self) -> bool;
    /// Checks a client's proof and certificate against the nonce it was sent.
    ///
    /// # Errors
    /// Cause and hint, for the client's user.
    fn admit(&self, link: LinkId, challenge: &Nonce, hello: &Hello) -> Result<(), String>;
}

/// Counters of a link.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes of payload copied in user space.
    pub copied: u64,
    /// Sealed records that were lost or could not be opened; `None` if updates are not sealed.
    pub records_lost: Option<u64>,
    /// Segments that the server retransmitted; `None` if the transport cannot tell.
    pub retransmissions: Option<u64>,
}

/// Segments that a sender's transport retransmitted; `None` if it cannot tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resent {
    /// Segments since the sender first connected.
    pub total: Option<u64>,
    /// Segments that are not yet counted in a transfer's report.
    pending: Option<u64>,
}

impl Resent {
    fn add(&mut self, more: Option<u64>) {
        (self.total, self.pending) = (both(self.total, more), both(self.pending, more));
    }
}

/// An action for a server's driver. `P` is the type of the actions that only the policy asks for.
#[derive(Debug)]
pub enum Action<P> {
    /// Send a message.
    Send {
        /// The link to send it on.
        link: LinkId,
        /// The message.
        message: Control,
    },
    /// Send `wanted` of a parcel to all `links` in one call, then call the machine's `sent` for each link.
    SendParcel {
        /// The links to send it on.
        links: Vec<LinkId>,
        /// The parcel's number.
        parcel: u32,
        /// Whether to send by how much the parcel differs from the one before.
        difference: bool,
        /// The ranges to send.
        wanted: Ranges,
    },
    /// Stop sending this parcel on this link, and on all links of the same group send.
    Cancel {
        /// The link.
        link: LinkId,
        /// The parcel's number; `None`: whatever is being sent.
        parcel: Option<u32>,
    },
    /// Close a link, once all messages to it are sent.
    Close {
        /// The link.
        link: LinkId,
    },
    /// A client has joined or come back.
    Joined {
        /// The client's name.
        client: String,
    },
    /// Write a line about a client to the server's log.
    Note {
        /// The client's name.
        client: String,
        /// The line.
        what: String,
    },
    /// A peer was not let in.
    TurnedAway {
        /// The name that it gave itself. Unless its layout is the reason, it may not have proved it.
        client: String,
        /// Why. If its model's layout differs from the server's: which tensor differs, and how.
        reason: String,
    },
    /// A client's link has ended.
    Left {
        /// The client's name.
        client: String,
        /// Why the link ended.
        reason: String,
        /// Whether the client itself said that it leaves. The reason then begins with `left`.
        farewell: bool,
    },
    /// An action of the policy.
    Policy(P),
}

/// The settings of a job's sessions, which never change.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The job's number, which every chunk carries.
    pub job: u64,
    /// The purpose for which members connect: rounds, tasks or another one.
    pub purpose: Purpose,
    /// A link without progress for this long, or longer on a slow link, counts as broken.
    pub liveness: Time,
    /// Maximum number of members that the job may ever have.
    pub max_members: u32,
}

/// A client that was let in at least once, or whose number was reserved. `M` is the policy's state of it.
pub(crate) struct Member<M> {
    pub name: String,
    /// The random number of the client's process; 0 if the number was only reserved.
    pub instance: u64,
    pub link: Option<LinkId>,
    /// The client's process has ended for good.
    pub departed: bool,
    /// Why the client's last link ended.
    pub parting: Option<String>,
    /// Whether the client has sent a Bye since it was last let in.
    farewell: bool,
    /// Segments that the server retransmitted to the client.
    pub down: Resent,
    /// Segments that the client retransmitted.
    pub up: Resent,
    /// Whether the server still waits for the client's Counted message about a settled parcel.
    uncounted: bool,
    pub own: M,
}

impl<M> Member<M> {
    /// The client's name and why it left, if it has left for good.
    pub fn farewell(&self) -> Option<String> {
        self.parting.as_ref().filter(|_| self.departed).map(|reason| format!("{} {reason}", self.name))
    }
}

/// A server's link. `L` is the policy's state of it.
pub struct Served<L> {
    pub(crate) session: Session,
    opened: Time,
    /// The member at the other end, once it is let in.
    pub(crate) member: Option<u32>,
    /// Watches the progress of the client's update, while the client has a grant.
    pub(crate) upload: Option<Liveness>,
    /// Watches the progress of the model towards the client, as the client's pings report it.
    pub(crate) download: Option<Liveness>,
    /// Bytes that the client has received, as its last ping reported.
    reported: Option<u64>,
    /// The server's clock minus the client's, in microseconds.
    pub(crate) offset: i64,
    /// The counters as they were last observed.
    pub(crate) traffic: Traffic,
    /// The counters when the current transfer began.
    base: Traffic,
    /// The counters at the peer's last Ping.
    at_ping: Traffic,
    /// Retransmitted segments of this link that are counted already.
    resent: u64,
    /// When the policy wants to be called for this link.
    wake: Option<Time>,
    /// When [`Roster::look`] checks this link next; it is in [`Roster::timers`] under this time.
    timer: Time,
    /// Set while the server waits for the client's answer about which tensor differs.
    mismatch: Option<LayoutMismatch>,
    /// The name that the peer gave itself, proved or not.
    name: Option<String>,
    pub(crate) own: L,
}

/// A client whose layout differs from the server's.
struct LayoutMismatch {
    client: String,
    reason: String,
    ours: Arc<Layout>,
}

impl<L> Served<L> {
    /// Notes that a transfer begins: bytes from now on belong to it.
    pub(crate) fn count_anew(&mut self) {
        self.base = self.traffic;
    }

    /// Notes that a transfer began earlier, so that bytes of it may already have been counted. The bytes
    /// since the peer's last Ping belong to it, but none of the transfer before.
    pub(crate) fn count_since_ping(&mut self) {
        if self.at_ping.received > self.base.received {
            self.base = self.at_ping;
        }
    }

    fn since(&mut self) -> (Traffic, Traffic) {
        (self.traffic, std::mem::replace(&mut self.base, self.traffic))
    }

    /// The counts of received bytes since the last call, or since the transfer began.
    pub(crate) fn carried_up(&mut self) -> Carried {
        let (now, base) = self.since();
        let records = now.records_lost.map(|lost| lost.saturating_sub(base.records_lost.unwrap_or(0)));
        Carried {
            wire: now.received.saturating_sub(base.received),
            copied: now.copied.saturating_sub(base.copied),
            records_lost: records,
        }
    }

    /// The counts of sent bytes since the last call, or since the transfer began. Only the client knows which
    /// sealed records it could not open.
    pub(crate) fn carried_down(&mut self) -> Carried {
        let (now, base) = self.since();
        let (wire, copied) = (now.sent.saturating_sub(base.sent), now.copied.saturating_sub(base.copied));
        Carried { wire, copied, records_lost: None }
    }

    /// Segments retransmitted since the last call; `None` if unknown.
    fn retransmitted(&mut self) -> Option<u64> {
        let now = self.traffic.retransmissions?;
        Some(now.saturating_sub(std::mem::replace(&mut self.resent, now)))
    }

    fn due(&self, heartbeat: Time) -> Time {
        let next = match self.member {
            Some(_) => self.session.ping_at(heartbeat),
            None => self.opened + HELLO_TIMEOUT,
        };
        let transfers = self.upload.iter().chain(&self.download).map(Liveness::deadline);
        transfers.chain([next]).chain(self.wake).fold(self.session.live.deadline(), Time::min)
    }
}

/// A link that has ended. `member` is its member, if this was the member's current link.
pub struct Dropped<L> {
    pub(crate) link: LinkId,
    pub(crate) member: Option<u32>,
    pub(crate) reason: String,
    /// The client that was not let in because of its layout, and how the layout differs.
    pub(crate) mismatch: Option<(String, String)>,
    pub(crate) served: Served<L>,
}

/// The consequence of a message for the policy.
pub(crate) enum MemberEvent {
    /// The policy has nothing to do.
    Nothing,
    /// A peer has sent its Hello.
    Hello(Hello),
    /// The message makes no sense here, for this reason. The policy must end the link.
    Senseless(&'static str),
    /// The peer's layout differs from the server's in this way. The policy must end the link.
    LayoutMismatch(String),
    /// A message for the policy, from this member.
    Message(u32, Control),
}

/// The links and members of a server, and its pending actions.
pub struct Roster<M, L, P> {
    config: SessionConfig,
    admission: Box<dyn Admission>,
    members: BTreeMap<u32, Member<M>>,
    names: HashMap<String, u32>,
    links: BTreeMap<LinkId, Served<L>>,
    /// The time of each link's next check. So an event need not check all links.
    timers: BTreeSet<(Time, LinkId)>,
    /// How many members are connected.
    connected: usize,
    /// Clients that were not let in because of their layout, each with how it differs.
    mismatches: BTreeMap<String, String>,
    /// Names and reasons of refused peers that the log has.
    refusals: BTreeSet<(String, String)>,
    /// Links of peers whose refusal the log has, until their reader calls [`Roster::take_reported`].
    reported: BTreeSet<LinkId>,
    actions: VecDeque<Action<P>>,
    /// Why the job is over; `None` while it runs.
    finished: Option<String>,
}

impl<M: Default, L: Default, P> Roster<M, L, P> {
    pub(crate) fn new(config: SessionConfig, admission: Box<dyn Admission>) -> Self {
        Self {
            config,
            admission,
            members: BTreeMap::new(),
            names: HashMap::new(),
            links: BTreeMap::new(),
            timers: BTreeSet::new(),
            connected: 0,
            mismatches: BTreeMap::new(),
            refusals: BTreeSet::new(),
            reported: BTreeSet::new(),
            actions: VecDeque::new(),
            finished: None,
        }
    }

    pub(crate) fn heartbeat(&self) -> Time {
        (self.config.liveness / 4).max(MIN_HEARTBEAT)
    }

    pub(crate) fn members(&self) -> &BTreeMap<u32, Member<M>> {
        &self.members
    }

    pub(crate) fn member(&self, number: u32) -> Option<&Member<M>> {
        self.members.get(&number)
    }

    pub(crate) fn member_mut(&mut self, number: u32) -> Option<&mut Member<M>> {
        self.members.get_mut(&number)
    }

    pub(crate) fn named(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// A member's link, if it is connected.
    pub(crate) fn link_of(&self, member: u32) -> Option<LinkId> {
        self.members.get(&member)?.link
    }

    pub(crate) fn link(&self, link: LinkId) -> Option<&Served<L>> {
        self.links.get(&link)
    }

    /// Changes the state of a link, and updates the time of its next check.
    pub(crate) fn on_link<T>(&mut self, link: LinkId, change: impl FnOnce(&mut Served<L>) -> T) -> Option<T> {
        let heartbeat = self.heartbeat();
        let served = self.links.get_mut(&link)?;
        let result = change(served);
        let due = served.due(heartbeat);
        // Move the timer only to an earlier time. A timer that is too early is corrected when it fires.
        if due < served.timer {
            self.timers.remove(&(served.timer, link));
            served.timer = due;
            self.timers.insert((due, link));
        }
        Some(result)
    }

    /// The member at the other end of a link, once it was let in.
    pub(crate) fn member_at(&self, link: LinkId) -> Option<u32> {
        self.links.get(&link)?.member
    }

    pub(crate) fn links(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// Names of the members that are connected.
    pub(crate) fn connected_names(&self) -> impl Iterator<Item = &str> {
        self.members.values().filter(|m| m.link.is_some()).map(|m| m.name.as_str())
    }

    /// How many members are connected.
    pub(crate) fn connected(&self) -> usize {
        self.connected
    }

    /// Members that were connected before and are not now, each with why its link ended and whether it left
    /// for good. Clients that were not let in because of their layout are among them, since they have given
    /// up.
    pub(crate) fn departed(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        let goes_on = self.finished.is_none();
        let away = self.members.values().filter(move |m| m.link.is_none() && goes_on);
        let away = away.filter(|m| !self.mismatches.contains_key(&m.name));
        let away =
            away.filter_map(|m| m.parting.as_deref().map(|reason| (m.name.as_str(), reason, m.departed)));
        away.chain(self.mismatches().filter(move |_| goes_on).map(|(name, reason)| (name, reason, true)))
    }

    /// Clients that were not let in because of their layout, each with how it differs.
    pub(crate) fn mismatches(&self) -> impl Iterator<Item = (&str, &str)> {
        self.mismatches.iter().map(|(name, reason)| (name.as_str(), reason.as_str()))
    }

    pub(crate) fn act(&mut self, action: Action<P>) {
        self.actions.push_back(action);
    }

    pub(crate) fn want(&mut self, wanted: P) {
        self.actions.push_back(Action::Policy(wanted));
    }

    pub(crate) fn send(&mut self, link: LinkId, message: Control) {
        // A node of a graph sends no Counted.
        let counts = message.settles().is_some() && self.config.purpose != Purpose::Graph;
        if let Some(number) = self.member_at(link).filter(|_| counts) {
            self.members.entry(number).and_modify(|member| member.uncounted = true);
        }
        self.actions.push_back(Action::Send { link, message });
    }

    pub(crate) fn close(&mut self, link: LinkId) {
        self.actions.push_back(Action::Close { link });
    }

    pub(crate) fn has_action(&self) -> bool {
        !self.actions.is_empty()
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action<P>> {
        self.actions.pop_front()
    }

    /// Adds a link that is up, and sends the Challenge. `nonce` must be fresh random bytes; `ordered`: the
    /// link keeps the order of messages and chunks.
    pub(crate) fn open(&mut self, now: Time, link: LinkId, nonce: Nonce, ordered: bool) {
        let token = self.admission.wants_token();
        let challenge = Challenge::new(nonce, token, self.config.job, micros(now));
        let session = Session::new(now, challenge.nonce, ordered, self.config.liveness.max(HELLO_TIMEOUT));
        let mut served = Served {
            session,
            opened: now,
            member: None,
            upload: None,
            download: None,
            reported: None,
            offset: 0,
            traffic: Traffic::default(),
            base: Traffic::default(),
            at_ping: Traffic::default(),
            resent: 0,
            wake: None,
            timer: Time::MAX,
            mismatch: None,
            name: None,
            own: L::default(),
        };
        served.timer = served.due(self.heartbeat());
        self.timers.insert((served.timer, link));
        self.links.insert(link, served);
        self.send(link, Control::Challenge(challenge));
    }

    pub(crate) fn observe(&mut self, link: LinkId, traffic: Traffic) {
        if let Some(served) = self.links.get_mut(&link) {
            served.traffic = traffic;
        }
    }

    /// Whether a client with this Hello may be let in. `layout` is the hash of the job's layout, if the job
    /// has one.
    pub(crate) fn admissible(
        &self,
        link: LinkId,
        hello: &Hello,
        layout: Option<LayoutHash>,
    ) -> Result<(), (Refusal, String)> {
        if hello.version < VERSIONS.0 || hello.version > VERSIONS.1 {
            let (low, high) = VERSIONS;
            let reason =
                format!("session version {} is not within {low}..={high}; use one release", hello.version);
            return Err((Refusal::Version, reason));
        }
        check_name(&hello.name).map_err(|why| (Refusal::Protocol, why))?;
        if hello.purpose != self.config.purpose {
            return Err((Refusal::Protocol, other_purpose(self.config.purpose).into()));
        }
        let nonce = self.links.get(&link).map_or([0; 32], |l| l.session.nonce);
        self.admission.admit(link, &nonce, hello).map_err(|why| (Refusal::Authentication, why))?;
        if let Some(reason) = &self.finished {
            return Err((Refusal::Job, format!("the job is over: {reason}")));
        }
        if let Some((ours, theirs)) = layout.zip(hello.layout).filter(|(ours, theirs)| ours != theirs) {
            let reason = format!("its model has layout {theirs}, and the one here {ours}; {SAME_MODEL}");
            return Err((Refusal::Layout, reason));
        }
        let namesake = self.named(&hello.name).and_then(|number| self.members.get(&number));
        if namesake.is_some_and(|m| m.link.is_some() && m.instance != hello.instance) {
            let reason = format!("a client named {:?} is connected; choose another name", hello.name);
            return Err((Refusal::Name, reason));
        }
        if namesake.is_none() && self.members.len() >= self.config.max_members as usize {
            return Err((Refusal::Job, format!("the job has its {} clients", self.config.max_members)));
        }
        Ok(())
    }

    /// Asks a client whose layout differs which tensor differs. `reason` is the reason for the refusal if it
    /// does not answer.
    pub(crate) fn compare(&mut self, link: LinkId, hello: &Hello, ours: Arc<Layout>, reason: String) {
        let message = Control::Layout((*ours).clone());
        let mismatch = LayoutMismatch { client: hello.name.clone(), reason, ours };
        self.on_link(link, |served| served.mismatch = Some(mismatch));
        self.send(link, message);
    }

    /// Handles the client's answer. Looks up the server's own tensor of that name, and returns the reason for
    /// the refusal.
    fn differs(&mut self, link: LinkId, tensor: &str, spec: Option<TensorSpec>) -> Option<String> {
        let mismatch = self.links.get_mut(&link)?.mismatch.as_mut()?;
        let difference = mismatch.ours.difference_of(tensor, spec);
        if difference.ours.is_some() || difference.theirs.is_some() {
            let there =
                if self.config.purpose == Purpose::Graph { "at the neighbour" } else { "at the client" };
            let described = difference.describe("here", there);
            mismatch.reason = plain(&format!("its model differs: {described}; {SAME_MODEL}"), MAX_REASON);
        }
        Some(mismatch.reason.clone())
    }

    /// Records why a client was not let in, and reports it once, however often the client tries again.
    fn record_mismatch(&mut self, client: &str, reason: &str) {
        let reported = self.mismatches.get(client).is_some_and(|before| before == reason);
        let connected = self.named(client).is_some_and(|number| self.link_of(number).is_some());
        let room = self.mismatches.len() < MAX_MISMATCHES || self.mismatches.contains_key(client);
        // If a client with this name is connected, it is not the one that was turned away.
        if room && !connected {
            self.mismatches.insert(client.into(), reason.into());
        }
        // A node of a graph reports this itself.
        if !reported && self.config.purpose != Purpose::Graph {
            self.act(Action::TurnedAway { client: client.into(), reason: reason.into() });
        }
    }

    /// Records why a peer is refused that has given a proper name, and reports each name and reason once. A peer that
    /// may try again at once is not reported.
    pub(crate) fn record_refusal(&mut self, link: LinkId, code: Refusal, reason: &str) {
        let served =
            self.links.get(&link).filter(|served| served.member.is_none() && served.mismatch.is_none());
        let name = served.and_then(|served| served.name.as_deref()).filter(|name| check_name(name).is_ok());
        let Some(name) = name else { return };
        if code.may_retry() || self.config.purpose == Purpose::Graph {
            return; // A node of a graph reports this itself.
        }
        let (client, reason) = (plain(name, MAX_NAME), plain(reason, MAX_REASON));
        if self.refusals.contains(&(client.clone(), reason.clone())) {
            self.reported.insert(link);
        } else if self.refusals.len() < MAX_REFUSALS {
            self.reported.insert(link);
            self.refusals.insert((client.clone(), reason.clone()));
            self.act(Action::TurnedAway { client, reason });
        }
    }

    /// Lets a client in. The caller has already dropped its old link. Returns the client's number, and
    /// whether the same process was connected before.
    pub(crate) fn enrol(&mut self, now: Time, link: LinkId, hello: &Hello) -> (u32, bool) {
        let existing = self.named(&hello.name);
        let number = existing.unwrap_or_else(|| self.insert(&hello.name, hello.instance));
        let mut same = false;
        if let Some(member) = self.members.get_mut(&number) {
            same = existing.is_some() && member.instance == hello.instance;
            (member.instance, member.link) = (hello.instance, Some(link));
            (member.departed, member.parting, member.farewell) = (false, None, false);
        }
        self.mismatches.remove(&hello.name);
        self.connected += 1;
        let floor = self.config.liveness;
        self.on_link(link, |served| {
            // The challenge and the Hello took a round trip, and the time that the client needed for its proof.
            served.session.met(now, now.saturating_sub(served.opened), floor);
            let (sent, received) = (micros(served.opened), micros(now));
            served.offset = (sent.saturating_add(received) / 2).wrapping_sub(hello.clock) as i64;
            served.member = Some(number);
        });
        (number, same)
    }

    /// The Welcome of a job whose members share this layout, without stand-ins and losses. The sender's number
    /// is still missing.
    pub(crate) fn welcome(&self, layout: Layout, chunk: u32) -> Welcome {
        Welcome {
            sender: 0,
            job: self.config.job,
            layout,
            chunk,
            heartbeat: micros(self.heartbeat()),
            liveness: micros(self.config.liveness),
            stand_in: None,
            spread: None,
            allowances: Vec::new(),
        }
    }

    /// The number that belongs to a name; a new one if nobody has used the name.
    ///
    /// # Errors
    /// If the name is not valid, or the job has its most members.
    pub(crate) fn reserve(&mut self, name: &str) -> Result<u32, String> {
        if let Some(number) = self.named(name) {
            return Ok(number);
        }
        check_name(name)?;
        if self.members.len() >= self.config.max_members as usize {
            return Err(format!("the job has its {} clients", self.config.max_members));
        }
        Ok(self.insert(name, 0))
    }

    fn insert(&mut self, name: &str, instance: u64) -> u32 {
        let number = self.members.last_key_value().map_or(1, |(last, _)| last + 1);
        let (link, departed, parting, own) = (None, false, None, M::default());
        let (down, up, uncounted) = (Resent::default(), Resent::default(), false);
        let member = Member {
            name: name.into(),
            instance,
            link,
            departed,
            parting,
            farewell: false,
            down,
            up,
            uncounted,
            own,
        };
        self.members.insert(number, member);
        self.names.insert(name.into(), number);
        number
    }

    /// Handles a message from a link. Returns what it means for the policy.
    pub(crate) fn control(&mut self, now: Time, link: LinkId, message: Control) -> MemberEvent {
        if !self.links.contains_key(&link) {
            return MemberEvent::Nothing;
        }
        self.on_link(link, |served| served.session.live.message_received(now));
        let comparing = self.links.get(&link).is_some_and(|served| served.mismatch.is_some());
        match (self.member_at(link), message) {
            (None, Control::Differs { tensor, spec }) if comparing => {
                return self
                    .differs(link, &tensor, spec)
                    .map_or(MemberEvent::Nothing, MemberEvent::LayoutMismatch);
            }
            (None, _) if comparing => {
                return MemberEvent::Senseless("the server asked only how the layout differs")
            }
            (None, Control::Hello(hello)) => {
                self.on_link(link, |served| served.name = Some(hello.name.clone()));
                return MemberEvent::Hello(hello);
            }
            (None, _) => return MemberEvent::Senseless("the first message must be a Hello"),
            (Some(_), Control::Hello(_)) => {
                return MemberEvent::Senseless("a second Hello on one connection")
            }
            (Some(_), Control::Ping { clock, received }) => self.ping(now, link, clock, received),
            (Some(_), Control::Pong { .. }) => {}
            (Some(sender), message) => {
                self.note(link, sender, &message);
                return MemberEvent::Message(sender, message);
            }
        }
        MemberEvent::Nothing
    }

    /// Notes a Bye. Counts retransmissions once a receiver has confirmed a parcel: before that, some of its
    /// bytes may still be in the kernel's buffer.
    fn note(&mut self, link: LinkId, sender: u32, message: &Control) {
        match message {
            Control::Received { .. } => self.count_down(link),
            Control::Bye { .. } => {
                self.members.entry(sender).and_modify(|member| member.farewell = true);
            }
            Control::Counted { retransmissions, .. } => {
                if let Some(member) = self.members.get_mut(&sender) {
                    member.up.add(*retransmissions);
                    member.uncounted = false;
                }
            }
            _ => {}
        }
    }

    fn count_down(&mut self, link: LinkId) {
        let Some(served) = self.links.get_mut(&link) else { return };
        let again = served.retransmitted();
        if let Some(member) = served.member.and_then(|number| self.members.get_mut(&number)) {
            member.down.add(again);
        }
    }

    /// Takes the count of segments that the server retransmitted to a member and that no transfer counts yet.
    pub(crate) fn resent_down(&mut self, number: u32) -> Option<u64> {
        self.members.get_mut(&number)?.down.pending.take()
    }

    /// Takes the count of segments that a member retransmitted and that no transfer counts yet.
    pub(crate) fn resent_up(&mut self, number: u32) -> Option<u64> {
        self.members.get_mut(&number)?.up.pending.take()
    }

    /// How many connected members still have to send their Counted for a settled parcel.
    pub(crate) fn uncounted(&self) -> usize {
        self.members.values().filter(|member| member.uncounted && member.link.is_some()).count()
    }

    /// Segments retransmitted so far to each member, and by each member.
    pub(crate) fn resent(&mut self) -> Vec<(String, Option<u64>, Option<u64>)> {
        self.links().into_iter().for_each(|link| self.count_down(link));
        self.members.values().map(|m| (m.name.clone(), m.down.total, m.up.total)).collect()
    }

    /// Handles a client's ping. `received` is the number of bytes that the client has received over all its
    /// links.
    fn ping(&mut self, now: Time, link: LinkId, clock: u64, received: u64) {
        self.on_link(link, |served| {
            // The first ping of a link only sets the starting point, because the client counts over all its
            // links.
            let more = received.saturating_sub(served.reported.unwrap_or(received));
            served.reported = Some(received);
            served.at_ping = served.traffic;
            if let Some(live) = &mut served.download {
                live.progress(now, more);
            }
        });
        self.send(link, Control::Pong { clock });
    }

    /// Reports that `bytes` more bytes of chunks have arrived on this link.
    pub(crate) fn progress(&mut self, now: Time, link: LinkId, bytes: u64) {
        self.on_link(link, |served| {
            served.session.live.progress(now, bytes);
            if let Some(upload) = &mut served.upload {
                upload.progress(now, bytes);
            }
        });
    }

    /// Reports that this link is held up, for example by a broker, and that its peer is not the cause. This
    /// time does not count as silence of the peer.
    pub(crate) fn held(&mut self, now: Time, link: LinkId) {
        self.on_link(link, |served| {
            let transfers = served.upload.iter_mut().chain(&mut served.download);
            transfers.chain([&mut served.session.live]).for_each(|live| live.message_received(now));
        });
    }

    /// Sets when the policy wants to be called for a link.
    pub(crate) fn wake(&mut self, link: LinkId, at: Option<Time>) {
        self.on_link(link, |served| served.wake = at);
    }

    pub(crate) fn wake_at(&self, link: LinkId) -> Option<Time> {
        self.links.get(&link)?.wake
    }

    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Links that are due at `now`. The caller must pass each to [`Roster::look`].
    pub(crate) fn due(&mut self, now: Time) -> Vec<LinkId> {
        let heartbeat = self.heartbeat();
        let mut due = Vec::new();
        while let Some((at, link)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, link));
            let Some(served) = self.links.get_mut(&link) else { continue };
            let next = served.due(heartbeat);
            if next <= now {
                served.timer = Time::MAX;
                due.push(link);
            } else {
                served.timer = next;
                self.timers.insert((next, link));
            }
        }
        due.sort_unstable();
        due
    }

    /// Handles a link that is due. Sends a ping if it is time for one. `Err` says why the link must end.
    pub(crate) fn look(&mut self, now: Time, link: LinkId) -> Result<(), String> {
        let heartbeat = self.heartbeat();
        let Some(served) = self.links.get_mut(&link) else { return Ok(()) };
        if served.member.is_none() && now >= served.opened + HELLO_TIMEOUT {
            if let Some(mismatch) = &served.mismatch {
                return Err(mismatch.reason.clone());
            }
            return Err(format!("it did not say who it is within {} s", HELLO_TIMEOUT.as_secs()));
        }
        let watched = [
            (Some(&served.session.live), "it sends nothing"),
            (served.upload.as_ref(), "its update makes no progress"),
            (served.download.as_ref(), "it does not receive the model"),
        ];
        let stuck = watched
            .iter()
            .find_map(|(live, what)| live.filter(|l| now >= l.deadline()).map(|l| (l.timeout(), *what)));
        if let Some((timeout, what)) = stuck {
            return Err(format!("no progress for {:.1} s: {what}", timeout.as_secs_f64()));
        }
        if served.member.is_some() && served.session.take_due_ping(now, heartbeat) {
            self.send(link, Control::Ping { clock: micros(now), received: 0 });
        }
        self.on_link(link, |served| {
            if served.wake.is_some_and(|at| now >= at) {
                served.wake = None;
            }
        });
        Ok(())
    }

    /// Removes a link that has ended or that the server ends. The caller then handles the consequences, and
    /// calls [`Roster::left`].
    pub(crate) fn drop_link(&mut self, link: LinkId, reason: &str) -> Option<Dropped<L>> {
        self.count_down(link);
        let mut served = self.links.remove(&link)?;
        self.timers.remove(&(served.timer, link));
        let mismatch = served.mismatch.take().map(|mismatch| (mismatch.client, mismatch.reason));
        if let Some((client, reason)) = &mismatch {
            self.record_mismatch(client, reason);
            self.reported.insert(link);
        }
        let of = served.member.filter(|number| self.link_of(*number) == Some(link));
        let Some(member) = of.and_then(|number| self.members.get_mut(&number)) else {
            return Some(Dropped { link, member: None, reason: reason.into(), mismatch, served });
        };
        let reason = plain(reason, MAX_REASON);
        member.link = None;
        member.parting = Some(reason.clone());
        self.connected -= 1;
        Some(Dropped { link, member: of, reason, mismatch, served })
    }

    /// Whether the server has already reported why the peer of this ended link was not let in. True once.
    pub(crate) fn take_reported(&mut self, link: LinkId) -> bool {
        self.reported.remove(&link)
    }

    /// Reports to the driver that a member has left.
    pub(crate) fn left(&mut self, number: u32, reason: String) {
        if let Some(member) = self.members.get(&number) {
            let (client, farewell) = (member.name.clone(), member.farewell);
            self.act(Action::Left { client, reason, farewell });
        }
    }

    /// Ends the job: no peer is let in any more.
    pub(crate) fn finish(&mut self, reason: &str) {
        self.finished = Some(reason.into());
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.is_some()
    }
}

/// The reason given to a peer that came for another purpose than `ours`.
pub fn other_purpose(ours: Purpose) -> &'static str {
    match ours {
        Purpose::Rounds => {
            "this server runs rounds of federated averaging; connect to it as a client, not for tasks"
        }
        Purpose::Tasks => "this server gives tasks; connect to it with thalweg.TaskClient",
        Purpose::Graph => "this is a node of a graph; only its neighbours connect to it, with thalweg node",
        Purpose::Forward => "this forwards TCP streams; connect to it with thalweg forward --via",
        Purpose::Tree => {
            "this is a root or a node of an aggregation tree, to which only nodes connect, with thalweg node --parent; \
             clients connect to a node"
        }
    }
}
