//! Which datagrams get lost, and which do not.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_conformance::{chunks_keep_no_message_away, outgoing, pattern, update_id, Pump, Recorder, GUARD};
use thalweg_layers::{Fault, Layer};
use thalweg_transport::{Cancel, Link, Options, Outgoing, Settings, Value};
use thalweg_udp::{Udp, CHUNK, MAX_CHUNK};

mod common;
use common::{link, listen, small};

const CLIENTS: u64 = 4;
const UPDATE: u64 = 8 << 20;

/// Sends an update from one end to the other. All of it must arrive; nothing is retransmitted.
async fn whole(from: Arc<dyn Link>, to: Arc<dyn Link>, source: Arena, chunk: u32) {
    let recorder = Arc::new(Recorder::new(source.len()));
    let _pump = Pump::start(&to, &recorder);
    let report = from.send_update(&outgoing(&source, update_id(1), chunk)).await.unwrap();
    let all = recorder.until(|seen| seen.stored.len() as u64 == report.chunks);
    let outcome = tokio::time::timeout(GUARD / 2, all).await;
    let stored = recorder.seen().stored.len() as u64;
    assert!(outcome.is_ok(), "{stored} of {} datagrams came", report.chunks);
    recorder.check(&source);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_datagram_is_lost_at_loopback() {
    for options in [Options::default(), small()] {
        let listener = listen(&Udp, &options).await;
        let mut tasks = Vec::new();
        for number in 0..CLIENTS {
            let (client, server) = link(&*listener, &options).await;
            tasks.push(tokio::spawn(async move {
                let (up, down) = (pattern(UPDATE, number), pattern(UPDATE, number + CLIENTS));
                tokio::join!(
                    whole(client.clone(), server.clone(), up, CHUNK),
                    whole(server, client, down, CHUNK)
                );
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
}

/// Sends chunks of 512 values (FedComm), of 4,000 values (other papers) and of the maximum size, each in one
/// datagram. None may overflow the receive buffer, although the kernel charges more for a datagram than its
/// bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_of_any_size_arrive_in_one_datagram() {
    for chunk in [64, 2_048, 16_000, MAX_CHUNK] {
        for options in [Options::default(), small()] {
            let listener = listen(&Udp, &options).await;
            let (client, server) = link(&*listener, &options).await;
            whole(client, server, pattern(UPDATE / 8, u64::from(chunk)), chunk).await;
        }
    }
}

/// Without pacing, a peer that does not read loses most of an update. The end of the update still arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpaced_chunks_do_not_wait_for_a_peer_that_does_not_read() {
    let own = Settings::default().with("paced", Value::Flag(false));
    let options = Options { own, ..small() };
    let listener = listen(&Udp, &options).await;
    let (client, server) = link(&*listener, &options).await;
    let source = pattern(UPDATE, 1);
    let report = client.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    assert_eq!(report.payload, UPDATE);
    client.send_control(Bytes::from_static(b"end")).await.unwrap();
    let recorder = Recorder::new(source.len());
    assert_eq!(&server.receive(&recorder).await.unwrap()[..], b"end");
    let stored = recorder.seen().stored.len() as u64;
    assert!(0 < stored && stored < report.chunks / 2, "{stored} of {} were stored", report.chunks);
}

/// The peer stops reading again and again, each time for longer than the first report timeouts. Nothing is
/// lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_datagram_is_lost_while_the_peer_does_not_read() {
    let listener = listen(&Udp, &small()).await;
    let (client, server) = link(&*listener, &small()).await;
    let source = pattern(UPDATE / 4, 1);
    let update = outgoing(&source, update_id(1), CHUNK);
    let chunks = update.chunks().len();
    let sending = tokio::spawn(async move {
        client.send_update(&update).await.unwrap();
        client.send_control(Bytes::from_static(b"end")).await.unwrap();
        client
    });
    let recorder = Recorder::new(source.len());
    let mut receive = server.receive(&recorder);
    for part in 1..=4 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        tokio::select! {
            biased;
            () = recorder.until(|seen| seen.stored.len() >= chunks * part / 5) => {}
            outcome = &mut receive => assert!(outcome.is_err(), "the end overtook most of the update"),
        }
    }
    assert_eq!(receive.await.unwrap(), "end");
    let mut rest = server.receive(&recorder);
    tokio::select! {
        biased;
        () = recorder.until(|seen| seen.stored.len() == chunks) => {}
        outcome = &mut rest => assert!(outcome.is_err(), "there is no second message"),
    }
    recorder.check(&source);
    drop(sending.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_that_wait_for_a_message_do_not_keep_it_away() {
    chunks_keep_no_message_away(&Udp, &*listen(&Udp, &small()).await, &small(), CHUNK).await;
}

#[tokio::test]
async fn lost_chunks_arrive_when_they_are_requested_again() {
    let lossy = Fault { loss: 0.2, seed: 3, ..Fault::default() }.wrap(Arc::new(Udp));
    let listener = listen(&*lossy, &small()).await;
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let options = small();
    let (client, server) = tokio::join!(lossy.connect(&address, &options), accept);
    let client = client.unwrap();
    let source = pattern(500_000, 2);
    let recorder = Arc::new(Recorder::new(source.len()));
    let mut pump = Pump::start(&server, &recorder);
    let mut sendings = 0;
    loop {
        let wanted = recorder.seen().ranges.holes(source.len());
        if wanted.is_empty() {
            break;
        }
        let bytes = source.lend(source.range()).unwrap();
        let update = Outgoing::new(update_id(1), bytes, &wanted, CHUNK, Cancel::default());
        client.send_update(&update).await.unwrap();
        client.send_control(Bytes::from_static(b"end")).await.unwrap();
        assert_eq!(pump.next().await.unwrap(), "end");
        sendings += 1;
        assert!(sendings < 100, "{} bytes never come", wanted.bytes());
    }
    assert!(sendings > 1, "nothing was lost");
    recorder.check(&source);
}
