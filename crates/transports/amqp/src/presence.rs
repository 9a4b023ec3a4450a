//! Finds out which readers are gone. A broker does not report that a queue was deleted, but it returns a
//! mandatory message that reaches no queue.
//!
//! So each party knocks at all readers that it writes to. Once a second it publishes an empty, mandatory,
//! confirmed message of the type [`KNOCK`]; the reader drops it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use thalweg_messages::Mailbox;
use tokio::sync::mpsc;
use tokio::time::{interval, MissedTickBehavior};

use crate::ending::Ending;
use crate::names::Names;

/// The type of messages that only ask whether a queue exists.
pub(crate) const KNOCK: &str = "thalweg.knock";
/// Pause between two rounds of knocks.
const EVERY: Duration = Duration::from_secs(1);

/// The readers that this party writes to.
#[derive(Clone, Default)]
pub(crate) struct Known(Arc<Mutex<BTreeSet<Who>>>);

// `Mailbox` has no order, so `None` stands for the listener.
type Who = Option<thalweg_messages::MemberId>;

fn who(mailbox: Mailbox) -> Option<Who> {
    match mailbox {
        Mailbox::Listener => Some(None),
        Mailbox::Member(id) => Some(Some(id)),
        Mailbox::Group => None,
    }
}

impl Known {
    pub(crate) fn add(&self, mailbox: Mailbox) {
        if let Some(who) = who(mailbox) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(who);
        }
    }

    /// Returns whether it was known.
    pub(crate) fn remove(&self, mailbox: Mailbox) -> bool {
        who(mailbox).is_some_and(|who| self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&who))
    }

    fn all(&self) -> Vec<Mailbox> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|who| who.map_or(Mailbox::Listener, Mailbox::Member)).collect()
    }
}

/// Reports readers that are gone, each of them once.
#[derive(Clone)]
pub(crate) struct Absent {
    pub names: Names,
    pub known: Known,
    pub tell: mpsc::UnboundedSender<Mailbox>, // at most one for each known reader
}

impl Absent {
    /// The broker has returned a message with this routing key.
    pub(crate) fn tell(&self, key: &str) {
        if let Some(mailbox) = self.names.owner(key).filter(|mailbox| self.known.remove(*mailbox)) {
            // An error means that the carrier is gone.
            let _ = self.tell.send(mailbox);
        }
    }
}

/// Knocks at all known readers once a second, until the carrier ends. `channel` uses publisher confirms.
pub(crate) async fn knock(channel: Channel, absent: Absent, ending: Arc<Ending>) {
    tokio::select! {
        // Other tasks report the end of the connection.
        _ = rounds(&channel, &absent) => {}
        _ = ending.wait() => {}
    }
}

async fn rounds(channel: &Channel, absent: &Absent) -> lapin::Result<()> {
    let mut clock = interval(EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        for mailbox in absent.known.all() {
            let (exchange, key) = absent.names.route(mailbox);
            if ask(channel, exchange, key.clone()).await? {
                absent.tell(&key);
            }
        }
    }
}

/// Knocks at one reader, and returns whether the message came back. During an alarm, the answer waits for the
/// end of the alarm.
async fn ask(channel: &Channel, exchange: String, key: String) -> lapin::Result<bool> {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let properties = BasicProperties::default().with_type(ShortString::from(KNOCK));
    let (exchange, key) = (ShortString::from(exchange), ShortString::from(key));
    let confirm = channel.basic_publish(exchange, key, options, &[], properties).await?;
    Ok(matches!(confirm.await?, Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_))))
}
