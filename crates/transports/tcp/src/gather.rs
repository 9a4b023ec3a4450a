//! Connections that wait for the others of their link.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_transport::{Error, ErrorKind, Link, Pending, Result};
use tokio::sync::oneshot;
use tokio::time::{timeout_at, Instant};

use crate::link::{Shaken, TcpLink};
use crate::preamble::{LinkId, Preamble};

/// Links that may wait for connections at a time; beyond that a new one is refused.
const MAX_WAITING: usize = 1024;
const ACCEPT: &str = "accept";

struct Waiting {
    connections: Vec<Option<Shaken>>,
    whole: oneshot::Sender<Vec<Shaken>>,
}

/// The links of which some connections are there and some not.
#[derive(Clone, Default)]
pub(crate) struct Gathering(Arc<Mutex<HashMap<LinkId, Waiting>>>);

impl Gathering {
    fn table(&self) -> MutexGuard<'_, HashMap<LinkId, Waiting>> {
        // Each change is one call on the map, so a poisoned one is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection. The first of a link gives the link that is pending, which waits up to `limit`
    /// for the rest.
    pub(crate) fn add(&self, preamble: Preamble, shaken: Shaken, limit: Duration) -> Result<Option<Pending>> {
        if preamble.streams == 1 {
            let link: Arc<dyn Link> = Arc::new(TcpLink::new(vec![shaken]));
            return Ok(Some(Box::pin(std::future::ready(Ok(link)))));
        }
        let mut table = self.table();
        if let Some(waiting) = table.get_mut(&preamble.id) {
            waiting.put(preamble, shaken)?;
            if waiting.connections.iter().all(Option::is_some) {
                if let Some(Waiting { connections, whole }) = table.remove(&preamble.id) {
                    // It fails if the caller no longer wants the link, whose connections then end.
                    let _ = whole.send(connections.into_iter().flatten().collect());
                }
            }
            return Ok(None);
        }
        if table.len() >= MAX_WAITING {
            let context = format!("{MAX_WAITING} links wait for their connections already");
            return Err(Error::new(ErrorKind::System, ACCEPT, context).mend("let the client try again"));
        }
        let (whole, rest) = oneshot::channel();
        let mut waiting = Waiting { connections: (0..preamble.streams).map(|_| None).collect(), whole };
        waiting.put(preamble, shaken)?;
        table.insert(preamble.id, waiting);
        let entry = Entry { table: self.clone(), id: preamble.id };
        Ok(Some(Box::pin(whole_link(entry, rest, Instant::now() + limit))))
    }
}

impl Waiting {
    fn put(&mut self, preamble: Preamble, shaken: Shaken) -> Result<()> {
        let bad = |why: &str| Err(Error::new(ErrorKind::Corrupt, ACCEPT, why));
        if usize::from(preamble.streams) != self.connections.len() {
            return bad("the connections of a link disagree on how many there are");
        }
        let certified = self.connections.iter().flatten().next().map(|c| &c.peer.certified);
        if certified.is_some_and(|name| *name != shaken.peer.certified) {
            return bad("the connections of a link show different certificates");
        }
        match self.connections.get_mut(usize::from(preamble.stream)) {
            Some(place @ None) => *place = Some(shaken),
            _ => return bad("a connection of a link came twice"),
        }
        Ok(())
    }
}

/// Takes the link out of the table when nobody waits for it any more.
struct Entry {
    table: Gathering,
    id: LinkId,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.table().remove(&self.id);
    }
}

async fn whole_link(
    entry: Entry,
    rest: oneshot::Receiver<Vec<Shaken>>,
    deadline: Instant,
) -> Result<Arc<dyn Link>> {
    let outcome = timeout_at(deadline, rest).await;
    drop(entry);
    match outcome {
        Ok(Ok(connections)) => Ok(Arc::new(TcpLink::new(connections))),
        Ok(Err(_)) => Err(Error::closed(ACCEPT, "the listener has ended")),
        Err(_) => {
            Err(Error::new(ErrorKind::Timeout, ACCEPT, "some connections of a link did not come in time"))
        }
    }
}
