//! A connection that carries bytes and descriptors.

use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The result of one read.
pub(crate) struct Piece {
    /// Number of bytes; 0 if the peer has ended the connection.
    pub bytes: usize,
    pub descriptor: Option<OwnedFd>,
}

/// A connection of a Unix socket.
pub(crate) struct Socket(UnixStream);

impl Socket {
    /// Wraps the descriptor of a non-blocking socket.
    pub(crate) fn new(descriptor: OwnedFd) -> Result<Self> {
        Ok(Self(UnixStream::from_std(descriptor.into())?))
    }

    pub(crate) fn of(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// User and process at the other end, as the kernel recorded them when the connection was made.
    pub(crate) fn peer(&self) -> Result<(u32, Option<i32>)> {
        let credentials = self.0.peer_cred()?;
        Ok((credentials.uid(), credentials.pid()))
    }

    /// Waits until the socket can be written to, after a non-blocking connect.
    pub(crate) async fn writable(&self) -> Result<()> {
        self.0.writable().await
    }

    /// Ends both directions, and wakes all waiters.
    pub(crate) fn shut(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both); // fails if the connection has ended already
    }

    /// Reads bytes; waits for the first one. One call returns at most one descriptor, because the kernel
    /// returns none together with bytes that follow it.
    pub(crate) async fn receive(&self, into: &mut [u8]) -> Result<Piece> {
        self.0.async_io(Interest::READABLE, || receive_now(&self.0, into)).await
    }

    /// Sends at least one byte, and the descriptor with the first one. Returns the number of bytes sent.
    pub(crate) async fn send(&self, parts: &[&[u8]], descriptor: Option<BorrowedFd<'_>>) -> Result<usize> {
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        self.0.async_io(Interest::WRITABLE, || send_now(&self.0, &slices, descriptor)).await
    }
}

fn receive_now(stream: &UnixStream, into: &mut [u8]) -> Result<Piece> {
    // If several descriptors arrive, the kernel closes those that do not fit here, and sets a flag.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut control, flags)?;
    let mut descriptor = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            descriptor = descriptors.last().or(descriptor);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        let why =
            "a descriptor of the peer could not be taken: it sent several, or this process has as many open \
                   files as it may (raise ulimit -n)";
        return Err(Error::new(ErrorKind::InvalidData, why));
    }
    Ok(Piece { bytes: message.bytes, descriptor })
}

fn send_now(stream: &UnixStream, parts: &[IoSlice<'_>], descriptor: Option<BorrowedFd<'_>>) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(stream, parts, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == 0 {
        return Err(ErrorKind::WriteZero.into());
    }
    Ok(sent)
}
