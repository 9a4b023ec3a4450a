//! State that the tasks and the calls of a link share, and the tasks themselves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use thalweg_transport::{Error, Link, Result, Sink, Target};
use thalweg_wire::{ChunkHeader, WireError};
use tokio::sync::{mpsc, watch, Notify};

use crate::outbox::{Message, Outbox, MOST_WORDS};
use crate::sides::{Receives, Sends};
use crate::words::Word;

/// A link's state. Nobody holds the locks of both sides at once.
pub(crate) struct Shared {
    pub(crate) inner: Arc<dyn Link>,
    pub(crate) outbox: Outbox,
    outgoing: Mutex<Box<dyn Sends>>,
    incoming: Mutex<Box<dyn Receives>>,
    /// Whether receivers read, instead of senders writing.
    pulls: bool,
    /// Notified when more chunks may be offered.
    pub(crate) room: Notify,
    /// The reason why the link has ended; `None` while it lives.
    ended: watch::Sender<Option<Error>>,
    /// Whether this end closed the link. Then `receive` returns an error, even if chunks are left.
    pub(crate) closed: AtomicBool,
    /// Whether the peer has authenticated itself, or need not.
    pub(crate) admitted: AtomicBool,
    /// Number of calls of `receive`: each call returns one control message.
    pub(crate) asked: watch::Sender<u64>,
    pub(crate) sent: Arc<AtomicU64>,
    pub(crate) received: AtomicU64,
    pub(crate) copied: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(
        inner: Arc<dyn Link>,
        outbox: Outbox,
        (outgoing, incoming, pulls): (Box<dyn Sends>, Box<dyn Receives>, bool),
        sent: Arc<AtomicU64>,
        admitted: bool,
    ) -> Self {
        Self {
            inner,
            outbox,
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::new(incoming),
            pulls,
            room: Notify::new(),
            ended: watch::Sender::new(None),
            closed: AtomicBool::new(false),
            admitted: AtomicBool::new(admitted),
            asked: watch::Sender::new(0),
            sent,
            received: AtomicU64::new(0),
            copied: AtomicU64::new(0),
        }
    }

    pub(crate) fn outgoing(&self) -> MutexGuard<'_, Box<dyn Sends>> {
        locked(&self.outgoing)
    }

    pub(crate) fn incoming(&self) -> MutexGuard<'_, Box<dyn Receives>> {
        locked(&self.incoming)
    }

    /// Ends the link, for the first reason that is given. From here on the device uses no memory of it.
    pub(crate) fn end(&self, why: Error) {
        let first = self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(why);
            first
        });
        if first {
            self.outgoing().stop();
            self.incoming().stop();
            self.room.notify_waiters();
        }
    }

    /// Why the link has ended, if it has.
    pub(crate) fn ended(&self) -> Option<Error> {
        self.ended.borrow().clone()
    }

    /// The error of a call on a link that has ended.
    pub(crate) fn gone(&self, operation: &'static str) -> Error {
        let why = self.ended().map_or_else(|| "the link has ended".into(), |error| error.to_string());
        Error::closed(operation, format!("{}: {why}", self.inner.peer().address))
    }

    /// # Errors
    /// [`thalweg_transport::ErrorKind::Closed`] once the link has ended.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if self.ended.borrow().is_some() {
            Err(self.gone(operation))
        } else {
            Ok(())
        }
    }

    pub(crate) async fn until_ended(&self) {
        let mut ended = self.ended.subscribe();
        // This cannot fail: the sender lives as long as `self`.
        let _ = ended.wait_for(Option::is_some).await;
    }

    fn take(&self, word: Word) -> Result<()> {
        let to_receiver = match word {
            Word::Offer { .. }
            | Word::Ready { .. }
            | Word::Lent { .. }
            | Word::Withdraw { .. }
            | Word::Sum { .. }
            | Word::Sent { .. } => true,
            Word::Grant { .. } | Word::Taken { .. } | Word::Missing { .. } | Word::Noted { .. } => false,
            // The side that moves the bytes sends `Renew`. The other side sends `Ring` and `Broken`.
            Word::Renew { .. } => !self.pulls,
            Word::Ring { .. } | Word::Broken { .. } => self.pulls,
        };
        if to_receiver {
            return self.incoming().handle_word(word, &self.outbox);
        }
        self.change_outgoing(|outgoing| outgoing.handle_word(word, &self.outbox))
    }

    /// Runs `what` on the sending side. If that ends chunks, wakes the calls that wait for room.
    fn change_outgoing<T>(&self, what: impl FnOnce(&mut dyn Sends) -> T) -> T {
        let mut outgoing = self.outgoing();
        let before = outgoing.chunks();
        let result = what(&mut **outgoing);
        let ended = outgoing.chunks() < before;
        drop(outgoing);
        if ended {
            self.room.notify_waiters();
        }
        result
    }
}

/// Sink of the inner link: it takes the messages ([`Word`]) out of the link's chunks.
struct Words<'a>(&'a Shared);

impl Sink for Words<'_> {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let length = chunk.length as usize;
        if length > MOST_WORDS {
            let context = format!("{length} bytes of words from the peer of an rdma link");
            self.0.end(Error::new(thalweg_transport::ErrorKind::Corrupt, "receive", context));
            return None;
        }
        Some(Target::Scratch(vec![0; length]))
    }

    fn progress(&self, _: u64) {}

    fn stored(&self, _: &ChunkHeader, target: Target, outcome: std::result::Result<(), WireError>) {
        if self.0.ended().is_some() {
            return;
        }
        let words = outcome.map_err(Error::from).and_then(|()| Word::decode_all(target.bytes()));
        let taken = words.and_then(|words| words.into_iter().try_for_each(|word| self.0.take(word)));
        if let Err(error) = taken {
            self.0.end(error);
        }
    }
}

/// Task that receives on the inner link. Until the peer is admitted, it reads a control message only when
/// `receive` was called for it: the previous message may be the one that authenticates the peer.
pub(crate) async fn read(shared: Arc<Shared>, messages: mpsc::Sender<Bytes>) {
    let words = Words(&shared);
    let mut asked = shared.asked.subscribe();
    let pass_on = async {
        for delivered in 0.. {
            if !shared.admitted.load(Ordering::Acquire) {
                // Ignore an error: the link was dropped, so it has ended.
                let _ = asked.wait_for(|&asked| asked > delivered).await;
            }
            match shared.inner.receive(&words).await {
                Ok(message) => {
                    if messages.send(message).await.is_err() {
                        return;
                    }
                }
                Err(error) => return shared.end(error),
            }
        }
    };
    tokio::select! {
        biased;
        () = shared.until_ended() => {}
        () = pass_on => {}
    }
    shared.inner.close().await;
}

/// Task that sends the outbox.
pub(crate) async fn write(shared: Arc<Shared>, mut messages: mpsc::Receiver<Message>) {
    tokio::select! {
        biased;
        () = shared.until_ended() => {}
        error = shared.outbox.write(&*shared.inner, &mut messages) => shared.end(error),
    }
}

/// Task that drives the sending side.
pub(crate) async fn drive(shared: Arc<Shared>) {
    go_on(&shared, |context| shared.change_outgoing(|outgoing| outgoing.poll(context, &shared.outbox))).await;
}

/// Task that drives the receiving side, where that side reads or polls for headers.
pub(crate) async fn pull(shared: Arc<Shared>) {
    go_on(&shared, |context| shared.incoming().drive(context, &shared.outbox)).await;
}

/// Polls a side until the link ends, or until the side returns an error, which ends the link.
async fn go_on(shared: &Shared, mut poll: impl FnMut(&mut Context<'_>) -> Result<Option<Instant>>) {
    let mut timer = Box::pin(tokio::time::sleep(std::time::Duration::ZERO));
    let driven = std::future::poll_fn(|context| poll_until(&mut timer, context, &mut poll));
    tokio::select! {
        biased;
        () = shared.until_ended() => {}
        error = driven => shared.end(error),
    }
}

/// The driver's future. It polls the side whenever it is woken or its timer fires, and returns the error that
/// ends the link.
fn poll_until(
    timer: &mut std::pin::Pin<Box<tokio::time::Sleep>>,
    context: &mut Context<'_>,
    mut poll: impl FnMut(&mut Context<'_>) -> Result<Option<Instant>>,
) -> Poll<Error> {
    loop {
        match poll(context) {
            Err(error) => return Poll::Ready(error),
            Ok(None) => return Poll::Pending,
            Ok(Some(at)) => {
                timer.as_mut().reset(at.into());
                if std::future::Future::poll(timer.as_mut(), context).is_pending() {
                    return Poll::Pending;
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
