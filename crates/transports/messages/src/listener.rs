//! The listener. One task reads its mailbox for all links. When the carrier ends, the task ends all links and
//! opens another carrier.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use thalweg_transport::{
    send_group_each, Address, Capabilities, Error, Link, Listener, Options, Outgoing, Peer, Pending, Result,
    SendReport, Standing, UnauthenticatedPeer,
};
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::{Mutex as AsyncMutex, Notify, Semaphore};

use crate::envelope::{decode, encode, Kind, Tag};
use crate::intake::chunk_cost;
use crate::keeper::{keep, Greeting, GroupNumbers};
use crate::link::MessageLink;
use crate::receive::dispatch;
use crate::secret::Half;
use crate::shared::{lock, Ends, LinkState};
use crate::shelf::Kept;
use crate::{
    fanout, Care, Carrier, Event, Letter, Mailbox, MemberId, Message, Nature, Post, Side, HEAD_BYTES,
};

/// Maximum number of links that wait to be accepted or for their member's first message. Beyond that, hellos
/// are ignored; members repeat them. An admission queue allows fewer.
const BACKLOG: usize = 2048;
/// Maximum number of goodbyes being sent at a time to members without a link. Beyond that, their messages are
/// ignored.
const ANSWERS: usize = 16;
/// Number of members that the listener remembers having refused. It does not answer them again.
const REFUSED: usize = 64;
/// Cost of chunks that a listener grants to all members together.
const BUDGET: u64 = 64 << 20;
/// Least cost of chunks that it grants to one member.
const LEAST_WINDOW: u64 = 1 << 20;
/// Upper bound of the window that a peer's hello or welcome may claim.
pub(crate) const MAX_WINDOW: u64 = 1 << 32;
/// The first and the longest pause between attempts to open a carrier.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The capabilities of links over a carrier.
pub(crate) fn capabilities(post: &dyn Post, nature: &Nature) -> Capabilities {
    let offered = post.capabilities();
    let room = u32::try_from(nature.max_message.saturating_sub(HEAD_BYTES)).unwrap_or(u32::MAX);
    Capabilities {
        reliable: offered.reliable && !nature.lossy,
        fan_out: offered.fan_out && nature.group,
        max_chunk: offered.max_chunk.min(room),
        ..offered
    }
}

/// The window that an end grants: the carrier's, but at least one chunk.
pub(crate) fn window(nature: &Nature, capabilities: &Capabilities) -> u64 {
    nature.window.max(chunk_cost(capabilities.max_chunk.into()))
}

/// One carrier of the listener, with the links over it.
pub(crate) struct Office {
    pub carrier: Arc<dyn Carrier>,
    pub instance: u64,
    pub links: Mutex<HashMap<MemberId, Entry>>,
    pub group: Arc<AsyncMutex<GroupNumbers>>,
    /// Number of the last chunk to the group whose publication was confirmed.
    pub confirmed: Arc<AtomicU64>,
    pub credit_changed: Arc<Notify>,
    pub kept: Arc<Mutex<Kept>>,
    refused: Mutex<VecDeque<MemberId>>,
    answers: Arc<Semaphore>,
}

/// A link of the listener.
pub(crate) struct Entry {
    pub shared: Arc<LinkState>,
    /// The link that `accept` returned, to find the entry of a link.
    pub link: Weak<MessageLink>,
    /// Set until the member has sent a message after its hello.
    waiting: Option<Waiting>,
}

impl Entry {
    /// Whether the session has admitted the member. The listener ignores other members when it decides how to
    /// send an update.
    pub(crate) fn is_member(&self) -> bool {
        self.shared.ends.standing.is_proved()
    }
}

/// A link whose member has only sent hellos.
struct Waiting {
    link: Arc<MessageLink>,
    /// Its place in the queue of links to be accepted.
    place: OwnedPermit<Pending>,
    unauthenticated_peer: Option<UnauthenticatedPeer>,
}

/// What the listener's task and its handle share.
struct Hub {
    post: Arc<dyn Post>,
    options: Options,
    address: Address,
    backlog: mpsc::Sender<Pending>,
    office: Mutex<Arc<Office>>,
    /// Set when the listener was dropped.
    dropped: AtomicBool,
    changed: Notify,
}

/// The handle of a listener.
pub(crate) struct MessageListener {
    hub: Arc<Hub>,
    backlog: AsyncMutex<mpsc::Receiver<Pending>>,
}

pub(crate) async fn listen(
    post: Arc<dyn Post>,
    address: &Address,
    options: &Options,
) -> Result<MessageListener> {
    let office = open(&*post, address, options).await?;
    let address = office.carrier.address();
    let (backlog, accepted) = mpsc::channel(BACKLOG);
    let (dropped, changed) = (AtomicBool::new(false), Notify::new());
    let office = Mutex::new(Arc::new(office));
    let hub = Arc::new(Hub { post, options: options.clone(), address, backlog, office, dropped, changed });
    tokio::spawn(hub.clone().run());
    Ok(MessageListener { hub, backlog: AsyncMutex::new(accepted) })
}

async fn open(post: &dyn Post, address: &Address, options: &Options) -> Result<Office> {
    let carrier = post.open(Side::Listener, address, options).await?;
    let [instance, _] = MemberId::random()?.halves();
    Ok(Office {
        carrier,
        instance,
        links: Mutex::default(),
        group: Arc::default(),
        confirmed: Arc::default(),
        credit_changed: Arc::default(),
        kept: Arc::default(),
        refused: Mutex::default(),
        answers: Arc::new(Semaphore::new(ANSWERS)),
    })
}

#[async_trait]
impl Listener for MessageListener {
    fn address(&self) -> Address {
        self.hub.address.clone()
    }

    fn max_chunk(&self) -> u32 {
        capabilities(&*self.hub.post, &self.hub.office().carrier.nature()).max_chunk
    }

    async fn accept(&self) -> Result<Pending> {
        let pending = self.backlog.lock().await.recv().await;
        pending
            .ok_or_else(|| Error::closed("accept", format!("{}: the listener has ended", self.hub.address)))
    }

    async fn send_group(
        &self,
        links: &[Arc<dyn Link>],
        update: &Outgoing,
        done: &(dyn Fn(usize, Result<SendReport>) + Send + Sync),
    ) {
        let office = self.hub.office();
        match office.members(links).filter(|members| fanout::is_worth(&office, members, update)) {
            Some(members) => fanout::send(&office, members, update, done).await,
            None => send_group_each(links, update, done).await,
        }
    }
}

impl Drop for MessageListener {
    fn drop(&mut self) {
        self.hub.dropped.store(true, Ordering::Release);
        self.hub.changed.notify_one();
    }
}

impl Office {
    /// The state of each of these links. `None` if one of them does not belong to this carrier.
    fn members(&self, links: &[Arc<dyn Link>]) -> Option<Vec<Arc<LinkState>>> {
        let given = lock(&self.links);
        let place = |link: *const ()| given.values().find(|entry| entry.link.as_ptr().cast::<()>() == link);
        links.iter().map(|link| place(Arc::as_ptr(link).cast()).map(|entry| entry.shared.clone())).collect()
    }

    /// The lowest slot that no link uses.
    fn free_slot(links: &HashMap<MemberId, Entry>) -> u32 {
        let mut taken: Vec<u32> = links.values().map(|entry| entry.shared.ends.slot).collect();
        taken.sort_unstable();
        (0..).zip(&taken).find(|(free, slot)| free != *slot).map_or(taken.len() as u32, |(free, _)| free)
    }

    /// Tells a member, once, that it has no link here.
    fn refuse(self: &Arc<Self>, tag: Tag, why: &'static str) {
        let Ok(permit) = self.answers.clone().try_acquire_owned() else { return };
        let mut refused = lock(&self.refused);
        if refused.contains(&tag.member) {
            return;
        }
        refused.push_back(tag.member);
        if refused.len() > REFUSED {
            refused.pop_front();
        }
        let office = self.clone();
        tokio::spawn(async move {
            let head = encode(tag, &Kind::Bye);
            let message = Message { head: &head, body: why.as_bytes(), care: Care::Control };
            // An error ends the carrier; the reading task sees that.
            let _ = office.carrier.publish(Mailbox::Member(tag.member), message).await;
            drop(permit);
        });
    }
}

impl Hub {
    fn office(&self) -> Arc<Office> {
        lock(&self.office).clone()
    }

    fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// The listener's task: reads for all links, and opens another carrier when one has ended.
    async fn run(self: Arc<Self>) {
        loop {
            let office = self.office();
            let why = self.serve(&office).await;
            let links: Vec<_> = lock(&office.links).drain().map(|(_, entry)| entry.shared).collect();
            let Some(error) = why else {
                // An error means that the carrier has ended.
                let _ = office.carrier.flush().await;
                return office.carrier.close().await;
            };
            links.iter().for_each(|shared| shared.end(&error.reason()));
            office.carrier.close().await;
            let Some(office) = self.reopen().await else { return };
            *lock(&self.office) = Arc::new(office);
        }
    }

    /// Opens a carrier at the same address and tries until it succeeds. `None` once the listener was dropped.
    async fn reopen(&self) -> Option<Office> {
        let (mut pause, mut logged) = (PAUSES.0, String::new());
        while !self.is_dropped() {
            match open(&*self.post, &self.address, &self.options).await {
                Ok(office) => return Some(office),
                Err(error) if error.to_string() != logged => {
                    logged = error.to_string();
                    // `accept` reports why there are no links. If its queue is full, this report is dropped.
                    let _ = self.backlog.try_send(Box::pin(std::future::ready(Err(error))));
                }
                Err(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSES.1),
                () = self.changed.notified() => {}
            }
        }
        None
    }

    /// Reads until the carrier ends, and returns why. `None` once the listener was dropped and the last link
    /// has ended.
    async fn serve(self: &Arc<Self>, office: &Arc<Office>) -> Option<Error> {
        loop {
            if self.is_dropped() && lock(&office.links).is_empty() {
                return None;
            }
            let event = tokio::select! {
                biased;
                event = office.carrier.next() => event,
                () = self.changed.notified() => continue,
            };
            match event {
                Ok(Event::Letter(letter)) => self.take(office, &letter),
                Ok(Event::Departed { mailbox: Mailbox::Member(member), why }) => {
                    if let Some(entry) = lock(&office.links).get(&member) {
                        entry.shared.end(&why);
                    }
                }
                Ok(Event::Departed { .. }) => {}
                Ok(Event::Refused(error)) => {
                    // If the queue is full, the report of a refused connection is dropped.
                    let _ = self.backlog.try_send(Box::pin(std::future::ready(Err(error))));
                }
                Err(error) => return Some(error),
            }
        }
    }

    /// Processes one message.
    fn take(self: &Arc<Self>, office: &Arc<Office>, letter: &Letter) {
        let Some((tag, kind, head)) = decode(&letter.bytes) else { return };
        if letter.from.is_some_and(|from| from != tag.member) {
            // Drop the message: its sender uses another member's name.
            return;
        }
        let known = lock(&office.links).get(&tag.member).map(|entry| entry.shared.clone());
        match (known, kind) {
            // Only note the message: the keeper task repeats the welcome anyway.
            (Some(shared), Kind::Hello { .. }) => shared.note_arrival(letter.wire),
            (Some(shared), kind) if shared.ends.tag == tag => {
                // First process the message, then let the link be accepted. So the listener knows which
                // retained chunks the member holds before it sends anything.
                dispatch(&shared, kind, head, letter);
                if shared.make_ready() {
                    give_out(office, tag.member);
                }
            }
            (None, Kind::Hello { window, key }) => self.welcome(office, tag.member, window, key, letter.wire),
            (_, Kind::Bye) => {}
            _ => office.refuse(tag, "there is no such link: it has ended, or the listener was started anew"),
        }
    }

    /// Creates a link for a new member that has sent a hello. It waits for the member's next message.
    fn welcome(
        self: &Arc<Self>,
        office: &Arc<Office>,
        member: MemberId,
        window: u64,
        key: [u8; 32],
        wire: u64,
    ) {
        let tag = Tag { instance: office.instance, member };
        if self.is_dropped() {
            return office.refuse(Tag { instance: 0, member }, "nobody accepts links any more");
        }
        let admission_queue = self.options.admission_queue.as_ref();
        if admission_queue.is_some_and(|admission_queue| !admission_queue.has_room()) {
            // Too many evicted members have not left yet. Ignore the hello; the member repeats it.
            return;
        }
        let Ok(place) = self.backlog.clone().try_reserve_owned() else { return };
        let unauthenticated_peer =
            admission_queue.map(|admission_queue| admission_queue.enter(office.carrier.origin(member)));
        let mut links = lock(&office.links);
        let nature = office.carrier.nature();
        let capabilities = capabilities(&*self.post, &nature);
        let own = self::window(&nature, &capabilities);
        let members = links.values().filter(|entry| entry.is_member()).count();
        let share = BUDGET / (members as u64 + 1);
        let least = LEAST_WINDOW.max(chunk_cost(capabilities.max_chunk.into()));
        let secret = Half::new(self.options.tls.is_some()).and_then(|half| {
            let public = half.public;
            half.agree(&key, tag, [key, public]).map(|binding| (public, binding))
        });
        let (public, binding) = match secret {
            Ok(secret) => secret,
            Err(error) => return drop(place.send(Box::pin(std::future::ready(Err(error))))),
        };
        let shared = LinkState::new(Ends {
            carrier: office.carrier.clone(),
            to: Mailbox::Member(member),
            tag,
            slot: Office::free_slot(&links),
            peer: Peer { binding, ..office.carrier.peer(Mailbox::Member(member)) },
            capabilities,
            windows: (share.max(least).min(own), window.min(MAX_WINDOW)),
            group: office.confirmed.clone(),
            credit_changed: office.credit_changed.clone(),
            kept: office.kept.clone(),
            standing: Standing::new(unauthenticated_peer.clone()),
        });
        shared.note_arrival(wire);
        let link = Arc::new(MessageLink(shared.clone()));
        let (known, waiting) = (Arc::downgrade(&link), Some(Waiting { link, place, unauthenticated_peer }));
        links.insert(member, Entry { shared: shared.clone(), link: known, waiting });
        drop(links);
        let deadline = Instant::now() + self.options.connect_timeout();
        let greeting = Greeting { group: office.group.clone(), key: public, deadline };
        tokio::spawn(self.clone().keep(office.clone(), shared, greeting));
    }

    /// Runs the supervising task of a link, and removes the link when it has ended.
    async fn keep(self: Arc<Self>, office: Arc<Office>, shared: Arc<LinkState>, greeting: Greeting) {
        let member = shared.ends.tag.member;
        keep(shared.clone(), Some(greeting)).await;
        let entry = lock(&office.links).remove(&member);
        if let Some(Waiting { place, .. }) = entry.and_then(|entry| entry.waiting) {
            place.send(Box::pin(std::future::ready(Err(shared.fault("accept")))));
        }
        office.carrier.forget(member);
        self.changed.notify_one();
    }
}

/// Lets a link be accepted, since its member has answered the welcome. So `accept` never waits for a silent
/// member.
fn give_out(office: &Office, member: MemberId) {
    let waiting = lock(&office.links).get_mut(&member).and_then(|entry| entry.waiting.take());
    if let Some(Waiting { link, place, unauthenticated_peer }) = waiting {
        unauthenticated_peer.iter().for_each(UnauthenticatedPeer::progressed);
        place.send(Box::pin(std::future::ready(Ok(link as Arc<dyn Link>))));
    }
}

impl MemberId {
    fn halves(self) -> [u64; 2] {
        let number = u128::from_le_bytes(self.0);
        [number as u64, (number >> 64) as u64]
    }
}
