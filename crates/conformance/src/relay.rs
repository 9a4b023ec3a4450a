//! A relay between the two ends of links over TCP. It lets only as many bytes pass as a test allows. Datagrams to
//! its port pass too, those of one client, but only while all bytes may pass: the others are lost.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use thalweg_transport::{Address, Link, Listener, Options, Transport};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

/// More bytes than any test sends.
const ALL: u64 = 1 << 60;

/// Number of bytes that may still pass in one direction, on all connections together.
#[derive(Clone)]
pub struct Gate(Arc<watch::Sender<u64>>);

impl Gate {
    fn open() -> Self {
        Self(Arc::new(watch::Sender::new(ALL)))
    }

    /// Lets exactly `bytes` more bytes pass.
    pub fn allow(&self, bytes: u64) {
        self.0.send_replace(bytes);
    }

    /// Lets all bytes pass.
    pub fn release(&self) {
        self.allow(ALL);
    }

    fn is_open(&self) -> bool {
        *self.0.borrow() > ALL / 2
    }

    /// Waits until some of `bytes` may pass. Returns how many.
    async fn take(&self, bytes: usize) -> usize {
        let mut changed = self.0.subscribe();
        loop {
            let mut taken = 0;
            self.0.send_if_modified(|left| {
                taken = (*left).min(bytes as u64);
                *left -= taken;
                false
            });
            if taken > 0 {
                return taken as usize;
            }
            // `changed` fails only if the sender is dropped, and this gate holds it.
            let _ = changed.changed().await;
        }
    }
}

/// A relay on this machine.
pub struct Relay {
    ip: IpAddr,
    port: u16,
    /// Gate for bytes from the connecting end.
    pub up: Gate,
    /// Gate for bytes to the connecting end.
    pub down: Gate,
}

impl Relay {
    /// Starts a relay in front of `address`, which must be on this machine. At first it lets all bytes pass.
    pub(crate) async fn before(address: &Address) -> Self {
        // Use the listener's IP address: its peers may have to reach other ports there, too.
        let ip = address.host.parse().unwrap_or(Ipv4Addr::LOCALHOST.into());
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (up, down) = (Gate::open(), Gate::open());
        let (authority, gates) = (address.authority(), (up.clone(), down.clone()));
        if let Ok(datagrams) = UdpSocket::bind((ip, port)).await {
            tokio::spawn(pass_datagrams(datagrams, authority.clone(), gates.clone()));
        }
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&authority).await else { continue };
                let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(from_near, to_far, gates.0.clone()));
                tokio::spawn(pass(from_far, to_near, gates.1.clone()));
            }
        });
        Self { ip, port, up, down }
    }

    /// Makes a link through a relay. Returns the connecting end, the accepted end, which is admitted, and the
    /// relay.
    pub async fn link(
        transport: &dyn Transport,
        listener: &dyn Listener,
        options: &Options,
    ) -> (Arc<dyn Link>, Arc<dyn Link>, Self) {
        let relay = Self::before(&listener.address()).await;
        let accept = async { listener.accept().await.unwrap().await.unwrap() };
        let address = relay.address(&listener.address());
        let connect = async { transport.connect(&address, options).await.unwrap() };
        let (client, server) = tokio::join!(connect, accept);
        server.admit();
        (client, server, relay)
    }

    /// The relay's address, with the host name for which certificates are issued.
    pub(crate) fn address(&self, behind: &Address) -> Address {
        let host = if behind.host == "localhost" { "localhost".into() } else { self.ip.to_string() };
        Address { host, port: Some(self.port), ..behind.clone() }
    }
}

/// Passes datagrams on between one client at `inside` and a listener.
async fn pass_datagrams(inside: UdpSocket, listener: String, (up, down): (Gate, Gate)) {
    let any = inside.local_addr().unwrap().ip();
    let outside = UdpSocket::bind((any, 0)).await.unwrap();
    outside.connect(&listener).await.unwrap();
    let (mut there, mut back) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut client = None;
    loop {
        // Errors are those of ICMP messages, and count as losses.
        tokio::select! {
            Ok((bytes, from)) = inside.recv_from(&mut there) => {
                client = Some(from);
                if up.is_open() {
                    let _ = outside.send(&there[..bytes]).await;
                }
            }
            Ok(bytes) = outside.recv(&mut back) => {
                if let Some(client) = client.filter(|_| down.is_open()) {
                    let _ = inside.send_to(&back[..bytes], client).await;
                }
            }
            else => tokio::task::yield_now().await,
        }
    }
}

/// Passes bytes on until one end is closed.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, gate: Gate) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(got @ 1..) = from.read(&mut buffer).await {
        let mut passed = 0;
        while passed < got {
            let more = gate.take(got - passed).await;
            if to.write_all(&buffer[passed..passed + more]).await.is_err() {
                return;
            }
            passed += more;
        }
    }
    let _ = to.shutdown().await; // fails if the other end is gone, too
}
