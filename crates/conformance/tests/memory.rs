//! Tests that the reference transport, `memory`, keeps the contract.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use thalweg_conformance::{outgoing, pattern, update_id, Factory, Pump, Recorder};
use thalweg_transport::memory::Memory;

/// Each test listens at its own names, because all tests share the process.
fn factory() -> Factory {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Factory::new(Arc::new(Memory), &format!("memory://conformance-{number}:0"))
}

thalweg_conformance::suite!(factory());

thalweg_conformance::unauthenticated_peers!(factory());

/// The transport requests every place in advance. It stands in for transports that need a place before the
/// bytes arrive.
#[test]
fn it_asks_for_all_places_beforehand() {
    thalweg_conformance::run("it_asks_for_all_places_beforehand", &factory, |factory| {
        Box::pin(asks(factory))
    });
}

async fn asks(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(100_000, 1);
    let recorder = Arc::new(Recorder::new(100_000).preparing(|_| true));
    let _pump = Pump::start(&pair.server, &recorder);
    pair.client.send_update(&outgoing(&source, update_id(1), 10_000)).await.expect("memory sends");
    recorder.check(&source);
    let seen = recorder.seen();
    assert_eq!((seen.prepared.len(), seen.placed.len(), seen.stored.len()), (10, 0, 10));
}
