//! Random valid messages, layouts and frames.

use serde_json::json;
use thalweg_wire::control::{
    Challenge, Content, Control, Hello, Holding, Interval, Parcel, Purpose, Refusal, Tracked, Welcome,
    VERSIONS,
};
use thalweg_wire::{Allowance, ChunkHeader, Dtype, FrameHeader, Layout, LayoutHash, Ranges, TensorSpec};

use crate::rng::Rng;

pub fn ranges(rng: &mut Rng) -> Ranges {
    (0..rng.below(12)).map(|_| rng.range()).collect()
}

/// An answer of a node of a tree, as JSON.
pub fn tree_answer(rng: &mut Rng) -> Vec<u8> {
    let names = |rng: &mut Rng| (0..rng.below(4)).map(|_| rng.text(12)).collect::<Vec<_>>();
    let participants = names(rng).into_iter().map(|client| {
        let state = ["whole", "partial", "lost", "late"][rng.below(4)];
        json!({ "client": client, "state": state, "samples": rng.below(1000) })
    });
    let participants = participants.collect::<Vec<_>>();
    let outcome = json!({ "round": rng.below(9), "participants": participants, "failure": null });
    let answer = match rng.below(5) {
        0 => json!({ "clients": names(rng) }),
        1 => json!({ "outcome": outcome, "held": rng.below(2) == 1, "clients": names(rng) }),
        2 => json!({ "refused": rng.text(20) }),
        3 => json!({ "fold": { "uncovered_bytes": rng.below(9) }, "done": 1.5 }),
        _ => json!({ "has": names(rng) }),
    };
    answer.to_string().into_bytes()
}

pub fn layout(rng: &mut Rng) -> Layout {
    let tensors = (0..rng.below(6)).map(|index| {
        let shape = (0..rng.below(5)).map(|_| rng.below(40) as u64).collect();
        (format!("{index}.{}", rng.text(12)), Dtype::ALL[rng.below(Dtype::ALL.len())], shape)
    });
    Layout::pack(tensors.collect::<Vec<_>>()).expect("small tensors make a layout")
}

fn holding(rng: &mut Rng) -> Holding {
    let round = rng.any() as u32;
    match rng.below(3) {
        0 => Holding::Nothing,
        1 => Holding::Model { round, holes: ranges(rng) },
        _ => Holding::Round { round },
    }
}

fn hello(rng: &mut Rng) -> Hello {
    let some = |rng: &mut Rng| rng.below(2) == 1;
    Hello {
        version: rng.any() as u16,
        name: rng.text(40),
        instance: rng.any(),
        nonce: rng.bytes(),
        proof: some(rng).then(|| Box::new(std::array::from_fn(|_| rng.bytes()))),
        layout: some(rng).then(|| LayoutHash(rng.any())),
        holding: holding(rng),
        clock: rng.number(),
        purpose: if some(rng) { Purpose::Tasks } else { Purpose::Rounds },
    }
}

fn parcel(rng: &mut Rng) -> Parcel {
    let some = |rng: &mut Rng| rng.below(2) == 1;
    let content = match rng.below(5) {
        0 => Content::Nothing,
        1 => Content::Whole(LayoutHash(rng.any())),
        2 => Content::Subset((0..rng.below(9)).map(|_| rng.any() as u32).collect()),
        3 => Content::Tracked(Tracked {
            layout: LayoutHash(rng.any()),
            is_difference: some(rng),
            checksum: rng.any() as u32,
        }),
        _ => Content::Tensors(layout(rng)),
    };
    Parcel {
        number: rng.any() as u32,
        pushed: some(rng),
        head: rng.text(80).into_bytes(),
        content,
        same_as: some(rng).then(|| rng.any() as u32),
        weight: rng.number() as f64 / 8.0,
        deadline: some(rng).then(|| rng.number()),
    }
}

/// A random message. Have, Forward, Elsewhere, Others and Counted are never drawn.
pub fn control(rng: &mut Rng) -> Control {
    let (round, clock) = (rng.any() as u32, rng.number());
    let interval = Interval { start: rng.number(), end: rng.number() };
    match rng.below(19) {
        0 => {
            let (nonce, token) = (rng.bytes(), rng.below(2) == 1);
            Control::Challenge(Challenge { versions: VERSIONS, nonce, token, clock })
        }
        1 => Control::Hello(hello(rng)),
        2 => {
            let (sender, job, layout) = (round, rng.any(), layout(rng));
            let (chunk, heartbeat, liveness) = (rng.any() as u32, rng.number(), rng.number());
            Control::Welcome(Welcome {
                sender,
                job,
                layout,
                chunk,
                heartbeat,
                liveness,
                stand_in: None,
                spread: Some(sender.into()),
                allowances: (0..3)
                    .map(|tensor| Allowance { tensor, budget: chunk, refuse: sender })
                    .collect(),
            })
        }
        3 => Control::Refused { code: Refusal::Authentication, reason: rng.text(80) },
        4 => Control::End { parcel: round, sent: interval },
        5 | 6 => Control::Grant { parcel: round, wanted: ranges(rng) },
        7 => Control::Received {
            parcel: round,
            received: interval,
            duplicates: rng.number(),
            missing: rng.number(),
        },
        8 | 9 => Control::Offer(parcel(rng)),
        10 => Control::Accepted { parcel: round },
        11 => Control::Rejected { parcel: round, reason: rng.text(80) },
        12 => Control::Closed { parcel: round },
        13 => Control::Idle,
        14 => Control::Ping { clock, received: rng.number() },
        15 => Control::Pong { clock },
        16 => Control::Layout(layout(rng)),
        17 => {
            let spec = |rng: &mut Rng| TensorSpec {
                dtype: Dtype::ALL[rng.below(Dtype::ALL.len())],
                shape: (0..rng.below(17)).map(|_| rng.number()).collect(),
            };
            let spec = (rng.below(3) > 0).then(|| spec(rng));
            Control::Differs { tensor: format!("t{}", rng.text(40)), spec }
        }
        _ => Control::Bye { reason: rng.text(80) },
    }
}

/// A complete frame around `payload`.
pub fn frame(rng: &mut Rng, payload: &[u8], control: bool) -> Vec<u8> {
    let header = if control {
        FrameHeader::control(payload)
    } else {
        let (round, sender, layout) = (rng.any() as u32, rng.any() as u32, LayoutHash(rng.any()));
        let (job, offset, length) = (rng.any(), rng.number(), payload.len() as u32);
        let chunk = ChunkHeader { job, round, sender, layout, offset, length };
        FrameHeader::chunk(chunk, thalweg_wire::checksum(payload))
    };
    [&header.encode()[..], payload].concat()
}
