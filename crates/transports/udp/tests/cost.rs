//! Checks the maximum cost of unauthenticated peers, as docs/explanation/security.md states it. It measures
//! the memory of its own process, so no other test shares the file.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use thalweg_conformance::Recorder;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, AdmissionQueue, Bounds, Link, Listener, Options, Transport};
use thalweg_udp::Udp;
use tokio::net::UdpSocket;

mod common;
use common::listen;

const UNAUTHENTICATED_PEERS: usize = 60;
/// Descriptors of each unauthenticated peer.
const SOCKETS: usize = 3;
/// Maximum number of bytes of memory for each unauthenticated peer.
const EACH: u64 = 128 << 10;

/// Resident bytes of this process (proc(5), statm); `None` where the system does not say.
fn resident() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    pages.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

fn descriptors() -> Option<usize> {
    std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

/// Shakes hands as a connecting end, then sends as many long datagrams as the kernel accepts.
async fn shake(listener: &dyn Listener) -> (Arc<dyn Link>, [UdpSocket; 2]) {
    let address = Address { scheme: "tcp".into(), ..listener.address() };
    let control = Tcp.connect(&address, &Options::default()).await.unwrap();
    let offer = control.receive(&Recorder::new(0)).await.unwrap();
    control.send_control([&b"tlwu\x03"[..], &1_000_000_u64.to_le_bytes()].concat().into()).await.unwrap();
    let mut sockets = Vec::new();
    for (number, port) in [(0_u8, &offer[22..24]), (1, &offer[24..26])] {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(("127.0.0.1", u16::from_le_bytes([port[0], port[1]]))).await.unwrap();
        socket
            .send(&[&offer[5..21], &[4, 0, 0, 0, 0, 0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0]].concat())
            .await
            .unwrap();
        sockets.push(socket);
    }
    for socket in &sockets {
        for _ in 0..16 {
            // Ignore an error: the kernel may have no room for the datagram.
            let _ = socket.send(&[&offer[5..21], &[1; 60_000]].concat()).await;
        }
    }
    (control, sockets.try_into().unwrap())
}

#[tokio::test]
async fn unauthenticated_peers_cost_what_the_documents_say() {
    let (Some(memory), Some(files)) = (resident(), descriptors()) else {
        return println!("skipped: the system has no /proc/self");
    };
    let total = UNAUTHENTICATED_PEERS * SOCKETS;
    let admission_queue =
        AdmissionQueue::new(Bounds { total, share: total, timeout: Duration::from_secs(60) });
    let options = Options { admission_queue: Some(admission_queue.clone()), ..Options::default() };
    let listener = listen(&Udp, &options).await;
    let mut unauthenticated_peers = Vec::new();
    for _ in 0..UNAUTHENTICATED_PEERS {
        let accept = async { listener.accept().await.unwrap().await.unwrap() };
        let (peer, link) = tokio::join!(shake(&*listener), accept);
        let sink = Arc::new(Recorder::new(0));
        let (receiving, received) = (link.clone(), sink.clone());
        let task = tokio::spawn(async move { receiving.receive(&*received).await });
        unauthenticated_peers.push((peer, link, task));
        tokio::task::yield_now().await;
    }
    let memory = resident().unwrap().saturating_sub(memory) / UNAUTHENTICATED_PEERS as u64;
    let files = descriptors().unwrap() - files;
    println!("{memory} bytes and {files} descriptors for {UNAUTHENTICATED_PEERS} unauthenticated peers, those of the peers among them");
    assert_eq!(admission_queue.count(), total);
    assert!(memory <= EACH, "{memory} bytes for each");
    assert!(files <= 2 * total + 16, "{files} descriptors");
}
