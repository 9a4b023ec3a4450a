//! How a carrier ends, once for all of its tasks: the first reason counts.

use thalweg_transport::{Error, Result};
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Ending(watch::Sender<Option<Error>>);

impl Default for Ending {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Ending {
    /// Ends it, if it has not ended yet.
    pub(crate) fn set(&self, why: Error) {
        self.0.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(why);
            first
        });
    }

    /// Fails with the reason, once it has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.borrow().clone().map_or(Ok(()), Err)
    }

    /// Waits for the end and says why.
    pub(crate) async fn wait(&self) -> Error {
        let mut end = self.0.subscribe();
        let found = end.wait_for(Option::is_some).await.map(|end| end.clone());
        // It cannot fail: we hold the sender.
        found.ok().flatten().unwrap_or_else(|| Error::closed("carry", "it has ended"))
    }
}
