//! The queue of the inner link, in order. A control message follows all messages ([`Word`]) that were queued
//! before it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use thalweg_transport::{Cancel, Link, Outgoing, Result, UpdateId};
use thalweg_wire::LayoutHash;
use tokio::sync::{mpsc, oneshot, Notify};

use crate::words::Word;

/// Maximum number of bytes of messages in one chunk of the inner link.
pub(crate) const MOST_WORDS: usize = 64 << 10;
/// Maximum number of control messages that are queued for the writer task. Further senders wait.
const WAITING: usize = 8;

/// A control message, and the channel that returns whether it was sent.
pub(crate) type Message = (Bytes, oneshot::Sender<Result<()>>);

/// Messages wait here until the writer task sends them. The limits on offers also limit the number of
/// messages.
pub(crate) struct Outbox {
    words: Mutex<Vec<Vec<u8>>>,
    said: Notify,
    messages: mpsc::Sender<Message>,
}

impl Outbox {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Message>) {
        let (messages, to_send) = mpsc::channel(WAITING);
        (Self { words: Mutex::default(), said: Notify::new(), messages }, to_send)
    }

    fn words(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message, without waiting.
    pub(crate) fn say(&self, word: &Word) {
        let mut frames = self.words();
        match frames.last_mut().filter(|frame| frame.len() + 128 <= MOST_WORDS) {
            Some(frame) => word.encode(frame),
            None => {
                let mut frame = Vec::with_capacity(128);
                word.encode(&mut frame);
                frames.push(frame);
            }
        }
        drop(frames);
        self.said.notify_one();
    }

    /// Takes the messages that were queued and not sent.
    #[cfg(test)]
    pub(crate) fn said(&self) -> Vec<Word> {
        let frames = std::mem::take(&mut *self.words());
        frames.iter().filter_map(|frame| Word::decode_all(frame).ok()).flatten().collect()
    }

    /// Hands a control message to the writer task and waits until it is sent. `None` once the writer task has
    /// ended.
    pub(crate) async fn send(&self, message: Bytes) -> Option<Result<()>> {
        let (tell, hear) = oneshot::channel();
        self.messages.send((message, tell)).await.ok()?;
        hear.await.ok()
    }

    /// Sends everything that is queued, until the inner link fails. Returns that error.
    pub(crate) async fn write(
        &self,
        inner: &dyn Link,
        messages: &mut mpsc::Receiver<Message>,
    ) -> thalweg_transport::Error {
        loop {
            let message = tokio::select! {
                biased;
                () = self.said.notified() => None,
                message = messages.recv() => message,
            };
            let frames = std::mem::take(&mut *self.words());
            for frame in frames {
                if let Err(error) = inner.send_update(&carrier(frame)).await {
                    return error;
                }
            }
            if let Some((message, tell)) = message {
                let sent = inner.send_control(message).await;
                // Ignore an error: the caller has given up.
                let _ = tell.send(sent);
            }
        }
    }
}

/// Wraps messages as an update of one chunk.
fn carrier(frame: Vec<u8>) -> Outgoing {
    let id = UpdateId { job: 0, round: 0, sender: 0, layout: LayoutHash(0) };
    let length = frame.len() as u32;
    Outgoing::packed(id, frame.into(), [(0, length)], Cancel::default())
}
