//! What comes of a process: over its Unix socket and, where notes go inside the kernel, over a TCP connection too. Messages
//! of both are put back into the order in which they were sent, by their numbers.

use std::collections::{BTreeMap, VecDeque};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{recv, RecvFlags};

use crate::note::{Kind, Note, MOST_FOLLOWING, NOTE_BYTES};

/// Most messages that may be there before an earlier one that has taken the other way.
const MOST_EARLY: usize = 4096;

/// A note and what follows it.
pub(crate) struct Message {
    pub note: Note,
    pub following: Vec<u8>,
}

/// What has been said is none of ours, or not in any order that can be.
#[derive(Debug)]
pub(crate) struct Nonsense;

/// What came of waiting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Bytes.
    Something,
    /// Nothing yet.
    Nothing,
    /// Nothing more will come.
    End,
}

/// A socket, and bytes of a message of which some are still to come.
struct Way {
    socket: OwnedFd,
    bytes: Vec<u8>,
}

/// Messages as they come.
pub(crate) struct Hearing {
    unix: Way,
    route: Option<Way>,
    buffer: Vec<u8>,
    next: u16,
    early: BTreeMap<u16, Message>,
    /// Bytes that follow the notes of `early`.
    early_bytes: u64,
    ready: VecDeque<Message>,
}

impl Hearing {
    /// Of a process at the other end of these.
    pub fn new(unix: UnixStream, route: Option<TcpStream>) -> Self {
        let way = |socket| Way { socket, bytes: Vec::new() };
        Self {
            unix: way(unix.into()),
            route: route.map(|route| way(route.into())),
            buffer: vec![0; 64 << 10],
            next: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
            ready: VecDeque::new(),
        }
    }

    /// Waits until something comes, at most so long.
    ///
    /// # Errors
    /// [`Nonsense`] if what came is no message.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Heard, Nonsense> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let ways = [Some(&self.unix), self.route.as_ref()];
        let mut asked: Vec<PollFd<'_>> =
            ways.into_iter().flatten().map(|way| PollFd::new(&way.socket, PollFlags::IN)).collect();
        match poll(&mut asked, limit.as_ref()) {
            Ok(0) => return Ok(Heard::Nothing),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Ok(Heard::End),
        }
        let is_due: Vec<bool> = asked.iter().map(|one| !one.revents().is_empty()).collect();
        drop(asked);
        // What was said over the route before the process died is heard before its end.
        if is_due.get(1) == Some(&true) && !self.read_route()? {
            self.route = None; // the rest comes by the other way, or is missing for too long
        }
        if is_due.first() == Some(&true) && !self.read_unix()? {
            while self.route.is_some() && self.read_route()? {}
            return Ok(if self.ready.is_empty() { Heard::End } else { Heard::Something });
        }
        Ok(Heard::Something)
    }

    /// Takes what is there; `false` if the connection has ended, or there is nothing.
    fn read_route(&mut self) -> Result<bool, Nonsense> {
        let Some(way) = &mut self.route else { return Ok(false) };
        let read = take(way.socket.as_fd(), &mut self.buffer);
        let Ok(read @ 1..) = read else { return Ok(read == Err(Errno::INTR)) };
        way.bytes.extend(&self.buffer[..read]);
        let messages = cut(&mut way.bytes)?;
        self.sort(messages)?;
        Ok(true)
    }

    /// Takes what is there; `false` if the connection has ended.
    fn read_unix(&mut self) -> Result<bool, Nonsense> {
        let read = match take(self.unix.socket.as_fd(), &mut self.buffer) {
            Ok(read) => read,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(true),
            Err(_) => 0,
        };
        self.unix.bytes.extend(&self.buffer[..read]);
        let messages = cut(&mut self.unix.bytes)?;
        self.sort(messages)?;
        Ok(read > 0)
    }

    /// Puts messages behind those that were sent before them.
    fn sort(&mut self, messages: Vec<Message>) -> Result<(), Nonsense> {
        for message in messages {
            // Half of all numbers are those of messages that have been heard.
            if message.note.number.wrapping_sub(self.next) > u16::MAX / 2 {
                return Err(Nonsense);
            }
            self.early_bytes += message.note.following;
            if self.early.insert(message.note.number, message).is_some() || self.is_too_far_ahead() {
                return Err(Nonsense);
            }
            while let Some(message) = self.early.remove(&self.next) {
                self.next = self.next.wrapping_add(1);
                self.early_bytes -= message.note.following;
                self.ready.push_back(message);
            }
        }
        Ok(())
    }

    fn is_too_far_ahead(&self) -> bool {
        self.early.len() > MOST_EARLY || self.early_bytes > MOST_FOLLOWING
    }

    /// The next message, if one is there.
    pub fn next(&mut self) -> Option<Message> {
        self.ready.pop_front()
    }

    /// The next message, if it is of this kind.
    pub fn next_of(&mut self, kind: Kind) -> Option<Message> {
        self.ready.front().filter(|message| message.note.kind == kind)?;
        self.ready.pop_front()
    }
}

fn take(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    recv(socket, buffer, RecvFlags::DONTWAIT).map(|(read, _)| read)
}

/// Takes the messages out of these bytes that are whole.
fn cut(bytes: &mut Vec<u8>) -> Result<Vec<Message>, Nonsense> {
    let mut messages = Vec::new();
    let mut used = 0;
    while let Some((note, rest)) = bytes[used..].split_first_chunk::<NOTE_BYTES>() {
        let note = Note::decode(note).ok_or(Nonsense)?;
        let Some(following) = rest.get(..note.following as usize) else { break };
        messages.push(Message { note, following: following.to_vec() });
        used += NOTE_BYTES + following.len();
    }
    bytes.drain(..used);
    Ok(messages)
}
