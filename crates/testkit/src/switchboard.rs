//! A carrier within one process, for tests. It may have a group, lose messages, and repeat them, reproducibly
//! by a seed.
//!
//! Each carrier has a bounded outbox. A task moves messages from there to the mailboxes, like a connection to
//! a broker. Mailboxes are unbounded, but each remembers the maximum number of bytes that it has held, so
//! that tests can check windows.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_messages::{
    Care, Carrier, Event, Letter, Mailbox, MemberId, Message, Nature, Post, Side, HEAD_BYTES,
};
use thalweg_rng::Rng;
use thalweg_transport::{Address, Capabilities, Error, ErrorKind, Options, Result};
use tokio::sync::{mpsc, oneshot, watch, Mutex as AsyncMutex};

/// Number of messages in an outbox from which its publisher has to wait.
const OUTBOX: usize = 16;
/// Bytes that framing adds to a message.
const FRAMING: u64 = 2;

/// How a switchboard behaves.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// The properties of the switchboard's carriers.
    pub nature: Nature,
    /// How many of a million chunks and hints get lost.
    pub loss: u32,
    /// How many of a million other messages get lost.
    pub control_loss: u32,
    /// How many of a million messages arrive twice.
    pub duplication: u32,
    /// Seed of the random choices.
    pub seed: u64,
    /// Whether the listener learns of a member's end.
    pub tells_end: bool,
    /// Whether the switchboard retains messages.
    pub keeps: bool,
}

impl Default for Habits {
    fn default() -> Self {
        let nature = Nature {
            max_message: (1 << 20) + HEAD_BYTES,
            group: true,
            lossy: false,
            window: 4 << 20,
            copies_out: 1,
            copies_in: 0,
        };
        Self { nature, loss: 0, control_loss: 0, duplication: 0, seed: 1, tells_end: true, keeps: false }
    }
}

/// What all carriers connect to. Clones are the same switchboard. Addresses have the form
/// `board://NAME:PORT`.
#[derive(Clone)]
pub struct Switchboard(Arc<Board>);

/// The state that all carriers of a switchboard share.
struct Board {
    habits: Habits,
    offices: Mutex<HashMap<Address, Office>>,
    peak: AtomicU64,
    group_publishes: AtomicU64,
}

/// The parties at one address.
#[derive(Default)]
struct Office {
    listener: Option<Inbox>,
    members: HashMap<MemberId, Inbox>,
    kept: BTreeMap<u64, Bytes>,
    rng: Rng,
}

/// The reason why a carrier has ended; `None` while it runs.
type End = Arc<watch::Sender<Option<String>>>;

/// The mailbox of a carrier, as its senders see it.
#[derive(Clone)]
struct Inbox {
    put: mpsc::UnboundedSender<Event>,
    /// Bytes in the mailbox.
    held: Arc<AtomicU64>,
    /// Microseconds to read one message.
    pause: Arc<AtomicU64>,
    end: End,
}

/// What a carrier asks its task to do.
enum Order {
    Carry(Mailbox, Bytes, Care),
    /// Publish to the group, and retain the message at this place.
    Keep(u64, Bytes),
    Flush(oneshot::Sender<()>),
}

impl Switchboard {
    /// Creates a switchboard.
    pub fn new(habits: Habits) -> Self {
        let zero = AtomicU64::default;
        let board = Board { habits, offices: Mutex::default(), peak: zero(), group_publishes: zero() };
        Self(Arc::new(board))
    }

    /// Ends the carrier of `mailbox`, like a broken connection. For the group, ends all carriers, like a
    /// broker's restart.
    pub fn cut(&self, mailbox: Mailbox, why: &str) {
        for office in self.0.offices().values_mut() {
            let members = office.members.iter().map(|(id, inbox)| (Mailbox::Member(*id), inbox.clone()));
            let all: Vec<_> =
                members.chain(office.listener.clone().map(|inbox| (Mailbox::Listener, inbox))).collect();
            for (whose, inbox) in all {
                if mailbox == Mailbox::Group || mailbox == whose {
                    inbox.end.send_if_modified(|end| end.replace(why.into()).is_none());
                    office.unplug(whose);
                }
            }
        }
    }

    /// Slows down a member's link: reading each message takes `pause`, on tokio's clock.
    pub fn slow(&self, member: MemberId, pause: Duration) {
        for inbox in self.0.offices().values().filter_map(|office| office.members.get(&member)) {
            inbox.pause.store(pause.as_micros() as u64, Ordering::Relaxed);
        }
    }

    /// The connected members.
    pub fn members(&self) -> Vec<MemberId> {
        self.0.offices().values().flat_map(|office| office.members.keys().copied()).collect()
    }

    /// Puts a forged message into a mailbox: no party has sent it.
    pub fn forge(&self, to: Mailbox, bytes: Bytes) {
        for office in self.0.offices().values() {
            office.readers(to).for_each(|inbox| self.0.put(inbox, &bytes, None));
        }
    }

    /// Bytes in the mailboxes that messages to `of` reach.
    pub fn held(&self, of: Mailbox) -> u64 {
        let held =
            |office: &Office| office.readers(of).map(|inbox| inbox.held.load(Ordering::Relaxed)).sum::<u64>();
        self.0.offices().values().map(held).sum()
    }

    /// Maximum number of bytes that any mailbox has held.
    pub fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }

    /// Number of retained messages.
    pub fn kept(&self) -> usize {
        self.0.offices().values().map(|office| office.kept.len()).sum()
    }

    /// Number of messages published to groups.
    pub fn group_publishes(&self) -> u64 {
        self.0.group_publishes.load(Ordering::Relaxed)
    }
}

impl Office {
    fn readers(&self, to: Mailbox) -> impl Iterator<Item = &Inbox> {
        let meant = move |(id, _): &(&MemberId, &Inbox)| match to {
            Mailbox::Group => true,
            _ => Mailbox::Member(**id) == to,
        };
        let listener = self.listener.iter().filter(move |_| to == Mailbox::Listener);
        self.members.iter().filter(meant).map(|(_, inbox)| inbox).chain(listener)
    }

    fn unplug(&mut self, whose: Mailbox) {
        match whose {
            Mailbox::Member(id) => drop(self.members.remove(&id)),
            _ => (self.listener, self.kept) = (None, BTreeMap::new()),
        }
    }

    /// Draws an event that happens `rate` times in a million.
    fn happens(&mut self, rate: u32) -> bool {
        self.rng.draw() % 1_000_000 < rate.into()
    }
}

impl Board {
    fn offices(&self) -> MutexGuard<'_, HashMap<Address, Office>> {
        self.offices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, inbox: &Inbox, bytes: &Bytes, from: Option<MemberId>) {
        let length = bytes.len() as u64;
        let held = inbox.held.fetch_add(length, Ordering::Relaxed) + length;
        self.peak.fetch_max(held, Ordering::Relaxed);
        let letter = Letter { bytes: bytes.clone(), body: None, from, wire: length + FRAMING, receipt: None };
        // An error means that the reader has gone.
        let _ = inbox.put.send(Event::Letter(letter));
    }

    fn carry(&self, address: &Address, from: Option<MemberId>, to: Mailbox, bytes: &Bytes, care: Care) {
        let mut offices = self.offices();
        let Some(office) = offices.get_mut(address) else { return };
        let loss = if care == Care::Control { self.habits.control_loss } else { self.habits.loss };
        let readers: Vec<Inbox> = office.readers(to).cloned().collect();
        for inbox in readers {
            if office.happens(loss) {
                continue;
            }
            self.put(&inbox, bytes, from);
            if office.happens(self.habits.duplication) {
                self.put(&inbox, bytes, from);
            }
        }
    }

    fn keep(&self, address: &Address, at: u64, bytes: &Bytes) {
        if let Some(office) = self.offices().get_mut(address) {
            office.kept.insert(at, bytes.clone());
        }
        self.carry(address, None, Mailbox::Group, bytes, Care::Bulk);
    }

    fn leave(&self, address: &Address, side: Side, mine: &End) {
        let mut offices = self.offices();
        let Some(office) = offices.get_mut(address) else { return };
        let (whose, hears) = match side {
            Side::Listener => (Mailbox::Listener, Vec::new()),
            Side::Member(id) => (Mailbox::Member(id), office.listener.iter().cloned().collect()),
        };
        // Compare the carriers: after a cut, another one may have taken this mailbox.
        let there = office.readers(whose).any(|inbox| Arc::ptr_eq(&inbox.end, mine));
        if !there {
            return;
        }
        office.unplug(whose);
        for inbox in hears.into_iter().filter(|_| self.habits.tells_end) {
            let _ = inbox.put.send(Event::Departed { mailbox: whose, why: "the member has hung up".into() });
        }
    }
}

#[async_trait]
impl Post for Switchboard {
    fn name(&self) -> &'static str {
        "board"
    }

    fn capabilities(&self) -> Capabilities {
        let nature = self.0.habits.nature;
        Capabilities {
            reliable: !nature.lossy,
            ordered: true,
            fan_out: nature.group,
            broker: true,
            max_chunk: u32::try_from(nature.max_message - HEAD_BYTES).unwrap_or(u32::MAX),
            ..Capabilities::default()
        }
    }

    async fn open(&self, side: Side, address: &Address, options: &Options) -> Result<Arc<dyn Carrier>> {
        if options.tls.is_some() || options.congestion.is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "open", "a switchboard has no such option"));
        }
        let (put, inbox) = mpsc::unbounded_channel();
        let (outbox, mut orders) = mpsc::channel(OUTBOX);
        let end = Arc::new(watch::Sender::new(None));
        let mine = Inbox { put, held: Arc::default(), pause: Arc::default(), end: end.clone() };
        let address = self.plug(side, address, mine.clone())?;
        let (board, place, ending) = (self.0.clone(), address.clone(), end.clone());
        let from = match side {
            Side::Listener => None,
            Side::Member(id) => Some(id),
        };
        tokio::spawn(async move {
            while let Some(order) = orders.recv().await {
                match order {
                    Order::Carry(to, bytes, care) => board.carry(&place, from, to, &bytes, care),
                    Order::Keep(at, bytes) => board.keep(&place, at, &bytes),
                    Order::Flush(done) => drop(done.send(())),
                }
                tokio::task::yield_now().await;
            }
            board.leave(&place, side, &ending);
        });
        let Inbox { held, pause, .. } = mine;
        let inbox = AsyncMutex::new(inbox);
        Ok(Arc::new(Plug {
            board: self.0.clone(),
            address,
            outbox: Mutex::new(Some(outbox)),
            inbox,
            held,
            pause,
            end,
        }))
    }
}

impl Switchboard {
    fn plug(&self, side: Side, address: &Address, inbox: Inbox) -> Result<Address> {
        let mut offices = self.0.offices();
        let with = |port| Address { port: Some(port), ..address.clone() };
        let address = match (side, address.port) {
            (Side::Listener, Some(0)) => (1..=u16::MAX).map(with).find(|a| !offices.contains_key(a)),
            _ => Some(address.clone()),
        };
        let used = || Error::new(ErrorKind::InUse, "listen", "the switchboard's port has a listener");
        let address = address.ok_or_else(used)?;
        let office = offices.entry(address.clone()).or_default();
        match side {
            Side::Listener if office.listener.is_some() => {
                return Err(used().hint("choose another port"));
            }
            Side::Listener => (office.listener, office.rng) = (Some(inbox), Rng::seeded(self.0.habits.seed)),
            Side::Member(id) => {
                office.kept.values().for_each(|bytes| self.0.put(&inbox, bytes, None));
                office.members.insert(id, inbox);
            }
        }
        Ok(address)
    }
}

/// A carrier of a switchboard.
struct Plug {
    board: Arc<Board>,
    address: Address,
    outbox: Mutex<Option<mpsc::Sender<Order>>>,
    inbox: AsyncMutex<mpsc::UnboundedReceiver<Event>>,
    held: Arc<AtomicU64>,
    pause: Arc<AtomicU64>,
    end: End,
}

impl Plug {
    async fn ended(&self, operation: &'static str) -> Error {
        let mut end = self.end.subscribe();
        // This cannot fail: we hold the sender.
        let why = end.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        Error::closed(operation, why.unwrap_or_default())
    }

    /// Waits for the next event, at the link's pace. Dropping the future loses nothing.
    async fn read(&self, inbox: &mut mpsc::UnboundedReceiver<Event>) -> Option<Event> {
        let pause = Duration::from_micros(self.pause.load(Ordering::Relaxed));
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        inbox.recv().await
    }

    async fn order(&self, operation: &'static str, order: Order) -> Result<()> {
        let outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(outbox) = outbox else { return Err(self.ended(operation).await) };
        tokio::select! {
            biased;
            error = self.ended(operation) => Err(error),
            sent = outbox.send(order) => sent.map_err(|_| Error::closed(operation, "the switchboard has gone")),
        }
    }
}

#[async_trait]
impl Carrier for Plug {
    fn nature(&self) -> Nature {
        self.board.habits.nature
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn publish(&self, to: Mailbox, message: Message<'_>) -> Result<u64> {
        let bytes = Bytes::from(message.joined());
        let wire = bytes.len() as u64 + FRAMING;
        if to == Mailbox::Group {
            self.board.group_publishes.fetch_add(1, Ordering::Relaxed);
        }
        self.order("publish", Order::Carry(to, bytes, message.care)).await.map(|()| wire)
    }

    fn keeps(&self) -> bool {
        self.board.habits.keeps
    }

    async fn publish_kept(&self, place: u64, message: Message<'_>) -> Result<u64> {
        let bytes = Bytes::from(message.joined());
        let wire = bytes.len() as u64 + FRAMING;
        self.board.group_publishes.fetch_add(1, Ordering::Relaxed);
        self.order("publish", Order::Keep(place, bytes)).await.map(|()| wire)
    }

    async fn flush(&self) -> Result<()> {
        let (done, carried) = oneshot::channel();
        self.order("flush", Order::Flush(done)).await?;
        carried.await.map_err(|_| Error::closed("flush", "the switchboard has gone"))
    }

    async fn next(&self) -> Result<Event> {
        let mut inbox = self.inbox.lock().await;
        let event = tokio::select! {
            biased;
            error = self.ended("receive") => return Err(error),
            event = self.read(&mut inbox) => event,
        };
        let Some(event) = event else { return Err(self.ended("receive").await) };
        if let Event::Letter(letter) = &event {
            self.held.fetch_sub(letter.bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(event)
    }

    async fn close(&self) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert_with(|| "the carrier was closed here".into());
            first
        });
        // The task still carries out the orders in the outbox, and then leaves.
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
