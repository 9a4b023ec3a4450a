//! Hands the chunks of a part to the sink, one at a time.

use std::collections::VecDeque;

use thalweg_arena::Claim;
use thalweg_transport::{Error, ErrorKind, Result, Sink, Target};
use thalweg_wire::{checksum, ChunkHeader, WireError};

use crate::extent::{checksum_of, Part};
use crate::offers::RECEIVE;
use crate::sides::{Came, Landing};

/// A part that has arrived and is being delivered. A control message may be delivered between two chunks.
pub(crate) struct Delivery {
    pub(crate) number: u64,
    pub(crate) part: Part,
    bytes: VecDeque<Claim>,
    landing: Landing,
    outcome: std::result::Result<(), WireError>,
    /// Index of the next chunk, and its offset in the part.
    next: u64,
    at: usize,
}

impl Delivery {
    /// Checks the part's bytes. Other tasks run between its chunks.
    pub(crate) async fn begin(came: Came) -> Self {
        let Came { number, part, sum, bytes, landing, .. } = came;
        let (mut sums, mut at) = (Vec::new(), 0);
        for chunk in part.chunks() {
            if at > 0 {
                tokio::task::yield_now().await;
            }
            let length = chunk.length as usize;
            let own = match &landing {
                Landing::Places => bytes.get(sums.len()).map(|place| &place[..]),
                Landing::Pool(..) => bytes.first().and_then(|all| all.get(at..at + length)),
            };
            sums.push(checksum(own.unwrap_or_default()));
            at += length;
        }
        let computed = checksum_of(sums.into_iter());
        let outcome =
            (computed == sum).then_some(()).ok_or(WireError::PayloadChecksum { found: sum, computed });
        Self { number, part, bytes: bytes.into(), landing, outcome, next: 0, at: 0 }
    }

    /// Delivers the next chunk. Returns how many bytes were copied for it.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the sink gives a place of another length.
    pub(crate) fn step(&mut self, sink: &dyn Sink) -> Result<u64> {
        let Some(chunk) = self.part.chunk(self.next) else { return Ok(0) };
        let index = usize::try_from(self.next).unwrap_or(usize::MAX);
        sink.begun(&chunk);
        sink.progress(chunk.length.into());
        let copied = match &mut self.landing {
            Landing::Places => {
                if let Some(place) = self.bytes.pop_front() {
                    sink.stored(&chunk, Target::Place(place), self.outcome.clone());
                }
                0
            }
            Landing::Pool(_, places) => {
                let place = places.get_mut(index).and_then(Option::take).map(Target::Place);
                let own =
                    self.bytes.front().and_then(|all| all.get(self.at..self.at + chunk.length as usize));
                match place.or_else(|| sink.place(&chunk)) {
                    Some(target) => put(&chunk, own.unwrap_or_default(), target, sink, self.outcome.clone())?,
                    None => 0,
                }
            }
        };
        self.next += 1;
        self.at += chunk.length as usize;
        Ok(copied)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.next >= self.part.count()
    }

    /// Where the part was received, without its bytes.
    pub(crate) fn into_landing(self) -> Landing {
        drop(self.bytes);
        self.landing
    }
}

/// Copies a chunk to the place that the sink gave.
fn put(
    chunk: &ChunkHeader,
    bytes: &[u8],
    mut target: Target,
    sink: &dyn Sink,
    outcome: std::result::Result<(), WireError>,
) -> Result<u64> {
    let to = target.bytes_mut();
    if to.len() != bytes.len() {
        let context = format!("a place of {} bytes for {}", to.len(), bytes.len());
        return Err(Error::new(ErrorKind::System, RECEIVE, context));
    }
    to.copy_from_slice(bytes);
    sink.stored(chunk, target, outcome);
    Ok(bytes.len() as u64)
}
