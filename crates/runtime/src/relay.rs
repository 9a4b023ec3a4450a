//! Relays the events of a forwarder or a proxy to the thread that waits for it.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc::Receiver, watch};

use crate::engine::CALLER_TIMEOUT;

/// Maximum number of events that wait to be read by the owner. Beyond that, the sender of an event waits.
pub(crate) const MAX_EVENTS: usize = 1024;
/// Longest wait for one more event while the end shuts down. It must close connections and undo changes to
/// the system.
const GRACE: Duration = Duration::from_secs(10);

/// Passes each event to `go_on`, which is also called several times a second without one. Once it returns
/// false, `stop` becomes true; events that still arrive are passed to it too. Returns when no more events can
/// arrive, or none has for the time of shutting down.
pub(crate) fn relay(
    handle: &Handle,
    events: &mut Receiver<String>,
    mut go_on: impl FnMut(Option<&str>) -> bool,
    stop: &watch::Sender<bool>,
) {
    let mut next = |timeout| handle.block_on(async { tokio::time::timeout(timeout, events.recv()).await });
    loop {
        let event = match next(CALLER_TIMEOUT) {
            Ok(None) => return,
            Ok(Some(event)) => Some(event),
            Err(_) => None,
        };
        if !go_on(event.as_deref().map(str::trim_end)) {
            break;
        }
    }
    stop.send_replace(true);
    while let Ok(Some(event)) = next(GRACE) {
        go_on(Some(event.trim_end()));
    }
}
