//! A listener's connections whose member is not admitted yet. libzmq accepts every connection and reports it
//! only afterwards, and it keeps any number of parts of one message. So each connection takes a place in the
//! admission queue until its member is admitted. Its socket is shut down in three cases: the queue evicts the
//! connection, the connection sends more than an honest member does, or too many bytes go to the group before
//! the member is admitted.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_messages::MemberId;
use thalweg_transport::{AdmissionQueue, Origin, UnauthenticatedPeer};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::kernel::{self, Ends};

/// Maximum number of bytes that a connection may send before its member is admitted. This is several times
/// what an honest member needs: a CURVE handshake, a hello every 250 ms, and the session's first message.
pub(crate) const MAX_RECEIVED: u64 = 64 << 10;
/// Maximum number of bytes to the group while a connection that receives them is not admitted.
const MOST_PASSED: u64 = 32 << 20;
/// Pause between two checks of how much connections have sent.
const LOOK: Duration = Duration::from_millis(20);

/// The socket of a listener that a connection belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The socket that reads members' messages.
    Input,
    /// The socket that is bound at the listener's address, if it is not `Input`.
    Output,
    /// The line to a member.
    Line(MemberId),
}

/// A connection: its socket and descriptor. A socket may use a descriptor again, but only after it has
/// reported the end of the connection that had it earlier.
type Key = (Place, i32);

/// A connection that is not admitted yet.
struct Visitor {
    unauthenticated_peer: UnauthenticatedPeer,
    ends: Ends,
    /// Bytes sent to the group since the connection was made.
    passed: u64,
}

/// The connections that are not admitted. Without an admission queue, none is recorded.
pub(crate) struct Visitors {
    admission_queue: Option<AdmissionQueue>,
    here: Arc<Here>,
    looking: Option<AbortHandle>,
}

/// The connections that are not admitted, shared with the tasks that shut them down.
#[derive(Default)]
struct Here {
    table: Mutex<HashMap<Key, Visitor>>,
    /// Connections admitted before libzmq reported them. libzmq reports a connection after it has begun to
    /// read it. It has several threads, so a member's first messages may arrive earlier than the report. Lock
    /// this only while `table` is locked.
    early: Mutex<HashSet<Key>>,
    connected: Notify,
}

impl Here {
    fn table(&self) -> MutexGuard<'_, HashMap<Key, Visitor>> {
        // Each change is one call on the map, so a poisoned value is still consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn early(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shuts down the connections for which `must` is true. libzmq then reports their end.
    fn shut(&self, must: impl Fn(&Key, &Visitor) -> bool) {
        for ((_, descriptor), visitor) in self.table().iter().filter(|(key, visitor)| must(key, visitor)) {
            kernel::shut_down(*descriptor, visitor.ends);
        }
    }
}

impl Visitors {
    /// Starts with no connections.
    pub(crate) fn new(admission_queue: Option<AdmissionQueue>) -> Self {
        let here = Arc::new(Here::default());
        let looking = admission_queue.is_some().then(|| tokio::spawn(look(here.clone())).abort_handle());
        Self { admission_queue, here, looking }
    }

    /// Notes a new connection to our `port`. The connection may have ended since, and its descriptor may
    /// belong to any other socket. The port tells these apart: other sockets have other ports.
    pub(crate) fn connected(&self, place: Place, descriptor: i32, port: u16) {
        let Some(admission_queue) = &self.admission_queue else { return };
        let Some(ends) = kernel::ends_of(descriptor).filter(|ends| ends.local.port() == port) else { return };
        let unauthenticated_peer = admission_queue.enter(ends.peer);
        let (key, watch, here) =
            ((place, descriptor), unauthenticated_peer.watch(), Arc::downgrade(&self.here));
        let mut table = self.here.table();
        if self.here.early().remove(&key) {
            return unauthenticated_peer.admit();
        }
        table.insert(key, Visitor { unauthenticated_peer, ends, passed: 0 });
        drop(table);
        self.here.connected.notify_one();
        tokio::spawn(async move {
            if watch.evicted().await.is_none() {
                return;
            }
            if let Some(here) = here.upgrade() {
                here.shut(|other, visitor| *other == key && visitor.ends == ends);
            }
        });
    }

    /// Notes that a connection has sent a proper message.
    pub(crate) fn progressed(&self, place: Place, descriptor: i32) {
        self.here
            .table()
            .get(&(place, descriptor))
            .iter()
            .for_each(|visitor| visitor.unauthenticated_peer.progressed());
    }

    /// Notes that a connection's member was admitted.
    pub(crate) fn admit(&self, place: Place, descriptor: i32) {
        let (key, mut table) = ((place, descriptor), self.here.table());
        match table.remove(&key) {
            Some(visitor) => visitor.unauthenticated_peer.admit(),
            None if self.admission_queue.is_some() => drop(self.here.early().insert(key)),
            None => {}
        }
    }

    /// Notes that the member of a line was admitted.
    pub(crate) fn admit_line(&self, member: MemberId) {
        let line = Place::Line(member);
        let admitted: Vec<Key> =
            self.here.table().keys().filter(|(place, _)| *place == line).copied().collect();
        admitted.into_iter().for_each(|(place, descriptor)| self.admit(place, descriptor));
    }

    /// Notes that a connection has ended.
    pub(crate) fn ended(&self, place: Place, descriptor: i32) {
        let mut table = self.here.table();
        table.remove(&(place, descriptor));
        self.here.early().remove(&(place, descriptor));
    }

    /// Drops the connections of closed lines, whose end libzmq does not report. `open` says whether a
    /// member's line is open.
    pub(crate) fn end_lines(&self, open: impl Fn(MemberId) -> bool) {
        self.here.table().retain(|(place, _), _| !matches!(place, Place::Line(member) if !open(*member)));
    }

    /// Notes that this many bytes went to the group. They take memory while a peer does not read them.
    pub(crate) fn passed(&self, bytes: u64) {
        for ((place, _), visitor) in self.here.table().iter_mut() {
            visitor.passed += if *place == Place::Output { bytes } else { 0 };
        }
        self.here.shut(|_, visitor| visitor.passed > MOST_PASSED);
    }

    /// The address to which the admission queue counts a connection.
    pub(crate) fn origin(&self, place: Place, descriptor: i32) -> Origin {
        self.here
            .table()
            .get(&(place, descriptor))
            .map_or(Origin::Unknown, |visitor| visitor.ends.peer.into())
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        self.looking.iter().for_each(AbortHandle::abort);
    }
}

/// Checks regularly, while there are connections that are not admitted, how much they have sent.
async fn look(here: Arc<Here>) {
    loop {
        if here.table().is_empty() {
            here.connected.notified().await;
        }
        here.shut(|(_, descriptor), visitor| {
            kernel::received_bytes(*descriptor, visitor.ends) > MAX_RECEIVED
        });
        tokio::time::sleep(LOOK).await;
    }
}
