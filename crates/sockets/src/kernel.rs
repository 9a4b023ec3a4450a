//! What no safe crate offers: reading TCP_INFO, setting SO_RCVLOWAT, and ending the connection of a UDP socket.

use std::io;
use std::time::Duration;

use tokio::net::{TcpStream, UdpSocket};

/// The fields of TCP_INFO that are used here.
pub struct Info {
    /// Segments that this end has retransmitted on the connection.
    pub retransmissions: u64,
    /// Smoothed RTT.
    pub round_trip: Duration,
}

/// The kernel's TCP_INFO of a connection; `None` if it cannot be read.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub fn info(stream: &TcpStream) -> Option<Info> {
    use std::mem::{size_of, zeroed};
    use std::os::fd::AsRawFd;

    // SAFETY: `tcp_info` is integers only, for which all zero bits are a value.
    let mut found: libc::tcp_info = unsafe { zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `stream` is borrowed; the pointers are to live locals, and
    // the kernel writes at most `length` bytes, the size of the struct.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    (failed == 0).then(|| Info {
        retransmissions: found.tcpi_total_retrans.into(),
        round_trip: Duration::from_micros(found.tcpi_rtt.into()),
    })
}

#[cfg(not(target_os = "linux"))]
pub fn info(_: &TcpStream) -> Option<Info> {
    None
}

/// Makes the connection readable only when `bytes` bytes have arrived, or its end. Returns whether the system
/// does so.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub fn wake_at(stream: &TcpStream, bytes: u32) -> bool {
    use std::mem::size_of;
    use std::os::fd::AsRawFd;

    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open as long as `stream` is borrowed; the kernel reads one int, a live local.
    let failed = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    failed == 0
}

/// Ends the connection of a UDP socket: it forgets its peer, and the addresses that the system has chosen for it.
///
/// # Errors
/// Those of the system.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub fn disconnect(socket: &UdpSocket) -> io::Result<()> {
    use std::mem::{size_of, zeroed};
    use std::os::fd::AsRawFd;

    // SAFETY: `sockaddr` is integers only, for which all zero bits are a value. Its family is AF_UNSPEC, 0.
    let nowhere: libc::sockaddr = unsafe { zeroed() };
    let length = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `socket` is borrowed; the kernel reads `length` bytes, the size of
    // the live local.
    let failed = unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, length) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Other systems have other ways, which are not used.
///
/// # Errors
/// Always [`io::ErrorKind::Unsupported`].
#[cfg(not(target_os = "linux"))]
pub fn disconnect(_: &UdpSocket) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Other systems wake at the first byte. The option is not set there.
#[cfg(not(target_os = "linux"))]
pub fn wake_at(_: &TcpStream, _: u32) -> bool {
    false
}
