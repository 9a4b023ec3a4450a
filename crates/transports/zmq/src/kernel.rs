//! What the kernel says of libzmq's connections, by their descriptors.
//!
//! libzmq tells the descriptors of its connections to whoever watches a socket, and closes them by itself. One that has
//! been closed meanwhile gives an error here, or another connection's figures once; nothing worse.

use std::ffi::c_int;
use std::time::Duration;

use thalweg_messages::Network;

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn network(descriptor: c_int) -> Network {
    // SAFETY: `tcp_info` is integers only, for which all zero bits are a value.
    let mut found: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel checks the descriptor; it writes at most `length` bytes, the size of the struct.
    let failed = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    let mut name = [0_u8; 32];
    let mut named = name.len() as libc::socklen_t;
    // SAFETY: as above; the name has at most 16 bytes.
    let nameless = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut named,
        )
    };
    let text = name.split(|&byte| byte == 0).next().and_then(|name| std::str::from_utf8(name).ok());
    Network {
        retransmissions: (failed == 0).then(|| found.tcpi_total_retrans.into()),
        round_trip: (failed == 0).then(|| Duration::from_micros(found.tcpi_rtt.into())),
        congestion: text.filter(|_| nameless == 0).map(String::from),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn network(_: c_int) -> Network {
    let _ = Duration::ZERO;
    Network::default()
}

/// Chooses the congestion control of a connection; that it exists has been checked.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn set_congestion(descriptor: c_int, name: &str) {
    // SAFETY: the kernel checks the descriptor, and reads `name.len()` bytes of a text that lives. It fails for a
    // connection that has ended already, which needs none any more.
    unsafe {
        libc::setsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        );
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn set_congestion(_: c_int, _: &str) {}
