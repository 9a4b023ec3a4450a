//! Who is there: a broker does not say when a queue goes, but it returns a mandatory message that finds none.
//!
//! So each party knocks at those it writes to: an empty message of the type [`KNOCK`] once a second, mandatory and
//! confirmed, that its reader drops.

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

/// The type of messages that only ask whether a queue is there.
pub(crate) const KNOCK: &str = "thalweg.knock";
const EVERY: Duration = Duration::from_secs(1);

/// Those who are written to.
#[derive(Clone, Default)]
pub(crate) struct Known(Arc<Mutex<BTreeSet<Who>>>);

// `Mailbox` has no order; the listener is `None`.
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

    /// Whether it was known until now.
    pub(crate) fn remove(&self, mailbox: Mailbox) -> bool {
        who(mailbox).is_some_and(|who| self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&who))
    }

    fn all(&self) -> Vec<Mailbox> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|who| who.map_or(Mailbox::Listener, Mailbox::Member)).collect()
    }
}

/// Where it is told that somebody is not there. Each is told of once.
#[derive(Clone)]
pub(crate) struct Absent {
    pub names: Names,
    pub known: Known,
    pub tell: mpsc::UnboundedSender<Mailbox>, // at most one for each that was known
}

impl Absent {
    /// The broker has returned a message with this routing key.
    pub(crate) fn tell(&self, key: &str) {
        if let Some(mailbox) = self.names.owner(key).filter(|mailbox| self.known.remove(*mailbox)) {
            // Nobody listens any more if the carrier is gone.
            let _ = self.tell.send(mailbox);
        }
    }
}

/// Knocks at all who are known, again and again, until the carrier ends. `channel` confirms.
pub(crate) async fn knock(channel: Channel, absent: Absent, ending: Arc<Ending>) {
    tokio::select! {
        // The connection's end is told by those who need it.
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

/// Whether the message came back. Under an alarm the answer waits for the alarm's end.
async fn ask(channel: &Channel, exchange: String, key: String) -> lapin::Result<bool> {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let properties = BasicProperties::default().with_type(ShortString::from(KNOCK));
    let (exchange, key) = (ShortString::from(exchange), ShortString::from(key));
    let confirm = channel.basic_publish(exchange, key, options, &[], properties).await?;
    Ok(matches!(confirm.await?, Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_))))
}
