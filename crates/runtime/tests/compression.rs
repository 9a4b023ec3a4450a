//! Tests of rounds whose updates are compressed with error feedback.
#![allow(clippy::unwrap_used)]

mod common;

use std::thread::{self, JoinHandle};
use std::time::Instant;

use common::{client, count, fill, floats, layout, round, server, transfers, LIMIT};
use serde_json::{json, Value};
use thalweg_proto::Verdict;
use thalweg_runtime::{Client, ClientEvent, ClientOptions};

const ADDRESSES: [&str; 4] =
    ["memory://compression:0", "tcp://127.0.0.1:0", "udp://127.0.0.1:0", "grpc://127.0.0.1:0"];
/// Number of values in a block, which share a scale.
const BLOCK: usize = 256;
/// What the small values of [`uneven`] creep towards.
const SMALL: f32 = 0.05;

fn compressed(scheme: &str) -> Value {
    json!({ "layers": { "compress": { "scheme": scheme } } })
}

#[test]
fn the_mean_of_compressed_updates_is_that_of_models() {
    for (number, address) in ADDRESSES.into_iter().enumerate() {
        for (scheme, share) in [("int8", 0.28), ("int4", 0.16), ("int2", 0.1)] {
            let layout = layout(100_000);
            let partial = ["keep", "discard"][number % 2];
            let both = json!({ "expected": 2, "enough": 2, "partial": partial, "precision": "exact" });
            let mut options = compressed(scheme);
            options.as_object_mut().unwrap().extend(both.as_object().unwrap().clone());
            let (mut server, model) = server(&layout, address, options);
            fill(&model, &layout, 1.5, 0);
            let clients = [("a", 2.0), ("b", 5.0)]
                .map(|(name, value)| client(&server.address(), name, compressed(scheme), value, 10));
            assert_eq!(server.wait(2, Some(LIMIT), None), 2);
            for number in 1..=3 {
                let outcome = round(&server, number).unwrap();
                assert_eq!(outcome["complete"], true, "{outcome}");
                assert_eq!(count(&model, &layout), i64::from(number) * 10, "{address} {scheme}");
                let up = transfers(&outcome, "a", "up");
                let sent = up["wire_bytes"].as_f64().unwrap() / up["bytes"].as_f64().unwrap();
                assert!(sent < share, "{address} {scheme}: {sent} of the bytes");
            }
            let found = floats(&model, &layout);
            assert!(found.iter().all(|x| (x - 3.5).abs() < 1e-2), "{address} {scheme}: {}", found[0]);
            server.close("done");
            for thread in clients {
                assert_eq!(thread.join().unwrap(), Ok(vec![Verdict::Accepted; 3]));
            }
        }
    }
}

/// Runs a client on a thread. In each round it changes the model's float32 values with `train`, which gets
/// the round's number and the values, and submits the model.
fn training(
    address: &str,
    options: Value,
    train: impl Fn(u32, &mut [f32]) + Send + 'static,
) -> JoinHandle<Result<(), String>> {
    let address = address.to_owned();
    let options: ClientOptions = serde_json::from_value(options).unwrap();
    thread::spawn(move || {
        let client = Client::start(&address, "a", options, None).map_err(|e| e.to_string())?;
        let started = Instant::now();
        loop {
            match client.next_event(Some(&|| started.elapsed() < LIMIT)) {
                Some(ClientEvent::Ready { round, .. }) => {
                    let (arena, layout) = client.model().unwrap();
                    let mut values = floats(&arena, &layout);
                    train(round, &mut values);
                    let mut model = arena.claim(layout.tensors()[0].range()).unwrap();
                    model.copy_from_slice(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
                    drop(model);
                    client.submit(round, 1.0, "{}".into()).unwrap();
                }
                Some(ClientEvent::Finished(Ok(_))) => return Ok(()),
                Some(ClientEvent::Finished(Err(why))) => return Err(why.to_string()),
                None => return Err("the test hangs".into()),
                Some(_) => {}
            }
        }
    })
}

/// Runs a client. Its first value jumps by 1 in each round, and the other values of the first block creep
/// towards [`SMALL`]. The block's scale follows the value that jumps, so 2 bits round each change of the
/// others to 0.
fn uneven(address: &str, options: Value) -> JoinHandle<Result<(), String>> {
    training(address, options, |round, values| {
        let (first, others) = values[..BLOCK].split_first_mut().unwrap();
        *first += if round % 2 == 1 { 1.0 } else { -1.0 };
        others.iter_mut().for_each(|value| *value += 0.1 * (SMALL - *value));
    })
}

#[test]
fn small_changes_get_through_that_each_update_rounds_to_nothing() {
    for scheme in ["int2", "topk:0.02"] {
        let layout = layout(1024);
        let (mut server, model) = server(&layout, "memory://uneven:0", compressed(scheme));
        let thread = uneven(&server.address(), compressed(scheme));
        server.wait(1, Some(LIMIT), None);
        round(&server, 1).unwrap();
        let first = floats(&model, &layout)[1..BLOCK].iter().filter(|value| **value != 0.0).count();
        assert!(first < 30, "{scheme}: {first} small values were sent at once");
        for number in 2..=120 {
            round(&server, number).unwrap();
        }
        let small = &floats(&model, &layout)[1..BLOCK];
        let mean = small.iter().sum::<f32>() / small.len() as f32;
        assert!((mean - SMALL).abs() < 0.2 * SMALL, "{scheme}: {mean}");
        server.close("done");
        thread.join().unwrap().unwrap();
    }
}

/// Runs a client that adds 1 to each value in each round.
fn adding(address: &str, options: Value) -> JoinHandle<Result<(), String>> {
    training(address, options, |_, values| values.iter_mut().for_each(|value| *value += 1.0))
}

#[test]
fn chunks_that_a_link_loses_are_sent_later() {
    const ROUNDS: u32 = 20;
    for address in ["tcp://127.0.0.1:0", "memory://losing:0"] {
        for partial in ["discard", "keep"] {
            let layout = layout(60_000);
            let layers = json!({ "compress": { "scheme": "int8" }, "fault": { "seed": 7, "loss": 0.2 } });
            let options = json!({
                "chunk": 8192, "partial": partial, "layers": layers, "repair": { "resend": false },
            });
            let (mut server, model) = server(&layout, address, options);
            fill(&model, &layout, 0.0, 0);
            let thread = adding(&server.address(), json!({ "layers": layers }));
            server.wait(1, Some(LIMIT), None);
            let mut missing = 0;
            for number in 1..=ROUNDS {
                let outcome = round(&server, number).unwrap();
                missing += transfers(&outcome, "a", "up")["missing"].as_u64().unwrap();
            }
            let values = floats(&model, &layout);
            let mean = values.iter().sum::<f32>() / values.len() as f32;
            let lost = missing as f32 / layout.bytes() as f32; // in rounds
            assert!(lost > 2.0, "{address} {partial}: {lost} rounds were lost");
            assert!(mean > ROUNDS as f32 - 1.0, "{address} {partial}: {mean} of {ROUNDS}, {lost} were lost");
            assert!(mean < ROUNDS as f32 + 0.1, "{address} {partial}: {mean} counts something twice");
            server.close("done");
            thread.join().unwrap().unwrap();
        }
    }
}

#[test]
fn a_residual_lives_in_its_file_and_a_wrong_one_ends_the_client() {
    let folder = std::env::temp_dir().join(format!("thalweg-compression-{}", std::process::id()));
    let file = folder.join("a.residual");
    let options = |scheme: &str| json!({ "layers": { "compress": { "scheme": scheme } }, "residual": file.to_str().unwrap() });
    let mut kept = Vec::new();
    for _ in 0..2 {
        let (mut server, _) = server(&layout(1024), "memory://residual:0", compressed("int2"));
        let thread = uneven(&server.address(), options("int2"));
        server.wait(1, Some(LIMIT), None);
        round(&server, 1).unwrap();
        server.close("done");
        thread.join().unwrap().unwrap();
        kept.push(std::fs::read(&file).unwrap());
    }
    assert_ne!(kept[0], kept[1], "the second client went on with the first one's residual");
    let (server, _) = server(&layout(2048), "memory://residual:0", compressed("int2"));
    let thread = uneven(&server.address(), options("int2"));
    server.wait(1, Some(LIMIT), None);
    let failed = round(&server, 1).unwrap_err().to_string();
    let why = thread.join().unwrap().unwrap_err();
    assert!(why.contains("delete it to begin without"), "{why}; {failed}");
    std::fs::remove_dir_all(&folder).unwrap();
}

fn both_ways(down: &str) -> Value {
    json!({ "layers": { "compress": { "scheme": "int8", "down": down } } })
}

/// Runs a client on a thread that takes part in `rounds` rounds. It adds to each value a number of its own, and
/// returns the checksum of the model that each round began with.
fn following(
    address: &str,
    name: &str,
    options: Value,
    rounds: usize,
) -> JoinHandle<Result<Vec<(u32, u32)>, String>> {
    let (address, name) = (address.to_owned(), name.to_owned());
    let options: ClientOptions = serde_json::from_value(options).unwrap();
    thread::spawn(move || {
        let mut client = Client::start(&address, &name, options, None).map_err(|e| e.to_string())?;
        let started = Instant::now();
        let mut seen = Vec::new();
        loop {
            match client.next_event(Some(&|| started.elapsed() < LIMIT)) {
                Some(ClientEvent::Ready { round, .. }) => {
                    let (arena, layout) = client.model().unwrap();
                    let mut model = arena.claim(arena.range()).unwrap();
                    seen.push((round, thalweg_wire::checksum(&model)));
                    let place = layout.tensors()[0].range();
                    let words = model[place.start as usize..place.end as usize].chunks_exact_mut(4);
                    for (at, word) in words.enumerate() {
                        let value = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                        let change = ((at * 31 + round as usize * 17 + name.len()) % 101) as f32 / 500.0;
                        word.copy_from_slice(&(value + change).to_le_bytes());
                    }
                    drop(model);
                    client.submit(round, 1.0, "{}".into()).unwrap();
                }
                Some(ClientEvent::Verdict { .. }) if seen.len() == rounds => {
                    client.close("it has had enough");
                    return Ok(seen);
                }
                Some(ClientEvent::Finished(Ok(_))) => return Ok(seen),
                Some(ClientEvent::Finished(Err(why))) => return Err(why.to_string()),
                None => return Err("the test hangs".into()),
                Some(_) => {}
            }
        }
    })
}

/// Clients come late, leave and are drawn by lot. Each has the bits of the server's notion of the clients' model.
#[test]
fn models_that_are_sent_as_differences_are_the_servers_bit_for_bit() {
    for (address, down) in ADDRESSES.into_iter().zip(["int8", "int4", "int2", "topk:0.05"]) {
        let layout = layout(20_000);
        let mut options = both_ways(down);
        let more = json!({ "expected": 3, "choose": 2, "enough": 2, "partial": "keep" });
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (mut server, model) = server(&layout, address, options);
        fill(&model, &layout, 0.5, 3);
        let start = |name: &str, rounds| following(&server.address(), name, both_ways(down), rounds);
        let mut clients = vec![start("a", 99), start("bb", 99), start("ccc", 3)];
        let (mut held, mut shares) = (Vec::new(), Vec::new());
        server.wait(3, Some(LIMIT), None);
        for number in 1..=9 {
            if number == 5 {
                clients.push(start("dddd", 99));
                // Three clients would not do: "ccc" may still be there.
                let is_missing = || !server.clients().iter().any(|name| name == "dddd");
                server.wait(4, Some(LIMIT), Some(&is_missing));
            }
            let outcome = round(&server, number).unwrap();
            let (version, _) = server.held().unwrap();
            held.push(thalweg_wire::checksum(&version.lend(version.range()).unwrap()));
            let all = outcome["transfers"].as_array().unwrap().iter();
            let ways = all.filter(|way| way["direction"] == "down" && way["complete"] == true);
            shares
                .extend(ways.map(|way| way["wire_bytes"].as_f64().unwrap() / way["bytes"].as_f64().unwrap()));
        }
        server.close("done");
        for client in clients {
            for (round, checksum) in client.join().unwrap().unwrap() {
                assert_eq!(checksum, held[round as usize - 1], "{address} {down}: round {round}");
            }
        }
        let few = shares.iter().filter(|share| **share < 0.3).count();
        // grpc says that a model is sent while its last part is still in HTTP/2's buffers, so it counts fewer bytes.
        let whole = shares.iter().filter(|share| **share > 0.45).count();
        assert_eq!(few + whole, shares.len(), "{address}: {shares:?}");
        assert!(few >= 4 && whole >= 3, "{address}: {few} differences, {whole} whole models");
    }
}

#[test]
fn what_the_way_down_leaves_out_gets_there_later() {
    let layout = layout(1024);
    let (mut server, model) = server(&layout, "memory://down:0", both_ways("int2"));
    let thread = following(&server.address(), "a", both_ways("int2"), 99);
    server.wait(1, Some(LIMIT), None);
    let error = |server: &thalweg_runtime::Server| {
        let (held, of) = server.held().unwrap();
        floats(&held, &of).iter().zip(floats(&model, &layout)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    for number in 1..=40 {
        round(&server, number).unwrap();
    }
    // The model has grown by about 4, and clients are never more than a few rounds behind.
    assert!(floats(&model, &layout)[1] > 3.0);
    assert!(error(&server) < 1.0, "{}", error(&server));
    server.close("done");
    thread.join().unwrap().unwrap();
}

#[test]
fn differences_of_models_need_updates_that_are_differences() {
    for (options, why) in [
        (json!({ "layers": { "compress": { "down": "int8" } } }), "compress.scheme"),
        (json!({ "layers": both_ways("int8")["layers"], "repair": { "resend": false } }), "repair.resend"),
        (json!({ "layers": both_ways("int8")["layers"], "sums": true }), "with sums"),
    ] {
        let options: thalweg_runtime::ServerOptions = serde_json::from_value(options).unwrap();
        let refused = options.check().unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let (server, _) = server(&layout(1024), "tcp://127.0.0.1:0", both_ways("int8"));
    let mut options = compressed("int8");
    options["timeout"] = json!(0.5);
    assert!(client(&server.address(), "a", options, 1.0, 1).join().unwrap().is_err());
}

#[test]
fn ends_with_other_schemes_do_not_meet() {
    let (server, _) = server(&layout(1024), "tcp://127.0.0.1:0", compressed("int8"));
    let mut options = compressed("int4");
    options["timeout"] = json!(0.5);
    let why = client(&server.address(), "a", options, 1.0, 1).join().unwrap().unwrap_err();
    assert!(!why.is_empty());
    assert_eq!(server.wait(1, Some(std::time::Duration::ZERO), None), 0);
}
