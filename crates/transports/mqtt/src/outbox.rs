//! The sending half of a connection: a bounded queue, a task that writes it, and the messages that the broker
//! has not acknowledged yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_transport::{Error, Result};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch, OwnedSemaphorePermit, Semaphore};

use crate::connect::LEAVE;
use crate::packets::Small;

/// Maximum number of bytes of messages in the queue. Beyond that, publishers wait.
pub(crate) const ROOM: u32 = 1 << 20;
/// Messages shorter than this, in bytes, are never suspected to be too long for the broker.
const SHORT: usize = 4 << 10;
/// Maximum number of packets written at once.
const BATCH: usize = 16;
/// Keep-alive checks in a row without a byte from the broker after which the connection is lost.
const MAX_SILENT_CHECKS: u32 = 3;

/// A queued packet, with its permit for room in the queue.
struct Packet {
    bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

/// The queue of packets, and what the broker still has to answer.
pub(crate) struct Outbox {
    queue: Mutex<Option<mpsc::UnboundedSender<Packet>>>,
    room: Arc<Semaphore>,
    /// Permits for unacknowledged messages of QoS 1 and 2.
    inflight: Arc<Semaphore>,
    ledger: Mutex<Ledger>,
    /// Number of the first unacknowledged message, or of the next one if there is none.
    confirmed: watch::Sender<u64>,
    /// Whether something has arrived from the broker since the last keep-alive check.
    arrived: AtomicBool,
    /// Whether the broker has stated the longest packet that it accepts.
    tells_limit: bool,
    end: watch::Sender<Option<String>>,
}

/// The answers that the broker owes this end.
#[derive(Default)]
struct Ledger {
    next_id: u16,
    /// Unacknowledged messages by number: the packet identifier, and the permit.
    unconfirmed: BTreeMap<u64, (u16, OwnedSemaphorePermit)>,
    published: u64,
    /// PINGREQs without an answer, each with who waits for it.
    unanswered_pings: VecDeque<Option<oneshot::Sender<()>>>,
    orders: BTreeMap<u16, oneshot::Sender<bool>>,
    longest: LongestMessage,
}

/// The longest packet with a message so far, and whether the broker has taken it.
#[derive(Default)]
struct LongestMessage {
    bytes: usize,
    /// How many PINGRESPs have to come until it is known that the broker has taken it; 0: it is known. A confirmation of `id`
    /// shows it too.
    pongs_missing: usize,
    id: u16,
}

impl LongestMessage {
    /// Its length, if it may be the reason why the broker closed the connection.
    fn suspect(&self) -> Option<usize> {
        (self.pongs_missing > 0 && self.bytes >= SHORT).then_some(self.bytes)
    }
}

impl Ledger {
    /// An unused packet identifier; 0 is not valid (MQTT 3.1.1, section 2.3.1).
    fn id(&mut self) -> u16 {
        loop {
            self.next_id = self.next_id.wrapping_add(1).max(1);
            let id = self.next_id;
            if !self.orders.contains_key(&id) && self.unconfirmed.values().all(|(other, _)| *other != id) {
                return id;
            }
        }
    }
}

/// The permits to publish one message.
pub(crate) struct Admitted {
    room: OwnedSemaphorePermit,
    inflight: Option<OwnedSemaphorePermit>,
}

impl Outbox {
    /// Starts the task that writes to `stream`. `keep_alive` is the keep-alive interval. `tells_limit` says
    /// that the broker has stated the longest packet that it accepts, or that it has no limit.
    pub(crate) fn open(
        stream: impl AsyncWrite + Send + Unpin + 'static,
        keep_alive: Duration,
        tells_limit: bool,
    ) -> Arc<Self> {
        let (queue, packets) = mpsc::unbounded_channel();
        let outbox = Arc::new(Self {
            queue: Mutex::new(Some(queue)),
            room: Arc::new(Semaphore::new(ROOM as usize)),
            inflight: Arc::new(Semaphore::new(0)),
            ledger: Mutex::default(),
            confirmed: watch::Sender::new(0),
            arrived: AtomicBool::new(true),
            tells_limit,
            end: watch::Sender::new(None),
        });
        tokio::spawn(write(Arc::clone(&outbox), packets, stream, keep_alive));
        outbox
    }

    /// Permits this many unacknowledged messages of QoS 1 and 2.
    pub(crate) fn allow(&self, inflight: u16) {
        self.inflight.add_permits(inflight.into());
    }

    /// Waits for room for a message of `bytes`. `confirmed` says that its QoS is above 0.
    pub(crate) async fn admit(&self, bytes: usize, confirmed: bool) -> Result<Admitted> {
        let wanted = u32::try_from(bytes).unwrap_or(ROOM).min(ROOM);
        let admitted = async {
            let closed = |_| Error::closed("publish", "the outbox has gone");
            let inflight = match confirmed {
                true => Some(Arc::clone(&self.inflight).acquire_owned().await.map_err(closed)?),
                false => None,
            };
            let room = Arc::clone(&self.room).acquire_many_owned(wanted).await.map_err(closed)?;
            Ok(Admitted { room, inflight })
        };
        tokio::select! {
            biased;
            error = self.ended("publish") => Err(error),
            admitted = admitted => admitted,
        }
    }

    /// Queues the packet that `make` builds with a packet identifier (0 at QoS 0). Does not wait. Returns its
    /// length.
    pub(crate) fn publish(&self, admitted: Admitted, make: impl FnOnce(u16) -> Vec<u8>) -> Result<u64> {
        let mut ledger = self.ledger();
        let id = match admitted.inflight {
            None => 0,
            Some(permit) => {
                let id = ledger.id();
                let number = ledger.published;
                ledger.unconfirmed.insert(number, (id, permit));
                ledger.published += 1;
                id
            }
        };
        let bytes = make(id);
        let length = bytes.len() as u64;
        if bytes.len() > ledger.longest.bytes {
            // The answer to the next PINGREQ comes behind those to the ones under way.
            ledger.longest =
                LongestMessage { bytes: bytes.len(), pongs_missing: ledger.unanswered_pings.len() + 1, id };
        }
        // Keep the lock, so that packets are sent in the order of their identifiers.
        self.put(Packet { bytes, _room: Some(admitted.room) })?;
        Ok(length)
    }

    /// Queues a short packet without waiting for room: an answer, or a request of this end. There are few of
    /// them.
    pub(crate) fn send(&self, small: Small) {
        // After the end, nobody waits for it.
        let _ = self.put(Packet { bytes: small.bytes(), _room: None });
    }

    /// Queues a short QoS 0 message without waiting for room.
    pub(crate) fn assert(&self, bytes: Vec<u8>) {
        let _ = self.put(Packet { bytes, _room: None });
    }

    /// Queues a request built with a packet identifier. The channel that is returned tells whether the broker
    /// has granted it.
    pub(crate) fn order(
        &self,
        make: impl FnOnce(u16) -> std::result::Result<Vec<u8>, String>,
    ) -> Result<oneshot::Receiver<bool>> {
        let (done, answer) = oneshot::channel();
        let mut ledger = self.ledger();
        let id = ledger.id();
        let bytes = make(id).map_err(|why| Error::closed("subscribe", why))?;
        ledger.orders.insert(id, done);
        self.put(Packet { bytes, _room: None })?;
        Ok(answer)
    }

    /// Processes the answer to a request.
    pub(crate) fn ordered(&self, id: u16, done: bool) {
        if let Some(waiting) = self.ledger().orders.remove(&id) {
            let _ = waiting.send(done); // the caller may be gone
        }
    }

    /// Processes the acknowledgement of a message. Returns whether this end has sent the message.
    pub(crate) fn confirm(&self, id: u16) -> bool {
        let mut ledger = self.ledger();
        let found = ledger.unconfirmed.iter().find(|(_, (own, _))| *own == id).map(|(number, _)| *number);
        if let Some(number) = found {
            ledger.unconfirmed.remove(&number);
            if ledger.longest.id == id {
                ledger.longest.pongs_missing = 0;
            }
        }
        let first = ledger.unconfirmed.keys().next().copied().unwrap_or(ledger.published);
        self.confirmed.send_replace(first);
        found.is_some()
    }

    /// Waits until the broker has everything published before: it has acknowledged all messages, and has
    /// answered a PINGREQ sent after them.
    pub(crate) async fn flush(&self) -> Result<()> {
        let (sent, pong) = oneshot::channel();
        let upto = {
            let mut ledger = self.ledger();
            ledger.unanswered_pings.push_back(Some(sent));
            self.put(Packet { bytes: Small::Ping.bytes(), _room: None })?;
            ledger.published
        };
        let mut confirmed = self.confirmed.subscribe();
        let flushed = async {
            let _ = pong.await; // An error means that the connection has ended.
            let _ = confirmed.wait_for(|first| *first >= upto).await;
        };
        tokio::select! {
            biased;
            error = self.ended("flush") => Err(error),
            () = flushed => Ok(()),
        }
    }

    /// Processes a PINGRESP.
    pub(crate) fn ponged(&self) {
        let mut ledger = self.ledger();
        ledger.longest.pongs_missing = ledger.longest.pongs_missing.saturating_sub(1);
        if let Some(Some(waiting)) = ledger.unanswered_pings.pop_front() {
            let _ = waiting.send(());
        }
    }

    /// Notes that something has arrived from the broker.
    pub(crate) fn note_arrival(&self) {
        self.arrived.store(true, Ordering::Relaxed);
    }

    /// Ends the connection; waiting calls fail with `why`. Packets queued before are still written, for at
    /// most [`LEAVE`].
    pub(crate) fn end(&self, why: &str) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert_with(|| why.into());
            first
        });
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Ends a lost connection. A broker that does not state its limit closes the connection without a reason
    /// at the first packet that is too long. So the error then names the longest message.
    pub(crate) fn lose(&self, why: &str) {
        let suspect = self.ledger().longest.suspect();
        match suspect.filter(|_| !self.tells_limit) {
            None => self.end(why),
            Some(bytes) => self.end(&format!(
                "{why} before it had taken the longest message so far, of {bytes} bytes; with version 3.1.1 a broker does not \
                 tell how long a message may be. If its log says that a message was too long, set \
                 transport.options.max_packet to its limit, or lower transport.chunk"
            )),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Waits for the end, and returns the reason as an error.
    pub(crate) async fn ended(&self, operation: &'static str) -> Error {
        let mut end = self.end.subscribe();
        // This cannot fail: we hold the sender.
        let why = end.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        Error::closed(operation, why.unwrap_or_default())
    }

    /// Waits until the end is `time` ago.
    async fn ended_for(&self, time: Duration) {
        self.ended("write").await;
        tokio::time::sleep(time).await;
    }

    fn put(&self, packet: Packet) -> Result<()> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let put = queue.as_ref().map(|queue| queue.send(packet).is_ok());
        if put == Some(true) {
            return Ok(());
        }
        let why =
            self.end.borrow().clone().unwrap_or_else(|| "the connection to the broker has ended".into());
        Err(Error::closed("publish", why))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keep-alive check, every half interval: sends a PINGREQ. Returns false if nothing has arrived for
    /// [`MAX_SILENT_CHECKS`] in a row.
    fn look(&self, silent: &mut u32) -> bool {
        *silent = if self.arrived.swap(false, Ordering::Relaxed) { 0 } else { *silent + 1 };
        let mut ledger = self.ledger();
        ledger.unanswered_pings.push_back(None);
        let queued = self.put(Packet { bytes: Small::Ping.bytes(), _room: None });
        *silent < MAX_SILENT_CHECKS && queued.is_ok()
    }
}

/// The writing task: writes the queue until it is closed and empty.
async fn write(
    outbox: Arc<Outbox>,
    mut packets: mpsc::UnboundedReceiver<Packet>,
    mut stream: impl AsyncWrite + Send + Unpin,
    keep_alive: Duration,
) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut ticks = tokio::time::interval(keep_alive / 2);
    ticks.tick().await; // the first tick comes at once
    let mut silent = 0;
    let failed = loop {
        tokio::select! {
            biased;
            _ = ticks.tick(), if !outbox.has_ended() => {
                if !outbox.look(&mut silent) {
                    let seconds = (keep_alive / 2 * MAX_SILENT_CHECKS).as_secs();
                    break Some(format!("the broker has sent nothing for at least {seconds} s"));
                }
            }
            count = packets.recv_many(&mut batch, BATCH) => {
                if count == 0 {
                    break None;
                }
                let written = tokio::select! {
                    written = write_batch(&mut stream, &batch) => written,
                    // After the end, do not wait long for a broker that reads nothing.
                    () = outbox.ended_for(LEAVE) => break None,
                };
                if let Err(error) = written {
                    break Some(format!("the connection to the broker broke: {error}"));
                }
                batch.clear();
            }
        }
    };
    if let Some(why) = failed {
        outbox.lose(&why);
    }
    // This fails on a connection that has ended.
    let _ = stream.shutdown().await;
}

async fn write_batch(stream: &mut (impl AsyncWrite + Unpin), batch: &[Packet]) -> std::io::Result<()> {
    for packet in batch {
        stream.write_all(&packet.bytes).await?;
    }
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 200_000;

    fn outbox(tells_limit: bool) -> Arc<Outbox> {
        let outbox = Outbox::open(tokio::io::sink(), Duration::from_secs(60), tells_limit);
        outbox.allow(20);
        outbox
    }

    async fn publish(outbox: &Outbox, bytes: usize, confirmed: bool) -> u16 {
        let admitted = outbox.admit(bytes, confirmed).await.unwrap();
        let mut own = 0;
        let made = |id| {
            own = id;
            vec![0; bytes]
        };
        outbox.publish(admitted, made).unwrap();
        own
    }

    async fn lost(outbox: &Outbox) -> String {
        outbox.lose("it hung up");
        outbox.ended("test").await.to_string()
    }

    fn hints(why: &str) -> bool {
        why.contains("of 200000 bytes") && why.contains("transport.options.max_packet")
    }

    #[tokio::test]
    async fn the_longest_message_is_suspected_until_the_broker_has_taken_it() {
        let one = outbox(false);
        publish(&one, LONG, false).await;
        publish(&one, 20_000, false).await;
        assert!(hints(&lost(&one).await));

        let one = outbox(false);
        publish(&one, LONG, false).await;
        let (flushed, ()) = tokio::join!(one.flush(), async { one.ponged() });
        flushed.unwrap();
        publish(&one, LONG, false).await;
        assert!(!hints(&lost(&one).await), "one as long has been taken");

        let one = outbox(false);
        let id = publish(&one, LONG, true).await;
        assert!(one.confirm(id));
        assert!(!hints(&lost(&one).await));
    }

    #[tokio::test]
    async fn an_answer_to_an_earlier_ping_proves_nothing() {
        let one = outbox(false);
        let first = one.flush();
        let (_, why) = tokio::join!(first, async {
            publish(&one, LONG, false).await;
            one.ponged();
            lost(&one).await
        });
        assert!(hints(&why), "{why}");
    }

    #[tokio::test]
    async fn short_messages_and_brokers_that_tell_their_limit_are_not_suspected() {
        let one = outbox(true);
        publish(&one, LONG, false).await;
        assert!(!hints(&lost(&one).await));
        let one = outbox(false);
        publish(&one, SHORT - 1, false).await;
        assert!(!lost(&one).await.contains("max_packet"));
    }
}
