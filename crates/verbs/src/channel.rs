//! The completion channel, over which the device signals new completions.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use crate::abi;
use crate::domain::Domain;
use crate::open::{checked, there};
use crate::Error;

/// A completion channel. It lives as long as its descriptor is registered with the runtime.
pub(crate) struct Channel {
    pub(super) channel: *mut abi::Channel,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Channel {}
// SAFETY: as for `Domain`; the structure does not change while it exists.
unsafe impl Sync for Channel {}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel exists until it is dropped.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: all of its completion queues are destroyed: `Queue` destroys its own before it drops its
        // handle of the channel.
        unsafe { (self.domain.functions.ibv_destroy_comp_channel)(self.channel) };
    }
}

impl Channel {
    pub(crate) fn new(domain: &Arc<Domain>) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let channel = unsafe { (domain.functions.ibv_create_comp_channel)(domain.context) };
        let channel = there("create a completion channel", channel)?;
        let channel = Self { channel, domain: domain.clone() };
        // SAFETY: the descriptor is the channel's.
        unsafe { nonblocking(channel.as_raw_fd())? };
        Ok(channel)
    }

    /// Registers the descriptor with the caller's runtime, to wait for notifications.
    pub(crate) fn notices(self: &Arc<Self>) -> io::Result<AsyncFd<Arc<Channel>>> {
        // SAFETY: while the registration holds the channel, the channel keeps the same descriptor open.
        unsafe { AsyncFd::register_with_interest(self.clone(), Interest::READABLE) }.map_err(Into::into)
    }

    /// Takes and acknowledges all pending notifications.
    pub(crate) fn acknowledge(&self) {
        let (mut cq, mut nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel exists, and its descriptor does not block.
        while unsafe { (self.domain.functions.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut nothing) }
            == 0
        {
            // SAFETY: one notification of this queue was taken.
            unsafe { (self.domain.functions.ibv_ack_cq_events)(cq, 1) };
        }
    }
}

/// # Safety
/// `fd` is an open descriptor.
unsafe fn nonblocking(fd: RawFd) -> Result<(), Error> {
    // SAFETY: two calls with plain numbers, on an open descriptor.
    let code = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    checked("set up the completion channel", code.min(0))
}
