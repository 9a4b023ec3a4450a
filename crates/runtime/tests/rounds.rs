//! Tests of complete rounds, over the transports that need no other program.
#![allow(clippy::unwrap_used)]

mod common;

use common::{client, count, floats, layout, part, round, server, transfers, LIMIT};
use serde_json::json;
use thalweg_proto::Verdict;
use thalweg_runtime::{Client, ClientEvent, ClientOptions};

const ADDRESSES: [&str; 4] =
    ["memory://rounds:0", "tcp://127.0.0.1:0", "udp://127.0.0.1:0", "grpc://127.0.0.1:0"];

#[test]
fn the_mean_is_weighted_and_counters_take_the_maximum() {
    for address in ADDRESSES {
        for partial in ["keep", "discard"] {
            let layout = layout(300_000);
            let options = json!({ "expected": 3, "enough": 3, "partial": partial, "chunk": 65536 });
            let (mut server, model) = server(&layout, address, options);
            let clients: Vec<_> = [(1.0, 10), (2.0, 20), (6.0, 10)]
                .into_iter()
                .enumerate()
                .map(|(i, (value, samples))| {
                    client(&server.address(), &format!("c{i}"), json!({}), value, samples)
                })
                .collect();
            assert_eq!(server.wait(3, Some(LIMIT), None), 3);
            for number in 1..=2 {
                let outcome = round(&server, number).unwrap();
                assert_eq!(outcome["complete"], true, "{outcome}");
                assert!(floats(&model, &layout).iter().all(|&x| x == 2.75), "{address} {partial}");
                assert_eq!(count(&model, &layout), i64::from(number) * 20);
                assert_eq!(part(&outcome, "c1")["metrics"]["value"], "2");
                assert_eq!(transfers(&outcome, "c2", "up")["bytes"], layout.bytes());
            }
            server.close("done");
            for thread in clients {
                assert_eq!(thread.join().unwrap(), Ok(vec![Verdict::Accepted; 2]));
            }
        }
    }
}

#[test]
fn copies_are_counted() {
    for (address, copies) in ADDRESSES.into_iter().zip([1, 0, 1, 2]) {
        let layout = layout(100_000);
        let (server, _) = server(&layout, address, json!({}));
        let thread = client(&server.address(), "c", json!({}), 1.0, 1);
        server.wait(1, Some(LIMIT), None);
        let outcome = round(&server, 1).unwrap();
        let copied = transfers(&outcome, "c", "up")["copied"].as_u64().unwrap();
        assert_eq!(copied, copies * layout.bytes(), "{address}");
        drop(server);
        thread.join().unwrap().unwrap();
    }
}

/// An update that is submitted after the end of the job gets no verdict. A later call must not wait for ever.
#[test]
fn each_call_after_the_end_of_the_job_reports_the_end() {
    for address in ADDRESSES {
        let layout = layout(1000);
        let (mut server, _) = server(&layout, address, json!({}));
        let options: ClientOptions = serde_json::from_value(json!({})).unwrap();
        let client = Client::start(&server.address(), "c", options, None).unwrap();
        assert_eq!(server.wait(1, Some(LIMIT), None), 1);
        server.close("done");
        let started = std::time::Instant::now();
        let next = || client.next_event(Some(&|| started.elapsed() < LIMIT)).unwrap();
        assert_eq!(next(), ClientEvent::Joined);
        assert!(matches!(next(), ClientEvent::Finished(Ok(_))));
        assert!(client.submit(1, 1.0, "{}".into()).is_err());
        assert!(matches!(next(), ClientEvent::Finished(Ok(_))));
    }
}

#[test]
fn staging_smaller_than_the_clients_serves_them_in_turn() {
    let layout = layout(50_000);
    let options = json!({ "expected": 8, "enough": 8, "staging": 2 * layout.bytes() });
    let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", options);
    let clients: Vec<_> =
        (0..8).map(|i| client(&server.address(), &format!("c{i}"), json!({}), i as f32, 1)).collect();
    server.wait(8, Some(LIMIT), None);
    let outcome = round(&server, 1).unwrap();
    assert_eq!(outcome["complete"], true, "{outcome}");
    assert!(floats(&model, &layout).iter().all(|&x| x == 3.5));
    server.close("done");
    clients.into_iter().for_each(|c| assert_eq!(c.join().unwrap(), Ok(vec![Verdict::Accepted])));
}

#[test]
fn clients_are_served_one_after_the_other_where_asked() {
    for address in ADDRESSES {
        let layout = layout(100_000);
        let options = json!({ "expected": 4, "enough": 4, "fanout": "sequential", "gather": "in-order", "chunk": 65536 });
        let (mut server, model) = server(&layout, address, options);
        let names = ["c1", "c2", "c3", "c10"];
        let clients: Vec<_> = names
            .iter()
            .rev()
            .map(|name| client(&server.address(), name, json!({}), name.len() as f32, 1))
            .collect();
        assert_eq!(server.wait(4, Some(LIMIT), None), 4);
        let outcome = round(&server, 1).unwrap();
        assert_eq!(outcome["complete"], true, "{address}: {outcome}");
        assert!(floats(&model, &layout).iter().all(|&x| x == 2.25), "{address}");
        for (direction, start, end) in
            [("down", "send_start", "send_end"), ("up", "receive_start", "receive_end")]
        {
            let at = |name, key: &str| transfers(&outcome, name, direction)[key].as_f64().unwrap();
            // Over datagrams, lost chunks of the model are sent again at once, even during another client's
            // turn.
            let end = if direction == "down" && address.starts_with("udp") { start } else { end };
            for two in names.windows(2) {
                assert!(at(two[0], end) <= at(two[1], start), "{address}: {direction}, {two:?}: {outcome}");
            }
        }
        server.close("done");
        clients.into_iter().for_each(|c| assert_eq!(c.join().unwrap(), Ok(vec![Verdict::Accepted])));
    }
}

#[test]
fn a_whole_update_may_be_one_message() {
    let layout = layout(1_500_000);
    let own = |largest: u64| json!({ "transport": { "own": { "mode": "unary", "largest": largest } } });
    let options = json!({ "expected": 3, "enough": 3, "transport": own(8 << 20)["transport"] });
    let (mut server, model) = server(&layout, "grpc://127.0.0.1:0", options);
    let clients: Vec<_> =
        (1..=3).map(|i| client(&server.address(), &format!("c{i}"), own(8 << 20), i as f32, 1)).collect();
    assert_eq!(server.wait(3, Some(LIMIT), None), 3);
    for number in 1..=2 {
        let outcome = round(&server, number).unwrap();
        assert_eq!(outcome["complete"], true, "{outcome}");
        assert!(floats(&model, &layout).iter().all(|&x| x == 2.0));
        for (direction, copies) in [("up", 2), ("down", 2)] {
            let transfer = transfers(&outcome, "c2", direction);
            assert_eq!(transfer["copied"], copies * layout.bytes(), "{direction}");
            assert!(transfer["wire_bytes"].as_u64().unwrap() > layout.bytes(), "{direction}");
        }
    }
    server.close("done");
    clients.into_iter().for_each(|c| assert_eq!(c.join().unwrap(), Ok(vec![Verdict::Accepted; 2])));
}

#[test]
fn a_model_that_fits_no_message_ends_the_job_in_words() {
    let layout = layout(1_500_000);
    let own = json!({ "transport": { "own": { "mode": "unary", "largest": 4 << 20 } } });
    let (server, _) = server(&layout, "grpc://127.0.0.1:0", own.clone());
    let thread = client(&server.address(), "c", own, 1.0, 1);
    server.wait(1, Some(LIMIT), None);
    let error = round(&server, 1).unwrap_err().to_string();
    assert!(error.contains("as one message; largest is 4194304"), "{error}");
    drop(server);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_value_no_update_may_hold_is_refused_by_name() {
    for partial in ["keep", "discard"] {
        let layout = layout(1000);
        let options = json!({ "expected": 2, "enough": 1, "partial": partial });
        let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", options);
        let good = client(&server.address(), "good", json!({}), 4.0, 1);
        let bad = client(&server.address(), "bad", json!({}), f32::NAN, 1);
        server.wait(2, Some(LIMIT), None);
        let outcome = round(&server, 1).unwrap();
        assert_eq!(part(&outcome, "bad")["state"], "rejected");
        assert!(part(&outcome, "bad")["reason"].as_str().unwrap().contains("\"w\""), "{outcome}");
        assert!(floats(&model, &layout).iter().all(|&x| x == 4.0), "{partial}");
        server.close("done");
        assert_eq!(good.join().unwrap(), Ok(vec![Verdict::Accepted]));
        assert!(matches!(bad.join().unwrap().unwrap()[..], [Verdict::Rejected(_)]));
    }
}

#[test]
fn tokens_are_proven_or_the_client_stays_out() {
    let layout = layout(10);
    let (server, _) = server(&layout, "tcp://127.0.0.1:0", json!({ "token": "correct-horse" }));
    for (options, word) in [(json!({ "token": "wrong" }), "token"), (json!({}), "--token-file")] {
        let refused = client(&server.address(), "c", options, 1.0, 1).join().unwrap().unwrap_err();
        assert!(refused.contains(word), "{refused}");
    }
    let member = client(&server.address(), "c", json!({ "token": "correct-horse" }), 1.0, 1);
    assert_eq!(server.wait(1, Some(LIMIT), None), 1);
    drop(server);
    member.join().unwrap().unwrap();
}

#[test]
fn beyond_loopback_somebody_must_be_asked_for_something() {
    let layout = layout(10);
    let arena = thalweg_arena::Arena::new(layout.bytes()).unwrap();
    let open = thalweg_runtime::Server::start(arena, layout, "tcp://0.0.0.0:0", Default::default());
    let error = open.err().unwrap();
    assert!(
        error.kind() == thalweg_runtime::Kind::Security && error.to_string().contains("thalweg pki init"),
        "{error}"
    );
}

#[test]
fn an_unknown_transport_names_those_there_are() {
    let layout = layout(10);
    let arena = thalweg_arena::Arena::new(layout.bytes()).unwrap();
    let error =
        thalweg_runtime::Server::start(arena, layout, "carrier://pigeon", Default::default()).err().unwrap();
    assert!(error.to_string().contains("memory, tcp"), "{error}");
}

#[test]
fn a_port_in_use_says_so() {
    let layout = layout(10);
    let (first, _) = server(&layout, "tcp://127.0.0.1:0", json!({}));
    let arena = thalweg_arena::Arena::new(layout.bytes()).unwrap();
    let second = thalweg_runtime::Server::start(arena, layout, &first.address(), Default::default());
    assert!(second.err().unwrap().to_string().contains("choose another port"));
}

#[test]
fn a_round_takes_as_many_clients_as_it_chooses() {
    for address in ADDRESSES {
        let layout = layout(10_000);
        let options = json!({ "expected": 6, "choose": 2, "enough": 2, "seed": 3 });
        let (mut server, _) = server(&layout, address, options);
        let clients: Vec<_> =
            (0..6).map(|i| client(&server.address(), &format!("c{i}"), json!({}), i as f32, 1)).collect();
        assert_eq!(server.wait(6, Some(LIMIT), None), 6);
        let mut parts = std::collections::BTreeMap::<String, usize>::new();
        for number in 1..=8 {
            let outcome = round(&server, number).unwrap();
            assert_eq!((&outcome["complete"], &outcome["expected"]), (&json!(true), &json!(2)), "{outcome}");
            let chosen = outcome["participants"].as_array().unwrap();
            assert_eq!(chosen.len(), 2);
            chosen.iter().for_each(|p| *parts.entry(p["client"].as_str().unwrap().into()).or_default() += 1);
        }
        server.close("done");
        assert!(parts.len() > 2, "{parts:?}");
        for (i, thread) in clients.into_iter().enumerate() {
            let times = parts.get(&format!("c{i}")).copied().unwrap_or(0);
            assert_eq!(thread.join().unwrap(), Ok(vec![Verdict::Accepted; times]), "{address} c{i}");
        }
    }
}
