//! Each link's queue of control messages. So a slow peer delays no other peer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_transport::Link;
use thalweg_wire::control::Control;
use tokio::sync::{mpsc, oneshot};

use super::task_set::TaskSet;

/// Maximum number of messages that may be queued for a peer. A peer that is further behind loses its link.
const CAPACITY: usize = 256;
/// How long a closing link may take to send the queued messages.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

enum Item {
    Message(Bytes),
    Barrier(oneshot::Sender<()>),
}

/// A link and its queue.
#[derive(Clone)]
pub(crate) struct Outbox {
    link: Arc<dyn Link>,
    queue: mpsc::Sender<Item>,
    task_set: TaskSet,
}

impl Outbox {
    /// Starts the task that sends the queue over the link.
    pub fn start(task_set: &TaskSet, link: Arc<dyn Link>) -> Self {
        let (queue, mut items) = mpsc::channel(CAPACITY);
        let writer = link.clone();
        task_set.spawn(async move {
            while let Some(item) = items.recv().await {
                match item {
                    Item::Message(message) => {
                        if writer.send_control(message).await.is_err() {
                            return; // the link's reader sees the error and reports it
                        }
                    }
                    Item::Barrier(reached) => drop(reached.send(())),
                }
            }
        });
        Self { link, queue, task_set: task_set.clone() }
    }

    pub fn link(&self) -> &Arc<dyn Link> {
        &self.link
    }

    /// Queues a message. Closes the link if its queue is full, or the message is too large to send.
    pub fn send(&self, message: &Control) {
        let queued = message.encode().ok().and_then(|m| self.queue.try_send(Item::Message(m.into())).ok());
        if queued.is_none() {
            let link = self.link.clone();
            self.task_set.spawn(async move { link.close().await });
        }
    }

    /// Waits until all messages that are queued now are sent, or the link has ended.
    pub async fn flushed(&self) {
        let (reached, wait) = oneshot::channel();
        if self.queue.send(Item::Barrier(reached)).await.is_ok() {
            let _ = wait.await; // an error means that the link has ended
        }
    }

    /// Closes the link after the queued messages are sent, or after a short time limit.
    pub fn close(&self) {
        let outbox = self.clone();
        self.task_set.spawn(async move {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, outbox.flushed()).await;
            outbox.link.close().await;
        });
    }
}
