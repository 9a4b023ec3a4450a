//! The state of a link that its sending side, its receiving side and its supervising task share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use thalweg_transport::{Capabilities, Counters, Error, ErrorKind, Peer, Result, Standing};
use tokio::sync::{watch, Notify};

use crate::credit::{Allowance, Credit};
use crate::envelope::{encode, Before, Kind, Ledger, Tag};
use crate::intake::Intake;
use crate::shelf::{Kept, ReportedChunks, Shelf};
use crate::{Care, Carrier, Mailbox, Message, Nature, CONTROL_WINDOW};

/// Whether a link has ended, and whether its messages can still be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum State {
    Open,
    /// Nothing more can be sent. Messages that arrived before the end can still be received.
    Ended,
    /// Receiving fails too: this end has closed the link, or the peer broke the protocol.
    Refused,
}

/// The fixed properties of a link.
pub(crate) struct Ends {
    pub carrier: Arc<dyn Carrier>,
    /// The other end's mailbox.
    pub to: Mailbox,
    pub tag: Tag,
    /// The member's bit in messages to the group.
    pub slot: u32,
    pub peer: Peer,
    pub capabilities: Capabilities,
    /// Shared by all links of a listener. Wakes the group send when a link gets credit or ends.
    pub credit_changed: Arc<Notify>,
    /// The initial windows for chunks, by cost: this end's and the other end's.
    pub windows: (u64, u64),
    /// Number of a chunk to the group. At the listener: of the last confirmed one, shared by all links. At a
    /// member: the number in the listener's welcome.
    pub group: Arc<AtomicU64>,
    /// At the listener: the chunks that the broker retains for members that join later.
    pub kept: Arc<Mutex<Kept>>,
    /// Whether the other end has authenticated, and how much it may send before that.
    pub standing: Standing,
}

/// Numbers of the messages to the other end's own mailbox. The lock is held while a message is published.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub control: u64,
    /// Number of the last chunk whose publication has begun.
    pub bulk: u64,
    /// Number of the last chunk whose publication was confirmed.
    pub confirmed: u64,
}

/// The state of a link.
pub(crate) struct LinkState {
    pub ends: Ends,
    pub nature: Nature,
    /// Fair, so a control message waits only for the message being published and not for a whole update.
    pub numbers: tokio::sync::Mutex<Numbers>,
    /// Held while the parts of a control message are sent, so that messages do not mix.
    pub one_message: tokio::sync::Mutex<()>,
    pub bulk: Credit,
    pub control: Credit,
    /// Total cost of the chunks that were sent to the other end, or may have been sent.
    pub position: AtomicU64,
    pub intake: Intake,
    /// Tells the supervising task to send this end's state.
    pub state_due: Notify,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub copied: AtomicU64,
    last_arrival: Mutex<Instant>,
    /// Bytes published to the group but not for this member, since a message of it last arrived.
    pub passed: AtomicU64,
    /// At a member: the retained chunks that the member holds.
    pub shelf: Mutex<Shelf>,
    /// At the listener: the retained chunks that the member has reported to hold.
    pub reported_chunks: Mutex<ReportedChunks>,
    state: watch::Sender<State>,
    why: OnceLock<Error>,
    /// Whether the other end has confirmed the link.
    ready: watch::Sender<bool>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds the lock, so a poisoned value is still consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LinkState {
    pub(crate) fn new(ends: Ends) -> Arc<Self> {
        let zero = AtomicU64::default;
        let first = ends.group.load(Ordering::Acquire);
        let allowances = (Allowance::new(ends.windows.0), Allowance::new(CONTROL_WINDOW));
        Arc::new(Self {
            nature: ends.carrier.nature(),
            numbers: tokio::sync::Mutex::default(),
            one_message: tokio::sync::Mutex::default(),
            bulk: Credit::new(ends.windows.1),
            control: Credit::new(CONTROL_WINDOW),
            position: zero(),
            intake: Intake::new(allowances, first, ends.standing.is_proved()),
            state_due: Notify::new(),
            sent: zero(),
            received: zero(),
            copied: zero(),
            last_arrival: Mutex::new(Instant::now()),
            passed: zero(),
            shelf: Mutex::default(),
            reported_chunks: Mutex::default(),
            state: watch::Sender::new(State::Open),
            why: OnceLock::new(),
            ready: watch::Sender::new(false),
            ends,
        })
    }

    /// The session has admitted the other end.
    pub(crate) fn admit(&self) {
        self.ends.standing.admit();
        self.intake.open();
        if let Mailbox::Member(member) = self.ends.to {
            self.ends.carrier.admit(member);
        }
    }

    fn advance(&self, to: State, why: Error) {
        // Only the first reason is kept.
        let _ = self.why.set(why);
        self.state.send_if_modified(|state| {
            let further = *state < to;
            *state = if further { to } else { *state };
            further
        });
        self.intake.end();
        self.ends.credit_changed.notify_waiters();
    }

    fn because(&self, kind: ErrorKind, why: &str) -> Error {
        Error::new(kind, "link", format!("{}: {why}", self.ends.peer.address))
    }

    /// Ends the link and wakes senders. Messages that arrived before the end can still be received.
    pub(crate) fn end(&self, why: &str) {
        self.advance(State::Ended, self.because(ErrorKind::Closed, why));
    }

    /// Ends the link, and makes receiving fail too.
    pub(crate) fn refuse(&self, why: &str) {
        self.advance(State::Refused, self.because(ErrorKind::Closed, why));
    }

    /// Ends the link because the other end broke the protocol.
    pub(crate) fn corrupt(&self, why: &str) {
        self.advance(State::Refused, self.because(ErrorKind::Corrupt, why));
    }

    async fn reached(&self, state: State) {
        // This cannot fail: we hold the sender.
        let _ = self.state.subscribe().wait_for(|now| *now >= state).await;
    }

    /// Waits until sending fails.
    pub(crate) async fn ended(&self) {
        self.reached(State::Ended).await;
    }

    /// Waits until receiving fails.
    pub(crate) async fn refused(&self) {
        self.reached(State::Refused).await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.state.borrow() >= State::Ended
    }

    /// The reason why the link ended, for the goodbye to the other end.
    pub(crate) fn farewell(&self) -> String {
        self.why.get().map(ToString::to_string).unwrap_or_default()
    }

    /// The error that a sender gets.
    pub(crate) fn closed(&self, operation: &'static str) -> Error {
        let why = self.why.get().map_or_else(|| "the link has ended".into(), Error::reason);
        Error::closed(operation, why)
    }

    /// The error that a receiver gets. Its kind says whether the other end broke the protocol.
    pub(crate) fn fault(&self, operation: &'static str) -> Error {
        let kind = self.why.get().map_or(ErrorKind::Closed, Error::kind);
        Error::new(kind, operation, self.closed(operation).cause())
    }

    /// Returns an error if the link has ended.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if self.has_ended() {
            Err(self.closed(operation))
        } else {
            Ok(())
        }
    }

    /// Notes that the other end has confirmed the link. Returns whether that is new.
    pub(crate) fn make_ready(&self) -> bool {
        self.ready.send_if_modified(|ready| !std::mem::replace(ready, true))
    }

    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Waits until the other end has confirmed the link.
    ///
    /// # Errors
    /// The reason why the link ended, if it ends while this waits: [`ErrorKind::Closed`] or
    /// [`ErrorKind::Corrupt`].
    pub(crate) async fn until_ready(&self, operation: &'static str) -> Result<()> {
        let mut ready = self.ready.subscribe();
        tokio::select! {
            biased;
            _ = ready.wait_for(|ready| *ready) => Ok(()),
            () = self.ended() => Err(self.fault(operation)),
        }
    }

    /// Notes that a message of `wire` bytes arrived.
    pub(crate) fn note_arrival(&self, wire: u64) {
        self.received.fetch_add(wire, Ordering::Relaxed);
        *lock(&self.last_arrival) = Instant::now();
        self.passed.store(0, Ordering::Relaxed);
    }

    /// When the last message arrived.
    pub(crate) fn last_arrival(&self) -> Instant {
        *lock(&self.last_arrival)
    }

    /// What this end sent before the message that it is about to publish. The caller holds `numbers`.
    pub(crate) fn before(&self, numbers: &Numbers) -> Before {
        // Read the position first. A group send may publish a chunk meanwhile, and the other end must not
        // miss it.
        let position = self.position.load(Ordering::Acquire);
        let group =
            if self.ends.to == Mailbox::Listener { 0 } else { self.ends.group.load(Ordering::Acquire) };
        Before { bulk: numbers.confirmed, group, position }
    }

    /// Publishes a message without a chunk's payload to the other end's own mailbox. The caller holds
    /// `numbers`. An error ends the link.
    pub(crate) async fn publish(&self, kind: &Kind, body: &[u8]) -> Result<u64> {
        let head = encode(self.ends.tag, kind);
        let care = match kind {
            Kind::Begins { .. } => Care::Hint,
            Kind::KeptChunk { .. } => Care::Bulk,
            _ => Care::Control,
        };
        let message = Message { head: &head, body, care };
        let wire =
            self.ends.carrier.publish(self.ends.to, message).await.inspect_err(|e| self.end(&e.reason()))?;
        self.sent.fetch_add(wire, Ordering::Relaxed);
        Ok(wire)
    }

    /// Publishes this end's state.
    pub(crate) async fn publish_ledger(&self) -> Result<u64> {
        let numbers = self.numbers.lock().await;
        let (granted_bulk, granted_control) = self.intake.granted();
        let before = self.before(&numbers);
        let ledger = Ledger { granted_bulk, granted_control, control: numbers.control, before };
        self.publish(&Kind::Ledger(ledger), &[]).await
    }

    /// Processes the grants in the other end's state.
    pub(crate) fn settle(&self, ledger: &Ledger) {
        self.bulk.grant(ledger.granted_bulk);
        self.control.grant(ledger.granted_control);
        self.ends.credit_changed.notify_waiters();
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut network = self.ends.carrier.network(self.ends.to);
        let to_broker = self.ends.capabilities.broker && self.ends.to != Mailbox::Listener;
        if to_broker && self.ends.slot > 0 {
            // All links of a listener share its connection to the broker. Count retransmissions only once, on
            // the link in slot 0.
            network.retransmissions = network.retransmissions.map(|_| 0);
        }
        Counters {
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            copied: self.copied.load(Ordering::Relaxed),
            retransmissions: network.retransmissions,
            round_trip: network.round_trip,
            congestion: network.congestion,
            ..Counters::default()
        }
    }
}
