//! Events that an end of a forwarded path sends to its owner, each as one JSON object.

use serde::Serialize;
use tokio::sync::mpsc;

use super::http2::Calls;

/// An event.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// The end listens: a near end for programs, a far end for near ends.
    Listening {
        /// The address at which the end listens.
        listen: String,
        /// Near end: address of the far end.
        #[serde(skip_serializing_if = "Option::is_none")]
        via: Option<String>,
        /// Far end: address of the target.
        #[serde(skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// Methods whose calls the near end answers itself.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        answers: Vec<String>,
    },
    /// A link to the other end is up, or has ended.
    Link {
        /// Name or address of the other end.
        peer: String,
        /// Whether the link is up now.
        up: bool,
        /// Why the link ended; `None` if it is up.
        why: Option<String>,
    },
    /// A program's connection is carried from now on.
    Connection {
        /// Number of the connection at this end, from 1.
        connection: u64,
        /// Near end: the program's address. Far end: the near end's name.
        from: String,
    },
    /// A program's connection has ended.
    End {
        /// Number of the connection at this end, from 1.
        connection: u64,
        /// Near end: the program's address. Far end: the near end's name.
        from: String,
        /// Bytes from the program or target to the link.
        sent: u64,
        /// Bytes from the link to the program or target.
        received: u64,
        /// Why the connection was reset; `None` if both directions ended in order.
        error: Option<String>,
        /// Counts of the connection's calls, if this end terminates HTTP/2.
        #[serde(flatten)]
        calls: Option<Calls>,
    },
    /// A line for a log.
    Note {
        /// The text.
        what: String,
    },
    /// The end has stopped.
    Stopped {
        /// Total number of connections.
        connections: u64,
    },
}

impl Event {
    /// The event as JSON.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The queue of events. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Events(mpsc::Sender<String>);

impl Events {
    pub fn new(sender: mpsc::Sender<String>) -> Self {
        Self(sender)
    }

    /// Sends an event. Waits while the queue is full.
    pub async fn tell(&self, event: Event) {
        // Ignore an error: the owner is gone.
        let _ = self.0.send(event.text()).await;
    }
}
