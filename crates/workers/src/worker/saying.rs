//! Sends a worker's messages to its node, over the Unix socket or inside the kernel.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use rustix::net::{send, SendFlags};

use crate::note::Note;

/// Maximum number of bytes of a message that goes inside the kernel. It is sent with one call, and the
/// receiver has room for it.
const MOST_ROUTED: usize = 4096;

/// Collects a worker's messages until [`Saying::flush`] sends them.
pub(super) struct Saying {
    unix: UnixStream,
    route: Option<TcpStream>,
    /// Number of messages so far, modulo 2^16, which is also the number of the next message.
    sent: u16,
    messages: Vec<Vec<u8>>,
}

impl Saying {
    pub fn new(unix: UnixStream, route: Option<TcpStream>) -> Self {
        Self { unix, route, sent: 0, messages: Vec::new() }
    }

    pub fn say(&mut self, note: Note, following: &[u8]) {
        let note = Note { following: following.len() as u64, number: self.sent, ..note };
        self.sent = self.sent.wrapping_add(1);
        self.messages.push([&note.encode(), following].concat());
    }

    /// Sends all messages; `false` if the node is gone.
    pub fn flush(&mut self) -> bool {
        let mut others = Vec::new();
        for message in self.messages.drain(..) {
            match self.route.as_ref().filter(|_| message.len() <= MOST_ROUTED) {
                // Each message needs its own send call: a message after one that is not routed would have to
                // wait.
                Some(route) => match send(route, &message, SendFlags::NOSIGNAL) {
                    Ok(sent) if sent == message.len() => {}
                    Ok(_) => return false, // a part is useless: end, so that another takes over
                    Err(_) => others.extend(message),
                },
                None => others.extend(message),
            }
        }
        self.unix.write_all(&others).is_ok()
    }
}
