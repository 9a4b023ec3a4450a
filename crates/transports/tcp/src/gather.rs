//! Connections that wait for the other connections of their link.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_transport::{Error, ErrorKind, Link, Peer, Pending, Result, UnauthenticatedPeer};
use tokio::sync::oneshot;
use tokio::time::{timeout_at, Instant};

use crate::data::{DataKey, Hello};
use crate::link::{Shaken, TcpLink};
use crate::preamble::{LinkId, Preamble};

/// Maximum number of links that may wait for connections at a time. Further links are refused.
const MAX_WAITING: usize = 1024;
const ACCEPT: &str = "accept";

struct Waiting {
    /// The link's connections by number; `None` for those that have not arrived.
    connections: Vec<Option<Shaken>>,
    /// The key of a link with data connections. All its connections but the first are data connections.
    key: Option<DataKey>,
    /// Gets all connections when the last one has arrived.
    whole: oneshot::Sender<Vec<Shaken>>,
}

/// The links that wait for some of their connections.
#[derive(Clone, Default)]
pub(crate) struct Gathering(Arc<Mutex<HashMap<LinkId, Waiting>>>);

impl Gathering {
    fn table(&self) -> MutexGuard<'_, HashMap<LinkId, Waiting>> {
        // Each change is one call on the map, so the map is consistent even if the lock is poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. For the first connection of a link, returns the pending link, which waits up to
    /// `limit` for the rest.
    pub(crate) fn add(&self, preamble: Preamble, shaken: Shaken, limit: Duration) -> Result<Option<Pending>> {
        if let Some(unauthenticated_peer) = &shaken.unauthenticated_peer {
            unauthenticated_peer.progressed();
        }
        if preamble.streams == 1 {
            let link: Arc<dyn Link> = Arc::new(TcpLink::new(vec![shaken], false));
            return Ok(Some(Box::pin(std::future::ready(Ok(link)))));
        }
        self.end_with(&shaken, preamble.id);
        let mut table = self.table();
        if let Some(waiting) = table.get_mut(&preamble.id) {
            waiting.check(preamble, &shaken)?;
            put(&mut table, preamble.id, preamble.stream.into(), shaken)?;
            return Ok(None);
        }
        let pending = self.wait(&mut table, preamble.id, preamble.streams.into(), None, limit)?;
        put(&mut table, preamble.id, preamble.stream.into(), shaken)?;
        Ok(Some(pending))
    }

    /// Begins a link whose chunks go on data connections. The link waits for its first connection and for
    /// these.
    pub(crate) fn expect(&self, preamble: Preamble, key: DataKey, limit: Duration) -> Result<Pending> {
        let mut table = self.table();
        if table.contains_key(&preamble.id) {
            return bad("a connection of a link came twice");
        }
        self.wait(&mut table, preamble.id, 1 + usize::from(preamble.streams), Some(key), limit)
    }

    /// The key of the link to which a data connection belongs. An error if the connection's proof fits no
    /// waiting link.
    pub(crate) fn key(&self, hello: &Hello) -> Result<DataKey> {
        let key = self.table().get(&hello.preamble.id).and_then(|waiting| waiting.key.clone());
        key.filter(|key| hello.is_proved(key)).ok_or_else(|| {
            let context = "a data connection proves to belong to no link that waits for one";
            Error::new(ErrorKind::Security, ACCEPT, context)
        })
    }

    /// Adds a connection to a link that was begun by `expect`. The first connection has place 0; the data
    /// connections follow.
    pub(crate) fn join(&self, id: LinkId, place: usize, shaken: Shaken) -> Result<()> {
        self.end_with(&shaken, id);
        put(&mut self.table(), id, place, shaken)
    }

    /// Ends the waiting link when one of its connections is evicted from the admission queue.
    fn end_with(&self, shaken: &Shaken, id: LinkId) {
        let Some(watch) = shaken.unauthenticated_peer.as_ref().map(UnauthenticatedPeer::watch) else {
            return;
        };
        let gathering = self.clone();
        tokio::spawn(async move {
            if watch.evicted().await.is_some() {
                gathering.table().remove(&id);
            }
        });
    }

    fn wait(
        &self,
        table: &mut HashMap<LinkId, Waiting>,
        id: LinkId,
        connections: usize,
        key: Option<DataKey>,
        limit: Duration,
    ) -> Result<Pending> {
        if table.len() >= MAX_WAITING {
            let context = format!("{MAX_WAITING} links wait for their connections already");
            return Err(Error::new(ErrorKind::System, ACCEPT, context).hint("let the client try again"));
        }
        let (whole, rest) = oneshot::channel();
        let (data, connections) = (key.is_some(), (0..connections).map(|_| None).collect());
        table.insert(id, Waiting { connections, key, whole });
        let entry = Entry { table: self.clone(), id };
        Ok(Box::pin(whole_link(entry, rest, data, Instant::now() + limit)))
    }
}

fn bad<T>(why: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Corrupt, ACCEPT, why))
}

/// Stores a connection of a link. With its last connection, the link leaves the table and its waiter gets the
/// connections.
fn put(table: &mut HashMap<LinkId, Waiting>, id: LinkId, place: usize, shaken: Shaken) -> Result<()> {
    let Some(waiting) = table.get_mut(&id) else { return bad("a connection came too late for its link") };
    match waiting.connections.get_mut(place) {
        Some(place @ None) => *place = Some(shaken),
        _ => return bad("a connection of a link came twice"),
    }
    if waiting.connections.iter().all(Option::is_some) {
        if let Some(Waiting { connections, whole, .. }) = table.remove(&id) {
            // This fails if the waiter no longer wants the link. The connections are dropped then, and so
            // end.
            let _ = whole.send(connections.into_iter().flatten().collect());
        }
    }
    Ok(())
}

impl Waiting {
    /// Whether a connection without a proof may belong to this link: it must name the same number of
    /// connections and show the same certificate.
    fn check(&self, preamble: Preamble, shaken: &Shaken) -> Result<()> {
        if self.key.is_some() || usize::from(preamble.streams) != self.connections.len() {
            return bad("the connections of a link disagree on how many there are");
        }
        let first = self.connections.iter().flatten().next().map(|c| &c.peer);
        let same = |peer: &Peer| peer.certified == shaken.peer.certified && peer.role == shaken.peer.role;
        if first.is_some_and(|peer| !same(peer)) {
            return bad("the connections of a link show different certificates");
        }
        Ok(())
    }
}

/// Removes the link from the table when nobody waits for it any more.
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
    data: bool,
    deadline: Instant,
) -> Result<Arc<dyn Link>> {
    let outcome = timeout_at(deadline, rest).await;
    drop(entry);
    match outcome {
        Ok(Ok(connections)) => Ok(Arc::new(TcpLink::new(connections, data))),
        Ok(Err(_)) => Err(Error::closed(ACCEPT, "a connection of a link gave way before the others came")),
        Err(_) => {
            Err(Error::new(ErrorKind::Timeout, ACCEPT, "some connections of a link did not come in time"))
        }
    }
}
