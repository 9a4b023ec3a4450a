//! A template: a process of one thread that has loaded everything a worker runs and maps none of the node's memory. It forks
//! a worker when the node asks it to, which takes a few milliseconds, where a program takes tens to start.
//!
//! ```text
//! node --- byte, the worker's end of a socket ---> template       asked
//!      <--- process id, descriptor of the process ---             forked
//! ```
//!
//! Workers are the template's children, so only it may wait for them. It opens the descriptor of a process (a pidfd) before
//! it waits for any, and sends it to the node. The node therefore never signals another process that was given the same id.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{
    pidfd_open, pidfd_send_signal, waitid, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions,
};

use crate::launch::{cpu_of, Launched, Launcher, Origin, Process, Program};
use crate::setup::{receive_with, send_with};

/// A template that has not answered after so long is killed.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A template whose socket is closed gets so long to end by itself: it then waits for the workers that have ended.
const GRACE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// What the node sends.
const FORK: u8 = 1;

/// Has workers forked by a template process, which is started at once. If it dies, another takes its place; where that one
/// does not answer either, the worker's program is started directly. So the death of templates costs time and no worker.
pub struct Template {
    /// A program that calls [`asked`] and [`forked`] in turn.
    template: Program,
    /// The program of a worker or a hop.
    program: Program,
    timeout: Duration,
    running: Mutex<Option<Running>>,
}

struct Running {
    socket: UnixStream,
    child: Child,
}

impl Template {
    /// Starts a template. If that fails, each launch tries it again.
    pub fn new(template: Program, program: Program) -> Self {
        let running = Mutex::new(Running::start(&template).ok());
        Self { template, program, timeout: TIMEOUT, running }
    }

    /// One that gives a template so long to answer.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Has a worker forked by the template that runs, else by a new one.
    fn fork(&self) -> io::Result<Launched> {
        // One worker at a time: the template has one thread.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = running.take() {
            if let Ok(launched) = template.fork(self.timeout) {
                *running = Some(template);
                return Ok(launched);
            }
        }
        let template = Running::start(&self.template)?;
        let launched = template.fork(self.timeout)?;
        *running = Some(template);
        Ok(launched)
    }
}

impl Launcher for Template {
    fn launch(&self) -> io::Result<Launched> {
        self.fork().or_else(|_| self.program.launch())
    }

    fn hop(&self, one: OwnedFd, other: OwnedFd, most: u64) -> io::Result<Box<dyn Process>> {
        self.program.hop(one, other, most)
    }
}

impl Running {
    fn start(program: &Program) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let child = program.spawn(theirs)?;
        Ok(Self { socket, child })
    }

    /// Has a worker forked. If that fails, this template is of no more use: an answer that comes late would be taken for
    /// that to the next question.
    fn fork(&self, timeout: Duration) -> io::Result<Launched> {
        self.socket.set_read_timeout(Some(timeout))?;
        // A worker that was forked and not told of finds this socket closed, and ends.
        let (socket, theirs) = UnixStream::pair()?;
        send_with(&self.socket, &[FORK], &[theirs.as_fd()])?;
        drop(theirs);
        let mut id = [0; 4];
        let descriptor = receive_with(&self.socket, &mut id)?.pop();
        let descriptor = descriptor.ok_or(ErrorKind::InvalidData)?;
        let process = Box::new(Forked { id: i32::from_le_bytes(id), descriptor });
        Ok(Launched { socket, process, origin: Origin::Template })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.socket.shutdown(Shutdown::Both);
        // We have not waited for it yet, so the id is still its own.
        if let Ok(descriptor) = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) {
            _ = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&GRACE));
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A process that is a template's child.
struct Forked {
    id: i32,
    descriptor: OwnedFd,
}

impl Forked {
    /// Whether it has ended, after at most so long; `None`: however long that takes.
    fn has_ended(&self, limit: Option<&Timespec>) -> bool {
        let polled =
            rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], limit));
        polled != Ok(0)
    }
}

impl Process for Forked {
    fn end(&mut self) {
        self.kill();
        self.has_ended(None);
        // Its template waits for it. If that has died, this process may have become its parent.
        _ = waitid(WaitId::PidFd(self.descriptor.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }

    fn kill(&mut self) {
        _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
    }

    fn cpu(&self) -> u64 {
        let told = cpu_of(self.id);
        // The id was its own if it still is.
        if self.has_ended(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            0
        } else {
            told
        }
    }
}

/// In a template: waits until the node at the other end of `socket` asks for a worker. Returns the worker's end of its socket,
/// or `None` if the node is gone.
///
/// The template forks, closes its copy of that end at once, and calls [`forked`]. The worker closes `socket` and calls
/// [`work`](crate::work).
///
/// # Errors
/// What the system says, or if the node sent something else.
pub fn asked(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut what = [0];
    match receive_with(socket, &mut what) {
        Ok(mut descriptors) if what == [FORK] => {
            descriptors.pop().ok_or(ErrorKind::InvalidData.into()).map(Some)
        }
        Ok(_) => Err(ErrorKind::InvalidData.into()),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

/// In a template: tells the node of the child with this process id. The template must not have waited for it.
///
/// # Errors
/// What the system says.
pub fn forked(socket: &UnixStream, process: u32) -> io::Result<()> {
    let id = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(ErrorKind::InvalidInput)?;
    let descriptor = pidfd_open(id, PidfdFlags::empty())?;
    send_with(socket, &id.as_raw_nonzero().get().to_le_bytes(), &[descriptor.as_fd()])
}
