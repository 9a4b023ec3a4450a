//! A peer whose address changes: its NAT has given it another port, or it has changed networks.
//!
//! The listener's end of a socket takes another source address only after the peer has answered a challenge from
//! there (RFC 9000, sections 8.2 and 9). Until then nothing but challenges goes to that address. Each answers one
//! datagram and has at most 7/4 of its bytes, where RFC 9000 permits three times as many. The challenges of chunks'
//! sockets are datagrams of the link, sealed like the others:
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | key | 16 bytes, as in every datagram of the link |
//! | 16 | kind | 8: a challenge; 9: the answer; 10: here, which answers a hello from the peer's known address |
//! | 17 | | 15 bytes, 0 |
//! | 32 | cookie | 24 bytes, of kinds 8 and 9: a [proof](crate::control::cookie) of this address, this link and this time |
//!
//! When the connecting end learns that its address has changed, it sends hellos at once: [`announce_moves`].

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{SockAddr, SockRef};
use thalweg_sockets::kernel::disconnect;
use thalweg_wire::limits;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::control::cookie::{self, Cookies};
use crate::control::packet::{Cookie, Id, COOKIE_BYTES};
use crate::datagram::{Encode, Key, PREFIX_BYTES};
use crate::hello::HELLO_PAUSES;
use crate::socket::Lane;

const CHALLENGE: u8 = 8;
const ANSWER: u8 = 9;
const HERE: u8 = 10;
/// Least time between two challenges to the same address.
const CHALLENGE_PAUSE: Duration = Duration::from_millis(10);
/// How long a connecting end sends hellos after its address has changed. Later datagrams show it too.
const ANNOUNCE_TIME: Duration = limits::ANSWERED;

/// The address of a connecting peer as the listener's end knows it, and the checks before it changes. Does no I/O.
#[derive(Debug)]
pub(crate) struct PeerAddress {
    address: SocketAddr,
    /// When the peer was first seen there, in whole milliseconds, like the times of cookies. Earlier challenges
    /// are not valid any more: somebody may have recorded their answers.
    since: Duration,
    /// The address that was challenged last, and when.
    challenged: Option<(SocketAddr, Duration)>,
}

impl PeerAddress {
    /// A peer that has shown at `now` that it receives at `address`.
    pub(crate) fn new(address: SocketAddr, now: Duration) -> Self {
        Self { address, since: whole_millis(now), challenged: None }
    }

    pub(crate) fn get(&self) -> SocketAddr {
        self.address
    }

    /// The challenge to send to `from`, where a datagram of the link `id` has come from. `None` if the peer is
    /// known to be there, or was challenged there a moment ago.
    pub(crate) fn challenge(
        &mut self,
        cookies: &Cookies,
        now: Duration,
        from: SocketAddr,
        id: &Id,
    ) -> Option<Cookie> {
        let again = self.challenged.is_some_and(|(whom, at)| whom == from && now < at + CHALLENGE_PAUSE);
        if from == self.address || again {
            return None;
        }
        self.challenged = Some((from, now));
        Some(cookies.make(now, from, id))
    }

    /// Takes `from` as the peer's address if the answer to a challenge has come from there. Returns the round
    /// trip; `None` if the answer is not valid.
    pub(crate) fn answered(
        &mut self,
        cookies: &Cookies,
        now: Duration,
        from: SocketAddr,
        id: &Id,
        cookie: &Cookie,
    ) -> Option<Duration> {
        let counts = cookie::made(cookie) >= self.since && cookies.check(now, from, id, cookie);
        if from == self.address || !counts {
            return None;
        }
        *self = Self::new(from, now);
        Some(cookie::age(now, cookie))
    }
}

fn whole_millis(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

/// A datagram that concerns the peer's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressMessage {
    /// Asks whether the peer receives at the address where this arrives.
    Challenge(Cookie),
    /// Answers a challenge.
    Answer(Cookie),
    /// Answers a hello that came from the peer's known address.
    Here,
}

impl AddressMessage {
    /// Parses a datagram of the link with this key. `None` for any other datagram.
    pub(crate) fn read(key: &Key, datagram: &[u8]) -> Option<Self> {
        let (prefix, rest) = datagram.split_at_checked(PREFIX_BYTES)?;
        if prefix[..16] != key[..] || prefix[17..].iter().any(|&byte| byte != 0) {
            return None;
        }
        let cookie = || rest.try_into().ok();
        match prefix[16] {
            CHALLENGE => cookie().map(Self::Challenge),
            ANSWER => cookie().map(Self::Answer),
            HERE if rest.is_empty() => Some(Self::Here),
            _ => None,
        }
    }

    /// Whether a datagram, sealed or not, has the kind of a challenge. The kind is not encrypted.
    pub(crate) fn looks_like_challenge(datagram: &[u8]) -> bool {
        datagram.get(16) == Some(&CHALLENGE)
    }
}

impl Encode for AddressMessage {
    fn encode(&self, key: &Key, out: &mut Vec<u8>) {
        let (kind, cookie) = match self {
            Self::Challenge(cookie) => (CHALLENGE, Some(cookie)),
            Self::Answer(cookie) => (ANSWER, Some(cookie)),
            Self::Here => (HERE, None),
        };
        out.extend_from_slice(key);
        out.push(kind);
        out.extend_from_slice(&[0; PREFIX_BYTES - 17]);
        out.extend_from_slice(cookie.map_or(&[], |cookie| &cookie[..]));
    }
}

const _: () = assert!(PREFIX_BYTES + COOKIE_BYTES <= PREFIX_BYTES * 7 / 4);

/// Connects the socket again if this machine has changed networks, so that the system now sends to `peer` from another
/// address. Returns whether it did. A socket keeps the source address that it got when it was connected, and cannot
/// send once this machine has lost that address.
///
/// # Errors
/// Those of the system, while there is no route to the peer.
pub(crate) fn follow_route(socket: &UdpSocket, peer: SocketAddr) -> io::Result<bool> {
    if source_to(peer)? == socket.local_addr()?.ip() {
        return Ok(false);
    }
    disconnect(socket)?;
    SockRef::from(socket).connect(&SockAddr::from(peer))?;
    Ok(true)
}

/// The address from which the system sends to `peer` now. Nothing is sent.
fn source_to(peer: SocketAddr) -> io::Result<IpAddr> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// Task of a connecting end's link. Each time when the control stream reports a new address in `moves`, it sends
/// hellos on the sockets for chunks until something comes back on each. Without them, the listener would not learn the
/// new address of an end that only receives. `read` reads what has arrived on the socket that no other task always
/// reads.
pub async fn announce_moves<F: Future<Output = ()>>(
    lanes: [Arc<Lane>; 2],
    mut moves: watch::Receiver<u64>,
    read: impl Fn() -> F,
) {
    while moves.changed().await.is_ok() {
        lanes.iter().for_each(|lane| lane.follow_route());
        let before = lanes.each_ref().map(|lane| lane.receive_count());
        let (mut pause, max_pause) = HELLO_PAUSES;
        let began = Instant::now();
        while began.elapsed() < ANNOUNCE_TIME {
            let silent = |number: usize| lanes[number].receive_count() == before[number];
            if ![0, 1].map(silent).contains(&true) {
                break;
            }
            (0..2)
                .filter(|number| silent(*number))
                .for_each(|number| lanes[number].send_hello(number as u64));
            tokio::select! {
                () = sleep(pause) => {}
                // The address has changed again: start over.
                () = has_changed(&moves) => break,
            }
            read().await;
            pause = pause.mul_f64(1.1).min(max_pause);
        }
    }
}

/// Waits until `moves` has changed since it was last read.
async fn has_changed(moves: &watch::Receiver<u64>) {
    let mut moves = moves.clone();
    if moves.changed().await.is_err() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Id = *b"sixteen letters.";
    const SECOND: Duration = Duration::from_secs(1);

    fn addresses() -> [SocketAddr; 3] {
        ["10.0.0.1:7", "10.0.0.1:8", "10.0.0.2:7"].map(|text| text.parse().unwrap())
    }

    #[test]
    fn a_peer_moves_once_it_has_answered_from_there_and_nobody_else_moves_it() {
        let cookies = Cookies::new("test").unwrap();
        let [home, port, network] = addresses();
        let mut peer = PeerAddress::new(home, SECOND);
        assert_eq!(peer.challenge(&cookies, 2 * SECOND, home, &ID), None, "it is there");
        let cookie = peer.challenge(&cookies, 2 * SECOND, port, &ID).unwrap();
        assert_eq!(peer.get(), home, "a datagram alone moves nobody");
        assert_eq!(peer.answered(&cookies, 3 * SECOND, network, &ID, &cookie), None, "from a third address");
        assert_eq!(peer.answered(&cookies, 3 * SECOND, port, &[0; 16], &cookie), None, "of another link");
        let mut forged = cookie;
        forged[20] ^= 1;
        assert_eq!(peer.answered(&cookies, 3 * SECOND, port, &ID, &forged), None);
        let late = 2 * SECOND + cookie::VALID + Duration::from_millis(1);
        assert_eq!(peer.answered(&cookies, late, port, &ID, &cookie), None);
        assert_eq!(peer.answered(&cookies, 3 * SECOND, port, &ID, &cookie), Some(SECOND));
        assert_eq!(peer.get(), port);
    }

    /// The peer moves twice, and the first answer comes last; then somebody repeats it.
    #[test]
    fn an_answer_from_before_a_move_does_not_count() {
        let cookies = Cookies::new("test").unwrap();
        let [home, port, network] = addresses();
        let mut peer = PeerAddress::new(home, Duration::ZERO);
        let first = peer.challenge(&cookies, SECOND, port, &ID).unwrap();
        let second = peer.challenge(&cookies, 2 * SECOND, network, &ID).unwrap();
        assert!(peer.answered(&cookies, 3 * SECOND, network, &ID, &second).is_some());
        assert_eq!(peer.answered(&cookies, 4 * SECOND, port, &ID, &first), None);
        assert_eq!(peer.get(), network);
        let back = peer.challenge(&cookies, 5 * SECOND, port, &ID).unwrap();
        assert!(peer.answered(&cookies, 6 * SECOND, port, &ID, &back).is_some(), "it goes back there");
    }

    #[test]
    fn many_datagrams_from_another_address_are_answered_by_few_challenges() {
        let cookies = Cookies::new("test").unwrap();
        let [home, port, network] = addresses();
        let mut peer = PeerAddress::new(home, Duration::ZERO);
        let at = |micros| SECOND + Duration::from_micros(micros);
        let sent = (0..20_000).filter(|n| peer.challenge(&cookies, at(*n), port, &ID).is_some()).count();
        assert_eq!(sent, 2, "in 20 ms");
        assert!(peer.challenge(&cookies, at(20_000), network, &ID).is_some(), "each address by itself");
    }

    #[test]
    fn messages_are_read_back_and_no_others() {
        let key: Key = [7; 16];
        for message in [
            AddressMessage::Challenge([1; COOKIE_BYTES]),
            AddressMessage::Answer([2; COOKIE_BYTES]),
            AddressMessage::Here,
        ] {
            let mut datagram = Vec::new();
            message.encode(&key, &mut datagram);
            assert_eq!(AddressMessage::read(&key, &datagram), Some(message));
            assert_eq!(
                AddressMessage::looks_like_challenge(&datagram),
                matches!(message, AddressMessage::Challenge(_))
            );
            assert_eq!(AddressMessage::read(&[8; 16], &datagram), None);
            assert_eq!(AddressMessage::read(&key, &datagram[..datagram.len() - 1]), None);
            assert_eq!(AddressMessage::read(&key, &[&datagram[..], &[0]].concat()), None);
            assert_eq!(crate::datagram::Datagram::decode(&key, &datagram), None);
            assert_eq!(crate::repetition::Word::read(&key, &datagram), None);
            datagram[20] = 1;
            assert_eq!(AddressMessage::read(&key, &datagram), None);
        }
    }

    /// On this machine the route does not change.
    #[tokio::test]
    async fn a_socket_on_its_route_stays_as_it_is() {
        let peer = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = peer.local_addr().unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
        socket.connect(to).await.unwrap();
        let before = socket.local_addr().unwrap();
        assert!(!follow_route(&socket, to).unwrap());
        assert_eq!(socket.local_addr().unwrap(), before);
    }

    /// A socket that was connected for another peer has a source address that is not on the way to this one, as
    /// after a change of networks. It then sends from the right one.
    #[tokio::test]
    async fn a_socket_off_its_route_is_connected_anew() {
        let peer = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = peer.local_addr().unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
        assert!(follow_route(&socket, to).unwrap(), "a socket without a connection has no source address");
        assert_eq!(socket.local_addr().unwrap().ip(), IpAddr::from([127, 0, 0, 1]));
        socket.send(b"here").await.unwrap();
        let mut buffer = [0; 10];
        let (length, from) = peer.recv_from(&mut buffer).await.unwrap();
        assert_eq!((&buffer[..length], from), (&b"here"[..], socket.local_addr().unwrap()));
    }
}
