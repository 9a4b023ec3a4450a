//! Helpers for tests over pretend devices.
#![allow(dead_code, clippy::unwrap_used)] // each file uses a part; a panic is how tests report

use std::sync::Arc;

use thalweg_arena::Arena;
use thalweg_conformance::{outgoing, update_id, Factory, Pair, Pump, Recorder};
use thalweg_rdma::Rdma;
use thalweg_transport::{Options, Result, SendReport, Settings};
use thalweg_verbs::pretend::{Behaviour, Fabric, Pretend};

/// A transport whose links all use one pretend device, and the fabric of that device.
pub fn pretend(behaviour: Behaviour) -> (Rdma, Arc<Fabric>) {
    let fabric = Arc::new(Fabric::default());
    (Rdma::on(Arc::new(Pretend::new(&fabric, behaviour))), fabric)
}

pub fn factory(behaviour: Behaviour, own: &str) -> Factory {
    let options = options(own);
    let mut factory = Factory::new(Arc::new(pretend(behaviour).0), "rdma://127.0.0.1:0");
    factory.relayed = false;
    factory.options(options.clone(), options)
}

/// A link over one pretend device, with these settings of the transport as JSON, and the fabric of that device.
pub async fn pair_with(own: &str, behaviour: Behaviour) -> (Pair, Arc<Fabric>) {
    let (transport, fabric) = pretend(behaviour);
    let mut factory = factory(Behaviour::default(), own);
    factory.transport = Arc::new(transport);
    (factory.pair().await, fabric)
}

/// A sink that gives the places of an update's chunks beforehand.
pub fn recorder(bytes: u64) -> Arc<Recorder> {
    Arc::new(Recorder::new(bytes).preparing(|_| true))
}

/// Sends an update to the server, whose sink gives the places beforehand.
pub async fn send(pair: &Pair, source: &Arena, chunk: u32) -> (Result<SendReport>, Arc<Recorder>) {
    let recorder = recorder(source.len());
    let pump = Pump::start(&pair.server, &recorder);
    let sent = pair.client.send_update(&outgoing(source, update_id(1), chunk)).await;
    drop(pump);
    (sent, recorder)
}

/// Options with these settings of the rdma transport, as JSON.
pub fn options(own: &str) -> Options {
    let own: Settings = serde_json::from_str(own).unwrap();
    Options { own, ..Options::default() }
}
