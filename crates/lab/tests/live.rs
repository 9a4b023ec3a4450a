//! Tests of labs on this machine's kernel, with real TCP and UDP between namespaces. They need root and
//! /dev/net/tun; without them, each test prints that it was skipped, and passes.
#![allow(clippy::unwrap_used, clippy::panic)]
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{json, Value};
use socket2::SockRef;
use thalweg_lab::{enter, ErrorKind, Lab, Namespace, Spec};

/// Starts a lab; `None`, with a message, if this machine does not allow it.
fn lab(spec: &Value) -> Option<Lab> {
    match Lab::new(&Spec::parse(&spec.to_string()).unwrap()) {
        Ok(lab) => Some(lab),
        Err(error) if matches!(error.kind(), ErrorKind::Permission | ErrorKind::Unsupported) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn two(up: Value, down: Value) -> Value {
    let link = json!({"name": "link", "a": "a", "b": "b", "ab": up, "ba": down});
    json!({"seed": 5, "hosts": [{"name": "a"}, {"name": "b"}], "links": [link]})
}

/// Runs a closure in a host's namespace.
fn inside<T: Send + 'static>(
    lab: &Lab,
    host: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let path = lab.hosts()[host]["namespace"].as_str().unwrap().to_owned();
    thread::spawn(move || {
        enter(Path::new(&path), None).unwrap();
        work()
    })
}

/// Sends `bytes` bytes from a to b by TCP with Cubic.
fn send(lab: &Lab, address: &'static str, bytes: usize) {
    let (ready, addresses) = std::sync::mpsc::channel();
    let receiver = inside(lab, "b", move || {
        let listener = TcpListener::bind((address, 0)).unwrap();
        ready.send(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let (mut buffer, mut got) = (vec![0; 1 << 16], 0);
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => return got,
                n => got += n,
            }
        }
    });
    let to = addresses.recv().unwrap();
    let sender = inside(lab, "a", move || {
        let mut stream = TcpStream::connect(to).unwrap();
        SockRef::from(&stream).set_tcp_congestion(b"cubic").unwrap();
        stream.write_all(&vec![7; bytes]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The receiver closes its side only after it has read everything.
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    sender.join().unwrap();
    assert_eq!(receiver.join().unwrap(), bytes);
}

fn line(status: &Value, direction: &str) -> Value {
    let all = status["links"].as_array().unwrap();
    all.iter().find(|line| line["direction"] == direction).unwrap().clone()
}

/// The same lab with each kind of device that every kernel supports.
fn over_each_kind(spec: &Value) -> impl Iterator<Item = (&'static str, Lab)> + '_ {
    ["tun", "tap"].into_iter().filter_map(|devices| {
        let mut spec = spec.clone();
        spec["devices"] = json!(devices);
        Some((devices, lab(&spec)?))
    })
}

#[test]
fn tcp_passes_both_ip_versions_whole() {
    for (devices, lab) in over_each_kind(&two(json!({}), json!({}))) {
        for address in ["10.77.0.2", "fd77::2"] {
            send(&lab, address, 20 << 20);
        }
        let status = lab.status().unwrap();
        // Over Ethernet the kernel also sends packets to multicast groups, which count as strays.
        assert!(devices == "tap" || status["relay"]["strays"] == 0);
        let line = line(&status, "ab");
        assert!(line["bytes_out"].as_u64().unwrap() > 40 << 20);
        for cause in ["lost", "queue_drops", "down_drops", "overflow_drops"] {
            assert_eq!(line[cause], 0, "{cause}");
        }
    }
}

#[test]
fn what_the_link_drops_the_sender_sends_again() {
    for (_, lab) in over_each_kind(&two(json!({"loss": 0.01, "delay": 0.005}), json!({"delay": 0.005}))) {
        for address in ["10.77.0.2", "fd77::2"] {
            what_is_lost_is_sent_again(&lab, address);
        }
    }
}

fn what_is_lost_is_sent_again(lab: &Lab, address: &'static str) {
    let counts = || {
        let status = lab.status().unwrap();
        let host = |key: &str| status["hosts"]["a"][key].as_u64().unwrap();
        let lost = line(&status, "ab")["lost"].as_u64().unwrap();
        [lost, host("retransmitted_segments"), host("spurious_retransmissions")]
    };
    let before = counts();
    send(lab, address, 4 << 20);
    let after = counts();
    let [lost, again, spurious] = [0, 1, 2].map(|i| after[i] - before[i]);
    assert!(lost > 10, "{lost}");
    // Subtract retransmissions that the receiver reported as unneeded (a tail loss probe, RFC 8985, section
    // 7). Lost packets without data are not retransmitted: the ACKs of the handshake and of the peer's end.
    let rest = again - spurious.min(again);
    assert!(
        rest <= lost && lost - rest <= 2 + spurious,
        "{address}: {lost} lost, {again} sent again, {spurious} in vain"
    );
}

#[test]
fn datagrams_pass_with_their_delay_and_are_lost_as_counted() {
    let Some(lab) = lab(&two(json!({"delay": 0.03, "loss": 0.2}), json!({}))) else { return };
    let (ready, addresses) = std::sync::mpsc::channel();
    let (count, counted) = std::sync::mpsc::channel();
    let receiver = inside(&lab, "b", move || {
        let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
        SockRef::from(&socket).set_recv_buffer_size(1 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        ready.send(socket.local_addr().unwrap()).unwrap();
        let due: u64 = counted.recv().unwrap();
        let mut buffer = [0; 2000];
        (0..due).filter(|_| socket.recv(&mut buffer).is_ok()).count() as u64
    });
    let to = addresses.recv().unwrap();
    let sender = inside(&lab, "a", move || {
        let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
        (0..100).for_each(|_| assert_eq!(socket.send_to(&[1; 1000], to).unwrap(), 1000));
    });
    sender.join().unwrap();
    let passed = || {
        let line = line(&lab.status().unwrap(), "ab");
        let packets = |key: &str| line[key].as_u64().unwrap();
        (packets("lost") + packets("packets_out") >= 100).then_some(line)
    };
    let line = std::iter::repeat_with(passed).flatten().next().unwrap();
    assert_eq!(line["packets_in"], 100);
    // Every packet that left the link reaches the socket, however late.
    let left = 100 - line["lost"].as_u64().unwrap();
    count.send(left).unwrap();
    assert_eq!(receiver.join().unwrap(), left);
    assert!(line["delay"]["p50"].as_f64().unwrap() >= 0.029, "{line}");
}

#[test]
fn a_link_that_goes_down_and_up_again_stops_nobody_for_good() {
    let mut spec = two(json!({"rate": 50_000_000}), json!({}));
    spec["changes"] = json!([
        {"at": 0.1, "link": "link", "shape": {"down": true}},
        {"at": 0.3, "link": "link", "shape": {"rate": 50_000_000}},
    ]);
    let Some(lab) = lab(&spec) else { return };
    lab.start();
    send(&lab, "10.77.0.2", 4 << 20);
    let status = lab.status().unwrap();
    assert!(line(&status, "ab")["down_drops"].as_u64().unwrap() > 0);
    let samples = lab.samples().unwrap();
    assert!(samples.as_array().unwrap().iter().any(|s| s["queue_bytes"].as_u64().unwrap() > 0));
}

#[test]
fn settings_are_the_namespaces_and_bad_ones_are_refused() {
    let mut spec = two(json!({}), json!({}));
    spec["hosts"][0]["sysctls"] = json!({"net.ipv4.tcp_sack": "0"});
    let own = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_sack").unwrap();
    let before = own();
    let Some(lab) = lab(&spec) else { return };
    assert_eq!(inside(&lab, "a", own).join().unwrap().trim(), "0");
    assert_eq!(own(), before);
    for (key, value) in
        [("net.ipv4.nothing", "1"), ("net.ipv4.tcp_sack", "x"), ("kernel.hostname", "x"), ("net/../x", "")]
    {
        spec["hosts"][0]["sysctls"] = json!({key: value});
        let error = Lab::new(&Spec::parse(&spec.to_string()).unwrap()).err().unwrap().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn a_limit_on_the_device_is_felt_by_its_sockets() {
    const COUNT: u64 = 1000;
    let mut spec = two(json!({}), json!({}));
    // First a queue that a socket's send buffer cannot fill, then one that it can.
    for (queue, drops) in [(16 << 20, false), (16_000, true)] {
        spec["hosts"][0]["egress"] = json!({"rate": 80_000_000, "queue_bytes": queue, "burst_bytes": 15_000});
        let Some(lab) = lab(&spec) else { return };
        let sender = inside(&lab, "a", || {
            let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
            for _ in 0..COUNT {
                socket.send_to(&[7; 1400], "10.77.0.2:9").unwrap();
            }
        });
        sender.join().unwrap();
        // Packets in the device's queue leave later.
        let passed = loop {
            let status = lab.status().unwrap();
            let count = |value: &Value| value.as_u64().unwrap();
            let dropped = count(&status["hosts"]["a"]["limiter_drops"]);
            let passed = count(&line(&status, "ab")["packets_in"]);
            assert!(passed + dropped <= COUNT);
            if passed + dropped == COUNT {
                break passed;
            }
        };
        assert_eq!(passed < COUNT, drops, "{passed} of {COUNT} with a queue of {queue} bytes");
    }
}

#[test]
fn a_congestion_control_is_that_of_all_connections_of_a_host() {
    let mut spec = two(json!({}), json!({}));
    spec["hosts"][0]["sysctls"] = json!({"net.ipv4.tcp_congestion_control": "cubic"});
    let Some(lab) = lab(&spec) else { return };
    for (address, bind) in [("10.77.0.2", "10.77.0.1"), ("fd77::2", "fd77::1")] {
        let (ready, addresses) = std::sync::mpsc::channel();
        let name = |stream: &TcpStream| SockRef::from(stream).tcp_congestion().unwrap();
        let is_cubic = move |stream: &TcpStream| name(stream).starts_with(b"cubic");
        // A host can connect from this address and accept connections on it.
        let peer = inside(&lab, "b", move || {
            let listener = TcpListener::bind((address, 0)).unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            listener.accept().unwrap();
        });
        let to = addresses.recv().unwrap();
        assert!(inside(&lab, "a", move || is_cubic(&TcpStream::connect(to).unwrap())).join().unwrap());
        peer.join().unwrap();
        let (ready, addresses) = std::sync::mpsc::channel();
        let accepted = inside(&lab, "a", move || {
            let listener = TcpListener::bind((bind, 0)).unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            is_cubic(&listener.accept().unwrap().0)
        });
        let to = addresses.recv().unwrap();
        inside(&lab, "b", move || drop(TcpStream::connect(to).unwrap())).join().unwrap();
        assert!(accepted.join().unwrap());
    }
    spec["hosts"][0]["sysctls"] = json!({"net.ipv4.tcp_congestion_control": "none-such"});
    let error = Lab::new(&Spec::parse(&spec.to_string()).unwrap()).err().unwrap().to_string();
    assert!(error.contains("none-such"), "{error}");
}

#[test]
fn a_lab_leaves_nothing_and_two_stand_side_by_side() {
    let spec = two(json!({}), json!({}));
    let (Some(one), Some(two)) = (lab(&spec), lab(&spec)) else { return };
    let inode = |lab: &Lab| lab.hosts()["a"]["inode"].as_u64().unwrap();
    assert_ne!(inode(&one), inode(&two));
    let name = format!("net:[{}]", inode(&one));
    let held = move || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        files
            .filter_map(|f| std::fs::read_link(f.unwrap().path()).ok())
            .any(|to| to.to_string_lossy() == name)
    };
    assert!(held());
    drop(one);
    assert!(!held());
    send(&two, "10.77.0.2", 1 << 20);
}

#[test]
fn a_namespace_does_what_is_asked_inside() {
    let names = || {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        Ok(text
            .lines()
            .skip(2)
            .map(|line| line.split(':').next().unwrap().trim().to_owned())
            .collect::<Vec<_>>())
    };
    match Namespace::with(names) {
        Ok((namespace, devices)) => {
            assert!(devices.iter().all(|name| name == "lo"), "{devices:?}");
            assert_eq!(namespace.visit(names).unwrap(), devices);
        }
        Err(error) => println!("skipped: {error}"),
    }
}

/// Only the guest kernel supports RDMA in each host's namespace. There every host must have a device;
/// elsewhere the error must have a hint.
#[test]
fn rdma_devices_are_there_or_missing_with_the_hint() {
    let mut spec = two(json!({}), json!({}));
    spec["devices"] = json!("rdma");
    match Lab::new(&Spec::parse(&spec.to_string()).unwrap()) {
        Ok(lab) => assert_eq!(lab.hosts()["b"]["rdma"], "rxe1"),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("skipped: {error}");
            assert!(error.to_string().contains(';'), "no hint: {error}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Permission, "{error}"),
    }
}
