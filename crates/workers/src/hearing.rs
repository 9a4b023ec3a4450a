//! Receives messages from another process: over its Unix socket and, if notes go inside the kernel, also over
//! a TCP connection. The message numbers restore the order in which the messages of both connections were
//! sent.

use std::collections::{BTreeMap, VecDeque};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{recv, RecvFlags};

use crate::note::{Kind, Note, MOST_FOLLOWING, NOTE_BYTES};

/// Maximum number of messages that may wait for an earlier message from the other socket.
const MOST_EARLY: usize = 4096;

/// A note, and the bytes that follow it.
pub(crate) struct Message {
    pub note: Note,
    pub following: Vec<u8>,
}

/// The peer sent bytes that are not a message, or a message number that is out of order.
#[derive(Debug)]
pub(crate) struct Nonsense;

/// Result of [`Hearing::wait`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// Bytes were received.
    Something,
    /// The time limit has passed without any bytes.
    Nothing,
    /// The peer has closed its Unix socket.
    End,
}

/// A socket, and the bytes of a message that is not yet complete.
struct Way {
    socket: OwnedFd,
    bytes: Vec<u8>,
}

/// Receives messages and returns them in the order of sending.
pub(crate) struct Hearing {
    unix: Way,
    route: Option<Way>,
    buffer: Vec<u8>,
    next: u16,
    early: BTreeMap<u16, Message>,
    /// Total bytes that follow the notes in `early`.
    early_bytes: u64,
    ready: VecDeque<Message>,
}

impl Hearing {
    /// Receives from the process at the other end of these sockets.
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

    /// Waits until bytes are received, at most for `limit`.
    ///
    /// # Errors
    /// [`Nonsense`] if the bytes are not messages.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<WaitOutcome, Nonsense> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let ways = [Some(&self.unix), self.route.as_ref()];
        let mut polled: Vec<PollFd<'_>> =
            ways.into_iter().flatten().map(|way| PollFd::new(&way.socket, PollFlags::IN)).collect();
        match poll(&mut polled, limit.as_ref()) {
            Ok(0) => return Ok(WaitOutcome::Nothing),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Ok(WaitOutcome::End),
        }
        let is_due: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        drop(polled);
        // Read the route before the end of the Unix socket: the process may have sent over it before it died.
        if is_due.get(1) == Some(&true) && !self.read_route()? {
            self.route = None; // the remaining messages come over the Unix socket, or never
        }
        if is_due.first() == Some(&true) && !self.read_unix()? {
            while self.route.is_some() && self.read_route()? {}
            return Ok(if self.ready.is_empty() { WaitOutcome::End } else { WaitOutcome::Something });
        }
        Ok(WaitOutcome::Something)
    }

    /// Reads from the route; `false` if the connection has ended or there is nothing to read.
    fn read_route(&mut self) -> Result<bool, Nonsense> {
        let Some(way) = &mut self.route else { return Ok(false) };
        let read = take(way.socket.as_fd(), &mut self.buffer);
        let Ok(read @ 1..) = read else { return Ok(read == Err(Errno::INTR)) };
        way.bytes.extend(&self.buffer[..read]);
        let messages = cut(&mut way.bytes)?;
        self.sort(messages)?;
        Ok(true)
    }

    /// Reads from the Unix socket; `false` if the connection has ended.
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

    /// Moves messages to `ready` in the order of their numbers. A message waits in `early` until all earlier
    /// ones are there.
    fn sort(&mut self, messages: Vec<Message>) -> Result<(), Nonsense> {
        for message in messages {
            // Numbers wrap at 2^16: a number in the half before `next` belongs to a message that was already
            // read.
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

    /// Removes and returns the next message, if there is one.
    pub fn next(&mut self) -> Option<Message> {
        self.ready.pop_front()
    }

    /// Removes and returns the next message if it is of this kind.
    pub fn next_of(&mut self, kind: Kind) -> Option<Message> {
        self.ready.front().filter(|message| message.note.kind == kind)?;
        self.ready.pop_front()
    }
}

fn take(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    recv(socket, buffer, RecvFlags::DONTWAIT).map(|(read, _)| read)
}

/// Removes the complete messages from `bytes` and returns them.
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
