//! The transport contract over a real RDMA device, in each mode. `tests/lab/test_guest_rdma.py` runs this in
//! the guest kernel, which has one. On a machine without RDMA each test prints what is missing, and passes.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_rdma::{devices, Rdma};

mod common;
use common::options;

fn real(own: &str) -> Factory {
    let found = devices().map_err(|error| error.to_string());
    let usable = found.and_then(|all| {
        let mut addresses =
            all.into_iter().filter_map(|device| device.state.ok()).map(|(address, _)| address);
        addresses.next_back().ok_or_else(|| "no RDMA device has an active port".into())
    });
    let (host, missing) = match usable {
        Ok(address) => (address.to_string(), None),
        Err(why) => ("127.0.0.1".into(), Some(why)),
    };
    let mut factory = Factory::new(Arc::new(Rdma::default()), &format!("rdma://{host}:0"));
    (factory.relayed, factory.missing) = (false, missing);
    factory.options(options(own), options(own))
}

mod in_window {
    use super::*;
    suite!(real("{}"));
    unauthenticated_peers!(real("{}"));
}

mod over_several_pairs {
    use super::*;
    suite!(real(r#"{"pairs": 4}"#));
}

mod in_pull {
    use super::*;
    suite!(real(r#"{"mode": "pull"}"#));
}

mod in_fedrdma_e {
    use super::*;
    suite!(real(r#"{"mode": "fedrdma-e", "piece": 65536}"#));
}

#[cfg(feature = "baselines")]
mod in_fedrdma {
    use super::*;
    suite!(real(r#"{"mode": "fedrdma", "piece": 65536}"#));
}

mod in_whole {
    use super::*;
    suite!(real(r#"{"mode": "whole"}"#));
}
