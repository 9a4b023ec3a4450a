//! The end of a carrier, shared by all of its tasks. Only the first reason is kept.

use thalweg_transport::{Error, Result};
use tokio::sync::watch;

/// The reason of the end, once there is one.
#[derive(Debug)]
pub(crate) struct Ending(watch::Sender<Option<Error>>);

impl Default for Ending {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Ending {
    /// Ends the carrier, unless it has ended already.
    pub(crate) fn set(&self, why: Error) {
        self.0.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(why);
            first
        });
    }

    /// Returns the reason as an error if the carrier has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.borrow().clone().map_or(Ok(()), Err)
    }

    /// Waits for the end, and returns the reason.
    pub(crate) async fn wait(&self) -> Error {
        let mut end = self.0.subscribe();
        let found = end.wait_for(Option::is_some).await.map(|end| end.clone());
        // This cannot fail: we hold the sender.
        found.ok().flatten().unwrap_or_else(|| Error::closed("carry", "it has ended"))
    }
}
