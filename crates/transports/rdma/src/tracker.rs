//! Progress of one call of `send_update`.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// The chunks of one call that have not ended, and how many of their bytes were sent.
#[derive(Default)]
pub(crate) struct Tracker {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    under_way: BTreeSet<u64>,
    /// Bytes handed to the network, headers and commit records included.
    wire: u64,
    /// When the latest work request completed.
    last: Option<Instant>,
}

impl Tracker {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn began(&self, number: u64) {
        self.inner().under_way.insert(number);
    }

    pub(crate) fn handed_over(&self, bytes: u64) {
        self.inner().wire += bytes;
    }

    pub(crate) fn wire(&self) -> u64 {
        self.inner().wire
    }

    pub(crate) fn written(&self) {
        self.inner().last = Some(Instant::now());
    }

    pub(crate) fn ended(&self, number: u64) {
        let mut inner = self.inner();
        inner.under_way.remove(&number);
        if inner.under_way.is_empty() {
            self.changed.notify_waiters();
        }
    }

    /// The numbers of the chunks that have not ended.
    pub(crate) fn under_way(&self) -> Vec<u64> {
        self.inner().under_way.iter().copied().collect()
    }

    pub(crate) fn last(&self) -> Option<Instant> {
        self.inner().last
    }

    /// Waits until all chunks have ended.
    pub(crate) async fn all_ended(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.inner().under_way.is_empty() {
                return;
            }
            changed.await;
        }
    }
}
