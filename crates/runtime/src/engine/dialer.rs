//! [`Dialer`] drives a state machine that dials: it connects, reads, sends, reconnects, and tells the machine
//! the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use thalweg_pki as pki;
use thalweg_proto::{ClientAction, ClientMachine, Failure, Span, Time};
use thalweg_transport::{Address, Cancel, Link, Options, Outgoing, Sink, Transport};
use thalweg_wire::control::{Control, Nonce, Proof};
use thalweg_wire::text::check_name;
use thalweg_wire::{limits, Ranges, Tolerance};
use tokio::sync::{watch, Notify};

use super::connecting::paced;
use super::hub::Lent;
use super::machine_lock::ClientLock;
use super::outbox::Outbox;
use super::task_set::TaskSet;
use super::{caller_timeout, goes_on, holding, GoOn};
use crate::options::Layers;
use crate::{lock, random, registry, ClientOptions, Error, Kind};

/// How long the farewell may take.
pub(crate) const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time for an attempt to connect, in milliseconds, even if the client's timeout is shorter.
const MIN_ATTEMPT_MS: u64 = 1_000;
/// How long the tasks may take to end after the farewell.
const TASKS_TIMEOUT: Duration = Duration::from_millis(200);

/// The part of a dialling driver that depends on its machine: actions, parcels and sinks.
pub(crate) trait DialerPolicy: Send + Sync + Sized + 'static {
    type Lock: ClientLock;

    /// Performs an action that only this machine has.
    fn perform(dialer: &Arc<Dialer<Self>>, wanted: Wanted<Self>);
    /// Called when the server has admitted this party for the first time.
    fn joined(dialer: &Arc<Dialer<Self>>);
    /// Called when the job is over.
    fn finished(dialer: &Arc<Dialer<Self>>, outcome: Result<String, Failure>);
    /// The bytes of a parcel of which the `wanted` ranges are to be sent.
    fn lend(dialer: &Arc<Dialer<Self>>, parcel: u32, wanted: &Ranges) -> Result<Lent, String>;
    /// Whether a parcel may overtake the control messages that were sent before it ([`Outgoing::detached`]).
    fn is_detached(_machine: &Machine<'_, Self>) -> bool {
        false
    }
    /// Which losses of sent parcels are tolerated.
    fn tolerance(_machine: &Machine<'_, Self>) -> Arc<Tolerance> {
        Arc::default()
    }
    /// The sink for received chunks.
    fn sink(dialer: &Arc<Dialer<Self>>, ordered: bool) -> Box<dyn Sink>;
    /// Prepares for a message before the machine handles it, in the reader's task. The message's chunks may
    /// follow at once.
    fn before(&self, _message: &Control) -> Result<(), String> {
        Ok(())
    }
}

/// The machine of a dialer with this policy, and its own actions.
type Machine<'a, P> = <<P as DialerPolicy>::Lock as ClientLock>::Machine<'a>;
type Wanted<P> = <<P as DialerPolicy>::Lock as ClientLock>::Wanted;

/// The options that a dialer uses to reach its server.
pub(crate) struct DialOptions {
    pub address: Address,
    pub transport: Arc<dyn Transport>,
    pub options: Options,
    pub token: Option<pki::Token>,
    /// The party's role in the job.
    pub role: pki::Role,
    pub name: String,
    /// The name that the other end's certificate must have, if it presents one and this end does too. A
    /// node's certificate has the node's name.
    pub expects: Option<String>,
    /// A random number, one for each process.
    pub instance: u64,
    /// When the dialer's clock started.
    pub started: Instant,
}

impl DialOptions {
    /// The options for a client of this name.
    ///
    /// # Errors
    /// An error for an impossible name, address, option or token.
    pub fn new(address: &str, name: &str, options: ClientOptions, role: pki::Role) -> Result<Self, Error> {
        check_name(name).map_err(|why| Error::new(Kind::Options, "start client", why))?;
        let address = Address::parse(address)?;
        let emulate = options.layers.emulate.as_ref().map(|emulate| emulate.of_client(name));
        let layers = Layers { emulate, ..options.layers };
        let transport = registry::transport_for(&address, &options.transport, &layers, options.seed)?;
        let bad = |e: pki::PkiError| Error::new(Kind::Options, "read token", e.cause()).hint(e.hint());
        let token =
            options.token.as_deref().map(|text| pki::Token::of(text, role, name)).transpose().map_err(bad)?;
        let instance = u64::from_le_bytes(random()?);
        // An attempt must end before the client gives up. Otherwise the client could not report that nobody
        // answered.
        let limit = limits::attempt(crate::options::seconds(options.timeout)).as_millis() as u64;
        let connect_timeout_ms = options.transport.connect_timeout_ms.min(limit.max(MIN_ATTEMPT_MS));
        let (options, started) = (Options { connect_timeout_ms, ..options.transport }, Instant::now());
        let (name, expects) = (name.into(), None);
        Ok(Self { address, transport, options, token, role, name, expects, instance, started })
    }

    /// The address of another server of this job, which must use the same transport.
    fn another(&self, url: &str) -> Result<Address, Failure> {
        let address = Address::parse(url).map_err(Error::from)?;
        let (ours, theirs) = (&self.address.scheme, &address.scheme);
        if ours != theirs {
            return Err(
                format!("the server redirects to {url}, but this client uses the transport {ours}").into()
            );
        }
        Ok(address)
    }

    /// Why the other end is not the expected one. A certificate of the right authority and host may still
    /// name another party.
    fn impostor(&self, link: &dyn Link) -> Option<Failure> {
        let expected = self.expects.as_ref().filter(|_| self.is_mutual())?;
        let certified = link.peer().certified.as_ref()?;
        let (found, required) = (link.peer().role.as_deref().unwrap_or("none"), self.role.name());
        if certified == expected && found == required {
            return None;
        }
        Some(Failure::hinted(
            format!(
                "the certificate at {} is for {certified:?} in the role {found}, not for {expected:?} in the role {required}",
                self.address
            ),
            format!(
                "check the addresses, or issue one with `thalweg pki issue {expected} --role {required} --host HOST`"
            ),
        ))
    }

    fn is_mutual(&self) -> bool {
        self.options.tls.as_ref().is_some_and(|tls| tls.identity.is_some())
    }
}

struct Connection {
    generation: u64,
    outbox: Outbox,
}

/// The driver of a client: its machine, and the state that its tasks share.
pub(crate) struct Dialer<P: DialerPolicy> {
    pub machine: P::Lock,
    pub policy: P,
    started: Instant,
    to: DialOptions,
    connection: watch::Sender<Option<Connection>>,
    generations: Mutex<u64>,
    /// The parcel that is being sent, and the handle that cancels the send.
    cancel: Mutex<(u32, Cancel)>,
    /// Segments retransmitted on links that have ended.
    resent: AtomicU64,
    wake: Notify,
    /// Whether the machine is done and all its actions have been performed.
    driven: watch::Sender<bool>,
    waiting: Mutex<()>,
    changed: Condvar,
    task_set: TaskSet,
}

impl<P: DialerPolicy> Dialer<P> {
    /// Starts connecting.
    ///
    /// # Errors
    /// An error if the system starts no threads.
    pub fn start(to: DialOptions, machine: P::Lock, policy: P) -> Result<Arc<Self>, Error> {
        let task_set = TaskSet::new()?;
        let dialer = Arc::new(Self {
            machine,
            policy,
            started: to.started,
            to,
            connection: watch::Sender::new(None),
            generations: Mutex::default(),
            cancel: Mutex::default(),
            resent: AtomicU64::new(0),
            wake: Notify::new(),
            driven: watch::Sender::new(false),
            waiting: Mutex::default(),
            changed: Condvar::new(),
            task_set: task_set.clone(),
        });
        task_set.spawn(drive(dialer.clone()));
        Ok(dialer)
    }

    pub fn now(&self) -> Time {
        self.started.elapsed()
    }

    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Wakes waiting callers: something that they wait for may have changed.
    pub fn announce(&self) {
        drop(lock(&self.waiting));
        self.changed.notify_all();
    }

    /// Waits until `look` returns `Some`, or `go_on` returns false.
    pub fn wait_for<T>(&self, mut look: impl FnMut() -> Option<T>, go_on: GoOn<'_>) -> Option<T> {
        loop {
            let waiting = lock(&self.waiting);
            if let Some(found) = look() {
                return Some(found);
            }
            let waited = self.changed.wait_timeout(waiting, caller_timeout(go_on));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            if let Some(found) = look() {
                return Some(found);
            }
            if !goes_on(go_on) {
                return None;
            }
        }
    }

    pub fn link(&self) -> Option<Arc<dyn Link>> {
        self.connection.borrow().as_ref().map(|connection| connection.outbox.link().clone())
    }

    fn outbox(&self) -> Option<Outbox> {
        self.connection.borrow().as_ref().map(|connection| connection.outbox.clone())
    }

    /// Closes the link. The machine then connects again.
    pub fn close_link(&self) {
        if let Some(outbox) = self.outbox() {
            outbox.close();
        }
    }

    /// Ends the job for this party, for this reason.
    pub fn fail(&self, why: impl Into<Failure>) {
        self.machine.with(|machine| machine.unreachable(self.now(), why, false));
        self.wake();
    }

    /// Leaves for good. Idempotent.
    pub fn close(self: &Arc<Self>, reason: &str) {
        self.close_within(reason, FAREWELL_TIMEOUT);
    }

    /// Leaves for good. Messages that were sent before this call get at most `timeout` to reach the server.
    pub fn close_within(self: &Arc<Self>, reason: &str, timeout: Duration) {
        self.machine.with(|machine| machine.leave(reason));
        self.wake();
        self.task_set.handle().block_on(async {
            let farewell = async {
                // Wait until the driver has queued the farewell, which it does in a task of its own. Ignore
                // an error: the driver has ended.
                let _ = self.driven.subscribe().wait_for(|driven| *driven).await;
                // The server closes the link once it has received the farewell. If this end closed it, data
                // still on its way might be lost.
                let _ = self.connection.subscribe().wait_for(Option::is_none).await;
            };
            let _ = tokio::time::timeout(timeout, farewell).await;
            if let Some(link) = self.link() {
                link.close().await;
            }
        });
        self.task_set.dismiss(TASKS_TIMEOUT);
        self.connection.send_replace(None);
        // Callers that wait for an event must get `Finished`, even if the driver ended before it performed
        // that action.
        while let Some(action) = self.next_action() {
            if let ClientAction::Finished(outcome) = action {
                P::finished(self, outcome);
            }
        }
    }

    fn next_action(&self) -> Option<ClientAction<Wanted<P>>> {
        self.machine.with(|machine| machine.poll_action())
    }

    fn perform(self: &Arc<Self>, action: ClientAction<Wanted<P>>) {
        match action {
            ClientAction::Connect { after, to } => self.task_set.spawn(connect(self.clone(), after, to)),
            ClientAction::Prove { challenge, job, token } => self.prove(&challenge, job, token),
            ClientAction::Send(message) => {
                if let Some(outbox) = self.outbox() {
                    outbox.send(&message);
                }
            }
            ClientAction::SendParcel { parcel, wanted } => self.send_parcel(parcel, &wanted),
            ClientAction::Cancel { parcel } => {
                let (sending, cancel) = &*lock(&self.cancel);
                if parcel.is_none_or(|parcel| parcel == *sending) {
                    cancel.cancel();
                }
            }
            ClientAction::Close => {
                if let Some(outbox) = self.outbox() {
                    outbox.close();
                }
            }
            ClientAction::Joined(_) => P::joined(self),
            ClientAction::Finished(outcome) => P::finished(self, outcome),
            ClientAction::Policy(wanted) => P::perform(self, wanted),
        }
    }

    fn prove(&self, challenge: &Nonce, job: u64, token: bool) {
        let binding = self.link().and_then(|link| link.peer().binding);
        self.machine.with(|machine| {
            let credentials = self.to.token.as_ref().filter(|_| token).zip(machine.nonce());
            let proof = credentials.map(|(token, nonce)| -> Proof {
                let transcript = pki::Transcript {
                    server_nonce: challenge,
                    client_nonce: &nonce,
                    job,
                    name: &self.to.name,
                    binding: binding.as_ref(),
                };
                Box::new(token.prove(self.to.role, &transcript))
            });
            machine.proven(self.now(), proof);
        });
        self.wake();
    }

    fn send_parcel(self: &Arc<Self>, parcel: u32, wanted: &Ranges) {
        let prepared = self.prepare(parcel, wanted);
        let dialer = self.clone();
        self.task_set.spawn(async move {
            let outcome = match prepared {
                Ok((outbox, update)) => dialer.send(&outbox, &update).await,
                Err(reason) => Err(reason),
            };
            dialer.machine.with(|machine| machine.sent(dialer.now(), parcel, outcome));
            dialer.wake();
        });
    }

    fn prepare(self: &Arc<Self>, parcel: u32, wanted: &Ranges) -> Result<(Outbox, Outgoing), String> {
        let outbox = self.outbox().ok_or("not connected")?;
        let membership = self.machine.with(|machine| {
            outbox.link().tolerate(&P::tolerance(machine));
            let welcome = machine.welcome()?;
            Some((welcome.job, welcome.sender, welcome.chunk, P::is_detached(machine)))
        });
        let (job, sender, chunk, detached) = membership.ok_or("not joined")?;
        let lent = P::lend(self, parcel, wanted)?;
        let cancel = Cancel::default();
        *lock(&self.cancel) = (parcel, cancel.clone());
        let update = lent.outgoing((job, parcel, sender), wanted, chunk, cancel);
        Ok((outbox, if detached { update.detached() } else { update }))
    }

    /// Number of segments retransmitted over all links up to and with this one.
    fn retransmitted(&self, link: &Arc<dyn Link>) -> Option<u64> {
        Some(link.counters().retransmissions? + self.resent.load(Ordering::Relaxed))
    }

    async fn send(&self, outbox: &Outbox, update: &Outgoing) -> Result<Span, String> {
        // An Offer may be queued. The peer drops chunks that come before it.
        if !update.is_detached() {
            tokio::select! {
                () = update.cancel().cancelled() => {}
                () = outbox.flushed() => {}
            }
        }
        let report = outbox.link().send_update(update).await;
        update.cancel().cancel(); // ends the loan
        let at = |instant: Instant| instant.saturating_duration_since(self.started);
        let span = report.map(|r| Span { start: at(r.started), end: at(r.ended) });
        span.map_err(|e| e.to_string())
    }
}

async fn connect<P: DialerPolicy>(dialer: Arc<Dialer<P>>, after: Time, to: Option<String>) {
    tokio::time::sleep(after).await;
    let sent = to.is_some();
    let address = match to.map(|url| dialer.to.another(&url)).transpose() {
        Ok(another) => another.unwrap_or_else(|| dialer.to.address.clone()),
        Err(why) => {
            dialer.machine.with(|machine| machine.unreachable(dialer.now(), why, true));
            return dialer.wake();
        }
    };
    let attempt = || dialer.to.transport.connect(&address, &dialer.to.options);
    let connected = match dialer.machine.with(|machine| machine.pace()) {
        Some(pace) => paced(pace, attempt).await,
        None => attempt().await,
    };
    match connected {
        Ok(link) => {
            if let Some(why) = dialer.to.impostor(&*link) {
                link.close().await;
                dialer.fail(why);
            } else if let Err(error) = attach(&dialer, link) {
                dialer.fail(error);
            }
        }
        Err(error) => {
            // If the address came from a server, another address may work, so retry after any error.
            let may_retry = error.kind().may_retry() || sent;
            let why = Error::from(error);
            dialer.machine.with(|machine| machine.unreachable(dialer.now(), why, may_retry));
        }
    }
    dialer.wake();
}

fn attach<P: DialerPolicy>(dialer: &Arc<Dialer<P>>, link: Arc<dyn Link>) -> Result<(), Error> {
    let nonce = random()?;
    let ordered = link.capabilities().settles();
    let generation = {
        let mut generations = lock(&dialer.generations);
        *generations += 1;
        *generations
    };
    let outbox = Outbox::start(&dialer.task_set, link.clone());
    dialer.connection.send_replace(Some(Connection { generation, outbox }));
    dialer.machine.with(|machine| machine.connected(dialer.now(), nonce, ordered));
    dialer.task_set.spawn(read(dialer.clone(), generation, link));
    Ok(())
}

/// Reads one link until it ends.
async fn read<P: DialerPolicy>(dialer: Arc<Dialer<P>>, generation: u64, link: Arc<dyn Link>) {
    let sink = P::sink(&dialer, link.capabilities().settles());
    let holding = holding::watch(link.clone(), {
        let dialer = dialer.clone();
        move |_| dialer.machine.with(|machine| machine.held(dialer.now()))
    });
    let reason = loop {
        let message = match link.receive(&*sink).await {
            Ok(message) => message,
            Err(error) => break error.to_string(),
        };
        let message = match Control::decode(&message) {
            Ok(message) => message,
            Err(error) => break error.to_string(),
        };
        if let Err(reason) = dialer.policy.before(&message) {
            dialer.fail(reason.as_str());
            break reason;
        }
        dialer.machine.with(|machine| {
            if message.settles().is_some() {
                machine.observe(dialer.retransmitted(&link));
            }
            machine.control(dialer.now(), message);
        });
        dialer.wake();
    };
    dialer.resent.fetch_add(link.counters().retransmissions.unwrap_or(0), Ordering::Relaxed);
    drop(holding); // another link may follow
    link.close().await;
    let was_ours = dialer.connection.send_if_modified(|connection| {
        connection.take_if(|connection| connection.generation == generation).is_some()
    });
    if was_ours {
        dialer.machine.with(|machine| machine.closed(dialer.now(), &reason));
        dialer.wake();
    }
}

/// Performs the machine's actions in order, and tells it the time, until it is done.
async fn drive<P: DialerPolicy>(dialer: Arc<Dialer<P>>) {
    loop {
        let (actions, timeout, done) = dialer.machine.with(|machine| {
            let actions: Vec<_> = std::iter::from_fn(|| machine.poll_action()).collect();
            (actions, machine.poll_timeout(), machine.is_done())
        });
        if actions.is_empty() {
            if done {
                dialer.driven.send_replace(true);
                return;
            }
            let idle = timeout.map_or(Duration::from_secs(3600), |at| at.saturating_sub(dialer.now()));
            tokio::select! {
                () = dialer.wake.notified() => {}
                () = tokio::time::sleep(idle) => dialer.machine.with(|machine| machine.timeout(dialer.now())),
            }
        }
        for action in actions {
            dialer.perform(action);
        }
    }
}
