//! A control stream as the tcp transport's protocol sees it ([`HoledStream`], without holes), and the task that
//! keeps it going: it sends segments again, and ends when the stream has ended.
//!
//! The connecting end may get [another address](crate::moving). It then answers the listener's challenge.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use quinn_udp::{Transmit, UdpSockRef, UdpSocketState};
use thalweg_tcp::line::{HoledStream, Taken};
use thalweg_transport::Counters;
use thalweg_wire::limits;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{watch, Notify};
use tokio::time::sleep_until;

use super::cookie::{self, Cookies};
use super::packet::{Cookie, Id, Packet, Proof};
use super::stream::{clock, slower, Stream, INITIAL_PAUSE, MAX_PAUSE};
use crate::moving::{follow_route, PeerAddress};

/// Maximum number of packets that one event sends, so that one stream does not hold up the
/// others of its thread.
const MAX_AT_ONCE: usize = 64;
/// Minimum time that a closed stream waits for the ACK of its last bytes.
const FAREWELL: Duration = Duration::from_secs(1);
/// Maximum of that time, or eight round trips if they take longer. Otherwise a peer that sends but
/// acknowledges nothing would hold the stream, and the program that closes it, for ever.
const LONGEST_FAREWELL: Duration = Duration::from_secs(16);
/// Pause between two checks of the route to the peer, while it does not answer.
const ROUTE_CHECK_PAUSE: Duration = Duration::from_millis(250);

/// A UDP socket, and what the system supports on it.
pub(crate) struct Socket {
    pub socket: UdpSocket,
    pub state: UdpSocketState,
}

impl Socket {
    pub(crate) fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self { socket, state })
    }

    /// Sends a packet, or drops it if the socket has no room.
    pub(crate) fn send(&self, to: SocketAddr, src_ip: Option<IpAddr>, contents: &[u8]) {
        let transmit = Transmit { destination: to, ecn: None, contents, segment_size: None, src_ip };
        // An error counts as a lost packet. If an ICMP message about an earlier packet has caused the error,
        // the second call sends.
        let send = || {
            self.socket
                .try_io(Interest::WRITABLE, || self.state.try_send(UdpSockRef::from(&self.socket), &transmit))
        };
        if send().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = send();
        }
    }
}

/// Where the packets of a stream go.
pub(crate) struct Path {
    pub socket: Arc<Socket>,
    pub peer: PeerAddress,
    /// The address of this machine that the peer has sent to.
    pub src_ip: Option<IpAddr>,
}

/// How far the handshake of the connecting end has come.
#[derive(Debug, Clone, Copy)]
enum Opening {
    /// It asks for a cookie: the time of the last open, and the number of opens before it.
    Asking(Duration, u32),
    /// It sends its cookie in each packet, until the listener answers.
    Showing(Cookie),
    /// The listener has answered. The listener's end begins in this state.
    Done,
}

/// One end of a control stream.
pub(crate) struct Pipe {
    pub id: Id,
    is_connecting: bool,
    origin: Instant,
    inside: Mutex<Inside>,
    /// Wakes the task after each change.
    changed: Notify,
    /// How often this end has found that its address had changed. Only a connecting end notices that.
    moves: watch::Sender<u64>,
}

struct Inside {
    path: Path,
    stream: Stream,
    opening: Opening,
    /// With TLS, a secret of the two ends.
    secret: Option<[u8; 32]>,
    /// When this end last found that its address had changed.
    moved_at: Option<Duration>,
    /// When this end last checked the route to the peer.
    route_checked_at: Duration,
    /// Why the stream broke.
    broken: Option<io::ErrorKind>,
    /// When this end closed the stream; `None` if it has not.
    shut_at: Option<Duration>,
    /// The task has ended.
    over: bool,
    reader: Option<Waker>,
    /// Wakers of tasks that wait for room, for the peer to end its direction, or for the end of the stream.
    waiters: Vec<Waker>,
}

impl Inside {
    fn wake(&mut self) {
        self.waiters.drain(..).chain(self.reader.take()).for_each(Waker::wake);
    }
}

fn wait(wakers: &mut Vec<Waker>, cx: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
        wakers.push(cx.waker().clone());
    }
}

impl Pipe {
    /// The connecting end. It begins to ask for a cookie.
    pub(crate) fn connecting(id: Id, path: Path) -> Arc<Self> {
        let pipe = Self::new(id, path, Opening::Asking(Duration::ZERO, 0), None);
        pipe.ask(&pipe.inside(), Duration::ZERO);
        pipe
    }

    /// The listener's end, for a peer that has returned a cookie after `age`.
    pub(crate) fn accepted(id: Id, path: Path, age: Duration) -> Arc<Self> {
        Self::new(id, path, Opening::Done, Some(age))
    }

    fn new(id: Id, path: Path, opening: Opening, round_trip: Option<Duration>) -> Arc<Self> {
        let is_connecting = matches!(opening, Opening::Asking(..));
        let inside = Inside {
            path,
            stream: Stream::new(Duration::ZERO, round_trip),
            opening,
            secret: None,
            moved_at: None,
            route_checked_at: Duration::ZERO,
            broken: None,
            shut_at: None,
            over: false,
            reader: None,
            waiters: Vec::new(),
        };
        let (inside, changed, moves) = (Mutex::new(inside), Notify::new(), watch::Sender::new(0));
        Arc::new(Self { id, is_connecting, origin: Instant::now(), inside, changed, moves })
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The address to which this end sends.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.inside().path.peer.get()
    }

    /// Changes each time when this end has found that its address had changed. Only a connecting end notices that.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// The challenge to send to `from`, the source of a packet of this stream. `None` if the peer is known to be there,
    /// or was challenged there a moment ago. `now` is the time of `cookies`.
    pub(crate) fn challenge(&self, cookies: &Cookies, now: Duration, from: SocketAddr) -> Option<Cookie> {
        self.inside().path.peer.challenge(cookies, now, from, &self.id)
    }

    /// Handles an answer to a challenge. If it is valid, this end sends to `from` from now on. `now` is the time of
    /// `cookies`, and `to` the address of this machine at which the answer arrived.
    pub(crate) fn challenge_answered(
        &self,
        cookies: &Cookies,
        now: Duration,
        (from, to): (SocketAddr, Option<IpAddr>),
        cookie: &Cookie,
        proof: &Proof,
    ) {
        let mut inside = self.inside();
        // The peer may have the secret before this end does, while TLS's handshake goes on. So without a secret,
        // accept any proof.
        let is_proved =
            inside.secret.is_none_or(|secret| cookie::is_same(proof, &cookie::proof(Some(&secret), cookie)));
        if !is_proved {
            return;
        }
        let Some(trip) = inside.path.peer.answered(cookies, now, from, &self.id, cookie) else { return };
        inside.path.src_ip = to;
        let now = self.now();
        inside.stream.path_changed(now, Some(trip));
        self.flush(&mut inside, now);
        drop(inside);
        self.changed.notify_one();
    }

    /// Answers the listener's challenge: it has seen this end's packets come from another address.
    fn challenged(&self, inside: &mut Inside, now: Duration, cookie: Cookie) {
        let proof = cookie::proof(inside.secret.as_ref(), &cookie);
        self.send(inside, &Packet::Answer { cookie, proof });
        // More challenges are on the way for what was sent before the answer arrives.
        let trip = inside.stream.round_trip().unwrap_or(INITIAL_PAUSE);
        if inside.moved_at.is_none_or(|at| now >= at + trip) {
            self.has_moved(inside, now);
        }
    }

    fn has_moved(&self, inside: &mut Inside, now: Duration) {
        inside.moved_at = Some(now);
        inside.stream.path_changed(now, None);
        self.moves.send_modify(|count| *count += 1);
    }

    /// If the listener does not answer, checks whether this machine has changed networks. If so, sends from its new
    /// address from now on.
    fn check_route(&self, inside: &mut Inside, now: Duration) {
        let due = self.is_connecting
            && inside.stream.is_unanswered()
            && now >= inside.route_checked_at + ROUTE_CHECK_PAUSE;
        if !due {
            return;
        }
        inside.route_checked_at = now;
        // An error means that there is no network now. Check again later.
        if follow_route(&inside.path.socket.socket, inside.path.peer.get()).unwrap_or(false) {
            self.has_moved(inside, now);
        }
    }

    /// Whether the peer has sent anything.
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(self.inside().opening, Opening::Asking(..))
    }

    /// Waits until the peer has sent something, or the stream has broken.
    pub(crate) async fn answered(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            let mut inside = self.inside();
            match (inside.broken, inside.opening) {
                (Some(broken), _) => Poll::Ready(Err(broken.into())),
                (None, Opening::Asking(..)) => {
                    wait(&mut inside.waiters, cx);
                    Poll::Pending
                }
                (None, _) => Poll::Ready(Ok(())),
            }
        })
        .await
    }

    /// Waits until the stream has broken.
    pub(crate) async fn broken(&self) {
        std::future::poll_fn(|cx| {
            let mut inside = self.inside();
            if inside.broken.is_some() || inside.over {
                return Poll::Ready(());
            }
            wait(&mut inside.waiters, cx);
            Poll::Pending
        })
        .await;
    }

    fn send(&self, inside: &Inside, packet: &Packet<'_>) {
        let path = &inside.path;
        path.socket.send(path.peer.get(), path.src_ip, &packet.encode(&self.id));
    }

    fn ask(&self, inside: &Inside, now: Duration) {
        self.send(inside, &Packet::Open { time: clock(now) });
    }

    /// Sends what is due.
    fn flush(&self, inside: &mut Inside, now: Duration) {
        let cookie = match inside.opening {
            Opening::Asking(..) => return,
            Opening::Showing(cookie) => Some(cookie),
            Opening::Done => None,
        };
        for _ in 0..MAX_AT_ONCE {
            let Some((segment, bytes)) = inside.stream.poll_transmit(now) else { return };
            let bytes = &bytes[..];
            let packet = match cookie {
                Some(cookie) => Packet::First { cookie, segment, bytes },
                None => Packet::Segment { segment, bytes },
            };
            self.send(inside, &packet);
        }
    }

    /// Handles a packet of the peer.
    pub(crate) fn handle(&self, packet: &Packet<'_>) {
        let (mut inside, now) = (self.inside(), self.now());
        match (packet, inside.opening) {
            (Packet::Retry { echo, cookie }, Opening::Asking(..)) => {
                let trip = Duration::from_micros(clock(now).wrapping_sub(*echo).into());
                inside.stream.measured(now, trip);
                inside.opening = Opening::Showing(*cookie);
            }
            // The old cookie expired on the way.
            (Packet::Retry { cookie, .. }, Opening::Showing(_)) => {
                inside.opening = Opening::Showing(*cookie);
            }
            (Packet::Segment { segment, bytes } | Packet::First { segment, bytes, .. }, opening) => {
                if !matches!(opening, Opening::Asking(..)) {
                    inside.opening = Opening::Done;
                    inside.stream.handle(now, segment, bytes);
                    if self.is_connecting {
                        inside.stream.keep_alive(now);
                    }
                }
            }
            (Packet::Challenge { cookie }, Opening::Showing(_) | Opening::Done) if self.is_connecting => {
                self.challenged(&mut inside, now, *cookie);
            }
            (Packet::Reset, Opening::Showing(_) | Opening::Done) => {
                inside.broken = Some(io::ErrorKind::ConnectionReset);
            }
            _ => return,
        }
        self.flush(&mut inside, now);
        inside.wake();
        drop(inside);
        self.changed.notify_one();
    }

    /// How long the peer has been silent although this end waits for an ACK, and the round trip; `None` if
    /// this end waits for no ACK.
    pub(crate) fn unanswered(&self) -> Option<(Duration, Duration)> {
        let (inside, now) = (self.inside(), self.now());
        let silent = now.saturating_sub(inside.stream.last_packet_at());
        inside.stream.is_waiting().then(|| (silent, inside.stream.round_trip().unwrap_or_default()))
    }

    /// Breaks the stream.
    pub(crate) fn fail(&self, kind: io::ErrorKind) {
        let mut inside = self.inside();
        inside.broken.get_or_insert(kind);
        inside.wake();
        drop(inside);
        self.changed.notify_one();
    }

    /// When this end closed the stream, if the stream still waits for the ACK of its last bytes.
    pub(crate) fn closed_at(&self) -> Option<Instant> {
        let inside = self.inside();
        let shut = inside.shut_at.filter(|_| inside.broken.is_none() && !inside.over)?;
        Some(self.origin + shut)
    }

    /// Sends and retransmits until the stream has ended or broken.
    pub(crate) async fn run(&self) {
        while let Some(due) = self.step() {
            let (timed, at) = (due.is_some(), self.origin + due.unwrap_or_default());
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(at.into()), if timed => {}
            }
        }
    }

    /// Sends what is due. Returns when to do so again; `None` if the stream is over.
    fn step(&self) -> Option<Option<Duration>> {
        let (mut inside, now) = (self.inside(), self.now());
        if let Opening::Asking(at, count) = inside.opening {
            let due = at + slower(INITIAL_PAUSE, count, MAX_PAUSE);
            if now >= due {
                inside.opening = Opening::Asking(now, count.saturating_add(1));
                self.ask(&inside, now);
            }
        }
        self.check_route(&mut inside, now);
        self.flush(&mut inside, now);
        let until = inside.shut_at.map(|shut| {
            let trip = inside.stream.round_trip().unwrap_or_default();
            farewell_ends(shut, inside.stream.last_packet_at(), trip)
        });
        let delivered = inside.stream.is_delivered();
        let both = delivered && inside.stream.peer_has_ended();
        let late = until.is_some_and(|until| now >= until);
        // The stream was closed before the listener answered, so nothing was sent that needs an ACK.
        let unmet = inside.shut_at.is_some() && matches!(inside.opening, Opening::Asking(..));
        if inside.broken.is_some() || both || late || unmet {
            inside.over = true;
            inside.wake();
            return None;
        }
        let next = match inside.opening {
            Opening::Asking(at, count) => Some(at + slower(INITIAL_PAUSE, count, MAX_PAUSE)),
            _ => inside.stream.poll_timeout(),
        };
        Some(next.into_iter().chain(until).min())
    }

    fn shut(&self) {
        let (mut inside, now) = (self.inside(), self.now());
        if inside.shut_at.is_none() {
            inside.shut_at = Some(now);
            inside.stream.close();
            self.flush(&mut inside, now);
            inside.wake();
        }
        drop(inside);
        self.changed.notify_one();
    }
}

/// When a stream that was closed at `shut` stops waiting for the ACK of its last bytes.
fn farewell_ends(shut: Duration, last_packet_at: Duration, round_trip: Duration) -> Duration {
    let silent = shut.max(last_packet_at) + limits::silence(FAREWELL, round_trip);
    silent.min(shut + 2 * limits::silence(LONGEST_FAREWELL / 2, round_trip))
}

/// Closes its stream when it is dropped.
pub(crate) struct Line(pub Arc<Pipe>);

impl Drop for Line {
    fn drop(&mut self) {
        self.0.shut();
    }
}

impl HoledStream for Line {
    fn poll_take(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Taken>> {
        let (mut inside, now) = (self.0.inside(), self.0.now());
        if buffer.is_empty() || inside.shut_at.is_some() {
            return Poll::Ready(Ok(Taken::Bytes(0)));
        }
        if let Some(count) = inside.stream.read(buffer) {
            self.0.flush(&mut inside, now);
            return Poll::Ready(Ok(Taken::Bytes(count)));
        }
        if let Some(broken) = inside.broken {
            return Poll::Ready(Err(broken.into()));
        }
        inside.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_put(&self, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let (mut inside, now) = (self.0.inside(), self.0.now());
        if inside.shut_at.is_some() || inside.broken.is_some() || inside.over {
            return Poll::Ready(Err(inside.broken.unwrap_or(io::ErrorKind::BrokenPipe).into()));
        }
        if !inside.stream.has_room() {
            wait(&mut inside.waiters, cx);
            return Poll::Pending;
        }
        let count = bytes.iter().map(|part| inside.stream.write(part)).sum();
        self.0.flush(&mut inside, now);
        drop(inside);
        self.0.changed.notify_one();
        Poll::Ready(Ok(count))
    }

    fn poll_hung_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.0.inside();
        if inside.stream.peer_has_ended() || inside.broken.is_some() || inside.over {
            return Poll::Ready(());
        }
        wait(&mut inside.waiters, cx);
        Poll::Pending
    }

    fn shut(&self) {
        self.0.shut();
    }

    fn poll_delivered(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.0.inside();
        if inside.over || inside.stream.is_delivered() || inside.broken.is_some() {
            return Poll::Ready(());
        }
        wait(&mut inside.waiters, cx);
        Poll::Pending
    }

    fn bound(&self, secret: &[u8; 32]) {
        self.0.inside().secret = Some(*secret);
    }

    fn tell(&self, counters: &mut Counters) {
        let inside = self.0.inside();
        counters.round_trip = inside.stream.round_trip();
        counters.retransmissions = Some(inside.stream.repeated());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_farewell_ends_though_the_peer_goes_on_sending() {
        let [second, shut] = [1, 100].map(Duration::from_secs);
        let ends = |heard: u32, trip| farewell_ends(shut, shut + heard * second, trip) - shut;
        assert_eq!(ends(0, Duration::ZERO), second, "a silent peer");
        assert_eq!(ends(5, Duration::ZERO), 6 * second, "a sign of the peer counts");
        assert_eq!(ends(3600, Duration::ZERO), LONGEST_FAREWELL);
        assert_eq!(ends(3600, 5 * second), 40 * second, "eight round trips");
        assert_eq!(ends(3600, Duration::MAX), 8 * limits::LONGEST_ROUND_TRIP, "whatever the peer claims");
    }
}
