//! Updates sealed end to end: each chunk is a stream of records, which are encrypted and authenticated by themselves.
//!
//! A sealed chunk keeps its job, round, sender, layout and offset. Its payload is
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | number | u64, of the stream on this link and way; nonces follow from it |
//! | 8 | length | u32, bytes of plaintext |
//! | 12 | checksum | u32, CRC-32C of the plaintext, as the sender knew it |
//! | 16 | records | `record` bytes of plaintext in each, the last may have less |
//!
//! little-endian. All of the header, the length and each record's place are authenticated with the records.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_seal::{
    record_size, Context, Grid, Refused, StreamOpener, StreamSealer, Streams, Suite, RECORD_LIMITS,
};
use thalweg_transport::{
    Cancel, Capabilities, ChunkRef, Counters, Error, ErrorKind, Link, Outgoing, Peer, Result, SendReport,
    Sink, Target,
};
use thalweg_wire::{checksum, ChunkHeader, Ranges, WireError};

use crate::nowhere::Nowhere;
use crate::wrap::{add, nothing};
use crate::{Layer, Links, Side};

/// Bytes before the records of a chunk.
const PREFACE: usize = 16;
/// Bytes that are sealed at a time, if a chunk has no more.
const BATCH: usize = 1 << 20;
/// Buffers that a link keeps.
const SPARE: usize = 4;
/// Bytes of payload in a segment of TCP over IPv4 with timestamps, at an MTU of 1500.
const SEGMENT: u32 = 1448;
const HELLO: &[u8] = b"thalweg seal 1 ";
const UP: &[u8] = b"layer up";
const DOWN: &[u8] = b"layer down";

/// Seals the chunks of updates in both directions, from one end of a link to the other. Control messages pass as they
/// are.
///
/// Keys follow from the secret that the ends of an authenticated link share ([`Peer::binding`]); without one the link
/// is refused. Both ends must say the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Seal {
    /// How records are sealed.
    pub cipher: Suite,
    /// Bytes of plaintext in a record; `None` chooses by `loss`.
    pub record: Option<u32>,
    /// The loss of segments that is expected, 0 to 1.
    pub loss: f64,
}

impl Default for Seal {
    fn default() -> Self {
        Self { cipher: Suite::default(), record: None, loss: 0.01 }
    }
}

impl Seal {
    /// Checks that the record size is one and the loss a probability.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] naming what is not.
    pub fn check(&self) -> Result<()> {
        let (least, most) = (16, thalweg_wire::MAX_CHUNK);
        let bad = |what: String| Err(Error::new(ErrorKind::Unsupported, "seal updates", what));
        match self.record {
            Some(bytes) if !(least..=most).contains(&bytes) => {
                bad(format!("a record has {bytes} bytes, and may have {least} to {most}"))
            }
            _ if !(0.0..=1.0).contains(&self.loss) => {
                bad(format!("the loss expected is {}, and must be from 0 to 1", self.loss))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of plaintext in a record.
    pub fn record(&self) -> u32 {
        let overhead = self.cipher.sealed(RECORD_LIMITS.1.into()) - u64::from(RECORD_LIMITS.1);
        self.record.unwrap_or_else(|| record_size(self.loss, SEGMENT, overhead as u32)).max(1)
    }

    /// The longest plaintext that a chunk of `sealed` bytes has room for.
    fn room(&self, sealed: u32) -> u32 {
        let (record, sealed) = (u64::from(self.record()), u64::from(sealed).saturating_sub(PREFACE as u64));
        let stride = self.cipher.sealed(record);
        let (whole, rest) = (sealed / stride * record, sealed % stride);
        // A record of `n` bytes more has `n` bytes more, or jumps to the next block.
        let last = (1..=rest.min(record)).rev().find(|&n| self.cipher.sealed(n) <= rest).unwrap_or(0);
        (whole + last) as u32
    }

    fn describe(&self) -> String {
        format!("{} in records of {} bytes", self.cipher.name(), self.record())
    }
}

impl Layer for Seal {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let preferred = self.room(inner.preferred_chunk);
        Capabilities {
            fan_out: false,
            zero_copy: false,
            max_chunk: self.room(inner.max_chunk),
            preferred_chunk: if preferred < 64 { preferred } else { preferred / 64 * 64 },
            ..inner
        }
    }

    fn links(&self, side: Side) -> Arc<dyn Links> {
        Arc::new(Sealing { layer: self.clone(), side })
    }
}

struct Sealing {
    layer: Seal,
    side: Side,
}

#[async_trait]
impl Links for Sealing {
    /// Of a link without a secret nothing is sealed and nothing opened: [`Links::open`] refuses it.
    fn wrap(&self, inner: Arc<dyn Link>, _number: u64) -> Arc<dyn Link> {
        let secret = inner.peer().binding;
        let ends = secret.map(|secret| {
            let streams = Streams::new(self.layer.cipher, &secret, b"thalweg layer seal");
            let (out, back) = if self.side == Side::Connected { (UP, DOWN) } else { (DOWN, UP) };
            (streams.sealer(out), streams.opener(back))
        });
        let record = self.layer.record();
        let (copied, spare, progress) = Default::default();
        Arc::new(SealedLink { inner, layer: self.layer.clone(), record, ends, copied, spare, progress })
    }

    async fn open(&self, inner: Arc<dyn Link>, number: u64) -> Result<Arc<dyn Link>> {
        if inner.peer().binding.is_none() {
            return Err(no_secret());
        }
        let ours = Hello { cipher: self.layer.cipher, record: self.layer.record() };
        if self.side == Side::Connected {
            inner.send_control(ours.encode()?).await?;
            return Ok(self.wrap(inner, number));
        }
        let theirs = Hello::decode(&inner.receive(&Nowhere).await?)?;
        if theirs != ours {
            let theirs = Seal { cipher: theirs.cipher, record: Some(theirs.record), ..Seal::default() };
            let said =
                format!("the peer seals with {}, this end with {}", theirs.describe(), self.layer.describe());
            return Err(Error::new(ErrorKind::Security, "seal updates", said)
                .mend("give both ends the same cipher, record size and loss"));
        }
        Ok(self.wrap(inner, number))
    }
}

fn no_secret() -> Error {
    Error::new(ErrorKind::Security, "seal updates", "the ends of the link share no secret to make keys from")
        .mend("encrypt the link: security.tls = \"on\", or a pki folder; or leave out layers.seal")
}

/// What the side that connects says first.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hello {
    cipher: Suite,
    record: u32,
}

impl Hello {
    fn encode(&self) -> Result<Bytes> {
        let system = |e: serde_json::Error| Error::new(ErrorKind::System, "seal updates", e.to_string());
        Ok([HELLO, &serde_json::to_vec(self).map_err(system)?].concat().into())
    }

    fn decode(message: &[u8]) -> Result<Self> {
        let none = || Error::new(ErrorKind::Security, "seal updates", "the peer does not seal its updates");
        let json = message.strip_prefix(HELLO).ok_or_else(|| none().mend("give both sides the layer"))?;
        serde_json::from_slice(json)
            .map_err(|e| Error::new(ErrorKind::Security, "seal updates", format!("what the peer says: {e}")))
    }
}

struct SealedLink {
    inner: Arc<dyn Link>,
    layer: Seal,
    record: u32,
    ends: Option<(StreamSealer, StreamOpener)>,
    /// Bytes of plaintext that went through the cipher into another buffer.
    copied: AtomicU64,
    spare: Mutex<Vec<Vec<u8>>>,
    progress: Mutex<Progress>,
}

fn context(chunk: &ChunkHeader) -> Context {
    let ChunkHeader { job, round, sender, layout, offset, length } = *chunk;
    Context { job, round, sender, layout: layout.0, offset, total: length.into() }
}

/// Chunks that are sent together.
struct Batch {
    /// Sealed, one behind the other.
    bytes: Bytes,
    /// Each one's offset in the update, and its length when sealed.
    chunks: Vec<(u64, u32)>,
    /// The place in the update of the chunk behind them.
    next: usize,
}

impl SealedLink {
    fn buffer(&self) -> Vec<u8> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn recycle(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE {
            spare.push(buffer);
        }
    }

    /// Seals a chunk behind those that `out` has; returns its offset and sealed length.
    fn seal(&self, update: &Outgoing, chunk: &ChunkRef, out: &mut Vec<u8>) -> Result<(u64, u32)> {
        let (sealer, _) = self.ends.as_ref().ok_or_else(no_secret)?;
        let (header, plain) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
        let failed = |e: Refused| Error::new(ErrorKind::Security, "send update", e.to_string());
        let stream = sealer.stream(&context(&header.chunk), self.record).map_err(failed)?;
        let start = out.len();
        out.extend_from_slice(&stream.number().to_le_bytes());
        out.extend_from_slice(&header.chunk.length.to_le_bytes());
        out.extend_from_slice(&header.payload_checksum.to_le_bytes());
        stream.seal(&plain, out).map_err(failed)?;
        self.copied.fetch_add(plain.len() as u64, Ordering::Relaxed);
        Ok((header.chunk.offset, (out.len() - start) as u32))
    }

    /// Seals chunks from the `first` on, as many as make a batch.
    fn batch(&self, update: &Outgoing, first: usize) -> Result<Batch> {
        let (mut out, mut chunks, mut next) = (self.buffer(), Vec::new(), first);
        out.clear();
        while let Some(chunk) = update.chunks().get(next).filter(|_| next == first || out.len() < BATCH) {
            chunks.push(self.seal(update, chunk, &mut out)?);
            next += 1;
        }
        Ok(Batch { bytes: out.into(), chunks, next })
    }

    async fn send(&self, update: &Outgoing, sealed: &Outgoing) -> Result<SendReport> {
        let mut send = self.inner.send_update(sealed);
        tokio::select! {
            biased;
            () = update.cancel().cancelled() => sealed.cancel().cancel(),
            sent = &mut send => return sent,
        }
        send.await
    }
}

#[async_trait]
impl Link for SealedLink {
    fn peer(&self) -> &Peer {
        self.inner.peer()
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.inner.capabilities())
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        self.inner.send_control(message).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        let (mut report, mut next) = (nothing(), 0);
        while next < update.chunks().len() {
            let Batch { bytes, chunks, next: after } = self.batch(update, next)?;
            let sealed = Outgoing::packed(update.id(), bytes.clone(), chunks, Cancel::default());
            add(&mut report, &self.send(update, &sealed).await?);
            sealed.cancel().cancel(); // ends its loan of the buffer
            if let Ok(buffer) = bytes.try_into_mut() {
                self.recycle(buffer.into());
            }
            next = after;
        }
        report.payload = update.payload_bytes();
        Ok(report)
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.inner.receive(&Opening { link: self, sink }).await
    }

    fn held(&self) -> Option<String> {
        self.inner.held()
    }

    fn counters(&self) -> Counters {
        let inner = self.inner.counters();
        Counters { copied: inner.copied + self.copied.load(Ordering::Relaxed), ..inner }
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Gives what is opened to the sink behind it.
struct Opening<'a> {
    link: &'a SealedLink,
    sink: &'a dyn Sink,
}

/// How much of the plaintext the sink has been told of: all of it once a chunk is there, and meanwhile no more.
#[derive(Default)]
struct Progress {
    begun: u64,
    done: u64,
    told: u64,
}

impl Progress {
    fn arrived(&mut self, bytes: u64) -> u64 {
        let fresh = bytes.min(self.begun.saturating_sub(self.told));
        self.told += fresh;
        fresh
    }

    fn finished(&mut self, bytes: u64) -> u64 {
        self.done += bytes;
        let fresh = self.done.saturating_sub(self.told);
        self.told += fresh;
        fresh
    }
}

impl Opening<'_> {
    fn tell(&self, progress: impl FnOnce(&mut Progress) -> u64) {
        let fresh = progress(&mut self.link.progress.lock().unwrap_or_else(PoisonError::into_inner));
        if fresh > 0 {
            self.sink.progress(fresh);
        }
    }

    /// The header of the plaintext, the stream's number and the checksum; `None` if this is no sealed chunk.
    fn read(&self, chunk: &ChunkHeader, sealed: &[u8]) -> Option<(ChunkHeader, u64, u32)> {
        let (number, rest) = sealed.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (sum, records) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        let grid = Grid::new(self.link.layer.cipher, length.into(), self.link.record).ok()?;
        let plain = ChunkHeader { length, ..*chunk };
        let fits = grid.sealed_bytes() == records.len() as u64;
        fits.then_some((plain, u64::from_le_bytes(*number), u32::from_le_bytes(*sum)))
    }

    /// Opens a chunk into its place, and says so to the sink. What came before, or too late, is dropped.
    fn open(&self, chunk: &ChunkHeader, number: u64, sum: u32, records: &mut [u8]) {
        let Some((_, opener)) = &self.link.ends else { return };
        let stream = match opener.stream(number, &context(chunk), self.link.record) {
            Err(Refused::Replayed | Refused::Old) => return,
            stream => stream,
        };
        let Some(mut target) = self.sink.place(chunk) else { return };
        let authentic = stream.and_then(|stream| {
            let opened = stream.open(records, &Ranges::new(), target.bytes_mut())?;
            opened.is_whole().then_some(()).ok_or(Refused::Forged)?;
            self.link.copied.fetch_add(chunk.length.into(), Ordering::Relaxed);
            if self.link.layer.cipher.is_authenticated() {
                opener.opened(&stream)?;
            }
            Ok(())
        });
        let outcome = authentic.map_err(|refused| WireError::Sealed(refused.to_string())).and_then(|()| {
            let computed = checksum(target.bytes());
            (computed == sum).then_some(()).ok_or(WireError::PayloadChecksum { found: sum, computed })
        });
        self.sink.stored(chunk, target, outcome);
    }

    /// A chunk of which all bytes have come, as they were sent or not.
    fn deliver(&self, chunk: &ChunkHeader, sealed: &mut [u8], damage: Option<WireError>) {
        let Some((plain, number, sum)) = self.read(chunk, sealed) else { return };
        match damage {
            None => self.open(&plain, number, sum, &mut sealed[PREFACE..]),
            Some(damage) => {
                if let Some(target) = self.sink.place(&plain) {
                    self.sink.stored(&plain, target, Err(damage));
                }
            }
        }
        self.tell(|progress| progress.finished(plain.length.into()));
    }
}

impl Sink for Opening<'_> {
    /// A buffer of its own for all that comes. The sink is asked for a place when the records are there: it would not
    /// fit the sealed ones.
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        // Padding hides how much of the last block is plaintext.
        let padding = if self.link.layer.cipher.is_authenticated() { 0 } else { 15 };
        let plain = self.link.layer.room(chunk.length).saturating_sub(padding);
        self.link.progress.lock().unwrap_or_else(PoisonError::into_inner).begun += u64::from(plain);
        let mut buffer = self.link.buffer();
        buffer.resize(chunk.length as usize, 0);
        Some(Target::Scratch(buffer))
    }

    fn progress(&self, bytes: u64) {
        self.tell(|progress| progress.arrived(bytes));
    }

    fn stored(&self, chunk: &ChunkHeader, mut target: Target, outcome: std::result::Result<(), WireError>) {
        self.deliver(chunk, target.bytes_mut(), outcome.err());
        if let Target::Scratch(buffer) = target {
            self.link.recycle(buffer);
        }
    }
}
