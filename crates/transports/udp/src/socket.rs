//! One UDP socket of a link: it sends batches by GSO and receives them by GRO, where the system has these.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use thalweg_seal::TAG_BYTES;
use thalweg_transport::{Error, ErrorKind, Options, Result};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::datagram::{Datagram, Encode, Key, Kind, WHOLE};
use crate::secure::Seal;

/// Bytes that one receive may bring: what the kernel joins at most.
const SLOT: usize = 64 << 10;
/// The same from a guest, which has nothing to say but hellos and probes.
const GUEST_SLOT: usize = 2 << 10;
/// Bytes that the kernel holds from a guest.
const GUEST_BUFFER: usize = 16 << 10;
/// Receives in one system call.
const SLOTS: usize = 4;
/// Most bytes of one send.
const MOST: usize = 65_000;
/// What we ask the kernel for where the options say nothing; it grants less if net.core.rmem_max is.
const WANTED: usize = 8 << 20;

/// A socket that datagrams of one peer are sent and received by.
pub struct Lane {
    socket: UdpSocket,
    state: UdpSocketState,
    peer: SocketAddr,
    /// What the kernel is asked to hold of what comes.
    wanted: usize,
    /// What the peer may have in flight towards this socket at most, by [`cost`](crate::window::cost).
    pub window: u64,
    /// Of the link.
    pub key: Key,
    seal: Option<Seal>,
}

/// A socket that has no peer yet.
pub(crate) struct Unbound {
    socket: UdpSocket,
    wanted: usize,
    /// What its receive buffer holds, by [`cost`](crate::window::cost).
    pub window: u64,
    pub port: u16,
}

impl Unbound {
    /// A socket at `ip` with buffers as the options say, else as large as they are granted. It says what it will hold;
    /// of a listener with a lobby it holds little until [`Lane::admit`].
    pub(crate) fn new(operation: &'static str, ip: IpAddr, options: &Options) -> Result<Self> {
        let failed = |e: &io::Error| Error::io(operation, format!("a UDP socket at {ip}"), e);
        let wanted = options.receive_buffer.map_or(WANTED, |bytes| bytes as usize);
        let make = || -> io::Result<Socket> {
            let domain = Domain::for_address(SocketAddr::new(ip, 0));
            let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_nonblocking(true)?;
            socket.set_recv_buffer_size(wanted)?;
            socket.set_send_buffer_size(options.send_buffer.map_or(WANTED, |bytes| bytes as usize))?;
            socket.bind(&SockAddr::from(SocketAddr::new(ip, 0)))?;
            Ok(socket)
        };
        let socket = make().map_err(|e| failed(&e))?;
        let granted = socket.recv_buffer_size().map_err(|e| failed(&e))?;
        if options.lobby.is_some() {
            socket.set_recv_buffer_size(GUEST_BUFFER.min(wanted)).map_err(|e| failed(&e))?;
        }
        let socket = UdpSocket::from_std(socket.into()).map_err(|e| failed(&e))?;
        let port = socket.local_addr().map_err(|e| failed(&e))?.port();
        // Half: the kernel frees what was read by quarters of the buffer.
        Ok(Self { socket, wanted, window: granted as u64 / 2, port })
    }

    /// Waits for the peer's hello and takes its source as the peer. It must come from `ip`, where the control connection
    /// comes from: who sends from there receives there, so nobody can have datagrams sent to somebody else.
    pub(crate) async fn greeted(
        self,
        operation: &'static str,
        ip: IpAddr,
        key: Key,
        seal: Option<Seal>,
        number: u64,
        way: Way,
    ) -> Result<Lane> {
        let mut buffer = [0; WHOLE];
        loop {
            let came = self.socket.recv_from(&mut buffer).await;
            let (length, from) = came.map_err(|e| Error::io(operation, "waiting for a hello", &e))?;
            let length = match &seal {
                Some(seal) => seal.open(&key, &mut buffer[..length]).unwrap_or(0),
                None => length,
            };
            let hello = Datagram::decode(&key, &buffer[..length]);
            if !hello.is_some_and(|hello| hello.kind == Kind::Hello && hello.position == number) {
                continue;
            }
            if from.ip().to_canonical() != ip.to_canonical() {
                return Err(elsewhere(operation, ip, from));
            }
            return self.joined(operation, from, key, seal, way).await;
        }
    }

    /// Takes datagrams of `peer` alone from now on.
    pub(crate) async fn joined(
        self,
        operation: &'static str,
        peer: SocketAddr,
        key: Key,
        seal: Option<Seal>,
        way: Way,
    ) -> Result<Lane> {
        let failed = |e: io::Error| Error::io(operation, format!("a UDP socket to {peer}"), &e);
        self.socket.connect(peer).await.map_err(failed)?;
        let state = match way {
            Way::In => UdpSocketState::new(UdpSockRef::from(&self.socket)),
            // It would forbid the kernel to fragment what this socket sends; what the kernel can do, any socket tells.
            Way::Out => probe(peer).and_then(|probe| UdpSocketState::new(UdpSockRef::from(&probe))),
        };
        let state = state.map_err(failed)?;
        let Self { socket, wanted, window, .. } = self;
        Ok(Lane { socket, state, peer, wanted, window, key, seal })
    }
}

fn elsewhere(operation: &'static str, ip: IpAddr, from: SocketAddr) -> Error {
    let context = format!("the control connection comes from {ip}, and its datagrams from {}", from.ip());
    Error::new(ErrorKind::Security, operation, context)
        .mend("let UDP and TCP leave the client's network by the same address, or take tcp")
}

fn probe(peer: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))
}

/// Which way a socket's chunks go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    In,
    Out,
}

impl Lane {
    /// The peer has proved who it is: the kernel may hold what was said that it would.
    pub fn admit(&self) {
        // It was granted before; where it is not any more, chunks are lost that might not have been.
        let _ = SockRef::from(&self.socket).set_recv_buffer_size(self.wanted);
    }

    /// Datagrams of one length, but the last which may be shorter, that one send takes.
    pub fn most_segments(&self, length: usize) -> usize {
        if length > WHOLE {
            return 1; // GSO cuts into packets, and this one is several
        }
        self.state.max_gso_segments().min(MOST / length.max(1)).max(1)
    }

    /// Sends datagrams of `length` bytes each, but the last which may be shorter. What the system refuses for
    /// reasons of the network is as good as lost.
    pub async fn send(&self, contents: &[u8], length: usize) -> Result<()> {
        match self.send_once(contents, length).await {
            Ok(()) => Ok(()),
            // Whoever knows better what this system can do now sends one at a time.
            Err(_) if contents.len() > length && self.state.max_gso_segments() == 1 => {
                for one in contents.chunks(length) {
                    self.send_once(one, length).await.or_else(|e| self.judge(&e))?;
                }
                Ok(())
            }
            // An ICMP message about an earlier datagram; this one has not been sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.send_once(contents, length).await.or_else(|e| self.judge(&e))
            }
            Err(error) => self.judge(&error),
        }
    }

    fn judge(&self, error: &io::Error) -> Result<()> {
        if quinn_udp::is_msg_size_err(error) {
            let context = format!("{}: the system sends no datagrams of this length", self.peer);
            return Err(Error::new(ErrorKind::Unsupported, "send update", context)
                .mend("set a smaller chunk, or a larger send_buffer"));
        }
        Ok(())
    }

    async fn send_once(&self, contents: &[u8], length: usize) -> io::Result<()> {
        loop {
            match self.try_send(contents, length) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.socket.writable().await?,
                done => return done,
            }
        }
    }

    /// Sends at once or not at all.
    pub fn try_send(&self, contents: &[u8], length: usize) -> io::Result<()> {
        let segment_size = (contents.len() > length).then_some(length);
        let transmit = Transmit { destination: self.peer, ecn: None, contents, segment_size, src_ip: None };
        self.socket
            .try_io(Interest::WRITABLE, || self.state.try_send(UdpSockRef::from(&self.socket), &transmit))
    }

    /// Bytes that sealing adds to a datagram.
    pub fn extra(&self) -> usize {
        if self.seal.is_some() {
            TAG_BYTES
        } else {
            0
        }
    }

    /// Appends a datagram as it goes on the wire; `payload` is a chunk's.
    pub fn append(&self, datagram: &impl Encode, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        datagram.encode(&self.key, out);
        out.extend_from_slice(payload);
        if let Some(seal) = &self.seal {
            seal.close(out, start);
        }
    }

    /// Sends one datagram without a payload if there is room for it.
    pub fn tell(&self, datagram: &impl Encode) -> usize {
        self.tell_with(datagram, &[])
    }

    /// The same with what follows the datagram's own bytes.
    pub fn tell_with(&self, datagram: &impl Encode, rest: &[u8]) -> usize {
        let mut bytes = Vec::with_capacity(64 + rest.len());
        self.append(datagram, rest, &mut bytes);
        self.try_send(&bytes, bytes.len()).map_or(0, |()| bytes.len())
    }

    /// Waits until there may be something to receive.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Receives what is there into `buffer`, opened; the datagrams' places in it go to `places`.
    pub fn receive(&self, buffer: &mut Buffer) -> io::Result<()> {
        buffer.places.clear();
        let size = buffer.slot;
        let mut slices: [IoSliceMut; SLOTS] = {
            let mut slots = buffer.bytes.chunks_mut(size);
            std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()))
        };
        let mut metas = [RecvMeta::default(); SLOTS];
        let count = self.socket.try_io(Interest::READABLE, || {
            self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut metas)
        })?;
        for (slot, meta) in metas.iter().take(count).enumerate() {
            let (start, end) = (slot * size, slot * size + meta.len.min(size));
            let places = (start..end).step_by(meta.stride.max(1));
            buffer.places.extend(places.map(|at| (at, (at + meta.stride).min(end))));
        }
        if let Some(seal) = &self.seal {
            let Buffer { bytes, places, .. } = buffer;
            places.retain_mut(|(start, end)| {
                let opened = bytes.get_mut(*start..*end).and_then(|sealed| seal.open(&self.key, sealed));
                opened.map(|length| *end = *start + length).is_some()
            });
        }
        Ok(())
    }
}

/// What one receive brings.
pub struct Buffer {
    bytes: Vec<u8>,
    /// Bytes of each of its parts.
    slot: usize,
    places: Vec<(usize, usize)>,
}

impl Buffer {
    /// An empty one, for what a guest says.
    #[allow(clippy::new_without_default)] // it takes memory
    pub fn new() -> Self {
        Self { bytes: vec![0; SLOTS * GUEST_SLOT], slot: GUEST_SLOT, places: Vec::new() }
    }

    /// For all that may come, once the peer has `proved` who it is; takes 256 KiB.
    pub fn fit(&mut self, proved: bool) {
        if proved && self.slot < SLOT {
            *self = Self { bytes: vec![0; SLOTS * SLOT], slot: SLOT, places: Vec::new() };
        }
    }

    /// The datagrams that came.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().filter_map(|&(start, end)| self.bytes.get(start..end))
    }
}
