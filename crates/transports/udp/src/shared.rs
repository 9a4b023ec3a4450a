//! What both directions know of the link.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use bytes::Bytes;
use thalweg_transport::{Error, Result, Standing};
use tokio::sync::{watch, Mutex, Notify};

use crate::said::Said;
use crate::socket::Lane;

#[derive(Debug, Clone)]
struct End {
    why: String,
    /// Whether what still comes is refused too: closed at this end, or the peer broke the protocol.
    refused: bool,
}

/// Counters of a link, and whether it has ended.
pub struct Shared {
    who: String,
    /// How much the peer may send.
    pub standing: Standing,
    end: watch::Sender<Option<End>>,
    /// Control messages sent.
    pub told: AtomicU64,
    /// What has been sent of datagrams, by cost.
    pub position: AtomicU64,
    /// A control message has been sent.
    pub spoke: Notify,
    /// The same, for who repeats messages.
    pub said_more: Notify,
    /// Control messages that the peer is not known to have.
    pub said: Said,
    /// Updates are sent here whose chunks wait for no message.
    pub detached: AtomicBool,
    /// Held while a control message is sent and counted: its number is its place on the control connection.
    pub speaking: Mutex<()>,
    /// Bytes of datagrams sent.
    pub sent: AtomicU64,
    /// Bytes of datagrams received.
    pub received: AtomicU64,
    /// Bytes of payload copied.
    pub copied: AtomicU64,
}

impl Shared {
    /// Of a link to `who`, for people.
    pub fn new(who: String, standing: Standing) -> Self {
        let zero = AtomicU64::default;
        Self {
            who,
            standing,
            end: watch::Sender::new(None),
            told: zero(),
            position: zero(),
            spoke: Notify::new(),
            said_more: Notify::new(),
            said: Said::default(),
            detached: AtomicBool::default(),
            speaking: Mutex::new(()),
            sent: zero(),
            received: zero(),
            copied: zero(),
        }
    }

    /// The control connection has taken `message`, which gets its number. Who waits for no message with chunks wants no
    /// chunk to wait for a reply either: there the message goes in a datagram at once, too.
    pub fn spoken(&self, lane: &Lane, message: Bytes) {
        let number = self.told.fetch_add(1, Release) + 1;
        if let Some(sent) = self.said.say(number, message, self.detached.load(Relaxed).then_some(lane)) {
            self.sent.fetch_add(sent as u64, Relaxed);
        }
        self.said_more.notify_one();
    }

    /// The peer has ended the link; what came before can still be received.
    pub fn ended_by_peer(&self, why: &str) {
        self.set(why, false);
    }

    /// The link ends, and nothing more is taken from the peer.
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

    /// Whether sending makes sense.
    pub fn check(&self, operation: &'static str) -> Result<()> {
        if self.end.borrow().is_some() {
            return Err(self.closed(operation));
        }
        Ok(())
    }

    /// Waits until sending makes no sense any more.
    pub async fn ended(&self, operation: &'static str) -> Error {
        // It cannot fail: we hold the sender.
        let _ = self.end.subscribe().wait_for(Option::is_some).await;
        self.closed(operation)
    }

    /// Waits until receiving makes no sense any more.
    pub async fn refused(&self, operation: &'static str) -> Error {
        let _ = self.end.subscribe().wait_for(|end| end.as_ref().is_some_and(|end| end.refused)).await;
        self.closed(operation)
    }
}
