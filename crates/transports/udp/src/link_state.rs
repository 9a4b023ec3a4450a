//! The state of a link that its sending side, its receiving side and its tasks share: counters, the queue of
//! unacknowledged control messages, and whether the link has ended.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use bytes::Bytes;
use thalweg_transport::{Error, Result, Standing};
use tokio::sync::{watch, Mutex, Notify};

use crate::repetition::Unacknowledged;
use crate::socket::Lane;

/// How a link has ended.
#[derive(Debug, Clone)]
struct End {
    why: String,
    /// Whether receiving fails at once, too: this end closed the link, or the peer broke the protocol.
    refused: bool,
}

/// State shared by both directions of a link.
pub struct LinkState {
    /// The peer's address, for error messages.
    who: String,
    /// Whether the peer has authenticated, and how much it may send before that.
    pub standing: Standing,
    /// Set when the link has ended.
    end: watch::Sender<Option<End>>,
    /// Number of control messages sent.
    pub messages_sent: AtomicU64,
    /// Total cost of the chunk datagrams sent, by [`cost`](crate::window::cost). Probes repeat this position.
    pub position: AtomicU64,
    /// Wakes the task that repeats probes, after a control message was sent.
    pub probe_due: Notify,
    /// Wakes the task that repeats control messages, after a control message was sent.
    pub message_sent: Notify,
    /// Control messages that the peer has not acknowledged.
    pub unacknowledged: Unacknowledged,
    /// True once this end has sent a detached update, whose chunks wait for no control message.
    pub detached: AtomicBool,
    /// Held while a control message is sent and counted, so that its number is its place on the control
    /// connection.
    pub sending_message: Mutex<()>,
    /// Bytes of datagrams sent.
    pub sent: AtomicU64,
    /// Bytes of datagrams received.
    pub received: AtomicU64,
    /// Bytes of payload copied.
    pub copied: AtomicU64,
}

impl LinkState {
    /// Creates the state of a link to `who`, which error messages name.
    pub fn new(who: String, standing: Standing) -> Self {
        let zero = AtomicU64::default;
        Self {
            who,
            standing,
            end: watch::Sender::new(None),
            messages_sent: zero(),
            position: zero(),
            probe_due: Notify::new(),
            message_sent: Notify::new(),
            unacknowledged: Unacknowledged::default(),
            detached: AtomicBool::default(),
            sending_message: Mutex::new(()),
            sent: zero(),
            received: zero(),
            copied: zero(),
        }
    }

    /// Numbers a control message that the control connection has accepted, and keeps it for repetition.
    ///
    /// If this end sends detached updates, the message also goes out in a datagram at once: an end whose
    /// chunks do not wait for messages should not wait a round trip for the peer's answer either.
    pub fn note_message(&self, lane: &Lane, message: Bytes) {
        let number = self.messages_sent.fetch_add(1, Release) + 1;
        if let Some(sent) =
            self.unacknowledged.keep(number, message, self.detached.load(Relaxed).then_some(lane))
        {
            self.sent.fetch_add(sent as u64, Relaxed);
        }
        self.message_sent.notify_one();
    }

    /// Marks the link as ended by the peer. Messages that arrived before the end can still be received.
    pub fn ended_by_peer(&self, why: &str) {
        self.set(why, false);
    }

    /// Ends the link; receiving fails at once, even if more has arrived.
    pub fn refuse(&self, why: &str) {
        self.set(why, true);
    }

    fn set(&self, why: &str, refused: bool) {
        self.end.send_modify(|end| match end {
            Some(end) => end.refused |= refused,
            None => *end = Some(End { why: why.into(), refused }),
        });
    }

    fn closed(&self, operation: &'static str) -> Error {
        let why = self.end.borrow().as_ref().map_or("the link has ended".into(), |end| end.why.clone());
        Error::closed(operation, format!("{}: {why}", self.who))
    }

    /// Checks that the link has not ended.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](thalweg_transport::ErrorKind::Closed), with the reason.
    pub fn check(&self, operation: &'static str) -> Result<()> {
        if self.end.borrow().is_some() {
            return Err(self.closed(operation));
        }
        Ok(())
    }

    /// Waits until the link has ended. Returns the error for the caller's operation.
    pub async fn ended(&self, operation: &'static str) -> Error {
        // This cannot fail: we hold the sender.
        let _ = self.end.subscribe().wait_for(Option::is_some).await;
        self.closed(operation)
    }

    /// Waits until receiving fails, see [`LinkState::refuse`]. Returns the error for the caller's operation.
    pub async fn refused(&self, operation: &'static str) -> Error {
        let _ = self.end.subscribe().wait_for(|end| end.as_ref().is_some_and(|end| end.refused)).await;
        self.closed(operation)
    }
}
