//! Measures decisions. Prints one JSON line: for each task the median, minimum and maximum time of one, in
//! seconds.
//!
//! `cargo run --release -p thalweg-control --example decide_bench [REPETITIONS]`
//!
//! - `best-fit`, `worst-fit`, `first-fit`: 10,000 clients that have no node, on 100 nodes with room for all;
//! - `mixed`: the same by best fit, with loads that differ;
//! - `kept`: 10,000 clients that stay where they are;
//! - `estimate`: one smoothed queue length.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use thalweg_control::{decide, smoothed, Client, Config, Node, Policy, Split, State, UPDATE};
use thalweg_rng::Rng;

const NODES: u32 = 100;
const CLIENTS: u32 = 10_000;
const NOW: Duration = Duration::from_secs(1000);
/// Number of estimates in a repetition: a single one is too short for the clock.
const ESTIMATES: u32 = 100_000;

/// The state of nodes with room for all clients and a tenth more.
fn state(load: impl FnMut(u32) -> u64) -> State {
    let loads: Vec<u64> = (0..CLIENTS).map(load).collect();
    let capacity = loads.iter().sum::<u64>() / u64::from(NODES) * 11 / 10;
    let node = Node {
        capacity,
        busy: 0,
        estimate: None,
        needs: Vec::new(),
        workers: 0,
        last_message: NOW,
        group: None,
    };
    let clients = loads.into_iter().map(|load| Client { load, ..Client::default() });
    State { nodes: vec![node; NODES as usize], clients: clients.collect(), planned: None }
}

fn json(name: &str, mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    let (least, median, most) = (seconds[0], seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
    format!(r#""{name}":{{"median":{median:e},"least":{least:e},"most":{most:e}}}"#)
}

fn main() {
    let repetitions: usize = std::env::args().nth(1).map_or(200, |text| text.parse().unwrap());
    let mut rng = Rng::new(&[1]);
    let (equal, mixed) = (state(|_| UPDATE), state(|_| rng.up_to(4 * UPDATE)));
    let config = |placement| Config { placement, split: Split::Clients, workers: 64, ..Config::default() };
    let (plan, _) = decide(NOW, &equal, &config(Policy::BestFit));
    let mut kept = equal.clone();
    kept.clients.iter_mut().zip(&plan.homes).for_each(|(client, &home)| client.home = home);
    let tasks = [
        ("best-fit", &equal, config(Policy::BestFit)),
        ("worst-fit", &equal, config(Policy::WorstFit)),
        ("first-fit", &equal, config(Policy::FirstFit)),
        ("mixed", &mixed, config(Policy::BestFit)),
        ("kept", &kept, config(Policy::BestFit)),
    ];
    let mut seconds = vec![Vec::new(); tasks.len() + 1];
    for _ in 0..repetitions {
        for ((_, state, config), seconds) in tasks.iter().zip(&mut seconds) {
            let start = Instant::now();
            black_box(decide(NOW, black_box(state), config));
            seconds.push(start.elapsed().as_secs_f64());
        }
        let start = Instant::now();
        let estimate =
            (0..ESTIMATES).fold(None, |old, sample| Some(smoothed(old, black_box(sample.into()), 700)));
        black_box(estimate);
        seconds[tasks.len()].push(start.elapsed().as_secs_f64() / f64::from(ESTIMATES));
    }
    let names = tasks.iter().map(|(name, ..)| *name).chain(["estimate"]);
    let rows: Vec<String> = names.zip(seconds).map(|(name, seconds)| json(name, seconds)).collect();
    println!("{{{}}}", rows.join(","));
}
