//! The first message to a worker: its part of the work, and descriptors of the memory that it shares with its
//! node.

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

/// Maximum number of bytes of an encoded [`Setup`].
const MOST: u64 = 256 << 20;

/// The sums of each worker begin at a multiple of this.
const PAGE: u64 = 4096;

/// All settings that a worker needs. The descriptors of [`Shared`] are sent together with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Number of the process. No two processes of a node get the same number.
    pub number: u16,
    pub layout: Layout,
    /// 0 is f32, 1 is f64, 2 is exact.
    precision: u8,
    /// The range of each update's bytes that the worker folds.
    pub part: Range,
    /// Size classes of the pool: slot size in bytes and number of slots.
    classes: Vec<(u64, u32)>,
    /// Size in bytes of the memory for the worker's sums, both slots together.
    pub sums_bytes: u64,
    /// Where the worker's sums begin in the memory of the descriptor.
    pub sums_start: u64,
    /// Size in bytes of that memory. It is larger than `sums_bytes` if the sums of all workers lie in it, one
    /// after the other, so that one worker can add up those of others.
    pub memory_bytes: u64,
    /// Whether updates are copied. If so, the third descriptor is the worker's end of the connection for
    /// copies.
    pub copies: bool,
    /// The last commit of the worker's predecessor: the slot and the encoded head of the sums.
    pub base: Option<(u32, Vec<u8>)>,
}

/// The descriptors that a worker gets from its node.
pub(crate) struct Shared {
    pub pool: OwnedFd,
    pub sums: OwnedFd,
    /// The worker's end of the connection for copies, if the data plane copies.
    pub copying: Option<OwnedFd>,
    /// The worker's end of the connection for notes inside the kernel, if there is one.
    pub route: Option<TcpStream>,
}

impl Setup {
    /// A set-up without a process number, sums or predecessor.
    pub fn new(layout: Layout, precision: Precision, part: Range, plan: &Plan) -> Self {
        let precision = match precision {
            Precision::F32 => 0,
            Precision::F64 => 1,
            Precision::Exact => 2,
        };
        let classes = plan.classes().iter().map(|class| (class.bytes, class.slots)).collect();
        Self {
            number: 0,
            layout,
            precision,
            part,
            classes,
            sums_bytes: 0,
            sums_start: 0,
            memory_bytes: 0,
            copies: false,
            base: None,
        }
    }

    /// Bytes from the sums of one worker to those of the next, where all lie in one memory.
    pub fn stride(&self) -> u64 {
        self.sums_bytes.next_multiple_of(PAGE)
    }

    pub fn precision(&self) -> Option<Precision> {
        [Precision::F32, Precision::F64, Precision::Exact].get(usize::from(self.precision)).copied()
    }

    pub fn plan(&self) -> Plan {
        let classes: Vec<Class> = self.classes.iter().map(|&(bytes, slots)| Class { bytes, slots }).collect();
        Plan::new(&classes)
    }

    /// Sends the set-up with its descriptors.
    pub fn send(&self, mut socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        send_with(socket, &(bytes.len() as u64).to_le_bytes(), descriptors)?;
        socket.write_all(&bytes)
    }

    /// Receives a set-up with its descriptors.
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

/// Sends a few bytes with file descriptors attached.
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

/// Fills `bytes` from the socket and returns the descriptors that arrived with them.
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
