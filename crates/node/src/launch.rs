//! Starts the processes of workers.

use std::ffi::OsString;
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
}

/// A process that has just begun, with the node's end of its socket.
pub struct Launched {
    /// Notes go and come here.
    pub socket: UnixStream,
    /// The process.
    pub process: Box<dyn Process>,
}

/// Starts worker processes, each of which calls [`work`](crate::work) with its end of a socket.
pub trait Launcher: Send + Sync {
    /// Starts one.
    ///
    /// # Errors
    /// What the system says.
    fn launch(&self) -> io::Result<Launched>;
}

/// A program, started anew for each worker, with the socket as its standard input.
#[derive(Debug, Clone)]
pub struct Program {
    /// Path and arguments.
    pub command: Vec<OsString>,
    /// Added to its environment.
    pub environment: Vec<(OsString, OsString)>,
}

impl Program {
    fn spawn(&self, input: UnixStream) -> io::Result<Child> {
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| io::Error::other("no program is named"))?;
        let mut command = Command::new(program);
        command.args(arguments).envs(self.environment.iter().cloned());
        // A Ctrl-C is for the node, whose end of the socket then ends its workers.
        command.process_group(0).stdin(Stdio::from(OwnedFd::from(input))).stdout(Stdio::null()).spawn()
    }
}

impl Launcher for Program {
    fn launch(&self) -> io::Result<Launched> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok(Launched { socket: ours, process: Box::new(OwnChild(self.spawn(theirs)?)) })
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
}
