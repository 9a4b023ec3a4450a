//! Consumes messages from one queue, and acknowledges them in batches.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use lapin::{Channel, Consumer};
use thalweg_messages::{Event, Letter, Mailbox};
use thalweg_transport::{Address, Error, Result};
use tokio::sync::mpsc;

use crate::ending::Ending;
use crate::explain::explain;
use crate::presence::KNOCK;
use crate::{wire_bytes, RECEIVE};

/// The consumer of one queue.
pub(crate) struct Inbox {
    consumer: Consumer,
    absent: mpsc::UnboundedReceiver<Mailbox>,
    receipts: mpsc::UnboundedSender<u64>, // bounded by the prefetch
    /// Delivery tag of the last message that arrived.
    last: Arc<AtomicU64>,
    place: Address,
    ending: Arc<Ending>,
    max_message: usize,
}

impl Inbox {
    /// Takes the messages of `consumer`, and acknowledges them on `channel`. `absent` reports readers that
    /// are gone. The last argument has the broker's address, the carrier's end, and the longest message to
    /// accept, in bytes.
    pub(crate) fn new(
        consumer: Consumer,
        channel: Channel,
        prefetch: u16,
        absent: mpsc::UnboundedReceiver<Mailbox>,
        (place, ending, max_message): (Address, Arc<Ending>, usize),
    ) -> Self {
        let (receipts, dealt_with) = mpsc::unbounded_channel();
        let last = Arc::new(AtomicU64::new(0));
        tokio::spawn(acknowledge(channel, prefetch, dealt_with, last.clone()));
        Self { consumer, absent, receipts, last, place, ending, max_message }
    }

    /// The next event. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The reason of the carrier's end.
    pub(crate) async fn next(&mut self) -> Result<Event> {
        loop {
            tokio::select! {
                biased;
                error = self.ending.wait() => return Err(error),
                next = self.consumer.next() => {
                    if let Some(letter) = self.take(next)? {
                        return Ok(Event::Letter(letter));
                    }
                }
                Some(mailbox) = self.absent.recv() => {
                    let why = "the broker has no queue of it any more".into();
                    return Ok(Event::Departed { mailbox, why });
                }
            }
        }
    }

    /// Turns a delivery into a message. Returns `None` for a knock, and for a message that is longer than any
    /// of ours.
    fn take(&self, next: Option<lapin::Result<Delivery>>) -> Result<Option<Letter>> {
        let delivery = match next {
            Some(Ok(delivery)) => delivery,
            Some(Err(error)) => return self.end(explain(RECEIVE, &self.place, &error)),
            None => {
                let context =
                    format!("{}: the broker ended our subscription: the queue was deleted", self.place);
                return self.end(Error::closed(RECEIVE, context));
            }
        };
        self.last.fetch_max(delivery.delivery_tag, Relaxed);
        let receipt = Receipt { tag: delivery.delivery_tag, to: self.receipts.clone() };
        if delivery.properties.kind().as_ref().is_some_and(|kind| kind.as_str() == KNOCK) {
            return Ok(None);
        }
        if delivery.data.len() > self.max_message {
            return Ok(None);
        }
        let wire = wire_bytes(delivery.data.len(), delivery.exchange.as_str(), delivery.routing_key.as_str());
        let bytes = Bytes::from(delivery.data);
        Ok(Some(Letter { bytes, body: None, from: None, wire, receipt: Some(Box::new(receipt)) }))
    }

    fn end<T>(&self, error: Error) -> Result<T> {
        self.ending.set(error);
        self.ending.check()?;
        Err(Error::closed(RECEIVE, "the carrier has ended"))
    }
}

/// Reports a message as processed when dropped.
struct Receipt {
    tag: u64,
    to: mpsc::UnboundedSender<u64>,
}

impl Drop for Receipt {
    fn drop(&mut self) {
        // An error means that the carrier is gone, and its queue too.
        let _ = self.to.send(self.tag);
    }
}

/// The messages that have been processed. One acknowledgement covers all messages up to `upto`.
#[derive(Default)]
struct Dealt {
    upto: u64,
    beyond: BTreeSet<u64>,
}

impl Dealt {
    fn add(&mut self, tag: u64) {
        self.beyond.insert(tag);
        while self.beyond.remove(&(self.upto + 1)) {
            self.upto += 1;
        }
    }
}

/// Acknowledges messages: half a prefetch at once, or fewer if every message that has arrived is processed.
async fn acknowledge(
    channel: Channel,
    prefetch: u16,
    mut dealt_with: mpsc::UnboundedReceiver<u64>,
    last: Arc<AtomicU64>,
) {
    let batch = u64::from(prefetch / 2).max(1);
    let (mut dealt, mut acknowledged, mut tags) = (Dealt::default(), 0, Vec::new());
    while dealt_with.recv_many(&mut tags, usize::from(prefetch)).await > 0 {
        tags.drain(..).for_each(|tag| dealt.add(tag));
        let due = dealt.upto >= acknowledged + batch || dealt.upto >= last.load(Relaxed);
        if dealt.upto == acknowledged || !due {
            continue;
        }
        acknowledged = dealt.upto;
        if channel.basic_ack(acknowledged, BasicAckOptions { multiple: true }).await.is_err() {
            // The consumer reports the reason.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_complete_is_acknowledged() {
        let mut dealt = Dealt::default();
        for (tag, upto) in [(2, 0), (3, 0), (1, 3), (5, 3), (4, 5)] {
            dealt.add(tag);
            assert_eq!(dealt.upto, upto);
        }
        assert!(dealt.beyond.is_empty());
    }
}
