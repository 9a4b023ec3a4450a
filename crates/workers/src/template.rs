//! A template: a process with one thread that has loaded everything a worker needs and maps none of the
//! node's memory. It forks a worker when the node asks. A fork takes a few milliseconds; starting a program
//! takes tens.
//!
//! ```text
//! node --- request byte, the worker's end of a socket ---> template       asked
//!      <--- process id, descriptor of the process (pidfd) ---             forked
//! ```
//!
//! Workers are the template's children, so only the template can wait for them. Before it waits for a worker,
//! it opens a pidfd of the worker and sends it to the node. So the node cannot signal another process that
//! got the same id.

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

use crate::launch::{cpu_of, memory_of, Launched, Launcher, Origin, Process, Program};
use crate::setup::{receive_with, send_with};

/// A template that does not answer within this time is killed.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a template may take to end after its socket was closed. It needs the time to reap workers that
/// have ended.
const GRACE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Request byte from the node to the template: fork one worker.
const FORK: u8 = 1;

/// Launches workers by a template process, which is started at once. If the template dies, another template
/// takes its place. If that one does not answer either, the worker's program is started directly. So the
/// death of a template costs time, but no worker.
pub struct Template {
    /// The template's program. It calls [`next_request`] and [`forked`] in turn.
    template: Program,
    /// The program of a worker or a hop, to be started directly.
    program: Program,
    timeout: Duration,
    running: Mutex<Option<Running>>,
}

struct Running {
    socket: UnixStream,
    child: Child,
}

impl Template {
    /// Starts a template. If that fails, each launch tries again.
    pub fn new(template: Program, program: Program) -> Self {
        let running = Mutex::new(Running::start(&template).ok());
        Self { template, program, timeout: TIMEOUT, running }
    }

    /// Sets how long a template may take to answer.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Forks a worker from the running template, or from a new one if that fails.
    fn fork(&self) -> io::Result<Launched> {
        // The lock allows one fork at a time: the template has one thread.
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

    /// Asks this template to fork a worker. After a failure the template must not be used again: a late
    /// answer would be taken for the answer to the next request.
    fn fork(&self, timeout: Duration) -> io::Result<Launched> {
        self.socket.set_read_timeout(Some(timeout))?;
        // If the node does not learn of a forked worker, the worker finds this socket closed and ends.
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
        // Nobody has waited for the child yet, so no other process can have its id.
        if let Ok(descriptor) = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) {
            _ = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&GRACE));
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A process that a template has forked.
struct Forked {
    id: i32,
    descriptor: OwnedFd,
}

impl Forked {
    /// Whether the process has ended. Waits at most `limit`; `None` waits until it has.
    fn has_ended(&self, limit: Option<&Timespec>) -> bool {
        let polled =
            rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], limit));
        polled != Ok(0)
    }
}

impl Forked {
    /// A number that was read by the process's id; 0 if the process has ended, since another may have the id.
    fn own(&self, number: u64) -> u64 {
        if self.has_ended(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            0
        } else {
            number
        }
    }
}

impl Process for Forked {
    fn end(&mut self) {
        self.kill();
        self.has_ended(None);
        // The template reaps the process. If the template has died, this process may have become the parent.
        _ = waitid(WaitId::PidFd(self.descriptor.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }

    fn kill(&mut self) {
        _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
    }

    fn cpu(&self) -> u64 {
        self.own(cpu_of(self.id))
    }

    fn memory(&self) -> u64 {
        self.own(memory_of(self.id))
    }
}

/// For the template: waits until the node at the other end of `socket` requests a worker. Returns the
/// worker's end of the worker's socket, or `None` if the node is gone.
///
/// The template forks, closes its copy of that end at once, and calls [`forked`]. The worker closes `socket`
/// and calls [`work`](crate::work).
///
/// # Errors
/// The system's error, or `InvalidData` if the node sent something else.
pub fn next_request(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
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

/// For the template: reports the child with this process id to the node. The template must not have waited
/// for the child yet.
///
/// # Errors
/// The system's error.
pub fn forked(socket: &UnixStream, process: u32) -> io::Result<()> {
    let id = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(ErrorKind::InvalidInput)?;
    let descriptor = pidfd_open(id, PidfdFlags::empty())?;
    send_with(socket, &id.as_raw_nonzero().get().to_le_bytes(), &[descriptor.as_fd()])
}
