//! Tests of servers and clients of tasks over real links.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use common::LIMIT;
use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_proto::ReplyState;
use thalweg_runtime::{NewTask, TaskClient, TaskEvent, TaskReply, TaskServer, TaskServerOptions};
use thalweg_wire::{Dtype, Layout};

const ADDRESSES: [&str; 2] = ["memory://tasks:0", "tcp://127.0.0.1:0"];

fn server(address: &str) -> TaskServer {
    let options: TaskServerOptions = serde_json::from_value(json!({ "grace": 1.0 })).unwrap();
    TaskServer::start(address, options).unwrap()
}

/// A client that answers each task with its values plus one, until the job is over.
fn echo(address: &str, name: &str, weight: f64) -> JoinHandle<Result<u32, String>> {
    echo_over(address, name, weight, json!({}))
}

fn echo_over(address: &str, name: &str, weight: f64, options: Value) -> JoinHandle<Result<u32, String>> {
    let client = TaskClient::start(address, name, serde_json::from_value(options).unwrap()).unwrap();
    std::thread::spawn(move || {
        let (started, mut answered) = (Instant::now(), 0);
        loop {
            match client.next_event(Some(&|| started.elapsed() < LIMIT)) {
                Some(TaskEvent::Task { task, head, layout, arena, .. }) => {
                    let result = arena.map(|arena| (plus_one(&arena), layout));
                    client.answer(task, head, result, weight).map_err(|e| e.to_string())?;
                    answered += 1;
                }
                Some(TaskEvent::Finished(outcome)) => {
                    return outcome.map(|_| answered).map_err(|why| why.to_string())
                }
                Some(_) => {}
                None => return Err("the test hangs".into()),
            }
        }
    })
}

fn values(arena: &Arena) -> Vec<f32> {
    let bytes = arena.lend(arena.range()).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn filled(values: impl IntoIterator<Item = f32>) -> (Arena, Arc<Layout>) {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    let layout = Layout::pack([("w", Dtype::F32, vec![bytes.len() as u64 / 4])]).unwrap();
    let arena = Arena::new(layout.bytes()).unwrap();
    arena.claim(arena.range()).unwrap().copy_from_slice(&bytes);
    (arena, Arc::new(layout))
}

fn plus_one(arena: &Arena) -> Arena {
    filled(values(arena).into_iter().map(|value| value + 1.0)).0
}

fn task(tensors: Option<(Arena, Arc<Layout>)>, fold: Option<Arc<Layout>>, members: &[&str]) -> NewTask {
    let members = members.iter().map(|name| (*name).to_string()).collect();
    let deadline = Some(LIMIT.as_secs_f64());
    NewTask { head: b"7".to_vec(), tensors, bytes_id: 1, members, deadline, fold, missing: None, judge: None }
}

fn replies(server: &TaskServer, task: u32) -> Vec<TaskReply> {
    std::iter::from_fn(|| server.next_reply(task, Some(LIMIT), None).unwrap()).collect()
}

#[test]
fn results_come_back_and_means_are_by_weight() {
    for address in ADDRESSES {
        let server = server(address);
        let clients = [("a", 1.0), ("b", 3.0)].map(|(name, weight)| echo(&server.address(), name, weight));
        assert_eq!(server.wait(2, Some(LIMIT), None), 2);
        let (arena, layout) = filled((0..100_000).map(|n| n as f32));
        for _ in 0..3 {
            let sent = Some((arena.clone(), layout.clone()));
            let number = server.open(task(sent, None, &["a", "b"])).unwrap();
            let all = replies(&server, number);
            assert_eq!(all.len(), 2);
            for reply in &all {
                assert_eq!((reply.state, &reply.head[..]), (ReplyState::Done, &b"7"[..]));
                let (result, _) = reply.tensors.as_ref().unwrap();
                assert_eq!(values(result), values(&plus_one(&arena)));
            }
            server.release(number);
        }
        let sent = Some((arena.clone(), layout.clone()));
        let number = server.open(task(sent, Some(layout.clone()), &["a", "b"])).unwrap();
        assert!(server.mean(number).err().unwrap().to_string().contains("take all its replies first"));
        assert!(replies(&server, number).iter().all(|reply| reply.tensors.is_none()));
        assert_eq!(values(&server.mean(number).unwrap().0), values(&plus_one(&arena)));
        server.close("done");
        for client in clients {
            assert_eq!(client.join().unwrap(), Ok(4));
        }
    }
}

/// The links lose a tenth of the chunks. Lost parts are missing, and the mean is over what arrived.
#[test]
fn parts_of_what_is_folded_may_be_missing() {
    for address in ["tcp://127.0.0.1:0", "udp://127.0.0.1:0", "ltp://127.0.0.1:0"] {
        let layers = json!({ "fault": { "seed": 3, "loss": 0.1 } });
        let options = json!({ "chunk": 1344, "layers": layers });
        let server = TaskServer::start(address, serde_json::from_value(options).unwrap()).unwrap();
        let options = json!({ "layers": layers });
        let clients = [("a", 1.0), ("b", 3.0)]
            .map(|(name, weight)| echo_over(&server.address(), name, weight, options.clone()));
        assert_eq!(server.wait(2, Some(LIMIT), None), 2);
        let (arena, layout) = filled((0..100_000).map(|n| n as f32));
        let mut lost = 0;
        for missing in [None, Some(vec![0.05]), Some(vec![1.0])] {
            let sent = Some((arena.clone(), layout.clone()));
            let new = NewTask { missing: missing.clone(), ..task(sent, Some(layout.clone()), &["a", "b"]) };
            let number = server.open(new).unwrap();
            let most = missing.map_or(0.0, |shares| shares[0]);
            for reply in replies(&server, number) {
                assert_eq!(reply.state, ReplyState::Done, "{:?}", reply.reason);
                assert!(reply.coverage >= 1.0 - most, "{address}: {} came", reply.coverage);
                lost += u32::from(reply.coverage < 1.0);
            }
            // All clients send the same values. An element that nobody sent has the task's own value.
            let mean = server.mean(number).unwrap().0;
            let pairs = values(&mean).into_iter().zip(values(&arena));
            assert!(pairs.clone().all(|(mean, own)| mean == own + 1.0 || (most > 0.0 && mean == own)));
            server.release(number);
        }
        assert!(lost >= 2, "{address}: {lost} results came in parts");
        let refused =
            server.open(NewTask { missing: Some(vec![1.0]), ..task(None, None, &["a"]) }).err().unwrap();
        assert_eq!(refused.kind(), thalweg_runtime::Kind::Options);
        server.close("done");
        for client in clients {
            assert_eq!(client.join().unwrap(), Ok(3));
        }
    }
}

/// A chunk is a 64th of a small result, so what a broken link loses is a small share of it.
#[test]
fn a_chunk_is_a_64th_of_a_small_result() {
    let options = json!({ "layers": { "fault": { "seed": 3, "loss": 0.1 } } });
    for address in ADDRESSES {
        let server = server(address);
        let client = echo_over(&server.address(), "a", 1.0, options.clone());
        assert_eq!(server.wait(1, Some(LIMIT), None), 1);
        let (arena, layout) = filled((0..1 << 20).map(|n| n as f32));
        let sent = Some((arena, layout.clone()));
        let new = NewTask { missing: Some(vec![1.0]), ..task(sent, Some(layout), &["a"]) };
        let number = server.open(new).unwrap();
        let [reply] = &replies(&server, number)[..] else { panic!("one member, one reply") };
        let arrived = 64.0 * reply.coverage;
        assert!(arrived < 64.0 && arrived.fract() == 0.0, "{address}: {arrived} chunks of 64 came");
        assert!(arrived % 4.0 != 0.0, "{address}: a chunk is larger: {arrived} of 64 came");
        server.close("done");
        assert_eq!(client.join().unwrap(), Ok(1));
    }
}

#[test]
fn whoever_waits_hears_that_it_is_closed() {
    for address in ADDRESSES {
        let server = Arc::new(server(address));
        let number = server.open(task(None, None, &["never"])).unwrap();
        let client = TaskClient::start(&server.address(), "a", serde_json::from_value(json!({})).unwrap());
        let client = Arc::new(client.unwrap());
        assert_eq!(server.wait(1, Some(LIMIT), None), 1);
        let waits = {
            let (server, client) = (server.clone(), client.clone());
            (
                std::thread::spawn(move || replies(&server, number)[0].state),
                std::thread::spawn(move || loop {
                    if let TaskEvent::Finished(outcome) = client.next_event(None).unwrap() {
                        return outcome;
                    }
                }),
            )
        };
        client.close("it leaves");
        server.close("done");
        let state = waits.0.join().unwrap();
        assert!(matches!(state, ReplyState::Cancelled | ReplyState::Lost), "{state:?}");
        assert!(waits.1.join().unwrap().is_ok());
        assert!(server.open(task(None, None, &["a"])).is_err(), "the job is over");
        server.close("again");
        client.close("again");
    }
}

#[test]
fn each_call_after_the_end_of_the_job_reports_the_end() {
    for address in ADDRESSES {
        let server = server(address);
        let client =
            TaskClient::start(&server.address(), "a", serde_json::from_value(json!({})).unwrap()).unwrap();
        assert_eq!(server.wait(1, Some(LIMIT), None), 1);
        server.close("done");
        let started = Instant::now();
        let next = || client.next_event(Some(&|| started.elapsed() < LIMIT)).unwrap();
        assert!(matches!(next(), TaskEvent::Joined));
        for _ in 0..3 {
            assert!(matches!(next(), TaskEvent::Finished(Ok(_))));
        }
    }
}

/// A leaving client's farewell must arrive, though one thread queues it and another closes the link.
#[test]
fn the_words_of_everybody_who_leaves_arrive() {
    let names: Vec<String> = (0..24).map(|number| format!("c{number}")).collect();
    for address in ADDRESSES {
        let server = server(address);
        let join =
            |name| TaskClient::start(&server.address(), name, serde_json::from_value(json!({})).unwrap());
        let clients: Vec<_> = names.iter().map(|name| join(name).unwrap()).collect();
        assert_eq!(server.wait(names.len(), Some(LIMIT), None), names.len());
        let number =
            server.open(task(None, None, &names.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
        std::thread::scope(|scope| {
            for client in &clients {
                scope.spawn(|| client.close("has to go"));
            }
        });
        for reply in replies(&server, number) {
            assert_eq!(reply.state, ReplyState::Lost);
            let reason = reply.reason.unwrap_or_default();
            assert!(reason.contains("has to go"), "{reason}");
        }
        server.close("done");
    }
}

#[test]
fn a_closed_server_leaves_its_address_though_it_is_still_held() {
    let first = server("tcp://127.0.0.1:0");
    first.close("done");
    let second = server(&first.address());
    assert_eq!(second.address(), first.address());
}

/// Calls about a member that is away, or a task that is unknown or released, return instead of waiting for
/// ever.
#[test]
fn what_there_is_not_is_said() {
    let server = server("memory://tasks-none:0");
    let unknown = |task| server.next_reply(task, Some(LIMIT), None).err().unwrap().kind();
    assert_eq!(unknown(9), thalweg_runtime::Kind::Task);
    let number = server.open(task(None, None, &["never"])).unwrap();
    let waited = server.next_reply(number, Some(std::time::Duration::ZERO), None);
    assert_eq!(waited.err().unwrap().kind(), thalweg_runtime::Kind::Timeout);
    assert_eq!(
        server.next_reply(number, None, Some(&|| false)).err().unwrap().kind(),
        thalweg_runtime::Kind::Interrupted
    );
    server.cancel(number);
    assert_eq!(replies(&server, number)[0].state, ReplyState::Cancelled);
    server.release(number);
    assert_eq!(unknown(number), thalweg_runtime::Kind::Task);
}
