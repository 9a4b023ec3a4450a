//! What a device can do. Everything else of verbs is left out.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use thalweg_arena::{Arena, Claim};
use thiserror::Error;

/// Bytes of an encoded [`Endpoint`].
pub const ENDPOINT_BYTES: usize = 32;

/// Why a device cannot be used, with the mend.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// libibverbs is not there.
    #[error("{0}; install libibverbs (Debian: apt install libibverbs1 ibverbs-providers)")]
    NoLibrary(String),
    /// No device, or none with an active port.
    #[error(
        "{0}; `rdma link` lists devices, `rdma link add` makes one of a network card without RDMA (rxe)"
    )]
    NoDevice(String),
    /// Memory may not be locked.
    #[error(
        "{0}; raise the limit on locked memory (ulimit -l unlimited, or LimitMEMLOCK=infinity in systemd)"
    )]
    Locked(String),
    /// Any other refusal of the device.
    #[error("{0}")]
    Refused(String),
}

/// What the device bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that one work request may move.
    pub message: u64,
    /// Parts of memory that one work request may gather.
    pub parts: usize,
    /// Work requests that a pair holds.
    pub works: usize,
    /// Reads that a pair has under way at a time; more of them wait for the first to end.
    pub reads: usize,
    /// Whether it has memory windows of type 2B; otherwise each grant registers its memory.
    pub windows: bool,
    /// Bytes of a packet's payload.
    pub mtu: u32,
}

/// One end of a pair, as the other has to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The port's address.
    pub gid: [u8; 16],
    /// The pair's number at that device.
    pub number: u32,
    /// Its first packet's sequence number.
    pub first: u32,
    /// The longest packet it takes, in bytes of payload.
    pub mtu: u32,
    /// Reads by its peer that it answers at a time.
    pub reads: u32,
}

impl Endpoint {
    /// Its bytes.
    pub fn encode(&self) -> [u8; ENDPOINT_BYTES] {
        let mut out = [0; ENDPOINT_BYTES];
        out[..16].copy_from_slice(&self.gid);
        for (at, number) in [(16, self.number), (20, self.first), (24, self.mtu), (28, self.reads)] {
            out[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    /// From its bytes; numbers of 24 bits and an MTU that no verb has make `None`.
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
    /// Where.
    pub address: u64,
    /// The key to it.
    pub key: u32,
}

/// Memory that the peer may write to: claims of one arena, each behind the one before it.
#[derive(Debug, Default)]
pub struct Memory(Vec<Claim>);

impl Memory {
    /// `None` if the claims are not contiguous.
    pub fn new(claims: Vec<Claim>) -> Option<Self> {
        let follows = |two: &[Claim]| std::ptr::eq(two[0].as_ptr_range().end, two[1].as_ptr());
        claims.windows(2).all(follows).then_some(Self(claims))
    }

    /// The claims.
    pub fn into_claims(self) -> Vec<Claim> {
        self.0
    }

    /// Bytes in all.
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

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.0.first().map_or(0, |claim| claim.as_ptr() as u64)
    }
}

impl From<Claim> for Memory {
    fn from(claim: Claim) -> Self {
        Self(vec![claim])
    }
}

/// A work request. Its memory lies in registered arenas, and belongs to the pair until it is done.
#[derive(Debug)]
pub enum Work {
    /// Writes these bytes, one behind the other, to the peer's memory.
    Write {
        /// What.
        bytes: Vec<Bytes>,
        /// Where to.
        to: Remote,
    },
    /// The same, and then the peer hears of it ([`Done::Noted`]): when all that was written before is there.
    Note {
        /// What.
        bytes: Vec<Bytes>,
        /// Where to.
        to: Remote,
        /// What the peer hears.
        note: u32,
    },
    /// Reads the peer's memory into this one.
    Read {
        /// Where to.
        into: Claim,
        /// What.
        from: Remote,
    },
    /// Lets the peer write to this memory, over this pair alone.
    Open(Memory),
    /// Lets the peer read these bytes, over this pair alone.
    Lend(Bytes),
    /// Lets it no more. When this is done, nothing the peer has sent or will send changes a byte there, or reads one.
    Close {
        /// The key that [`Done::Opened`] told.
        key: u32,
    },
}

/// What has happened.
#[derive(Debug)]
pub enum Done {
    /// A write is acknowledged: the peer's device has it.
    Written(u64),
    /// What was to be read is here.
    Read(u64, Claim),
    /// The peer may write to the memory of this request, or read it.
    Opened(u64, Remote),
    /// It may no more; here is the memory that it could write to.
    Closed(u64, Memory),
    /// The peer has written with a note.
    Noted(u32),
    /// The pair is lost, and all of its work: [`Pair::break_off`] is what is left to do.
    Lost(Fault),
}

/// Why a pair was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The peer does not answer (RETRY_EXC).
    Retries,
    /// It was broken off, here or by an earlier fault (FLUSH).
    Flushed,
    /// The peer's memory must not be written to, or read, with this key (REM_ACCESS).
    Access,
    /// Anything else.
    Other,
}

impl Fault {
    /// Whether a new pair may do better.
    pub const fn may_retry(self) -> bool {
        matches!(self, Fault::Retries | Fault::Flushed)
    }
}

/// A device with one port.
pub trait Device: Send + Sync {
    /// Its name, for people.
    fn name(&self) -> String;

    /// What it bounds.
    fn limits(&self) -> Limits;

    /// Makes an arena's memory known to the device, once. The arena keeps the registration; it allows the peer nothing.
    ///
    /// # Errors
    /// [`Error::Locked`] where the system does not let memory be locked, [`Error::Refused`].
    fn register(&self, arena: &Arena) -> Result<(), Error>;

    /// One end of a reliable pair. Each of its ends may have `notes` unread notes.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Locked`].
    fn pair(&self, notes: usize) -> Result<Box<dyn Pair>, Error>;
}

/// One end of a reliable pair.
pub trait Pair: Send {
    /// What the peer has to know.
    fn endpoint(&self) -> Endpoint;

    /// Says, before it is joined, how long a round trip to the peer takes: a packet without an answer is sent again after a few
    /// of them.
    fn expect(&mut self, round_trip: Duration) {
        let _ = round_trip;
    }

    /// Joins it to the peer's end.
    ///
    /// # Errors
    /// [`Error::Refused`].
    fn connect(&mut self, peer: &Endpoint) -> Result<(), Error>;

    /// Begins a work request. Those of one pair are carried out in order.
    ///
    /// # Errors
    /// [`Error::Refused`] for memory that is not registered, or for more work than the pair holds; nothing has begun then.
    fn post(&mut self, id: u64, work: Work) -> Result<(), Error>;

    /// What has happened since. Pending if nothing has; then `context` is woken when something does.
    fn poll(&mut self, context: &mut Context<'_>, done: &mut Vec<Done>) -> Poll<()>;

    /// Copies bytes of memory that the peer may be writing to; `false` if there is no such memory.
    fn peek(&self, key: u32, at: usize, out: &mut [u8]) -> bool;

    /// Ends the pair at once. No device touches its memory from then on. What the peer could write to is given back by its
    /// key; with key 0 what was to be opened, closed or read into.
    fn break_off(&mut self) -> Vec<(u32, Memory)>;
}
