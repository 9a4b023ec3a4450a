//! Network namespaces held by file descriptors (network_namespaces(7), setns(2)).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::mount::{mount, MsFlags};
use nix::sched::{setns, unshare, CloneFlags};

use crate::{Error, ErrorKind, Result};

const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace. It exists until this is dropped and no thread or socket is inside.
pub struct Namespace {
    file: File,
    inode: u64,
}

impl Namespace {
    /// Makes an empty namespace and runs `inside` in it, on a new thread.
    pub fn with<T: Send>(inside: impl FnOnce() -> Result<T> + Send) -> Result<(Self, T)> {
        on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| denied(&e.into()))?;
            let file = File::open(OWN).map_err(|e| Error::io("lab", OWN, &e))?;
            let inode = file.metadata().map_err(|e| Error::io("lab", OWN, &e))?.ino();
            Ok((Self { file, inode }, inside()?))
        })
    }

    /// Runs `inside` in the namespace, on a new thread.
    pub fn visit<T: Send>(&self, inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_a_thread(|| {
            setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|e| denied(&e.into()))?;
            inside()
        })
    }

    /// Inode of the namespace, which identifies it.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Path by which other processes can open it, while this process runs.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Moves the calling thread into the namespace at `path`. With `hosts`, that file replaces /etc/hosts, in a
/// mount namespace of the thread's own. It is for a process that is about to execute another program.
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
        // Keep this thread's mounts out of other namespaces.
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none))
        .and_then(|()| mount(Some(hosts), "/etc/hosts", none, MsFlags::MS_BIND, none));
    bound.map_err(|e| Error::io("enter", "/etc/hosts", &e.into()))
}

fn denied(error: &std::io::Error) -> Error {
    Error::io("lab", "network namespaces", error)
}

/// Runs `work` on a new thread. A thread that has changed its namespace must not be used for anything else.
fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("thalweg-lab".into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| Error::io("lab", "a thread", &e))?;
        let failed = |_| Error::new(ErrorKind::System, "lab", "a thread ended without a result");
        thread.join().map_err(failed)?
    })
}
