//! Kernel servers and clients with the proxy between them. Some tests use two hosts of a lab and a link that
//! loses packets. Others use the loopback, where the proxy is an ordinary one.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report
#![cfg(target_os = "linux")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{json, Value};
use socket2::SockRef;
use thalweg_lab::Lab;
use thalweg_unifl::proxy::{Proxy, ProxySettings};
use tokio::sync::{mpsc, watch};

mod common;

const STREAM: usize = 8 << 20;
/// Number of file descriptors that the proxy is told that this process may have.
const DESCRIPTORS: u64 = 1024;
const LOOPBACK: &str = "127.0.0.1";

/// The network between client and server.
#[derive(Clone, Copy)]
enum Network {
    /// Two hosts. The link to the server loses this fraction of packets.
    Lossy(f64),
    Loopback,
}

/// Results: the server's and the client's part, the lines of the map, and the events.
struct Outcome<S, C> {
    server: S,
    client: C,
    map: Vec<Value>,
    events: Vec<Value>,
}

impl<S, C> Outcome<S, C> {
    fn holes(&self) -> Vec<(usize, usize)> {
        let holes = self.map.iter().filter(|line| line["event"] == "hole");
        holes.map(|hole| (number(&hole["start"]), number(&hole["end"]))).collect()
    }

    fn end(&self) -> &Value {
        self.events.iter().find(|event| event["event"] == "end").unwrap()
    }
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn enter(lab: Option<&Lab>, host: &str) {
    if let Some(lab) = lab {
        common::go_to(lab, host);
    }
}

/// Lets a client and a server talk through a proxy. Stops the proxy after the first event `last`. `None` if
/// this machine has no such network.
fn talk<S: Send + 'static, C: Send + 'static>(
    (network, last): (Network, &'static str),
    settings: Value,
    server: impl FnOnce(TcpListener) -> S + Send + 'static,
    client: impl FnOnce(TcpStream) -> C + Send + 'static,
) -> Option<Outcome<S, C>> {
    let way = |loss: f64| json!({"rate": 100_000_000, "delay": 0.005, "loss": loss});
    let lab = match network {
        Network::Loopback => None,
        Network::Lossy(loss) => match common::lab(way(loss), way(0.0)) {
            Ok(lab) => Some(Arc::new(lab)),
            Err(why) => {
                println!("skipped: {why}");
                return None;
            }
        },
    };
    // The lab exists until this call ends.
    let map = tempfile();
    let (holes, theirs, (ready, addresses)) = (map.clone(), lab.clone(), channel());
    let host = thread::spawn(move || {
        enter(theirs.as_deref(), "b");
        let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let mut settings = settings;
        settings["holes"] = json!(holes);
        settings["listen"] = json!(format!("{}:0", theirs.as_ref().map_or(LOOPBACK, |_| common::SERVER)));
        if settings["to"].is_null() {
            settings["to"] = json!(listener.local_addr().unwrap().to_string());
        }
        let served = thread::spawn(move || server(listener));
        let events = run(serde_json::from_value(settings).unwrap(), last, ready);
        (served.join().unwrap(), events)
    });
    let to = addresses.recv().unwrap();
    let theirs = lab.clone();
    let guest = thread::spawn(move || {
        enter(theirs.as_deref(), "a");
        client(TcpStream::connect(to).unwrap())
    });
    let client = guest.join().unwrap();
    let (server, events) = host.join().unwrap();
    let lines = std::fs::read_to_string(&map).unwrap();
    std::fs::remove_file(&map).unwrap();
    let map = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Some(Outcome { server, client, map, events })
}

fn tempfile() -> String {
    let test = thread::current().name().unwrap_or_default().replace(':', "-");
    std::env::temp_dir().join(format!("thalweg-{test}-{}", std::process::id())).to_str().unwrap().to_owned()
}

/// Runs a proxy, stops it after the first event `last`, and returns all events.
fn run(settings: ProxySettings, last: &str, ready: Sender<SocketAddr>) -> Vec<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (masks, plain) = (!settings.plain, settings.plain);
    let before = forwarding();
    let events = runtime.block_on(async {
        let (sender, mut events) = mpsc::channel(100);
        let proxy = Proxy::open(settings, DESCRIPTORS, sender).await.unwrap();
        let listening: Value = serde_json::from_str(&proxy.listening()).unwrap();
        assert_eq!((&listening["masks"], listening["why"].is_null()), (&json!(masks), !plain));
        assert!(plain || devices() == 1);
        ready.send(listening["listen"].as_str().unwrap().parse().unwrap()).unwrap();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(proxy.run(stopped));
        let mut all: Vec<Value> = Vec::new();
        while let Some(event) = events.recv().await {
            all.push(serde_json::from_str(&event).unwrap());
            if all.iter().any(|event| event["event"] == last) {
                stop.send_replace(true);
            }
        }
        all
    });
    assert!(plain || devices() == 0, "a device is left behind");
    assert!(plain || forwarding() == before, "a setting is left behind");
    assert_eq!(events.last().unwrap()["event"], "stopped");
    events
}

/// The `unifl` devices on the host of this thread.
fn devices() -> usize {
    let seen = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    seen.lines().filter(|line| line.trim_start().starts_with("unifl")).count()
}

/// A setting of this thread's host that the proxy changes while it runs.
fn forwarding() -> Option<String> {
    std::fs::read_to_string("/proc/sys/net/ipv4/conf/eth0/forwarding").ok()
}

/// Test bytes, none of which is zero.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 + 1).collect()
}

fn accepted(listener: &TcpListener) -> TcpStream {
    listener.accept().unwrap().0
}

/// Reads all bytes. Also returns the sender's address.
fn take(listener: TcpListener) -> (Vec<u8>, SocketAddr) {
    let mut stream = accepted(&listener);
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    (received, stream.peer_addr().unwrap())
}

/// Sends a stream, and waits until the other end closes.
fn give(length: usize) -> impl FnOnce(TcpStream) -> SocketAddr {
    move |mut stream| {
        stream.write_all(&pattern(length)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        stream.local_addr().unwrap()
    }
}

fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

fn broken(stream: &mut TcpStream) -> ErrorKind {
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return ErrorKind::UnexpectedEof,
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

/// The bytes that the server must have received from a stream with these holes.
fn with_holes(length: usize, holes: &[(usize, usize)]) -> Vec<u8> {
    let mut expected = pattern(length);
    for &(start, end) in holes {
        expected[start..end.min(length)].fill(0);
    }
    expected
}

#[test]
fn holes_are_zeros_and_the_map_has_each() {
    let settings = json!({"own": {"budget": 0.05}});
    let Some(outcome) = talk((Network::Lossy(0.01), "end"), settings, take, give(STREAM)) else { return };
    let ((received, from), holes) = (&outcome.server, outcome.holes());
    assert!(*received == with_holes(STREAM, &holes), "what is not in the map is not what was sent");
    let missing: usize = holes.iter().map(|(start, end)| end - start).sum();
    assert!((STREAM / 1000..STREAM / 20).contains(&missing), "{missing} bytes are missing");
    assert!(holes.iter().all(|&(start, _)| start >= 64 << 10), "the beginning is reliable");
    assert!(holes.windows(2).all(|pair| pair[0].1 <= pair[1].0), "holes rise");
    let end = outcome.end();
    assert_eq!(
        (number(&end["bytes"]), number(&end["missing"]), number(&end["holes"])),
        (STREAM, missing, holes.len())
    );
    assert!(end["error"].is_null(), "{end}");
    for line in &outcome.map {
        assert_eq!((&line["connection"], &line["from"]), (&json!(1), &json!(outcome.client.to_string())));
        assert_eq!(line["local"], json!(from.to_string()));
    }
    assert_eq!((&outcome.map[0]["event"], outcome.map.last()), (&json!("connection"), Some(end)));
}

#[test]
fn without_a_budget_all_of_it_comes() {
    let settings = json!({"own": {"budget": 0}});
    let Some(outcome) = talk((Network::Lossy(0.01), "end"), settings, take, give(STREAM)) else { return };
    assert!(outcome.holes().is_empty() && outcome.server.0 == pattern(STREAM));
}

#[test]
fn a_stream_no_longer_than_its_reliable_beginning_comes_whole() {
    let settings = json!({"own": {"budget": 1}, "reliable": STREAM});
    let Some(outcome) = talk((Network::Lossy(0.01), "end"), settings, take, give(STREAM)) else { return };
    assert!(outcome.holes().is_empty() && outcome.server.0 == pattern(STREAM));
}

#[test]
fn no_more_is_masked_than_the_budget_has() {
    let settings = json!({"own": {"budget": 0.01}});
    let Some(outcome) = talk((Network::Lossy(0.05), "end"), settings, take, give(STREAM)) else { return };
    let (holes, missing) = (outcome.holes(), number(&outcome.end()["missing"]));
    assert!(missing > 0 && missing <= STREAM / 100, "{missing} bytes are missing");
    assert!(outcome.server.0 == with_holes(STREAM, &holes));
}

#[test]
fn holes_are_widened_to_whole_values() {
    let settings = json!({"own": {"budget": 0.05}, "reliable": 13, "align": 8});
    let Some(outcome) = talk((Network::Lossy(0.01), "end"), settings, take, give(STREAM)) else { return };
    let holes = outcome.holes();
    assert!(
        !holes.is_empty() && holes.iter().all(|(start, end)| (start - 13) % 8 == 0 && (end - 13) % 8 == 0)
    );
    let (expected, received) = (with_holes(STREAM, &holes), &outcome.server.0);
    assert_eq!(received.len(), STREAM);
    // A byte in a hole is zero. At the edge of a hole, it may instead be the byte that was sent.
    assert!(expected.iter().zip(received).all(|(expected, received)| expected == received || *expected == 0));
}

#[test]
fn a_client_that_has_sent_all_gets_the_answer() {
    for network in [Network::Lossy(0.01), Network::Loopback] {
        let server = |listener: TcpListener| {
            let mut stream = accepted(&listener);
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            stream.write_all(&pattern(300_000)).unwrap();
            received.len()
        };
        let client = |mut stream: TcpStream| {
            stream.write_all(&pattern(200_000)).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        };
        let Some(outcome) = talk((network, "end"), settings(network), server, client) else { continue };
        assert_eq!(outcome.server, 200_000);
        assert!(outcome.client == pattern(300_000));
        assert_eq!(number(&outcome.end()["returned"]), 300_000);
        assert!(outcome.end()["error"].is_null());
    }
}

#[test]
fn a_server_that_has_sent_all_still_gets_the_stream() {
    for network in [Network::Lossy(0.01), Network::Loopback] {
        let server = |listener: TcpListener| {
            let mut stream = accepted(&listener);
            stream.write_all(b"go").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received.len()
        };
        let client = |mut stream: TcpStream| {
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            stream.write_all(&pattern(200_000)).unwrap();
            received
        };
        let Some(outcome) = talk((network, "end"), settings(network), server, client) else { continue };
        assert_eq!((outcome.server, &outcome.client[..]), (200_000, &b"go"[..]));
        assert!(outcome.end()["error"].is_null());
    }
}

/// The proxy's settings for a test on this network.
fn settings(network: Network) -> Value {
    json!({"plain": matches!(network, Network::Loopback)})
}

#[test]
fn a_reset_of_the_client_reaches_the_server() {
    for network in [Network::Lossy(0.0), Network::Loopback] {
        let server = |listener: TcpListener| {
            let mut stream = accepted(&listener);
            stream.write_all(b"go").unwrap();
            broken(&mut stream)
        };
        let client = |mut stream: TcpStream| {
            stream.write_all(b"some").unwrap();
            stream.read_exact(&mut [0; 2]).unwrap();
            reset(stream);
        };
        let Some(outcome) = talk((network, "end"), settings(network), server, client) else { continue };
        assert_eq!(outcome.server, ErrorKind::ConnectionReset);
        assert!(outcome.end()["error"].as_str().unwrap().starts_with("client: "));
    }
}

#[test]
fn a_reset_of_the_server_reaches_the_client() {
    for network in [Network::Lossy(0.0), Network::Loopback] {
        let server = |listener: TcpListener| {
            let mut stream = accepted(&listener);
            stream.read_exact(&mut [0; 4]).unwrap();
            reset(stream);
        };
        let client = |mut stream: TcpStream| {
            stream.write_all(b"some").unwrap();
            broken(&mut stream)
        };
        let Some(outcome) = talk((network, "end"), settings(network), server, client) else { continue };
        assert_eq!(outcome.client, ErrorKind::ConnectionReset);
        assert!(outcome.end()["error"].as_str().unwrap().starts_with("server: "));
    }
}

#[test]
fn where_no_server_listens_clients_are_reset() {
    for network in [Network::Lossy(0.0), Network::Loopback] {
        let mut settings = settings(network);
        settings["to"] = json!("127.0.0.1:1");
        let client = |mut stream: TcpStream| broken(&mut stream);
        let Some(outcome) = talk((network, "end"), settings, drop, client) else { continue };
        assert_eq!(outcome.client, ErrorKind::ConnectionReset);
        assert!(outcome.end()["error"].as_str().unwrap().starts_with("server: "));
        assert!(outcome.end()["local"].is_null());
    }
}

#[test]
fn a_proxy_that_is_stopped_resets_both_ends() {
    for network in [Network::Lossy(0.0), Network::Loopback] {
        let server = |listener: TcpListener| broken(&mut accepted(&listener));
        let client = |mut stream: TcpStream| broken(&mut stream);
        let settings = settings(network);
        let Some(outcome) = talk((network, "connection"), settings, server, client) else { continue };
        assert_eq!(
            (outcome.server, outcome.client),
            (ErrorKind::ConnectionReset, ErrorKind::ConnectionReset)
        );
        assert_eq!(outcome.end()["error"], "the proxy was stopped");
    }
}

#[test]
fn a_client_that_sends_nothing_is_reset_in_time() {
    for network in [Network::Lossy(0.0), Network::Loopback] {
        let mut settings = settings(network);
        settings["first_byte"] = json!(0.05);
        let server = |listener: TcpListener| broken(&mut accepted(&listener));
        let client = |mut stream: TcpStream| broken(&mut stream);
        let Some(outcome) = talk((network, "end"), settings, server, client) else { continue };
        assert_eq!(
            (outcome.server, outcome.client),
            (ErrorKind::ConnectionReset, ErrorKind::ConnectionReset)
        );
        assert_eq!(outcome.end()["error"], "accept: it sent nothing in time");
    }
}

#[test]
fn a_server_that_is_slow_slows_the_client_and_gets_all() {
    const LONG: usize = 16 << 20;
    let (full, seen) = channel();
    let server = move |listener: TcpListener| {
        let mut stream = accepted(&listener);
        // The server reads nothing until the client cannot send any more.
        seen.recv().unwrap();
        let mut count = 0;
        let mut block = [0; 10_000];
        loop {
            match stream.read(&mut block).unwrap() {
                0 => return count,
                more => count += more,
            }
        }
    };
    let client = move |mut stream: TcpStream| {
        let bytes = pattern(LONG);
        stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        loop {
            match stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        full.send(()).unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.write_all(&bytes[sent..]).unwrap();
    };
    let settings = json!({"buffer": 256 << 10});
    let Some(outcome) = talk((Network::Lossy(0.0), "end"), settings, server, client) else { return };
    assert_eq!(outcome.server, LONG);
    assert!(outcome.holes().is_empty());
}

#[test]
fn where_nothing_can_be_masked_it_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let open = |listen: &str, to: &str| {
        let settings = json!({"listen": listen, "to": to});
        let (events, _) = mpsc::channel(1);
        let opened = Proxy::open(serde_json::from_value(settings).unwrap(), DESCRIPTORS, events);
        let error = runtime.block_on(opened).err().unwrap();
        (format!("{:?}", error.kind()), error.to_string())
    };
    let (kind, why) = open("127.0.0.1:0", "127.0.0.1:9");
    assert!(
        kind == "Unsupported" && why.contains("the loopback loses nothing") && why.contains("--plain"),
        "{why}"
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(open(&taken.local_addr().unwrap().to_string(), "127.0.0.1:9").0, "InUse");
    drop(taken);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (kind, why) = open(&free, &free);
    assert!(kind == "Address" && why.contains("is the proxy itself"), "{why}");
}
