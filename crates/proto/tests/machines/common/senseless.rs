//! Random well-formed messages and chunks, most of them nearly valid.

use thalweg_wire::control::{
    Challenge, Content, Control, Hello, Holding, Interval, Parcel, Purpose, Refusal, Tracked, Welcome,
    VERSIONS,
};
use thalweg_wire::{ChunkHeader, Dtype, Layout, LayoutHash, Range, Ranges, TensorSpec};

use super::{Rng, JOB};

const CHUNK: u64 = 512;

pub fn range(rng: &mut Rng, total: u64) -> Range {
    match rng.below(12) {
        0 => Range::new(rng.next(), rng.next()),
        1 => Range::new(total, total + CHUNK),
        _ => {
            let start = rng.below(total / CHUNK + 1) * CHUNK + rng.below(2) * rng.below(CHUNK);
            Range::new(start, (start + rng.below(2 * CHUNK)).min(total))
        }
    }
}

pub fn ranges(rng: &mut Rng, total: u64) -> Ranges {
    (0..rng.below(4)).map(|_| range(rng, total)).collect()
}

pub fn interval(rng: &mut Rng) -> Interval {
    let any = |rng: &mut Rng| if rng.chance(0.1) { rng.next() } else { rng.below(100_000_000) };
    Interval { start: any(rng), end: any(rng) }
}

pub fn chunk(rng: &mut Rng, layout: &Layout) -> ChunkHeader {
    let range = range(rng, layout.bytes());
    let hash = if rng.chance(0.05) { LayoutHash(1) } else { layout.hash() };
    let job = if rng.chance(0.05) { 1 } else { JOB };
    let (round, sender) = (rng.below(4) as u32, rng.below(5) as u32);
    ChunkHeader { job, round, sender, layout: hash, offset: range.start, length: range.len() as u32 }
}

pub fn hello(rng: &mut Rng, layout: &Layout) -> Hello {
    let round = rng.below(4) as u32;
    let holding = match rng.below(4) {
        0 => Holding::Model { round, holes: ranges(rng, layout.bytes()) },
        1 => Holding::Round { round },
        _ => Holding::Nothing,
    };
    Hello {
        version: if rng.chance(0.03) { VERSIONS.1 + 1 } else { VERSIONS.1 },
        name: format!("c{}", rng.below(4)),
        instance: rng.below(2),
        nonce: [0; 32],
        proof: None,
        layout: if rng.chance(0.03) { Some(LayoutHash(1)) } else { None },
        holding,
        clock: if rng.chance(0.1) { rng.next() } else { rng.below(100_000_000) },
        purpose: if rng.chance(0.03) { Purpose::Tasks } else { Purpose::Rounds },
    }
}

/// A message that a client may send, and rarely one that only a server may.
pub fn from_client(rng: &mut Rng, layout: &Layout) -> Control {
    let kinds = if rng.chance(0.03) { 27 } else { 18 };
    let kind = rng.below(kinds);
    control(rng, layout, kind)
}

/// A message that a server may send, and sometimes one that only a client may.
pub fn from_server(rng: &mut Rng, layout: &Layout) -> Control {
    let kind = if rng.chance(0.1) { rng.below(27) } else { 15 + rng.below(12) };
    control(rng, layout, kind)
}

fn control(rng: &mut Rng, layout: &Layout, kind: u64) -> Control {
    let round = rng.below(4) as u32;
    let text = || "words".to_string();
    let total = layout.bytes();
    match kind {
        0..=4 => Control::Hello(hello(rng, layout)),
        5..=8 => offer(rng, layout, round),
        9..=11 => Control::End { parcel: round, sent: interval(rng) },
        12 => Control::Received {
            parcel: round,
            received: interval(rng),
            duplicates: rng.below(9),
            missing: rng.next(),
        },
        13 => Control::Grant { parcel: round, wanted: ranges(rng, total) },
        14 if rng.chance(0.2) => {
            let tensor = ["a", "b", "x"][rng.below(3) as usize].to_string();
            let spec = TensorSpec { dtype: Dtype::F32, shape: vec![rng.below(400)] };
            Control::Differs { tensor, spec: rng.chance(0.7).then_some(spec) }
        }
        14 => Control::Idle,
        15 => Control::Ping { clock: rng.next(), received: rng.next() },
        16 => Control::Pong { clock: rng.next() },
        17 | 23 if rng.chance(0.8) => Control::Pong { clock: 0 }, // rare: ends a link or a client
        17 => Control::Bye { reason: text() },
        18 => offer(rng, layout, round),
        19 => Control::Grant { parcel: round, wanted: ranges(rng, total) },
        20 => Control::Accepted { parcel: round },
        21 => Control::Rejected { parcel: round, reason: text() },
        22 => Control::Closed { parcel: round },
        23 => {
            let code = if rng.chance(0.95) { Refusal::Liveness } else { Refusal::Job };
            Control::Refused { code, reason: text() }
        }
        24 => challenge(rng),
        25 if rng.chance(0.2) => Control::Layout(Layout::default()),
        _ => welcome(rng, layout),
    }
}

fn offer(rng: &mut Rng, layout: &Layout, number: u32) -> Control {
    let hash = if rng.chance(0.1) { LayoutHash(1) } else { layout.hash() };
    let content = match rng.below(20) {
        0 => Content::Nothing,
        1 => Content::Subset(vec![rng.below(4) as u32]),
        2 => Content::Tensors(layout.clone()),
        3..=6 => {
            let (is_difference, checksum) = (rng.chance(0.5), rng.below(2) as u32);
            Content::Tracked(Tracked { layout: hash, is_difference, checksum })
        }
        _ => Content::Whole(hash),
    };
    Control::Offer(Parcel {
        number,
        pushed: rng.chance(0.5),
        head: b"{}".to_vec(),
        content,
        same_as: rng.chance(0.1).then(|| rng.below(4) as u32),
        weight: rng.below(5) as f64,
        deadline: None,
    })
}

pub fn challenge(rng: &mut Rng) -> Control {
    Control::Challenge(Challenge { versions: VERSIONS, nonce: [1; 32], token: false, clock: rng.next() })
}

pub fn welcome(rng: &mut Rng, layout: &Layout) -> Control {
    let layout = layout.clone();
    let (heartbeat, liveness) = (rng.below(3) * 1_000_000, rng.below(3) * 4_000_000);
    Control::Welcome(Welcome {
        sender: 1,
        job: JOB,
        layout,
        chunk: 512,
        heartbeat,
        liveness,
        stand_in: None,
        spread: None,
        allowances: Vec::new(),
    })
}
