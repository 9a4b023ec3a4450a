//! The sending side of a link. Chunks and control messages wait for credit, and a control message goes
//! between chunks.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use thalweg_transport::{ChunkRef, Error, ErrorKind, Outgoing, Result, SendReport};
use thalweg_wire::{checksum, MAX_CONTROL};

use crate::envelope::{encode, Kind};
use crate::intake::{chunk_cost, Fragment};
use crate::shared::{lock, LinkState};
use crate::{Care, Carrier, Mailbox, Message, HEAD_BYTES};

type Publishing<'a> = Pin<Box<dyn Future<Output = Result<u64>> + Send + 'a>>;

const CONTROL: &str = "send control";
pub(crate) const UPDATE: &str = "send update";
/// Maximum number of bytes of a control message in one part. It is the size of a large chunk, so a part holds
/// up other messages no longer than that.
const PART: usize = 256 << 10;

/// Sends one control message, in several parts if it is long.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for a message that is too long; otherwise the reason why the link ended.
pub(crate) async fn control(shared: &LinkState, message: Bytes) -> Result<()> {
    if message.len() > MAX_CONTROL as usize {
        let context = format!("{} bytes; a control message has at most {MAX_CONTROL}", message.len());
        return Err(Error::new(ErrorKind::Unsupported, CONTROL, context).hint("send fewer metrics"));
    }
    tokio::select! {
        biased;
        () = shared.ended() => Err(shared.closed(CONTROL)),
        sent = parts(shared, &message) => sent,
    }
}

async fn parts(shared: &LinkState, message: &Bytes) -> Result<()> {
    let _one_message = shared.one_message.lock().await;
    let most = (shared.nature.max_message - HEAD_BYTES).min(PART);
    let (total, sum) = (message.len() as u32, checksum(message));
    let mut begun = BreakOnDrop(None);
    let mut offset = 0;
    loop {
        let body = message.slice(offset..message.len().min(offset + most));
        let credit = shared.control.take(Fragment::cost(body.len())).await;
        let mut numbers = shared.numbers.lock().await;
        shared.check(CONTROL)?;
        numbers.control += 1;
        begun.0 = Some(shared);
        let (number, before, offset_) = (numbers.control, shared.before(&numbers), offset as u32);
        let kind = Kind::Control { number, before, total, offset: offset_, checksum: sum };
        credit.keep();
        shared.publish(&kind, &body).await.map_err(|_| shared.closed(CONTROL))?;
        drop(numbers);
        offset += body.len();
        if offset == message.len() {
            begun.0 = None;
            return Ok(());
        }
    }
}

/// Ends the link if a control message is cancelled between its parts. The other end would wait for the rest.
struct BreakOnDrop<'a>(Option<&'a LinkState>);

impl Drop for BreakOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take().filter(|shared| !shared.has_ended()) {
            shared.refuse("a control message was given up halfway");
        }
    }
}

/// Returns an error if a chunk is larger than the carrier can carry.
pub(crate) fn check_chunks(shared: &LinkState, update: &Outgoing) -> Result<()> {
    let most = shared.ends.capabilities.max_chunk;
    match update.chunks().iter().find(|c| c.range().len() > most.into()) {
        None => Ok(()),
        Some(chunk) => {
            let context = format!("a chunk of {} bytes; one has at most {most}", chunk.range().len());
            Err(Error::new(ErrorKind::Unsupported, UPDATE, context).hint("set a smaller transport.chunk"))
        }
    }
}

/// Sends the chunks of an update. Returns once the carrier has the last one confirmed (see
/// [`Carrier::flush`]).
pub(crate) async fn update(shared: &LinkState, update: &Outgoing) -> Result<SendReport> {
    check_chunks(shared, update)?;
    shared.check(UPDATE)?;
    tokio::select! {
        biased;
        // Cancelling here ends no loan too early: the carrier has its own copy of the chunks in flight.
        () = update.cancel().cancelled() => Err(SendReport::cancelled()),
        () = shared.ended() => Err(shared.closed(UPDATE)),
        report = chunks(shared, update) => report,
    }
}

async fn chunks(shared: &LinkState, update: &Outgoing) -> Result<SendReport> {
    let (started, mut wire) = (Instant::now(), 0);
    for (at, chunk) in update.chunks().iter().enumerate() {
        wire += send_chunk(shared, update, chunk, at == 0).await?;
    }
    if !update.chunks().is_empty() {
        shared.ends.carrier.flush().await.map_err(|_| shared.closed(UPDATE))?;
    }
    let (chunks, payload) = (update.chunks().len() as u64, update.payload_bytes());
    Ok(SendReport { chunks, payload, wire, started, ended: Instant::now() })
}

/// Sends one chunk. If it is the `first` of an update, its header goes ahead alone: a message is delivered
/// only when it is complete, but the receiver should know when the update begins. Cancelling while the chunk
/// is published leaves a gap in the numbers, which the other end accepts.
async fn send_chunk(shared: &LinkState, update: &Outgoing, chunk: &ChunkRef, first: bool) -> Result<u64> {
    let credit = shared.bulk.take(chunk_cost(chunk.range().len())).await;
    let mut numbers = shared.numbers.lock().await;
    shared.check(UPDATE)?;
    let (header, payload) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
    let mut wire = 0;
    if first {
        wire = shared.publish(&Kind::Begins { header }, &[]).await.map_err(|_| shared.closed(UPDATE))?;
    }
    numbers.bulk += 1;
    let (number, previous) = (numbers.bulk, numbers.confirmed);
    credit.keep();
    shared.position.fetch_add(chunk_cost(payload.len() as u64), Ordering::AcqRel);
    let held =
        lock(&shared.ends.kept).number(&header).filter(|group| lock(&shared.reported_chunks).has(*group));
    wire += if let Some(group) = held {
        let kind = Kind::KeptChunk { number, previous, group, header };
        shared.publish(&kind, &[]).await.map_err(|_| shared.closed(UPDATE))?
    } else {
        let head = encode(shared.ends.tag, &Kind::Chunk { number, previous, header });
        let (copied, publishing) =
            publish_chunk(&*shared.ends.carrier, shared.ends.to, &head, chunk, &payload);
        shared.copied.fetch_add(copied, Ordering::Relaxed);
        let wire =
            publishing.await.inspect_err(|e| shared.end(&e.reason())).map_err(|_| shared.closed(UPDATE))?;
        shared.sent.fetch_add(wire, Ordering::Relaxed);
        wire
    };
    numbers.confirmed = number;
    Ok(wire)
}

/// Publishes a chunk. If the carrier keeps a reference to the body, all sends of the chunk share one copy.
/// Returns the number of bytes copied too.
pub(crate) fn publish_chunk<'a>(
    carrier: &'a dyn Carrier,
    to: Mailbox,
    head: &'a [u8],
    chunk: &ChunkRef,
    payload: &'a [u8],
) -> (u64, Publishing<'a>) {
    let length = payload.len() as u64;
    let copied = carrier.nature().copies_out * length;
    if carrier.shares() {
        let (copy, made) = chunk.copy(payload);
        (copied + u64::from(made) * length, carrier.publish_shared(to, head, copy))
    } else {
        (copied, carrier.publish(to, Message { head, body: payload, care: Care::Bulk }))
    }
}
