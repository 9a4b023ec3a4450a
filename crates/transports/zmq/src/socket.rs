//! Sockets of libzmq under tokio: woken by the descriptor that libzmq gives for it, without threads or timers.
//!
//! The descriptor tells of an edge: something is to be looked at, once (zmq_getsockopt(3), ZMQ_FD). Each call on the
//! socket may take the edge away. So whoever sends looks what there is now, and wakes whoever receives; who receives
//! goes on until there is nothing more.

use std::any::Any;
use std::ffi::c_int;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::ffi::{watch, Bell, MessagePart, Opt, RawSocket, POLL_IN};

/// Parts of a message that are kept: whom it is from or for, its head, its body. More are dropped.
const PARTS: usize = 3;

/// What a socket is told beside itself.
#[derive(Default)]
pub(crate) struct With {
    /// What must be there as long as the socket is.
    pub _keep: Option<Arc<dyn Any + Send + Sync>>,
    /// Bits of what is waited for, beside something to receive.
    pub events: c_int,
    /// Woken too, for those who wait for many sockets.
    pub also: Option<Arc<Notify>>,
}

struct SocketState {
    raw: Mutex<Option<RawSocket>>,
    with: With,
    /// Something came, or what else is waited for.
    input: Notify,
    closing: Notify,
}

impl SocketState {
    fn raw(&self) -> MutexGuard<'_, Option<RawSocket>> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks what there is, and wakes whoever waits.
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

/// Waits for the descriptor. It goes before the socket does, which closes it.
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
                    Err(_) => return, // the runtime ends: the socket is closed with its last user
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

/// A socket. Dropped, it is closed.
pub(crate) struct Socket(Arc<SocketState>);

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket is closed")
}

impl Socket {
    /// Takes a socket that is set up.
    pub(crate) fn new(mut raw: RawSocket, with: With) -> io::Result<Self> {
        let bell = watch(&mut raw)?;
        let (input, closing) = (Notify::new(), Notify::new());
        let shared = Arc::new(SocketState { raw: Mutex::new(Some(raw)), with, input, closing });
        tokio::spawn(Watch { bell, shared: shared.clone() }.run());
        shared.wake(); // what came before anybody watched
        Ok(Self(shared))
    }

    /// Sends a message of a few parts, which are taken on success only. Whether it could: there may be nobody to send it
    /// to, but there is always room.
    pub(crate) fn send(&self, parts: &mut [MessagePart]) -> io::Result<bool> {
        let mut guard = self.0.raw();
        let raw = guard.as_mut().ok_or_else(gone)?;
        let sent = send(raw, parts);
        self.0.look(raw);
        sent
    }

    /// A message that is there: its first parts. Whoever receives goes on until there is none.
    pub(crate) fn try_receive(&self) -> io::Result<Option<Vec<MessagePart>>> {
        let mut guard = self.0.raw();
        receive(guard.as_mut().ok_or_else(gone)?)
    }

    /// Waits until something may have come since the last look.
    pub(crate) async fn came(&self) {
        self.0.input.notified().await;
    }

    /// Ends it: what was sent before goes out still.
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
            // All parts of a message are there at once, or none.
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
