//! libzmq's sockets under tokio. The descriptor that libzmq provides wakes them; they need no threads or
//! timers of ours.
//!
//! The descriptor is edge-triggered: it signals once that something has changed (zmq_getsockopt(3), ZMQ_FD).
//! Any call on the socket may consume the signal. So after each send we check the socket's events and wake
//! the receiver, and a receiver goes on until there is no message left.

use std::any::Any;
use std::ffi::c_int;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::ffi::{watch, Bell, MessagePart, Opt, RawSocket, POLL_IN};

/// Number of parts of a message that are kept: sender or reader, head, body. Further parts are dropped.
const PARTS: usize = 3;

/// Options of a socket under tokio.
#[derive(Default)]
pub(crate) struct With {
    /// A value that must live as long as the socket.
    pub _keep: Option<Arc<dyn Any + Send + Sync>>,
    /// Events that wake the receiver, besides a message to receive.
    pub events: c_int,
    /// To be woken as well, for a task that waits for many sockets.
    pub also: Option<Arc<Notify>>,
}

/// The state that a socket shares with the task that watches it.
struct SocketState {
    raw: Mutex<Option<RawSocket>>,
    with: With,
    /// Woken when there is a message, or another event for which the receiver waits.
    input: Notify,
    closing: Notify,
}

impl SocketState {
    fn raw(&self) -> MutexGuard<'_, Option<RawSocket>> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the socket's events, and wakes the tasks that wait for one.
    fn look(&self, raw: &mut RawSocket) {
        if raw.get(Opt::Events).is_ok_and(|events| events & (POLL_IN | self.with.events) != 0) {
            self.wake();
        }
    }

    fn wake(&self) {
        self.input.notify_one();
        self.with.also.iter().for_each(|also| also.notify_one());
    }
}

/// The task that watches the descriptor. It stops watching before the socket closes the descriptor.
struct Watch {
    bell: AsyncFd<Bell>,
    shared: Arc<SocketState>,
}

impl Watch {
    async fn run(self) {
        loop {
            tokio::select! {
                biased;
                () = self.shared.closing.notified() => break,
                rung = self.bell.readable() => match rung {
                    Ok(mut rung) => rung.clear_ready(),
                    // Stop watching: the runtime shuts down. The socket is closed with its last user.
                    Err(_) => return,
                },
            }
            if let Some(raw) = &mut *self.shared.raw() {
                self.shared.look(raw);
            }
        }
        drop(self.bell);
        drop(self.shared.raw().take());
        self.shared.wake();
    }
}

/// A socket. Dropping it closes it.
pub(crate) struct Socket(Arc<SocketState>);

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket is closed")
}

impl Socket {
    /// Puts a configured socket under tokio.
    pub(crate) fn new(mut raw: RawSocket, with: With) -> io::Result<Self> {
        let bell = watch(&mut raw)?;
        let (input, closing) = (Notify::new(), Notify::new());
        let shared = Arc::new(SocketState { raw: Mutex::new(Some(raw)), with, input, closing });
        tokio::spawn(Watch { bell, shared: shared.clone() }.run());
        // Wake the receiver: messages may have arrived before the descriptor was watched.
        shared.wake();
        Ok(Self(shared))
    }

    /// Sends a message of a few parts; on success, libzmq has taken them. Returns false if the socket has no
    /// connection. There is always room: the send queue is unbounded.
    pub(crate) fn send(&self, parts: &mut [MessagePart]) -> io::Result<bool> {
        let mut guard = self.0.raw();
        let raw = guard.as_mut().ok_or_else(closed)?;
        let sent = send(raw, parts);
        self.0.look(raw);
        sent
    }

    /// Receives the first parts of a message, if there is one. The caller must call this until there is no
    /// message left.
    pub(crate) fn try_receive(&self) -> io::Result<Option<Vec<MessagePart>>> {
        let mut guard = self.0.raw();
        receive(guard.as_mut().ok_or_else(closed)?)
    }

    /// Waits until something may have arrived since the last check.
    pub(crate) async fn readable(&self) {
        self.0.input.notified().await;
    }

    /// Closes the socket. Messages that were sent before this call still go out.
    pub(crate) fn close(&self) {
        self.0.closing.notify_one();
        self.0.input.notify_one();
    }
}

fn send(raw: &mut RawSocket, parts: &mut [MessagePart]) -> io::Result<bool> {
    let count = parts.len();
    for (index, part) in parts.iter_mut().enumerate() {
        match raw.send(part, index + 1 < count) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && index == 0 => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn receive(raw: &mut RawSocket) -> io::Result<Option<Vec<MessagePart>>> {
    let mut parts = Vec::with_capacity(PARTS);
    loop {
        match raw.receive() {
            Ok(part) => {
                let more = part.has_more();
                if parts.len() < PARTS {
                    parts.push(part);
                }
                if !more {
                    return Ok(Some(parts));
                }
            }
            // libzmq delivers all parts of a message at once.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}
