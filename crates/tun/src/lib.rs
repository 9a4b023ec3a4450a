//! TUN devices that hand over superpackets (Linux Documentation/networking/tuntap.rst, linux/if_tun.h).
//!
//! Each packet read or written has a header of [`HEADER`] bytes in front (`virtio_net_hdr`), which says how it is to be
//! cut into segments and whether its checksum is complete. One of zeros says: one packet, complete.
#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

const PATH: &str = "/dev/net/tun";
/// Bytes of the header in front of each packet.
pub const HEADER: usize = 10;
/// The longest name of a device.
pub const LONGEST_NAME: usize = libc::IFNAMSIZ - 1;

/// A TUN device in the namespace it was made in. It goes when this does.
#[derive(Debug)]
pub struct Device {
    file: File,
    name: String,
}

mod ioctls {
    // From linux/if_tun.h.
    nix::ioctl_write_int!(attach, b'T', 202);
    nix::ioctl_write_int!(offload, b'T', 208);
}

/// The same error, saying what it is about.
fn about(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

impl Device {
    /// Makes a device called `name` in the calling thread's namespace, with as much offload as the kernel has. A `%d` in
    /// the name becomes the first number that is free.
    ///
    /// # Errors
    /// `NotFound` without TUN in the kernel, `PermissionDenied` without the right to it (CAP_NET_ADMIN), `ResourceBusy`
    /// for a name that is taken, `InvalidInput` for one that no device can have.
    pub fn new(name: &str) -> io::Result<Self> {
        Self::by(PATH, name)
    }

    /// The same, by the kernel's interface at `path`.
    ///
    /// # Errors
    /// As [`Device::new`].
    pub fn by(path: &str, name: &str) -> io::Result<Self> {
        if name.len() > LONGEST_NAME {
            let why = format!("the device name {name:?}; it has at most {LONGEST_NAME} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path);
        let file = file.map_err(|e| about(path, &e))?;
        // SAFETY: an ifreq of zeros is a valid one; all its fields are integers, or arrays of them.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: the file is a TUN device's, and `request` outlives the call, which reads and writes it as an ifreq.
        let attached = unsafe { ioctls::attach(file.as_raw_fd(), (&raw mut request) as libc::c_ulong) };
        attached.map_err(|e| about(&format!("device {name:?}"), &e.into()))?;
        let given = request.ifr_name.iter().take_while(|&&c| c != 0).map(|&c| char::from(c as u8)).collect();
        let device = Self { file, name: given };
        device.take_offload()?;
        Ok(device)
    }

    fn take_offload(&self) -> io::Result<()> {
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
        // UDP segmentation came with Linux 6.2; without it datagrams come one by one.
        let taken = [tcp | udp, tcp].into_iter().any(|offload| {
            // SAFETY: the argument is a plain number.
            unsafe { ioctls::offload(self.file.as_raw_fd(), libc::c_ulong::from(offload)) }.is_ok()
        });
        if !taken {
            let what = format!("segmentation offload of device {:?}", self.name);
            return Err(about(&what, &io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads a packet with the header in front of it, and says how long both are; `None` if there is none.
    ///
    /// # Errors
    /// The system's: the device has gone.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the host a packet, header first.
    ///
    /// # Errors
    /// The system's: a packet it makes nothing of, a device that is down.
    pub fn write<const N: usize>(&self, parts: &[&[u8]; N]) -> io::Result<()> {
        (&self.file).write_vectored(&parts.map(IoSlice::new)).map(|_| ())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_device_can_have_is_refused() {
        let error = Device::new("a-name-that-is-too-long").err().map(|e| e.kind());
        assert_eq!(error, Some(io::ErrorKind::InvalidInput));
    }

    #[test]
    fn a_machine_without_tun_says_so() {
        let error = Device::by("/dev/net/no-such-tun", "eth0").err();
        let error = error.map(|e| (e.kind(), e.to_string().contains("no-such-tun")));
        assert_eq!(error, Some((io::ErrorKind::NotFound, true)));
    }
}
