//! The state of a link that both directions use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use thalweg_transport::{Error, ErrorKind, Result, Standing};
use tokio::sync::{watch, Notify};
use tokio::time::sleep;

use crate::send::Outbox;
use crate::unary::Unary;

/// How long bytes of a message that is not whole are gathered before they are reported as progress. On a fast path
/// the message is whole by then.
const GATHERING: Duration = Duration::from_millis(20);

/// How far a link has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum State {
    Open,
    /// Nothing more can be sent. Bytes that arrived before can still be received.
    Ended,
    /// Nothing more is received either: this end closed the link, or the peer broke the protocol.
    Refused,
}

pub(crate) struct LinkState {
    /// The peer's address, for messages.
    pub who: String,
    pub tls: bool,
    /// What the peer may send now.
    pub standing: Standing,
    pub outbox: Outbox,
    /// The state for unary calls. `None` in stream mode.
    pub unary: Option<Unary>,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub copied: AtomicU64,
    /// Bytes of the stream's chunks that have arrived and that the receiving side has not reported yet.
    arriving: AtomicU64,
    /// Wakes the receiving side to report them.
    progressed: Notify,
    /// How far the link has ended.
    state: watch::Sender<State>,
    /// The reason why the link has ended.
    why: OnceLock<String>,
    /// The security error that ended the connection, if one did.
    fault: OnceLock<Error>,
    /// Number of the stream's bytes that the kernel has taken.
    flushed: watch::Sender<u64>,
}

impl LinkState {
    pub(crate) fn new(who: String, tls: bool, unary: Option<Unary>, standing: Standing) -> Arc<Self> {
        let zero = AtomicU64::default;
        Arc::new(Self {
            who,
            tls,
            standing,
            outbox: Outbox::default(),
            unary,
            sent: zero(),
            received: zero(),
            copied: zero(),
            arriving: zero(),
            progressed: Notify::new(),
            state: watch::Sender::new(State::Open),
            why: OnceLock::new(),
            fault: OnceLock::new(),
            flushed: watch::Sender::new(0),
        })
    }

    fn advance(&self, to: State, why: &str) {
        let _ = self.why.set(why.to_owned()); // only the first reason is kept
        self.state.send_if_modified(|state| {
            let further = *state < to;
            *state = if further { to } else { *state };
            further
        });
        self.outbox.end();
    }

    /// Ends the link, and wakes its senders. Bytes that the peer sent before can still be received.
    pub(crate) fn end(&self, why: &str) {
        self.advance(State::Ended, why);
    }

    /// Ends the link, and receives nothing more from the peer.
    pub(crate) fn refuse(&self, why: &str) {
        self.advance(State::Refused, why);
    }

    async fn reached(&self, state: State) {
        // This fails only if the `watch` sender was dropped, and that sender is a field of `self`.
        let _ = self.state.subscribe().wait_for(|now| *now >= state).await;
    }

    /// Waits until nothing more can be sent.
    pub(crate) async fn ended(&self) {
        self.reached(State::Ended).await;
    }

    /// Waits until nothing more is received.
    pub(crate) async fn refused(&self) {
        self.reached(State::Refused).await;
    }

    pub(crate) fn closed(&self, operation: &'static str) -> Error {
        let why = self.why.get().map_or("the link has ended", String::as_str);
        Error::closed(operation, format!("{}: {why}", self.who))
    }

    /// An error if nothing more can be sent.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if *self.state.borrow() >= State::Ended {
            Err(self.closed(operation))
        } else {
            Ok(())
        }
    }

    /// An error if nothing more can be received.
    pub(crate) fn check_open(&self, operation: &'static str) -> Result<()> {
        if *self.state.borrow() >= State::Refused {
            Err(self.closed(operation))
        } else {
            Ok(())
        }
    }

    /// Records an error of the connection. Keeps only the first security error, since it explains more than
    /// the errors that follow from it.
    pub(crate) fn blame(&self, error: Error) {
        if error.kind() == ErrorKind::Security {
            let _ = self.fault.set(error); // only the first is kept
        }
    }

    /// The first security error (of a certificate or a key) that ended the connection, if one did.
    pub(crate) fn fault(&self) -> Option<Error> {
        self.fault.get().cloned()
    }

    /// Counts bytes of chunks that have arrived. The first since the last report wake the receiving side.
    pub(crate) fn arrived(&self, bytes: u64) {
        if bytes > 0 && self.arriving.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.progressed.notify_one();
        }
    }

    /// Takes the number of bytes that have arrived since the last call.
    pub(crate) fn take_arrived(&self) -> u64 {
        self.arriving.swap(0, Ordering::Relaxed)
    }

    /// Waits until bytes have arrived, and for others that soon follow, and takes their number. Dropping the
    /// future loses nothing.
    pub(crate) async fn arriving(&self) -> u64 {
        loop {
            match self.take_arrived() {
                0 => {
                    self.progressed.notified().await;
                    sleep(GATHERING).await;
                }
                bytes => return bytes,
            }
        }
    }

    /// Records that the kernel has the first `bytes` bytes of the stream.
    pub(crate) fn flushed(&self, bytes: u64) {
        self.flushed.send_if_modified(|flushed| std::mem::replace(flushed, bytes) != bytes);
    }

    /// Waits until the kernel has the first `bytes` bytes of the stream.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the link ends before that.
    pub(crate) async fn until_flushed(&self, operation: &'static str, bytes: u64) -> Result<()> {
        let mut flushed = self.flushed.subscribe();
        tokio::select! {
            biased;
            _ = flushed.wait_for(|flushed| *flushed >= bytes) => Ok(()),
            () = self.ended() => Err(self.closed(operation)),
        }
    }
}
