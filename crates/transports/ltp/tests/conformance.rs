//! Runs the tests of the transport contract over ltp links.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_ltp::Ltp;
use thalweg_transport::{Options, Value};
use tokio::io::AsyncWriteExt;

mod common;
use common::{small, Trust};

fn factory(host: &str, options: &Options) -> Factory {
    between(host, options.clone(), options.clone())
}

fn between(host: &str, listen: Options, connect: Options) -> Factory {
    let mut factory = Factory::new(Arc::new(Ltp), &format!("ltp://{host}:0"));
    factory = factory.options(listen, connect);
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

mod with_repair_packets {
    use super::*;
    use thalweg_transport::Fraction;

    fn repairing(options: &Options) -> Options {
        let own = options.own.clone().with("repair", Value::Share(Fraction::millionths(300_000)));
        Options { own, ..options.clone() }
    }

    mod in_the_clear {
        use super::*;
        suite!(factory("127.0.0.1", &repairing(&small())));
    }

    mod sealed {
        use super::*;

        fn sealed() -> Factory {
            let (trust, other) = (Trust::new(), Trust::new());
            let (listen, connect) = (repairing(&trust.listen(false)), repairing(&trust.connect(None)));
            let mut factory = between("localhost", listen, connect);
            factory.stranger = Some(other.connect(None));
            factory
        }

        suite!(sealed());
    }
}

mod closed_early {
    use super::*;

    fn early() -> Factory {
        let options = small();
        let own = options
            .own
            .clone()
            .with("close_percent", Value::Number(90))
            .with("deadline_ms", Value::Number(60_000));
        factory("127.0.0.1", &Options { own, ..options })
    }

    suite!(early());
    unauthenticated_peers!(early());
}
