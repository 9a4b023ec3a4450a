//! Asks the kernel about libzmq's connections, and ends them, by their descriptors.
//!
//! libzmq's monitor reports the descriptors of its connections, but libzmq closes them at any time. When we
//! read the report, a descriptor may belong to any other socket of this process. So before we act on a
//! connection, we check its two [`Ends`]: no other connection has the same two at the same time. Functions
//! without this check only read statistics. In rare cases these are statistics of another connection.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::time::Duration;

use thalweg_messages::Network;

/// The kernel's measurements of a connection.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn network(descriptor: c_int) -> Network {
    // SAFETY: `tcp_info` has only integers, so all zero bits are valid.
    let mut found: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel checks the descriptor. It writes at most `length` bytes, the size of the struct.
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
    // SAFETY: the same; a name has at most 16 bytes.
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

/// Sets the congestion control of a connection. The caller has checked that the system has it.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn set_congestion(descriptor: c_int, name: &str) {
    // SAFETY: the kernel checks the descriptor, and reads `name.len()` bytes of a text that lives. If the
    // connection has ended, the call fails, which does not matter.
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

/// The two addresses of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

/// `getsockname` or `getpeername`.
type Ask = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

/// The two addresses of a connection; `None` if it has ended.
pub(crate) fn ends_of(descriptor: c_int) -> Option<Ends> {
    Some(Ends {
        local: address(descriptor, libc::getsockname)?,
        peer: address(descriptor, libc::getpeername)?,
    })
}

#[allow(unsafe_code)]
fn address(descriptor: c_int, ask: Ask) -> Option<SocketAddr> {
    // SAFETY: `sockaddr_storage` has only integers, so all zero bits are valid.
    let mut found: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel checks the descriptor. It writes at most `length` bytes, the size of the struct.
    let failed = unsafe { ask(descriptor, (&raw mut found).cast(), &raw mut length) };
    match (failed, c_int::from(found.ss_family)) {
        (0, libc::AF_INET) => {
            // SAFETY: the kernel says that this is an IPv4 address. The storage has its size and alignment.
            let v4: libc::sockaddr_in = unsafe { std::ptr::read((&raw const found).cast()) };
            Some(SocketAddr::new(v4.sin_addr.s_addr.to_ne_bytes().into(), u16::from_be(v4.sin_port)))
        }
        (0, libc::AF_INET6) => {
            // SAFETY: the same for IPv6.
            let v6: libc::sockaddr_in6 = unsafe { std::ptr::read((&raw const found).cast()) };
            Some(SocketAddr::new(v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

/// Ends the connection between `ends`; libzmq notices that and closes it. The close then resets the
/// connection. Otherwise a peer with much to send would wait for a receive window that never opens, until the
/// kernel gives up after a minute or more.
#[allow(unsafe_code)]
pub(crate) fn shut_down(descriptor: c_int, ends: Ends) {
    if ends_of(descriptor) == Some(ends) {
        let reset = libc::linger { l_onoff: 1, l_linger: 0 };
        let length = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: the kernel checks the descriptor, and reads `length` bytes of a struct that lives.
        unsafe {
            libc::setsockopt(
                descriptor,
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const reset).cast(),
                length,
            );
            libc::shutdown(descriptor, libc::SHUT_RDWR);
        }
    }
}

/// Bytes that have arrived on the connection between `ends`; 0 if the kernel does not say.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn received_bytes(descriptor: c_int, ends: Ends) -> u64 {
    /// Where `tcpi_bytes_received` is in the kernel's `struct tcp_info`. The C library's struct is shorter.
    const AT: std::ops::Range<usize> = 128..136;
    let mut info = [0_u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel checks the descriptor. It writes at most `length` bytes, the size of the buffer.
    let failed = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let known = failed == 0 && length as usize >= AT.end && ends_of(descriptor) == Some(ends);
    info.get(AT).and_then(|bytes| bytes.try_into().ok()).filter(|_| known).map_or(0, u64::from_ne_bytes)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn received_bytes(_: c_int, _: Ends) -> u64 {
    0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn only_the_connection_that_is_meant_is_shut_down() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (ours, theirs) =
            (listener.local_addr().unwrap(), TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (mut accepted, peer) = listener.accept().unwrap();
        let (descriptor, ends) = (accepted.as_raw_fd(), Ends { local: ours, peer });
        assert_eq!(ends_of(descriptor), Some(ends));
        assert_eq!(ends_of(theirs.as_raw_fd()), Some(Ends { local: peer, peer: ours }));
        assert_eq!(ends_of(listener.as_raw_fd()), None, "it is no connection");
        // The descriptor belongs to another connection now, so the call must not change it.
        for other in
            [Ends { local: peer, peer: ours }, Ends { local: ours, peer: ours }, Ends { local: peer, peer }]
        {
            shut_down(descriptor, other);
        }
        (&theirs).write_all(b"still here").unwrap();
        accepted.read_exact(&mut [0; 10]).unwrap();
        assert_eq!(
            (received_bytes(descriptor, ends), received_bytes(descriptor, Ends { local: peer, peer })),
            (10, 0)
        );
        shut_down(descriptor, ends);
        assert_eq!((&theirs).read(&mut [0]).unwrap(), 0);
    }
}
