//! A link goes on when its client gets another address, and only then.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder, GUARD};
use thalweg_transport::{Carrier, Carriers, Link, Listener, NoChunks, Options, Transport};
use thalweg_udp::Udp;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;

mod common;
use common::{listen, plain};
#[path = "common/nat.rs"]
mod nat;
use nat::{Nat, AWAY, HOME};

async fn meet(listener: &dyn Listener, nat: &Nat) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let (address, options) = (nat.address.clone(), plain());
    let connect = async { Udp.connect(&address, &options).await.unwrap() };
    let ends = timeout(GUARD, async { tokio::join!(connect, accept) }).await.unwrap();
    assert_eq!(ends.0.carriers(), Some(Carriers { control: Carrier::Udp, chunks: Carrier::Udp }));
    ends
}

/// Sends an update one way, again until it is whole, since `udp` sends nothing again by itself; and messages both
/// ways.
async fn use_it(from: &Arc<dyn Link>, to: &Arc<dyn Link>) {
    let source = pattern(50_000, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let mut pump = Pump::start(to, &recorder);
    while recorder.seen().ranges.bytes() < source.len() {
        from.send_update(&outgoing(&source, update_id(1), 1024)).await.unwrap();
        from.send_control("sent".into()).await.unwrap();
        assert_eq!(pump.next().await.unwrap(), "sent");
    }
    recorder.check(&source);
    pump.stop(from).await;
}

/// Messages in both directions, in order.
async fn talk(client: &Arc<dyn Link>, server: &Arc<dyn Link>, text: &'static str) {
    client.send_control(text.into()).await.unwrap();
    assert_eq!(server.receive(&NoChunks).await.unwrap(), text);
    server.send_control(text.into()).await.unwrap();
    assert_eq!(client.receive(&NoChunks).await.unwrap(), text);
}

/// A NAT gives each socket another port, then the client changes networks, and goes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_follows_its_client_up() {
    let listener = listen(&Udp, &plain()).await;
    let nat = Nat::before(&*listener, None).await;
    let (client, server) = meet(&*listener, &nat).await;
    for address in [HOME, AWAY, HOME] {
        talk(&client, &server, "before").await;
        nat.change(address);
        timeout(GUARD, talk(&client, &server, "after")).await.unwrap();
    }
    nat.change(AWAY);
    timeout(GUARD, use_it(&client, &server)).await.unwrap();
}

/// The client only receives, so its sockets for chunks must say where they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_follows_its_client_down() {
    let listener = listen(&Udp, &plain()).await;
    let nat = Nat::before(&*listener, None).await;
    let (client, server) = meet(&*listener, &nat).await;
    nat.change(AWAY);
    talk(&client, &server, "here").await;
    timeout(GUARD, use_it(&server, &client)).await.unwrap();
}

/// The client moves after any number of its packets, from the first ones on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_move_during_the_handshake() {
    let mut meetings = JoinSet::new();
    for (address, packets) in [HOME, AWAY].into_iter().flat_map(|address| (1..10).map(move |n| (address, n)))
    {
        meetings.spawn(async move {
            let listener = listen(&Udp, &plain()).await;
            let nat = Nat::before(&*listener, Some((packets, address))).await;
            let (client, server) = meet(&*listener, &nat).await;
            timeout(GUARD, talk(&client, &server, "met")).await.unwrap();
            timeout(GUARD, use_it(&client, &server)).await.unwrap();
        });
    }
    while let Some(met) = meetings.join_next().await {
        met.unwrap();
    }
}

/// Somebody who has seen packets of the link sends them from his own address. Each is answered by a challenge at
/// most, of less than three times its bytes, and the link stays where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_packet_moves_no_link() {
    let listener = listen(&Udp, &plain()).await;
    let nat = Nat::before(&*listener, None).await;
    let (client, server) = meet(&*listener, &nat).await;
    talk(&client, &server, "before").await;
    timeout(GUARD, use_it(&client, &server)).await.unwrap();
    let forger = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 4), 0)).await.unwrap();
    let seen = nat.last();
    assert_eq!(seen.len(), 3, "the control stream and two sockets for chunks");
    for (to, datagram) in &seen {
        for _ in 0..5 {
            forger.send_to(datagram, to).await.unwrap();
        }
    }
    timeout(GUARD, talk(&client, &server, "still")).await.unwrap();
    timeout(GUARD, use_it(&client, &server)).await.unwrap();
    timeout(GUARD, use_it(&server, &client)).await.unwrap();
    let mut bytes = [0; 2000];
    let mut next = timeout(GUARD, forger.recv_from(&mut bytes)).await.unwrap();
    while let Ok((length, from)) = next {
        let (_, sent) = seen.iter().find(|(to, _)| *to == from).unwrap();
        let kind = if from.port() == listener.address().port.unwrap() { bytes[5] } else { bytes[16] };
        assert!([6, 8].contains(&kind), "not a challenge: {kind}");
        assert!(length < 3 * sent.len(), "{length} bytes for {}", sent.len());
        next = forger.try_recv_from(&mut bytes);
    }
}

/// An answer to a challenge counts from the address that was challenged alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_from_elsewhere_moves_no_link() {
    let listener = listen(&Udp, &Options::default()).await;
    let nat = Nat::before(&*listener, None).await;
    let (client, server) = meet(&*listener, &nat).await;
    talk(&client, &server, "before").await;
    let control = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.address().port.unwrap()));
    let (_, packet) = nat.last().into_iter().find(|(to, _)| *to == control).unwrap();
    let [one, other] = [
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(),
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(),
    ];
    one.send_to(&packet, control).await.unwrap();
    let mut challenge = [0; 100];
    let length = timeout(GUARD, one.recv(&mut challenge)).await.unwrap().unwrap();
    assert_eq!((length, challenge[5]), (48, 6));
    let mut answer = challenge[..length].to_vec();
    answer[5] = 7;
    other.send_to(&[&answer[..], &[0; 16]].concat(), control).await.unwrap();
    timeout(GUARD, talk(&client, &server, "after")).await.unwrap();
    assert!(other.try_recv(&mut challenge).is_err(), "something was sent to an address that did not answer");
}
