//! The transport contract: with the endpoint in front, each test on a host of its own, and as plain tcp where the system
//! does not let it be.
#![allow(clippy::unwrap_used)] // a panic is how tests report
#![cfg(target_os = "linux")]

use std::cell::RefCell;
use std::sync::Arc;

use thalweg_conformance::{suite, Factory};
use thalweg_transport::{Options, Settings, Share, Value};
use thalweg_unifl::Unifl;
use tokio::io::AsyncWriteExt;

mod common;

/// Small buffers, so that a peer that does not receive blocks its sender; and all of an update comes.
fn options() -> Options {
    let own = Settings::default().with("budget", Value::Share(Share::millionths(0)));
    let (send_buffer, receive_buffer) = (Some(64 << 10), Some(256 << 10));
    Options { own, send_buffer, receive_buffer, ..Options::default() }
}

fn factory(address: &str) -> Factory {
    let mut factory = Factory::new(Arc::new(Unifl), address).options(options(), options());
    factory.intruder = Some(Arc::new(|address| {
        Box::pin(async move {
            let mut stream = tokio::net::TcpStream::connect(address.authority()).await.unwrap();
            // The other end may have hung up in the middle of it.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await;
        })
    }));
    factory
}

thread_local! {
    static MISSING: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Moves the test's thread, and the runtime's threads with it, to a host of its own.
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

/// The same, where IPv6 is forwarded.
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

mod in_front_of_a_host {
    use super::*;
    suite!(before { on_a_host() }; in_front("unifl://10.77.0.2:0"));
}

mod in_front_of_a_host_over_ipv6 {
    use super::*;
    suite!(before { on_a_router() }; in_front("unifl://[fd77::2]:0"));
}

mod as_plain_tcp {
    use super::*;
    // Nothing is lost there.
    suite!(factory("unifl://127.0.0.1:0"));
}
