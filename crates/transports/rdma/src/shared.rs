//! What the tasks and calls of a link share.

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

/// A link's state. The two sides are never locked together.
pub(crate) struct Shared {
    pub(crate) inner: Arc<dyn Link>,
    pub(crate) outbox: Outbox,
    outgoing: Mutex<Box<dyn Sends>>,
    incoming: Mutex<Box<dyn Receives>>,
    /// Whether receivers read, instead of senders writing.
    pulls: bool,
    /// Told when more may be offered.
    pub(crate) room: Notify,
    /// Why the link has ended.
    ended: watch::Sender<Option<Error>>,
    /// Whether it was ended here: then nothing is received any more.
    pub(crate) closed: AtomicBool,
    /// Whether the peer has proved who it is, or need not.
    pub(crate) admitted: AtomicBool,
    /// How many control messages were asked for.
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

    /// Ends the link for the first reason that is given: no device uses any memory from here on.
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

    /// What a call fails with once the link has ended.
    pub(crate) fn gone(&self, operation: &'static str) -> Error {
        let why = self.ended().map_or_else(|| "the link has ended".into(), |error| error.to_string());
        Error::closed(operation, format!("{}: {why}", self.inner.peer().address))
    }

    /// # Errors
    /// Once the link has ended.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if self.ended.borrow().is_some() {
            Err(self.gone(operation))
        } else {
            Ok(())
        }
    }

    pub(crate) async fn until_ended(&self) {
        let mut ended = self.ended.subscribe();
        // An error would mean that the sender is gone, which it is not while we are borrowed.
        let _ = ended.wait_for(Option::is_some).await;
    }

    fn take(&self, word: Word) -> Result<()> {
        let to_receiver = match word {
            Word::Offer { .. } | Word::Lent { .. } | Word::Withdraw { .. } | Word::Sent { .. } => true,
            Word::Grant { .. } | Word::Taken { .. } | Word::Missing { .. } => false,
            // Said by whoever moves the bytes, and answered by the other.
            Word::Renew { .. } => !self.pulls,
            Word::Ring { .. } | Word::Broken { .. } => self.pulls,
        };
        if to_receiver {
            return self.incoming().handle_word(word, &self.outbox);
        }
        self.change_outgoing(|outgoing| outgoing.handle_word(word, &self.outbox))
    }

    /// Does something that may end chunks of the sending side. If it does, whoever waits for room looks again.
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

/// The words among what comes on the inner link.
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

/// Receives on the inner link. Whatever comes after a control message may wait until that has been asked for: the peer of a
/// listener may have to be admitted first.
pub(crate) async fn read(shared: Arc<Shared>, messages: mpsc::Sender<Bytes>) {
    let words = Words(&shared);
    let mut asked = shared.asked.subscribe();
    let pass_on = async {
        for delivered in 0.. {
            if !shared.admitted.load(Ordering::Acquire) {
                // An error would mean that the link is gone, and then it has ended.
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

/// Sends what is said.
pub(crate) async fn write(shared: Arc<Shared>, mut messages: mpsc::Receiver<Message>) {
    tokio::select! {
        biased;
        () = shared.until_ended() => {}
        error = shared.outbox.write(&*shared.inner, &mut messages) => shared.end(error),
    }
}

/// Moves what is to be sent.
pub(crate) async fn drive(shared: Arc<Shared>) {
    go_on(&shared, |context| shared.change_outgoing(|outgoing| outgoing.poll(context, &shared.outbox))).await;
}

/// Moves what is to be received, where that is read or polled for.
pub(crate) async fn pull(shared: Arc<Shared>) {
    go_on(&shared, |context| shared.incoming().drive(context, &shared.outbox)).await;
}

/// Polls a side until the link ends, or has to.
async fn go_on(shared: &Shared, mut poll: impl FnMut(&mut Context<'_>) -> Result<Option<Instant>>) {
    let mut timer = Box::pin(tokio::time::sleep(std::time::Duration::ZERO));
    let driven = std::future::poll_fn(|context| poll_until(&mut timer, context, &mut poll));
    tokio::select! {
        biased;
        () = shared.until_ended() => {}
        error = driven => shared.end(error),
    }
}

/// The driver's future: goes on until the link ends, and returns why it has to.
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
