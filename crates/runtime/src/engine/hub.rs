//! [`Hub`] drives a state machine that listens: it accepts and reads links, sends parcels, and tells the
//! machine the time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::{json, Value};
use thalweg_pki as pki;
use thalweg_proto::{Action, Admission, LinkId, ServerMachine, Span, Time, Traffic};
use thalweg_transport::{
    Address, AdmissionQueue, Bounds, Cancel, ErrorKind, Link, Listener, Options, Outgoing, Pending,
    SendReport, Sink, Transport, UpdateId,
};
use thalweg_wire::control::Control;
use thalweg_wire::{Layout, LayoutHash, Ranges, Tolerance};
use tokio::sync::{Notify, Semaphore};

use super::admission::{ForwardedProofs, Gate, Keys, Peers, REVOKED};
use super::machine_lock::ServerLock;
use super::notes::Notes;
use super::outbox::Outbox;
use super::rejected_peers::RejectedPeers;
use super::revocations::{Revocations, LOOK};
use super::task_set::TaskSet;
use super::{caller_timeout, descriptors, goes_on, holding, GoOn};
use crate::{lock, random, Error};

/// Maximum number of handshakes at a time, in addition to the limit of the `AdmissionQueue`. Beyond it the
/// next peer waits. It matters only for a transport that does not use the admission queue.
const HANDSHAKES: usize = 2048;
/// How long a group send waits until a member's earlier messages are sent. After that the member gets the
/// parcel alone.
const GROUP_TIMEOUT: Duration = Duration::from_millis(20);
/// How long links may take to end by themselves when the server closes, and how long its tasks may take after
/// that. Both together take less than two seconds, since Ctrl-C must end everything within that time.
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(1200);
const TASKS_TIMEOUT: Duration = Duration::from_millis(500);

/// The lent bytes of a parcel, or of a part of it, and their layout.
pub(crate) struct Lent {
    pub bytes: Bytes,
    /// The parcel's byte at which `bytes` begin.
    pub start: u64,
    pub layout: Arc<Layout>,
    /// What the chunks name as their layout.
    pub hash: LayoutHash,
    /// Maximum number of payload bytes in a chunk, if that is less than in other parcels.
    pub chunk: Option<u32>,
}

impl Lent {
    /// All bytes of a parcel.
    pub fn whole(bytes: Bytes, layout: Arc<Layout>) -> Self {
        Self { bytes, start: 0, hash: layout.hash(), layout, chunk: None }
    }

    /// Cuts the `wanted` ranges into chunks of `chunk` bytes.
    pub fn outgoing(
        self,
        (job, parcel, sender): (u64, u32, u32),
        wanted: &Ranges,
        chunk: u32,
        cancel: Cancel,
    ) -> Outgoing {
        let id = UpdateId { job, round: parcel, sender, layout: self.hash };
        let chunk = self.chunk.map_or(chunk, |most| most.min(chunk));
        Outgoing::part(id, self.bytes, self.start, wanted, chunk, cancel).of(self.layout)
    }
}

/// The part of a listening driver that depends on its machine: actions, parcels and sinks.
pub(crate) trait HubPolicy: Send + Sync + Sized + 'static {
    type Lock: ServerLock;

    /// Performs an action that only this machine has.
    fn perform(hub: &Arc<Hub<Self>>, wanted: Wanted<Self>);
    /// The bytes of a parcel of which the `wanted` ranges are to be sent. With `difference`: by how much it
    /// differs from the parcel before.
    fn lend(&self, parcel: u32, difference: bool, wanted: &Ranges) -> Result<Lent, String>;
    /// Whether a parcel for these links may overtake the control messages that were sent before it
    /// ([`Outgoing::detached`]).
    fn is_detached(&self, _links: &[LinkId]) -> bool {
        false
    }
    /// Whether the machine needs the current counters of the links before it handles its timers at `now`.
    fn wants_counters(_machine: &Machine<Self>, _now: Time) -> bool {
        false
    }
    /// The sink for the chunks of a link.
    fn sink(hub: &Arc<Hub<Self>>, link: LinkId, ordered: bool) -> Box<dyn Sink>;
}

/// The machine of a hub with this policy, and its own actions.
type Machine<P> = <<P as HubPolicy>::Lock as ServerLock>::Machine;
pub(crate) type Wanted<P> = <Machine<P> as ServerMachine>::Wanted;

/// The part of a server's options that a hub uses.
pub(crate) struct HubOptions {
    pub job: u64,
    pub chunk: u32,
    pub tolerance: Arc<Tolerance>,
    pub transport: Options,
    pub issuer: Option<String>,
    pub token: Option<String>,
    /// The role that members' tokens and certificates must be for.
    pub role: pki::Role,
    /// The file with the parties whose tokens and certificates no longer count.
    pub revoked: Option<String>,
    /// Where members' proofs are kept, if they are passed on.
    pub proofs: Option<ForwardedProofs>,
    /// When the hub's clock started.
    pub started: Instant,
}

/// A parcel, or a part of one, that is being sent to a group.
struct Sending {
    links: Vec<LinkId>,
    parcel: u32,
    cancel: Cancel,
}

/// The driver of a server: its machine, and the state that its tasks share.
pub(crate) struct Hub<P: HubPolicy> {
    pub machine: P::Lock,
    pub policy: P,
    started: Instant,
    job: u64,
    chunk: u32,
    tolerance: Mutex<Arc<Tolerance>>,
    /// `None` once the hub is closed.
    listener: Mutex<Option<Arc<dyn Listener>>>,
    address: String,
    ordered: bool,
    links: Mutex<HashMap<LinkId, Outbox>>,
    next_link: AtomicU64,
    peers: Peers,
    rejected_peers: Mutex<RejectedPeers<ErrorKind>>,
    sendings: Mutex<Vec<Sending>>,
    wake: Notify,
    notes: Mutex<Notes>,
    changed: Condvar,
    task_set: TaskSet,
}

impl<P: HubPolicy> Hub<P> {
    /// Listens at an address and starts accepting. `made` makes the machine and the policy; it gets the
    /// payload bytes of a chunk: as in the options, or fewer if a broker allows less.
    ///
    /// # Errors
    /// The transport's error for the address, or `security` if other machines could join without proof.
    pub fn start(
        transport: &Arc<dyn Transport>,
        address: &Address,
        options: HubOptions,
        made: impl FnOnce(Box<dyn Admission>, u32) -> (P::Lock, P),
    ) -> Result<Arc<Self>, Error> {
        let peers = Peers::default();
        let keys = Keys {
            transport: &options.transport,
            issuer: options.issuer.as_deref(),
            token: options.token.as_deref(),
            role: options.role,
            job: options.job,
        };
        let revoked = options.revoked.as_deref().map(|path| Revocations::open(path, options.role));
        let revoked = revoked.transpose()?.map(Arc::new);
        let gate = Gate::new(&keys, address.is_local(), peers.clone())?
            .keeping_proofs(options.proofs)
            .refusing(revoked.clone());
        let task_set = TaskSet::new()?;
        let admission_queue = AdmissionQueue::new(Bounds::of_process(descriptors::limit()));
        let listening = Options { admission_queue: Some(admission_queue), ..options.transport };
        let listener: Arc<dyn Listener> =
            task_set.handle().block_on(transport.listen(address, &listening))?.into();
        let notice = listener.notice();
        let chunk = chunk_size(options.chunk, listener.max_chunk());
        let (machine, policy) = made(Box::new(gate), chunk);
        let hub = Arc::new(Self {
            machine,
            policy,
            started: options.started,
            job: options.job,
            chunk,
            tolerance: Mutex::new(options.tolerance),
            ordered: transport.capabilities().settles(),
            address: listener.address().to_string(),
            listener: Mutex::new(Some(listener)),
            links: Mutex::default(),
            next_link: AtomicU64::new(1),
            peers,
            rejected_peers: Mutex::default(),
            sendings: Mutex::default(),
            wake: Notify::new(),
            notes: Mutex::default(),
            changed: Condvar::new(),
            task_set: task_set.clone(),
        });
        if let Some(notice) = notice {
            hub.note(&notice);
        }
        if chunk < options.chunk {
            hub.note(&format!(
                "chunks have {chunk} bytes and not {}, because the broker takes no longer messages",
                options.chunk
            ));
        }
        task_set.spawn(accept(hub.clone()));
        task_set.spawn(drive(hub.clone()));
        if let Some(list) = revoked {
            task_set.spawn(watch_revocations(hub.clone(), list));
        }
        Ok(hub)
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    fn listener(&self) -> Option<Arc<dyn Listener>> {
        lock(&self.listener).clone()
    }

    pub fn now(&self) -> Time {
        self.started.elapsed()
    }

    /// Wakes the driver, after an input to the machine.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Starts a task that ends with the hub.
    pub fn spawn(&self, task: impl std::future::Future<Output = ()> + Send + 'static) {
        self.task_set.spawn(task);
    }

    /// Runs work that may take long on a thread of its own.
    pub fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        self.task_set.handle().spawn_blocking(work);
    }

    /// Waits at most `limit` until `look` returns something. Code that changes what `look` reads must call
    /// [`Hub::announce`].
    pub fn wait_for<T>(&self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let notes = lock(&self.notes);
        if let Some(found) = look() {
            return Some(found);
        }
        drop(self.changed.wait_timeout(notes, limit).unwrap_or_else(PoisonError::into_inner));
        look()
    }

    /// Wakes waiting callers: something that they wait for may have changed.
    pub fn announce(&self) {
        // A caller between its check and its wait holds this lock, so it cannot miss the wake-up.
        drop(lock(&self.notes));
        self.changed.notify_all();
    }

    /// Names of the connected members.
    pub fn clients(&self) -> Vec<String> {
        self.machine.with(|machine| machine.connected_clients().map(String::from).collect())
    }

    /// Members that are not connected any more: name, why the link ended, and whether the member left for
    /// good.
    pub fn away(&self) -> Vec<(String, String, bool)> {
        let owned = |(name, reason, departed): (&str, &str, bool)| (name.into(), reason.into(), departed);
        self.machine.with(|machine| machine.departed().map(owned).collect())
    }

    /// Tells the machine that a member's process has ended for good. `why` is the reason; an empty `why`
    /// means "its process has ended".
    pub fn forget(&self, client: &str, why: &str) {
        self.machine.with(|machine| machine.forget(self.now(), client, why));
        self.wake();
    }

    /// Disconnects the members that are on the list.
    fn expel_revoked(&self, list: &Revocations) {
        let now = self.now();
        self.machine.with(|machine| {
            let here = machine.connected_clients().filter(|name| list.has(name)).map(String::from);
            for name in here.collect::<Vec<_>>() {
                machine.expel(now, &name, REVOKED);
            }
        });
        self.wake();
        self.announce();
    }

    fn connected_count(&self) -> usize {
        self.machine.with(|machine| machine.connected_count())
    }

    /// Waits until `clients` members are connected, `limit` is over, or `go_on` returns false. Returns how
    /// many are connected.
    pub fn wait_for_clients(&self, clients: usize, limit: Option<Duration>, go_on: GoOn<'_>) -> usize {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let connected = self.connected_count();
            let over = deadline.is_some_and(|at| Instant::now() >= at);
            if connected >= clients || over || !goes_on(go_on) {
                return connected;
            }
            let most = caller_timeout(go_on);
            let left = deadline.map_or(most, |at| at.saturating_duration_since(Instant::now()));
            let enough = || (self.connected_count() >= clients).then_some(());
            _ = self.wait_for(left.min(most), enough);
        }
    }

    /// The log lines since the last call.
    pub fn take_notes(&self) -> Vec<String> {
        lock(&self.notes).take()
    }

    pub fn noted(&self, add: impl FnOnce(&mut Notes)) {
        add(&mut lock(&self.notes));
        self.changed.notify_all();
    }

    fn note(&self, note: &str) {
        self.noted(|notes| notes.add(note));
    }

    /// Adds a log line about a client, or about a peer that is not yet one (an empty name).
    fn note_of(&self, client: &str, note: &str) {
        self.noted(|notes| notes.add_of(client, note));
    }

    /// Records a peer that was rejected before it became a client.
    fn note_rejected_peer(&self, error: &thalweg_transport::Error) {
        let note = lock(&self.rejected_peers).count(error.kind(), &error.to_string());
        if let Some(note) = note {
            self.note(&note);
        }
    }

    pub fn outbox(&self, link: LinkId) -> Option<Outbox> {
        lock(&self.links).get(&link).cloned()
    }

    /// Congestion control of the links, which is the same for all: they are made with the same options.
    pub fn congestion(&self) -> Option<String> {
        lock(&self.links).values().next().and_then(|outbox| outbox.link().counters().congestion)
    }

    /// Bytes sent and received on the present links.
    pub fn traffic(&self) -> (u64, u64) {
        let counters = lock(&self.links).values().map(|outbox| outbox.link().counters()).collect::<Vec<_>>();
        counters.iter().fold((0, 0), |(sent, received), c| (sent + c.sent, received + c.received))
    }

    /// Segments retransmitted so far to each client and by it, as a JSON object by name. After an answered
    /// update, waits at most `limit` for clients that have not sent their count yet.
    pub fn resent(&self, limit: Duration) -> String {
        let deadline = Instant::now() + limit;
        let all = || (self.machine.with(|machine| machine.uncounted()) == 0).then_some(());
        while self.wait_for(deadline.saturating_duration_since(Instant::now()), all).is_none() {
            if Instant::now() >= deadline {
                break;
            }
        }
        let links: Vec<(LinkId, Arc<dyn Link>)> =
            lock(&self.links).iter().map(|(id, outbox)| (*id, outbox.link().clone())).collect();
        let resent = self.machine.with(|machine| {
            links.iter().for_each(|(id, link)| Self::observe(machine, *id, link));
            machine.resent()
        });
        let resent = resent.into_iter().map(|(name, down, up)| (name, json!({"down": down, "up": up})));
        Value::Object(resent.collect()).to_string()
    }

    /// Closes the links over which a parcel is being sent.
    pub fn close_senders(&self) {
        let stuck: Vec<Outbox> = {
            let sendings = lock(&self.sendings);
            let ids = sendings.iter().flat_map(|sending| sending.links.iter());
            ids.filter_map(|&id| self.outbox(id)).collect()
        };
        stuck.iter().for_each(Outbox::close);
    }

    fn observe(machine: &mut Machine<P>, id: LinkId, link: &Arc<dyn Link>) {
        let counters = link.counters();
        let traffic = Traffic {
            sent: counters.sent,
            received: counters.received,
            copied: counters.copied,
            records_lost: counters.records_lost,
            retransmissions: counters.retransmissions,
        };
        machine.observe(id, traffic);
    }

    /// Tells the machine the time. If the machine needs them now, it gets the links' counters first.
    fn timeout(&self) {
        let now = self.now();
        let mut links: Vec<(LinkId, Arc<dyn Link>)> = Vec::new();
        if self.machine.with(|machine| P::wants_counters(machine, now)) {
            links.extend(lock(&self.links).iter().map(|(id, outbox)| (*id, outbox.link().clone())));
        }
        self.machine.with(|machine| {
            links.iter().for_each(|(id, link)| Self::observe(machine, *id, link));
            machine.timeout(now);
        });
    }

    /// Adds a link: starts its reader, and the session begins.
    fn attach(self: &Arc<Self>, link: Arc<dyn Link>) -> Result<(), Error> {
        let id = self.next_link.fetch_add(1, Ordering::Relaxed);
        let nonce = random()?;
        lock(&self.peers).insert(id, link.peer().clone());
        lock(&self.links).insert(id, Outbox::start(&self.task_set, link.clone()));
        link.tolerate(&lock(&self.tolerance));
        if let Some(notice) = link.notice() {
            self.noted(|notes| notes.add_once(&notice));
        }
        let capabilities = link.capabilities();
        let ordered = self.ordered && capabilities.settles();
        self.machine.with(|machine| {
            machine.connected(self.now(), id, nonce, ordered);
            if ordered && capabilities.ordered && capabilities.reliable {
                machine.keeps_order(id);
            }
        });
        self.wake();
        self.spawn(read(self.clone(), id, link, ordered));
        Ok(())
    }

    /// Sets which losses are tolerated, over all links, in updates that arrive from now on.
    pub fn tolerate(&self, tolerance: &Arc<Tolerance>) {
        // Hold the lock until all links have the rule. Otherwise a new link could get an older rule after
        // this one.
        let mut current = lock(&self.tolerance);
        if *current == *tolerance {
            return;
        }
        *current = tolerance.clone();
        lock(&self.links).values().for_each(|outbox| outbox.link().tolerate(tolerance));
    }

    fn detach(&self, id: LinkId, link: &Arc<dyn Link>, reason: &str) {
        self.machine.with(|machine| {
            Self::observe(machine, id, link);
            machine.closed(self.now(), id, reason);
        });
        lock(&self.links).remove(&id);
        lock(&self.peers).remove(&id);
        self.wake();
        self.announce();
    }

    fn perform(self: &Arc<Self>, action: Action<Wanted<P>>) {
        match action {
            Action::Send { link, message } => {
                if let Some(outbox) = self.outbox(link) {
                    outbox.send(&message);
                }
            }
            Action::SendParcel { links, parcel, difference, wanted } => {
                self.send_parcel(links, parcel, difference, &wanted);
            }
            Action::Cancel { link, parcel } => {
                let sendings = lock(&self.sendings);
                let meant = |sending: &&Sending| {
                    sending.links.contains(&link) && parcel.is_none_or(|parcel| parcel == sending.parcel)
                };
                sendings.iter().filter(meant).for_each(|sending| sending.cancel.cancel());
            }
            Action::Close { link } => {
                if let Some(outbox) = self.outbox(link) {
                    outbox.close();
                }
            }
            Action::Joined { client } => self.note_of(&client, &format!("{client} joined")),
            Action::Note { client, what } => self.note_of(&client, &format!("{client}: {what}")),
            // This peer is not a member. All such peers share one limit of log lines, whatever names they
            // use.
            Action::TurnedAway { client, reason } => {
                self.note_of("", &format!("{client} was not let in: {reason}"));
            }
            Action::Left { client, reason, farewell: true } => {
                self.note_of(&client, &format!("{client} {reason}"));
            }
            Action::Left { client, reason, farewell: false } => {
                self.note_of(&client, &format!("{client} left: {reason}"));
            }
            Action::Policy(wanted) => P::perform(self, wanted),
        }
    }

    /// Sends a parcel, or a part of one, to a group in one call. The loan begins now, before the machine can
    /// want the memory back. Messages that are queued for a link go first, unless the parcel is detached.
    fn send_parcel(self: &Arc<Self>, ids: Vec<LinkId>, parcel: u32, difference: bool, wanted: &Ranges) {
        let members: Vec<(LinkId, Outbox)> =
            ids.iter().filter_map(|&id| self.outbox(id).map(|outbox| (id, outbox))).collect();
        let lent = match self.policy.lend(parcel, difference, wanted) {
            Ok(lent) => lent,
            Err(reason) => return self.report_unsent(&ids, parcel, &reason),
        };
        let cancel = Cancel::default();
        let mut update = lent.outgoing((self.job, parcel, 0), wanted, self.chunk, cancel.clone());
        if self.policy.is_detached(&ids) {
            update = update.detached();
        }
        lock(&self.sendings).push(Sending { links: ids, parcel, cancel: cancel.clone() });
        let hub = self.clone();
        self.spawn(async move {
            hub.send_to_group(members, &update).await;
            cancel.cancel(); // ends the loan
            lock(&hub.sendings).retain(|sending| !sending.cancel.is_cancelled());
        });
    }

    fn report_unsent(&self, ids: &[LinkId], parcel: u32, reason: &str) {
        self.machine.with(|machine| {
            for &id in ids {
                machine.sent(self.now(), id, parcel, Err(reason.into()));
            }
        });
        self.wake();
    }

    /// Sends to a group. Members whose earlier messages are sent get one group send. Every other member gets
    /// a send of its own, as soon as its messages are sent.
    async fn send_to_group(self: &Arc<Self>, members: Vec<(LinkId, Outbox)>, update: &Outgoing) {
        let mut ready = Vec::new();
        let mut behind = Vec::new();
        for (id, outbox) in members {
            let flushed =
                update.is_detached() || tokio::time::timeout(GROUP_TIMEOUT, outbox.flushed()).await.is_ok();
            if flushed { &mut ready } else { &mut behind }.push((id, outbox));
        }
        let late = behind.into_iter().map(|(id, outbox)| async move {
            outbox.flushed().await;
            let report = outbox.link().send_update(update).await;
            self.parcel_sent(id, outbox.link(), update.id().round, report);
        });
        let links: Vec<Arc<dyn Link>> = ready.iter().map(|(_, outbox)| outbox.link().clone()).collect();
        let done = |index: usize, report| {
            let (id, outbox): &(LinkId, Outbox) = &ready[index];
            self.parcel_sent(*id, outbox.link(), update.id().round, report);
        };
        let group = async {
            if let Some(listener) = self.listener() {
                listener.send_group(&links, update, &done).await;
            }
        };
        tokio::join!(group, join_all(late));
    }

    fn parcel_sent(
        &self,
        id: LinkId,
        link: &Arc<dyn Link>,
        parcel: u32,
        report: thalweg_transport::Result<SendReport>,
    ) {
        let at = |instant: Instant| instant.saturating_duration_since(self.started);
        // Retrying would not help: a model that does not fit into a message never will.
        if let Some(error) = report.as_ref().err().filter(|e| e.kind() == ErrorKind::Unsupported) {
            self.note(&error.to_string());
            self.machine.with(|machine| machine.finish(self.now(), &error.to_string()));
            return self.wake();
        }
        let outcome = report
            .map(|r| Span { start: at(r.started), end: at(r.ended) })
            .map_err(|error| error.to_string());
        self.machine.with(|machine| {
            Self::observe(machine, id, link);
            machine.sent(self.now(), id, parcel, outcome);
        });
        self.wake();
    }

    /// Waits at most `limit` until everything queued on any link is sent.
    pub fn flush(&self, limit: Duration) {
        let outboxes: Vec<Outbox> = lock(&self.links).values().cloned().collect();
        let all = async { join_all(outboxes.iter().map(Outbox::flushed)).await };
        // Ignore a timeout: messages that are not sent by then are lost with their link.
        let _ = self.task_set.handle().block_on(async { tokio::time::timeout(limit, all).await });
    }

    /// Tells every member that the job is over, and ends all tasks. Idempotent.
    pub fn close(&self, reason: &str) {
        let now = self.now();
        self.machine.with(|machine| machine.finish(now, reason));
        let outboxes: Vec<Outbox> = lock(&self.links).values().cloned().collect();
        self.wake();
        self.task_set.handle().block_on(async {
            // Let the driver queue the farewells. Each link then closes by itself, or is closed below.
            tokio::task::yield_now().await;
            let all = async {
                while !lock(&self.links).is_empty() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            let _ = tokio::time::timeout(FAREWELL_TIMEOUT, all).await;
            join_all(outboxes.iter().map(|outbox| outbox.link().close())).await;
        });
        self.task_set.dismiss(TASKS_TIMEOUT);
        // No task holds the listener any more, so this frees the address.
        drop(lock(&self.listener).take());
    }
}

/// Bytes of a chunk, if the options ask for `wanted` and a message has room for `most`. The result is a
/// multiple of 64 where possible, because folding is then cheapest, else of 8: a chunk must not cut a value.
fn chunk_size(wanted: u32, most: u32) -> u32 {
    if wanted <= most {
        return wanted;
    }
    let unit = if most < 64 { 8 } else { 64 };
    (most / unit * unit).max(8)
}

/// Accepts links until the listener fails or the hub ends.
async fn accept<P: HubPolicy>(hub: Arc<Hub<P>>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    let Some(listener) = hub.listener() else { return };
    while let Ok(permit) = handshakes.clone().acquire_owned().await {
        match listener.accept().await {
            Ok(pending) => {
                let welcoming = hub.clone();
                hub.spawn(async move {
                    welcome(&welcoming, pending).await;
                    drop(permit);
                });
            }
            Err(error) => return hub.note(&format!("no further client can connect: {error}")),
        }
    }
}

async fn welcome<P: HubPolicy>(hub: &Arc<Hub<P>>, pending: Pending) {
    match pending.await {
        Ok(link) => {
            if let Err(error) = hub.attach(link) {
                hub.note(&error.to_string());
            }
        }
        Err(error) => hub.note_rejected_peer(&error),
    }
}

/// Reads one link until it ends.
async fn read<P: HubPolicy>(hub: Arc<Hub<P>>, id: LinkId, link: Arc<dyn Link>, ordered: bool) {
    let sink = P::sink(&hub, id, ordered);
    let _holding = holding::watch(link.clone(), {
        let hub = hub.clone();
        move |why| {
            hub.machine.with(|machine| machine.held(hub.now(), id));
            if let Some(why) = why {
                let note = format!("the broker takes no messages at the moment: {why}");
                hub.noted(|notes| notes.add_once(&note));
            }
        }
    });
    let (mut admitted, mut failed) = (false, None);
    let reason = loop {
        let message = match link.receive(&*sink).await {
            Ok(message) => message,
            Err(error) => {
                let reason = error.to_string();
                failed = Some(error);
                break reason;
            }
        };
        let message = match Control::decode(&message) {
            Ok(message) => message,
            Err(error) => break error.to_string(),
        };
        hub.machine.with(|machine| {
            Hub::<P>::observe(machine, id, &link);
            machine.control(hub.now(), id, message);
            if !admitted && machine.is_member(id) {
                // Lift the limits before the client gets the `Welcome`, since it may send more from then on.
                link.admit();
                admitted = true;
            }
        });
        hub.wake();
    };
    link.close().await;
    hub.detach(id, &link, &reason);
    // The log may already say why the client was not admitted. That line explains more than the link's error.
    let reported = hub.machine.with(|machine| machine.take_reported(id));
    if let Some(error) = failed.filter(|_| !admitted && !reported) {
        hub.note_rejected_peer(&error);
    }
}

/// Reads the list of revoked parties whenever it changes, and disconnects members that are on it.
async fn watch_revocations<P: HubPolicy>(hub: Arc<Hub<P>>, list: Arc<Revocations>) {
    let mut last = String::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let looking = list.clone();
        match tokio::task::spawn_blocking(move || looking.refresh()).await {
            Ok(Ok(changed)) => {
                last.clear();
                if changed {
                    hub.expel_revoked(&list);
                }
            }
            Ok(Err(cause)) if cause != last => {
                hub.note(&format!("the list of revoked parties stays as it was: {cause}"));
                last = cause;
            }
            _ => {}
        }
    }
}

/// Performs the machine's actions in order, and tells it the time.
async fn drive<P: HubPolicy>(hub: Arc<Hub<P>>) {
    loop {
        let (actions, timeout) = hub.machine.with(|machine| {
            let actions: Vec<_> = std::iter::from_fn(|| machine.poll_action()).collect();
            (actions, machine.poll_timeout())
        });
        if actions.is_empty() {
            let idle = timeout.map_or(Duration::from_secs(3600), |at| at.saturating_sub(hub.now()));
            tokio::select! {
                () = hub.wake.notified() => {}
                () = tokio::time::sleep(idle) => hub.timeout(),
            }
        }
        for action in actions {
            hub.perform(action);
        }
        hub.announce();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_fits_what_a_message_has_room_for() {
        assert_eq!(chunk_size(1 << 18, u32::MAX), 1 << 18);
        assert_eq!(chunk_size(1 << 18, 1 << 18), 1 << 18);
        assert_eq!(chunk_size(1 << 18, 100_000), 99_968);
        assert_eq!(chunk_size(1344, 1343), 1280);
        assert_eq!(chunk_size(4096, 63), 56);
        assert_eq!(chunk_size(4096, 0), 8, "a carrier refuses to open before");
        assert!((1..3000)
            .all(|most| chunk_size(4096, most).is_multiple_of(8) && chunk_size(4096, most) <= most.max(8)));
    }
}
