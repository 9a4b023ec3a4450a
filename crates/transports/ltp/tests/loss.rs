//! What happens to packets and updates that are lost on the way.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_conformance::{chunks_keep_no_message_away, outgoing, pattern, update_id, Pump, Recorder};
use thalweg_layers::{Fault, Layer};
use thalweg_ltp::{Ltp, CHUNK};
use thalweg_transport::{Cancel, Link, Options, Outgoing, Settings, Value};
use thalweg_wire::{Allowance, Dtype, Layout, Range, Ranges, Tolerance, WHOLE};

mod common;
use common::{link, listen, small};

const UPDATE: u64 = 4 << 20;

fn options_with(settings: &[(&str, u64)]) -> Options {
    let set = |own: Settings, &(name, value): &(&str, u64)| own.with(name, Value::Number(value));
    Options { own: settings.iter().fold(Settings::default(), set), ..small() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_several_links_come_whole_in_both_directions() {
    for options in [Options::default(), small()] {
        let listener = listen(&Ltp, &options).await;
        let mut tasks = Vec::new();
        for number in 0..4 {
            let (client, server) = link(&*listener, &options).await;
            tasks.push(tokio::spawn(async move {
                let (up, down) = (pattern(UPDATE, number), pattern(UPDATE, number + 4));
                tokio::join!(whole(client.clone(), server.clone(), &up), whole(server, client, &down));
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
}

/// Sends an update from one end to the other. When the call has returned, all of the update must have
/// arrived.
async fn whole(from: Arc<dyn Link>, to: Arc<dyn Link>, source: &thalweg_arena::Arena) {
    let recorder = Arc::new(Recorder::new(source.len()));
    let _pump = Pump::start(&to, &recorder);
    from.send_update(&outgoing(source, update_id(1), CHUNK)).await.unwrap();
    assert_eq!(recorder.seen().ranges.bytes(), source.len());
    recorder.check(source);
}

/// Nobody receives: an update ends when it is cancelled, and the next one arrives completely.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_that_is_cancelled_is_followed_by_the_next() {
    let listener = listen(&Ltp, &small()).await;
    let (client, server) = link(&*listener, &small()).await;
    let (first, second) = (pattern(UPDATE, 1), pattern(UPDATE, 2));
    let update = outgoing(&first, update_id(1), CHUNK);
    let cancel = update.cancel().clone();
    let (sent, ()) = tokio::join!(client.send_update(&update), async {
        tokio::task::yield_now().await;
        cancel.cancel();
    });
    assert_eq!(sent.unwrap_err().kind(), thalweg_transport::ErrorKind::Cancelled);
    let recorder = Arc::new(Recorder::new(UPDATE).only(|chunk| chunk.round == 2));
    let _pump = Pump::start(&server, &recorder);
    client.send_update(&outgoing(&second, update_id(2), CHUNK)).await.unwrap();
    recorder.check(&second);
    assert_eq!(recorder.seen().ranges.bytes(), UPDATE);
}

/// Sends an update and a message. Returns which ranges of the update have arrived when the message has, and
/// checks their bytes.
async fn what_comes(client: &Arc<dyn Link>, server: &Arc<dyn Link>, source: &Arena) -> Ranges {
    let recorder = Arc::new(Recorder::new(source.len()));
    let mut pump = Pump::start(server, &recorder);
    client.send_update(&outgoing(source, update_id(1), CHUNK)).await.unwrap();
    client.send_control(Bytes::from_static(b"end")).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), "end");
    recorder.check(source);
    let received = recorder.seen().ranges.clone();
    received
}

/// The receiver's deadline passes while nobody receives: chunks that were not sent by then are not sent any
/// more, except critical ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_deadline_nothing_is_sent_but_what_is_critical() {
    let options = options_with(&[("deadline_ms", 1)]);
    let listener = listen(&Ltp, &options).await;
    let (client, server) = link(&*listener, &options).await;
    let source = pattern(64 << 20, 3);
    let received = what_comes(&client, &server, &source).await;
    assert!(received.bytes() < source.len(), "64 MiB came within a millisecond");
    let last = Range::new(source.len() - 1, source.len());
    assert!(
        received.covers(Range::new(0, 1)) && received.covers(last),
        "the first and last chunk are critical"
    );
}

/// The same with tensors that the session has declared critical.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_deadline_tensors_that_are_critical_still_come() {
    let options = options_with(&[("deadline_ms", 1)]);
    let listener = listen(&Ltp, &options).await;
    let (client, server) = link(&*listener, &options).await;
    let layout =
        Layout::pack((0..64).map(|at| (format!("t{at}"), Dtype::F32, vec![(1 << 18) - at]))).unwrap();
    let allowances = [20, 40, 63].map(|tensor| Allowance { tensor, budget: 0, refuse: WHOLE });
    client.tolerate(&Arc::new(Tolerance::new(&layout, &allowances).unwrap()));
    let source = pattern(layout.bytes(), 3);
    let received = what_comes(&client, &server, &source).await;
    assert!(received.bytes() < source.len() / 2, "{} MiB came within a millisecond", received.bytes() >> 20);
    for tensor in [20, 40, 63] {
        assert!(received.covers(layout.tensors()[tensor].range()), "tensor {tensor} is critical");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_that_wait_for_a_message_do_not_keep_it_away() {
    chunks_keep_no_message_away(&Ltp, &*listen(&Ltp, &small()).await, &small(), CHUNK).await;
}

/// The transport never sees chunks that a layer above it drops, so the session asks for them again.
#[tokio::test]
async fn what_the_fault_layer_loses_comes_when_it_is_asked_for_again() {
    let lossy = Fault { loss: 0.2, seed: 3, ..Fault::default() }.wrap(Arc::new(Ltp));
    let listener = listen(&*lossy, &small()).await;
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let options = small();
    let (client, server) = tokio::join!(lossy.connect(&address, &options), accept);
    let client = client.unwrap();
    let source = pattern(200_000, 2);
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
