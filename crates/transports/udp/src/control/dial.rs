//! The connecting side. Each control stream has its own socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_wire::limits;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use super::packet::{Id, Packet, MAX_PACKET_BYTES};
use super::pipe::{Line, Path, Pipe, Socket};
use crate::moving::PeerAddress;

const CONNECT: &str = "connect";
/// After this many ICMP messages that the peer's port is closed, its program counts as ended, if no packet of the
/// peer has arrived for at least [`MIN_SILENCE`].
const MIN_ICMP_MESSAGES: u32 = 3;
/// Minimum time without a packet of the peer before the ICMP messages count. Anybody can forge such a message
/// (RFC 5927, section 4), but not the peer's silence.
const MIN_SILENCE: Duration = Duration::from_secs(1);

/// Begins a control stream to `to`. It repeats its first packet until the listener answers or the line is
/// dropped.
///
/// # Errors
/// The system's error if it makes no socket.
pub(crate) async fn begin(to: SocketAddr) -> Result<(Line, Arc<Pipe>)> {
    let failed = |e: io::Error| Error::io(CONNECT, format!("a UDP socket to {to}"), &e);
    let any = match to.ip() {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await.map_err(failed)?;
    socket.connect(to).await.map_err(failed)?;
    let socket = Arc::new(Socket::new(socket).map_err(failed)?);
    let mut id = Id::default();
    let none = |_| Error::new(ErrorKind::System, CONNECT, "the system has no random numbers");
    SystemRandom::new().fill(&mut id).map_err(none)?;
    let peer = PeerAddress::new(to, Duration::ZERO);
    let pipe = Pipe::connecting(id, Path { socket: socket.clone(), peer, src_ip: None });
    let reading = tokio::spawn(read(socket, pipe.clone())).abort_handle();
    let running = pipe.clone();
    tokio::spawn(async move {
        let _reading = AbortOnDrop(reading);
        running.run().await;
    });
    Ok((Line(pipe.clone()), pipe))
}

/// Aborts a task when it is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Passes packets that arrive to the stream.
async fn read(socket: Arc<Socket>, pipe: Arc<Pipe>) {
    let mut buffer = [0; MAX_PACKET_BYTES + 1];
    let mut closed = 0;
    loop {
        match socket.socket.recv(&mut buffer).await {
            Ok(length) => {
                if let Some((_, packet)) = Packet::decode(&buffer[..length]).filter(|(id, _)| *id == pipe.id)
                {
                    closed = 0;
                    pipe.handle(&packet);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                closed += 1;
                if !pipe.is_answered() || is_gone(closed, pipe.unanswered()) {
                    pipe.fail(io::ErrorKind::ConnectionRefused);
                    return;
                }
            }
            // The system reports a network problem, which may be temporary. Read on.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

/// Whether the peer's program has ended. `closed` is the number of ICMP messages that its port is closed.
/// `unanswered` is the time that the peer has been silent, and the round trip; `None` if this end expects no
/// packet, since then the silence means nothing.
fn is_gone(closed: u32, unanswered: Option<(Duration, Duration)>) -> bool {
    closed >= MIN_ICMP_MESSAGES
        && unanswered.is_some_and(|(silent, trip)| silent >= limits::silence(MIN_SILENCE, trip))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::task::{Context, Waker};

    use thalweg_conformance::GUARD;
    use thalweg_tcp::line::HoledStream;
    use tokio::time::timeout;

    use super::*;

    /// Anybody can send ICMP messages with a false source address, so a few of them must not end a stream.
    #[test]
    fn forged_answers_end_no_stream_whose_peer_speaks() {
        let [millis, second] = [1, 1_000].map(Duration::from_millis);
        assert!(!is_gone(1_000, None), "an idle stream");
        assert!(!is_gone(1_000, Some((999 * millis, millis))), "a peer that was heard a moment ago");
        assert!(!is_gone(1_000, Some((3 * second, second))), "over a path with a long round trip");
        assert!(!is_gone(MIN_ICMP_MESSAGES - 1, Some((60 * second, millis))));
        assert!(is_gone(MIN_ICMP_MESSAGES, Some((second, millis))));
    }

    #[tokio::test]
    async fn a_closed_port_is_noticed_before_and_after_the_listener_has_answered() {
        let listener = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let (line, pipe) = begin(to).await.unwrap();
        let mut question = [0; MAX_PACKET_BYTES];
        let (length, from) = timeout(GUARD, listener.recv_from(&mut question)).await.unwrap().unwrap();
        let (id, Packet::Open { time }) = Packet::decode(&question[..length]).unwrap() else {
            panic!("no open")
        };
        listener.send_to(&Packet::Retry { echo: time, cookie: [1; 24] }.encode(&id), from).await.unwrap();
        timeout(GUARD, pipe.answered()).await.unwrap().unwrap();
        drop(listener);
        assert!(line.poll_put(&mut Context::from_waker(Waker::noop()), &[IoSlice::new(b"hello")]).is_ready());
        timeout(GUARD, pipe.broken()).await.unwrap();
        let (_line, pipe) = begin(to).await.unwrap();
        let refused = timeout(GUARD, pipe.answered()).await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
