//! TUN and TAP devices that hand over superpackets (Linux Documentation/networking/tuntap.rst, linux/if_tun.h).
//!
//! Each packet read or written has a header of [`HEADER`] bytes in front (`virtio_net_hdr`), which says how it is to be
//! cut into segments and whether its checksum is complete. One of zeros says: one packet, complete. A TAP device is read and
//! written as a TUN device is: the Ethernet header is taken off, and put before what is written.
#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

mod frame;

use frame::FRONT;

const PATH: &str = "/dev/net/tun";
/// Bytes of the header in front of each packet.
pub const HEADER: usize = 10;
/// The longest name of a device.
pub const LONGEST_NAME: usize = libc::IFNAMSIZ - 1;

/// A hardware address.
pub type Hardware = [u8; 6];

/// A TUN or TAP device in the namespace it was made in. It goes when this does.
#[derive(Debug)]
pub struct Device {
    file: File,
    name: String,
    /// Of a TAP device, whom its frames are for.
    hardware: Option<Hardware>,
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
        Self::by(PATH, name, None)
    }

    /// The same as a TAP device, for what needs Ethernet. Its frames have the address `hardware`, which the device is still
    /// to be given.
    ///
    /// # Errors
    /// As [`Device::new`].
    pub fn tap(name: &str, hardware: Hardware) -> io::Result<Self> {
        Self::by(PATH, name, Some(hardware))
    }

    /// Either, by the kernel's interface at `path`.
    ///
    /// # Errors
    /// As [`Device::new`].
    pub fn by(path: &str, name: &str, hardware: Option<Hardware>) -> io::Result<Self> {
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
        let kind = if hardware.is_some() { libc::IFF_TAP } else { libc::IFF_TUN };
        request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: the file is a TUN device's, and `request` outlives the call, which reads and writes it as an ifreq.
        let attached = unsafe { ioctls::attach(file.as_raw_fd(), (&raw mut request) as libc::c_ulong) };
        attached.map_err(|e| about(&format!("device {name:?}"), &e.into()))?;
        let given = request.ifr_name.iter().take_while(|&&c| c != 0).map(|&c| char::from(c as u8)).collect();
        let device = Self { file, name: given, hardware };
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

    /// Reads a packet with the header in front of it, and says how long both are; `None` if there is none. The buffer holds
    /// at least a header.
    ///
    /// # Errors
    /// The system's: the device has gone.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let read = match self.hardware {
            None => (&self.file).read(buffer),
            Some(_) => self.read_frame(buffer),
        };
        match read {
            Ok(length) => Ok(Some(length)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn read_frame(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (header, packet) = buffer.split_at_mut(HEADER);
        let mut front = [0; FRONT];
        let parts = &mut [IoSliceMut::new(&mut front), IoSliceMut::new(packet)];
        let length = (&self.file).read_vectored(parts)?;
        header.copy_from_slice(&frame::taken(&front));
        Ok(HEADER + length.saturating_sub(FRONT))
    }

    /// Gives the host a packet, header first.
    ///
    /// # Errors
    /// The system's: a packet it makes nothing of, a device that is down.
    pub fn write<const N: usize>(&self, parts: &[&[u8]; N]) -> io::Result<()> {
        let mut parts = *parts;
        let front;
        if let (Some(hardware), Some(&header)) = (self.hardware, parts.first()) {
            let first = parts[1..].iter().find_map(|part| part.first()).copied().unwrap_or_default();
            front = frame::put(header, hardware, first);
            parts[0] = &front;
        }
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
        let error = Device::by("/dev/net/no-such-tun", "eth0", None).err();
        let error = error.map(|e| (e.kind(), e.to_string().contains("no-such-tun")));
        assert_eq!(error, Some((io::ErrorKind::NotFound, true)));
    }
}
