//! The admission queue of a listener: peers wait here until they have proved who they are. It is the table
//! [`crate::UnauthenticatedPeers`] with a clock, and a way to tell a peer that it is evicted.

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

/// Maximum number of evicted peers whose connections may still exist. Until one of them has ended, no new
/// peer is let in.
const LEAVING: usize = 64;
const LINK: &str = "admit peer";

/// The unauthenticated peers of a listener, or of several. Clones are the same admission queue.
///
/// A transport takes an [`UnauthenticatedPeer`] as soon as it knows of a peer, before it stores anything for
/// the peer. It keeps this place together with the peer's state, and drops both when [`Watch::evicted`]
/// returns an error.
#[derive(Clone)]
pub struct AdmissionQueue(Arc<Inner>);

struct Inner {
    /// Time zero of the table's clock.
    opened: Instant,
    table: Mutex<Table>,
    /// Number of evicted peers whose connections still exist.
    leaving: watch::Sender<usize>,
}

struct Table {
    unauthenticated_peers: UnauthenticatedPeers,
    /// The state of each peer that is here, evicted ones included.
    here: HashMap<UnauthenticatedPeerId, watch::Sender<State>>,
}

/// Whether an unauthenticated peer may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Here,
    /// It must leave, because another peer needs its place.
    GivesWay,
    /// It has proved who it is, or its connection has ended.
    Left,
}

impl AdmissionQueue {
    /// An empty admission queue. `bounds` limits how long a peer may wait, and how many may wait in all and
    /// from each address.
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

    /// Number of waiting peers, without those that were evicted.
    pub fn count(&self) -> usize {
        self.table().unauthenticated_peers.count()
    }

    /// The bounds on the number of waiting peers and on their waiting time.
    pub fn bounds(&self) -> Bounds {
        self.table().unauthenticated_peers.bounds()
    }

    /// Waits until so few evicted peers are left that another peer can be let in. Await it before a
    /// connection is taken from the system. Then there are never more connections than the bounds allow, plus
    /// a few that are ending.
    pub async fn room(&self) {
        // This fails only if the `watch` sender was dropped, and that sender lives as long as this queue.
        let _ = self.0.leaving.subscribe().wait_for(|leaving| *leaving < LEAVING).await;
    }

    /// Whether another peer can be let in now; see [`AdmissionQueue::room`].
    pub fn has_room(&self) -> bool {
        *self.0.leaving.borrow() < LEAVING
    }

    /// Lets in a peer that has connected. If there are too many, another peer is evicted for it.
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

/// A peer's place in an admission queue. The place becomes free when its last clone is dropped, or when the
/// peer has proved who it is.
#[derive(Clone)]
pub struct UnauthenticatedPeer(Arc<Place>);

struct Place {
    admission_queue: AdmissionQueue,
    id: UnauthenticatedPeerId,
    watch: Watch,
}

impl UnauthenticatedPeer {
    /// Records that the peer has completed a step of its handshake. Peers that have been silent for longer
    /// are evicted before it.
    pub fn progressed(&self) {
        let now = self.0.admission_queue.now();
        self.0.admission_queue.table().unauthenticated_peers.progressed(now, self.0.id);
    }

    /// Records that the peer has proved who it is. Its place becomes free, and it cannot be evicted any more.
    pub fn admit(&self) {
        self.0.admission_queue.leave(self.0.id);
    }

    /// Returns a watch, which learns of the peer's eviction but does not keep the peer's place.
    pub fn watch(&self) -> Watch {
        self.0.watch.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission_queue.leave(self.id);
    }
}

/// Learns when an unauthenticated peer is evicted.
#[derive(Clone)]
pub struct Watch {
    state: watch::Receiver<State>,
    /// When the peer's time to prove who it is ends.
    until: Instant,
}

impl Watch {
    /// Waits until the peer must leave, and returns the reason. Returns `None` once the peer has proved who
    /// it is or its place is free.
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

/// How much the peer of a link may send now. Each link of a transport holds one and checks every frame
/// against it.
pub struct Standing {
    /// Whether the peer has proved who it is, or need not.
    proved: AtomicBool,
    /// The places of the link's connections in an admission queue.
    unauthenticated_peers: Vec<UnauthenticatedPeer>,
}

impl Standing {
    /// For a link whose connections have these places in an admission queue. Without any place, the peer
    /// counts as proved.
    pub fn new(unauthenticated_peers: impl IntoIterator<Item = UnauthenticatedPeer>) -> Self {
        let unauthenticated_peers: Vec<UnauthenticatedPeer> = unauthenticated_peers.into_iter().collect();
        Self { proved: AtomicBool::new(unauthenticated_peers.is_empty()), unauthenticated_peers }
    }

    /// Implements [`crate::Link::admit`].
    pub fn admit(&self) {
        self.proved.store(true, Ordering::Release);
        self.unauthenticated_peers.iter().for_each(UnauthenticatedPeer::admit);
    }

    /// Whether the peer has proved who it is, or need not.
    pub fn is_proved(&self) -> bool {
        self.proved.load(Ordering::Acquire)
    }

    /// Maximum number of bytes of payload that a frame of this kind may have now.
    pub fn limit(&self, kind: Kind) -> u32 {
        match (self.is_proved(), kind) {
            (true, Kind::Control) => MAX_CONTROL,
            (true, Kind::Chunk) => MAX_CHUNK,
            (false, Kind::Control) => MAX_HELLO,
            (false, Kind::Chunk) => 0,
        }
    }

    /// Whether the peer may send a frame with `length` bytes of payload now. Call it before anything of the
    /// frame is stored. If a frame comes in several parts, `length` is that of the whole frame.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: the caller must end the link.
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

    /// Waits until the link must end because its peer did not prove who it is, and returns the reason. Waits
    /// for ever once the peer has proved it.
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
        first.progressed();
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
        unauthenticated_peer.progressed();
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
