//! Addresses, and the names of their sockets. These names are abstract: they are not in the file system, and
//! they end with the process. Each network namespace has its own names, so no link bypasses an emulated
//! network.

use std::os::fd::OwnedFd;

use rustix::net::{bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thalweg_transport::{Address, Error, ErrorKind, Result};

/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;
const LISTEN: &str = "listen";
/// The lowest port that is tried if the system may choose.
const FIRST: u16 = 1024;

/// A socket that listens at `address`, and the address with the port that was chosen.
///
/// # Errors
/// [`ErrorKind::Address`], [`ErrorKind::InUse`], or the system's error.
pub(crate) fn open(address: &Address) -> Result<(OwnedFd, Address)> {
    let wanted = port_of(LISTEN, address)?;
    let socket = new_socket(LISTEN)?;
    let failed = |e: rustix::io::Errno| Error::io(LISTEN, address, &e.into());
    // Each process starts at another port, so that two of them seldom try the same.
    let start = FIRST.saturating_add((std::process::id() % u32::from(u16::MAX - FIRST)) as u16);
    let mut ports = (start..=u16::MAX).chain(FIRST..start);
    let mut port = if wanted == 0 { ports.next().unwrap_or(FIRST) } else { wanted };
    loop {
        match bind(&socket, &name(port).map_err(failed)?) {
            Ok(()) => break,
            Err(rustix::io::Errno::ADDRINUSE) if wanted == 0 => {
                port = ports.next().ok_or_else(|| failed(rustix::io::Errno::ADDRINUSE))?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
    listen(&socket, BACKLOG).map_err(failed)?;
    Ok((socket, Address { port: Some(port), ..address.clone() }))
}

/// A non-blocking socket.
pub(crate) fn new_socket(operation: &'static str) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(|e| {
        Error::io(operation, "no socket", &e.into()).hint("raise the limit of open files (ulimit -n)")
    })
}

/// The abstract socket name of a port.
pub(crate) fn name(port: u16) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("thalweg-shm-{port}").as_bytes())
}

/// The port of an address that names this machine.
///
/// # Errors
/// [`ErrorKind::Address`].
pub(crate) fn port_of(operation: &'static str, address: &Address) -> Result<u16> {
    let bad = |why: &str| {
        Error::new(ErrorKind::Address, operation, format!("{address}: {why}"))
            .hint("write it as shm://localhost:7070, or take tcp to reach another machine")
    };
    if address.scheme != "shm" || !address.is_local() {
        return Err(bad("shared memory is this machine's own"));
    }
    address.port.ok_or_else(|| bad("the port is missing"))
}
