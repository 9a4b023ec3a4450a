//! An update is one extent: how many writes it takes, in which order, and what is sent again after a break.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use thalweg_arena::Arena;
use thalweg_conformance::{outgoing, pattern, update_id, Pump};
use thalweg_rdma_proto::count;
use thalweg_transport::{Cancel, Outgoing};
use thalweg_verbs::pretend::{Behaviour, Written};
use thalweg_wire::{Range, Ranges};

mod common;
use common::{pair_with, recorder};

const MIB: u64 = 1 << 20;
const CHUNK: u32 = 256 << 10;
/// Bytes of a commit record, which is FedRDMA's header here.
const RECORD: u64 = 64;
/// Writes of the handshake: the first packet of each end.
const PROBES: usize = 2;

/// Sends an update to a sink that gives the places beforehand. Returns the writes, and checks what arrives.
async fn written(own: &str, source: &Arena, update: &Outgoing) -> Vec<Written> {
    let (pair, fabric) = pair_with(own, Behaviour::default()).await;
    let recorder = recorder(source.len());
    let _pump = Pump::start(&pair.server, &recorder);
    let sent = pair.client.send_update(update).await.unwrap();
    recorder.check(source);
    assert_eq!(recorder.seen().ranges.bytes(), update.payload_bytes());
    assert_eq!(recorder.seen().stored.len(), update.chunks().len(), "the sink gets chunks as ever");
    assert!(recorder.seen().stored.iter().all(|(_, outcome)| outcome.is_ok()));
    let writes = fabric.writes().split_off(PROBES);
    assert_eq!(sent.wire, writes.iter().map(|write| write.bytes).sum::<u64>());
    writes
}

/// Table 3: updates of LoRA ranks from 4 to 128 and the paper's numbers of chunks. Where the paper's header has a
/// chunk of its own, the commit record takes its place; with one piece the record is one write more.
#[tokio::test]
async fn an_update_takes_as_many_writes_as_the_paper_counts() {
    for (tenths, chunks, writes) in
        [(11, 1, 2), (23, 2, 3), (45, 4, 4), (90, 5, 5), (180, 7, 7), (360, 12, 12)]
    {
        let bytes = tenths * MIB / 10;
        let source = pattern(bytes, 1);
        let took =
            written(r#"{"mode": "fedrdma-e"}"#, &source, &outgoing(&source, update_id(1), CHUNK)).await;
        assert_eq!((count(bytes, 4 * MIB, Some(4096)), took.len()), (chunks, writes), "{bytes} bytes");
        let headers = took.iter().filter(|write| write.note).count();
        assert_eq!((headers, took[writes - 1].bytes), (1, RECORD), "one header, and it is last");
    }
}

/// Sections 3.2 and 4.3: the Link-Enable piece leaves first, then the pieces from the last to the first, each to
/// its own place, and the header behind them.
#[tokio::test]
async fn pieces_of_the_whole_update_go_from_the_last_to_the_first() {
    for piece in [64 << 10, 1_000_000, 12_000_000, 1 << 30] {
        let source = pattern(16 * MIB, 2);
        let own = format!(r#"{{"mode": "fedrdma-e", "piece": {piece}}}"#);
        let writes = written(&own, &source, &outgoing(&source, update_id(1), CHUNK)).await;
        let (header, pieces) = writes.split_last().unwrap();
        assert!(header.note && pieces.iter().all(|write| !write.note));
        assert_eq!(pieces.len() as u64, (16 * MIB + RECORD).div_ceil(piece) + 1, "pieces of {piece} bytes");
        assert_eq!(pieces[0].bytes, 4096, "Link-Enable");
        assert!(pieces[1..].windows(2).all(|two| two[1].to.address + two[1].bytes <= two[0].to.address));
        assert_eq!(pieces.iter().map(|write| write.bytes).sum::<u64>(), source.len(), "each byte once");
        assert!(pieces.iter().all(|write| write.to.key == pieces[0].to.key), "one grant");
    }
}

#[tokio::test]
async fn a_whole_update_is_one_write_and_its_header() {
    let source = pattern(9 * MIB, 3);
    let update = outgoing(&source, update_id(1), CHUNK);
    let writes = written(r#"{"mode": "whole"}"#, &source, &update).await;
    let lengths: Vec<(u64, bool)> = writes.iter().map(|write| (write.bytes, write.note)).collect();
    assert_eq!(lengths, [(9 * MIB, false), (RECORD, true)]);
}

/// An update that lacks some bytes is one extent for each hole, and nothing else is sent.
#[tokio::test]
async fn of_an_update_with_holes_only_the_holes_are_sent() {
    let source = pattern(4 * MIB, 4);
    let holes: Ranges =
        [Range::new(0, 100), Range::new(MIB - 50, 2 * MIB + 7), Range::new(4 * MIB - 1, 4 * MIB)]
            .into_iter()
            .collect();
    for (mode, headers) in [("fedrdma-e", 3), ("whole", 3), ("window", 8)] {
        let bytes = source.lend(source.range()).unwrap();
        let update = Outgoing::new(update_id(1), bytes, &holes, CHUNK, Cancel::default());
        let writes = written(&format!(r#"{{"mode": "{mode}"}}"#), &source, &update).await;
        let sum = |note: bool| writes.iter().filter(|w| w.note == note).map(|w| w.bytes).sum::<u64>();
        assert_eq!((sum(false), sum(true)), (holes.bytes(), headers * RECORD), "{mode}");
    }
}

/// The cable is cut in the midst of an update, at different times and with parts landing in any order. The pair
/// that follows writes only what was not acknowledged: the piece that was under way, and the header.
#[tokio::test]
async fn after_a_cut_only_the_piece_under_way_is_written_again() {
    const PIECE: u64 = 100_000;
    for seed in 0..24 {
        let own = format!(r#"{{"mode": "fedrdma-e", "piece": {PIECE}, "link_enable": 0}}"#);
        let (pair, fabric) = pair_with(&own, Behaviour { seed, delay: 0.4, ..Behaviour::default() }).await;
        let source = pattern(3 * MIB, seed);
        let recorder = recorder(source.len());
        let _pump = Pump::start(&pair.server, &recorder);
        let update = outgoing(&source, update_id(1), CHUNK);
        let cut = async {
            while fabric.writes().len() < PROBES + 2 + seed as usize {
                tokio::task::yield_now().await;
            }
            fabric.cut();
        };
        let (sent, ()) = tokio::join!(pair.client.send_update(&update), cut);
        sent.unwrap();
        recorder.check(&source);
        assert_eq!(recorder.seen().ranges.bytes(), source.len());
        assert!(recorder.seen().stored.iter().all(|(_, outcome)| outcome.is_ok()));
        let bytes: u64 = fabric.writes()[PROBES..].iter().map(|write| write.bytes).sum();
        assert!(bytes <= source.len() + PIECE + 2 * RECORD, "seed {seed}: {} more", bytes - source.len());
    }
}

/// The link ends in the midst of an update. What the sink has is not sent again over the next link.
#[tokio::test]
async fn the_next_link_sends_what_is_missing() {
    for (seed, mode) in [(1, "window"), (2, "pull"), (3, "window"), (4, "pull")] {
        let behaviour = Behaviour { seed, delay: 0.3, ..Behaviour::default() };
        let own = format!(r#"{{"mode": "{mode}"}}"#);
        let source = pattern(3 * MIB, seed);
        let recorder = recorder(source.len());
        let (first, _) = pair_with(&own, behaviour.clone()).await;
        let pump = Pump::start(&first.server, &recorder);
        let update = outgoing(&source, update_id(1), CHUNK);
        let close = async {
            recorder.until(|seen| seen.stored.len() as u64 > seed).await;
            first.client.close().await;
        };
        let (sent, ()) = tokio::join!(first.client.send_update(&update), close);
        sent.unwrap_err();
        drop((pump, first));
        let missing = recorder.seen().ranges.holes(source.len());
        assert!(!missing.is_empty() && missing.bytes() < source.len());
        let (next, fabric) = pair_with(&own, behaviour).await;
        let _pump = Pump::start(&next.server, &recorder);
        let bytes = source.lend(source.range()).unwrap();
        let rest = Outgoing::new(update_id(1), bytes, &missing, CHUNK, Cancel::default());
        let sent = next.client.send_update(&rest).await.unwrap();
        recorder.check(&source);
        assert_eq!((recorder.seen().ranges.bytes(), sent.payload), (source.len(), missing.bytes()));
        let data = fabric.writes().into_iter().skip(PROBES).filter(|write| !write.note);
        let written: u64 = data.map(|write| write.bytes).sum();
        assert_eq!(written, if mode == "pull" { 0 } else { missing.bytes() });
    }
}
