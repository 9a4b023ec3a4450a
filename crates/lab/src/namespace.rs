//! Network namespaces that belong to file descriptors (network_namespaces(7), setns(2)).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::mount::{mount, MsFlags};
use nix::sched::{setns, unshare, CloneFlags};

use crate::{Error, ErrorKind, Result};

const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace. It goes when this and all that is inside have gone.
pub struct Namespace {
    file: File,
    inode: u64,
}

impl Namespace {
    /// Makes an empty one, and does `inside` in it, on a thread of its own.
    pub fn with<T: Send>(inside: impl FnOnce() -> Result<T> + Send) -> Result<(Self, T)> {
        on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| denied(&e.into()))?;
            let file = File::open(OWN).map_err(|e| Error::io("lab", OWN, &e))?;
            let inode = file.metadata().map_err(|e| Error::io("lab", OWN, &e))?.ino();
            Ok((Self { file, inode }, inside()?))
        })
    }

    /// Does something inside, on a thread of its own.
    pub fn visit<T: Send>(&self, inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_a_thread(|| {
            setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|e| denied(&e.into()))?;
            inside()
        })
    }

    /// Its number, the same for all that are inside.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Where other processes find it, as long as this one runs.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Moves the calling thread into the namespace at `path`. With `hosts`, that file is /etc/hosts from now on, in a
/// mount namespace of the thread's own: for a process that is about to become another program.
pub fn enter(path: &Path, hosts: Option<&Path>) -> Result<()> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(ErrorKind::System, "enter", format!("{shown}: the lab has gone")).hint("start it anew")
        }
        _ => Error::io("enter", &shown, &e),
    })?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|e| denied(&e.into()))?;
    let Some(hosts) = hosts else { return Ok(()) };
    let none = None::<&str>;
    let bound = unshare(CloneFlags::CLONE_NEWNS)
        // What is mounted here stays here.
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none))
        .and_then(|()| mount(Some(hosts), "/etc/hosts", none, MsFlags::MS_BIND, none));
    bound.map_err(|e| Error::io("enter", "/etc/hosts", &e.into()))
}

fn denied(error: &std::io::Error) -> Error {
    Error::io("lab", "network namespaces", error)
}

/// A thread that has changed its namespace is not to be used for anything else.
fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("thalweg-lab".into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| Error::io("lab", "a thread", &e))?;
        let failed = |_| Error::new(ErrorKind::System, "lab", "a thread ended without a result");
        thread.join().map_err(failed)?
    })
}
