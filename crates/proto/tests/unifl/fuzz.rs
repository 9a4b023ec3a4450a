//! Damaged packets at an endpoint in every state: no panic, bounded tables, and nothing that breaks `App`'s rules.
//!
//! `THALWEG_FUZZ_FRAMES` says how many packets (default: 100,000), `THALWEG_FUZZ_SEED` which.

use std::collections::BTreeMap;

use thalweg_proto::emulation::Dice;
use thalweg_proto::unifl::{Checksum, Config, Endpoint, FlowId, Offload, Policy, What};
use thalweg_wire::Ranges;

use super::allocator;
use super::client::{config, syn, MS};
use super::wire::*;

/// More than the tables of these few flows ever hold.
const MEMORY: usize = 4 << 20;

fn from_environment(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().expect("THALWEG_FUZZ_FRAMES and THALWEG_FUZZ_SEED are plain numbers")
}

fn bounds() -> Config {
    let mut policy = Policy::lossy();
    policy.reliable = 0.3;
    let (gaps, masks) = (64, 64);
    Config {
        policy,
        gaps,
        masks,
        flows: 20,
        half_open: 5,
        resets: 8,
        idle: Some(5000 * MS),
        time_wait: 500 * MS,
        ..config()
    }
}

/// What the endpoint last said to each port, from which plausible segments are made.
type Said = BTreeMap<u16, Seg>;

fn plausible(dice: &mut Dice, said: &Said, now: u32) -> Seg {
    let port = 5000 + (dice.draw() % 12) as u16;
    let Some(last) = said.get(&port).filter(|_| !dice.hits(0.1)) else {
        return Seg { port, seq: dice.draw() as u32, v6: port.is_multiple_of(2), ..syn() };
    };
    let near = |dice: &mut Dice, n: u32| match dice.up_to(8) {
        1 => dice.draw() as u32,
        2 => n.wrapping_add(dice.up_to(100_000) as u32),
        3 => n.wrapping_sub(dice.up_to(100_000) as u32),
        _ => n,
    };
    let flags = [ACK, ACK, ACK, ACK, ACK | FIN, RST, RST | ACK, SYN, SYN | ACK, FIN, 0, 0xff];
    let length = [0, 1, 10, 1448, 9000][dice.draw() as usize % 5];
    let back = last.seq.wrapping_add(last.payload.len() as u32 + u32::from(last.flags & (SYN | FIN) > 0));
    let echo = last.stamps.map_or(0, |(value, _)| value);
    Seg {
        v6: last.v6,
        port,
        host: 2,
        seq: near(dice, last.ack),
        ack: near(dice, back),
        flags: flags[dice.draw() as usize % flags.len()],
        window: dice.draw() as u16,
        stamps: Some((near(dice, now), near(dice, echo))).filter(|_| !dice.hits(0.1)),
        payload: vec![0xaa; length],
        ce: dice.hits(0.1),
        ..Seg::default()
    }
}

fn damage(dice: &mut Dice, packet: &mut Vec<u8>) {
    for _ in 0..dice.draw() % 4 {
        let at = dice.draw() as usize % packet.len().max(1);
        match dice.up_to(5) {
            1 => packet.truncate(at),
            2 => packet.insert(at, dice.draw() as u8),
            3 if !packet.is_empty() => packet[at] = dice.draw() as u8,
            4 => packet.extend((0..dice.up_to(20)).map(|i| i as u8)),
            _ => {
                // Most of what matters is in the first bytes.
                let at = at % 80;
                if let Some(byte) = packet.get_mut(at) {
                    *byte ^= 1 << (dice.draw() % 8);
                }
            }
        }
    }
}

#[test]
fn damaged_packets_do_no_harm() {
    let count = from_environment("THALWEG_FUZZ_FRAMES", 100_000);
    let mut dice = Dice::new(&[from_environment("THALWEG_FUZZ_SEED", 1)]);
    let mut seen = [0_u64; 5];
    let (peak, counters) = allocator::peak(|| {
        let mut endpoint = Endpoint::new(bounds(), [3, 4]);
        let mut said = Said::new();
        let mut live: BTreeMap<FlowId, (Ranges, u64)> = BTreeMap::new();
        let mut now = 1000 * MS;
        for _ in 0..count {
            let mut packet = plausible(&mut dice, &said, now.as_millis() as u32).encode();
            damage(&mut dice, &mut packet);
            let checksum = if dice.hits(0.8) { Checksum::Partial } else { Checksum::Complete };
            let segment = if dice.hits(0.5) { 0 } else { dice.draw() as u16 };
            let mut turn = endpoint.handle_packet(now, &packet, Offload { checksum, segment });
            let mut events = Vec::new();
            while let Some(event) = turn.poll_event() {
                events.push((event.flow, see(&mut live, event.flow, &event.what, &mut seen)));
            }
            drop(turn);
            if dice.hits(0.1) {
                now += MS * dice.up_to(400) as u32;
                endpoint.handle_timeout(now);
                assert!(endpoint.poll_timeout().is_none_or(|at| at > now), "what was due is done");
            }
            while let Some(event) = endpoint.poll_event() {
                see(&mut live, event.flow, &event.what, &mut seen);
            }
            let flow = live.keys().nth(dice.draw() as usize % 12).copied();
            match (dice.up_to(300), flow) {
                (1, Some(flow)) => endpoint.close(now, flow),
                (2, Some(flow)) => endpoint.abort(now, flow),
                (3..=9, Some(flow)) => drop(endpoint.send(now, flow, &[7; 3000])),
                _ => {}
            }
            let mut out = Vec::new();
            while endpoint.poll_packet(now, &mut out) {
                let seg = Seg::decode(&out);
                said.insert(seg.port, seg);
            }
            said.retain(|port, seg| (4990..5020).contains(port) && seg.local == PORT);
            assert!(endpoint.flows() <= 20);
            for flow in live.keys() {
                let (gaps, masks) = endpoint.stats(*flow).map_or((0, 0), |stats| stats.tables);
                assert!(gaps <= 64 && masks <= 66, "{gaps} {masks}");
            }
        }
        endpoint.counters()
    });
    println!("{peak} bytes at most, {counters:?}, connected, bytes, holes, finished, ended: {seen:?}");
    assert!(peak < MEMORY, "{peak} bytes");
    let all = [counters.senseless, counters.checksum, counters.forged, counters.outdated, counters.stray];
    assert!(count < 100_000 || all.into_iter().chain(seen).all(|n| n > 20), "{counters:?} {seen:?}");
}

/// No byte twice, no event after the last.
fn see(live: &mut BTreeMap<FlowId, (Ranges, u64)>, flow: FlowId, what: &What<'_>, seen: &mut [u64; 5]) {
    let kind = match what {
        What::Connected(_) => {
            assert!(live.insert(flow, (Ranges::new(), 0)).is_none());
            0
        }
        What::Bytes { offset, bytes, .. } => {
            let range = thalweg_wire::Range::new(*offset, offset + bytes.len() as u64);
            let got = &mut live.get_mut(&flow).expect("connected").0;
            assert_eq!(got.insert(range), [range], "bytes twice");
            1
        }
        What::Hole(hole) => {
            let (got, holes) = live.get_mut(&flow).expect("connected");
            assert_eq!(got.missing_in(*hole), [*hole]);
            *holes += hole.len();
            2
        }
        What::Finished(_) => 3,
        What::Ended(_) => {
            assert!(live.remove(&flow).is_some(), "its last event");
            4
        }
    };
    seen[kind] += 1;
}
