//! Runs the tests of the transport contract over every kind of grpc link.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_grpc::Grpc;
use thalweg_transport::Options;
use tokio::io::AsyncWriteExt;

mod common;
use common::{plain, push, unary, Trust};

fn factory(host: &str, listen: Options, connect: Options) -> Factory {
    let mut factory = Factory::new(Arc::new(Grpc), &format!("grpc://{host}:0")).options(listen, connect);
    factory.intruder = Some(Arc::new(|address| {
        Box::pin(async move {
            let mut stream = tokio::net::TcpStream::connect(address.authority()).await.unwrap();
            // The other end may hang up during this write.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await;
        })
    }));
    factory
}

mod in_the_clear {
    use super::*;
    suite!(factory("127.0.0.1", plain(), plain()));
    unauthenticated_peers!(factory("127.0.0.1", plain(), plain()));
}

mod with_the_systems_buffers {
    use super::*;
    suite!(factory("127.0.0.1", Options::default(), Options::default()));
    unauthenticated_peers!(factory("127.0.0.1", Options::default(), Options::default()));
}

mod over_ipv6 {
    use super::*;
    suite!(factory("[::1]", plain(), plain()));
    unauthenticated_peers!(factory("[::1]", plain(), plain()));
}

mod under_tls {
    use super::*;

    fn encrypted() -> Factory {
        let (trust, other) = (Trust::new(), Trust::new());
        let mut factory = factory("localhost", trust.listen(false), trust.connect(None));
        factory.stranger = Some(other.connect(None));
        factory
    }

    suite!(encrypted());

    unauthenticated_peers!(encrypted());
}

/// In unary mode, all of an update is in memory before its first chunk is placed. Placing this many bytes
/// takes far longer than a message needs to overtake the update.
const BULK: u64 = 128 << 20;

mod in_unary_mode {
    use super::*;

    fn unary_factory() -> Factory {
        let mut factory = factory("127.0.0.1", unary(plain()), unary(plain()));
        factory.bulk = BULK;
        factory
    }

    suite!(unary_factory());

    unauthenticated_peers!(unary_factory());
}

mod in_unary_mode_under_tls {
    use super::*;

    fn encrypted() -> Factory {
        let (trust, other) = (Trust::new(), Trust::new());
        let mut factory = factory("localhost", unary(trust.listen(false)), unary(trust.connect(None)));
        factory.stranger = Some(unary(other.connect(None)));
        factory.bulk = BULK;
        factory
    }

    suite!(encrypted());

    unauthenticated_peers!(encrypted());
}

mod in_push_mode {
    use super::*;

    fn push_factory() -> Factory {
        const PIECE: u64 = 64 << 10;
        factory("127.0.0.1", push(plain(), PIECE), push(plain(), PIECE))
    }

    suite!(push_factory());
}

mod under_mutual_tls {
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
