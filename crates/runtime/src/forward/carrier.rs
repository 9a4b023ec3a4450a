//! [`Carrier`]: a link that carries streams, its tasks, and the stream tasks that it wakes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use thalweg_proto::{ForwardConfig, ForwardEvent, Mux, Time};
use thalweg_transport::{Cancel, Link, Outgoing, Sink, Target, UpdateId};
use thalweg_wire::control::Control;
use thalweg_wire::text::{plain, MAX_REASON};
use thalweg_wire::{ChunkHeader, LayoutHash, WireError};
use tokio::sync::{mpsc, Notify};

use crate::lock;

/// Number of bytes that are sent at once. It is small, so that each stream gets its turn soon.
const BATCH: u64 = 256 << 10;
/// Number of bytes that are sent at once over a link that loses chunks. It is larger, since each batch may
/// take a round trip there.
const LOSSY_BATCH: u64 = 2 << 20;

/// How a stream's task is woken.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Notified when there is room for more bytes from the program.
    pub writable: Notify,
    /// Notified when there are more bytes for the program.
    pub readable: Notify,
    over: Notify,
    why: Mutex<Option<String>>,
}

impl Signals {
    /// Ends the stream with this reason. If it has ended already, the earlier reason stays.
    pub fn end(&self, why: String) {
        lock(&self.why).get_or_insert(why);
        self.over.notify_one();
    }

    /// Waits until the other end resets the stream, or the link ends. Returns the reason.
    pub async fn over(&self) -> String {
        loop {
            if let Some(why) = lock(&self.why).clone() {
                return why;
            }
            self.over.notified().await;
        }
    }
}

/// The signals of each stream, and the reason why the link has ended; `None` while it is up.
#[derive(Default)]
struct Streams {
    signals: HashMap<u32, Arc<Signals>>,
    ended: Option<String>,
}

/// A link, its streams, and the state that its tasks share.
pub(crate) struct Carrier {
    link: Arc<dyn Link>,
    mux: Mutex<Mux>,
    streams: Mutex<Streams>,
    /// Far end: receives the streams that the near end has opened.
    opened: mpsc::Sender<u32>,
    started: Instant,
    /// The sender's number in chunks: 0 for the far end, 1 for the near end.
    sender: u32,
    batch: u64,
    messages: Notify,
    chunks: Notify,
    /// Notified when the peer has broken the protocol.
    watched: Notify,
}

impl Carrier {
    /// Makes a carrier for a link whose handshake is complete. `opened` receives the streams that the other
    /// end opens.
    pub fn new(
        link: Arc<dyn Link>,
        rules: ForwardConfig,
        sender: u32,
        opened: mpsc::Sender<u32>,
    ) -> Arc<Self> {
        Arc::new(Self {
            link,
            mux: Mutex::new(Mux::new(Time::ZERO, rules)),
            streams: Mutex::default(),
            opened,
            started: Instant::now(),
            sender,
            batch: if rules.reliable { BATCH } else { LOSSY_BATCH },
            messages: Notify::new(),
            chunks: Notify::new(),
            watched: Notify::new(),
        })
    }

    fn now(&self) -> Time {
        self.started.elapsed()
    }

    /// Opens a stream; `None` if the limit is reached.
    pub fn open(&self) -> Option<(u32, Arc<Signals>)> {
        // Hold the machine's lock until the stream's signals exist, so that no event of it is lost.
        let mut mux = lock(&self.mux);
        let stream = mux.open()?;
        let signals = self.signals(stream);
        drop(mux);
        self.look();
        Some((stream, signals))
    }

    /// The signals of a stream. Makes them if there are none.
    pub fn signals(&self, stream: u32) -> Arc<Signals> {
        let mut streams = lock(&self.streams);
        let signals = streams.signals.entry(stream).or_default().clone();
        if let Some(why) = &streams.ended {
            signals.end(why.clone());
        }
        signals
    }

    /// Drops the signals of a stream whose task has ended.
    pub fn forget(&self, stream: u32) {
        lock(&self.streams).signals.remove(&stream);
    }

    /// Calls the state machine, then handles its events and wakes the tasks with work.
    pub fn with<T>(&self, f: impl FnOnce(&mut Mux) -> T) -> T {
        let answer = f(&mut lock(&self.mux));
        self.look();
        answer
    }

    /// Handles the machine's events, and wakes the tasks that have work.
    fn look(&self) {
        let mut mux = lock(&self.mux);
        let events: Vec<ForwardEvent> = std::iter::from_fn(|| mux.poll_event()).collect();
        let ((messages, chunks), broken) = (mux.has_more(), mux.is_broken());
        drop(mux);
        for event in events {
            match event {
                ForwardEvent::Opened(stream) => {
                    self.signals(stream);
                    if self.opened.try_send(stream).is_err() {
                        self.forget(stream);
                        lock(&self.mux).reset(stream, "the far end has too many new connections at once");
                    }
                }
                ForwardEvent::Readable(stream) => self.wake(stream, |signals| signals.readable.notify_one()),
                ForwardEvent::Writable(stream) => self.wake(stream, |signals| signals.writable.notify_one()),
                ForwardEvent::Reset(stream, why) => self.wake(stream, |signals| signals.end(why)),
            }
        }
        let wanted = [(messages, &self.messages), (chunks, &self.chunks), (broken, &self.watched)];
        wanted.iter().filter(|(is_wanted, _)| *is_wanted).for_each(|(_, task)| task.notify_one());
    }

    fn wake(&self, stream: u32, how: impl FnOnce(&Signals)) {
        if let Some(signals) = lock(&self.streams).signals.get(&stream) {
            how(signals);
        }
    }

    /// Carries streams until the link ends. All streams end with it. Returns the reason.
    pub async fn drive(self: &Arc<Self>) -> String {
        let ended = tokio::select! {
            ended = self.read() => ended,
            ended = self.send_messages() => ended,
            ended = self.send_chunks() => ended,
            ended = self.watch() => ended,
        };
        // Reduce the text to plain characters, since it may come from the peer.
        let why = plain(&ended.err().unwrap_or_else(|| "it has ended".into()), MAX_REASON);
        self.end(&why).await;
        why
    }

    /// Sends a farewell, and ends the link with all its streams.
    pub async fn close(&self, why: &str) {
        if let Ok(bye) = (Control::Bye { reason: why.into() }).encode() {
            // Ignore a timeout: a peer that does not read the farewell still sees that the link ends.
            let _ = tokio::time::timeout(
                std::time::Duration::from_millis(300),
                self.link.send_control(bye.into()),
            )
            .await;
        }
        self.end(why).await;
    }

    async fn end(&self, why: &str) {
        self.link.close().await;
        let why = format!("the link has ended: {why}");
        let mut streams = lock(&self.streams);
        streams.signals.values().for_each(|signals| signals.end(why.clone()));
        streams.ended.get_or_insert(why);
    }

    async fn read(self: &Arc<Self>) -> Result<(), String> {
        let sink = Chunks(self.clone());
        loop {
            let message = self.link.receive(&sink).await.map_err(|e| e.to_string())?;
            let message = Control::decode(&message).map_err(|e| e.to_string())?;
            self.with(|mux| mux.control(self.now(), message))?;
        }
    }

    async fn send_messages(&self) -> Result<(), String> {
        loop {
            let next = lock(&self.mux).poll_message();
            match next {
                Some(message) => {
                    let bytes = message.encode().map_err(|e| e.to_string())?;
                    self.link.send_control(bytes.into()).await.map_err(|e| e.to_string())?;
                    self.with(|mux| mux.message_sent(&message));
                }
                None => self.messages.notified().await,
            }
        }
    }

    async fn send_chunks(&self) -> Result<(), String> {
        let mut round = 0;
        loop {
            let next = lock(&self.mux).poll_batch(self.batch);
            let Some(mut batch) = next else {
                self.chunks.notified().await;
                continue;
            };
            round += 1;
            let id = UpdateId { job: 0, round, sender: self.sender, layout: LayoutHash::default() };
            let (bytes, chunks) = (std::mem::take(&mut batch.bytes), batch.chunks.iter().copied());
            let update = Outgoing::packed(id, bytes.into(), chunks, Cancel::default());
            self.link.send_update(&update).await.map_err(|e| e.to_string())?;
            self.with(|mux| mux.batch_sent(&batch));
        }
    }

    /// Tells the machine the time, and notices peers that break the protocol.
    async fn watch(&self) -> Result<(), String> {
        loop {
            let due = lock(&self.mux).poll_timeout().saturating_sub(self.now());
            tokio::select! {
                () = tokio::time::sleep(due) => {}
                () = self.watched.notified() => {}
            }
            self.with(|mux| mux.timeout(self.now()))?;
        }
    }
}

/// The sink of the link.
struct Chunks(Arc<Carrier>);

impl Sink for Chunks {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let mut mux = lock(&self.0.mux);
        let wanted = mux.wants(chunk.offset, chunk.length);
        if mux.is_broken() {
            self.0.watched.notify_one();
        }
        drop(mux);
        wanted.then(|| Target::Scratch(vec![0; chunk.length as usize]))
    }

    fn progress(&self, bytes: u64) {
        lock(&self.0.mux).progress(self.0.now(), bytes);
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        let Target::Scratch(bytes) = target else { return };
        self.0.with(|mux| match outcome {
            Ok(()) => mux.chunk(chunk.offset, bytes),
            Err(_) => mux.damaged(),
        });
    }
}
