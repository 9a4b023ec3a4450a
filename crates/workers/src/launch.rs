//! Starts the processes of workers.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A worker's process.
pub trait Process: Send {
    /// Ends it, if it has not ended by itself, and waits until it has. It writes nowhere any more then.
    fn end(&mut self);
    /// Has it end at once; does not wait.
    fn kill(&mut self);
    /// Nanoseconds of CPU time that it has had, if the system says.
    fn cpu(&self) -> u64 {
        0
    }
}

/// How a process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was forked by a template.
    Template,
    /// Its program was started.
    Program,
}

/// A process that has just begun, with the node's end of its socket.
pub struct Launched {
    /// Notes go and come here.
    pub socket: UnixStream,
    /// The process.
    pub process: Box<dyn Process>,
    /// How it began.
    pub origin: Origin,
}

/// Starts worker processes, each of which calls [`work`](crate::work) with its end of a socket.
pub trait Launcher: Send + Sync {
    /// Starts one.
    ///
    /// # Errors
    /// What the system says.
    fn launch(&self) -> io::Result<Launched>;

    /// Starts a process that calls [`hop`](crate::hop) with these sockets and this bound.
    ///
    /// # Errors
    /// What the system says.
    fn hop(&self, one: OwnedFd, other: OwnedFd, most: u64) -> io::Result<Box<dyn Process>>;
}

/// A program, started anew for each worker, with the socket as its standard input. As a hop it has two more arguments,
/// `hop` and the bound of a message, and its sockets are standard input and output.
#[derive(Debug, Clone)]
pub struct Program {
    /// Path and arguments.
    pub command: Vec<OsString>,
    /// Added to its environment.
    pub environment: Vec<(OsString, OsString)>,
}

impl Program {
    fn command(&self) -> io::Result<Command> {
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| io::Error::other("no program is named"))?;
        let mut command = Command::new(program);
        // A Ctrl-C is for the node, whose end of the socket then ends its workers.
        command.args(arguments).envs(self.environment.iter().cloned()).process_group(0);
        Ok(command)
    }

    /// Starts it with this standard input.
    pub(crate) fn spawn(&self, input: UnixStream) -> io::Result<Child> {
        self.command()?.stdin(Stdio::from(OwnedFd::from(input))).stdout(Stdio::null()).spawn()
    }
}

impl Launcher for Program {
    fn launch(&self) -> io::Result<Launched> {
        let (ours, theirs) = UnixStream::pair()?;
        let process = Box::new(OwnChild(self.spawn(theirs)?));
        Ok(Launched { socket: ours, process, origin: Origin::Program })
    }

    fn hop(&self, one: OwnedFd, other: OwnedFd, most: u64) -> io::Result<Box<dyn Process>> {
        let mut command = self.command()?;
        command.arg("hop").arg(most.to_string()).stdin(Stdio::from(one)).stdout(Stdio::from(other));
        Ok(Box::new(OwnChild(command.spawn()?)))
    }
}

struct OwnChild(Child);

impl Process for OwnChild {
    fn end(&mut self) {
        self.kill();
        _ = self.0.wait();
    }

    fn kill(&mut self) {
        _ = self.0.kill();
    }

    fn cpu(&self) -> u64 {
        cpu_of(self.0.id())
    }
}

/// Nanoseconds of CPU time that a process has had, by its id.
pub(crate) fn cpu_of(process: impl Display) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| {
        let told = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        told.split_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.filter_map(of).sum()
}
