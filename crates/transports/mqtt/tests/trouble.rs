//! A real Mosquitto goes away, refuses, loses or repeats messages.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::sync::Arc;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Recorder};
use thalweg_transport::{Address, ErrorKind, Link, Listener, Options, Transport, Value};

mod common;
use common::relay::between;
use common::{options, qos, version, Broker};

/// Starts a broker with `more` in its configuration. If there is none, prints why the test is skipped.
fn broker(more: &str) -> Option<Broker> {
    Broker::start(more).map_err(|missing| println!("skipped: {missing}")).ok()
}

async fn listen(address: &Address, options: &Options) -> Box<dyn Listener> {
    thalweg_mqtt::transport().listen(address, options).await.unwrap()
}

/// Opens a link whose two ends may use different addresses of one broker.
async fn link(
    listener: &dyn Listener,
    address: &Address,
    options: &Options,
) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let transport = thalweg_mqtt::transport();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let (server, client) = tokio::join!(accept, transport.connect(address, options));
    (client.unwrap(), server)
}

fn at(address: &Address, port: u16) -> Address {
    Address { port: Some(port), ..address.clone() }
}

async fn until_closed(link: &Arc<dyn Link>) -> String {
    let sink = Recorder::new(0);
    loop {
        match link.receive(&sink).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                return error.to_string();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_brokers_restart_the_listener_is_there_again() {
    let Some(broker) = broker("") else { return };
    let (address, options) = (broker.address(), options(&[]));
    let listener = listen(&address, &options).await;
    let (client, server) = link(&*listener, &address, &options).await;
    broker.stop();
    for ended in [&client, &server] {
        let why = until_closed(ended).await;
        assert!(why.contains("broker"), "{why}");
    }
    broker.start_again();
    // As a client's session does, connect again until the server answers.
    let transport = thalweg_mqtt::transport();
    let client = loop {
        match transport.connect(&address, &options).await {
            Ok(link) => break link,
            Err(error) => assert!(error.kind().may_retry(), "{error}"),
        }
    };
    let server = loop {
        // Before that, an error reports why there was no link.
        if let Ok(link) = listener.accept().await.unwrap().await {
            break link;
        }
    };
    client.send_control(Bytes::from_static(b"back")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "back");
}

#[tokio::test]
async fn no_broker_is_unreachable_with_the_hint() {
    // A socket that is bound and does not listen refuses connections, and nobody else can take its port.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = bound.local_addr().unwrap().port();
    let address = Address::parse(&format!("mqtt://127.0.0.1:{port}/job")).unwrap();
    let error = thalweg_mqtt::transport().listen(&address, &options(&[])).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("start the broker first"), "{error}");
}

#[tokio::test]
async fn without_a_login_it_is_refused_and_says_where_to_give_one() {
    let Some(broker) = broker("") else { return };
    for version in ["3.1.1", "5"] {
        let options = Options { login: None, ..options(&[common::version(version)]) };
        let error = thalweg_mqtt::transport().listen(&broker.address(), &options).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Security);
        assert!(error.to_string().contains("security.login_file"), "{error}");
    }
}

#[tokio::test]
async fn a_listener_nobody_has_started_is_unreachable() {
    let Some(broker) = broker("") else { return };
    let outcome = thalweg_mqtt::transport().connect(&broker.address(), &options(&[])).await;
    assert_eq!(outcome.err().unwrap().kind(), ErrorKind::Unreachable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_keep_to_the_limit_that_version_5_tells() {
    let Some(broker) = broker("max_packet_size 100000") else { return };
    let (address, options) = (broker.address(), options(&[]));
    let listener = listen(&address, &options).await;
    let (client, server) = link(&*listener, &address, &options).await;
    let most = client.capabilities().max_chunk;
    assert!((90_000..100_000).contains(&most), "{most}");
    assert_eq!(listener.max_chunk(), most, "so that a session's chunks fit");
    let total = 4 * u64::from(most);
    let (source, sink) = (pattern(total, 1), Recorder::new(total));
    let received = async {
        assert_eq!(server.receive(&sink).await.unwrap(), "all sent");
        sink.check(&source);
    };
    let sent = async {
        client.send_update(&outgoing(&source, update_id(1), most)).await.unwrap();
        client.send_control(Bytes::from_static(b"all sent")).await.unwrap();
        let error = client.send_update(&outgoing(&source, update_id(2), most + 64)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    };
    tokio::join!(received, sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_over_a_limit_that_is_not_told_ends_the_link_in_words() {
    let Some(broker) = broker("max_packet_size 100000") else { return };
    let (address, options) = (broker.address(), options(&[version("3.1.1")]));
    let listener = listen(&address, &options).await;
    let (client, _server) = link(&*listener, &address, &options).await;
    let source = pattern(400_000, 1);
    let update = outgoing(&source, update_id(1), 200_000);
    let (sent, why) = tokio::join!(client.send_update(&update), until_closed(&client));
    assert!(sent.is_ok() || sent.is_err_and(|error| error.kind() == ErrorKind::Closed));
    assert!(why.contains("hung up") || why.contains("broke"), "{why}");
    assert!(why.contains("the longest message so far, of 200") && why.contains("max_packet"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_leaves_no_room_for_a_chunk_is_refused() {
    let Some(broker) = broker("max_packet_size 600") else { return };
    for more in [vec![], vec![version("3.1.1"), ("max_packet", Value::Number(600))]] {
        let outcome = thalweg_mqtt::transport().listen(&broker.address(), &options(&more)).await;
        let error = outcome.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("packets may have 600 bytes"), "{error}");
    }
}

/// One chunk gets lost between the broker and a member. The member notices it by the numbers, and the link
/// ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_message_breaks_the_link() {
    let Some(broker) = broker("") else { return };
    let (address, options) = (broker.address(), options(&[]));
    let listener = listen(&address, &options).await;
    let port = between(broker.port, Arc::new(|number| usize::from(number != 2))).await;
    let (client, server) = link(&*listener, &at(&address, port), &options).await;
    let source = pattern(80_000, 1);
    let sent = async {
        // Sending may finish before the loss is noticed.
        let _ = server.send_update(&outgoing(&source, update_id(1), 8_000)).await;
        let _ = server.send_control(Bytes::from_static(b"all sent")).await;
    };
    let (why, ()) = tokio::join!(until_closed(&client), sent);
    assert!(why.contains("lost"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_comes_twice_is_taken_once() {
    let Some(broker) = broker("") else { return };
    for level in [0, 1] {
        let (address, options) = (broker.address(), options(&[qos(level)]));
        let listener = listen(&address, &options).await;
        let port = between(broker.port, Arc::new(|number| 1 + number % 2)).await;
        let (client, server) = link(&*listener, &at(&address, port), &options).await;
        let (source, sink) = (pattern(80_000, 1), Recorder::new(80_000));
        let sent = async {
            server.send_update(&outgoing(&source, update_id(1), 8_000)).await.unwrap();
            server.send_control(Bytes::from_static(b"all sent")).await.unwrap();
        };
        let (message, ()) = tokio::join!(client.receive(&sink), sent);
        assert_eq!(message.unwrap(), "all sent");
        assert_eq!(sink.seen().stored.len(), 10);
        sink.check(&source);
    }
}
