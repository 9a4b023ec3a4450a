//! Sends a node senseless messages and chunks: it must neither panic nor lose its state.

use thalweg_proto::{ClientMachine, Neighbour, Node, NodeConfig, ServerMachine, Time, Waiting, Weighing};
use thalweg_wire::control::{
    Alike, Challenge, Control, Hello, Holding, Interval, Nonce, Purpose, Refusal, Welcome, VERSIONS,
};
use thalweg_wire::{ChunkHeader, LayoutHash, Range, Ranges};

use super::world::layout;
use crate::common::{Doors, Rng, JOB, MS, SECOND};

fn number(rng: &mut Rng) -> u32 {
    match rng.below(6) {
        0 => rng.next() as u32,
        1 => u32::MAX,
        2 => rng.below(6) as u32 | thalweg_proto::MEAN,
        _ => rng.below(6) as u32,
    }
}

fn ranges(rng: &mut Rng) -> Ranges {
    let range = |rng: &mut Rng| Range::new(rng.below(2000), rng.below(2000));
    (0..rng.below(5)).map(|_| range(rng)).collect()
}

fn hello(rng: &mut Rng, nonce: Nonce) -> Hello {
    let purpose = if rng.chance(0.9) { Purpose::Graph } else { Purpose::Rounds };
    let holding = match rng.below(4) {
        0 => Holding::Nothing,
        1 => Holding::Round { round: 1 },
        _ => Holding::Node(Alike::default()),
    };
    Hello {
        version: VERSIONS.1,
        name: ["a", "b", "z", "me", ""][rng.below(5) as usize].into(),
        instance: rng.below(3),
        nonce,
        proof: None,
        layout: [None, Some(layout(20).hash()), Some(LayoutHash(1))][rng.below(3) as usize],
        holding,
        clock: rng.next(),
        purpose,
    }
}

fn message(rng: &mut Rng) -> Control {
    let nonce = rng.nonce();
    let (parcel, interval) = (number(rng), Interval { start: rng.next(), end: rng.next() });
    match rng.below(18) {
        0..=3 => Control::Hello(hello(rng, nonce)),
        4 => Control::Challenge(Challenge { versions: VERSIONS, nonce, token: false, clock: rng.next() }),
        5 => Control::Welcome(Welcome {
            sender: number(rng),
            job: if rng.chance(0.9) { JOB } else { 1 },
            layout: (*layout(if rng.chance(0.9) { 20 } else { 3 })).clone(),
            chunk: number(rng),
            heartbeat: rng.next(),
            liveness: rng.next(),
            stand_in: None,
            spread: None,
            allowances: Vec::new(),
        }),
        6 => Control::Grant { parcel, wanted: ranges(rng) },
        7 => Control::End { parcel, sent: interval },
        8 => Control::Received { parcel, received: interval, duplicates: rng.next(), missing: rng.next() },
        9 => Control::Closed { parcel },
        10 => Control::Ping { clock: rng.next(), received: rng.next() },
        11 => Control::Idle,
        12 if rng.chance(0.1) => Control::Bye { reason: "x".into() },
        13 if rng.chance(0.1) => Control::Refused { code: Refusal::Name, reason: "x".into() },
        14 => Control::Have { parcel, got: ranges(rng) },
        15 if rng.chance(0.1) => Control::Layout((*layout(if rng.chance(0.9) { 3 } else { 20 })).clone()),
        16 => Control::Differs { tensor: "x".into(), spec: None },
        _ => Control::Pong { clock: rng.next() },
    }
}

fn chunk(rng: &mut Rng) -> ChunkHeader {
    let layout = if rng.chance(0.9) { layout(20).hash() } else { LayoutHash(5) };
    let (sender, round) = (rng.below(4) as u32, number(rng));
    let is_mean = round & thalweg_proto::MEAN != 0 && rng.chance(0.9);
    let layout = if is_mean { layout.of_group(["a", "b", "me", "z"]) } else { layout };
    let offset = if rng.chance(0.9) { rng.below(25) * 8 } else { rng.next() };
    ChunkHeader { job: JOB, round, sender, layout, offset, length: rng.below(100) as u32 }
}

/// Plays this many steps. Returns how many iterations the node has done.
fn play(seed: u64, waiting: Waiting) -> u32 {
    let mut rng = Rng::new(seed);
    let weighing = [Weighing::Arrival, Weighing::Senders, Weighing::Mutual][rng.below(3) as usize];
    let config = NodeConfig {
        name: "me".into(),
        instance: 1,
        job: JOB,
        layout: layout(20),
        chunk: 64,
        liveness: SECOND,
        waiting,
        weighing,
        ahead: rng.below(3) as u32,
        share: [1.0, 0.4][rng.below(2) as usize],
        segments: [None, Some(0)][rng.below(2) as usize],
        rounds: None,
        alike: Alike::default(),
    };
    let mut node = Node::new(config, Box::new(Doors { token: None }));
    for name in ["a", "b", "z"] {
        node.meet(name, 1).unwrap();
    }
    let weights: Vec<(String, f64)> = ["a", "b", "z"].map(|name| (name.into(), 0.25)).into();
    let (mut now, mut links, mut done, mut mixes) = (Time::ZERO, 0, 0, 0);
    for _ in 0..3000 {
        now += rng.time(20 * MS);
        let link = rng.below(links + 1);
        let who =
            if rng.chance(0.5) { Neighbour::Link(link) } else { Neighbour::Dialled(rng.below(4) as usize) };
        match rng.below(12) {
            0 => {
                links += 1;
                node.connected(now, links, rng.nonce(), rng.chance(0.5));
            }
            1 => node.dialled(2).connected(now, rng.nonce(), rng.chance(0.5)),
            2..=5 => match who {
                Neighbour::Link(link) => node.control(now, link, message(&mut rng)),
                Neighbour::Dialled(place) => node.dialled(place).control(now, message(&mut rng)),
            },
            6 | 7 => {
                let chunk = chunk(&mut rng);
                node.place(now, who, &chunk);
                if let Some(taken) = node.stored(now, who, &chunk, rng.chance(0.9)) {
                    assert!(taken.mean || taken.weight == 0.25);
                    assert!(taken.round >= node.round());
                    assert!(taken.fresh.iter().all(|range| range.end <= 160), "within the model");
                    for range in taken.fresh {
                        let (peer, round, ok) = (taken.peer, taken.round, rng.chance(0.9));
                        if taken.mean {
                            node.mean_kept(now, peer, round, &[range], ok);
                        } else {
                            node.folded(now, peer, round, &[range], ok);
                        }
                    }
                }
            }
            8 => match who {
                Neighbour::Link(link) if rng.chance(0.1) => node.closed(now, link, "gone"),
                Neighbour::Dialled(place) if rng.chance(0.1) => node.dialled(place).closed(now, "gone"),
                Neighbour::Link(link) => node.sent(now, link, number(&mut rng), Err("lost".into())),
                Neighbour::Dialled(place) => {
                    node.dialled(place).sent(now, number(&mut rng), Err("lost".into()))
                }
            },
            9 => node.timeout(now),
            10 => (0..4).for_each(|place| node.dialled(place).timeout(now)),
            _ => {
                node.hush();
                // A call in the wrong order returns an error, and nothing changes.
                let next = node.round().saturating_add(1);
                _ = node.begin(now, next, &weights, None, None);
                let round = node.round();
                _ = node.ready(now, round);
            }
        }
        while let Some((round, range)) = node.due() {
            assert!(range.end <= 160 && round == node.round());
            node.averaged(now, round, range, rng.chance(0.9));
        }
        for place in 0..4 {
            while node.dialled(place).poll_action().is_some() {}
            if rng.chance(0.2) {
                node.dialled(place).proven(now, None);
            }
        }
        while let Some(action) = node.poll_action() {
            if let thalweg_proto::Action::Policy(thalweg_proto::NodeStep::Mix(mixing)) = action {
                assert_eq!(mixing.round, node.round());
                mixes += 1;
                let portions = node.portions();
                assert!(portions.iter().all(|portion| portion.ranges.bytes() <= 160));
                assert!(portions.iter().map(|portion| portion.weight).sum::<f64>() <= 1.0);
                let exchanges = node.mixed();
                assert_eq!(exchanges.len(), 3);
                assert!(exchanges.iter().all(|e| e.bytes <= e.expected));
                done += 1;
            }
        }
    }
    assert_eq!(mixes, done);
    done
}

#[test]
fn senseless_messages_do_no_harm() {
    let mut done = 0;
    for seed in 0..60 {
        for waiting in [Waiting::All, Waiting::None, Waiting::FirstChunk(50 * MS), Waiting::Deadline(None)] {
            done += play(seed, waiting);
        }
    }
    assert!(done > 500, "iterations end all the same: {done}");
}
