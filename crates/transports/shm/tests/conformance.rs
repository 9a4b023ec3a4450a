//! Runs the tests of the transport contract over shm links.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;

use thalweg_conformance::Factory;
use thalweg_shm::Shm;

fn factory() -> Factory {
    let mut factory = Factory::new(Arc::new(Shm), "shm://localhost:0");
    factory.intruder = Some(Arc::new(|address| {
        Box::pin(async move {
            let name = format!("thalweg-shm-{}", address.port.unwrap());
            let mut stream =
                UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
            // The other end may hang up during this write.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n");
        })
    }));
    factory
}

thalweg_conformance::suite!(factory());

thalweg_conformance::unauthenticated_peers!(factory());
