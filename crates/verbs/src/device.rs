//! Traits and types of an RDMA device: the part of RDMA verbs that thalweg uses.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use thalweg_arena::{Arena, Claim};
use thiserror::Error;

/// Bytes of an encoded [`Endpoint`].
pub const ENDPOINT_BYTES: usize = 32;

/// Why a device cannot be used, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// libibverbs is not installed.
    #[error("{0}; install libibverbs (Debian: apt install libibverbs1 ibverbs-providers)")]
    NoLibrary(String),
    /// There is no device, or none with an active port.
    #[error(
        "{0}; `rdma link` lists devices, `rdma link add` makes one of a network card without RDMA (rxe)"
    )]
    NoDevice(String),
    /// The system does not allow enough memory to be locked.
    #[error(
        "{0}; raise the limit on locked memory (ulimit -l unlimited, or LimitMEMLOCK=infinity in systemd)"
    )]
    Locked(String),
    /// The device refused for another reason.
    #[error("{0}")]
    Refused(String),
}

/// Limits of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of bytes that one work request may move.
    pub message: u64,
    /// Maximum number of parts of memory that one work request may gather.
    pub parts: usize,
    /// Maximum number of work requests that a pair holds.
    pub works: usize,
    /// Maximum number of reads that a pair has in flight; further ones wait.
    pub reads: usize,
    /// Whether it has memory windows of type 2B. Otherwise each grant registers its memory.
    pub windows: bool,
    /// Payload bytes of a packet.
    pub mtu: u32,
}

/// The address and limits of one end of a queue pair ("pair"), which the peer must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The port's address (GID).
    pub gid: [u8; 16],
    /// The pair's number at its device (QPN).
    pub number: u32,
    /// Sequence number of the pair's first packet (PSN).
    pub first: u32,
    /// Payload bytes of the longest packet that this end accepts.
    pub mtu: u32,
    /// Maximum number of reads of the peer that this end answers at once.
    pub reads: u32,
}

impl Endpoint {
    /// Encodes the endpoint for the peer.
    pub fn encode(&self) -> [u8; ENDPOINT_BYTES] {
        let mut out = [0; ENDPOINT_BYTES];
        out[..16].copy_from_slice(&self.gid);
        for (at, number) in [(16, self.number), (20, self.first), (24, self.mtu), (28, self.reads)] {
            out[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    /// Decodes it. `None` if a number exceeds 24 bits, or the MTU is none that verbs have.
    pub fn decode(bytes: &[u8; ENDPOINT_BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[..16]);
        let endpoint =
            Self { gid, number: number(16), first: number(20), mtu: number(24), reads: number(28) };
        let plausible = endpoint.number < 1 << 24 && endpoint.first < 1 << 24;
        (plausible && [256, 512, 1024, 2048, 4096].contains(&endpoint.mtu)).then_some(endpoint)
    }
}

/// Memory at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Address of the memory at the peer.
    pub address: u64,
    /// Key to that memory (rkey).
    pub key: u32,
}

/// Memory that the peer may write to: contiguous claims of one arena, in order.
#[derive(Debug, Default)]
pub struct Memory(Vec<Claim>);

impl Memory {
    /// `None` if the claims are not contiguous.
    pub fn new(claims: Vec<Claim>) -> Option<Self> {
        let follows = |two: &[Claim]| std::ptr::eq(two[0].as_ptr_range().end, two[1].as_ptr());
        claims.windows(2).all(follows).then_some(Self(claims))
    }

    /// Returns the claims.
    pub fn into_claims(self) -> Vec<Claim> {
        self.0
    }

    /// Total bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.iter().map(|claim| claim.len()).sum()
    }

    pub(crate) fn claims(&self) -> &[Claim] {
        &self.0
    }

    #[cfg(feature = "pretend")]
    pub(crate) fn claims_mut(&mut self) -> &mut [Claim] {
        &mut self.0
    }

    /// Address of the first byte; 0 if there is none.
    pub fn address(&self) -> u64 {
        self.0.first().map_or(0, |claim| claim.as_ptr() as u64)
    }
}

impl From<Claim> for Memory {
    fn from(claim: Claim) -> Self {
        Self(vec![claim])
    }
}

/// A work request. The pair owns its memory, in registered arenas, until the request is done.
#[derive(Debug)]
pub enum Work {
    /// Writes these bytes, one after the other, to the peer's memory.
    Write {
        /// The bytes to write.
        bytes: Vec<Bytes>,
        /// Where to write them.
        to: Remote,
    },
    /// Writes with immediate data, called a note. The peer gets [`Done::Noted`] once this write and all
    /// earlier ones are in its memory.
    Note {
        /// The bytes to write.
        bytes: Vec<Bytes>,
        /// Where to write them.
        to: Remote,
        /// The note.
        note: u32,
    },
    /// Reads the peer's memory into this claim.
    Read {
        /// Where to put the bytes.
        into: Claim,
        /// The peer's memory to read.
        from: Remote,
    },
    /// Lets the peer write to this memory, over this pair alone.
    Open(Memory),
    /// Lets the peer read these bytes, over this pair alone.
    Lend(Bytes),
    /// Revokes [`Work::Open`] or [`Work::Lend`]. Once this is done, nothing that the peer has sent or will
    /// send can change or read a byte there.
    Close {
        /// The key from [`Done::Opened`].
        key: u32,
    },
}

/// An event of a pair. The first number is that of the work request.
#[derive(Debug)]
pub enum Done {
    /// A write was acknowledged: the peer's device has it.
    Written(u64),
    /// A read is complete: its bytes are in the claim.
    Read(u64, Claim),
    /// The peer may now write to the memory of this request, or read it.
    Opened(u64, Remote),
    /// The peer's access is revoked. Returns the memory that it could write to.
    Closed(u64, Memory),
    /// The peer has written with this note.
    Noted(u32),
    /// The pair is lost with all its work. Call [`Pair::break_off`] next.
    Lost(Fault),
}

/// Why a pair was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The peer does not answer (RETRY_EXC).
    Retries,
    /// The pair was broken off by this end or an earlier fault (FLUSH).
    Flushed,
    /// This key does not allow writing or reading the peer's memory (REM_ACCESS).
    Access,
    /// Any other fault.
    Other,
}

impl Fault {
    /// Whether a new pair may succeed.
    pub const fn may_retry(self) -> bool {
        matches!(self, Fault::Retries | Fault::Flushed)
    }
}

/// A device with one port.
pub trait Device: Send + Sync {
    /// Name of the device, for people.
    fn name(&self) -> String;

    /// Limits of the device.
    fn limits(&self) -> Limits;

    /// Registers an arena's memory with the device, once. The arena keeps the registration. The peer gets no
    /// access by it.
    ///
    /// # Errors
    /// [`Error::Locked`] if the system does not allow the memory to be locked, or [`Error::Refused`].
    fn register(&self, arena: &Arena) -> Result<(), Error>;

    /// Makes one end of a reliable pair. It may have `notes` unread notes. The peer's next note waits until this
    /// end is polled, and so do the peer's later work requests.
    ///
    /// # Errors
    /// [`Error::Refused`] or [`Error::Locked`].
    fn pair(&self, notes: usize) -> Result<Box<dyn Pair>, Error>;
}

/// One end of a reliable (RC) RDMA queue pair.
pub trait Pair: Send {
    /// The address and limits of this end, which the peer must know.
    fn endpoint(&self) -> Endpoint;

    /// Sets the round-trip time to the peer, before the pair is connected. An unacknowledged packet is
    /// retransmitted after a few round trips.
    fn expect(&mut self, round_trip: Duration) {
        let _ = round_trip;
    }

    /// Connects it to the peer's end.
    ///
    /// # Errors
    /// [`Error::Refused`].
    fn connect(&mut self, peer: &Endpoint) -> Result<(), Error>;

    /// Posts a work request. The requests of one pair are carried out in order.
    ///
    /// # Errors
    /// [`Error::Refused`] if memory is not registered, or the pair holds no more requests. Nothing was
    /// started then.
    fn post(&mut self, id: u64, work: Work) -> Result<(), Error>;

    /// Appends the events since the last call to `done`. Pending if there are none; `context` is then woken
    /// by the next one.
    fn poll(&mut self, context: &mut Context<'_>, done: &mut Vec<Done>) -> Poll<()>;

    /// Copies bytes of memory that the peer may be writing to. False if the key is not open or the range is
    /// out of bounds.
    fn peek(&self, key: u32, at: usize, out: &mut [u8]) -> bool;

    /// Ends the pair at once. From then on no device touches its memory. Returns the memory that the peer
    /// could write to, or that was being opened for it, each with its key. Memory that was being read into
    /// has the key 0. So may memory that was being closed.
    fn break_off(&mut self) -> Vec<(u32, Memory)>;
}
