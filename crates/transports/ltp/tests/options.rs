//! Options, and the values of counters.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder};
use thalweg_ltp::{Ltp, CHUNK};
use thalweg_transport::{Address, ErrorKind, Options, Settings, Transport, Value};

mod common;
use common::{link, listen, small};

#[tokio::test]
async fn what_it_cannot_do_it_refuses_with_the_hint() {
    let own = |name: &str, value| Settings::default().with(name, value);
    let wanted = [
        (Options { congestion: Some("cubic".into()), ..small() }, "leave that option out"),
        (Options { streams: 2, ..small() }, "leave streams at 1"),
        (Options { own: own("close_percent", Value::Number(0)), ..small() }, "from 1 to 100"),
        (Options { own: own("repair", Value::Number(2)), ..small() }, "a share from 0 to 1"),
        (Options { own: own("critical", Value::Text("all".into())), ..small() }, "write ranges of bytes"),
        (Options { own: own("paced", Value::Flag(false)), ..small() }, "close_percent"),
    ];
    for (options, hint) in wanted {
        let at = Address::parse("ltp://127.0.0.1:0").unwrap();
        let error = Ltp.listen(&at, &options).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[tokio::test]
async fn addresses_are_of_ltp_and_have_a_port() {
    for text in ["ltp://127.0.0.1", "udp://127.0.0.1:0"] {
        let error = Ltp.connect(&Address::parse(text).unwrap(), &small()).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Address, "{error}");
    }
}

#[tokio::test]
async fn a_chunk_is_one_packet_at_most() {
    let listener = listen(&Ltp, &small()).await;
    let (client, _server) = link(&*listener, &small()).await;
    let error =
        client.send_update(&outgoing(&pattern(5_000, 1), update_id(1), CHUNK + 64)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("set a smaller chunk"), "{error}");
}

#[tokio::test]
async fn a_byte_is_copied_once_at_each_end_and_what_is_sent_again_is_counted() {
    let listener = listen(&Ltp, &small()).await;
    let (client, server) = link(&*listener, &small()).await;
    let source = pattern(100_000, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let _pump = Pump::start(&server, &recorder);
    let report = client.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    recorder.check(&source);
    assert_eq!(recorder.seen().ranges.bytes(), 100_000, "the report comes when all has come");
    let again = client.counters().retransmissions.unwrap();
    let copied = client.counters().copied;
    assert!(
        (100_000..=100_000 + again * u64::from(CHUNK)).contains(&copied),
        "{copied} copied, {again} sent again"
    );
    assert!(report.wire > 100_000 && client.counters().round_trip.is_some());
}
