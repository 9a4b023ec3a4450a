//! Events of what serves until it is told to stop, relayed to the thread that waits for it.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc::Receiver, watch};

/// Events that nobody has heard yet; beyond that, whoever tells them waits.
pub(crate) const UNHEARD: usize = 1024;
/// How often the waiting thread is asked whether to go on.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long the end may take: connections, last lines, and what is taken back of the system.
const GRACE: Duration = Duration::from_secs(10);

/// Hands each event to `go_on`, which is asked several times a second. If it says no, `stop` becomes true, and the events
/// that still come are handed to it. Returns when no more can come.
pub(crate) fn relay(
    handle: &Handle,
    events: &mut Receiver<String>,
    mut go_on: impl FnMut(Option<&str>) -> bool,
    stop: &watch::Sender<bool>,
) {
    let mut next = |patience| handle.block_on(async { tokio::time::timeout(patience, events.recv()).await });
    loop {
        let event = match next(PATIENCE) {
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
