//! Several pairs a direction: an update's chunks are striped over them, and a pair that stalls or breaks delays
//! its own chunks alone.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Pair, Pump, Recorder};
use thalweg_transport::ErrorKind;
use thalweg_verbs::pretend::{Behaviour, Fabric};
use thalweg_verbs::Fault;

mod common;
use common::{pair_with, recorder, send};

const CHUNK: u32 = 64 << 10;
/// Chunks of an update.
const CHUNKS: usize = 48;
const UPDATE: u64 = CHUNK as u64 * CHUNKS as u64;

/// Writes of the handshake: the first packet over each pair.
fn probes(pairs: u64) -> u64 {
    2 * pairs
}

/// Numbers of the first two pairs that follow lost ones: the sender's end of each, and the receiver's. Before them come
/// the device, and both ends of the handshake's pairs in each direction.
fn renewed(pairs: u64) -> [[u32; 2]; 2] {
    let first = 2 + 4 * pairs as u32;
    [[first, first + 1], [first + 2, first + 3]]
}

async fn link(pairs: u64, behaviour: Behaviour) -> (Pair, Arc<Fabric>) {
    pair_with(&format!(r#"{{"pairs": {pairs}}}"#), behaviour).await
}

/// Whether all chunks of an update were stored, each once and undamaged.
fn all_came_once(recorder: &Recorder, chunks: usize) {
    let seen = recorder.seen();
    assert!(seen.stored.iter().all(|(_, outcome)| outcome.is_ok()));
    let offsets: BTreeSet<u64> = seen.stored.iter().map(|(chunk, _)| chunk.offset).collect();
    assert_eq!((seen.stored.len(), offsets.len()), (chunks, chunks), "a chunk came twice");
}

/// Each chunk's pieces and its commit record go over one pair, and all pairs carry some chunks.
#[tokio::test]
async fn chunks_are_striped_over_all_pairs() {
    for pairs in [1, 2, 4, 16] {
        let (pair, fabric) = link(pairs, Behaviour { seed: pairs, ..Behaviour::default() }).await;
        let source = pattern(UPDATE, pairs);
        let (sent, recorder) = send(&pair, &source, CHUNK).await;
        sent.unwrap();
        recorder.check(&source);
        all_came_once(&recorder, CHUNKS);
        let mut carried: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for write in fabric.writes().split_off(probes(pairs) as usize) {
            let (bytes, notes) = carried.entry(write.pair).or_default();
            *(if write.note { notes } else { bytes }) += if write.note { 1 } else { write.bytes };
        }
        assert_eq!(carried.len() as u64, pairs, "pairs that carry chunks");
        for (bytes, notes) in carried.values() {
            assert_eq!(*bytes, notes * u64::from(CHUNK), "a record over another pair than its chunk");
        }
        let said = pair.client.notice().unwrap();
        assert_eq!(said.contains(&format!("over {pairs} queue pairs")), pairs > 1, "{said}");
    }
}

/// One pair waits for a lost packet. The chunks that were granted to it wait, and all others go on.
#[tokio::test]
async fn a_pair_that_stalls_delays_its_own_chunks_alone() {
    const LARGE: u64 = 48 << 20;
    let chunk = 4 * CHUNK;
    for pairs in [2, 4] {
        let behaviour = Behaviour { stalls: vec![probes(pairs)], ..Behaviour::default() };
        let (pair, fabric) = link(pairs, behaviour).await;
        let source = pattern(LARGE, pairs);
        let recorder = recorder(LARGE);
        let _pump = Pump::start(&pair.server, &recorder);
        let update = outgoing(&source, update_id(1), chunk);
        let chunks = update.chunks().len();
        // A chunk is granted to the pair with the fewest bytes, so the pair that stalls never has more than another.
        let others = async {
            recorder.until(|seen| seen.stored.len() >= chunks / 2 - 1).await;
            assert!(recorder.seen().stored.len() < chunks, "the pair did not stall");
            fabric.go_on();
        };
        let (sent, ()) = tokio::join!(pair.client.send_update(&update), others);
        sent.unwrap();
        recorder.check(&source);
        all_came_once(&recorder, chunks);
    }
}

/// A pair breaks at any of its writes, or two do. Only what that pair had in flight is sent again, and nothing is
/// stored twice.
#[tokio::test]
async fn a_pair_that_breaks_is_made_anew_and_the_others_go_on() {
    for seed in 0..48 {
        let pairs = 2 + seed % 4;
        let fault = if seed % 2 == 0 { Fault::Retries } else { Fault::Flushed };
        let at = probes(pairs) + seed;
        let faults = vec![(at, fault), (at + 1 + seed % 7, fault)];
        let behaviour = Behaviour { seed, delay: 0.3, faults, ..Behaviour::default() };
        let (pair, _) = link(pairs, behaviour).await;
        let source = pattern(UPDATE, seed);
        let (sent, recorder) = send(&pair, &source, CHUNK).await;
        sent.unwrap();
        recorder.check(&source);
        all_came_once(&recorder, CHUNKS);
        assert!(recorder.is_free(std::time::Duration::ZERO), "a place is held");
    }
}

/// The sender loses a pair, and the receiver its end of the next one before the ring is open there. So the receiver
/// never says where that ring is.
#[tokio::test]
async fn a_new_pair_that_is_lost_before_its_ring_is_open_is_made_anew() {
    for seed in 0..24 {
        let pairs = 1 + seed % 4;
        let [lost, next] = renewed(pairs);
        let faults = vec![(probes(pairs) + seed, Fault::Retries)];
        let behaviour =
            Behaviour { seed, delay: 0.3, faults, lost_at_once: vec![lost[1]], ..Behaviour::default() };
        let (pair, fabric) = link(pairs, behaviour).await;
        let source = pattern(UPDATE, seed);
        let (sent, recorder) = send(&pair, &source, CHUNK).await;
        sent.unwrap();
        recorder.check(&source);
        all_came_once(&recorder, CHUNKS);
        assert!(fabric.writes().iter().all(|write| write.pair != lost[0]));
        assert!(fabric.writes().iter().any(|write| write.pair == next[0]), "no pair was lost");
    }
}

/// New pairs are lost like that again and again: the link ends.
#[tokio::test]
async fn new_pairs_whose_rings_are_never_open_end_the_link() {
    for pairs in [1, 3] {
        let faults = vec![(probes(pairs), Fault::Retries)];
        let lost_at_once = renewed(pairs).map(|[_, receiver]| receiver).to_vec();
        let (pair, _) = link(pairs, Behaviour { faults, lost_at_once, ..Behaviour::default() }).await;
        let (sent, _) = send(&pair, &pattern(UPDATE, pairs), CHUNK).await;
        let error = sent.unwrap_err();
        assert!(error.to_string().contains("three pairs were lost"), "{error}");
    }
}

/// The cable is cut in the midst of an update: every pair is made anew.
#[tokio::test]
async fn after_a_cut_all_pairs_are_made_anew() {
    for seed in 0..12 {
        let pairs = 1 + seed % 4;
        let (pair, fabric) = link(pairs, Behaviour { seed, delay: 0.5, ..Behaviour::default() }).await;
        let source = pattern(UPDATE, seed);
        let recorder = recorder(UPDATE);
        let _pump = Pump::start(&pair.server, &recorder);
        let update = outgoing(&source, update_id(1), CHUNK);
        let cut = async {
            recorder.until(|seen| seen.stored.len() as u64 > seed).await;
            assert_eq!(fabric.cut() as u64, 4 * pairs, "two directions of two ends");
        };
        let (sent, ()) = tokio::join!(pair.client.send_update(&update), cut);
        sent.unwrap();
        recorder.check(&source);
        all_came_once(&recorder, CHUNKS);
    }
}

/// A path that carries nothing ends the link: each pair is lost three times in a row.
#[tokio::test]
async fn three_losses_of_a_pair_without_progress_end_the_link() {
    for pairs in [2, 5] {
        let faults = (probes(pairs)..probes(pairs) + 4 * pairs).map(|at| (at, Fault::Retries)).collect();
        let (pair, _) = link(pairs, Behaviour { faults, ..Behaviour::default() }).await;
        let source = pattern(UPDATE, 2);
        let (sent, _) = send(&pair, &source, CHUNK).await;
        let error = sent.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.to_string().contains("three pairs were lost"), "{error}");
        assert!(source.claim(source.range()).is_ok(), "the loan outlives the link");
    }
}

/// A send is cancelled while one pair is stalled and another breaks. The loan ends once the device has freed the
/// bytes, and the link goes on.
#[tokio::test]
async fn a_send_is_cancelled_while_pairs_stall_and_break() {
    for seed in 0..24 {
        let pairs = 2 + seed % 3;
        let (stalls, faults) = (vec![probes(pairs) + seed], vec![(probes(pairs) + seed / 2, Fault::Retries)]);
        let behaviour = Behaviour { seed, delay: 0.4, stalls, faults, ..Behaviour::default() };
        let (pair, fabric) = link(pairs, behaviour).await;
        let source = pattern(UPDATE, seed);
        let update = outgoing(&source, update_id(1), CHUNK);
        let cancel = update.cancel().clone();
        let recorder = recorder(UPDATE);
        let mut pump = Pump::start(&pair.server, &recorder);
        let stop = async {
            recorder.until(|seen| seen.stored.len() as u64 > seed % 4).await;
            cancel.cancel();
            // The write that stalls may begin only now.
            loop {
                fabric.go_on();
                tokio::task::yield_now().await;
            }
        };
        let sent = tokio::select! {
            sent = pair.client.send_update(&update) => sent,
            sent = stop => sent,
        };
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(source.claim(source.range()).is_ok(), "the loan goes on");
        pair.client.send_control(Bytes::from_static(b"still here")).await.unwrap();
        assert_eq!(pump.next().await.unwrap(), "still here");
        recorder.check(&source);
    }
}
