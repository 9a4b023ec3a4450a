//! The UDP sockets of a link. A socket sends batches with GSO and receives them with GRO, where the system
//! supports these.
//!
//! The connecting end's sockets are connected. The listener's end receives from any address, drops what is not of
//! the link, and follows its [peer](crate::moving) to another address.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use thalweg_seal::TAG_BYTES;
use thalweg_transport::{Error, ErrorKind, Options, Result};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

use crate::control::cookie::Cookies;
use crate::datagram::{Datagram, Encode, Key, Kind, WHOLE};
use crate::moving::{follow_route, AddressMessage, PeerAddress};
use crate::secure::Seal;

/// Bytes of one receive buffer: the most that GRO joins.
const SLOT: usize = 64 << 10;
/// Bytes of one receive buffer for an unauthenticated peer, from which only hellos and probes are expected.
const UNAUTHENTICATED_PEER_SLOT: usize = 2 << 10;
/// Size of the kernel's receive buffer for an unauthenticated peer, in bytes.
const UNAUTHENTICATED_PEER_BUFFER: usize = 16 << 10;
/// Number of receive buffers of one system call.
const SLOTS: usize = 4;
/// Maximum number of bytes of one send.
const MAX_SEND_BYTES: usize = 65_000;
/// The kind of a hello, in a datagram's prefix.
const HELLO: u8 = 4;
/// Buffer size to ask the kernel for if the options name none. The kernel grants at most net.core.rmem_max
/// and wmem_max.
const DEFAULT_BUFFER: usize = 8 << 20;

/// A UDP socket that exchanges datagrams with one peer, in one direction of chunks.
pub struct Lane {
    socket: UdpSocket,
    state: UdpSocketState,
    peer: Mutex<PeerAddress>,
    /// Makes and checks challenges, at the listener's end alone.
    cookies: Option<Cookies>,
    /// Time zero of the cookies.
    origin: Instant,
    /// How often the connecting end has received datagrams of its peer.
    receive_count: AtomicU64,
    /// Notified when the peer's address has changed, or when the peer knows this end's new address.
    moved: Notify,
    /// Size of the receive buffer to ask the kernel for, in bytes.
    wanted: usize,
    /// Maximum cost in flight from the peer to this socket; see [`cost`](crate::window::cost).
    pub window: u64,
    /// The link's key.
    pub key: Key,
    seal: Option<Seal>,
}

/// A bound UDP socket that has no peer yet.
pub(crate) struct Unbound {
    socket: UdpSocket,
    wanted: usize,
    /// How much its receive buffer will hold, as [`cost`](crate::window::cost).
    pub window: u64,
    /// The port that the system has chosen.
    pub port: u16,
}

impl Unbound {
    /// Binds a socket at `ip` with the buffer sizes of the options, or the largest ones that the kernel
    /// grants. `window` follows from the size granted. With an admission queue, the receive buffer stays
    /// small until [`Lane::admit`].
    pub(crate) fn new(operation: &'static str, ip: IpAddr, options: &Options) -> Result<Self> {
        let failed = |e: &io::Error| Error::io(operation, format!("a UDP socket at {ip}"), e);
        let wanted = options.receive_buffer.map_or(DEFAULT_BUFFER, |bytes| bytes as usize);
        let make = || -> io::Result<Socket> {
            let domain = Domain::for_address(SocketAddr::new(ip, 0));
            let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_nonblocking(true)?;
            socket.set_recv_buffer_size(wanted)?;
            socket
                .set_send_buffer_size(options.send_buffer.map_or(DEFAULT_BUFFER, |bytes| bytes as usize))?;
            socket.bind(&SockAddr::from(SocketAddr::new(ip, 0)))?;
            Ok(socket)
        };
        let socket = make().map_err(|e| failed(&e))?;
        let granted = socket.recv_buffer_size().map_err(|e| failed(&e))?;
        if options.admission_queue.is_some() {
            socket.set_recv_buffer_size(UNAUTHENTICATED_PEER_BUFFER.min(wanted)).map_err(|e| failed(&e))?;
        }
        let socket = UdpSocket::from_std(socket.into()).map_err(|e| failed(&e))?;
        let port = socket.local_addr().map_err(|e| failed(&e))?.port();
        // Announce half the buffer. The kernel frees the memory of datagrams that were read only by quarters
        // of the buffer.
        Ok(Self { socket, wanted, window: granted as u64 / 2, port })
    }

    /// Waits for the peer's hello and takes its source as the peer's address. At the IP address of the control
    /// connection, `ip`, the peer has shown that it receives. At any other it must answer a challenge first, so
    /// nobody can direct our datagrams at a third party (RFC 9000, section 8.1).
    ///
    /// # Errors
    /// Errors of the socket.
    pub(crate) async fn greeted(
        self,
        operation: &'static str,
        ip: IpAddr,
        key: Key,
        seal: Option<Seal>,
        number: u64,
        way: Way,
    ) -> Result<Lane> {
        let (cookies, origin, mut buffer) = (Cookies::new(operation)?, Instant::now(), [0; WHOLE]);
        loop {
            let received = self.socket.recv_from(&mut buffer).await;
            let (length, from) = received.map_err(|e| Error::io(operation, "waiting for a hello", &e))?;
            let length = match &seal {
                Some(seal) => seal.open(&key, &mut buffer[..length]).unwrap_or(0),
                None => length,
            };
            let (datagram, now) = (&buffer[..length], origin.elapsed());
            let hello = Datagram::decode(&key, datagram);
            let greets = hello.is_some_and(|hello| hello.kind == Kind::Hello && hello.position == number);
            let receives = match AddressMessage::read(&key, datagram) {
                Some(AddressMessage::Answer(cookie)) => cookies.check(now, from, &key, &cookie),
                _ => greets && from.ip().to_canonical() == ip.to_canonical(),
            };
            if receives {
                let peer = PeerAddress::new(from, now);
                return self.into_lane(operation, peer, (Some(cookies), origin), key, seal, way);
            }
            if greets {
                let mut challenge = Vec::new();
                append(
                    &AddressMessage::Challenge(cookies.make(now, from, &key)),
                    &[],
                    &key,
                    seal.as_ref(),
                    &mut challenge,
                );
                // Ignore an error: the challenge is lost, and the next hello gets another.
                let _ = self.socket.try_send_to(&challenge, from);
            }
        }
    }

    /// Connects the socket: from now on it receives from `peer` only.
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
        let (peer, origin) = (PeerAddress::new(peer, Duration::ZERO), Instant::now());
        self.into_lane(operation, peer, (None, origin), key, seal, way)
    }

    fn into_lane(
        self,
        operation: &'static str,
        peer: PeerAddress,
        (cookies, origin): (Option<Cookies>, Instant),
        key: Key,
        seal: Option<Seal>,
        way: Way,
    ) -> Result<Lane> {
        let at = peer.get();
        let failed = |e: io::Error| Error::io(operation, format!("a UDP socket to {at}"), &e);
        let state = match way {
            Way::In => UdpSocketState::new(UdpSockRef::from(&self.socket)),
            // Creating the state sets the don't-fragment option on its socket, but this socket must send long
            // chunks in fragments. So use another socket to find out what the kernel supports.
            Way::Out => probe(at).and_then(|probe| UdpSocketState::new(UdpSockRef::from(&probe))),
        };
        let state = state.map_err(failed)?;
        let Self { socket, wanted, window, .. } = self;
        let (peer, receive_count, moved) = (Mutex::new(peer), AtomicU64::new(0), Notify::new());
        Ok(Lane { socket, state, peer, cookies, origin, receive_count, moved, wanted, window, key, seal })
    }
}

/// Appends a datagram in its form on the wire, sealed if there is a seal.
fn append(datagram: &impl Encode, payload: &[u8], key: &Key, seal: Option<&Seal>, out: &mut Vec<u8>) {
    let start = out.len();
    datagram.encode(key, out);
    out.extend_from_slice(payload);
    if let Some(seal) = seal {
        seal.close(out, start);
    }
}

/// A socket that is used only to find out what the kernel supports.
fn probe(peer: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))
}

/// Whether a socket receives or sends chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    In,
    Out,
}

impl Lane {
    /// Raises the receive buffer to its full size, since the peer has authenticated.
    pub fn admit(&self) {
        // Ignore an error: the kernel has granted this size once. If it refuses now, only more datagrams may
        // get lost.
        let _ = SockRef::from(&self.socket).set_recv_buffer_size(self.wanted);
    }

    /// Maximum number of datagrams of `length` bytes in one send; the last one may be shorter.
    pub fn most_segments(&self, length: usize) -> usize {
        if length > WHOLE {
            // GSO sends each segment as one packet, but this datagram needs several.
            return 1;
        }
        self.state.max_gso_segments().min(MAX_SEND_BYTES / length.max(1)).max(1)
    }

    /// Sends datagrams of `length` bytes each; the last one may be shorter. If the system refuses them
    /// because of the network, they count as lost.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the system sends no datagrams of this length.
    pub async fn send(&self, contents: &[u8], length: usize) -> Result<()> {
        match self.send_once(contents, length).await {
            Ok(()) => Ok(()),
            // quinn-udp has found out that GSO does not work here. Send the datagrams one by one.
            Err(_) if contents.len() > length && self.state.max_gso_segments() == 1 => {
                for one in contents.chunks(length) {
                    self.send_once(one, length).await.or_else(|e| self.judge(&e))?;
                }
                Ok(())
            }
            // An ICMP message about an earlier datagram caused the error; this one was not sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.send_once(contents, length).await.or_else(|e| self.judge(&e))
            }
            Err(error) => self.judge(&error),
        }
    }

    /// An error if the datagram is too long for the system. Other errors count as loss.
    fn judge(&self, error: &io::Error) -> Result<()> {
        if quinn_udp::is_msg_size_err(error) {
            let context = format!("{}: the system sends no datagrams of this length", self.peer());
            return Err(Error::new(ErrorKind::Unsupported, "send update", context)
                .hint("set a smaller chunk, or a larger send_buffer"));
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

    fn address(&self) -> MutexGuard<'_, PeerAddress> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self) -> SocketAddr {
        self.address().get()
    }

    /// Waits until the peer's address has changed, or until the peer knows this end's new address. What was sent
    /// before may be lost.
    pub async fn moved(&self) {
        self.moved.notified().await;
    }

    /// How often the connecting end has received datagrams of its peer.
    pub(crate) fn receive_count(&self) -> u64 {
        self.receive_count.load(Ordering::Relaxed)
    }

    /// If this machine has changed networks, sends from its new address from now on.
    pub(crate) fn follow_route(&self) {
        // Ignore an error: there is no network now. The control stream looks again, and then this is called.
        let _ = follow_route(&self.socket, self.peer());
    }

    /// Shows the listener's end where this end's datagrams come from.
    pub(crate) fn send_hello(&self, pair: u64) {
        let kind = Kind::Hello;
        self.send_one(&Datagram { kind, report_wanted: false, message_count: 0, position: pair });
    }

    /// Answers challenges that arrive, for as long as the caller polls it. Leaves other datagrams in the socket:
    /// they are for the link, and after them no challenges come.
    pub(crate) async fn answer_challenges(&self) -> std::convert::Infallible {
        let mut buffer = Buffer::new();
        let mut first = [0; 17];
        loop {
            match self.socket.peek(&mut first).await {
                Ok(length) if AddressMessage::looks_like_challenge(&first[..length]) => {
                    // Ignore an error: an ICMP message caused it.
                    let _ = self.receive(&mut buffer);
                }
                Ok(_) => std::future::pending().await,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    /// Sends at once, or fails with `WouldBlock`.
    pub fn try_send(&self, contents: &[u8], length: usize) -> io::Result<()> {
        self.try_send_to(self.peer(), contents, length)
    }

    fn try_send_to(&self, destination: SocketAddr, contents: &[u8], length: usize) -> io::Result<()> {
        let segment_size = (contents.len() > length).then_some(length);
        let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
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

    /// Appends a datagram in its form on the wire, sealed if the link is. `payload` is a chunk's payload or a
    /// message's text.
    pub fn append(&self, datagram: &impl Encode, payload: &[u8], out: &mut Vec<u8>) {
        append(datagram, payload, &self.key, self.seal.as_ref(), out);
    }

    /// Sends one datagram without a payload; drops it if the socket has no room. Returns the bytes sent.
    pub fn send_one(&self, datagram: &impl Encode) -> usize {
        self.send_one_with(datagram, &[])
    }

    /// Sends one datagram with the payload `rest`; drops it if the socket has no room. Returns the bytes
    /// sent.
    pub fn send_one_with(&self, datagram: &impl Encode, rest: &[u8]) -> usize {
        let mut bytes = Vec::with_capacity(64 + rest.len());
        self.append(datagram, rest, &mut bytes);
        self.try_send(&bytes, bytes.len()).map_or(0, |()| bytes.len())
    }

    /// Waits until the socket may have something to receive.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Receives what has arrived into `buffer`, opens sealed datagrams, and drops those that do not open. Handles
    /// those that concern the peer's address.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; errors that ICMP messages caused.
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
            buffer.places.extend(places.map(|at| (at..(at + meta.stride).min(end), meta.addr)));
        }
        let Buffer { bytes, places, .. } = buffer;
        if let Some(seal) = &self.seal {
            places.retain_mut(|(place, _)| {
                let opened = bytes.get_mut(place.clone()).and_then(|sealed| seal.open(&self.key, sealed));
                opened.map(|length| place.end = place.start + length).is_some()
            });
        }
        let peer = self.peer();
        places.retain(|(place, from)| {
            bytes.get(place.clone()).is_some_and(|datagram| self.is_for_link(datagram, *from, peer))
        });
        if self.cookies.is_none() && !places.is_empty() {
            self.receive_count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Handles a datagram that concerns the peer's address, and challenges a peer that sends from another one than
    /// `peer`. Returns whether the datagram is for the link: what comes from another address is, since its key, or
    /// its seal, shows whose it is.
    fn is_for_link(&self, datagram: &[u8], from: SocketAddr, peer: SocketAddr) -> bool {
        if let Some(message) = AddressMessage::read(&self.key, datagram) {
            self.handle_message(message, from);
            return false;
        }
        let Some(cookies) = &self.cookies else { return true };
        let greets =
            || Datagram::decode(&self.key, datagram).is_some_and(|datagram| datagram.kind == Kind::Hello);
        if from == peer {
            if datagram.get(16) == Some(&HELLO) && greets() {
                self.send_one(&AddressMessage::Here);
            }
        } else if datagram.starts_with(&self.key) {
            let cookie = self.address().challenge(cookies, self.origin.elapsed(), from, &self.key);
            cookie.iter().for_each(|cookie| self.send_message(&AddressMessage::Challenge(*cookie), from));
        }
        true
    }

    fn handle_message(&self, message: AddressMessage, from: SocketAddr) {
        match (message, &self.cookies) {
            (AddressMessage::Challenge(cookie), None) => {
                self.send_message(&AddressMessage::Answer(cookie), from)
            }
            (AddressMessage::Here, None) => {
                self.receive_count.fetch_add(1, Ordering::Relaxed);
                self.moved.notify_one();
            }
            (AddressMessage::Answer(cookie), Some(cookies)) => {
                let now = self.origin.elapsed();
                let answered = self.address().answered(cookies, now, from, &self.key, &cookie);
                if answered.is_some() {
                    self.send_one(&AddressMessage::Here);
                    self.moved.notify_one();
                }
            }
            // Not for this end.
            _ => {}
        }
    }

    /// Sends a message about the peer's address to `to`, which need not be that address. Drops it if the socket has
    /// no room.
    fn send_message(&self, message: &AddressMessage, to: SocketAddr) {
        let mut bytes = Vec::new();
        self.append(message, &[], &mut bytes);
        let _ = self.try_send_to(to, &bytes, bytes.len());
    }
}

/// The datagrams of one receive call.
pub struct Buffer {
    bytes: Vec<u8>,
    /// Bytes of each of the [`SLOTS`] parts of `bytes`.
    slot: usize,
    /// Where each datagram is in `bytes`, and where it came from.
    places: Vec<(Range<usize>, SocketAddr)>,
}

impl Buffer {
    /// A small buffer, for a peer that has not authenticated yet.
    #[allow(clippy::new_without_default)] // no Default: it allocates
    pub fn new() -> Self {
        Self {
            bytes: vec![0; SLOTS * UNAUTHENTICATED_PEER_SLOT],
            slot: UNAUTHENTICATED_PEER_SLOT,
            places: Vec::new(),
        }
    }

    /// Replaces the small buffer by one of 256 KiB, once the peer has authenticated.
    pub fn fit(&mut self, proved: bool) {
        if proved && self.slot < SLOT {
            *self = Self { bytes: vec![0; SLOTS * SLOT], slot: SLOT, places: Vec::new() };
        }
    }

    /// The datagrams of the last receive.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().filter_map(|(place, _)| self.bytes.get(place.clone()))
    }
}
