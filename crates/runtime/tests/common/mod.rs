//! Test helpers: a server and clients in one process, through the runtime's public API.
#![allow(clippy::unwrap_used, clippy::panic, dead_code)] // not every test file uses all of it

pub mod raw;

use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_proto::Verdict;
use thalweg_runtime::{Client, ClientEvent, ClientOptions, Server, ServerOptions};
use thalweg_wire::{Dtype, Layout, Range};

/// Timeout that turns a hang into a failure.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn layout(elements: u64) -> Layout {
    Layout::pack([("w", Dtype::F32, vec![elements]), ("n", Dtype::I64, vec![])]).unwrap()
}

pub fn server(layout: &Layout, address: &str, options: Value) -> (Server, Arena) {
    let arena = Arena::new(layout.bytes()).unwrap();
    let options: ServerOptions = serde_json::from_value(options).unwrap();
    (Server::start(arena.clone(), layout.clone(), address, options).unwrap(), arena)
}

pub fn fill(arena: &Arena, layout: &Layout, value: f32, count: i64) {
    let mut bytes = arena.claim(arena.range()).unwrap();
    let (w, n) = (layout.tensors()[0].range(), layout.tensors()[1].range());
    bytes[w.start as usize..w.end as usize]
        .chunks_exact_mut(4)
        .for_each(|element| element.copy_from_slice(&value.to_le_bytes()));
    bytes[n.start as usize..n.end as usize].copy_from_slice(&count.to_le_bytes());
}

pub fn floats(arena: &Arena, layout: &Layout) -> Vec<f32> {
    let range: Range = layout.tensors()[0].range();
    let bytes = arena.lend(range).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub fn count(arena: &Arena, layout: &Layout) -> i64 {
    let bytes = arena.lend(layout.tensors()[1].range()).unwrap();
    i64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Runs the next round. Fails the test if it hangs.
pub fn round(server: &Server, number: u32) -> Result<Value, thalweg_runtime::Error> {
    let started = std::time::Instant::now();
    let outcome =
        server.round(number, &json!({ "round": number }).to_string(), None, |_| started.elapsed() < LIMIT);
    outcome.map(|text| serde_json::from_str(&text).unwrap())
}

pub fn part<'a>(outcome: &'a Value, client: &str) -> &'a Value {
    outcome["participants"].as_array().unwrap().iter().find(|p| p["client"] == client).unwrap()
}

pub fn transfers<'a>(outcome: &'a Value, client: &str, direction: &str) -> &'a Value {
    let all = outcome["transfers"].as_array().unwrap();
    all.iter().find(|t| t["client"] == client && t["direction"] == direction).unwrap()
}

/// Runs a client on a thread. In every round it fills its model with `value` and sends it.
pub fn client(
    address: &str,
    name: &str,
    options: Value,
    value: f32,
    samples: u64,
) -> JoinHandle<Result<Vec<Verdict>, String>> {
    let (address, name) = (address.to_owned(), name.to_owned());
    let options: ClientOptions = serde_json::from_value(options).unwrap();
    std::thread::spawn(move || {
        let client = Client::start(&address, &name, options, None).map_err(|e| e.to_string())?;
        let started = std::time::Instant::now();
        let mut verdicts = Vec::new();
        loop {
            match client.next_event(Some(&|| started.elapsed() < LIMIT)) {
                Some(ClientEvent::Joined) => {}
                Some(ClientEvent::Ready { round, .. }) => {
                    let (arena, layout) = client.model().unwrap();
                    fill(&arena, &layout, value, i64::from(round) * samples as i64);
                    client
                        .submit(round, samples as f64, json!({ "value": value.to_string() }).to_string())
                        .unwrap();
                }
                Some(ClientEvent::Verdict { verdict, .. }) => verdicts.push(verdict),
                Some(ClientEvent::Finished(Ok(_))) => return Ok(verdicts),
                Some(ClientEvent::Finished(Err(why))) => return Err(why.to_string()),
                None => return Err("the test hangs".into()),
            }
        }
    })
}
