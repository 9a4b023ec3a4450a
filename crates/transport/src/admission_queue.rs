//! Where peers wait until they have proved who they are: [`crate::UnauthenticatedPeers`] with a clock, and a way to
//! tell one to go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::select_all;
use thalweg_wire::{Kind, MAX_CHUNK, MAX_CONTROL, MAX_HELLO};
use tokio::sync::watch;
use tokio::time::{sleep_until, Instant};

use crate::unauthenticated_peers::{Bounds, Origin, UnauthenticatedPeerId, UnauthenticatedPeers};
use crate::{Error, ErrorKind, Result};

/// Unauthenticated peers that were told to go and may still be there, before nobody new is let in.
const LEAVING: usize = 64;
const LINK: &str = "admit peer";

/// The unauthenticated peers of a listener, or of several. Clones are the same admission queue.
///
/// A transport asks for an [`UnauthenticatedPeer`] as soon as it knows of a peer and before it keeps anything for it,
/// holds on to it with whatever it keeps, and lets all of that go when [`Watch::evicted`] says so.
#[derive(Clone)]
pub struct AdmissionQueue(Arc<Inner>);

struct Inner {
    opened: Instant,
    table: Mutex<Table>,
    /// How many were told to go and are still there.
    leaving: watch::Sender<usize>,
}

struct Table {
    unauthenticated_peers: UnauthenticatedPeers,
    /// Those who are there, with those who were told to go.
    here: HashMap<UnauthenticatedPeerId, watch::Sender<State>>,
}

/// How an unauthenticated peer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Here,
    /// It has to go, for another has come.
    GivesWay,
    /// It has proved itself, or is gone.
    Left,
}

impl AdmissionQueue {
    /// An empty one. Of its peers one may wait so long, and so many in all and from each address.
    pub fn new(bounds: Bounds) -> Self {
        let table = Table { unauthenticated_peers: UnauthenticatedPeers::new(bounds), here: HashMap::new() };
        Self(Arc::new(Inner {
            opened: Instant::now(),
            table: Mutex::new(table),
            leaving: watch::Sender::new(0),
        }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.0.opened.elapsed()
    }

    /// How many peers wait that have not been told to go.
    pub fn count(&self) -> usize {
        self.table().unauthenticated_peers.count()
    }

    /// How many peers may wait.
    pub fn bounds(&self) -> Bounds {
        self.table().unauthenticated_peers.bounds()
    }

    /// Waits until so many of those that were told to go are gone that another peer can be let in. To be awaited before
    /// a connection is taken from the system: so there are never more than the bounds say, and a few that are leaving.
    pub async fn room(&self) {
        // It fails when the sender is gone, which lives as long as we do.
        let _ = self.0.leaving.subscribe().wait_for(|leaving| *leaving < LEAVING).await;
    }

    /// Whether another peer can be let in now; see [`AdmissionQueue::room`].
    pub fn has_room(&self) -> bool {
        *self.0.leaving.borrow() < LEAVING
    }

    /// A peer has come. Another may have to go for it.
    pub fn enter(&self, from: impl Into<Origin>) -> UnauthenticatedPeer {
        let mut table = self.table();
        let (id, out) = table.unauthenticated_peers.arrive(self.now(), from.into());
        let state = watch::Sender::new(State::Here);
        let until = Instant::now() + table.unauthenticated_peers.bounds().timeout;
        let watch = Watch { state: state.subscribe(), until };
        table.here.insert(id, state);
        if let Some(state) = out.and_then(|out| table.here.get(&out)) {
            state.send_replace(State::GivesWay);
            self.0.leaving.send_modify(|leaving| *leaving += 1);
        }
        drop(table);
        UnauthenticatedPeer(Arc::new(Place { admission_queue: self.clone(), id, watch }))
    }

    fn leave(&self, id: UnauthenticatedPeerId) {
        let mut table = self.table();
        table.unauthenticated_peers.leave(id);
        let Some(state) = table.here.remove(&id) else { return };
        if state.send_replace(State::Left) == State::GivesWay {
            self.0.leaving.send_modify(|leaving| *leaving -= 1);
        }
    }
}

impl std::fmt::Debug for AdmissionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AdmissionQueue({} of {})", self.count(), self.bounds().total)
    }
}

impl PartialEq for AdmissionQueue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for AdmissionQueue {}

/// A peer's place in an admission queue. It is free when the last clone is dropped, or the peer has proved itself.
#[derive(Clone)]
pub struct UnauthenticatedPeer(Arc<Place>);

struct Place {
    admission_queue: AdmissionQueue,
    id: UnauthenticatedPeerId,
    watch: Watch,
}

impl UnauthenticatedPeer {
    /// It took a step of its handshake, whole: whoever did not gives way before.
    pub fn heard(&self) {
        let now = self.0.admission_queue.now();
        self.0.admission_queue.table().unauthenticated_peers.heard(now, self.0.id);
    }

    /// It has proved itself: its place is free, and it is never evicted.
    pub fn admit(&self) {
        self.0.admission_queue.leave(self.0.id);
    }

    /// Who waits for its end, without keeping its place.
    pub fn watch(&self) -> Watch {
        self.0.watch.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission_queue.leave(self.id);
    }
}

/// Learns when an unauthenticated peer has to go.
#[derive(Clone)]
pub struct Watch {
    state: watch::Receiver<State>,
    until: Instant,
}

impl Watch {
    /// Waits until the peer has to go, and says why; `None` once it is no unauthenticated peer any more.
    pub async fn evicted(&self) -> Option<Error> {
        let mut state = self.state.clone();
        let decided = state.wait_for(|state| *state != State::Here);
        let decided = tokio::select! {
            biased;
            decided = decided => decided.map_or(State::Left, |state| *state),
            () = sleep_until(self.until) => return Some(late()),
        };
        (decided == State::GivesWay).then(gave_way)
    }
}

fn late() -> Error {
    Error::new(ErrorKind::Timeout, LINK, "the peer did not prove who it is in time")
}

fn gave_way() -> Error {
    Error::closed(LINK, "the peer had not proved who it is, and gave way to another")
}

/// How much the peer of a link may send: a transport's link holds one and asks it.
pub struct Standing {
    proved: AtomicBool,
    unauthenticated_peers: Vec<UnauthenticatedPeer>,
}

impl Standing {
    /// Of a link whose connections have these places in an admission queue; of one that has none it is that of a proved
    /// peer.
    pub fn new(unauthenticated_peers: impl IntoIterator<Item = UnauthenticatedPeer>) -> Self {
        let unauthenticated_peers: Vec<UnauthenticatedPeer> = unauthenticated_peers.into_iter().collect();
        Self { proved: AtomicBool::new(unauthenticated_peers.is_empty()), unauthenticated_peers }
    }

    /// What [`crate::Link::admit`] does.
    pub fn admit(&self) {
        self.proved.store(true, Ordering::Release);
        self.unauthenticated_peers.iter().for_each(UnauthenticatedPeer::admit);
    }

    /// Whether the peer has proved who it is, or need not.
    pub fn is_proved(&self) -> bool {
        self.proved.load(Ordering::Acquire)
    }

    /// Most bytes of payload that a frame may have now.
    pub fn limit(&self, kind: Kind) -> u32 {
        match (self.is_proved(), kind) {
            (true, Kind::Control) => MAX_CONTROL,
            (true, Kind::Chunk) => MAX_CHUNK,
            (false, Kind::Control) => MAX_HELLO,
            (false, Kind::Chunk) => 0,
        }
    }

    /// Whether the peer may send a frame of `length` bytes of payload now; to be asked before anything is kept of it. Of
    /// what is cut in parts, `length` is that of the whole.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], which is to end the link.
    pub fn check(&self, kind: Kind, length: usize) -> Result<()> {
        let limit = self.limit(kind);
        if self.is_proved() || (kind == Kind::Control && length <= limit as usize) {
            return Ok(());
        }
        let context = match kind {
            Kind::Control => {
                format!("a message of {length} bytes from a peer that has not proved who it is; it may have {limit}")
            }
            Kind::Chunk => "a chunk from a peer that has not proved who it is".into(),
        };
        Err(Error::new(ErrorKind::Corrupt, "receive", context))
    }

    /// Waits until the link has to end, for its peer did not prove who it is; for ever once it has.
    pub async fn evicted(&self) -> Error {
        if !self.is_proved() {
            let watches: Vec<Watch> =
                self.unauthenticated_peers.iter().map(UnauthenticatedPeer::watch).collect();
            let evicted = watches.into_iter().map(|watch| Box::pin(async move { watch.evicted().await }));
            if let (Some(error), ..) = select_all(evicted).await {
                return error;
            }
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn admission_queue(total: usize, share: usize) -> AdmissionQueue {
        AdmissionQueue::new(Bounds { total, share, timeout: Duration::from_secs(5) })
    }

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[tokio::test]
    async fn whoever_gives_way_is_told() {
        let admission_queue = admission_queue(2, 2);
        let (first, second) = (admission_queue.enter(address(1)), admission_queue.enter(address(1)));
        first.heard();
        let third = admission_queue.enter(address(2));
        let error = second.watch().evicted().await.unwrap();
        assert_eq!(error.kind(), ErrorKind::Closed);
        third.admit();
        assert!(third.watch().evicted().await.is_none());
        assert_eq!(admission_queue.count(), 1);
        drop((first, second, third));
        assert_eq!(admission_queue.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unauthenticated_peer_has_to_go_in_time() {
        let unauthenticated_peer = admission_queue(2, 2).enter(address(1));
        unauthenticated_peer.heard();
        assert_eq!(unauthenticated_peer.watch().evicted().await.unwrap().kind(), ErrorKind::Timeout);
    }

    #[tokio::test]
    async fn those_that_leave_are_bounded_too() {
        let admission_queue = admission_queue(1, 1);
        let leaving: Vec<UnauthenticatedPeer> =
            (0..=LEAVING).map(|_| admission_queue.enter(address(1))).collect();
        assert!(!admission_queue.has_room());
        drop(leaving.into_iter().next());
        admission_queue.room().await;
        assert_eq!(admission_queue.count(), 0);
    }

    #[tokio::test]
    async fn clones_share_a_place() {
        let admission_queue = admission_queue(2, 2);
        let unauthenticated_peer = admission_queue.enter(Origin::Unknown);
        let watch = unauthenticated_peer.watch();
        drop(unauthenticated_peer.clone());
        assert_eq!(admission_queue.count(), 1);
        drop(unauthenticated_peer);
        assert_eq!(admission_queue.count(), 0);
        assert!(watch.evicted().await.is_none());
    }

    #[tokio::test]
    async fn an_unauthenticated_peer_may_send_little() {
        let standing = Standing::new([admission_queue(2, 2).enter(address(1))]);
        assert!(standing.check(Kind::Control, MAX_HELLO as usize).is_ok());
        let error = standing.check(Kind::Control, MAX_HELLO as usize + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(standing.check(Kind::Chunk, 0).is_err());
        standing.admit();
        assert!(standing.check(Kind::Control, MAX_CONTROL as usize).is_ok());
        assert!(standing.check(Kind::Chunk, MAX_CHUNK as usize).is_ok());
        assert!(
            Standing::new([]).check(Kind::Chunk, 1).is_ok(),
            "who is no unauthenticated peer need not be admitted"
        );
    }
}
