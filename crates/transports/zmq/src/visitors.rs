//! Connections of which nobody knows yet whose they are, at a listener. libzmq accepts whatever comes and tells of it
//! afterwards, and of the parts of one message it keeps any number. So each connection is a guest in the listener's lobby
//! until its member is admitted, and its socket is shut down when the lobby needs the place, when it says more than an
//! honest member does, or when more goes to the group than may wait for it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_messages::MemberId;
use thalweg_transport::{Guest, Lobby, Origin};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::kernel::{self, Ends};

/// Most bytes that a connection may bring before its member is admitted: several times what a handshake under CURVE, a
/// hello each quarter of a second and the session's first message take.
pub(crate) const MOST_SAID: u64 = 64 << 10;
/// Most bytes that may go to the group while a connection that hears of them is a guest's.
const MOST_PASSED: u64 = 32 << 20;
/// How often guests are asked how much they have said.
const LOOK: Duration = Duration::from_millis(20);

/// Which of a listener's sockets a connection is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// What members say comes over it.
    Input,
    /// Bound at the listener's address, where that is another.
    Output,
    /// The line to a member.
    Line(MemberId),
}

/// A connection, by its socket and descriptor. A socket uses a descriptor again, but not before it has told its end.
type Key = (Place, i32);

struct Visitor {
    guest: Guest,
    ends: Ends,
    /// What has gone to the group since it came.
    passed: u64,
}

/// The guests among a listener's connections; there are none without a lobby.
pub(crate) struct Visitors {
    lobby: Option<Lobby>,
    here: Arc<Here>,
    looking: Option<AbortHandle>,
}

#[derive(Default)]
struct Here {
    table: Mutex<HashMap<Key, Visitor>>,
    /// Connections that were admitted before libzmq told of them: it tells after it has begun to read them, and with
    /// several threads a member's first messages may be there before. Locked while the table is.
    early: Mutex<HashSet<Key>>,
    came: Notify,
}

impl Here {
    fn table(&self) -> MutexGuard<'_, HashMap<Key, Visitor>> {
        // Each change is one call on the map, so a poisoned one is whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn early(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shuts those down that `must` go; libzmq then tells of their end.
    fn shut(&self, must: impl Fn(&Key, &Visitor) -> bool) {
        for ((_, descriptor), visitor) in self.table().iter().filter(|(key, visitor)| must(key, visitor)) {
            kernel::shut_down(*descriptor, visitor.ends);
        }
    }
}

impl Visitors {
    /// Nobody yet.
    pub(crate) fn new(lobby: Option<Lobby>) -> Self {
        let here = Arc::new(Here::default());
        let looking = lobby.is_some().then(|| tokio::spawn(look(here.clone())).abort_handle());
        Self { lobby, here, looking }
    }

    /// There is a new connection to our `port`. If it has ended since, which is told next, its descriptor may have become
    /// that of any other socket, which is at another port.
    pub(crate) fn came(&self, place: Place, descriptor: i32, port: u16) {
        let Some(lobby) = &self.lobby else { return };
        let Some(ends) = kernel::ends_of(descriptor).filter(|ends| ends.local.port() == port) else { return };
        let guest = lobby.enter(ends.peer);
        let (key, watch, here) = ((place, descriptor), guest.watch(), Arc::downgrade(&self.here));
        let mut table = self.here.table();
        if self.here.early().remove(&key) {
            return guest.admit();
        }
        table.insert(key, Visitor { guest, ends, passed: 0 });
        drop(table);
        self.here.came.notify_one();
        tokio::spawn(async move {
            if watch.turned_out().await.is_none() {
                return;
            }
            if let Some(here) = here.upgrade() {
                here.shut(|other, visitor| *other == key && visitor.ends == ends);
            }
        });
    }

    /// A connection said what a member says.
    pub(crate) fn heard(&self, place: Place, descriptor: i32) {
        self.here.table().get(&(place, descriptor)).iter().for_each(|visitor| visitor.guest.heard());
    }

    /// A connection's member is admitted.
    pub(crate) fn admit(&self, place: Place, descriptor: i32) {
        let (key, mut table) = ((place, descriptor), self.here.table());
        match table.remove(&key) {
            Some(visitor) => visitor.guest.admit(),
            None if self.lobby.is_some() => drop(self.here.early().insert(key)),
            None => {}
        }
    }

    /// The member of a line is admitted.
    pub(crate) fn admit_line(&self, member: MemberId) {
        let line = Place::Line(member);
        let admitted: Vec<Key> =
            self.here.table().keys().filter(|(place, _)| *place == line).copied().collect();
        admitted.into_iter().for_each(|(place, descriptor)| self.admit(place, descriptor));
    }

    /// A connection has ended.
    pub(crate) fn ended(&self, place: Place, descriptor: i32) {
        let mut table = self.here.table();
        table.remove(&(place, descriptor));
        self.here.early().remove(&(place, descriptor));
    }

    /// Of the lines only those that are `open` have connections still: nobody tells of the end of the others'.
    pub(crate) fn end_lines(&self, open: impl Fn(MemberId) -> bool) {
        self.here.table().retain(|(place, _), _| !matches!(place, Place::Line(member) if !open(*member)));
    }

    /// So much has gone to the group, and waits for whoever does not read it.
    pub(crate) fn passed(&self, bytes: u64) {
        for ((place, _), visitor) in self.here.table().iter_mut() {
            visitor.passed += if *place == Place::Output { bytes } else { 0 };
        }
        self.here.shut(|_, visitor| visitor.passed > MOST_PASSED);
    }

    /// Who answers for what comes over a connection.
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

/// Asks, as long as there are guests, how much they have said.
async fn look(here: Arc<Here>) {
    loop {
        if here.table().is_empty() {
            here.came.notified().await;
        }
        here.shut(|(_, descriptor), visitor| kernel::said(*descriptor, visitor.ends) > MOST_SAID);
        tokio::time::sleep(LOOK).await;
    }
}
