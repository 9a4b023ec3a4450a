//! The node's own connection: what it sends to its parties, and what of that the kernel did not route.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{send, SendFlags};

use super::Routes;
use crate::note::{Note, NOTE_BYTES};

/// Routes for a worker pool, with the node's own connection.
pub struct NodeRoutes {
    pub(crate) routes: Routes,
    pub(crate) outlet: TcpStream,
    pub(crate) inlet: TcpStream,
    pub(crate) budget: u64,
}

impl NodeRoutes {
    /// Loads the program, or says why it cannot be had here, and what to do.
    ///
    /// # Errors
    /// Why not.
    pub fn open() -> Result<Self, String> {
        let routes = Routes::load()?;
        let (outlet, inlet) = routes.outlet().map_err(|e| format!("loopback: {e}"))?;
        Ok(Self { routes, outlet, inlet, budget: u64::MAX })
    }

    /// At most so many notes go inside the kernel to each process, and as many from it. Those beyond go through the node.
    pub fn with_budget(self, notes: u64) -> Self {
        Self { budget: notes, ..self }
    }
}

/// Where the node's notes go out.
pub(crate) struct Outlet {
    socket: TcpStream,
    is_cut: AtomicBool,
}

impl Outlet {
    pub fn new(socket: TcpStream) -> Self {
        Self { socket, is_cut: AtomicBool::new(false) }
    }

    /// Sends a note, which is a send of its own; `false` if it was not sent and has to go another way. One caller at a time.
    pub fn send(&self, note: &[u8; NOTE_BYTES]) -> bool {
        if self.is_cut.load(Ordering::Relaxed) {
            return false;
        }
        match send(&self.socket, note, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(NOTE_BYTES) => true,
            Ok(_) => {
                // Behind a part of a note the kernel would find none. A part is not routed either.
                self.is_cut.store(true, Ordering::Relaxed);
                false
            }
            Err(_) => false,
        }
    }

    /// Ends the connection, and with it [`inlet`].
    pub fn close(&self) {
        _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Hands out the notes that the kernel did not route, until the outlet is closed.
pub(crate) fn inlet(mut socket: TcpStream, pass: impl Fn(u16, &[u8; NOTE_BYTES])) {
    let mut bytes = [0; NOTE_BYTES];
    loop {
        let Some(note) = socket.read_exact(&mut bytes).ok().and_then(|()| Note::decode(&bytes)) else {
            return;
        };
        pass(note.destination, &bytes);
    }
}
