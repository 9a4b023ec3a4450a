//! Publishes messages. One task hands them to the connection, another waits for the broker's confirms.

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
/// Maximum number of messages without a confirm. Beyond that, publishing waits.
const UNCONFIRMED: usize = 256;

/// A queued message.
struct Parcel {
    route: (String, String),
    body: Vec<u8>,
    mandatory: bool,
    _room: OwnedSemaphorePermit,
}

/// The queue of messages for the connection: at most [`ROOM`] bytes, or one longer message.
pub(crate) struct Outbox {
    room: Arc<Semaphore>,
    line: Mutex<Queue>,
    /// How many messages the broker has confirmed; without confirms, how many the connection has taken.
    done: watch::Receiver<u64>,
    ending: Arc<Ending>,
}

/// The queue's sending end, and how many messages it has taken.
struct Queue {
    taken: u64,
    parcels: mpsc::UnboundedSender<Parcel>,
}

impl Outbox {
    /// Publishes on `channel`. `confirms` says whether the channel uses publisher confirms.
    pub(crate) fn new(
        channel: Channel,
        confirms: bool,
        place: Address,
        ending: Arc<Ending>,
        absent: Absent,
    ) -> Self {
        let (parcels, line) = mpsc::unbounded_channel(); // bounded by `room`
        let (tell, done) = watch::channel(0);
        let ledger = Ledger { place, ending: ending.clone(), absent, tell };
        tokio::spawn(write(channel, confirms, line, ledger));
        let room = Arc::new(Semaphore::new(ROOM));
        Self { room, line: Mutex::new(Queue { taken: 0, parcels }), done, ending }
    }

    /// Queues a message for `route`, an exchange and a routing key. Waits while there is no room. If a
    /// control message reaches no queue, the carrier reports its reader as gone.
    ///
    /// # Errors
    /// The reason of the carrier's end.
    pub(crate) async fn publish(&self, route: (String, String), message: Message<'_>) -> Result<()> {
        self.ending.check()?;
        let wanted = u32::try_from(message.length().clamp(1, ROOM)).unwrap_or(u32::MAX);
        let room = tokio::select! {
            room = self.room.clone().acquire_many_owned(wanted) => room,
            error = self.ending.wait() => return Err(error),
        };
        let closed = |_| Error::closed(PUBLISH, "the carrier was closed");
        let room = room.map_err(closed)?;
        // An unroutable mandatory message comes back whole. That is too much for a chunk; the control message
        // after it tells the same.
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

    /// Waits until everything queued before is confirmed. Without confirms, until the connection has taken
    /// it.
    ///
    /// # Errors
    /// The reason of the carrier's end.
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

/// What both tasks need to report the fate of messages.
struct Ledger {
    place: Address,
    ending: Arc<Ending>,
    absent: Absent,
    tell: watch::Sender<u64>,
}

impl Ledger {
    /// Ends the carrier, which wakes all waiting calls.
    fn fail(&self, error: &lapin::Error) {
        self.ending.set(explain(PUBLISH, &self.place, error));
    }

    /// Notes the outcome of one message. Returns false if it has ended the carrier.
    fn settle(&self, outcome: lapin::Result<Confirmation>) -> bool {
        match outcome {
            Ok(Confirmation::Nack(_)) => {
                let context = format!("{}: the broker could not keep a message", self.place);
                let full =
                    Error::closed(PUBLISH, context).hint("read the broker's log: its disk may be full");
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

/// The publishing task. Hands queued messages to the connection, and their confirms to the other task.
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
                    // The carrier has ended.
                    return;
                }
            }
            Ok(_) => {
                ledger.settle(Ok(Confirmation::NotRequested));
            }
            Err(error) => return ledger.fail(&error),
        }
    }
}

/// Publishes one message. Returns when the connection has its last byte; its room in the queue is then free.
async fn send(channel: &Channel, parcel: Parcel) -> lapin::Result<PublisherConfirm> {
    let (exchange, key) = parcel.route;
    let options = BasicPublishOptions { mandatory: parcel.mandatory, immediate: false };
    let (exchange, key) = (ShortString::from(exchange), ShortString::from(key));
    channel.basic_publish(exchange, key, options, &parcel.body, BasicProperties::default()).await
}

/// The confirming task: waits for the confirms, in order.
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
