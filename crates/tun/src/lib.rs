//! TUN and TAP devices that pass superpackets (Linux Documentation/networking/tuntap.rst, linux/if_tun.h).
//!
//! Each packet that is read or written begins with a header of [`HEADER`] bytes (`virtio_net_hdr`). It says
//! how the packet must be cut into segments, and whether its checksum is complete. A header of zeros means
//! one packet with a complete checksum. A TAP device is used like a TUN device: the Ethernet header is
//! removed on reading and added on writing.
#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

mod frame;

use frame::FRONT;

const PATH: &str = "/dev/net/tun";
/// Number of bytes of the header in front of each packet.
pub const HEADER: usize = 10;
/// Maximum number of bytes in a device's name.
pub const LONGEST_NAME: usize = libc::IFNAMSIZ - 1;

/// A hardware (MAC) address.
pub type Hardware = [u8; 6];

/// A TUN or TAP device in the namespace in which it was made. Dropping this removes the device.
#[derive(Debug)]
pub struct Device {
    file: File,
    name: String,
    /// TAP device: the address to which its frames are sent. `None` for a TUN device.
    hardware: Option<Hardware>,
}

mod ioctls {
    // Request numbers from linux/if_tun.h.
    nix::ioctl_write_int!(attach, b'T', 202);
    nix::ioctl_write_int!(offload, b'T', 208);
}

/// The same kind of error, with a text that says what it is about.
fn about(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

impl Device {
    /// Makes a TUN device called `name` in the calling thread's namespace, with as much offload as the kernel
    /// has. A `%d` in the name becomes the first free number.
    ///
    /// # Errors
    /// `NotFound` if the kernel has no TUN, `PermissionDenied` without the right to it (CAP_NET_ADMIN),
    /// `ResourceBusy` if the name is taken, `InvalidInput` if no device can have the name.
    pub fn new(name: &str) -> io::Result<Self> {
        Self::by(PATH, name, None)
    }

    /// Makes a TAP device instead, for users that need Ethernet. Frames are sent to the address `hardware`.
    /// The caller must still set this address on the device.
    ///
    /// # Errors
    /// Those of [`Device::new`].
    pub fn tap(name: &str, hardware: Hardware) -> io::Result<Self> {
        Self::by(PATH, name, Some(hardware))
    }

    /// Makes a device with the kernel's interface at `path`: a TAP device if `hardware` is given, else a TUN
    /// device.
    ///
    /// # Errors
    /// Those of [`Device::new`].
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
        // SAFETY: the file is a TUN device's, and `request` outlives the call, which reads and writes it as
        // an ifreq.
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
        // UDP segmentation exists since Linux 6.2. Without it, datagrams arrive one by one.
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

    /// Name of the device, which the kernel may have completed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads a packet with the header in front of it. Returns the length of both, or `None` if no packet is
    /// there. `buffer` must hold at least a header.
    ///
    /// # Errors
    /// The system's error: the device no longer exists.
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

    /// Writes a packet to the host. The first part is the header.
    ///
    /// # Errors
    /// The system's error: the packet is not valid, or the device is down.
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
