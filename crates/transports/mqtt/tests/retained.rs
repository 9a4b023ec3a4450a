//! A real Mosquitto retains the model. A member that joins later gets it from the broker, and nothing stays
//! retained in the end.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use rumqttc::mqttbytes::{v4, QoS};
use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder};
use thalweg_transport::{Address, ErrorKind, Link, Listener, Options, SendReport, Transport, Value};

mod common;
use common::{options, version, Broker};

const MODEL: u64 = 3 << 20;
const CHUNK: u32 = 64 << 10;
const CHUNKS: usize = (MODEL / CHUNK as u64) as usize;

/// The topics of the job that the broker retains, as a new client sees them.
fn retained(broker: &Broker, address: &Address) -> Vec<String> {
    let mut out = BytesMut::new();
    let mut connect = v4::Connect::new("onlooker");
    connect.login = options(&[]).login.map(|login| v4::Login::new(login.user, login.password));
    connect.write(&mut out).unwrap();
    let mut subscribe =
        v4::Subscribe::new(format!("thalweg/{}/#", address.job.as_deref().unwrap()), QoS::AtMostOnce);
    subscribe.pkid = 1;
    subscribe.write(&mut out).unwrap();
    v4::PingReq.write(&mut out).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", broker.port)).unwrap();
    stream.write_all(&out).unwrap();
    let (mut received, mut topics) = (BytesMut::new(), Vec::new());
    loop {
        match v4::Packet::read(&mut received, 1 << 20) {
            // Messages published meanwhile arrive too; they are not retained.
            Ok(v4::Packet::Publish(publish)) => topics.extend(publish.retain.then_some(publish.topic)),
            Ok(v4::Packet::PingResp) => return topics,
            Ok(v4::Packet::ConnAck(_) | v4::Packet::SubAck(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(_) => {
                let mut buffer = vec![0; 1 << 16];
                let n = stream.read(&mut buffer).unwrap();
                assert!(n > 0, "the broker hung up");
                received.extend_from_slice(&buffer[..n]);
            }
        }
    }
}

async fn link(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (transport, address) = (thalweg_mqtt::transport(), listener.address());
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let (server, client) = tokio::join!(accept, transport.connect(&address, options));
    (client.unwrap(), server)
}

/// Sends the model to one client, and checks that it arrives.
async fn send(listener: &dyn Listener, ends: &(Arc<dyn Link>, Arc<dyn Link>), round: u32) -> SendReport {
    let (source, recorder) = (pattern(MODEL, 1), Arc::new(Recorder::new(MODEL)));
    let _pump = Pump::start(&ends.0, &recorder);
    let report = Mutex::new(None);
    let done = |_, sent: thalweg_transport::Result<SendReport>| *report.lock().unwrap() = Some(sent.unwrap());
    let update = outgoing(&source, update_id(round), CHUNK);
    listener.send_group(std::slice::from_ref(&ends.1), &update, &done).await;
    recorder.until(|seen| seen.ranges.bytes() == MODEL).await;
    recorder.check(&source);
    report.into_inner().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_late_is_sent_numbers_and_nothing_is_left() {
    let broker = match Broker::start("") {
        Ok(broker) => broker,
        Err(missing) => return println!("skipped: {missing}"),
    };
    for level in [0, 1] {
        let (address, client) = (broker.address(), options(&[common::qos(level)]));
        let server = options(&[common::qos(level), ("retain", Value::Flag(true))]);
        let listener = thalweg_mqtt::transport().listen(&address, &server).await.unwrap();
        let first = link(&*listener, &client).await;
        let sent = send(&*listener, &first, 1).await;
        assert!(sent.wire > MODEL, "{sent:?}");
        // The listener's identifier, and the model.
        assert_eq!(retained(&broker, &address).len(), 1 + CHUNKS);
        let late = link(&*listener, &client).await;
        let sent = send(&*listener, &late, 1).await;
        assert!(sent.wire < 256 * CHUNKS as u64 && sent.payload == MODEL, "{sent:?}");
        assert!(late.0.counters().received > MODEL, "it came from the broker");
        // The model of another round is not the retained one.
        let later = link(&*listener, &client).await;
        let sent = send(&*listener, &later, 2).await;
        assert!(sent.wire > MODEL, "{sent:?}");
        drop((first, late, later, listener));
        while !retained(&broker, &address).is_empty() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn the_old_version_cannot_forget() {
    let Some(broker) = Broker::start("").map_err(|missing| println!("skipped: {missing}")).ok() else {
        return;
    };
    let options = options(&[version("3.1.1"), ("retain", Value::Flag(true))]);
    let error = thalweg_mqtt::transport().listen(&broker.address(), &options).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
