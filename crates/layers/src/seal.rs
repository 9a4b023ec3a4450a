//! Seals updates from end to end. Each chunk is a stream of records, and each record is encrypted and
//! authenticated by itself.
//!
//! A sealed chunk keeps its job, round, sender, layout and offset. Its payload is
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | number | u64, of the stream on this link in this direction; nonces follow from it |
//! | 8 | length | u32, bytes of plaintext |
//! | 12 | checksum | u32, CRC-32C of the plaintext as its sender stated it, hidden by a [pad] |
//! | 16 | records | each has `record` bytes of plaintext, the last may have fewer |
//!
//! [pad]: thalweg_seal::Stream::pad
//!
//! All numbers are little-endian. The records authenticate the whole header, the length, and each record's
//! place. So a transport may send the bytes from 16 on in the clear, and may lose parts of them. Then only
//! the records that a hole touches are lost ([`thalweg_transport::Sealed`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_seal::{
    record_size, Context, Refused, StreamOpener, StreamSealer, Streams, Suite, RECORD_LIMITS,
};
use thalweg_transport::{
    Cancel, Capabilities, ChunkRef, Counters, Error, ErrorKind, Link, LinkLayer, NoChunks, Options, Outgoing,
    Result, Sealed, SendReport, Sink,
};
use thalweg_wire::ChunkHeader;

mod opening;
use opening::Opening;

use crate::buffers::Buffers;
use crate::progress::Progress;
use crate::wrap::{add, nothing, send_instead};
use crate::{Layer, Links, Side};

/// Bytes before the records of a chunk.
const PREFACE: usize = 16;
/// Chunks are sealed in batches: at least one chunk, and more until a batch has this many bytes. Batches are
/// larger on links where an update ends with an ACK, which arrives a round trip after its last byte was sent.
const BATCH: usize = 1 << 20;
const ACKNOWLEDGED_BATCH: usize = 16 << 20;
/// Bytes of payload in a TCP segment over IPv4 with timestamps, at an MTU of 1500.
const SEGMENT: u32 = 1448;
const HELLO: &[u8] = b"thalweg seal 1 ";
const UP: &[u8] = b"layer up";
const DOWN: &[u8] = b"layer down";

/// Seals the chunks of updates in both directions, from one end of a link to the other. Control messages do
/// not change.
///
/// Keys are derived from the secret that the ends of an authenticated link share
/// ([`thalweg_transport::Peer::binding`]). A link without such a secret is refused. Both ends must have the
/// same settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Seal {
    /// The cipher of records.
    pub cipher: Suite,
    /// Bytes of plaintext in a record. `None` chooses them by `loss`.
    pub record: Option<u32>,
    /// The expected loss rate of segments, 0 to 1.
    pub loss: f64,
}

impl Default for Seal {
    fn default() -> Self {
        Self { cipher: Suite::default(), record: None, loss: 0.01 }
    }
}

impl Seal {
    /// Checks the cipher, the record size and the loss rate.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], with what is wrong.
    pub fn check(&self) -> Result<()> {
        let (least, most) = (16, thalweg_wire::MAX_CHUNK);
        let bad = |what: String| Err(Error::new(ErrorKind::Unsupported, "seal updates", what));
        if !self.cipher.is_available() {
            return Err(Error::no_baselines("seal updates", "layers.seal.cipher = \"aes-cbc\""));
        }
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

    /// The longest plaintext that fits into a sealed chunk of `sealed` bytes.
    fn room(&self, sealed: u32) -> u32 {
        let (record, sealed) = (u64::from(self.record()), u64::from(sealed).saturating_sub(PREFACE as u64));
        let stride = self.cipher.sealed(record);
        let (whole, rest) = (sealed / stride * record, sealed % stride);
        // Try each length: one plain byte more makes a record one byte longer, or with CBC sometimes a block.
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

    /// If the cipher authenticates, the transport may send chunks in the clear, and lose parts of them.
    fn options(&self, outer: &Options) -> Options {
        let record = self.record();
        let stride = u32::try_from(self.cipher.sealed(record.into())).unwrap_or(u32::MAX);
        let sealed = Sealed { head: PREFACE as u32, record, stride };
        Options { sealed: self.cipher.is_authenticated().then_some(sealed), ..outer.clone() }
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
    /// A link without a secret seals and opens nothing. [`Links::open`] refuses it.
    fn wrap(&self, inner: Arc<dyn Link>, _number: u64) -> Arc<dyn Link> {
        let secret = inner.peer().binding;
        let ends = secret.map(|secret| {
            let streams = Streams::new(self.layer.cipher, &secret, b"thalweg layer seal");
            let (out, back) = if self.side == Side::Connected { (UP, DOWN) } else { (DOWN, UP) };
            (streams.sealer(out), streams.opener(back))
        });
        let record = self.layer.record();
        let (copied, lost, buffers, progress) = Default::default();
        Arc::new(SealedLink {
            inner,
            layer: self.layer.clone(),
            record,
            ends,
            copied,
            lost,
            buffers,
            progress,
        })
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
        let theirs = Hello::decode(&inner.receive(&NoChunks).await?)?;
        if theirs != ours {
            let theirs = Seal { cipher: theirs.cipher, record: Some(theirs.record), ..Seal::default() };
            let reason =
                format!("the peer seals with {}, this end with {}", theirs.describe(), self.layer.describe());
            return Err(Error::new(ErrorKind::Security, "seal updates", reason)
                .hint("give both ends the same cipher, record size and loss"));
        }
        Ok(self.wrap(inner, number))
    }
}

fn no_secret() -> Error {
    Error::new(ErrorKind::Security, "seal updates", "the ends of the link share no secret to make keys from")
        .hint("encrypt the link: security.tls = \"on\", or a pki folder; or leave out layers.seal")
}

/// The first message of the side that connects.
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
        let json = message.strip_prefix(HELLO).ok_or_else(|| none().hint("give both sides the layer"))?;
        serde_json::from_slice(json)
            .map_err(|e| Error::new(ErrorKind::Security, "seal updates", format!("what the peer says: {e}")))
    }
}

struct SealedLink {
    inner: Arc<dyn Link>,
    layer: Seal,
    record: u32,
    ends: Option<(StreamSealer, StreamOpener)>,
    /// Bytes of plaintext that were sealed or opened into another buffer.
    copied: AtomicU64,
    /// Number of records that were lost or refused.
    lost: AtomicU64,
    buffers: Buffers,
    progress: Mutex<Progress>,
}

fn context(chunk: &ChunkHeader) -> Context {
    let ChunkHeader { job, round, sender, layout, offset, length } = *chunk;
    Context { job, round, sender, layout: layout.0, offset, total: length.into() }
}

/// Sealed chunks that are sent together.
struct Batch {
    /// The sealed chunks, one after the other.
    bytes: Bytes,
    /// The offset of each chunk in the update, and its sealed length.
    chunks: Vec<(u64, u32)>,
    /// Index in the update of the first chunk after these.
    next: usize,
}

impl SealedLink {
    /// Bytes after which a batch is sent.
    fn most(&self) -> usize {
        let inner = self.inner.capabilities();
        if inner.reliable || inner.ordered {
            BATCH
        } else {
            ACKNOWLEDGED_BATCH
        }
    }

    /// Appends a sealed chunk to `out`. Returns its offset and sealed length.
    fn seal(&self, update: &Outgoing, chunk: &ChunkRef, out: &mut Vec<u8>) -> Result<(u64, u32)> {
        let (sealer, _) = self.ends.as_ref().ok_or_else(no_secret)?;
        let (header, plain) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
        let failed = |e: Refused| Error::new(ErrorKind::Security, "send update", e.to_string());
        let stream = sealer.stream(&context(&header.chunk), self.record).map_err(failed)?;
        let start = out.len();
        out.extend_from_slice(&stream.number().to_le_bytes());
        out.extend_from_slice(&header.chunk.length.to_le_bytes());
        let hidden = header.payload_checksum ^ stream.pad().map_err(failed)?;
        out.extend_from_slice(&hidden.to_le_bytes());
        stream.seal(&plain, out).map_err(failed)?;
        self.copied.fetch_add(plain.len() as u64, Ordering::Relaxed);
        Ok((header.chunk.offset, (out.len() - start) as u32))
    }

    /// Seals a batch of chunks, from chunk `first` on.
    fn batch(&self, update: &Outgoing, first: usize) -> Result<Batch> {
        let (mut out, mut chunks, mut next, most) = (self.buffers.take(), Vec::new(), first, self.most());
        while let Some(chunk) = update.chunks().get(next).filter(|_| next == first || out.len() < most) {
            chunks.push(self.seal(update, chunk, &mut out)?);
            next += 1;
        }
        Ok(Batch { bytes: out.into(), chunks, next })
    }
}

/// A sealed chunk begins where its plaintext begins, and is longer. So a range that overlaps the plaintext
/// overlaps the sealed chunk too, and [`Link::tolerate`] needs no change.
impl LinkLayer for SealedLink {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.inner.capabilities())
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        let (mut report, mut next) = (nothing(), 0);
        while next < update.chunks().len() {
            let Batch { bytes, chunks, next: after } = self.batch(update, next)?;
            let sealed =
                Outgoing::packed(update.id(), bytes.clone(), chunks, Cancel::default()).detached_like(update);
            add(&mut report, &send_instead(&self.inner, update, &sealed).await?);
            self.buffers.recycle(bytes);
            next = after;
        }
        report.payload = update.payload_bytes();
        Ok(report)
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.inner.receive(&Opening { link: self, sink }).await
    }

    fn counters(&self) -> Counters {
        let inner = self.inner.counters();
        let (copied, lost) = (self.copied.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed));
        Counters { copied: inner.copied + copied, records_lost: Some(lost), ..inner }
    }
}
