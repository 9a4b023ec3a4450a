//! Options that `udp` refuses, its counters, and its trace.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder};
use thalweg_transport::{Address, ErrorKind, Options, Settings, Transport, Value};
use thalweg_udp::{Udp, CHUNK};

mod common;
use common::{link, listen, small};

#[tokio::test]
async fn unsupported_options_are_refused_with_a_hint() {
    let wanted = [
        (Options { congestion: Some("cubic".into()), ..small() }, "leave that option out"),
        (Options { streams: 2, ..small() }, "leave streams at 1"),
        (Options { receive_buffer: Some(1 << 30), ..small() }, "mem_max"),
    ];
    for (options, hint) in wanted {
        let at = Address::parse("udp://127.0.0.1:0").unwrap();
        let error = Udp.listen(&at, &options).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[tokio::test]
async fn addresses_are_of_udp_and_have_a_port() {
    for text in ["udp://127.0.0.1", "tcp://127.0.0.1:0"] {
        let error = Udp.connect(&Address::parse(text).unwrap(), &small()).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Address, "{error}");
    }
}

#[tokio::test]
async fn a_byte_is_copied_once_at_each_end() {
    let listener = listen(&Udp, &small()).await;
    let (client, server) = link(&*listener, &small()).await;
    let source = pattern(100_000, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let _pump = Pump::start(&server, &recorder);
    client.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    recorder.until(|seen| seen.ranges.bytes() == 100_000).await;
    assert_eq!((client.counters().copied, server.counters().copied), (100_000, 100_000));
    assert_eq!(client.counters().retransmissions, None);
}

#[tokio::test]
async fn a_trace_has_a_line_for_what_the_sender_believed() {
    let file = std::env::temp_dir().join(format!("thalweg-udp-trace-{}", std::process::id()));
    let traced = Settings::default().with("trace", Value::Text(file.to_str().unwrap().into()));
    let listener = listen(&Udp, &small()).await;
    let (client, server) = link(&*listener, &Options { own: traced, ..small() }).await;
    let source = pattern(100_000, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let _pump = Pump::start(&server, &recorder);
    client.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    recorder.until(|seen| seen.ranges.bytes() == 100_000).await;
    let lines = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let first = lines.lines().next().unwrap();
    assert!(first.contains("\"peer\":\"tcp://127.0.0.1:") && first.ends_with("\"}"), "{first}");
    assert!(first.contains("\"phase\":\"starting\"") && first.contains("\"waits\":"), "{first}");
}

#[tokio::test]
async fn a_trace_that_cannot_be_written_is_refused_with_the_hint() {
    let traced = Settings::default().with("trace", Value::Text("/no such folder/trace".into()));
    let listener = listen(&Udp, &small()).await;
    let options = Options { own: traced, ..small() };
    let accept = async { listener.accept().await.unwrap().await.map(drop) };
    let connect = async { Udp.connect(&listener.address(), &options).await.map(drop).unwrap_err() };
    let (error, _) = tokio::join!(connect, accept);
    assert!(error.to_string().contains("name a file in a folder that exists"), "{error}");
}
