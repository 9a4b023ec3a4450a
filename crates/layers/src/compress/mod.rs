//! Sends updates in fewer bytes. float32 values travel in fewer bits, only some of them travel, or matrices travel as
//! factors. They arrive as float32.
//!
//! A compressed chunk keeps its job, round, sender, layout and offset. Its payload has the length of the
//! plain chunk and a checksum (both u32, little-endian), and then pieces (see [`codec`]). The checksum is the
//! CRC-32C of the pieces. If the bytes of a plain chunk do not match the checksum that its sender stated, the
//! compressed chunk gets a wrong checksum, so that the receiver refuses it. Each chunk is decoded by itself, so
//! a lost chunk affects no other. A chunk whose values cannot be made smaller may become too long for the
//! transport. It is then sent as several chunks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_arena::Arena;
use thalweg_transport::{
    Cancel, Capabilities, ChunkRef, Counters, Error, ErrorKind, Link, LinkLayer, NoChunks, Outgoing, Result,
    SendReport, Sink, Target,
};
use thalweg_wire::{checksum, ChunkHeader, LayoutHash, Range, Ranges, WireError};

mod codec;
pub mod down;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod low_rank;
mod scheme;
pub use codec::Format;
use codec::{decode, holds, others, pieces, BLOCK, PREFACE};
pub use low_rank::{Factors, LowRank};
pub use scheme::{floats, put_back, Scheme};

use crate::buffers::Buffers;
use crate::progress::Progress;
use crate::wrap::{add, nothing, send_instead};
use crate::{Layer, Links, Side};

/// Bytes that are compressed before they are sent together.
const BATCH: usize = 4 << 20;
/// Minimum chunk size of a transport that can carry the factors of matrices, in bytes.
const MIN_CHUNK_FOR_FACTORS: u32 = 64 << 10;
const HELLO: &[u8] = b"thalweg compress 1 ";

/// Sends the float32 values of updates in fewer bytes, in both directions. Control messages do not change.
///
/// Both ends must have the same format and scheme.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compress {
    /// The format that values are rounded to and sent in, if there is no scheme.
    pub format: Format,
    /// The scheme by which senders round their updates before they send them. The layer encodes rounded values
    /// exactly, and sends all others as they are.
    pub scheme: Option<Scheme>,
    /// The scheme by which the server rounds how its model changes ([`down`]), if it sends that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<Scheme>,
}

impl From<Format> for Compress {
    fn from(format: Format) -> Self {
        Self { format, scheme: None, down: None }
    }
}

impl From<Scheme> for Compress {
    fn from(scheme: Scheme) -> Self {
        Self { format: Format::default(), scheme: Some(scheme), down: None }
    }
}

impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.scheme, self.down) {
            (Some(scheme), None) => write!(f, "{scheme} with error feedback"),
            (Some(scheme), Some(down)) => write!(f, "{scheme} with error feedback, and {down} down"),
            (None, _) => write!(f, "{:?}", self.format),
        }
    }
}

impl Compress {
    /// The layer as the side that sends needs it: with the scheme of its direction.
    fn sending(self, side: Side) -> Self {
        let down = self.down.filter(|_| side == Side::Accepted);
        Self { scheme: down.or(self.scheme), ..self }
    }

    /// Checks whether chunks of the transport below have room for what this layer sends.
    ///
    /// # Errors
    /// `Unsupported` if they are too short for the factors of matrices.
    pub fn check(self, inner: &Capabilities) -> Result<()> {
        if !self.is_low_rank() || inner.max_chunk >= MIN_CHUNK_FOR_FACTORS {
            return Ok(());
        }
        let why = "a chunk is one datagram, which has no room for the factors of powersgd";
        Err(Error::new(ErrorKind::Unsupported, "compress updates", why)
            .hint("take another compression, such as int8, or another transport, such as tcp"))
    }

    fn is_low_rank(self) -> bool {
        matches!(self.scheme, Some(Scheme::PowerSgd(_)))
    }

    /// Appends the encoded piece to `out`.
    fn write(self, piece: Range, bytes: &[u8], raw: &Ranges, out: &mut Vec<u8>) {
        match self.scheme {
            Some(scheme) => scheme.write(piece, bytes, raw, out),
            None => self.format.write(piece, bytes, raw, out),
        }
    }

    /// How many plain bytes fit into a payload of `room` bytes, if each piece can be compressed.
    fn holds(self, room: u32) -> u32 {
        let plain = 2 + (BLOCK as usize / 4 * self.format.bytes()) as u64;
        // A chunk has the same length in both directions.
        let block = self.scheme.into_iter().chain(self.down).map(Scheme::block_bytes).max().unwrap_or(plain);
        let blocks = u64::from(room).saturating_sub(PREFACE as u64) / block;
        u32::try_from(blocks * BLOCK).unwrap_or(u32::MAX).clamp(room.min(64), thalweg_wire::MAX_CHUNK)
    }
}

impl Layer for Compress {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let max_chunk = self.holds(inner.max_chunk);
        let preferred = match (self.scheme, inner.preferred_chunk) {
            // Each chunk carries its own copy of Q, so the longest chunks need the fewest bytes in all.
            (Some(Scheme::PowerSgd(_)), _) => max_chunk,
            (_, 0) => 0,
            (_, preferred) => self.holds(preferred),
        };
        Capabilities { fan_out: false, zero_copy: false, max_chunk, preferred_chunk: preferred, ..inner }
    }

    fn links(&self, side: Side) -> Arc<dyn Links> {
        Arc::new(Compressing { layer: *self, side })
    }
}

struct Compressing {
    layer: Compress,
    side: Side,
}

#[async_trait]
impl Links for Compressing {
    fn wrap(&self, inner: Arc<dyn Link>, _number: u64) -> Arc<dyn Link> {
        Arc::new(CompressedLink {
            inner,
            layer: self.layer,
            sends: self.layer.sending(self.side),
            last_raw: Mutex::default(),
            copied: AtomicU64::new(0),
            buffers: Buffers::default(),
            progress: Mutex::default(),
        })
    }

    async fn open(&self, inner: Arc<dyn Link>, number: u64) -> Result<Arc<dyn Link>> {
        if self.side == Side::Connected {
            inner.send_control(hello(self.layer)?).await?;
        } else {
            agree(self.layer, &inner.receive(&NoChunks).await?)?;
        }
        Ok(self.wrap(inner, number))
    }
}

/// The first message of the side that connects.
fn hello(layer: Compress) -> Result<Bytes> {
    let system = |e: serde_json::Error| Error::new(ErrorKind::System, "compress updates", e.to_string());
    Ok([HELLO, &serde_json::to_vec(&layer).map_err(system)?].concat().into())
}

fn agree(ours: Compress, message: &[u8]) -> Result<()> {
    let refuse = |reason: String| {
        let error = Error::new(ErrorKind::Unsupported, "compress updates", reason);
        Err(error.hint("give both ends the same layers.compress and the same compression"))
    };
    let Some(json) = message.strip_prefix(HELLO) else {
        return refuse("the peer does not compress its updates".into());
    };
    match serde_json::from_slice::<Compress>(json) {
        Ok(theirs) if theirs == ours => Ok(()),
        Ok(theirs) => refuse(format!("the peer sends {theirs}, this end {ours}")),
        Err(error) => refuse(format!("what the peer says: {error}")),
    }
}

struct CompressedLink {
    inner: Arc<dyn Link>,
    layer: Compress,
    /// The layer with the scheme of what this side sends.
    sends: Compress,
    /// The ranges that are not float32 values, of the layout that was sent last.
    last_raw: Mutex<Option<(LayoutHash, Arc<Ranges>)>>,
    /// Bytes that were encoded or decoded into another buffer.
    copied: AtomicU64,
    buffers: Buffers,
    progress: Mutex<Progress>,
}

/// Compressed chunks that are sent together.
#[derive(Default)]
struct Batch {
    /// Their payloads, one after the other.
    bytes: Vec<u8>,
    /// The offset of each chunk in the update, and its compressed length.
    chunks: Vec<(u64, u32)>,
}

impl Batch {
    /// Begins a chunk. Its length and checksum are filled in when it ends.
    fn begin(&mut self, offset: u64) {
        self.chunks.push((offset, 0));
        self.bytes.extend_from_slice(&[0; PREFACE]);
    }

    /// Ends the chunk that began at byte `start`. `plain` is the number of its plain bytes. `wrong` is their
    /// stated checksum XOR their real one: 0 if the two agree.
    fn end(&mut self, start: usize, plain: u64, wrong: u32) {
        let sum = checksum(&self.bytes[start + PREFACE..]) ^ wrong;
        let preface = [(plain as u32).to_le_bytes(), sum.to_le_bytes()].concat();
        self.bytes[start..start + PREFACE].copy_from_slice(&preface);
        if let Some(last) = self.chunks.last_mut() {
            last.1 = (self.bytes.len() - start) as u32;
        }
    }
}

impl CompressedLink {
    /// The ranges of an update that are not float32. If the layout is unknown, these are all of the update.
    fn raw(&self, update: &Outgoing) -> Arc<Ranges> {
        let Some(layout) = update.layout() else { return Arc::new(Ranges::full(u64::MAX)) };
        let mut last = self.last_raw.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((hash, raw)) if *hash == layout.hash() => raw.clone(),
            _ => last.insert((layout.hash(), Arc::new(others(layout)))).1.clone(),
        }
    }

    /// Appends a compressed chunk to `batch`. If it would be longer than `room`, appends several.
    fn compress(&self, update: &Outgoing, chunk: &ChunkRef, raw: &Ranges, batch: &mut Batch) -> Result<()> {
        let (header, plain) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
        let wrong = header.payload_checksum ^ checksum(&plain);
        let room = self.inner.capabilities().max_chunk as usize;
        let bytes_of = |part: Range| {
            let at = (part.start - chunk.range().start) as usize;
            &plain[at..at + part.len() as usize]
        };
        let mut chunks = Chunks::begin(batch, room, chunk.range().start);
        // These factors belong to these bytes: nobody writes to the arena while its bytes are borrowed.
        let factors = self.sends.is_low_rank().then(|| Arena::of(&plain)).flatten();
        match factors.and_then(|(arena, _)| arena.attachment::<Factors>()) {
            Some(factors) => {
                for span in factors.lock().spans(chunk.range(), room) {
                    chunks.push(span.range, wrong, |out| span.write(bytes_of(span.range), out));
                }
            }
            None => {
                // A piece that cannot be made smaller must fit into a chunk of its own.
                for part in pieces(chunk.range()).flat_map(|piece| parts(piece, room)) {
                    chunks.push(part, wrong, |out| self.sends.write(part, bytes_of(part), raw, out));
                }
            }
        }
        chunks.end(chunk.range().end, wrong);
        self.copied.fetch_add(plain.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Assembles pieces into the chunks of a batch. A piece that does not fit into the current chunk begins the next one.
struct Chunks<'a> {
    batch: &'a mut Batch,
    room: usize,
    /// Where the current chunk begins in the batch.
    start: usize,
    /// Where it begins in the update.
    begin: u64,
}

impl<'a> Chunks<'a> {
    fn begin(batch: &'a mut Batch, room: usize, begin: u64) -> Self {
        let start = batch.bytes.len();
        batch.begin(begin);
        Self { batch, room, start, begin }
    }

    /// Appends the piece that `write` writes.
    fn push(&mut self, part: Range, wrong: u32, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.batch.bytes.len();
        write(&mut self.batch.bytes);
        if self.batch.bytes.len() - self.start > self.room && part.start > self.begin {
            let moved = self.batch.bytes.split_off(before);
            self.batch.end(self.start, part.start - self.begin, wrong);
            (self.start, self.begin) = (self.batch.bytes.len(), part.start);
            self.batch.begin(self.begin);
            self.batch.bytes.extend_from_slice(&moved);
        }
    }

    fn end(self, end: u64, wrong: u32) {
        self.batch.end(self.start, end - self.begin, wrong);
    }
}

/// Cuts a piece into parts that fit `room` bytes even if they cannot be made smaller.
fn parts(piece: Range, room: usize) -> impl Iterator<Item = Range> {
    let fits = (room.saturating_sub(PREFACE + 1).max(64) / 64 * 64) as u64;
    let mut at = piece.start;
    std::iter::from_fn(move || {
        let part = Range::new(at, at.saturating_add(fits).min(piece.end));
        at = part.end;
        (part.start < part.end).then_some(part)
    })
}

impl LinkLayer for CompressedLink {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.inner.capabilities())
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        let (mut report, mut next, raw) = (nothing(), 0, self.raw(update));
        while next < update.chunks().len() {
            let mut batch = Batch { bytes: self.buffers.take(), ..Batch::default() };
            while let Some(chunk) = update.chunks().get(next).filter(|_| batch.bytes.len() < BATCH) {
                self.compress(update, chunk, &raw, &mut batch)?;
                next += 1;
            }
            let bytes = Bytes::from(batch.bytes);
            let smaller = Outgoing::packed(update.id(), bytes.clone(), batch.chunks, Cancel::default());
            let smaller = smaller.detached_like(update);
            add(&mut report, &send_instead(&self.inner, update, &smaller).await?);
            self.buffers.recycle(bytes);
        }
        (report.payload, report.chunks) = (update.payload_bytes(), update.chunks().len() as u64);
        Ok(report)
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.inner.receive(&Reading { link: self, sink }).await
    }

    fn counters(&self) -> Counters {
        let inner = self.inner.counters();
        Counters { copied: inner.copied + self.copied.load(Ordering::Relaxed), ..inner }
    }
}

/// Decodes chunks and passes them to the sink of the layer above.
struct Reading<'a> {
    link: &'a CompressedLink,
    sink: &'a dyn Sink,
}

impl Reading<'_> {
    /// Changes the counters of received bytes, and reports newly received ones to the sink.
    fn report(&self, progress: impl FnOnce(&mut Progress) -> u64) {
        let fresh = progress(&mut self.link.progress.lock().unwrap_or_else(PoisonError::into_inner));
        if fresh > 0 {
            self.sink.progress(fresh);
        }
    }

    fn deliver(&self, chunk: &ChunkHeader, payload: &[u8], damage: Option<WireError>) {
        // A damaged chunk whose pieces cannot be parsed has no known plain length, so it is dropped.
        let Some((length, found)) = holds(chunk.offset, payload) else { return };
        let chunk = ChunkHeader { length, ..*chunk };
        if let Some(mut target) = self.sink.place(&chunk) {
            decode(chunk.offset, payload, target.bytes_mut());
            self.link.copied.fetch_add(u64::from(length), Ordering::Relaxed);
            let computed = checksum(&payload[PREFACE..]);
            let right =
                (computed == found).then_some(()).ok_or(WireError::PayloadChecksum { found, computed });
            self.sink.stored(&chunk, target, damage.map_or(right, Err));
        }
        self.report(|progress| progress.finished(length.into()));
    }
}

impl Sink for Reading<'_> {
    /// Receives chunks into buffers of its own, since the plain chunk has another length.
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        self.sink.begun(chunk);
        // The plain length is not known yet. A piece that did not become smaller has one byte more than its
        // values, so the chunk has at least this many plain bytes.
        let encoded = u64::from(chunk.length).saturating_sub(PREFACE as u64);
        // Spans between matrices have five bytes more, and those at the ends of a chunk may be short.
        let more = if self.link.layer.is_low_rank() { encoded / 8 + 12 } else { encoded / 64 + 2 };
        let plain = encoded.saturating_sub(more);
        self.link.progress.lock().unwrap_or_else(PoisonError::into_inner).begin(plain);
        Some(Target::Scratch(self.link.buffers.sized(chunk.length as usize)))
    }

    fn begun(&self, chunk: &ChunkHeader) {
        self.sink.begun(chunk);
    }

    fn progress(&self, bytes: u64) {
        self.report(|progress| progress.arrived(bytes));
    }

    fn stored(&self, chunk: &ChunkHeader, mut target: Target, outcome: std::result::Result<(), WireError>) {
        self.deliver(chunk, target.bytes_mut(), outcome.err());
        if let Target::Scratch(buffer) = target {
            self.link.buffers.give(buffer);
        }
    }

    /// A chunk with a hole cannot be decoded after the hole, so it is dropped.
    fn holed(&self, _chunk: &ChunkHeader, _target: Target, _holes: &Ranges) -> Option<Target> {
        None
    }
}
