//! Sockets that belong to one pair of parties: what `pushpull` and `reqrep` need, since a PUSH deals out in turn and a
//! REP answers whoever asked.
//!
//! | | what members say | what the listener says |
//! |---|---|---|
//! | `pushpull` | PUSH, connected, to the listener's one PULL | a PUSH for each member, bound, to its PULL |
//! | `reqrep` | REQ, connected, to the listener's one REP, which answers with nothing | REQ, which asks with nothing, to a REP for each member, bound, which answers |
//!
//! A REP at the listener's address, the reception, tells each member the two ports.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_messages::MemberId;
use thalweg_transport::{Guest, Options, Origin};
use tokio::sync::Notify;

use crate::ffi::{Kind, MessagePart};
use crate::keys::Keys;
use crate::open::{bind_at, Watched};

/// Members that were told their ports and have said nothing yet; beyond them, the first of them loses its line.
const MOST_SILENT: usize = 128;
/// Descriptors that a line has before anybody connects to it: its socket's two, and those of who watches it.
const DESCRIPTORS: usize = 4;

/// A socket that this end writes to one party with: a PUSH, a REQ or a REP.
pub(crate) struct PartySocket {
    pub watched: Watched,
    push: bool,
    /// Whether it is this end's turn: always a PUSH's; a REQ's unless an answer is due; a REP's once it was asked.
    turn: tokio::sync::Mutex<bool>,
}

impl PartySocket {
    pub(crate) fn new(kind: Kind, watched: Watched) -> Self {
        Self { watched, push: kind == Kind::Push, turn: tokio::sync::Mutex::new(kind != Kind::Rep) }
    }

    /// Sends a message as soon as it is this end's turn and somebody is there. Dropped before that, it sends nothing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] once the line is closed.
    pub(crate) async fn send(&self, mut parts: Vec<MessagePart>) -> io::Result<()> {
        let socket = &self.watched.socket;
        let mut turn = self.turn.lock().await;
        while !*turn {
            match socket.try_receive()? {
                Some(_) => *turn = true,
                None => socket.came().await,
            }
        }
        while !socket.send(&mut parts)? {
            socket.came().await;
        }
        *turn = self.push;
        Ok(())
    }
}

/// What a listener has of them: the reception, and a line to each member.
pub(crate) struct PartySockets {
    kind: Kind,
    reading: SocketAddr,
    options: Options,
    keys: Keys,
    open: Mutex<Open>,
    /// Something may have happened to a line's connection.
    pub changed: Arc<Notify>,
}

#[derive(Default)]
struct Open {
    lines: HashMap<MemberId, Given>,
    silent: VecDeque<MemberId>,
}

/// A line, and where it is bound.
struct Given {
    line: Arc<PartySocket>,
    port: u16,
    /// Until its member is admitted, a place in the lobby for each descriptor.
    guests: Vec<Guest>,
    admitted: bool,
}

impl PartySockets {
    /// Lines of this kind, at the address of the socket that reads what all members say.
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

    /// The ports for a member that asked from there: where it says something, and where it is told something.
    pub(crate) fn ports(self: &Arc<Self>, member: MemberId, from: Origin) -> io::Result<(u16, u16)> {
        if let Some(given) = self.open().lines.get(&member) {
            return Ok((self.reading.port(), given.port));
        }
        let lobby = self.options.lobby.as_ref();
        if lobby.is_some_and(|lobby| !lobby.has_room()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let guests: Vec<Guest> =
            (0..DESCRIPTORS).filter_map(|_| lobby.map(|lobby| lobby.enter(from))).collect();
        let place = SocketAddr::new(self.reading.ip(), 0);
        let (watched, port) = bind_at(self.kind, place, &self.options, &self.keys, Some(&self.changed))?;
        guests.iter().for_each(|guest| self.close_when_turned_out(member, guest));
        let mut open = self.open();
        open.lines.insert(
            member,
            Given { line: Arc::new(PartySocket::new(self.kind, watched)), port, guests, admitted: false },
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

    fn close_when_turned_out(self: &Arc<Self>, member: MemberId, guest: &Guest) {
        let (lines, watch) = (Arc::downgrade(self), guest.watch());
        tokio::spawn(async move {
            if watch.turned_out().await.is_some() {
                lines.upgrade().iter().for_each(|lines| lines.close(member));
            }
        });
    }

    /// A member has said something.
    pub(crate) fn heard(&self, member: MemberId) {
        let mut open = self.open();
        open.silent.retain(|silent| *silent != member);
        open.lines.get(&member).iter().flat_map(|given| &given.guests).for_each(Guest::heard);
    }

    /// A member is admitted.
    pub(crate) fn admit(&self, member: MemberId) {
        if let Some(given) = self.open().lines.get_mut(&member) {
            given.guests.drain(..).for_each(|guest| guest.admit());
            given.admitted = true;
        }
    }

    pub(crate) fn is_admitted(&self, member: MemberId) -> bool {
        self.open().lines.get(&member).is_some_and(|given| given.admitted)
    }

    /// Closes the line to a member: what was sent before goes out still.
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
