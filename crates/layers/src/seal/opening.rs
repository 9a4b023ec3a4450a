//! Opens sealed chunks. Each record that has arrived is decrypted into its place, and lost records become
//! holes.

use std::sync::atomic::Ordering;
use std::sync::PoisonError;

use thalweg_seal::{Grid, Opened, Refused};
use thalweg_transport::{hand_over, Sink, Target};
use thalweg_wire::{checksum, ChunkHeader, Range, Ranges, WireError};

use super::{context, SealedLink, PREFACE};
use crate::progress::Progress;

/// Opens chunks and passes them to the sink of the layer above.
pub(super) struct Opening<'a> {
    pub link: &'a SealedLink,
    pub sink: &'a dyn Sink,
}

impl Opening<'_> {
    fn take(&self, chunk: &ChunkHeader, mut target: Target, holes: &Ranges, damage: Option<WireError>) {
        self.deliver(chunk, target.bytes_mut(), holes, damage);
        if let Target::Scratch(buffer) = target {
            self.link.buffers.give(buffer);
        }
    }

    fn tell(&self, progress: impl FnOnce(&mut Progress) -> u64) {
        let fresh = progress(&mut self.link.progress.lock().unwrap_or_else(PoisonError::into_inner));
        if fresh > 0 {
            self.sink.progress(fresh);
        }
    }

    /// Reads the bytes before the records of a chunk. `None` if this is no sealed chunk.
    fn read(&self, chunk: &ChunkHeader, sealed: &[u8]) -> Option<Preface> {
        let (number, rest) = sealed.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (sum, records) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        let grid = Grid::new(self.link.layer.cipher, length.into(), self.link.record).ok()?;
        let chunk = ChunkHeader { length, ..*chunk };
        let fits = grid.sealed_bytes() == records.len() as u64;
        let (number, sum) = (u64::from_le_bytes(*number), u32::from_le_bytes(*sum));
        fits.then_some(Preface { chunk, number, sum, grid })
    }

    /// Opens the records that have arrived whole into the chunk's place, and tells the sink. Drops a chunk
    /// that has arrived before, or is too old for the replay window.
    fn open(&self, preface: &Preface, records: &mut [u8], holes: &Ranges) {
        let Preface { chunk, number, grid, .. } = preface;
        let Some((_, opener)) = &self.link.ends else { return };
        let stream = match opener.stream(*number, &context(chunk), self.link.record) {
            Err(Refused::Replayed | Refused::Old) => return,
            stream => stream,
        };
        let Some(mut target) = self.sink.place(chunk) else { return };
        let opened = stream.and_then(|stream| {
            let opened = stream.open(records, holes, target.bytes_mut())?;
            let lost = self.lost(grid, &opened);
            self.link.copied.fetch_add(grid.total() - lost.bytes(), Ordering::Relaxed);
            let (authentic, whole) = (self.link.layer.cipher.is_authenticated(), holes.is_empty());
            let proved = lost.is_empty() || lost.bytes() < grid.total();
            // A whole chunk is genuine if all its records are authentic. A chunk with holes is genuine if one
            // record is authentic. If no record has arrived whole, it does not count as forged.
            let forged =
                if whole { !lost.is_empty() } else { !authentic || !(proved || opened.refused.is_empty()) };
            if forged {
                return Err(Refused::Forged);
            }
            if authentic && proved {
                opener.opened(&stream)?;
            }
            Ok((lost, preface.sum ^ stream.pad()?))
        });
        self.hand_on(chunk, target, opened);
    }

    /// Passes a chunk to the sink, with the ranges that could not be opened. If there are none, checks the
    /// checksum of the plaintext. If the chunk is refused, says why.
    fn hand_on(&self, chunk: &ChunkHeader, target: Target, opened: Result<(Ranges, u32), Refused>) {
        let outcome = match opened {
            Ok((lost, _)) if !lost.is_empty() => {
                let copied = hand_over(self.sink, chunk, target, &lost);
                self.link.copied.fetch_add(copied, Ordering::Relaxed);
                return;
            }
            Ok((_, found)) => {
                let computed = checksum(target.bytes());
                (computed == found).then_some(()).ok_or(WireError::PayloadChecksum { found, computed })
            }
            Err(refused) => Err(WireError::Sealed(refused.to_string())),
        };
        self.sink.stored(chunk, target, outcome);
    }

    /// Returns the plaintext of the records that were not opened. Counts these records.
    fn lost(&self, grid: &Grid, opened: &Opened) -> Ranges {
        let lost: Ranges = opened.missing.iter().chain(opened.refused.iter()).collect();
        let records: u64 = lost.iter().map(|range| range.len().div_ceil(grid.record().into())).sum();
        self.link.lost.fetch_add(records, Ordering::Relaxed);
        lost
    }

    /// Processes a chunk that has arrived except for `holes`. `damage`: the transport found it damaged.
    fn deliver(&self, chunk: &ChunkHeader, sealed: &mut [u8], holes: &Ranges, damage: Option<WireError>) {
        let Some(preface) = self.read(chunk, sealed) else { return };
        let (records, holes) = (&mut sealed[PREFACE..], behind_preface(holes));
        match damage {
            None => self.open(&preface, records, &holes),
            Some(damage) => {
                if let Some(target) = self.sink.place(&preface.chunk) {
                    self.sink.stored(&preface.chunk, target, Err(damage));
                }
            }
        }
        self.tell(|progress| progress.finished(preface.chunk.length.into()));
    }
}

/// The bytes in front of a chunk's records.
struct Preface {
    /// The header of the plain chunk.
    chunk: ChunkHeader,
    /// Number of the stream.
    number: u64,
    /// The checksum of the plaintext, hidden.
    sum: u32,
    /// Where the records are.
    grid: Grid,
}

/// The holes, relative to the first record.
fn behind_preface(holes: &Ranges) -> Ranges {
    let shift = |at: u64| at.saturating_sub(PREFACE as u64);
    holes.iter().map(|hole| Range::new(shift(hole.start), shift(hole.end))).collect()
}

impl Sink for Opening<'_> {
    /// Receives sealed chunks into buffers of its own, since they are longer than the sink's place. The sink
    /// is asked for a place when the records have arrived.
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        self.sink.begun(chunk);
        // With padding it is unknown how much of the last block is plaintext.
        let padding = if self.link.layer.cipher.is_authenticated() { 0 } else { 15 };
        let plain = self.link.layer.room(chunk.length).saturating_sub(padding);
        self.link.progress.lock().unwrap_or_else(PoisonError::into_inner).begin(plain.into());
        Some(Target::Scratch(self.link.buffers.sized(chunk.length as usize)))
    }

    fn begun(&self, chunk: &ChunkHeader) {
        self.sink.begun(chunk);
    }

    fn progress(&self, bytes: u64) {
        self.tell(|progress| progress.arrived(bytes));
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        self.take(chunk, target, &Ranges::new(), outcome.err());
    }

    /// If the preface has a hole, nothing of the chunk can be opened.
    fn holed(&self, chunk: &ChunkHeader, target: Target, holes: &Ranges) -> Option<Target> {
        if holes.next(0).is_none_or(|hole| hole.start >= PREFACE as u64) {
            self.take(chunk, target, holes, None);
        }
        None
    }
}
