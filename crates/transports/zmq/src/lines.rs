//! Sockets that serve one member each, called lines. `pushpull` and `reqrep` need them: one PUSH would
//! distribute messages among all members, and a REP answers only the last request.
//!
//! | | from members to the listener | from the listener to a member |
//! |---|---|---|
//! | `pushpull` | PUSH, connected to the listener's one PULL | a PUSH for each member, bound, to its PULL |
//! | `reqrep` | REQ, connected to the listener's one REP | a REP for each member, bound, to its REQ |
//!
//! With `reqrep`, the listener's REP answers each message with an empty one. A member's REQ sends an empty
//! request, and the listener's message is the answer.
//!
//! Another REP, at the listener's address, tells each member the two ports. It is called the reception.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_messages::MemberId;
use thalweg_transport::{Options, Origin, UnauthenticatedPeer};
use tokio::sync::Notify;

use crate::ffi::{Kind, MessagePart};
use crate::keys::Keys;
use crate::open::{bind_at, Watched};

/// Maximum number of members that know their ports and have sent nothing yet. Beyond that, the member that
/// has been silent for longest loses its line.
const MOST_SILENT: usize = 128;
/// Number of descriptors of a line before a member connects to it: two of its socket, two of its monitor.
const DESCRIPTORS: usize = 4;

/// A socket that sends to one party: a PUSH, a REQ or a REP.
pub(crate) struct PartySocket {
    pub watched: Watched,
    push: bool,
    /// Whether the socket may send now. A PUSH may always send, a REQ unless it waits for an answer, and a
    /// REP once it has received a request.
    turn: tokio::sync::Mutex<bool>,
}

impl PartySocket {
    pub(crate) fn new(kind: Kind, watched: Watched) -> Self {
        Self { watched, push: kind == Kind::Push, turn: tokio::sync::Mutex::new(kind != Kind::Rep) }
    }

    /// Sends a message. First waits until the socket may send and is connected. Dropping the future while it
    /// waits sends nothing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] once the line is closed.
    pub(crate) async fn send(&self, mut parts: Vec<MessagePart>) -> io::Result<()> {
        let socket = &self.watched.socket;
        let mut turn = self.turn.lock().await;
        while !*turn {
            match socket.try_receive()? {
                Some(_) => *turn = true,
                None => socket.readable().await,
            }
        }
        while !socket.send(&mut parts)? {
            socket.readable().await;
        }
        *turn = self.push;
        Ok(())
    }
}

/// The lines of a listener, and the settings to open more.
pub(crate) struct PartySockets {
    kind: Kind,
    /// The listener's address, with the port of the socket that reads all members' messages.
    reading: SocketAddr,
    options: Options,
    keys: Keys,
    open: Mutex<Open>,
    /// Wakes the carrier when an event of a line's connection may have occurred.
    pub changed: Arc<Notify>,
}

/// The open lines, and the members that have sent nothing yet, oldest first.
#[derive(Default)]
struct Open {
    lines: HashMap<MemberId, Given>,
    silent: VecDeque<MemberId>,
}

/// A line, with its port.
struct Given {
    line: Arc<PartySocket>,
    port: u16,
    /// The line's places in the admission queue, one for each descriptor, until the member is admitted.
    unauthenticated_peers: Vec<UnauthenticatedPeer>,
    admitted: bool,
}

impl PartySockets {
    /// Opens lines of this socket type. `reading` is the address of the socket that reads all members'
    /// messages.
    pub(crate) fn new(kind: Kind, reading: SocketAddr, options: &Options, keys: Keys) -> Self {
        let (options, changed) = (options.clone(), Arc::default());
        Self { kind, reading, options, keys, open: Mutex::default(), changed }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line to a member.
    pub(crate) fn to(&self, member: MemberId) -> Option<Arc<PartySocket>> {
        self.open().lines.get(&member).map(|given| given.line.clone())
    }

    pub(crate) fn is_open(&self, member: MemberId) -> bool {
        self.open().lines.contains_key(&member)
    }

    pub(crate) fn all(&self) -> Vec<(MemberId, Arc<PartySocket>)> {
        self.open().lines.iter().map(|(member, given)| (*member, given.line.clone())).collect()
    }

    /// The two ports for a member whose request came from `from`: the one it sends to, and the one it
    /// receives from. Opens the member's line if there is none yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] while the admission queue has no room; errors of the socket.
    pub(crate) fn ports(self: &Arc<Self>, member: MemberId, from: Origin) -> io::Result<(u16, u16)> {
        if let Some(given) = self.open().lines.get(&member) {
            return Ok((self.reading.port(), given.port));
        }
        let admission_queue = self.options.admission_queue.as_ref();
        if admission_queue.is_some_and(|admission_queue| !admission_queue.has_room()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let unauthenticated_peers: Vec<UnauthenticatedPeer> = (0..DESCRIPTORS)
            .filter_map(|_| admission_queue.map(|admission_queue| admission_queue.enter(from)))
            .collect();
        let place = SocketAddr::new(self.reading.ip(), 0);
        let (watched, port) = bind_at(self.kind, place, &self.options, &self.keys, Some(&self.changed))?;
        unauthenticated_peers
            .iter()
            .for_each(|unauthenticated_peer| self.close_when_evicted(member, unauthenticated_peer));
        let mut open = self.open();
        open.lines.insert(
            member,
            Given {
                line: Arc::new(PartySocket::new(self.kind, watched)),
                port,
                unauthenticated_peers,
                admitted: false,
            },
        );
        open.silent.push_back(member);
        if open.silent.len() > MOST_SILENT {
            if let Some(first) = open.silent.pop_front() {
                open.close(first);
                self.changed.notify_one();
            }
        }
        Ok((self.reading.port(), port))
    }

    fn close_when_evicted(self: &Arc<Self>, member: MemberId, unauthenticated_peer: &UnauthenticatedPeer) {
        let (lines, watch) = (Arc::downgrade(self), unauthenticated_peer.watch());
        tokio::spawn(async move {
            if watch.evicted().await.is_some() {
                lines.upgrade().iter().for_each(|lines| lines.close(member));
            }
        });
    }

    /// Notes that a member has sent a message.
    pub(crate) fn progressed(&self, member: MemberId) {
        let mut open = self.open();
        open.silent.retain(|silent| *silent != member);
        open.lines
            .get(&member)
            .iter()
            .flat_map(|given| &given.unauthenticated_peers)
            .for_each(UnauthenticatedPeer::progressed);
    }

    /// Notes that the session has admitted a member.
    pub(crate) fn admit(&self, member: MemberId) {
        if let Some(given) = self.open().lines.get_mut(&member) {
            given
                .unauthenticated_peers
                .drain(..)
                .for_each(|unauthenticated_peer| unauthenticated_peer.admit());
            given.admitted = true;
        }
    }

    pub(crate) fn is_admitted(&self, member: MemberId) -> bool {
        self.open().lines.get(&member).is_some_and(|given| given.admitted)
    }

    /// Closes the line to a member. Messages that were sent before this call still go out.
    pub(crate) fn close(&self, member: MemberId) {
        self.open().close(member);
        self.changed.notify_one();
    }
}

impl Open {
    fn close(&mut self, member: MemberId) {
        if let Some(Given { line, .. }) = self.lines.remove(&member) {
            line.watched.socket.close();
            self.silent.retain(|silent| *silent != member);
        }
    }
}
