//! Runs the tests of the transport contract over every kind of tcp link.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_tcp::Tcp;
use thalweg_transport::Options;
use tokio::io::AsyncWriteExt;

mod common;
use common::{plain, streams, Trust};

fn factory(host: &str, listen: Options, connect: Options) -> Factory {
    let mut factory = Factory::new(Arc::new(Tcp), &format!("tcp://{host}:0")).options(listen, connect);
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

mod over_ipv6 {
    use super::*;
    suite!(factory("[::1]", plain(), plain()));
    unauthenticated_peers!(factory("[::1]", plain(), plain()));
}

mod over_four_streams {
    use super::*;
    suite!(factory("127.0.0.1", streams(4), streams(4)));
    unauthenticated_peers!(factory("127.0.0.1", streams(4), streams(4)));
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

mod under_mutual_tls_over_three_streams {
    use super::*;

    fn striped() -> Factory {
        let trust = Trust::new();
        let known = trust.connect(Some(trust.client("clinic-3", 1)));
        factory("127.0.0.1", trust.listen(true), Options { streams: 3, ..known })
    }

    suite!(striped());

    unauthenticated_peers!(striped());
}
