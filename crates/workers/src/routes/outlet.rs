//! The node's own connection to the kernel program: the outlet sends notes, the inlet receives the notes that
//! the program did not route.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{send, SendFlags};

use super::Routes;
use crate::note::{Note, NOTE_BYTES};

/// Routes for a worker pool, together with the node's own connection.
pub struct NodeRoutes {
    pub(crate) routes: Routes,
    pub(crate) outlet: TcpStream,
    pub(crate) inlet: TcpStream,
    pub(crate) budget: u64,
}

impl NodeRoutes {
    /// Loads the program and opens the node's connection.
    ///
    /// # Errors
    /// The reason why the system does not allow it, and what to do about it.
    pub fn open() -> Result<Self, String> {
        let routes = Routes::load()?;
        let (outlet, inlet) = routes.outlet().map_err(|e| format!("loopback: {e}"))?;
        Ok(Self { routes, outlet, inlet, budget: u64::MAX })
    }

    /// Limits the notes that go inside the kernel to each process and from it. Later notes go through the
    /// node.
    pub fn with_budget(self, notes: u64) -> Self {
        Self { budget: notes, ..self }
    }
}

/// The socket over which the node sends its notes.
pub(crate) struct Outlet {
    socket: TcpStream,
    is_cut: AtomicBool,
}

impl Outlet {
    pub fn new(socket: TcpStream) -> Self {
        Self { socket, is_cut: AtomicBool::new(false) }
    }

    /// Sends a note with one call. `false` if it was not sent and must go over the Unix socket. Only one
    /// caller may send at a time.
    pub fn send(&self, note: &[u8; NOTE_BYTES]) -> bool {
        if self.is_cut.load(Ordering::Relaxed) {
            return false;
        }
        match send(&self.socket, note, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(NOTE_BYTES) => true,
            Ok(_) => {
                // Send no more notes here: after a part of a note, the kernel could not find the next note.
                // It does not route the part either.
                self.is_cut.store(true, Ordering::Relaxed);
                false
            }
            Err(_) => false,
        }
    }

    /// Shuts the connection down, which also ends [`inlet`].
    pub fn close(&self) {
        _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Calls `pass` with each note that the kernel did not route, until the outlet is closed.
pub(crate) fn inlet(mut socket: TcpStream, pass: impl Fn(u16, &[u8; NOTE_BYTES])) {
    let mut bytes = [0; NOTE_BYTES];
    loop {
        let Some(note) = socket.read_exact(&mut bytes).ok().and_then(|()| Note::decode(&bytes)) else {
            return;
        };
        pass(note.destination, &bytes);
    }
}
