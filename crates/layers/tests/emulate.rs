//! Emulated links behave like their shapes, in virtual time.
#![allow(clippy::unwrap_used)] // in helpers of tests too

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Factory, Pair, Pump, Recorder};
use thalweg_layers::{Directions, Emulate, Fault, Layer};
use thalweg_linkmodel::Shape;
use thalweg_transport::memory::Memory;
use thalweg_transport::{ErrorKind, Link, Transport};
use thalweg_wire::HEADER_BYTES;
use tokio::time::Instant;

const CHUNK: u32 = 10_000;
const BYTES: u64 = 1_000_000;
const MS: Duration = Duration::from_millis(1);

async fn pair(layer: &Emulate, name: &str) -> Pair {
    layer.check().unwrap();
    Factory::new(layer.wrap(Arc::new(Memory)), &format!("memory://emulate-{name}:0")).pair().await
}

fn shape(rate: u64, milliseconds: u64) -> Shape {
    Shape { rate: Some(rate), delay: milliseconds as f64 / 1e3, ..Shape::default() }
}

fn both(shape: Shape) -> Emulate {
    Emulate { seed: 1, up: shape.clone(), down: shape, clients: BTreeMap::new() }
}

/// Time of `frames` frames with `payload` bytes in total. Each packet of 1500 bytes carries 1448.
fn sent(payload: u64, frames: u64, rate: u64) -> Duration {
    let frame = payload / frames + HEADER_BYTES as u64;
    let wire = frame + frame.div_ceil(1448) * 52;
    Duration::from_secs_f64((frames * wire * 8) as f64 / rate as f64)
}

/// Timers have a granularity of a millisecond and round up.
fn assert_close(is: Duration, due: Duration) {
    assert!(due <= is + MS / 1000 && is <= due + 2 * MS, "{is:?} instead of {due:?}");
}

/// Sends an update. Returns how long the sender was busy, and what has arrived.
async fn send(link: &Arc<dyn Link>, peer: &Arc<dyn Link>) -> (Duration, Arc<Recorder>) {
    let source = pattern(BYTES, 1);
    let recorder = Arc::new(Recorder::new(BYTES));
    let mut pump = Pump::start(peer, &recorder);
    let start = Instant::now();
    let report = link.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    let took = start.elapsed();
    assert_eq!((report.chunks, report.payload), (100, BYTES), "what is lost was sent too");
    link.send_control(Bytes::from_static(b"end")).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), "end");
    recorder.check(&source);
    pump.stop(link).await;
    (took, recorder)
}

#[tokio::test(start_paused = true)]
async fn an_update_takes_the_time_of_its_packets_and_one_delay() {
    let layer = Emulate { up: shape(20_000_000, 30), down: shape(50_000_000, 10), ..Emulate::default() };
    let pair = pair(&layer, "update").await;
    let (up, recorder) = send(&pair.client, &pair.server).await;
    assert_close(up, sent(BYTES, 100, 20_000_000) + 30 * MS);
    assert_eq!(recorder.seen().ranges.bytes(), BYTES);
    let (down, _) = send(&pair.server, &pair.client).await;
    assert_close(down, sent(BYTES, 100, 50_000_000) + 10 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_question_takes_a_round_trip_and_messages_in_a_row_one_delay() {
    let layer = Emulate { up: shape(1 << 40, 30), down: shape(1 << 40, 10), ..Emulate::default() };
    let pair = pair(&layer, "round-trip").await;
    let mut answers = Pump::start(&pair.client, &Arc::new(Recorder::new(0)));
    let mut questions = Pump::start(&pair.server, &Arc::new(Recorder::new(0)));
    let start = Instant::now();
    for number in 0..10 {
        pair.client.send_control(Bytes::from(vec![number])).await.unwrap();
    }
    for number in 0..10 {
        assert_eq!(questions.next().await.unwrap(), vec![number]);
    }
    assert_close(start.elapsed(), 30 * MS);
    pair.server.send_control(Bytes::from_static(b"answer")).await.unwrap();
    assert_eq!(answers.next().await.unwrap(), "answer");
    assert_close(start.elapsed(), 40 * MS);
}

#[tokio::test(start_paused = true)]
async fn an_update_right_after_a_message_is_right_behind_it() {
    let pair = pair(&both(shape(20_000_000, 30)), "behind").await;
    let mut pump = Pump::start(&pair.server, &Arc::new(Recorder::new(BYTES)));
    let source = pattern(BYTES, 1);
    let start = Instant::now();
    pair.client.send_control(Bytes::from_static(b"update")).await.unwrap();
    let report = pair.client.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), "update");
    assert_close(start.elapsed(), sent(BYTES, 100, 20_000_000) + 30 * MS);
    assert_close(report.ended - report.started, sent(BYTES, 100, 20_000_000) + 30 * MS);
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_before_a_link_is_closed_arrives() {
    let pair = pair(&both(shape(20_000_000, 300)), "farewell").await;
    let mut pump = Pump::start(&pair.server, &Arc::new(Recorder::new(0)));
    let start = Instant::now();
    pair.client.send_control(Bytes::from_static(b"farewell")).await.unwrap();
    assert!(start.elapsed() <= MS, "it has left, and nobody waits for its way");
    pair.client.close().await;
    assert_eq!(pump.next().await.unwrap(), "farewell");
    assert_close(start.elapsed(), 300 * MS);
    assert_eq!(pump.next().await.unwrap_err().kind(), ErrorKind::Closed);
    let late = pair.client.send_control(Bytes::from_static(b"late")).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_client_tells_the_listener_what_its_link_is_like() {
    let own = Directions { up: shape(10_000_000, 0), down: shape(5_000_000, 0) };
    let clients = BTreeMap::from([("slow".to_owned(), own)]);
    let job = Emulate { seed: 3, up: shape(1 << 40, 0), down: shape(1 << 40, 0), clients };
    let listening = job.wrap(Arc::new(Memory));
    let address = thalweg_transport::Address::parse("memory://emulate-own:0").unwrap();
    let listener = listening.listen(&address, &Default::default()).await.unwrap();
    for (name, down) in [("slow", sent(BYTES, 100, 5_000_000)), ("other", Duration::ZERO)] {
        let connecting = job.of_client(name).wrap(Arc::new(Memory));
        let client = connecting.connect(&listener.address(), &Default::default()).await.unwrap();
        let server = listener.accept().await.unwrap().await.unwrap();
        let mut pump = Pump::start(&server, &Arc::new(Recorder::new(0)));
        client.send_control(Bytes::from_static(b"join")).await.unwrap();
        assert_eq!(pump.next().await.unwrap(), "join", "what the layer says is for the layer");
        pump.stop(&client).await;
        assert_close(send(&server, &client).await.0, down);
    }
}

#[tokio::test(start_paused = true)]
async fn on_a_reliable_transport_losses_cost_time_and_nothing_is_lost() {
    let clean = shape(20_000_000, 20);
    let lossy = Shape { loss: 0.02, ..clean.clone() };
    let (plain, _) = {
        let pair = pair(&both(clean), "clean").await;
        send(&pair.client, &pair.server).await
    };
    let mut times = Vec::new();
    for name in ["lossy-1", "lossy-2"] {
        let pair = pair(&both(lossy.clone()), name).await;
        let (took, recorder) = send(&pair.client, &pair.server).await;
        assert_eq!(recorder.seen().ranges.bytes(), BYTES);
        assert!(pair.client.capabilities().reliable);
        times.push(took);
    }
    assert_eq!(times[0], times[1], "a seed repeats");
    // Sending 2 % of 700 packets again takes some 8 ms. The last loss may cost round trips of 40 ms.
    assert!(times[0] > plain + 2 * MS && times[0] < plain + 400 * MS, "{:?} after {plain:?}", times[0]);
}

/// A transport that says that it is not reliable, but loses nothing itself.
fn unreliable() -> Arc<dyn Transport> {
    Fault { loss: 1e-300, ..Fault::default() }.wrap(Arc::new(Memory))
}

#[tokio::test(start_paused = true)]
async fn on_another_a_chunk_is_lost_with_any_of_its_packets() {
    let layer = both(Shape { loss: 0.05, ..shape(20_000_000, 20) });
    let factory = Factory::new(layer.wrap(unreliable()), "memory://emulate-unreliable:0");
    let pair = factory.pair().await;
    let (took, recorder) = send(&pair.client, &pair.server).await;
    assert_close(took, sent(BYTES, 100, 20_000_000) + 20 * MS);
    // A chunk has 7 packets. 0.95^7 = 0.70 of 100 chunks arrive; the standard error is 4.6.
    let received = recorder.seen().ranges.bytes() / u64::from(CHUNK);
    assert!((50..=90).contains(&received), "{received}");
    assert!(pair.client.counters().sent >= BYTES);
}

#[tokio::test(start_paused = true)]
async fn jitter_and_duplicates_reach_a_transport_that_is_not_reliable() {
    let wild = Shape { jitter: 0.02, duplicate: 0.1, ..shape(20_000_000, 20) };
    let factory = Factory::new(both(wild).wrap(unreliable()), "memory://emulate-wild:0");
    let pair = factory.pair().await;
    assert!(!pair.client.capabilities().ordered);
    let (_, recorder) = send(&pair.client, &pair.server).await;
    let offsets: Vec<u64> = recorder.seen().placed.iter().map(|header| header.offset).collect();
    assert!(offsets.windows(2).any(|w| w[0] > w[1]), "some overtake");
    // A chunk has 7 packets. 1 - 0.9^7 = 0.52 of 100 chunks arrive twice; the standard error is 5.
    assert!((25..=80).contains(&recorder.seen().refused), "{}", recorder.seen().refused);
    assert_eq!(recorder.seen().ranges.bytes(), BYTES);
}

#[tokio::test(start_paused = true)]
async fn a_control_message_waits_for_what_is_under_way_and_not_for_the_update() {
    let pair = pair(&both(shape(2_000_000, 5)), "overtake").await;
    let source = pattern(BYTES, 2);
    let mut pump = Pump::start(&pair.server, &Arc::new(Recorder::new(BYTES)));
    let update = outgoing(&source, update_id(1), CHUNK);
    let control = async {
        tokio::time::sleep(100 * MS).await;
        let start = Instant::now();
        pair.client.send_control(Bytes::from_static(b"now")).await.unwrap();
        assert_eq!(pump.next().await.unwrap(), "now");
        assert!(
            start.elapsed() <= sent(u64::from(2 * CHUNK), 2, 2_000_000) + 10 * MS,
            "{:?}",
            start.elapsed()
        );
    };
    let (done, ()) = tokio::join!(pair.client.send_update(&update), control);
    done.unwrap();
}

#[tokio::test(start_paused = true)]
async fn cancel_and_close_wake_a_sender_on_a_link_that_is_down() {
    for (name, nothing) in [
        ("down", Shape { down: true, ..Shape::default() }),
        ("slow", shape(1000, 0)),
        ("far", shape(1 << 40, 3_000_000)),
    ] {
        let pair = pair(&both(nothing), name).await;
        let source = pattern(BYTES, 4);
        let start = Instant::now();
        let update = outgoing(&source, update_id(1), CHUNK);
        let cancel = update.cancel().clone();
        let (sent, ()) = tokio::join!(pair.client.send_update(&update), async { cancel.cancel() });
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::Cancelled);
        let update = outgoing(&source, update_id(2), CHUNK);
        let message = pair.client.send_control(Bytes::from_static(b"lost"));
        let (sent, message, ()) =
            tokio::join!(pair.client.send_update(&update), message, pair.client.close());
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::Closed);
        // On the long link the message has left. Closing waits a little more than a second for it to arrive.
        assert_eq!(message.err().map(|error| error.kind()), (name != "far").then_some(ErrorKind::Closed));
        let timeout = if name == "far" { 1100 * MS } else { Duration::ZERO };
        assert!(start.elapsed() <= timeout + MS, "{name}: {:?}", start.elapsed());
    }
}

#[test]
fn clients_have_shapes_and_chances_of_their_own() {
    let json = r#"{"seed": 7, "up": {"rate": 5}, "down": {"loss": 0.1},
                   "clients": {"client-2": {"up": {"rate": 9}, "down": {}}}}"#;
    let layer: Emulate = serde_json::from_str(json).unwrap();
    layer.check().unwrap();
    let of = |name| layer.of_client(name);
    assert_eq!((of("client-1").up.rate, of("client-1").down.loss), (Some(5), 0.1));
    assert_eq!((of("client-2").up.rate, of("client-2").down.loss), (Some(9), 0.0));
    assert_eq!(of("client-1"), of("client-1"));
    assert_ne!(of("client-1").seed, of("client-3").seed);
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_the_layer_is_refused_and_harms_nobody() {
    let address = thalweg_transport::Address::parse("memory://emulate-stranger:0").unwrap();
    let listener =
        Emulate::default().wrap(Arc::new(Memory)).listen(&address, &Default::default()).await.unwrap();
    for message in [&b"hello"[..], b"\xffthalweg emulate\xff{", b"\xffthalweg emulate\xff{\"link\":{}}"] {
        let stranger = Memory.connect(&listener.address(), &Default::default()).await.unwrap();
        let pending = listener.accept().await.unwrap();
        stranger.send_control(Bytes::from_static(message)).await.unwrap();
        assert_eq!(pending.await.err().unwrap().kind(), ErrorKind::Corrupt);
    }
    let friend = Emulate::default().wrap(Arc::new(Memory));
    let friend = friend.connect(&listener.address(), &Default::default()).await.unwrap();
    let server = listener.accept().await.unwrap().await.unwrap();
    send(&friend, &server).await;
}

#[test]
fn what_is_impossible_is_named() {
    for json in
        [r#"{"up": {"loss": 2}}"#, r#"{"down": {"loss": 2}}"#, r#"{"clients": {"a": {"up": {"loss": 2}}}}"#]
    {
        let error = serde_json::from_str::<Emulate>(json).unwrap().check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("loss is 2"), "{error}");
    }
    assert!(serde_json::from_str::<Emulate>(r#"{"upp": {}}"#).is_err());
}
