//! What a worker says to its node, by either way.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use rustix::net::{send, SendFlags};

use crate::note::Note;

/// Most bytes of a message that goes inside the kernel: it is one send, and a receiver has room for it.
const MOST_ROUTED: usize = 4096;

/// What is said, until it is sent.
pub(super) struct Saying {
    unix: UnixStream,
    route: Option<TcpStream>,
    /// How many messages there have been, modulo 2^16.
    said: u16,
    messages: Vec<Vec<u8>>,
}

impl Saying {
    pub fn new(unix: UnixStream, route: Option<TcpStream>) -> Self {
        Self { unix, route, said: 0, messages: Vec::new() }
    }

    pub fn say(&mut self, note: Note, following: &[u8]) {
        let note = Note { following: following.len() as u64, number: self.said, ..note };
        self.said = self.said.wrapping_add(1);
        self.messages.push([&note.encode(), following].concat());
    }

    /// Sends everything; `false` if the node is gone.
    pub fn flush(&mut self) -> bool {
        let mut others = Vec::new();
        for message in self.messages.drain(..) {
            match self.route.as_ref().filter(|_| message.len() <= MOST_ROUTED) {
                // Each is a send of its own: behind one that is not routed another would wait.
                Some(route) => match send(route, &message, SendFlags::NOSIGNAL) {
                    Ok(sent) if sent == message.len() => {}
                    Ok(_) => return false, // what is behind a part of it means nothing: another process takes over
                    Err(_) => others.extend(message),
                },
                None => others.extend(message),
            }
        }
        self.unix.write_all(&others).is_ok()
    }
}
