//! What both directions know of a link.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use thalweg_transport::{Capabilities, Counters, Error, ErrorKind, Peer, Result, Standing};
use tokio::sync::{watch, Notify};

use crate::credit::{Allowance, Credit};
use crate::envelope::{encode, Before, Kind, Ledger, Tag};
use crate::intake::Intake;
use crate::shelf::{Kept, Shelf, Told};
use crate::{Care, Carrier, Mailbox, Message, Nature, CONTROL_WINDOW};

/// How far a link's end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum State {
    Open,
    /// Nothing more can be sent; what came before can still be received.
    Ended,
    /// Nothing more is received either: closed at this end, or the peer broke the protocol.
    Refused,
}

/// Who is at this link's ends, and how they talk.
pub(crate) struct Ends {
    pub carrier: Arc<dyn Carrier>,
    /// Where the other end reads.
    pub to: Mailbox,
    pub tag: Tag,
    /// The member's place in a group.
    pub slot: u32,
    pub peer: Peer,
    pub capabilities: Capabilities,
    /// Woken when a link of the listener's has been granted more, or has ended.
    pub moved: Arc<Notify>,
    /// Bytes of chunks that this end grants, and that the other end does.
    pub windows: (u64, u64),
    /// The last number of the group: what was published for certain, at the listener; what came first, at a member.
    pub group: Arc<AtomicU64>,
    /// What the post keeps for who comes later, at the listener.
    pub kept: Arc<Mutex<Kept>>,
    /// How much the other end may send.
    pub standing: Standing,
}

/// The numbers of what this end sends to the other's own mailbox. Held while a message is published.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub control: u64,
    /// The last chunk begun, and the last that was published for certain.
    pub bulk: u64,
    pub certain: u64,
}

pub(crate) struct LinkState {
    pub ends: Ends,
    pub nature: Nature,
    /// Fair: a control message waits for the message being published, not for an update.
    pub turn: tokio::sync::Mutex<Numbers>,
    /// One control message at a time, since it may have several parts.
    pub whole: tokio::sync::Mutex<()>,
    pub bulk: Credit,
    pub control: Credit,
    /// Bytes of chunks that have gone to the other end, or may have.
    pub position: AtomicU64,
    pub intake: Intake,
    /// Something is to be said of how things stand.
    pub tell: Notify,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub copied: AtomicU64,
    heard: Mutex<Instant>,
    /// Bytes that went to the group and not to this member, since it was last heard of.
    pub passed: AtomicU64,
    /// Of what the post has kept: what is here, at a member; what the member says is there, at the listener.
    pub shelf: Mutex<Shelf>,
    pub told: Mutex<Told>,
    state: watch::Sender<State>,
    why: OnceLock<Error>,
    /// Whether the other end is known to know of the link.
    ready: watch::Sender<bool>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is changed, so a poisoned one is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LinkState {
    pub(crate) fn new(ends: Ends) -> Arc<Self> {
        let zero = AtomicU64::default;
        let first = ends.group.load(Ordering::Acquire);
        let allowances = (Allowance::new(ends.windows.0), Allowance::new(CONTROL_WINDOW));
        Arc::new(Self {
            nature: ends.carrier.nature(),
            turn: tokio::sync::Mutex::default(),
            whole: tokio::sync::Mutex::default(),
            bulk: Credit::new(ends.windows.1),
            control: Credit::new(CONTROL_WINDOW),
            position: zero(),
            intake: Intake::new(allowances, first, ends.standing.is_proved()),
            tell: Notify::new(),
            sent: zero(),
            received: zero(),
            copied: zero(),
            heard: Mutex::new(Instant::now()),
            passed: zero(),
            shelf: Mutex::default(),
            told: Mutex::default(),
            state: watch::Sender::new(State::Open),
            why: OnceLock::new(),
            ready: watch::Sender::new(false),
            ends,
        })
    }

    /// The other end has proved who it is.
    pub(crate) fn admit(&self) {
        self.ends.standing.admit();
        self.intake.open();
        if let Mailbox::Member(member) = self.ends.to {
            self.ends.carrier.admit(member);
        }
    }

    fn advance(&self, to: State, why: Error) {
        let _ = self.why.set(why); // the first reason counts
        self.state.send_if_modified(|state| {
            let further = *state < to;
            *state = if further { to } else { *state };
            further
        });
        self.intake.end();
        self.ends.moved.notify_waiters();
    }

    fn because(&self, kind: ErrorKind, why: &str) -> Error {
        Error::new(kind, "link", format!("{}: {why}", self.ends.peer.address))
    }

    /// Ends the link; wakes whoever sends. What came before can still be received.
    pub(crate) fn end(&self, why: &str) {
        self.advance(State::Ended, self.because(ErrorKind::Closed, why));
    }

    /// Ends the link, and takes nothing more from the other end.
    pub(crate) fn refuse(&self, why: &str) {
        self.advance(State::Refused, self.because(ErrorKind::Closed, why));
    }

    /// The other end does not keep to the protocol.
    pub(crate) fn corrupt(&self, why: &str) {
        self.advance(State::Refused, self.because(ErrorKind::Corrupt, why));
    }

    async fn reached(&self, state: State) {
        // It fails when the sender is gone, which lives as long as we do.
        let _ = self.state.subscribe().wait_for(|now| *now >= state).await;
    }

    /// Waits until nothing more can be sent.
    pub(crate) async fn ended(&self) {
        self.reached(State::Ended).await;
    }

    /// Waits until nothing more is received.
    pub(crate) async fn refused(&self) {
        self.reached(State::Refused).await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.state.borrow() >= State::Ended
    }

    /// Why it ended, in words for the other end.
    pub(crate) fn farewell(&self) -> String {
        self.why.get().map(ToString::to_string).unwrap_or_default()
    }

    /// The error of a sender.
    pub(crate) fn closed(&self, operation: &'static str) -> Error {
        let why = self.why.get().map_or_else(|| "the link has ended".into(), words);
        Error::closed(operation, why)
    }

    /// The error of a receiver, which says if the other end broke the protocol.
    pub(crate) fn fault(&self, operation: &'static str) -> Error {
        let kind = self.why.get().map_or(ErrorKind::Closed, Error::kind);
        Error::new(kind, operation, words(&self.closed("link")))
    }

    /// Whether sending makes sense.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if self.has_ended() {
            Err(self.closed(operation))
        } else {
            Ok(())
        }
    }

    /// The other end knows of the link. Whether that is news.
    pub(crate) fn make_ready(&self) -> bool {
        self.ready.send_if_modified(|ready| !std::mem::replace(ready, true))
    }

    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Waits until the other end knows of the link.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if it ends before, [`ErrorKind::Timeout`] too.
    pub(crate) async fn until_ready(&self, operation: &'static str) -> Result<()> {
        let mut ready = self.ready.subscribe();
        tokio::select! {
            biased;
            _ = ready.wait_for(|ready| *ready) => Ok(()),
            () = self.ended() => Err(self.fault(operation)),
        }
    }

    /// Something came.
    pub(crate) fn hear(&self, wire: u64) {
        self.received.fetch_add(wire, Ordering::Relaxed);
        *lock(&self.heard) = Instant::now();
        self.passed.store(0, Ordering::Relaxed);
    }

    /// When something last came.
    pub(crate) fn heard(&self) -> Instant {
        *lock(&self.heard)
    }

    /// What has been sent before a message that is published now. The turn must be held.
    pub(crate) fn before(&self, numbers: &Numbers) -> Before {
        // The position first: what a group send adds meanwhile must not be missed at the other end.
        let position = self.position.load(Ordering::Acquire);
        let group =
            if self.ends.to == Mailbox::Listener { 0 } else { self.ends.group.load(Ordering::Acquire) };
        Before { bulk: numbers.certain, group, position }
    }

    /// Publishes a message without a chunk's bytes to the other end's own mailbox. The turn must be held.
    pub(crate) async fn publish(&self, kind: &Kind, body: &[u8]) -> Result<u64> {
        let head = encode(self.ends.tag, kind);
        let care = match kind {
            Kind::Begins { .. } => Care::Hint,
            Kind::KeptChunk { .. } => Care::Bulk,
            _ => Care::Control,
        };
        let message = Message { head: &head, body, care };
        let wire =
            self.ends.carrier.publish(self.ends.to, message).await.inspect_err(|e| self.end(&words(e)))?;
        self.sent.fetch_add(wire, Ordering::Relaxed);
        Ok(wire)
    }

    /// Says how things stand.
    pub(crate) async fn publish_ledger(&self) -> Result<u64> {
        let numbers = self.turn.lock().await;
        let (granted_bulk, granted_control) = self.intake.granted();
        let before = self.before(&numbers);
        let ledger = Ledger { granted_bulk, granted_control, control: numbers.control, before };
        self.publish(&Kind::Ledger(ledger), &[]).await
    }

    /// What the other end says of how things stand.
    pub(crate) fn settle(&self, ledger: &Ledger) {
        self.bulk.grant(ledger.granted_bulk);
        self.control.grant(ledger.granted_control);
        self.ends.moved.notify_waiters();
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut network = self.ends.carrier.network(self.ends.to);
        let to_broker = self.ends.capabilities.broker && self.ends.to != Mailbox::Listener;
        if to_broker && self.ends.slot > 0 {
            // All links of a listener share its connection to the broker: the first tells of it.
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

/// An error without its operation, to be put after other words.
pub(crate) fn words(error: &Error) -> String {
    let text = error.to_string();
    text.split_once(": ").map_or(text.clone(), |(_, context)| context.into())
}
