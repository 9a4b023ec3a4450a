//! Tests that everything a server or client has started ends with it. All of them share one runtime in a
//! process.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Instant;

use common::{client, layout, round, LIMIT};
use serde_json::json;
use thalweg_arena::Arena;
use thalweg_runtime::{Server, ServerOptions};
use thalweg_wire::Layout;

/// Opens a server as soon as its address is free: libzmq frees a port on a thread of its own, shortly after
/// the end.
fn open(layout: &Layout, address: &str) -> Server {
    let started = Instant::now();
    loop {
        let options: ServerOptions = serde_json::from_value(json!({ "expected": 2, "enough": 2 })).unwrap();
        match Server::start(Arena::new(layout.bytes()).unwrap(), layout.clone(), address, options) {
            Ok(server) => return server,
            Err(error) => {
                let moment = address.starts_with("zmq")
                    && error.kind() == thalweg_runtime::Kind::InUse
                    && started.elapsed() < LIMIT;
                assert!(moment, "{address}: {error}");
                std::thread::yield_now();
            }
        }
    }
}

/// Runs a job of one round. Returns the address that its server listened at.
fn job(address: &str, mut at_end: impl FnMut()) -> String {
    let layout = layout(1000);
    let mut server = open(&layout, address);
    let address = server.address();
    let clients = ["a", "b"].map(|name| client(&address, name, json!({}), 1.0, 1));
    assert_eq!(server.wait(2, Some(LIMIT), None), 2);
    assert_eq!(round(&server, 1).unwrap()["complete"], true);
    at_end();
    server.close("done");
    for client in clients {
        client.join().unwrap().unwrap();
    }
    address
}

/// The runtime outlives a server, so nothing that the server's transport has started may keep the address.
#[test]
fn a_server_that_was_closed_leaves_its_address_to_the_next() {
    for scheme in ["tcp", "udp", "ltp", "grpc", "zmq", "memory"] {
        let first =
            if scheme == "memory" { "memory://reopening".into() } else { format!("{scheme}://127.0.0.1:0") };
        let address = job(&first, || ());
        for _ in 0..3 {
            assert_eq!(job(&address, || ()), address, "{scheme}");
        }
    }
}

#[cfg(target_os = "linux")]
fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "thalweg").count()
}

/// Threads for blocking work come and go under the same name. One worker for each core stays.
#[cfg(target_os = "linux")]
#[test]
fn many_servers_and_clients_have_the_threads_of_one() {
    let mut most = Vec::new();
    for jobs in [1, 20] {
        let at_once: Vec<_> = (0..jobs)
            .map(|number| {
                std::thread::spawn(move || {
                    let mut seen = 0;
                    job(&format!("memory://threads-{jobs}-{number}"), || seen = workers());
                    seen
                })
            })
            .collect();
        most.push(at_once.into_iter().map(|job| job.join().unwrap()).max().unwrap());
    }
    let blocking = 2 * 20; // at most one fold for each client
    assert!(most[1] <= most[0] + blocking, "{most:?}");
}
