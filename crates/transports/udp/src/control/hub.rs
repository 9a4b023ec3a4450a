//! The listener's side: one socket for the control streams of all peers.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::time::Instant;

use quinn_udp::{RecvMeta, UdpSockRef};
use thalweg_transport::{Error, Result};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::cookie::{self, Cookies};
use super::packet::{Id, Packet};
use super::pipe::{Line, Path, Pipe, Socket};
use crate::moving::PeerAddress;

const LISTEN: &str = "listen";
/// Maximum number of streams that wait for their handshake. The first packets of further streams are dropped;
/// their peers repeat them.
const MAX_NEW: usize = 512;
/// Maximum number of closed streams that wait until their peers have acknowledged the last bytes. Beyond that
/// the stream that was closed first is dropped, so that refused peers cannot use up memory.
const MAX_CLOSED: usize = 1024;
/// Maximum number of ended streams whose ids are remembered, each while its cookie may still be valid. Beyond
/// that the oldest are forgotten.
const MAX_ENDED: usize = 4096;
/// Receive buffers of one system call, and the bytes of each. GRO may join several packets in one.
const SLOTS: usize = 8;
const SLOT: usize = 64 << 10;

/// A new stream, and the peer's address.
pub(crate) type Newcomer = (Line, String);

/// The streams of a listener.
#[derive(Default)]
struct Streams {
    live: HashMap<Id, Arc<Pipe>>,
    /// Ids of ended streams, with the time of their end, in order. So a late packet with a valid cookie
    /// begins no second stream.
    over: VecDeque<(Duration, Id)>,
}

impl Streams {
    fn end(&mut self, now: Duration, id: Id) {
        self.live.remove(&id);
        if self.over.len() == MAX_ENDED {
            self.over.pop_front();
        }
        self.over.push_back((now, id));
    }

    fn is_over(&mut self, now: Duration, id: &Id) -> bool {
        while self.over.front().is_some_and(|(at, _)| now > *at + cookie::VALID) {
            self.over.pop_front();
        }
        self.over.iter().any(|(_, one)| one == id)
    }
}

/// The socket, and the task that reads it. Dropping this ends the task, so no new stream begins. Running
/// streams break, since nobody reads their packets.
pub(crate) struct Hub {
    /// The socket's address.
    #[cfg(test)]
    address: SocketAddr,
    task: AbortHandle,
    pipes: Pipes,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.task.abort();
        // Break the streams now: one that still waits for an ACK of its last bytes would keep the port in
        // use.
        let pipes: Vec<Arc<Pipe>> = lock(&self.pipes).live.values().cloned().collect();
        pipes.iter().for_each(|pipe| pipe.fail(io::ErrorKind::ConnectionAborted));
    }
}

/// Listens at `at`. The returned receiver yields the new streams.
///
/// # Errors
/// The system's error for binding the socket.
pub(crate) fn open(at: SocketAddr) -> Result<(Hub, mpsc::Receiver<Newcomer>)> {
    let failed = |e: io::Error| Error::io(LISTEN, format!("a UDP socket at {at}"), &e);
    let bound = std::net::UdpSocket::bind(at).map_err(failed)?;
    bound.set_nonblocking(true).map_err(failed)?;
    let socket = UdpSocket::from_std(bound).and_then(Socket::new).map_err(failed)?;
    let (newcomers, new) = mpsc::channel(MAX_NEW);
    let reader = HubReader {
        socket: Arc::new(socket),
        cookies: Cookies::new(LISTEN)?,
        opened: Instant::now(),
        pipes: Arc::default(),
        newcomers,
    };
    let pipes = reader.pipes.clone();
    #[cfg(test)]
    let address = reader.socket.socket.local_addr().map_err(failed)?;
    let task = tokio::spawn(reader.read()).abort_handle();
    let hub = Hub {
        #[cfg(test)]
        address,
        task,
        pipes,
    };
    Ok((hub, new))
}

type Pipes = Arc<Mutex<Streams>>;

fn lock(pipes: &Pipes) -> MutexGuard<'_, Streams> {
    pipes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the socket, and passes each packet to its stream.
struct HubReader {
    socket: Arc<Socket>,
    cookies: Cookies,
    opened: Instant,
    pipes: Pipes,
    newcomers: mpsc::Sender<Newcomer>,
}

impl HubReader {
    async fn read(self) {
        let mut buffer = vec![0; SLOTS * SLOT];
        loop {
            // Ignore an error: an ICMP message about an earlier packet caused it. The next call reads again.
            let _ = self.socket.socket.readable().await;
            let mut metas = [RecvMeta::default(); SLOTS];
            let mut slices: [IoSliceMut; SLOTS] = {
                let mut slots = buffer.chunks_mut(SLOT);
                std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()))
            };
            let count = self.socket.socket.try_io(Interest::READABLE, || {
                self.socket.state.recv(UdpSockRef::from(&self.socket.socket), &mut slices, &mut metas)
            });
            for (slot, meta) in metas.iter().enumerate().take(count.unwrap_or(0)) {
                let bytes = buffer.get(slot * SLOT..slot * SLOT + meta.len.min(SLOT)).unwrap_or_default();
                for datagram in bytes.chunks(meta.stride.max(1)) {
                    self.handle(meta.addr, meta.dst_ip, datagram);
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn handle(&self, from: SocketAddr, to: Option<IpAddr>, datagram: &[u8]) {
        let Some((id, packet)) = Packet::decode(datagram) else { return };
        let pipe = lock(&self.pipes).live.get(&id).cloned();
        let now = self.opened.elapsed();
        let answer = |packet: Packet<'_>| self.socket.send(from, to, &packet.encode(&id));
        if let Some(pipe) = pipe {
            match packet {
                _ if pipe.peer() == from => pipe.handle(&packet),
                Packet::First { .. } | Packet::Segment { .. } => {
                    if let Some(cookie) = pipe.challenge(&self.cookies, now, from) {
                        answer(Packet::Challenge { cookie });
                    }
                }
                Packet::Answer { cookie, proof } => {
                    pipe.challenge_answered(&self.cookies, now, (from, to), &cookie, &proof);
                }
                _ => {}
            }
            return;
        }
        match packet {
            Packet::Open { time } => {
                answer(Packet::Retry { echo: time, cookie: self.cookies.make(now, from, &id) });
            }
            Packet::First { cookie, .. } if self.cookies.check(now, from, &id, &cookie) => {
                let over = lock(&self.pipes).is_over(now, &id);
                if over {
                    answer(Packet::Reset);
                } else {
                    self.begin(id, from, to, &packet, cookie::age(now, &cookie));
                }
            }
            Packet::First { segment, .. } => {
                answer(Packet::Retry { echo: segment.time, cookie: self.cookies.make(now, from, &id) });
            }
            Packet::Segment { .. } => answer(Packet::Reset),
            // Not of a live stream, or not for a listener.
            Packet::Retry { .. } | Packet::Reset | Packet::Challenge { .. } | Packet::Answer { .. } => {}
        }
    }

    /// Begins a stream, if there is room for one more handshake.
    fn begin(&self, id: Id, from: SocketAddr, to: Option<IpAddr>, first: &Packet<'_>, age: Duration) {
        let Ok(place) = self.newcomers.try_reserve() else { return };
        let opened = self.opened;
        let peer = PeerAddress::new(from, opened.elapsed());
        let path = Path { socket: self.socket.clone(), peer, src_ip: to };
        let pipe = Pipe::accepted(id, path, age);
        let mut pipes = lock(&self.pipes);
        give_up_oldest(&pipes.live);
        pipes.live.insert(id, pipe.clone());
        drop(pipes);
        pipe.handle(first);
        place.send((Line(pipe.clone()), from.to_string()));
        let pipes = self.pipes.clone();
        tokio::spawn(async move {
            pipe.run().await;
            lock(&pipes).end(opened.elapsed(), id);
        });
    }
}

/// Breaks the stream that was closed first, if [`MAX_CLOSED`] closed streams still wait for ACKs.
fn give_up_oldest(pipes: &HashMap<Id, Arc<Pipe>>) {
    if pipes.len() < MAX_CLOSED {
        return;
    }
    let closed: Vec<_> = pipes.values().filter_map(|pipe| Some((pipe.closed_at()?, pipe))).collect();
    if closed.len() >= MAX_CLOSED {
        if let Some((_, oldest)) = closed.iter().min_by_key(|(time, _)| *time) {
            oldest.fail(io::ErrorKind::TimedOut);
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_conformance::GUARD;
    use thalweg_tcp::line::HoledStream;
    use tokio::time::timeout;

    use super::*;
    use crate::control::packet::{Cookie, Segment};

    async fn answer(socket: &UdpSocket) -> Vec<u8> {
        let mut buffer = vec![0; 2000];
        let length = timeout(GUARD, socket.recv(&mut buffer)).await.unwrap().unwrap();
        buffer.truncate(length);
        buffer
    }

    /// The cookie that the listener sends to this socket.
    async fn cookie_at(socket: &UdpSocket, id: &Id) -> Cookie {
        match Packet::decode(&answer(socket).await) {
            Some((of, Packet::Retry { cookie, .. })) if of == *id => cookie,
            other => panic!("no cookie: {other:?}"),
        }
    }

    /// A copy of a first packet that comes late begins no second stream.
    #[tokio::test]
    async fn a_cookie_begins_one_stream() {
        let (hub, mut new) = open("127.0.0.1:0".parse().unwrap()).unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        peer.connect(hub.address).await.unwrap();
        let id = [6; 16];
        let segment = Segment { window: 1 << 15, sent: 1, ..Segment::default() };
        peer.send(&Packet::Open { time: 1 }.encode(&id)).await.unwrap();
        let cookie = cookie_at(&peer, &id).await;
        let first = Packet::First { cookie, segment, bytes: b"hello" }.encode(&id);
        peer.send(&first).await.unwrap();
        let (line, _) = timeout(GUARD, new.recv()).await.unwrap().unwrap();
        let pipe = line.0.clone();
        pipe.fail(io::ErrorKind::TimedOut);
        while !lock(&hub.pipes).is_over(Duration::ZERO, &id) {
            tokio::task::yield_now().await;
        }
        peer.send(&first).await.unwrap();
        peer.send(&Packet::Open { time: 2 }.encode(&[7; 16])).await.unwrap();
        while Packet::decode(&answer(&peer).await).is_none_or(|(id, _)| id != [7; 16]) {}
        assert!(new.try_recv().is_err());
    }

    /// Under TLS somebody who sees the packets cannot answer a challenge.
    #[tokio::test]
    async fn only_who_knows_the_secret_answers_a_challenge() {
        let (hub, mut new) = open("127.0.0.1:0".parse().unwrap()).unwrap();
        let [peer, other] =
            [UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap()];
        peer.connect(hub.address).await.unwrap();
        other.connect(hub.address).await.unwrap();
        let (id, next) = ([6; 16], [8; 16]);
        let segment = Segment { window: 1 << 15, sent: 1, ..Segment::default() };
        peer.send(&Packet::Open { time: 1 }.encode(&id)).await.unwrap();
        let cookie = cookie_at(&peer, &id).await;
        peer.send(&Packet::First { cookie, segment, bytes: b"hello" }.encode(&id)).await.unwrap();
        let (line, _) = timeout(GUARD, new.recv()).await.unwrap().unwrap();
        line.bound(&[7; 32]);
        other.send(&Packet::Segment { segment, bytes: b"hello" }.encode(&id)).await.unwrap();
        let challenge = answer(&other).await;
        let Some((_, Packet::Challenge { cookie })) = Packet::decode(&challenge) else {
            panic!("no challenge: {challenge:?}")
        };
        for (secret, at) in [(None, &peer), (Some(&[8; 32]), &peer), (Some(&[7; 32]), &other)] {
            let proof = cookie::proof(secret, &cookie);
            other.send(&Packet::Answer { cookie, proof }.encode(&id)).await.unwrap();
            // The hub handles packets in order: once it has answered this, it has handled the other.
            other.send(&Packet::Open { time: 2 }.encode(&next)).await.unwrap();
            while Packet::decode(&answer(&other).await).is_none_or(|(id, _)| id != next) {}
            assert_eq!(line.0.peer(), at.local_addr().unwrap());
        }
    }

    #[test]
    fn ended_streams_are_forgotten_with_their_cookies() {
        let mut streams = Streams::default();
        for number in 0..MAX_ENDED as u128 + 1 {
            streams.end(Duration::ZERO, number.to_le_bytes());
        }
        assert!(!streams.is_over(Duration::ZERO, &[0; 16]), "no more than so many");
        assert!(streams.is_over(cookie::VALID, &1_u128.to_le_bytes()));
        assert!(!streams.is_over(cookie::VALID + Duration::from_millis(1), &1_u128.to_le_bytes()));
    }

    /// Each peer begins a stream, is refused, and acknowledges nothing.
    #[tokio::test]
    async fn peers_that_were_refused_take_no_memory_without_limit() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (newcomers, mut new) = mpsc::channel(MAX_NEW);
        let reader = HubReader {
            socket: Arc::new(Socket::new(socket).unwrap()),
            cookies: Cookies::new(LISTEN).unwrap(),
            opened: Instant::now(),
            pipes: Arc::default(),
            newcomers,
        };
        let segment = Segment { window: 1 << 15, sent: 1, ..Segment::default() };
        let first = Packet::First { cookie: Cookie::default(), segment, bytes: b"hello" };
        let mut begun = Vec::new();
        for number in 0..MAX_CLOSED as u128 + 8 {
            let from = silent.local_addr().unwrap();
            reader.begin(number.to_le_bytes(), from, None, &first, Duration::ZERO);
            let (line, _) = new.try_recv().unwrap();
            begun.push(line.0.clone());
            drop(line);
        }
        assert!(begun.iter().filter(|pipe| pipe.closed_at().is_some()).count() <= MAX_CLOSED);
        for pipe in &begun[..8] {
            assert_eq!(pipe.closed_at(), None, "one of the first goes on");
        }
    }
}
