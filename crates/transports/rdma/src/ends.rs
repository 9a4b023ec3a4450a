//! Test helper: a receiving side over a pretend device, and the sender's end of its pair.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_transport::Result as Outcome;
use thalweg_verbs::pretend::{connected, settle, Behaviour, Fabric, Pretend};
use thalweg_verbs::{Device, Done, Pair, Remote, Work};
use thalweg_wire::{checksum, ChunkHeader, LayoutHash, WireError};

use crate::extent::{Extent, Part};
use crate::outbox::Outbox;
use crate::pool::Pool;
use crate::sides::{Came, Receives};
use crate::NOTES;

/// Polls after which a receiving side has handled everything.
const ENOUGH: usize = 200;

/// Bytes of `Ends::place`.
pub(crate) const PLACE: u32 = 15_000;

/// Makes a receiving side over a pair. The pair has opened one piece of memory, with this key and address.
type Make<R> = fn(Arc<dyn Device>, Arc<Pool>, (Box<dyn Pair>, u32, usize)) -> R;

pub(crate) struct Ends<R> {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) receiver: R,
    pub(crate) outbox: Outbox,
    pub(crate) sender: Box<dyn Pair>,
    /// The memory that was opened first (ring or slot), as the sender addresses it.
    pub(crate) first: Remote,
    /// Memory for grants.
    pub(crate) place: Arena,
}

impl<R: Receives> Ends<R> {
    /// `bytes`: the length of the memory that is opened first (ring or slot).
    pub(crate) fn new(seed: u64, bytes: usize, make: Make<R>) -> Self {
        let behaviour = Behaviour { seed, ..Behaviour::default() };
        let fabric = Arc::new(Fabric::default());
        let device: Arc<dyn Device> = Arc::new(Pretend::new(&fabric, behaviour));
        let (sender, mut pair) = connected(&*device, &*device, NOTES).unwrap();
        let arena = Arena::new(bytes as u64).unwrap();
        device.register(&arena).unwrap();
        pair.post(0, Work::Open(arena.claim(arena.range()).unwrap().into())).unwrap();
        let Some(Done::Opened(_, first)) = settle(&mut pair).pop() else { panic!("nothing is open") };
        let pool = Arc::new(Pool::new(device.clone()));
        let receiver = make(device.clone(), pool, (pair, first.key, arena.as_ptr() as usize));
        let place = Arena::new(PLACE.into()).unwrap();
        Self { fabric, device, receiver, outbox: Outbox::new().0, sender, first, place }
    }

    pub(crate) fn poll(&mut self) -> Outcome<()> {
        let mut context = Context::from_waker(Waker::noop());
        (0..ENOUGH).try_for_each(|_| self.receiver.poll(&mut context, &self.outbox))
    }

    /// Copies bytes into memory that the sender's device has registered.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Vec<Bytes> {
        let arena = Arena::new(bytes.len() as u64).unwrap();
        self.device.register(&arena).unwrap();
        arena.claim(arena.range()).unwrap().copy_from_slice(bytes);
        vec![arena.lend(arena.range()).unwrap()]
    }
}

/// An extent of one chunk.
pub(crate) fn extent(length: u32) -> Extent {
    let first = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length };
    Extent { all: Part::one(first), whole: false }
}

/// Checks the bytes of a part of one chunk against the sender's checksum.
pub(crate) fn verify(came: &Came) -> Result<(), WireError> {
    let (found, computed) = (came.sum, checksum(&came.bytes[0]));
    (found == computed).then_some(()).ok_or(WireError::PayloadChecksum { found, computed })
}
