//! Records that a link has ended, and wakes tasks that wait in a layer.

use thalweg_transport::{ErrorKind, Outgoing, Result, SendReport};
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) struct Ended(watch::Sender<bool>);

impl Ended {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn set(&self) {
        self.0.send_replace(true);
    }

    /// Returns an outcome unchanged. If it says that the link has ended, records that.
    pub(crate) fn note<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed) {
            self.set();
        }
        outcome
    }

    /// Whether the link has ended.
    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the link has ended.
    pub(crate) async fn wait(&self) {
        let mut ended = self.0.subscribe();
        // This cannot fail: `self` holds the sender.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Sleeps until `due` or until the link has ended. The caller finds out which it was.
    pub(crate) async fn sleep_until(&self, due: Instant) {
        tokio::select! {
            biased;
            () = self.wait() => {}
            () = tokio::time::sleep_until(due) => {}
        }
    }

    /// Like [`Self::sleep_until`], for the sender of an update, which may be cancelled.
    pub(crate) async fn sleep_sending(&self, due: Instant, update: &Outgoing) -> Result<()> {
        tokio::select! {
            biased;
            () = update.cancel().cancelled() => Err(SendReport::cancelled()),
            () = self.sleep_until(due) => Ok(()),
        }
    }
}
