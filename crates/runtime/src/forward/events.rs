//! What the ends of a forwarded path tell their owner, each as one JSON object.

use serde::Serialize;
use tokio::sync::mpsc;

use super::http2::Calls;

/// Something that happened.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// It listens: a near end for programs, a far end for near ends.
    Listening {
        /// Where.
        listen: String,
        /// Near end: where the far end is.
        #[serde(skip_serializing_if = "Option::is_none")]
        via: Option<String>,
        /// Far end: where streams go.
        #[serde(skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// Methods whose calls the near end answers itself.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        answers: Vec<String>,
    },
    /// A link to the other end is up, or has ended.
    Link {
        /// Who the other end is.
        peer: String,
        /// Whether it is up now.
        up: bool,
        /// Why it ended.
        why: Option<String>,
    },
    /// A program's connection is carried from now on.
    Connection {
        /// Its number at this end, from 1.
        connection: u64,
        /// Near end: the program's address. Far end: the near end's name.
        from: String,
    },
    /// A program's connection has ended.
    End {
        /// Its number at this end.
        connection: u64,
        /// As when it began.
        from: String,
        /// Bytes from the program or target to the link.
        sent: u64,
        /// Bytes from the link that the program or target took.
        received: u64,
        /// Why it was reset, if it did not end well.
        error: Option<String>,
        /// Its calls, if HTTP/2 ends here.
        #[serde(flatten)]
        calls: Option<Calls>,
    },
    /// Something that a log should have.
    Note {
        /// What.
        what: String,
    },
    /// It has ended.
    Stopped {
        /// Connections there were in all.
        connections: u64,
    },
}

impl Event {
    /// As JSON.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Where events go. Clones are the same place.
#[derive(Debug, Clone)]
pub(crate) struct Events(mpsc::Sender<String>);

impl Events {
    pub fn new(sender: mpsc::Sender<String>) -> Self {
        Self(sender)
    }

    /// Tells one; waits while its owner is behind.
    pub async fn tell(&self, event: Event) {
        // An owner that is gone wants to hear nothing.
        let _ = self.0.send(event.text()).await;
    }
}
