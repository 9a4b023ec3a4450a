//! Publishing: one task hands message after message to the connection, another hears the broker's confirms.

use std::sync::{Arc, Mutex, PoisonError};

use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};
use thalweg_messages::{Care, Message};
use thalweg_transport::{Address, Error, Result};
use tokio::sync::{mpsc, watch, OwnedSemaphorePermit, Semaphore};

use crate::ending::Ending;
use crate::explain::explain;
use crate::presence::Absent;
use crate::ROOM;

const PUBLISH: &str = "publish";
/// Messages that the broker has not confirmed yet; beyond that the next one waits.
const UNCONFIRMED: usize = 256;

struct Parcel {
    route: (String, String),
    body: Vec<u8>,
    mandatory: bool,
    _room: OwnedSemaphorePermit,
}

/// What is published and not with the broker yet: at most [`ROOM`] bytes, or one message.
pub(crate) struct Outbox {
    room: Arc<Semaphore>,
    line: Mutex<Queue>,
    /// How many messages the broker has.
    done: watch::Receiver<u64>,
    ending: Arc<Ending>,
}

struct Queue {
    taken: u64,
    parcels: mpsc::UnboundedSender<Parcel>,
}

impl Outbox {
    /// Publishes on `channel`, which asks for confirms or not.
    pub(crate) fn new(
        channel: Channel,
        confirms: bool,
        place: Address,
        ending: Arc<Ending>,
        absent: Absent,
    ) -> Self {
        let (parcels, line) = mpsc::unbounded_channel(); // `room` is its bound
        let (tell, done) = watch::channel(0);
        let ledger = Ledger { place, ending: ending.clone(), absent, tell };
        tokio::spawn(write(channel, confirms, line, ledger));
        let room = Arc::new(Semaphore::new(ROOM));
        Self { room, line: Mutex::new(Queue { taken: 0, parcels }), done, ending }
    }

    /// Takes a message for `route`; waits while there is no room. Control messages to nobody are told of.
    ///
    /// # Errors
    /// Why the carrier has ended.
    pub(crate) async fn publish(&self, route: (String, String), message: Message<'_>) -> Result<()> {
        self.ending.check()?;
        let wanted = u32::try_from(message.length().clamp(1, ROOM)).unwrap_or(u32::MAX);
        let room = tokio::select! {
            room = self.room.clone().acquire_many_owned(wanted) => room,
            error = self.ending.wait() => return Err(error),
        };
        let closed = |_| Error::closed(PUBLISH, "the carrier was closed");
        let room = room.map_err(closed)?;
        // A chunk to nobody would come back whole; the control message after it says the same for less.
        let parcel =
            Parcel { route, body: message.joined(), mandatory: message.care == Care::Control, _room: room };
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.parcels.send(parcel).is_ok() {
            line.taken += 1;
            return Ok(());
        }
        drop(line);
        self.ending.check()?;
        Err(Error::closed(PUBLISH, "the carrier was closed"))
    }

    /// Waits until the broker has what was published before.
    ///
    /// # Errors
    /// Why the carrier has ended.
    pub(crate) async fn flush(&self) -> Result<()> {
        let taken = self.line.lock().unwrap_or_else(PoisonError::into_inner).taken;
        let mut done = self.done.clone();
        tokio::select! {
            biased;
            true = async { done.wait_for(|done| *done >= taken).await.is_ok() } => Ok(()),
            error = self.ending.wait() => Err(error),
        }
    }
}

/// What becomes of the messages.
struct Ledger {
    place: Address,
    ending: Arc<Ending>,
    absent: Absent,
    tell: watch::Sender<u64>,
}

impl Ledger {
    /// Ends the carrier, and with it those who wait.
    fn fail(&self, error: &lapin::Error) {
        self.ending.set(explain(PUBLISH, &self.place, error));
    }

    /// One more is done; `false` if the carrier has ended with it.
    fn settle(&self, outcome: lapin::Result<Confirmation>) -> bool {
        match outcome {
            Ok(Confirmation::Nack(_)) => {
                let context = format!("{}: the broker could not keep a message", self.place);
                let full =
                    Error::closed(PUBLISH, context).mend("read the broker's log: its disk may be full");
                self.ending.set(full);
                return false;
            }
            Ok(Confirmation::Ack(Some(returned))) => self.absent.tell(returned.delivery.routing_key.as_str()),
            Ok(_) => {}
            Err(error) => {
                self.fail(&error);
                return false;
            }
        }
        self.tell.send_modify(|done| *done += 1);
        true
    }
}

async fn write(channel: Channel, confirms: bool, mut line: mpsc::UnboundedReceiver<Parcel>, ledger: Ledger) {
    let ledger = Arc::new(ledger);
    let (unconfirmed, coming) = mpsc::channel(UNCONFIRMED);
    if confirms {
        tokio::spawn(confirm(coming, ledger.clone()));
    }
    while let Some(parcel) = line.recv().await {
        let sent = tokio::select! {
            sent = send(&channel, parcel) => sent,
            _ = ledger.ending.wait() => return,
        };
        match sent {
            Ok(waiting) if confirms => {
                if unconfirmed.send(waiting).await.is_err() {
                    return; // the carrier has ended
                }
            }
            Ok(_) => {
                ledger.settle(Ok(Confirmation::NotRequested));
            }
            Err(error) => return ledger.fail(&error),
        }
    }
}

/// Ends when the connection has the message's last byte; then there is room for another.
async fn send(channel: &Channel, parcel: Parcel) -> lapin::Result<PublisherConfirm> {
    let (exchange, key) = parcel.route;
    let options = BasicPublishOptions { mandatory: parcel.mandatory, immediate: false };
    let (exchange, key) = (ShortString::from(exchange), ShortString::from(key));
    channel.basic_publish(exchange, key, options, &parcel.body, BasicProperties::default()).await
}

async fn confirm(mut coming: mpsc::Receiver<PublisherConfirm>, ledger: Arc<Ledger>) {
    while let Some(waiting) = coming.recv().await {
        let outcome = tokio::select! {
            outcome = waiting => outcome,
            _ = ledger.ending.wait() => return,
        };
        if !ledger.settle(outcome) {
            return;
        }
    }
}
