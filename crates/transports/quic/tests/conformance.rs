//! Runs the tests of the transport contract over links with and without certificates.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_quic::Quic;
use thalweg_transport::Options;

mod common;
use common::{plain, Trust};

fn factory(host: &str, listen: Options, connect: Options) -> Factory {
    let mut factory = Factory::new(Arc::new(Quic), &format!("quic://{host}:0")).options(listen, connect);
    factory.relayed = false; // the relay of the tests carries TCP
    factory
}

mod unverified {
    use super::*;
    suite!(factory("127.0.0.1", plain(), plain()));
    unauthenticated_peers!(factory("127.0.0.1", plain(), plain()));
}

mod over_ipv6 {
    use super::*;
    suite!(factory("[::1]", plain(), plain()));
    unauthenticated_peers!(factory("[::1]", plain(), plain()));
}

mod with_a_certificate {
    use super::*;

    fn verified() -> Factory {
        let (trust, other) = (Trust::new(), Trust::new());
        let mut factory = factory("localhost", trust.listen(false), trust.connect(None));
        factory.stranger = Some(other.connect(None));
        factory
    }

    suite!(verified());

    unauthenticated_peers!(verified());
}

mod with_certificates_at_both_ends {
    use super::*;

    fn mutual() -> Factory {
        let trust = Trust::new();
        let known = trust.connect(Some(trust.client("clinic-3", 1)));
        let mut factory = factory("127.0.0.1", trust.listen(true), known);
        factory.stranger = Some(trust.connect(None));
        factory
    }

    suite!(mutual());

    unauthenticated_peers!(mutual());
}
