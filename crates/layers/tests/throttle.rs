//! The rate limit holds, in virtual time.
#![allow(clippy::unwrap_used)] // in helpers of tests too

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Factory, Pump, Recorder};
use thalweg_layers::{Layer, Rate, Throttle};
use thalweg_transport::memory::Memory;
use thalweg_transport::{ErrorKind, Link, Result};
use thalweg_wire::HEADER_BYTES;
use tokio::time::Instant;

const CHUNK: u32 = 10_000;

fn throttled(layer: &Throttle, name: &str) -> Factory {
    Factory::new(layer.wrap(Arc::new(Memory)), &format!("memory://throttle-{name}:0"))
}

fn wifi() -> Throttle {
    Throttle::new(Rate::parse("60mbit").unwrap())
}

/// Time of `frames` frames with `payload` bytes in total, at 60 Mbit/s.
fn due(payload: u64, frames: u64) -> Duration {
    Rate::parse("60mbit").unwrap().time_for(payload + frames * HEADER_BYTES as u64)
}

/// Timers have a granularity of a millisecond and round up.
fn assert_close(is: Duration, due: Duration) {
    assert!(due <= is && is <= due + Duration::from_millis(2), "{is:?} instead of {due:?}");
}

#[tokio::test(start_paused = true)]
async fn an_update_takes_the_time_of_its_bytes() {
    let pair = throttled(&wifi(), "update").pair().await;
    for (link, peer) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
        let source = pattern(7_500_000, 1);
        let recorder = Arc::new(Recorder::new(7_500_000));
        let _pump = Pump::start(peer, &recorder);
        let start = Instant::now();
        let report = link.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
        assert_close(start.elapsed(), due(7_500_000, 750));
        assert_close(report.ended - report.started, due(7_500_000, 750));
        recorder.check(&source);
        assert_eq!(recorder.seen().ranges.bytes(), 7_500_000);
    }
}

#[tokio::test(start_paused = true)]
async fn control_messages_count_too() {
    let pair = throttled(&wifi(), "control").pair().await;
    let _pump = Pump::start(&pair.server, &Arc::new(Recorder::new(0)));
    let start = Instant::now();
    for _ in 0..50 {
        pair.client.send_control(Bytes::from(vec![0; 15_000])).await.unwrap();
    }
    assert_close(start.elapsed(), due(50 * 15_000, 50));
}

#[tokio::test(start_paused = true)]
async fn idle_time_is_not_saved_up() {
    let pair = throttled(&wifi(), "idle").pair().await;
    let _pump = Pump::start(&pair.server, &Arc::new(Recorder::new(0)));
    tokio::time::advance(Duration::from_secs(100)).await;
    let start = Instant::now();
    pair.client.send_control(Bytes::from(vec![0; 750_000])).await.unwrap();
    assert_close(start.elapsed(), due(750_000, 1));
}

#[tokio::test(start_paused = true)]
async fn a_control_message_waits_for_chunks_not_for_the_update() {
    let pair = throttled(&wifi(), "overtake").pair().await;
    let source = pattern(7_500_000, 2);
    let recorder = Arc::new(Recorder::new(7_500_000));
    let mut pump = Pump::start(&pair.server, &recorder);
    let update = outgoing(&source, update_id(1), CHUNK);
    let control = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let start = Instant::now();
        pair.client.send_control(Bytes::from_static(b"now")).await.unwrap();
        assert_eq!(pump.next().await.unwrap(), "now");
        assert!(start.elapsed() <= due(u64::from(2 * CHUNK), 3) + Duration::from_millis(2));
    };
    let (sent, ()) = tokio::join!(pair.client.send_update(&update), control);
    sent.unwrap();
}

/// How many seconds an update of 750 kB takes from a server to each of 4 clients at once.
async fn group_time(layer: Throttle, name: &str) -> Duration {
    let factory = throttled(&layer, name);
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let (mut servers, mut pumps): (Vec<Arc<dyn Link>>, Vec<_>) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let client = factory.transport.connect(&listener.address(), &factory.connect).await.unwrap();
        servers.push(listener.accept().await.unwrap().await.unwrap());
        pumps.push(Pump::start(&client, &Arc::new(Recorder::new(750_000))));
    }
    let source = pattern(750_000, 3);
    let start = Instant::now();
    let done = |_, outcome: Result<_>| assert!(outcome.is_ok(), "{outcome:?}");
    listener.send_group(&servers, &outgoing(&source, update_id(1), CHUNK), &done).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_shared_link_is_shared_and_others_are_not() {
    assert_close(group_time(wifi(), "own").await, due(750_000, 75));
    assert_close(group_time(wifi().shared(), "shared").await, due(4 * 750_000, 4 * 75));
}

#[tokio::test(start_paused = true)]
async fn cancel_and_close_wake_a_sender_that_waits() {
    let slow = Throttle::new(Rate::parse("1kbit").unwrap());
    let pair = throttled(&slow, "wake").pair().await;
    let source = pattern(100_000, 4);
    let start = Instant::now();
    let update = outgoing(&source, update_id(1), CHUNK);
    let cancel = update.cancel().clone();
    let (sent, ()) = tokio::join!(pair.client.send_update(&update), async { cancel.cancel() });
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::Cancelled);
    let update = outgoing(&source, update_id(2), CHUNK);
    let (sent, ()) = tokio::join!(pair.client.send_update(&update), pair.client.close());
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(start.elapsed(), Duration::ZERO);
}
