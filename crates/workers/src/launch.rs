//! Starts the processes of workers and of hops.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A process of a worker or a hop.
pub trait Process: Send {
    /// Kills the process if it still runs, and waits until it has ended. After that it writes to no memory
    /// any more.
    fn end(&mut self);
    /// Kills the process. Does not wait.
    fn kill(&mut self);
    /// CPU time of the process in nanoseconds; 0 if the system does not say.
    fn cpu(&self) -> u64 {
        0
    }
    /// Memory of the process in bytes, with its share of what it shares (PSS); 0 if the system does not say.
    fn memory(&self) -> u64 {
        0
    }
}

/// How a process was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A template forked it.
    Template,
    /// Its program was started.
    Program,
}

/// A process that was just started, with the node's end of its socket.
pub struct Launched {
    /// The node's end of the socket for notes.
    pub socket: UnixStream,
    /// The process that was started.
    pub process: Box<dyn Process>,
    /// How it was started.
    pub origin: Origin,
}

/// Starts worker processes, each of which calls [`work`](crate::work) with its end of a socket.
pub trait Launcher: Send + Sync {
    /// Starts a worker process.
    ///
    /// # Errors
    /// The system's error.
    fn launch(&self) -> io::Result<Launched>;

    /// Starts a process that calls [`hop`](crate::hop) with these arguments.
    ///
    /// # Errors
    /// The system's error.
    fn hop(&self, one: OwnedFd, other: OwnedFd, most: u64) -> io::Result<Box<dyn Process>>;
}

/// A program that is started for each worker, with the worker's socket as standard input. For a hop it gets
/// two more arguments, `hop` and the largest message in bytes; its sockets are standard input and output.
#[derive(Debug, Clone)]
pub struct Program {
    /// Path of the program and its arguments.
    pub command: Vec<OsString>,
    /// Variables that are added to its environment.
    pub environment: Vec<(OsString, OsString)>,
}

impl Program {
    fn command(&self) -> io::Result<Command> {
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| io::Error::other("no program is named"))?;
        let mut command = Command::new(program);
        // A process group of its own: Ctrl-C should reach only the node, which closes the sockets and so ends
        // its workers.
        command.args(arguments).envs(self.environment.iter().cloned()).process_group(0);
        Ok(command)
    }

    /// Starts the program with this standard input.
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

    fn memory(&self) -> u64 {
        memory_of(self.0.id())
    }
}

/// PSS in bytes of the process with this id, or of this process (`self`); 0 if the system does not say.
pub(crate) fn memory_of(process: impl Display) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

/// CPU time in nanoseconds of all threads of the process with this id; 0 if the system does not say.
pub(crate) fn cpu_of(process: impl Display) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| {
        let schedstat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        schedstat.split_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.filter_map(of).sum()
}
