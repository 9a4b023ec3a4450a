//! Tests about chunks: each chunk names its place, and arrives there unchanged.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_transport::{Cancel, Outgoing, UpdateId};
use thalweg_wire::{ChunkHeader, LayoutHash, Range, Ranges, WireError};

use crate::pair::{say, send_in_task, settle, transfer};
use crate::relay::Relay;
use crate::{outgoing, pattern, shared_pattern, skip, update_id, Factory, Pump, Recorder};

const SOME: u64 = 300_007; // not a multiple of any chunk size

/// The transport receives each chunk into the place that the receiver's `Sink` returns, in both directions.
pub async fn every_chunk_lands_at_its_place(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(SOME, 1);
    let update = outgoing(&source, update_id(1), factory.chunk(10_000));
    transfer(&pair.client, &pair.server, &update, &source).await;
    transfer(&pair.server, &pair.client, &update, &source).await;
}

/// Each chunk says where it belongs, so chunks may be sent in any order.
pub async fn chunks_come_in_any_order(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(SOME, 2);
    let update = outgoing(&source, update_id(1), factory.chunk(5_000));
    let count = update.chunks().len();
    // A step with which each chunk is visited once.
    let step = [7, 11, 13].into_iter().find(|&prime| !count.is_multiple_of(prime)).unwrap();
    let shuffled = (0..count).map(|i| update.chunks()[i * step % count].clone());
    let (_, recorder) = transfer(&pair.client, &pair.server, &update.with_chunks(shuffled), &source).await;
    if pair.client.capabilities().ordered && factory.capabilities().reliable {
        let arrived: Vec<u64> = recorder.seen().placed.iter().map(|chunk| chunk.offset).collect();
        let sent = (0..count).map(|i| update.chunks()[i * step % count].range().start);
        assert!(sent.eq(arrived), "an ordered link changed the order");
    }
}

/// Only bytes of the `wanted` ranges are sent and written.
pub async fn only_the_wanted_ranges_are_sent(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(SOME, 3);
    let wanted: Ranges =
        [Range::new(1, 2), Range::new(9_999, 70_001), Range::new(SOME - 1, SOME)].into_iter().collect();
    let bytes = source.lend(source.range()).unwrap();
    let chunk = factory.chunk(10_000);
    let update = Outgoing::new(update_id(1), bytes, &wanted, chunk, Cancel::default());
    let (report, recorder) = transfer(&pair.client, &pair.server, &update, &source).await;
    assert_eq!(report.payload, wanted.bytes());
    let arrived = recorder.seen().ranges.clone();
    assert!(arrived.iter().all(|range| wanted.covers(range)));
    assert!(arrived == wanted || !factory.capabilities().reliable);
}

/// A chunk has from one byte to `max_chunk` bytes.
pub async fn chunks_have_any_size(factory: &Factory) {
    let pair = factory.pair().await;
    let most = factory.capabilities().max_chunk;
    for (chunk, bytes) in [(1, 300), (7, 1_000), (4_096, 100_000), (most, 2 * u64::from(most) + 1)] {
        let source = pattern(bytes, u64::from(chunk));
        let update = outgoing(&source, update_id(1), factory.chunk(chunk));
        let (report, recorder) = transfer(&pair.client, &pair.server, &update, &source).await;
        assert_eq!(report.chunks, update.chunks().len() as u64);
        let seen = recorder.seen();
        assert!(seen.placed.iter().all(|header| header.length <= chunk));
    }
}

/// A transport sends the bytes of a private arena, of a shared arena, and of a buffer that belongs to no
/// arena.
pub async fn bytes_are_sent_whether_an_arena_lends_them_or_not(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(SOME, 12);
    let lent = outgoing(&source, update_id(1), factory.chunk(10_000));
    assert_eq!(lent.arena().unwrap().as_ptr(), source.as_ptr());
    let first = lent.frame(&lent.chunks()[1]).unwrap().1;
    assert_eq!(Arena::of(&first).unwrap().1, lent.chunks()[1].range());
    drop(first);
    transfer(&pair.client, &pair.server, &lent, &source).await;
    let bytes = Bytes::copy_from_slice(&source.lend(source.range()).unwrap());
    let (wanted, chunk) = (Ranges::full(SOME), factory.chunk(10_000));
    let other = Outgoing::new(update_id(1), bytes, &wanted, chunk, Cancel::default());
    assert!(other.arena().is_none());
    transfer(&pair.client, &pair.server, &other, &source).await;
    let source = shared_pattern(SOME, 13);
    for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
        transfer(from, to, &outgoing(&source, update_id(1), factory.chunk(10_000)), &source).await;
    }
}

/// An update without chunks is sent at once, even if the peer does not receive.
pub async fn an_update_without_chunks_is_sent(factory: &Factory) {
    let pair = factory.pair().await;
    let update = Outgoing::new(update_id(1), Bytes::new(), &Ranges::new(), 1, Cancel::default());
    let report = pair.client.send_update(&update).await.unwrap();
    assert_eq!((report.chunks, report.payload, report.wire), (0, 0, 0));
    say(&pair.client, &pair.server, "after nothing").await;
}

/// All bits of a chunk's job, round, sender, layout and offset arrive.
pub async fn the_header_arrives_unchanged(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(1_000, 4);
    let (job, round, sender, layout) = (u64::MAX - 1, u32::MAX, u32::MAX - 2, LayoutHash(u64::MAX - 3));
    let id = UpdateId { job, round, sender, layout };
    let update = outgoing(&source, id, 100);
    let (_, recorder) = transfer(&pair.client, &pair.server, &update, &source).await;
    let sent: Vec<ChunkHeader> = update.chunks().iter().map(|c| update.frame(c).unwrap().0.chunk).collect();
    let seen = recorder.seen();
    assert!(seen.placed.iter().all(|header| sent.contains(header)));
    let stored: Vec<ChunkHeader> = seen.stored.iter().map(|(chunk, _)| *chunk).collect();
    assert_eq!(stored, seen.placed);
}

/// `Sink::stored`: `outcome` reports a wrong checksum, and the link stays usable.
pub async fn a_wrong_checksum_is_reported_and_the_link_goes_on(factory: &Factory) {
    let pair = factory.pair().await;
    let (right, other) = (pattern(5_000, 5), pattern(5_000, 6));
    let update = outgoing(&right, update_id(1), 1_000);
    update.chunks().iter().for_each(|chunk| drop(update.frame(chunk))); // fixes the checksums
    let damaged = outgoing(&other, update_id(1), 1_000).with_chunks(update.chunks().to_vec());
    let recorder = Arc::new(Recorder::new(5_000));
    let mut pump = Pump::start(&pair.server, &recorder);
    pair.client.send_update(&damaged).await.unwrap();
    if factory.capabilities().reliable {
        recorder.until(|seen| seen.stored.len() == 5).await;
    }
    pair.client.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), "still here");
    let seen = recorder.seen();
    let wrong = |outcome: &Result<(), WireError>| matches!(outcome, Err(WireError::PayloadChecksum { .. }));
    assert!(seen.stored.iter().all(|(_, outcome)| wrong(outcome)), "{:?}", seen.stored);
}

/// `Sink::place`: a chunk for which it returns `None` is not stored.
pub async fn a_chunk_nobody_wants_is_dropped(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(100_000, 7);
    let recorder = Arc::new(Recorder::new(100_000).only(|chunk| chunk.offset >= 50_000));
    let mut pump = Pump::start(&pair.server, &recorder);
    let update = outgoing(&source, update_id(1), 1_000);
    pair.client.send_update(&update).await.unwrap();
    settle(&pair.client, &mut pump, &recorder, 50_000).await;
    if factory.capabilities().reliable {
        recorder.until(|seen| seen.refused >= 50).await;
    }
    recorder.check(&source);
    let seen = recorder.seen();
    assert!(seen.stored.iter().all(|(chunk, _)| chunk.offset >= 50_000));
    assert!(seen.refused == 50 || !factory.capabilities().reliable, "{} refused", seen.refused);
}

/// `Target::Scratch`: the sink may give a buffer instead of a place in an arena.
pub async fn a_scratch_buffer_is_a_place(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(SOME, 8);
    let recorder = Arc::new(Recorder::new(SOME).scratch());
    let mut pump = Pump::start(&pair.server, &recorder);
    pair.client.send_update(&outgoing(&source, update_id(1), factory.chunk(10_000))).await.unwrap();
    settle(&pair.client, &mut pump, &recorder, SOME).await;
    recorder.check(&source);
}

/// `Sink::progress`: the reported bytes add up to the whole payload, including the chunks that the sink does
/// not want.
pub async fn progress_sums_to_the_bytes(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(SOME, 9);
    let recorder = Arc::new(Recorder::new(SOME).only(|chunk| chunk.offset % 3 != 0));
    let mut pump = Pump::start(&pair.server, &recorder);
    pair.client.send_update(&outgoing(&source, update_id(1), factory.chunk(1_000))).await.unwrap();
    if factory.capabilities().reliable {
        recorder.until(|seen| seen.progress >= SOME).await;
    }
    pair.client.send_control(Bytes::from_static(b"end")).await.unwrap();
    pump.next().await.unwrap();
    let seen = recorder.seen();
    if factory.capabilities().reliable && pair.client.capabilities().ordered {
        assert_eq!(seen.progress, SOME);
    } else {
        assert!(seen.progress >= seen.ranges.bytes());
    }
}

/// A layer may send a chunk twice. The transport passes it on twice.
pub async fn a_chunk_sent_twice_comes_twice(factory: &Factory) {
    if !factory.capabilities().reliable {
        return skip("chunks may be lost");
    }
    let pair = factory.pair().await;
    let source: Arena = pattern(3_000, 10);
    let update = outgoing(&source, update_id(1), 1_000);
    let twice = update.with_chunks(update.chunks().iter().chain(update.chunks()).cloned());
    let recorder = Arc::new(Recorder::new(3_000));
    let _pump = Pump::start(&pair.server, &recorder);
    pair.client.send_update(&twice).await.unwrap();
    recorder.until(|seen| seen.stored.len() == 3 && seen.refused >= 3).await;
    recorder.check(&source);
}

/// Bytes of a chunk of which the relay first lets only [`FIRST`] pass. Both are larger than a TLS record, and
/// far apart.
const LARGE: u32 = 1 << 20;
const FIRST: u64 = 32 << 10;

/// `Sink::begun` or `Sink::place` is called when the first bytes of an update arrive, while a relay still
/// holds back the others.
pub async fn an_update_begins_with_its_first_bytes(factory: &Factory) {
    if !factory.relayed || !factory.capabilities().remote || !factory.address.is_local() {
        return skip("no relay can be between these ends");
    }
    if factory.capabilities().max_chunk < LARGE {
        return skip("chunks come whole in one datagram, or a few");
    }
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let relay = Relay::before(&listener.address()).await;
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let connect = async {
        factory.transport.connect(&relay.address(&listener.address()), &factory.connect).await.unwrap()
    };
    let (client, server) = tokio::join!(connect, accept);
    let source = pattern(4 * u64::from(LARGE), 12);
    for (from, to, gate) in [(&client, &server, &relay.up), (&server, &client, &relay.down)] {
        say(from, to, "it works").await;
        let recorder = Arc::new(Recorder::new(source.len()));
        let mut pump = Pump::start(to, &recorder);
        gate.allow(FIRST);
        let update = outgoing(&source, update_id(1), LARGE);
        let sending = send_in_task(from, update.clone());
        recorder.until(|seen| seen.begun > 0 || !seen.placed.is_empty()).await;
        assert!(recorder.seen().stored.is_empty(), "a whole chunk has passed");
        gate.release();
        sending.await.unwrap().unwrap();
        settle(from, &mut pump, &recorder, source.len()).await;
        pump.stop(from).await;
        recorder.check(&source);
    }
}

/// `SendReport`: its counts and times are those of the send.
pub async fn the_report_says_what_was_sent(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(SOME, 11);
    let update = outgoing(&source, update_id(1), factory.chunk(10_000));
    let before = std::time::Instant::now();
    let (report, _) = transfer(&pair.client, &pair.server, &update, &source).await;
    assert_eq!((report.chunks, report.payload), (update.chunks().len() as u64, SOME));
    assert!(report.wire >= report.payload, "{report:?}");
    assert!(before <= report.started && report.started <= report.ended, "{report:?}");
    assert!(report.ended <= std::time::Instant::now(), "{report:?}");
}
