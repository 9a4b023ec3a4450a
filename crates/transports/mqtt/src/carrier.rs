//! The carrier of one party: its connection to the broker. A task reads the connection and answers the
//! broker, whether or not the application takes messages.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_messages::{Care, Carrier, Event, Letter, Mailbox, Message, Nature, Network, Side, SHELF_BYTES};
use thalweg_sockets::socket::Socket;
use thalweg_transport::{Address, Counters, Error, ErrorKind, Peer, Result};
use tokio::sync::{mpsc, Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};

use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::packets::{publish, Incoming, Retain, Small, Version};
use crate::topics::{Purpose, Topics};

/// Seconds after which the broker forgets the retained model of a server that was killed.
const FORGOTTEN: u32 = 3600;
/// Maximum number of messages that wait for the application. Beyond that, nothing more is read.
const MAILS: usize = 1024;
/// Maximum number of bytes of these messages.
const MAIL_BYTES: u32 = 16 << 20;

/// An open connection to the broker.
pub(crate) struct MqttCarrier {
    core: Arc<Core>,
    mails: AsyncMutex<mpsc::Receiver<(Notification, OwnedSemaphorePermit)>>,
    /// Events that arrived while the carrier was being opened.
    early: Mutex<Early>,
}

/// Queued events, and the bytes of their messages.
#[derive(Default)]
struct Early {
    events: VecDeque<Event>,
    bytes: u64,
}

/// The state that a connection's reading task and its users share.
pub(crate) struct Core {
    pub side: Side,
    pub address: Address,
    pub topics: Topics,
    pub version: Version,
    pub qos: u8,
    pub nature: Nature,
    /// Whether the broker retains the model; only at the listener.
    pub retain: bool,
    /// At the listener: the places of the model that the broker retains.
    pub retained: Mutex<BTreeSet<u64>>,
    /// The listener's client identifier, as its retained message says it. Empty while it is unknown.
    pub listener: Mutex<Bytes>,
    pub socket: Socket,
    pub outbox: Arc<Outbox>,
    /// Identifiers of QoS 2 messages that arrived and that the broker has not released (PUBREL).
    pub unreleased: Mutex<HashSet<u16>>,
}

/// Sends the acknowledgement of a message when dropped. The broker may then forget the message.
struct Receipt {
    outbox: Arc<Outbox>,
    answer: Small,
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.outbox.send(self.answer);
    }
}

/// What the reading task passes on.
pub(crate) enum Notification {
    Event(Event),
    /// The identifier of the listener that is present, from its retained message.
    Here(Bytes),
}

impl MqttCarrier {
    /// Starts the task that reads the connection.
    pub(crate) fn begin(core: Core, inbox: Inbox) -> Self {
        let core = Arc::new(core);
        let (put, mails) = mpsc::channel(MAILS);
        tokio::spawn(read(Arc::clone(&core), inbox, put));
        Self { core, mails: AsyncMutex::new(mails), early: Mutex::default() }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Keeps an event that arrived while the carrier was being opened. These are messages of the retained
    /// model; what exceeds [`SHELF_BYTES`] is dropped, since a member holds no more.
    pub(crate) fn keep(&self, event: Event) {
        let mut early = lock(&self.early);
        if let Event::Letter(letter) = &event {
            let bytes = letter.bytes.len() as u64;
            if early.bytes + bytes > SHELF_BYTES {
                return;
            }
            early.bytes += bytes;
        }
        early.events.push_back(event);
    }

    /// The next event that is not the protocol's own. Dropping the future loses nothing.
    pub(crate) async fn step(&self) -> Result<Notification> {
        let mut mails = self.mails.lock().await;
        let seen = tokio::select! {
            biased;
            error = self.core.outbox.ended("receive") => return Err(error),
            seen = mails.recv() => seen,
        };
        match seen {
            Some((seen, _room)) => Ok(seen),
            None => Err(self.core.outbox.ended("receive").await),
        }
    }
}

/// The reading task. It answers the broker at once and passes events on, until the connection ends. Only the
/// events wait for the application.
async fn read(core: Arc<Core>, mut inbox: Inbox, put: mpsc::Sender<(Notification, OwnedSemaphorePermit)>) {
    let room = Arc::new(Semaphore::new(MAIL_BYTES as usize));
    loop {
        let received = tokio::select! {
            biased;
            _ = core.outbox.ended("receive") => return,
            received = inbox.next() => received,
        };
        let received = match received {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::Corrupt => return core.outbox.end(&error.reason()),
            Err(error) => return core.outbox.lose(&error.reason()),
        };
        let bytes = received.1.min(MAIL_BYTES.into()) as u32;
        let taken = core.take(received.0, received.1);
        core.outbox.note_arrival();
        match taken {
            Ok(None) => {}
            Ok(Some(seen)) => {
                let passed_on = async {
                    let room = room.clone().acquire_many_owned(bytes).await.ok()?; // never closed
                    put.send((seen, room)).await.ok()
                };
                tokio::select! {
                    biased;
                    _ = core.outbox.ended("receive") => return,
                    sent = passed_on => if sent.is_none() { return },
                }
            }
            Err(error) => return core.outbox.end(&error.reason()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// Processes a packet. Returns an event for the application, if it is one.
    fn take(&self, incoming: Incoming, wire: u64) -> Result<Option<Notification>> {
        match incoming {
            Incoming::Publish { topic, id, qos, payload } => {
                return Ok(self.message(&topic, id, qos, payload, wire));
            }
            Incoming::TooLong { id, qos } => {
                let _ = qos == 2 && lock(&self.unreleased).insert(id);
                drop(self.receipt(id, qos));
            }
            Incoming::Acknowledged(id, refused) => self.confirmed(id, refused)?,
            Incoming::Received(id, None) => self.outbox.send(Small::Rel(id)),
            Incoming::Received(id, refused) => self.confirmed(id, refused)?,
            Incoming::Complete(id) => self.confirmed(id, None)?,
            Incoming::Release(id) => {
                lock(&self.unreleased).remove(&id);
                self.outbox.send(Small::Comp(id));
            }
            Incoming::Subscribed(id, done) => self.outbox.ordered(id, done),
            Incoming::Pong => self.outbox.ponged(),
            Incoming::Disconnect(why) => return Err(self.broken(format!("the broker hung up: {why}"))),
            Incoming::Accepted(_) | Incoming::Refused(..) => {
                return Err(self.broken("the broker answered a CONNECT that was not sent".into()));
            }
        }
        Ok(None)
    }

    fn confirmed(&self, id: u16, refused: Option<String>) -> Result<()> {
        self.outbox.confirm(id);
        match refused {
            // Links would wait for the lost message for ever. Ending the connection lets them start again.
            Some(why) => Err(self.broken(format!("the broker did not take a message: {why}"))),
            None => Ok(()),
        }
    }

    /// The acknowledgement that a message needs; none at QoS 0.
    fn receipt(&self, id: u16, qos: u8) -> Option<Receipt> {
        let answer = match qos {
            0 => None,
            1 => Some(Small::Ack(id)),
            _ => Some(Small::Rec(id)),
        };
        answer.map(|answer| Receipt { outbox: Arc::clone(&self.outbox), answer })
    }

    /// Processes a message by the purpose of its topic. Drops a QoS 2 message that arrives twice.
    fn message(&self, topic: &[u8], id: u16, qos: u8, payload: Bytes, wire: u64) -> Option<Notification> {
        let receipt = self.receipt(id, qos);
        let again = qos == 2 && !lock(&self.unreleased).insert(id);
        let purpose = self.topics.purpose(topic).filter(|_| !again)?;
        match (purpose, self.side) {
            (Purpose::Mail, _) if payload.len() <= self.nature.max_message => {
                let receipt = receipt.map(|r| Box::new(r) as Box<dyn std::any::Any + Send + Sync>);
                Some(Notification::Event(Event::Letter(Letter {
                    bytes: payload,
                    body: None,
                    from: None,
                    wire,
                    receipt,
                })))
            }
            (Purpose::Here, _) => self.presence(payload),
            (Purpose::Goodbye(member), Side::Listener) => {
                let why = format!("it {}", String::from_utf8_lossy(&payload[..payload.len().min(200)]));
                Some(Notification::Event(Event::Departed { mailbox: Mailbox::Member(member), why }))
            }
            _ => None,
        }
    }

    /// Processes a change of the listener's retained message. At a member, another or no listener means that
    /// its own has gone.
    fn presence(&self, who: Bytes) -> Option<Notification> {
        let known = lock(&self.listener).clone();
        if known.is_empty() {
            return (!who.is_empty()).then_some(Notification::Here(who));
        }
        if known == who {
            return None;
        }
        match self.side {
            Side::Member(_) => {
                let why =
                    if who.is_empty() { "the listener has left the broker" } else { "another listener came" };
                Some(Notification::Event(Event::Departed { mailbox: Mailbox::Listener, why: why.into() }))
            }
            // Another server tried to take the name, and its last will cleared the message. This listener is
            // still here, so publish the message again.
            Side::Listener if who.is_empty() => {
                let topic = self.topics.here();
                self.outbox.assert(publish(self.version, &topic, (0, 0, Retain::Yes), &known, b""));
                None
            }
            Side::Listener => {
                self.outbox.end("another listener took this job's name at the broker");
                None
            }
        }
    }

    /// Returns an error if the broker does not accept a message of this length.
    fn fits(&self, message: &Message<'_>) -> Result<()> {
        let (bytes, most) = (message.length(), self.nature.max_message);
        if bytes <= most {
            return Ok(());
        }
        let context = format!("a message of {bytes} bytes; the broker takes {most}");
        Err(Error::new(ErrorKind::Unsupported, "publish", context)
            .hint("make transport.chunk smaller, or raise the broker's limit"))
    }

    /// Ends the connection, and returns the error for the reader.
    pub(crate) fn broken(&self, why: String) -> Error {
        self.outbox.end(&why);
        Error::closed("receive", why)
    }

    pub(crate) async fn put(
        &self,
        topic: &str,
        qos: u8,
        retain: Retain,
        message: Message<'_>,
    ) -> Result<u64> {
        let admitted = self.outbox.admit(message.length(), qos > 0).await?;
        self.outbox.publish(admitted, |id| {
            publish(self.version, topic, (qos, id, retain), message.head, message.body)
        })
    }

    /// Tells the others that this end leaves, and disconnects in good order.
    async fn leave(&self) -> Result<()> {
        *lock(&self.listener) = Bytes::new();
        let text = |body| Message { head: b"", body, care: Care::Control };
        match self.side {
            Side::Listener => {
                // An empty retained message removes the one before it (MQTT 3.1.1, section 3.3.1.3).
                let retained = std::mem::take(&mut *lock(&self.retained));
                for place in retained {
                    self.put(&self.topics.model(place), self.qos, Retain::Yes, text(b"")).await?;
                }
                self.put(&self.topics.here(), self.qos, Retain::Yes, text(b"")).await?
            }
            Side::Member(id) => {
                self.put(
                    &self.topics.goodbye(id),
                    self.qos,
                    Retain::No,
                    text(crate::connect::HUNG_UP.as_bytes()),
                )
                .await?
            }
        };
        // The broker passes on a QoS 2 message only once it is released, so wait for that. Also, if unread
        // data is left, the connection ends with a reset, and the broker then drops packets that it has not
        // read yet. A member need not care, since its last will says the same. But a listener's retained
        // messages would stay for ever.
        if self.qos > 0 || self.side == Side::Listener {
            self.outbox.flush().await?;
        }
        self.outbox.send(Small::Bye);
        Ok(())
    }
}

#[async_trait]
impl Carrier for MqttCarrier {
    fn nature(&self) -> Nature {
        self.core.nature
    }

    fn address(&self) -> Address {
        self.core.address.clone()
    }

    async fn publish(&self, to: Mailbox, message: Message<'_>) -> Result<u64> {
        self.core.fits(&message)?;
        // With QoS 2, the broker passes on a message only once it is released, so after messages sent later
        // at QoS 0. A hint must not wait like that.
        let qos = if message.care == Care::Hint { 0 } else { self.core.qos };
        self.core.put(&self.core.topics.mail(to), qos, Retain::No, message).await
    }

    fn keeps(&self) -> bool {
        self.core.retain
    }

    async fn publish_kept(&self, place: u64, message: Message<'_>) -> Result<u64> {
        self.core.fits(&message)?;
        // Do this first: if publishing is cancelled, the broker may have the message all the same.
        lock(&self.core.retained).insert(place);
        self.core.put(&self.core.topics.model(place), self.core.qos, Retain::For(FORGOTTEN), message).await
    }

    async fn flush(&self) -> Result<()> {
        self.core.outbox.flush().await
    }

    async fn next(&self) -> Result<Event> {
        let early = lock(&self.early).events.pop_front();
        if let Some(event) = early {
            return Ok(event);
        }
        loop {
            if let Notification::Event(event) = self.step().await? {
                return Ok(event);
            }
        }
    }

    fn peer(&self, mailbox: Mailbox) -> Peer {
        Peer { address: format!("{mailbox} at {}", self.core.address), ..Peer::default() }
    }

    fn network(&self, _mailbox: Mailbox) -> Network {
        let mut counters = Counters::default();
        self.core.socket.tell(&mut counters);
        let Counters { retransmissions, round_trip, congestion, .. } = counters;
        Network { retransmissions, round_trip, congestion }
    }

    async fn close(&self) {
        // Do not wait for a broker that reads nothing: the last will says the same.
        if !self.core.outbox.has_ended() {
            let _ = tokio::time::timeout(crate::connect::LEAVE, self.core.leave()).await;
        }
        self.core.outbox.end("the carrier was closed here");
    }
}

impl Drop for MqttCarrier {
    fn drop(&mut self) {
        if !self.core.outbox.has_ended() {
            self.core.outbox.end("the carrier was dropped");
            // An abrupt end makes the broker publish the last will.
            self.core.socket.shut();
        }
    }
}
