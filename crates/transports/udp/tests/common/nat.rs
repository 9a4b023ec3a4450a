//! A NAT between one client and a listener without TLS: each of the client's sockets is seen from a port of the NAT,
//! which may change, and be that of another address.
#![allow(dead_code, clippy::unwrap_used)] // each file uses a part; a panic is how tests report

use std::collections::HashSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_transport::{Address, Listener};
use tokio::net::UdpSocket;
use tokio::sync::watch;

/// The address to which the client of the first NAT connects. Each further NAT of this process has the next address.
/// There it listens at its listener's own ports. With one address for all, two NATs could need the same port.
const INSIDE: u32 = u32::from_be_bytes([127, 1, 0, 0]);
static NATS: AtomicU32 = AtomicU32::new(0);
/// Longest datagram that passes.
const LONGEST: usize = 2000;

pub struct Nat {
    /// Where the client finds the listener.
    pub address: Address,
    shared: Arc<Shared>,
}

struct Shared {
    /// First letters of the transport's handshake.
    magic: [u8; 4],
    inside: Ipv4Addr,
    to: SocketAddr,
    /// The address from which the NAT's sockets send outside. A change, to the same one too, gives each a new port.
    outside: watch::Sender<IpAddr>,
    /// Datagrams of the client that have passed, and after how many the NAT changes by itself.
    passed: AtomicUsize,
    changes_at: Option<(usize, IpAddr)>,
    /// The listener's ports for which a socket passes datagrams.
    ports: Mutex<HashSet<u16>>,
    /// The last datagram of the client to each of the listener's ports, and the port.
    last: Mutex<Vec<(u16, Vec<u8>)>>,
}

pub const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Another network.
pub const AWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

impl Nat {
    /// A NAT in front of a listener at loopback. It changes to another address after so many datagrams of the client.
    pub async fn before(listener: &dyn Listener, changes_at: Option<(usize, IpAddr)>) -> Self {
        let Address { scheme, port, .. } = listener.address();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap()));
        let mut magic = *b"tlw?";
        magic[3] = scheme.as_bytes()[0];
        let shared = Arc::new(Shared {
            magic,
            inside: Ipv4Addr::from(INSIDE + NATS.fetch_add(1, Ordering::SeqCst)),
            to,
            outside: watch::Sender::new(HOME),
            passed: AtomicUsize::new(0),
            changes_at,
            ports: Mutex::default(),
            last: Mutex::default(),
        });
        let inside = UdpSocket::bind((shared.inside, to.port())).await.unwrap();
        let address = format!("{scheme}://{}", inside.local_addr().unwrap());
        begin(shared.clone(), inside, to);
        Self { address: Address::parse(&address).unwrap(), shared }
    }

    /// Gives all of the client's sockets new ports, at this address.
    pub fn change(&self, outside: IpAddr) {
        self.shared.outside.send_replace(outside);
    }

    /// Datagrams of the client that have passed.
    pub fn passed(&self) -> usize {
        self.shared.passed.load(Ordering::SeqCst)
    }

    /// The last datagram of the client to each of the listener's ports, and the address of that port.
    pub fn last(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        let last = self.shared.last.lock().unwrap();
        last.iter().map(|(port, bytes)| (SocketAddr::new(HOME, *port), bytes.clone())).collect()
    }
}

/// Begins to pass the datagrams of one of the client's sockets.
fn begin(shared: Arc<Shared>, inside: UdpSocket, to: SocketAddr) {
    let passing: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(pass(shared, inside, to));
    tokio::spawn(passing);
}

async fn pass(shared: Arc<Shared>, inside: UdpSocket, to: SocketAddr) {
    let (mut up, mut down, mut client) = ([0; LONGEST], [0; LONGEST], None);
    let mut changes = shared.outside.subscribe();
    loop {
        let address = *changes.borrow_and_update();
        let outside = UdpSocket::bind((address, 0)).await.unwrap();
        outside.connect(to).await.unwrap();
        loop {
            tokio::select! {
                _ = changes.changed() => break,
                Ok((bytes, from)) = inside.recv_from(&mut up) => {
                    client = Some(from);
                    shared.note(to.port(), &up[..bytes]);
                    let _ = outside.send(&up[..bytes]).await;
                }
                Ok(bytes) = outside.recv(&mut down) => {
                    for port in shared.offered(&down[..bytes]) {
                        let inside = UdpSocket::bind((shared.inside, port)).await.unwrap();
                        begin(shared.clone(), inside, SocketAddr::new(to.ip(), port));
                    }
                    if let Some(client) = client {
                        let _ = inside.send_to(&down[..bytes], client).await;
                    }
                }
            }
        }
    }
}

impl Shared {
    fn note(&self, port: u16, datagram: &[u8]) {
        let passed = self.passed.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some((_, address)) = self.changes_at.filter(|(count, _)| *count == passed) {
            self.outside.send_replace(address);
        }
        let mut last = self.last.lock().unwrap();
        last.retain(|(other, _)| *other != port);
        last.push((port, datagram.to_vec()));
    }

    /// The ports of the listener's offer (`hello.rs`), if this is a packet that has it, the first time.
    fn offered(&self, datagram: &[u8]) -> Vec<u16> {
        let at = datagram.windows(4).position(|letters| letters == self.magic);
        let ports = at.and_then(|at| datagram.get(at + 22..at + 26)).unwrap_or_default();
        let ports = ports.chunks_exact(2).map(|port| u16::from_le_bytes([port[0], port[1]]));
        let mut known = self.ports.lock().unwrap();
        ports.filter(|port| *port != self.to.port() && known.insert(*port)).collect()
    }
}
