//! Makes the kernel's soft RDMA devices (rxe) on top of hosts' devices, by netlink, as rdma-link(8) does
//! (rdma/rdma_netlink.h).

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    recvmsg, sendmsg, socket, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType,
};

use crate::{Error, ErrorKind, Result};

/// From rdma_netlink.h: the client RDMA_NL_NLDEV and its command RDMA_NLDEV_CMD_NEWLINK.
const NEW_LINK: u16 = (5 << 10) + 3;
/// From rdma_netlink.h: RDMA_NLDEV_ATTR_DEV_NAME, _NDEV_NAME and _LINK_TYPE.
const NAME: u16 = 2;
const DEVICE: u16 = 51;
const KIND: u16 = 65;
const RXE: &str = "rxe";
/// From linux/netlink.h: NLM_F_REQUEST and NLM_F_ACK; NLMSG_ERROR; sizes of `struct nlmsghdr` and `struct
/// nlattr`.
const FLAGS: u16 = 1 | 4;
const ANSWER: u16 = 2;
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
const ALIGNED: usize = 4;
/// Maximum number of bytes of an answer: a header, an error code, and the request.
const LONGEST: usize = 512;

/// Name of the RDMA device of the host with this index. All namespaces share one list of names.
pub(crate) fn name(host: usize) -> String {
    format!("{RXE}{host}")
}

/// Makes an RDMA device on top of `device` in the calling thread's namespace. It is removed together with
/// `device`.
pub(crate) fn add(name: &str, device: &str) -> Result<()> {
    let what = format!("the RDMA device {name}");
    match ask(&request(name, device)) {
        Ok(0) => Ok(()),
        Ok(code) => Err(refused(&what, &io::Error::from_raw_os_error(code))),
        Err(error) => Err(refused(&what, &error)),
    }
}

fn refused(what: &str, error: &io::Error) -> Error {
    match error.raw_os_error() {
        // The kernel has no RDMA netlink, or no rxe.
        Some(libc::EPROTONOSUPPORT | libc::EINVAL | libc::EOPNOTSUPP) => {
            Error::new(ErrorKind::Unsupported, "lab", format!("{what}: the kernel has no rxe ({error})"))
                .hint("take --clock virtual, whose kernel has it")
        }
        // The kernel's error if another device has the name.
        Some(libc::ENFILE) => {
            Error::new(ErrorKind::InUse, "lab", format!("{what}: another lab has a device of this name"))
                .hint("wait until that lab has ended, or take it down: thalweg lab down")
        }
        _ => Error::io("lab", what, error),
    }
}

fn request(name: &str, device: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, text) in [(NAME, name), (KIND, RXE), (DEVICE, device)] {
        let length = (ATTRIBUTE + text.len() + 1) as u16; // with the terminating zero
        body.extend(length.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(text.bytes().chain([0]));
        body.resize(body.len().next_multiple_of(ALIGNED), 0);
    }
    let mut all = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    all.extend(NEW_LINK.to_ne_bytes());
    all.extend(FLAGS.to_ne_bytes());
    all.extend([0; 8]); // the kernel fills in sequence and port
    all.extend(body);
    all
}

/// Sends a request. Returns the error number in the kernel's answer; 0 means success.
fn ask(request: &[u8]) -> io::Result<i32> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRDMA)?;
    let kernel = NetlinkAddr::new(0, 0);
    let (none, parts) = (&[], [IoSlice::new(request)]);
    sendmsg(socket.as_raw_fd(), &parts, none, MsgFlags::empty(), Some(&kernel))?;
    let mut answer = [0; LONGEST];
    let mut parts = [IoSliceMut::new(&mut answer)];
    recvmsg::<NetlinkAddr>(socket.as_raw_fd(), &mut parts, None, MsgFlags::empty())?;
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    let code =
        i32::from_ne_bytes([answer[HEADER], answer[HEADER + 1], answer[HEADER + 2], answer[HEADER + 3]]);
    if kind == ANSWER {
        Ok(-code)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of kind {kind}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_long_as_it_says_and_its_attributes_are_aligned() {
        let request = request("rxe0", "eth0");
        assert_eq!(request[..4], (request.len() as u32).to_ne_bytes());
        let mut rest = &request[HEADER..];
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
            kinds.push(u16::from_ne_bytes([rest[2], rest[3]]));
            assert_eq!(rest[length - 1], 0, "text ends with a zero");
            rest = &rest[length.next_multiple_of(ALIGNED)..];
        }
        assert_eq!(kinds, [NAME, KIND, DEVICE]);
    }

    #[test]
    fn a_kernel_without_rxe_says_so() {
        for code in [libc::EPROTONOSUPPORT, libc::EINVAL, libc::EOPNOTSUPP] {
            let error = refused("the RDMA device rxe0", &io::Error::from_raw_os_error(code));
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("--clock virtual"), "{error}");
        }
    }

    #[test]
    fn a_name_that_a_lab_still_has_is_no_lack_of_files() {
        let error = refused("the RDMA device rxe0", &io::Error::from_raw_os_error(libc::ENFILE));
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert!(error.to_string().contains("wait until that lab has ended"), "{error}");
    }
}
