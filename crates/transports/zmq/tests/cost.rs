//! Checks the maximum cost of unauthenticated peers' connections, as docs/explanation/security.md states it.
//! It measures the memory of its own process, so no other test shares the file.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::time::Duration;

use thalweg_transport::{AdmissionQueue, Bounds, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

mod common;
use common::{listen, options};

const UNAUTHENTICATED_PEERS: usize = 200;
/// Maximum number of bytes of memory for each connection.
const EACH: u64 = 256 << 10;

/// Resident bytes of this process (proc(5), statm); `None` where the system does not say.
fn resident() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    pages.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

fn descriptors() -> Option<usize> {
    std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

/// The bytes that a peer sends (ZMTP 3.1, RFC 37): the handshake of a DEALER; then a message of 60 parts and
/// a PING. The PONG shows that the listener has read the rest.
fn handshake(number: u8) -> (Vec<u8>, Vec<u8>) {
    let property = |name: &str, value: &[u8]| {
        [&[name.len() as u8], name.as_bytes(), &(value.len() as u32).to_be_bytes(), value].concat()
    };
    let command = |content: &[u8]| [&[4, content.len() as u8], content].concat();
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    let identity = [&[0x81, number][..], &[0; 14]].concat();
    let ready = [property("Socket-Type", b"DEALER"), property("Identity", &identity)].concat();
    bytes.extend(command(&[&[5], &b"READY"[..], &ready].concat()));
    let opening = std::mem::take(&mut bytes);
    for flags in [vec![3; 59], vec![2]].concat() {
        bytes.extend_from_slice(&[flags, 0, 0, 0, 0, 0, 0, 4, 0]);
        bytes.resize(bytes.len() + 1024, 7);
    }
    bytes.extend(command(b"\x04PING\0\0"));
    (opening, bytes)
}

#[tokio::test]
async fn connections_of_unknown_peers_cost_what_the_documents_say() {
    let (Some(memory), Some(files)) = (resident(), descriptors()) else {
        return println!("skipped: the system has no /proc/self");
    };
    let bounds = Bounds {
        total: UNAUTHENTICATED_PEERS,
        share: UNAUTHENTICATED_PEERS,
        timeout: Duration::from_secs(60),
    };
    let admission_queue = AdmissionQueue::new(bounds);
    let listener =
        listen(&Options { admission_queue: Some(admission_queue.clone()), ..options("router") }).await;
    let mut streams = Vec::new();
    for number in 0..UNAUTHENTICATED_PEERS {
        let mut stream = TcpStream::connect(("127.0.0.1", listener.address().port.unwrap())).await.unwrap();
        let (opening, rest) = handshake(number as u8);
        stream.write_all(&opening).await.unwrap();
        stream.read_exact(&mut [0; 64 + 28]).await.unwrap();
        stream.write_all(&rest).await.unwrap();
        streams.push(stream);
    }
    for stream in &mut streams {
        let mut seen = Vec::new();
        while !seen.windows(4).any(|four| four == b"PONG") {
            assert!(stream.read_buf(&mut seen).await.unwrap() > 0, "it hung up");
        }
    }
    let memory = resident().unwrap().saturating_sub(memory) / UNAUTHENTICATED_PEERS as u64;
    let files = descriptors().unwrap() - files;
    println!(
        "{memory} bytes and {files} descriptors for {UNAUTHENTICATED_PEERS} connections, those of the peers among them"
    );
    assert!(memory <= EACH, "{memory} bytes for each");
    assert!(files <= 2 * UNAUTHENTICATED_PEERS + 64, "{files} descriptors");
}
