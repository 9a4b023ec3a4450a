//! The completion channel, by which the device says that something has happened.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use crate::abi;
use crate::domain::Domain;
use crate::open::{checked, there};
use crate::Error;

/// The completion channel, which stays as long as its descriptor is registered with the runtime.
pub(crate) struct Channel {
    pub(super) channel: *mut abi::Channel,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Channel {}
// SAFETY: as for `Domain`; the structure is not changed while it is there.
unsafe impl Sync for Channel {}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is there until it is dropped.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every completion queue of it has gone: `Queue` drops its own before its handle of the channel.
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

    /// Where notices come, with the runtime of the caller.
    pub(crate) fn notices(self: &Arc<Self>) -> io::Result<AsyncFd<Arc<Channel>>> {
        // SAFETY: the channel keeps its descriptor open, always the same one, as long as the registration holds it.
        unsafe { AsyncFd::register_with_interest(self.clone(), Interest::READABLE) }.map_err(Into::into)
    }

    /// Takes the notices.
    pub(crate) fn acknowledge(&self) {
        let (mut cq, mut nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is there, and does not block.
        while unsafe { (self.domain.functions.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut nothing) }
            == 0
        {
            // SAFETY: one notice of this queue was taken.
            unsafe { (self.domain.functions.ibv_ack_cq_events)(cq, 1) };
        }
    }
}

/// # Safety
/// `fd` is an open descriptor.
unsafe fn nonblocking(fd: RawFd) -> Result<(), Error> {
    // SAFETY: two calls with numbers alone, on an open descriptor.
    let code = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    checked("set up the completion channel", code.min(0))
}
