//! The transport contract, tested with the endpoint in front. Each test has a host of its own. If the system
//! does not allow that, the tests run over plain tcp.
#![allow(clippy::unwrap_used)] // a panic is how tests report
#![cfg(target_os = "linux")]

use std::cell::RefCell;
use std::sync::Arc;

use thalweg_conformance::{suite, Factory};
use thalweg_layers::{Layer, Seal};
use thalweg_transport::{Options, Value};
use thalweg_unifl::Unifl;
use tokio::io::AsyncWriteExt;

mod common;
use common::{plain, Trust};

fn factory(address: &str) -> Factory {
    with(plain(), address)
}

fn with(options: Options, address: &str) -> Factory {
    let mut factory = Factory::new(Arc::new(Unifl), address).options(options.clone(), options);
    factory.intruder = Some(Arc::new(|address| {
        Box::pin(async move {
            let mut stream = tokio::net::TcpStream::connect(address.authority()).await.unwrap();
            // The other end may have hung up in the middle of the test.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await;
        })
    }));
    factory
}

thread_local! {
    static MISSING: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Moves the test's thread to a host of its own. The runtime's threads follow.
fn on_a_host() -> Option<thalweg_lab::Lab> {
    match common::lab(serde_json::json!({}), serde_json::json!({})) {
        Ok(lab) => {
            common::go_to(&lab, "b");
            Some(lab)
        }
        Err(why) => {
            MISSING.set(Some(why));
            None
        }
    }
}

/// Moves the test's thread to a host of its own that forwards IPv6. The runtime's threads follow.
fn on_a_router() -> Option<thalweg_lab::Lab> {
    let lab = on_a_host()?;
    common::forward_ipv6();
    Some(lab)
}

fn in_front(address: &str) -> Factory {
    let mut factory = factory(address);
    factory.missing = MISSING.take();
    factory
}

/// The eBPF back end: the kernel's TCP with programs in front of it.
fn compacted(address: &str) -> Factory {
    let Options { own, send_buffer, receive_buffer, .. } = plain();
    let own = own.with("backend", Value::Text("ebpf".into()));
    let mut factory = with(Options { own, send_buffer, receive_buffer, ..Options::default() }, address);
    factory.missing = MISSING.take();
    factory
}

mod compacted_on_a_host {
    use super::*;
    suite!(before { on_a_host() }; compacted("unifl://10.77.0.2:0"));
}

mod compacted_over_ipv6 {
    use super::*;
    suite!(before { on_a_host() }; compacted("unifl://[fd77::2]:0"));
}

mod in_front_of_a_host {
    use super::*;
    suite!(before { on_a_host() }; in_front("unifl://10.77.0.2:0"));
}

mod in_front_of_a_host_over_ipv6 {
    use super::*;
    suite!(before { on_a_router() }; in_front("unifl://[fd77::2]:0"));
}

/// Control messages travel under TLS, and chunks sealed on connections without TLS.
mod sealed_in_front_of_a_host {
    use super::*;

    fn sealed() -> Factory {
        let (trust, other) = (Trust::new(), Trust::new());
        let mut factory = in_front("unifl://10.77.0.2:0").options(trust.listen(false), trust.connect(None));
        factory.stranger = Some(other.connect(None));
        factory.transport = Seal::default().wrap(Arc::new(Unifl));
        factory
    }

    suite!(before { on_a_host() }; sealed());
}

mod as_plain_tcp {
    use super::*;
    // The loopback loses nothing.
    suite!(factory("unifl://127.0.0.1:0"));
}
