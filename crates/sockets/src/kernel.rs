//! The two socket options that no safe crate offers: reading TCP_INFO and setting SO_RCVLOWAT.

use std::time::Duration;

use tokio::net::TcpStream;

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

/// Other systems wake at the first byte. The option is not set there.
#[cfg(not(target_os = "linux"))]
pub fn wake_at(_: &TcpStream, _: u32) -> bool {
    false
}
