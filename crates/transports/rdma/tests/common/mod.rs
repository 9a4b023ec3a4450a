//! Helpers for tests over pretend devices.
#![allow(dead_code, clippy::unwrap_used)] // each file uses a part; a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::Factory;
use thalweg_rdma::Rdma;
use thalweg_transport::{Options, Settings};
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

/// Options with these settings of the rdma transport, as JSON.
pub fn options(own: &str) -> Options {
    let own: Settings = serde_json::from_str(own).unwrap();
    Options { own, ..Options::default() }
}
