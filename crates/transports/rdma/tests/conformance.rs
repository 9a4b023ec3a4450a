//! The transport contract over pretend devices in each mode, and on a machine without a device.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_rdma::Rdma;
use thalweg_transport::Options;
use thalweg_verbs::pretend::Behaviour;
use tokio::io::AsyncWriteExt;

mod common;
#[path = "../../tcp/tests/common/trust.rs"]
mod trust;
use common::{factory, options};
use trust::Trust;

/// Options of links in the clear. The `trust` module needs this function.
fn plain() -> Options {
    Options::default()
}

mod in_the_clear {
    use super::*;

    fn clear() -> Factory {
        let mut factory = factory(Behaviour::default(), "{}");
        factory.intruder = Some(Arc::new(|address| {
            Box::pin(async move {
                let mut stream = tokio::net::TcpStream::connect(address.authority()).await.unwrap();
                // The listener may have hung up before the request is sent.
                let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await;
            })
        }));
        factory
    }

    suite!(clear());
    unauthenticated_peers!(clear());
}

mod over_a_trusted_fabric {
    use super::*;

    fn trusting() -> Factory {
        let (trust, other) = (Trust::new(), Trust::new());
        let own = options(r#"{"trust": "fabric"}"#).own;
        let known = Options { own: own.clone(), ..trust.connect(Some(trust.client("clinic-3", 1))) };
        let listen = Options { own, ..trust.listen(true) };
        let mut factory =
            factory(Behaviour { seed: 7, delay: 0.3, ..Behaviour::default() }, "{}").options(listen, known);
        factory.stranger = Some(other.connect(None));
        factory
    }

    suite!(trusting());
    unauthenticated_peers!(trusting());
}

mod in_fedrdma_e {
    use super::*;

    fn printed() -> Factory {
        factory(
            Behaviour { windows: false, ..Behaviour::default() },
            r#"{"mode": "fedrdma-e", "piece": 20000}"#,
        )
    }

    suite!(printed());
}

mod over_several_pairs {
    use super::*;

    fn striped() -> Factory {
        let behaviour = Behaviour { seed: 9, delay: 0.2, ..Behaviour::default() };
        factory(behaviour, r#"{"pairs": 3}"#)
    }

    suite!(striped());
    unauthenticated_peers!(striped());
}

#[cfg(feature = "baselines")]
mod in_fedrdma {
    use super::*;

    fn first() -> Factory {
        let behaviour = Behaviour { seed: 5, delay: 0.1, ..Behaviour::default() };
        factory(behaviour, r#"{"mode": "fedrdma", "piece": 20000}"#)
    }

    suite!(first());
}

mod in_pull {
    use super::*;

    fn read() -> Factory {
        let behaviour = Behaviour { seed: 3, delay: 0.2, reads: 4, ..Behaviour::default() };
        factory(behaviour, r#"{"mode": "pull"}"#)
    }

    suite!(read());
    unauthenticated_peers!(read());
}

mod without_a_device {
    use super::*;

    fn missing() -> Factory {
        let mut factory = Factory::new(Arc::new(Rdma::default()), "rdma://127.0.0.1:0");
        factory.relayed = false;
        if thalweg_verbs::system::device(None).is_ok() {
            factory.missing = Some("this machine has an RDMA device".into());
        }
        factory
    }

    suite!(missing());
    unauthenticated_peers!(missing());
}
