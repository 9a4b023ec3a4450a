//! Tests of nodes of a graph, over the transports that need no other program.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use common::{count, fill, floats, layout, LIMIT};
use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_runtime::{Node, Upcoming};
use thalweg_wire::Layout;

const ADDRESSES: [&str; 7] = [
    "memory://graph:0",
    "tcp://127.0.0.1:0",
    "udp://127.0.0.1:0",
    "ltp://127.0.0.1:0",
    "shm://localhost:0",
    "zmq://127.0.0.1:0",
    "grpc://127.0.0.1:0",
];

fn node(layout: &Layout, name: &str, address: &str, options: &Value) -> (Node, Arena) {
    let arena = Arena::new(layout.bytes()).unwrap();
    let options = serde_json::from_value(options.clone()).unwrap();
    (Node::start(arena.clone(), layout.clone(), name, address, options).unwrap(), arena)
}

/// Starts a ring of nodes and connects each to its neighbours. Every element of node `i`'s model is `i`.
fn ring(layout: &Layout, nodes: usize, address: &str, options: &Value) -> Vec<(Node, Arena, Vec<String>)> {
    let name = |i: usize| format!("n{}", i % nodes);
    let all: Vec<_> = (0..nodes).map(|i| node(layout, &name(i), address, options)).collect();
    let urls: BTreeMap<String, String> = (0..nodes).map(|i| (name(i), all[i].0.address())).collect();
    let ring = all.into_iter().enumerate().map(|(i, (node, arena))| {
        fill(&arena, layout, i as f32, i as i64);
        let neighbours = vec![name(i + nodes - 1), name(i + 1)];
        let known = neighbours.iter().map(|n| (n.clone(), urls[n].clone())).collect();
        node.meet(&known, None).unwrap();
        (node, arena, neighbours)
    });
    let ring: Vec<_> = ring.collect();
    for (node, _, neighbours) in &ring {
        assert_eq!(node.gather(neighbours.len(), Some(LIMIT), None).unwrap(), neighbours.len());
    }
    ring
}

fn iterate(node: &Node, round: u32, weights: &BTreeMap<String, f64>) -> Value {
    node.begin(round, weights.clone(), None, None).unwrap();
    let number = node.ready(round, None).unwrap();
    let report = node.wait(number, Some(LIMIT), None).unwrap();
    serde_json::from_str(&report.expect("it waits in vain")).unwrap()
}

/// Runs `rounds` iterations of each node on a thread of its own, then leaves. Returns the models and reports.
fn run(ring: Vec<(Node, Arena, Vec<String>)>, rounds: u32, own: Option<f64>) -> Vec<(Arena, Vec<Value>)> {
    let waiting = Arc::new(Mutex::new(()));
    let threads: Vec<JoinHandle<(Arena, Vec<Value>)>> = ring
        .into_iter()
        .enumerate()
        .map(|(i, (node, arena, neighbours))| {
            let waiting = waiting.clone();
            std::thread::spawn(move || {
                drop(waiting.lock());
                let mut weights: BTreeMap<String, f64> = neighbours.into_iter().map(|n| (n, 0.25)).collect();
                weights.extend(own.map(|own| (format!("n{i}"), own)));
                let (mut round, mut reports) = (1, Vec::new());
                while round <= rounds {
                    let report = iterate(&node, round, &weights);
                    round = report["next"].as_u64().unwrap() as u32;
                    reports.push(report);
                }
                node.close("done");
                (arena, reports)
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// The models of a ring after mixing with weights 1/4, 1/2 and 1/4.
fn expected(nodes: usize, rounds: u32) -> Vec<f64> {
    let mut models: Vec<f64> = (0..nodes).map(|i| i as f64).collect();
    for _ in 0..rounds {
        let of = |i: usize| models[i % nodes];
        models = (0..nodes).map(|i| 0.25 * of(i + nodes - 1) + 0.5 * of(i) + 0.25 * of(i + 1)).collect();
    }
    models
}

/// A neighbour sends its model and leaves before this node begins. The model still counts in this node's
/// mean.
#[test]
fn a_model_that_came_before_the_first_iteration_is_in_its_mean() {
    for mixing in ["complement", "paper", "symmetric"] {
        let layout = layout(20_000);
        let options = json!({ "wait": "none", "mixing": mixing });
        let ((one, model), (two, other)) =
            (node(&layout, "a", ADDRESSES[1], &options), node(&layout, "b", ADDRESSES[1], &options));
        fill(&model, &layout, 1.0, 0);
        fill(&other, &layout, 3.0, 0);
        let weights = |name: &str| BTreeMap::from([(name.to_string(), 0.5)]);
        let first = Upcoming { round: 1, weights: weights("b"), then: None };
        one.meet(&BTreeMap::from([("b".into(), two.address())]), Some(first)).unwrap();
        two.meet(&BTreeMap::from([("a".into(), one.address())]), None).unwrap();
        for node in [&one, &two] {
            assert_eq!(node.gather(1, Some(LIMIT), None).unwrap(), 1);
        }
        two.begin(1, weights("a"), None, None).unwrap();
        two.ready(1, None).unwrap();
        two.close("done");
        while !one.connected().is_empty() {
            std::thread::yield_now();
        }
        let report = iterate(&one, 1, &weights("b"));
        assert_eq!(report["early_dropped"], 0, "{mixing} {report}");
        // With symmetric weights a neighbour's model counts only if that neighbour has this node's model too.
        let (used, mean) = if mixing == "symmetric" { (0, 1.0) } else { (layout.bytes(), 2.0) };
        assert_eq!(report["bytes_used"], used, "{mixing} {report}");
        assert!(floats(&model, &layout).iter().all(|v| (v - mean).abs() < 1e-6), "{mixing}");
        one.close("done");
    }
}

#[test]
fn a_ring_mixes_over_every_transport() {
    for address in ADDRESSES {
        for precision in ["f32", "exact"] {
            let layout = layout(200_000);
            let options = json!({ "precision": precision, "plan": "p", "graph": "ring", "start": null });
            let done = run(ring(&layout, 4, address, &options), 6, None);
            for (i, (arena, reports)) in done.iter().enumerate() {
                let model = floats(arena, &layout);
                let right = expected(4, 6)[i] as f32;
                assert!(model.iter().all(|v| (v - right).abs() < 1e-5), "{address} {right} {}", model[0]);
                assert_eq!(count(arena, &layout), 3, "counters take the maximum");
                for report in reports {
                    assert_eq!(report["bytes_used"], 2 * layout.bytes(), "{address} {report}");
                    assert_eq!(report["whole"].as_array().unwrap().len(), 2, "{address} {report}");
                    assert!((report["own_weight"].as_f64().unwrap() - 0.5).abs() < 1e-6, "{report}");
                    assert_eq!(report["chunks_used"], report["chunks_expected"], "{address} {report}");
                }
            }
        }
    }
}

#[test]
fn the_other_waits_and_the_mean_of_what_came() {
    for address in ADDRESSES {
        for wait in [
            json!({ "wait": "none" }),
            json!({ "wait": "first-chunk", "deadline": 5.0 }),
            json!({ "wait": "deadline", "deadline": 5.0 }),
            json!({ "wait": "deadline" }),
            json!({ "wait": "deadline", "mixing": "renormalise" }),
        ] {
            let layout = layout(50_000);
            let own = (wait["mixing"] == "renormalise").then_some(0.5);
            let done = run(ring(&layout, 4, address, &wait), 8, own);
            for (arena, reports) in &done {
                let model = floats(arena, &layout);
                assert!(model.iter().all(|v| (-1e-4..=3.0001).contains(v)), "{address} {wait}");
                assert!(reports.iter().all(|report| report["bad_chunks"] == 0), "{address} {wait}");
            }
        }
    }
}

#[test]
fn lost_chunks_are_asked_for_again_or_count_for_the_own_model() {
    let layout = layout(200_000);
    let fault = json!({ "fault": { "seed": 3, "loss": 0.2 } });
    let (all, deadline) = (json!({ "layers": fault }), json!({ "layers": fault, "wait": "deadline" }));
    let done = run(ring(&layout, 4, "tcp://127.0.0.1:0", &all), 4, None);
    for (i, (arena, _)) in done.iter().enumerate() {
        let right = expected(4, 4)[i] as f32;
        assert!(floats(arena, &layout).iter().all(|v| (v - right).abs() < 1e-5));
    }
    let done = run(ring(&layout, 4, "udp://127.0.0.1:0", &deadline), 8, None);
    let reports = || done.iter().flat_map(|(_, reports)| reports);
    assert!(reports().any(|report| report["bytes_used"].as_u64() < report["bytes_expected"].as_u64()));
    for (arena, _) in &done {
        assert!(floats(arena, &layout).iter().all(|v| (-1e-4..=3.0001).contains(v)));
    }
}

#[test]
fn models_that_are_put_aside_give_the_same_mean() {
    for address in ADDRESSES {
        for mixing in ["symmetric", "paper"] {
            let layout = layout(100_000);
            // The weights given are 1/4. Under the paper's rule two neighbours that sent something would
            // allow up to 1/3.
            let done = run(ring(&layout, 4, address, &json!({ "mixing": mixing })), 4, None);
            for (i, (arena, reports)) in done.iter().enumerate() {
                let right = expected(4, 4)[i] as f32;
                assert!(
                    floats(arena, &layout).iter().all(|v| (v - right).abs() < 1e-5),
                    "{address} {mixing}"
                );
                assert_eq!(count(arena, &layout), 3, "counters take the maximum");
                for report in reports {
                    assert_eq!(report["bytes_used"], 2 * layout.bytes(), "{address} {report}");
                    assert_eq!(report["chunks_used"], report["chunks_expected"], "{address} {report}");
                }
            }
        }
    }
}

#[test]
fn symmetric_weights_keep_the_mean_though_chunks_are_lost() {
    let layout = layout(200_000);
    for wait in [json!({ "wait": "deadline" }), json!({ "wait": "first-chunk", "deadline": 5.0 })] {
        let mut options = json!({ "mixing": "symmetric", "layers": { "fault": { "seed": 3, "loss": 0.2 } } });
        options.as_object_mut().unwrap().extend(wait.as_object().unwrap().clone());
        let done = run(ring(&layout, 4, "udp://127.0.0.1:0", &options), 6, None);
        let models: Vec<Vec<f32>> = done.iter().map(|(arena, _)| floats(arena, &layout)).collect();
        for element in 0..models[0].len() {
            let mean = models.iter().map(|model| f64::from(model[element])).sum::<f64>() / 4.0;
            assert!((mean - 1.5).abs() < 1e-5, "{wait}: {mean}");
        }
        let reports = || done.iter().flat_map(|(_, reports)| reports);
        assert!(reports().any(|report| report["bytes_used"].as_u64() < report["bytes_expected"].as_u64()));
        assert!(reports().any(|report| report["bytes_used"].as_u64() > Some(0)));
    }
}

#[test]
fn a_node_alone_and_one_whose_neighbour_is_gone_go_on() {
    let layout = layout(1000);
    let (alone, arena) = node(&layout, "alone", "tcp://127.0.0.1:0", &json!({}));
    fill(&arena, &layout, 2.0, 2);
    let report = iterate(&alone, 1, &BTreeMap::new());
    assert_eq!((&report["heard"], &report["own_weight"]), (&json!([]), &json!(1.0)));
    assert_eq!(floats(&arena, &layout), vec![2.0; 1000]);

    let mut ring = ring(&layout, 3, "tcp://127.0.0.1:0", &json!({}));
    let (gone, ..) = ring.remove(1);
    gone.close("it leaves");
    drop(gone);
    let done = run_named(ring);
    for reports in done {
        assert_eq!(reports.last().unwrap()["heard"].as_array().unwrap().len(), 1);
        let states: Vec<&Value> =
            reports.last().unwrap()["exchanges"].as_array().unwrap().iter().map(|e| &e["state"]).collect();
        assert!(states.contains(&&json!("away")) && states.contains(&&json!("whole")), "{states:?}");
    }
}

fn run_named(ring: Vec<(Node, Arena, Vec<String>)>) -> Vec<Vec<Value>> {
    let threads = ring.into_iter().map(|(node, _arena, neighbours)| {
        std::thread::spawn(move || {
            let weights = neighbours.into_iter().map(|n| (n, 0.25)).collect();
            let reports = (1..=5).map(|round| iterate(&node, round, &weights)).collect();
            node.close("done");
            reports
        })
    });
    threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn what_differs_is_said_at_both_ends() {
    for (key, value, word) in
        [("plan", "b", "plan"), ("graph", "b", "graph"), ("start", "b", "initial model")]
    {
        let layout = layout(100);
        let options = json!({ "plan": "a", "graph": "a", "start": "a" });
        let (one, _) = node(&layout, "a", "tcp://127.0.0.1:0", &options);
        let mut other = options.clone();
        other[key] = json!(value);
        let (two, _) = node(&layout, "b", "tcp://127.0.0.1:0", &other);
        one.meet(&BTreeMap::from([("b".into(), two.address())]), None).unwrap();
        two.meet(&BTreeMap::from([("a".into(), one.address())]), None).unwrap();
        for node in [&one, &two] {
            let refused = node.gather(1, Some(LIMIT), None).unwrap_err();
            assert_eq!(refused.kind(), thalweg_runtime::Kind::Refused);
            assert!(refused.to_string().contains(word), "{refused}");
            assert!(node.events().contains("refused"));
        }
    }
}

#[test]
fn impossible_options_say_what_they_may_be() {
    let layout = layout(100);
    for (options, word) in [
        (json!({ "wait": "first-chunk" }), "deadline"),
        (json!({ "deadline": 1.0 }), "leave it out"),
        (json!({ "ahead": 17 }), "16"),
        (json!({ "chunk": 3 }), "64"),
        (json!({ "liveness": 0.0 }), "0.1"),
    ] {
        let arena = Arena::new(layout.bytes()).unwrap();
        let options = serde_json::from_value(options).unwrap();
        let error = Node::start(arena, layout.clone(), "a", "tcp://127.0.0.1:0", options).err().unwrap();
        assert!(error.to_string().contains(word), "{error}");
    }
    let arena = Arena::new(layout.bytes()).unwrap();
    let options = serde_json::from_value(json!({})).unwrap();
    let error = Node::start(arena, layout.clone(), "a", "unifl://127.0.0.1:0", options).err().unwrap();
    assert!(error.to_string().contains("all nodes have the same role"), "{error}");
    let (node, _) = node(&layout, "a", "tcp://127.0.0.1:0", &json!({}));
    assert!(node.meet(&BTreeMap::from([("a".into(), String::new())]), None).is_err());
    assert!(node
        .begin(1, BTreeMap::from([("b".into(), 0.5)]), None, None)
        .unwrap_err()
        .to_string()
        .contains("met"));
    assert!(node.ready(1, None).unwrap_err().to_string().contains("begin"));
    assert!(node.wait(1, None, None).unwrap_err().to_string().contains("ready"));
}

#[test]
fn a_model_that_is_not_finite_is_dropped_by_others_and_refused_at_home() {
    let layout = layout(1000);
    let ring = ring(&layout, 3, "tcp://127.0.0.1:0", &json!({}));
    fill(&ring[0].1, &layout, f32::NAN, 0);
    let threads: Vec<_> = ring
        .into_iter()
        .map(|(node, arena, neighbours)| {
            let layout = layout.clone();
            std::thread::spawn(move || {
                let weights = neighbours.into_iter().map(|n| (n, 0.25)).collect();
                node.begin(1, weights, None, None).unwrap();
                node.ready(1, None).unwrap();
                let report = node.wait(1, Some(LIMIT), None);
                let said = report.map(|report| report.expect("it waits in vain"));
                (said.map_err(|e| e.to_string()), floats(&arena, &layout)[0])
            })
        })
        .collect();
    let done: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(done[0].0.as_ref().unwrap_err().contains("is NaN"), "{done:?}");
    for (report, value) in &done[1..] {
        let report: Value = serde_json::from_str(report.as_ref().unwrap()).unwrap();
        assert!(value.is_finite() && report["bad_chunks"] == 1, "{report}");
        assert_eq!(report["chunks_used"], 1, "{report}");
    }
}

/// Starts nodes that are all each other's neighbours. No two elements of any model are equal.
fn full(layout: &Layout, nodes: usize, address: &str, options: &Value) -> Vec<(Node, Arena, Vec<String>)> {
    let name = |i: usize| format!("n{i}");
    let all: Vec<_> = (0..nodes).map(|i| node(layout, &name(i), address, options)).collect();
    let urls: BTreeMap<String, String> = (0..nodes).map(|i| (name(i), all[i].0.address())).collect();
    let full = all.into_iter().enumerate().map(|(i, (node, arena))| {
        {
            let mut bytes = arena.claim(arena.range()).unwrap();
            let values = layout.tensors()[0].range();
            let elements = bytes[values.start as usize..values.end as usize].chunks_exact_mut(4);
            let value = |e: usize| ((e * 2_654_435 + i * 40_503) % 100_003) as f32 / 1000.0 - 50.0;
            elements.enumerate().for_each(|(e, place)| place.copy_from_slice(&value(e).to_le_bytes()));
        }
        let known = urls.clone().into_iter().filter(|(other, _)| *other != name(i)).collect();
        node.meet(&known, None).unwrap();
        (node, arena, known.into_keys().collect())
    });
    let full: Vec<(Node, Arena, Vec<String>)> = full.collect();
    for (node, _, neighbours) in &full {
        assert_eq!(node.gather(neighbours.len(), Some(LIMIT), None).unwrap(), neighbours.len());
    }
    full
}

/// Nodes that average by segments get the bits that whole models give, and all the same ones.
#[test]
fn segments_give_the_bits_of_whole_models_over_every_transport() {
    for address in ADDRESSES {
        for mixing in ["complement", "renormalise"] {
            let layout = layout(150_000);
            let bits = |exchange: &str| {
                let options = json!({ "precision": "exact", "mixing": mixing, "exchange": exchange });
                let own = (mixing == "renormalise").then_some(0.25);
                let done = run(full(&layout, 4, address, &options), 3, own);
                for report in done.iter().flat_map(|(_, reports)| reports) {
                    assert_eq!(report["by_segments"], exchange == "segments", "{address} {report}");
                    assert_eq!(report["bytes_used"], report["bytes_expected"], "{address} {report}");
                    assert_eq!(report["whole"].as_array().unwrap().len(), 3);
                    assert!((report["own_weight"].as_f64().unwrap() - 0.25).abs() < 1e-9, "{report}");
                }
                let models = done.iter().map(|(arena, _)| floats(arena, &layout));
                models.map(|model| model.iter().map(|v| v.to_bits()).collect()).collect::<Vec<Vec<u32>>>()
            };
            let (segments, whole) = (bits("segments"), bits("whole"));
            assert!(segments.iter().all(|model| *model == whole[0]), "{address} {mixing}");
        }
    }
}

#[test]
fn models_with_values_that_are_not_finite_become_nobodys_model_by_segments_either() {
    let layout = layout(50_000);
    let nodes = full(&layout, 3, ADDRESSES[1], &json!({ "exchange": "segments" }));
    let broken = &nodes[1].1;
    let place = layout.tensors()[0].range();
    broken.claim(place).unwrap()[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let third = 1.0 / 3.0;
    let threads: Vec<_> = nodes
        .into_iter()
        .map(|(node, arena, neighbours)| {
            let weights: BTreeMap<String, f64> = neighbours.into_iter().map(|n| (n, third)).collect();
            std::thread::spawn(move || {
                node.begin(1, weights, None, None).unwrap();
                let number = node.ready(1, None).unwrap();
                let done = node.wait(number, Some(LIMIT), None);
                node.close("done");
                (done, arena)
            })
        })
        .collect();
    for (index, thread) in threads.into_iter().enumerate() {
        let (done, arena) = thread.join().unwrap();
        if index == 1 {
            assert!(done.unwrap_err().to_string().contains("of the own model"));
        } else {
            let report: Value = serde_json::from_str(&done.unwrap().unwrap()).unwrap();
            assert_eq!(report["by_segments"], false, "{report}");
            assert!(floats(&arena, &layout).iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn what_segments_cannot_go_with_is_refused() {
    let layout = layout(100);
    for (options, need) in [
        (json!({ "wait": "none" }), "needs wait all"),
        (json!({ "mixing": "symmetric" }), "needs mixing complement or renormalise"),
    ] {
        let mut options = options;
        options["exchange"] = json!("segments");
        let arena = Arena::new(layout.bytes()).unwrap();
        let options = serde_json::from_value(options).unwrap();
        let refused = Node::start(arena, layout.clone(), "n0", ADDRESSES[1], options);
        let why = refused.map(drop).unwrap_err();
        assert!(why.to_string().contains(need), "{why}");
    }
}
