//! Runs the transport contract's tests over `udp` links.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_transport::{Options, Value};
use thalweg_udp::Udp;
use tokio::io::AsyncWriteExt;

mod common;
use common::{small, Trust};

fn factory(host: &str, options: &Options) -> Factory {
    between(host, options.clone(), options.clone())
}

fn between(host: &str, listen: Options, connect: Options) -> Factory {
    let mut factory = Factory::new(Arc::new(Udp), &format!("udp://{host}:0"));
    factory = factory.options(listen, connect);
    factory.intruder = Some(Arc::new(|address| {
        Box::pin(async move {
            let mut stream = tokio::net::TcpStream::connect(address.authority()).await.unwrap();
            // The listener may close the connection meanwhile.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await;
        })
    }));
    factory
}

mod in_the_clear {
    use super::*;
    suite!(factory("127.0.0.1", &small()));
    unauthenticated_peers!(factory("127.0.0.1", &small()));
}

mod sealed_under_tls {
    use super::*;

    fn sealed() -> Factory {
        let (trust, other) = (Trust::new(), Trust::new());
        let mut factory = between("localhost", trust.listen(false), trust.connect(None));
        factory.stranger = Some(other.connect(None));
        factory
    }

    suite!(sealed());
    unauthenticated_peers!(sealed());
}

mod sealed_with_chacha_under_mutual_tls {
    use super::*;

    fn sealed() -> Factory {
        let trust = Trust::new();
        let known = trust.connect(Some(trust.client("clinic-3", 1)));
        let listen = trust.listen(true);
        let own = listen.own.clone().with("cipher", Value::Text("chacha20-poly1305".into()));
        let mut factory = between("127.0.0.1", Options { own, ..listen }, known);
        factory.stranger = Some(trust.connect(None));
        factory
    }

    suite!(sealed());
    unauthenticated_peers!(sealed());
}

mod over_ipv6 {
    use super::*;
    suite!(factory("[::1]", &small()));
    unauthenticated_peers!(factory("[::1]", &small()));
}

mod with_the_largest_buffers {
    use super::*;
    suite!(factory("127.0.0.1", &Options::default()));
    unauthenticated_peers!(factory("127.0.0.1", &Options::default()));
}
