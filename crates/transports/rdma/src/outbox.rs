//! What is to be said on the inner link, in order: words, and control messages behind the words that were said before.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use thalweg_transport::{Cancel, Link, Outgoing, Result, UpdateId};
use thalweg_wire::LayoutHash;
use tokio::sync::{mpsc, oneshot, Notify};

use crate::words::Word;

/// Most bytes of words in one frame.
pub(crate) const MOST_WORDS: usize = 64 << 10;
/// Control messages that wait for the writer; senders of more wait.
const WAITING: usize = 8;

/// A control message, and whom to tell how sending it went.
pub(crate) type Message = (Bytes, oneshot::Sender<Result<()>>);

/// Words wait here until the writer sends them. Their number is bounded by what is offered.
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

    /// Says a word, without waiting.
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

    /// What was said and not yet sent.
    #[cfg(test)]
    pub(crate) fn said(&self) -> Vec<Word> {
        let frames = std::mem::take(&mut *self.words());
        frames.iter().filter_map(|frame| Word::decode_all(frame).ok()).flatten().collect()
    }

    /// Hands a control message to the writer. `None` once the writer has ended.
    pub(crate) async fn send(&self, message: Bytes) -> Option<Result<()>> {
        let (tell, hear) = oneshot::channel();
        self.messages.send((message, tell)).await.ok()?;
        hear.await.ok()
    }

    /// Sends what is said, until the inner link has ended; returns why it has.
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
                // Nobody listens where the sender has given up.
                let _ = tell.send(sent);
            }
        }
    }
}

/// Words as a chunk.
fn carrier(frame: Vec<u8>) -> Outgoing {
    let id = UpdateId { job: 0, round: 0, sender: 0, layout: LayoutHash(0) };
    let length = frame.len() as u32;
    Outgoing::packed(id, frame.into(), [(0, length)], Cancel::default())
}
