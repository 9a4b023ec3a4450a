//! How two ends meet: by datagrams alone, over TCP alone, and never by a false source address.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder, GUARD};
use thalweg_rng::Rng;
use thalweg_transport::{
    Address, Carrier, Carriers, ErrorKind, Link, Listener, NoChunks, Options, Transport,
};
use thalweg_udp::Udp;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

mod common;
use common::{listen, plain, Trust};

fn at(listener: &dyn Listener) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, listener.address().port.unwrap()))
}

/// Opens a port that passes on one client's datagrams, and no TCP. In each direction it drops the fraction
/// `loss` of them.
async fn datagrams_alone(to: SocketAddr, loss: f64, seed: u64) -> (Address, Arc<AtomicUsize>) {
    let inside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    pass_datagrams(inside, to, loss, seed)
}

/// Opens a port that passes on datagrams only after a client has tried TCP in vain.
async fn datagrams_after_tcp(to: SocketAddr) -> Address {
    let (inside, tcp) = loop {
        let inside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        if let Ok(tcp) = TcpListener::bind(inside.local_addr().unwrap()).await {
            break (inside, tcp);
        }
    };
    let address = Address::parse(&format!("udp://localhost:{}", inside.local_addr().unwrap().port()));
    tokio::spawn(async move {
        drop(tcp.accept().await.unwrap());
        pass_datagrams(inside, to, 0.0, 0);
    });
    address.unwrap()
}

fn pass_datagrams(inside: UdpSocket, to: SocketAddr, loss: f64, seed: u64) -> (Address, Arc<AtomicUsize>) {
    let port = inside.local_addr().unwrap().port();
    let passed = Arc::new(AtomicUsize::new(0));
    let counted = passed.clone();
    tokio::spawn(async move {
        let outside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (mut up, mut down, mut rng) = ([0; 2000], [0; 2000], Rng::new(&[seed]));
        let mut client = None;
        loop {
            tokio::select! {
                Ok((bytes, from)) = inside.recv_from(&mut up) => {
                    client = Some(from);
                    if !rng.hits(loss) {
                        counted.fetch_add(1, Ordering::SeqCst);
                        let _ = outside.send_to(&up[..bytes], to).await;
                    }
                }
                Ok((bytes, _)) = outside.recv_from(&mut down) => {
                    if let Some(client) = client.filter(|_| !rng.hits(loss)) {
                        let _ = inside.send_to(&down[..bytes], client).await;
                    }
                }
            }
        }
    });
    (Address::parse(&format!("udp://localhost:{port}")).unwrap(), passed)
}

/// Opens a port that passes on TCP, and no datagrams.
async fn tcp_alone(to: SocketAddr) -> Address {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = Address::parse(&format!("udp://{}", port.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        while let Ok((mut inside, _)) = port.accept().await {
            tokio::spawn(async move {
                let mut outside = TcpStream::connect(to).await.unwrap();
                let _ = copy_bidirectional(&mut inside, &mut outside).await;
            });
        }
    });
    address
}

/// Opens a port that passes on only the second TCP connection, and no datagrams. It closes the first
/// connection at once.
async fn tcp_alone_and_late(to: SocketAddr) -> Address {
    let (silent, port) = loop {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        if let Ok(port) = TcpListener::bind(silent.local_addr().unwrap()).await {
            break (silent, port);
        }
    };
    let address = Address::parse(&format!("udp://{}", port.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        drop(port.accept().await.unwrap());
        let (mut inside, _) = port.accept().await.unwrap();
        let mut outside = TcpStream::connect(to).await.unwrap();
        let _ = copy_bidirectional(&mut inside, &mut outside).await;
        drop(silent);
    });
    address
}

async fn meet(
    listener: &dyn Listener,
    address: &Address,
    options: &Options,
) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let connect = async { Udp.connect(address, options).await.unwrap() };
    tokio::time::timeout(GUARD, async { tokio::join!(connect, accept) }).await.unwrap()
}

/// Sends a message and an update up, and a message back.
async fn use_it(client: &Arc<dyn Link>, server: &Arc<dyn Link>) {
    let source = pattern(100_000, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let pump = Pump::start(server, &recorder);
    client.send_update(&outgoing(&source, update_id(1), 1024)).await.unwrap();
    recorder.until(|seen| seen.ranges.bytes() == source.len()).await;
    recorder.check(&source);
    drop(pump);
    server.send_control("well".into()).await.unwrap();
    assert_eq!(client.receive(&NoChunks).await.unwrap(), "well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_works_without_tcp() {
    for loss in [0.0, 0.5] {
        let listener = listen(&Udp, &plain()).await;
        let (through, passed) = datagrams_alone(at(&*listener), loss, 3).await;
        let (client, server) = meet(&*listener, &through, &plain()).await;
        assert!(passed.load(Ordering::SeqCst) > 2 && client.capabilities().datagrams);
        assert_eq!((client.notice(), server.notice()), (None, None));
        use_it(&client, &server).await;
    }
}

/// Certificates are checked, and bind both ends to one secret, without TCP too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_checked_without_tcp_too() {
    let (trust, other) = (Trust::new(), Trust::new());
    let listener = listen(&Udp, &trust.listen(true)).await;
    let (through, _) = datagrams_alone(at(&*listener), 0.4, 5).await;
    let options = trust.connect(Some(trust.client("clinic-3", 1)));
    let (client, server) = meet(&*listener, &through, &options).await;
    assert_eq!(server.peer().certified.as_deref(), Some("clinic-3"));
    assert!(client.peer().binding.is_some() && client.peer().binding == server.peer().binding);
    use_it(&client, &server).await;
    let stranger = other.connect(Some(other.client("clinic-3", 1)));
    let (refused, _) = tokio::join!(Udp.connect(&through, &stranger), listener.accept());
    assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::Security);
}

/// If UDP is blocked and the server is not trusted over TCP, or the other way round, the client reports the
/// lack of trust.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_reported_before_a_blocked_path() {
    let (trust, other) = (Trust::new(), Trust::new());
    let listener = listen(&Udp, &trust.listen(true)).await;
    let stranger = other.connect(Some(other.client("clinic-3", 1)));
    let to = at(&*listener);
    for through in [datagrams_after_tcp(to).await, tcp_alone(to).await] {
        let (refused, _) = tokio::join!(Udp.connect(&through, &stranger), listener.accept());
        assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::Security, "{through}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_works_without_datagrams_and_reports_that() {
    let listener = listen(&Udp, &plain()).await;
    let through = tcp_alone(at(&*listener)).await;
    let (client, server) = meet(&*listener, &through, &plain()).await;
    assert!(!client.capabilities().datagrams && !server.capabilities().datagrams);
    for end in [&client, &server] {
        assert_eq!(end.carriers(), Some(Carriers { control: Carrier::Tcp, chunks: Carrier::Tcp }));
        let notice = end.notice().unwrap();
        assert!(notice.contains("udp") && notice.contains("over TCP"), "{notice}");
    }
    use_it(&client, &server).await;
}

/// `ways` finds out whether UDP and TCP pass, whichever of them a link would use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ways_reports_whether_udp_and_tcp_pass() {
    let listener = listen(&Udp, &plain()).await;
    let ways = async |address: &Address| Udp.ways(address, Duration::ZERO).await.unwrap().unwrap();
    let both = ways(&listener.address()).await;
    assert!(both.udp.is_ok() && both.tcp.is_ok(), "{both:?}");
    let tcp = ways(&tcp_alone(at(&*listener)).await).await;
    assert!(tcp.udp.is_err() && tcp.tcp.is_ok(), "{tcp:?}");
    let udp = ways(&datagrams_alone(at(&*listener), 0.0, 1).await.0).await;
    assert!(udp.udp.is_ok() && udp.tcp.is_err(), "{udp:?}");
    // Each TCP connection that `ways` only opened ends with an error. It does not keep the listener from
    // accepting links.
    let accept = async {
        loop {
            if let Ok(link) = listener.accept().await.unwrap().await {
                break link;
            }
        }
    };
    let address = listener.address();
    let connect = async { Udp.connect(&address, &plain()).await.unwrap() };
    let (client, server) =
        tokio::time::timeout(GUARD, async { tokio::join!(connect, accept) }).await.unwrap();
    let datagrams = Carriers { control: Carrier::Udp, chunks: Carrier::Udp };
    assert_eq!((client.carriers(), server.carriers()), (Some(datagrams), Some(datagrams)));
}

/// The client retries TCP for as long as a datagram may still be answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_that_failed_once_is_tried_again() {
    let listener = listen(&Udp, &plain()).await;
    let through = tcp_alone_and_late(at(&*listener)).await;
    let (client, server) = meet(&*listener, &through, &plain()).await;
    assert!(!client.capabilities().datagrams);
    use_it(&client, &server).await;
}

/// The last message before a close arrives. (Unlike with TCP, the kernel does not send it after the close.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_message_arrives_over_a_path_that_loses_much() {
    let listener = listen(&Udp, &plain()).await;
    let (through, _) = datagrams_alone(at(&*listener), 0.5, 11).await;
    let (client, server) = meet(&*listener, &through, &plain()).await;
    client.send_control("bye".into()).await.unwrap();
    let receive = async {
        assert_eq!(server.receive(&NoChunks).await.unwrap(), "bye");
        assert_eq!(server.receive(&NoChunks).await.unwrap_err().kind(), ErrorKind::Closed);
    };
    tokio::join!(client.close(), receive);
}

/// A packet of the control stream with this kind and this rest.
fn packet(kind: u8, id: u8, rest: &[u8]) -> Vec<u8> {
    [&b"tlwc\x01"[..], &[kind, 0, 0], &[id; 16], rest].concat()
}

async fn answer(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 2000];
    let length = tokio::time::timeout(GUARD, socket.recv(&mut buffer)).await.unwrap().unwrap();
    buffer[..length].to_vec()
}

/// A cookie is valid only from the address that it was sent to. Until a valid one arrives, nothing waits to
/// be accepted, and the listener answers each packet with at most one, which is no longer.
#[tokio::test]
async fn a_false_source_address_makes_no_stream() {
    let listener = listen(&Udp, &plain()).await;
    let [honest, liar] = [
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(),
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(),
    ];
    honest.connect(at(&*listener)).await.unwrap();
    liar.connect(at(&*listener)).await.unwrap();
    let open = packet(1, 7, &[0; 28]);
    honest.send(&open).await.unwrap();
    let retry = answer(&honest).await;
    assert_eq!((retry[5], retry.len()), (2, open.len()));
    let cookie = &retry[28..52];
    // The first bytes of a link, as the honest peer would send them.
    let mut segment = vec![0; 42];
    segment[16..20].copy_from_slice(&32_768_u32.to_le_bytes());
    segment[28..32].copy_from_slice(&1_u32.to_le_bytes());
    let first = packet(3, 7, &[cookie, &segment, b"tlwp"].concat());
    liar.send(&first).await.unwrap();
    let refused = answer(&liar).await;
    assert_eq!(refused[5], 2, "a cookie of another address was taken");
    assert!(refused.len() <= first.len());
    // Without a stream, a segment is answered with a reset.
    liar.send(&packet(4, 7, &[&segment[..], b"more"].concat())).await.unwrap();
    assert_eq!(answer(&liar).await, packet(5, 7, &[]));
    honest.send(&first).await.unwrap();
    let acknowledged = answer(&honest).await;
    assert_eq!((acknowledged[5], acknowledged[24 + 8]), (4, 4), "the honest peer's four bytes are not taken");
    // From another address, even a packet of this stream changes nothing. Its sender is asked whether he is there.
    let more = packet(4, 7, &[&segment[..], b"more"].concat());
    liar.send(&more).await.unwrap();
    let challenge = answer(&liar).await;
    assert!(challenge[5] == 6 && challenge.len() <= more.len(), "{challenge:?}");
    liar.send(&packet(1, 8, &[0; 28])).await.unwrap();
    assert_eq!(answer(&liar).await[8], 8, "more than a challenge was sent");
}
