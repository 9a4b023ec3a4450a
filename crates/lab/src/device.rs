//! TUN devices that hand over superpackets (Linux Documentation/networking/tuntap.rst, linux/if_tun.h).

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::{Error, Result};

const PATH: &str = "/dev/net/tun";

/// A TUN device in the namespace it was made in. It goes when this does.
pub(crate) struct Device(File);

mod ioctls {
    // From linux/if_tun.h.
    nix::ioctl_write_int!(attach, b'T', 202);
    nix::ioctl_write_int!(offload, b'T', 208);
}

impl Device {
    /// Makes a device called `name` in the calling thread's namespace, with as much offload as the kernel has.
    pub(crate) fn new(name: &str) -> Result<Self> {
        Self::by(PATH, name)
    }

    /// The same, by the kernel's interface at `path`.
    fn by(path: &str, name: &str) -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path);
        let file = file.map_err(|e| Error::io("lab", path, &e))?;
        if name.len() >= libc::IFNAMSIZ {
            return Err(crate::spec::impossible(format!(
                "the device name {name:?}; it has at most 15 bytes"
            )));
        }
        // SAFETY: an ifreq of zeros is a valid one; all its fields are integers, or arrays of them.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: the file is a TUN device's, and `request` outlives the call, which reads and writes it as an ifreq.
        let attached = unsafe { ioctls::attach(file.as_raw_fd(), (&raw mut request) as libc::c_ulong) };
        attached.map_err(|e| Error::io("lab", &format!("device {name:?}"), &e.into()))?;
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
        // UDP segmentation came with Linux 6.2; without it datagrams come one by one.
        let taken = [tcp | udp, tcp].into_iter().any(|offload| {
            // SAFETY: the argument is a plain number.
            unsafe { ioctls::offload(file.as_raw_fd(), libc::c_ulong::from(offload)) }.is_ok()
        });
        if !taken {
            let error = io::Error::last_os_error();
            return Err(Error::io("lab", &format!("segmentation offload of device {name:?}"), &error));
        }
        Ok(Self(file))
    }

    /// Reads a packet with the header in front of it, and says how long both are; `None` if there is none.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.0).read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the host a packet.
    pub(crate) fn write(&self, parts: &[&[u8]; 3]) -> io::Result<()> {
        (&self.0).write_vectored(&parts.map(IoSlice::new)).map(|_| ())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Namespace};

    /// Does something in a namespace of its own, or says why that cannot be.
    fn inside(work: impl FnOnce() + Send) {
        if let Err(error) = Namespace::with(|| {
            work();
            Ok(())
        }) {
            println!("skipped: {error}");
        }
    }

    #[test]
    fn a_name_that_is_taken_is_refused() {
        inside(|| {
            let first = match Device::new("one") {
                Err(error) if error.kind() == ErrorKind::Unsupported => return println!("skipped: {error}"),
                made => made.unwrap(),
            };
            let error = Device::new("one").err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InUse);
            assert!(error.to_string().contains("\"one\""), "{error}");
            drop(first);
            Device::new("one").unwrap();
        });
    }

    #[test]
    fn a_name_that_no_device_can_have_is_refused() {
        let error = Device::new("a-name-that-is-too-long").err().unwrap();
        assert!(
            [ErrorKind::Config, ErrorKind::Unsupported, ErrorKind::Permission].contains(&error.kind()),
            "{error}"
        );
    }

    #[test]
    fn a_machine_without_tun_says_so() {
        let error = Device::by("/dev/net/no-such-tun", "eth0").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("no-such-tun") && error.to_string().contains("emulator"),
            "{error}"
        );
    }
}
