//! The transport contract over udp links.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, Factory};
use thalweg_transport::Options;
use thalweg_udp::Udp;
use tokio::io::AsyncWriteExt;

mod common;
use common::small;

fn factory(host: &str, options: &Options) -> Factory {
    let mut factory = Factory::new(Arc::new(Udp), &format!("udp://{host}:0"));
    factory = factory.options(options.clone(), options.clone());
    factory.intruder = Some(Arc::new(|address| {
        Box::pin(async move {
            let mut stream = tokio::net::TcpStream::connect(address.authority()).await.unwrap();
            // The other end may have hung up in the middle of it.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await;
        })
    }));
    factory
}

mod in_the_clear {
    use super::*;
    suite!(factory("127.0.0.1", &small()));
}

mod over_ipv6 {
    use super::*;
    suite!(factory("[::1]", &small()));
}

mod with_the_largest_buffers {
    use super::*;
    suite!(factory("127.0.0.1", &Options::default()));
}
