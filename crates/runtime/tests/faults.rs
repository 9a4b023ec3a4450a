//! Tests of faults and hostile peers, over real sockets.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use common::{client, floats, layout, part, round, server, transfers, LIMIT};
use serde_json::json;
use thalweg_proto::Verdict;

#[test]
fn a_link_that_breaks_in_the_middle_is_resumed_and_only_the_rest_is_sent() {
    for partial in ["keep", "discard"] {
        let layout = layout(1_000_000);
        let options = json!({ "partial": partial, "chunk": 65536 });
        let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", options);
        let cut = json!({ "layers": { "fault": { "cut_after": 3_000_000 } } });
        let thread = client(&server.address(), "c", cut, 2.0, 1);
        server.wait(1, Some(LIMIT), None);
        let outcome = round(&server, 1).unwrap();
        let up = transfers(&outcome, "c", "up");
        assert_eq!(outcome["complete"], true, "{outcome}");
        assert!(up["resumed"].as_u64().unwrap() >= 1, "{up}");
        let wire = up["wire_bytes"].as_u64().unwrap();
        assert!(wire < layout.bytes() + 400_000, "sent {wire} bytes for {}", layout.bytes());
        assert!(floats(&model, &layout).iter().all(|&x| x == 2.0));
        server.close("done");
        assert_eq!(thread.join().unwrap(), Ok(vec![Verdict::Accepted]));
    }
}

#[test]
fn loss_repetition_disorder_and_damage_change_nothing() {
    for partial in ["keep", "discard"] {
        let layout = layout(200_000);
        let fault = json!({ "seed": 7, "loss": 0.1, "duplicate": 0.1, "reorder": 0.2, "corrupt": 0.05 });
        let layers = json!({ "layers": { "fault": fault } });
        let mut options = json!({ "expected": 2, "enough": 2, "partial": partial, "chunk": 8192 });
        options["layers"] = layers["layers"].clone();
        let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", options);
        let clients =
            [("a", 1.0), ("b", 5.0)].map(|(n, value)| client(&server.address(), n, layers.clone(), value, 1));
        server.wait(2, Some(LIMIT), None);
        for number in 1..=2 {
            let outcome = round(&server, number).unwrap();
            assert_eq!(outcome["complete"], true, "{outcome}");
            assert!(floats(&model, &layout).iter().all(|&x| x == 3.0), "{partial}");
        }
        server.close("done");
        clients.into_iter().for_each(|c| assert_eq!(c.join().unwrap(), Ok(vec![Verdict::Accepted; 2])));
    }
}

#[test]
fn an_emulated_link_takes_its_time_both_ways_and_each_client_has_its_own() {
    let layout = layout(50_000); // 200 kB, which takes 16 ms at 100 Mbit/s
    let link = |rate: u64, delay: f64| json!({ "rate": rate, "delay": delay, "loss": 0.01 });
    let slow = json!({ "up": link(10_000_000, 0.0), "down": link(20_000_000, 0.0) });
    let emulate = json!({ "seed": 3, "up": link(100_000_000, 0.01), "down": link(100_000_000, 0.02),
                          "clients": { "slow": slow } });
    let layers = json!({ "layers": { "emulate": emulate } });
    let mut options = json!({ "expected": 2, "enough": 2, "chunk": 8192 });
    options["layers"] = layers["layers"].clone();
    let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", options);
    let clients = [("fast", 1.0), ("slow", 5.0)]
        .map(|(n, value)| client(&server.address(), n, layers.clone(), value, 1));
    server.wait(2, Some(LIMIT), None);
    let outcome = round(&server, 1).unwrap();
    assert_eq!(outcome["complete"], true, "{outcome}");
    assert!(floats(&model, &layout).iter().all(|&x| x == 3.0));
    // A transfer takes at least its bytes at this rate, plus the delay. A loaded machine may take longer.
    for (name, direction, least) in
        [("fast", "up", 0.026), ("fast", "down", 0.036), ("slow", "up", 0.16), ("slow", "down", 0.08)]
    {
        let transfer = transfers(&outcome, name, direction);
        let took = transfer["send_end"].as_f64().unwrap() - transfer["send_start"].as_f64().unwrap();
        assert!(took >= least, "{name} {direction}: {took} of {transfer}");
    }
    server.close("done");
    clients.into_iter().for_each(|c| assert_eq!(c.join().unwrap(), Ok(vec![Verdict::Accepted])));
}

/// Forwards everything to `to`. After `free` bytes from the client it forwards only one byte in each `pace`.
fn trickle(to: &str, free: usize, pace: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let to = to.trim_start_matches("tcp://").to_owned();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(to).unwrap();
        let (mut back, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut down, &mut back));
        let mut passed = 0;
        let (_never, paces) = mpsc::channel::<()>();
        let mut buffer = [0; 4096];
        loop {
            let room = if passed < free { buffer.len().min(free - passed) } else { 1 };
            let Ok(n @ 1..) = client.read(&mut buffer[..room]) else { return };
            if server.write_all(&buffer[..n]).is_err() {
                return;
            }
            passed += n;
            if passed >= free {
                let _ = paces.recv_timeout(pace); // nobody sends on this channel, so this waits for `pace`
            }
        }
    });
    address
}

#[test]
fn a_client_that_sends_a_byte_now_and_then_ends_by_liveness() {
    let layout = layout(500_000);
    let options = json!({ "expected": 2, "enough": 1, "grace": 0.1, "liveness": 0.5 });
    let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", options);
    let slow_address = trickle(&server.address(), 100_000, Duration::from_millis(50));
    let good = client(&server.address(), "good", json!({}), 3.0, 1);
    let slow = client(&slow_address, "slow", json!({ "timeout": 0.2 }), 9.0, 1);
    server.wait(2, Some(LIMIT), None);
    let outcome = round(&server, 1).unwrap();
    assert_eq!(part(&outcome, "slow")["state"], "lost");
    let reason = part(&outcome, "slow")["reason"].as_str().unwrap();
    assert!(reason.contains("no progress"), "{reason}");
    assert!(floats(&model, &layout).iter().all(|&x| x == 3.0));
    server.close("done");
    assert_eq!(good.join().unwrap(), Ok(vec![Verdict::Accepted]));
    assert!(slow.join().unwrap().is_err());
}

#[test]
fn strangers_do_no_harm() {
    let layout = layout(1000);
    let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", json!({}));
    let address = server.address();
    let host = address.trim_start_matches("tcp://");
    let mut strangers = Vec::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"", b"tlwg\x01\x02\xff\xff\xff\xff"] {
        let mut stranger = TcpStream::connect(host).unwrap();
        stranger.write_all(bytes).unwrap();
        strangers.push(stranger);
    }
    let good = client(&address, "good", json!({}), 3.0, 1);
    server.wait(1, Some(LIMIT), None);
    assert_eq!(round(&server, 1).unwrap()["complete"], true);
    assert!(floats(&model, &layout).iter().all(|&x| x == 3.0));
    server.close("done");
    good.join().unwrap().unwrap();
}

/// Nothing of a staged update is in the sums. With `keep` a part of it is, and stays there, so its client
/// must wait for the next round.
#[test]
fn one_that_dies_in_its_update_and_comes_back_as_a_new_process_takes_part_again() {
    for (partial, takes_part) in [("keep", false), ("discard", true)] {
        let layout = layout(100_000);
        let options =
            json!({ "expected": 2, "enough": 1, "grace": 60.0, "partial": partial, "chunk": 16384 });
        let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", options);
        let address = server.address();
        let stays = client(&address, "stays", json!({}), 1.0, 1);
        let again = std::thread::spawn(move || {
            let cut = json!({ "layers": { "fault": { "cut_after": 200_000 } }, "timeout": 0.0 });
            let died = client(&address, "dies", cut, 3.0, 1).join().unwrap();
            (died, client(&address, "dies", json!({}), 3.0, 1).join().unwrap())
        });
        server.wait(2, Some(LIMIT), None);
        let outcome = round(&server, 1).unwrap();
        assert_eq!(outcome["complete"], takes_part, "{outcome}");
        let both = floats(&model, &layout).iter().filter(|&&x| x == 2.0).count();
        let one = floats(&model, &layout).iter().filter(|&&x| x == 1.0).count();
        assert!(both > 0 && both + one == 100_000 && (one == 0) == takes_part, "{partial}: {both}, {one}");
        let coverage = part(&outcome, "dies")["coverage"].as_f64().unwrap();
        assert_eq!((coverage * layout.bytes() as f64) as usize / 4096, both / 1024, "{outcome}");
        server.close("done");
        assert_eq!(stays.join().unwrap(), Ok(vec![Verdict::Accepted]));
        let (died, returned) = again.join().unwrap();
        assert!(died.is_err());
        assert_eq!(returned, Ok(vec![Verdict::Accepted; usize::from(takes_part)]));
    }
}

#[test]
fn a_straggler_does_not_hold_up_the_deadline_nor_the_next_round() {
    let layout = layout(2_000_000);
    let options = json!({ "expected": 2, "enough": 1, "deadline": 1.0 });
    let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", options);
    let good = client(&server.address(), "good", json!({}), 3.0, 1);
    let slow = client(&server.address(), "slow", json!({ "layers": { "throttle": "10mbit" } }), 9.0, 1);
    server.wait(2, Some(LIMIT), None);
    for number in 1..=2 {
        let outcome = round(&server, number).unwrap();
        assert_eq!(part(&outcome, "good")["state"], "whole");
        assert_eq!(outcome["complete"], false);
        assert!(floats(&model, &layout).iter().all(|&x| x == 3.0));
    }
    server.close("done");
    good.join().unwrap().unwrap();
    assert!(slow.join().unwrap().unwrap().iter().all(|v| *v == Verdict::Late));
}
