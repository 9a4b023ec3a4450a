//! What the kernel knows about a connection (TCP_INFO).

use std::time::Duration;

use tokio::net::TcpStream;

/// The two fields of TCP_INFO that are of use here.
pub(crate) struct Info {
    /// Segments this end has sent again since the connection began.
    pub retransmissions: u64,
    /// Smoothed round-trip time.
    pub round_trip: Duration,
}

/// Asks the kernel; `None` where it does not say.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn info(stream: &TcpStream) -> Option<Info> {
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

/// Other systems: not asked.
#[cfg(not(target_os = "linux"))]
pub(crate) fn info(_: &TcpStream) -> Option<Info> {
    None
}
