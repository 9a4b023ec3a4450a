//! A relay between the two ends of links over TCP, which lets as many bytes pass as a test allows.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use thalweg_transport::{Address, Link, Listener, Options, Transport};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What no test sends.
const ALL: u64 = 1 << 60;

/// Bytes that may still pass in one direction, on all connections together.
#[derive(Clone)]
pub struct Gate(Arc<watch::Sender<u64>>);

impl Gate {
    fn open() -> Self {
        Self(Arc::new(watch::Sender::new(ALL)))
    }

    /// Lets so many more bytes pass, and no others.
    pub fn allow(&self, bytes: u64) {
        self.0.send_replace(bytes);
    }

    /// Lets everything pass.
    pub fn release(&self) {
        self.allow(ALL);
    }

    /// Waits until some of `bytes` may pass, and says how many.
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
            // It fails when the sender is gone, which we hold.
            let _ = changed.changed().await;
        }
    }
}

/// A relay on this machine.
pub struct Relay {
    ip: IpAddr,
    port: u16,
    /// From whoever connects.
    pub up: Gate,
    /// To whoever connects.
    pub down: Gate,
}

impl Relay {
    /// One in front of `address`, which is on this machine too. It lets everything pass at first.
    pub(crate) async fn before(address: &Address) -> Self {
        // Of the listener's kind: its peers may have to reach other ports of it as well.
        let ip = address.host.parse().unwrap_or(Ipv4Addr::LOCALHOST.into());
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (up, down) = (Gate::open(), Gate::open());
        let (authority, gates) = (address.authority(), (up.clone(), down.clone()));
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

    /// Both ends of a link through one: the connecting and the accepted one, which is admitted.
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

    /// Where to connect, by the name that certificates are for.
    pub(crate) fn address(&self, behind: &Address) -> Address {
        let host = if behind.host == "localhost" { "localhost".into() } else { self.ip.to_string() };
        Address { host, port: Some(self.port), ..behind.clone() }
    }
}

/// Passes on what comes until one end has gone.
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
    let _ = to.shutdown().await; // it fails where the other end has gone too
}
