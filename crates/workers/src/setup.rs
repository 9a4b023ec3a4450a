//! What a worker is told first: its part, and the memory that it shares with its node.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use thalweg_fold::Precision;
use thalweg_shm_pool::{Class, Plan};
use thalweg_wire::{Layout, Range};

/// Most bytes of a set-up.
const MOST: u64 = 256 << 20;

/// Everything that a worker has to know. With it come the descriptors of [`Shared`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Of the process, among those of its node: another one gets another number.
    pub number: u16,
    pub layout: Layout,
    /// 0 f32, 1 f64, 2 exact.
    precision: u8,
    /// What of updates it folds.
    pub part: Range,
    /// Classes of the pool: bytes and slots of each.
    classes: Vec<(u64, u32)>,
    /// Bytes of the memory for its sums, both slots.
    pub sums_bytes: u64,
    /// Bytes are copied: its end of the connection for them comes third.
    pub copies: bool,
    /// Slot and encoded head of what its predecessor has committed.
    pub base: Option<(u32, Vec<u8>)>,
}

/// What a worker shares with its node.
pub(crate) struct Shared {
    pub pool: OwnedFd,
    pub sums: OwnedFd,
    /// Its end of the connection by which bytes are copied, if they are.
    pub copying: Option<OwnedFd>,
    /// Its end of a connection by which notes go inside the kernel, if they do.
    pub route: Option<TcpStream>,
}

impl Setup {
    /// For no process yet.
    pub fn new(layout: Layout, precision: Precision, part: Range, plan: &Plan) -> Self {
        let precision = match precision {
            Precision::F32 => 0,
            Precision::F64 => 1,
            Precision::Exact => 2,
        };
        let classes = plan.classes().iter().map(|class| (class.bytes, class.slots)).collect();
        Self { number: 0, layout, precision, part, classes, sums_bytes: 0, copies: false, base: None }
    }

    pub fn precision(&self) -> Option<Precision> {
        [Precision::F32, Precision::F64, Precision::Exact].get(usize::from(self.precision)).copied()
    }

    pub fn plan(&self) -> Plan {
        let classes: Vec<Class> = self.classes.iter().map(|&(bytes, slots)| Class { bytes, slots }).collect();
        Plan::new(&classes)
    }

    /// Sends it with its descriptors.
    pub fn send(&self, mut socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        send_with(socket, &(bytes.len() as u64).to_le_bytes(), descriptors)?;
        socket.write_all(&bytes)
    }

    /// Receives it, with its descriptors.
    pub fn receive(mut socket: &UnixStream) -> io::Result<(Self, Shared)> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut length = [0; 8];
        let mut descriptors = receive_with(socket, &mut length)?.into_iter();
        let (Some(pool), Some(sums)) = (descriptors.next(), descriptors.next()) else {
            return Err(bad("the node sent no descriptors"));
        };
        let length = Some(u64::from_le_bytes(length)).filter(|&length| length <= MOST);
        let mut bytes =
            vec![0; length.ok_or_else(|| bad("the node sent a set-up that is too long"))? as usize];
        socket.read_exact(&mut bytes)?;
        let setup: Self = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
        let copying = if setup.copies { descriptors.next() } else { None };
        let route = descriptors.next().map(TcpStream::from);
        Ok((setup, Shared { pool, sums, copying, route }))
    }
}

/// Sends a few bytes, and descriptors with them.
pub(crate) fn send_with(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("more descriptors than one message takes"));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    let whole = sent == bytes.len();
    whole.then_some(()).ok_or_else(|| io::Error::other("the socket took only a part of a message"))
}

/// Receives so many bytes, and the descriptors that came with them.
pub(crate) fn receive_with(mut socket: &UnixStream, bytes: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(bytes)];
    let received =
        retry_on_intr(|| recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?.bytes;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    socket.read_exact(&mut bytes[received..])?;
    Ok(descriptors)
}
