//! Valid messages, layouts and frames, by chance.

use thalweg_wire::control::{
    Challenge, Content, Control, Hello, Holding, Interval, Parcel, Purpose, Refusal, Welcome, VERSIONS,
};
use thalweg_wire::{Allowance, ChunkHeader, Dtype, FrameHeader, Layout, LayoutHash, Ranges, TensorSpec};

use crate::dice::Dice;

pub fn ranges(dice: &mut Dice) -> Ranges {
    (0..dice.below(12)).map(|_| dice.range()).collect()
}

pub fn layout(dice: &mut Dice) -> Layout {
    let tensors = (0..dice.below(6)).map(|index| {
        let shape = (0..dice.below(5)).map(|_| dice.below(40) as u64).collect();
        (format!("{index}.{}", dice.text(12)), Dtype::ALL[dice.below(Dtype::ALL.len())], shape)
    });
    Layout::pack(tensors.collect::<Vec<_>>()).expect("small tensors make a layout")
}

fn holding(dice: &mut Dice) -> Holding {
    let round = dice.any() as u32;
    match dice.below(3) {
        0 => Holding::Nothing,
        1 => Holding::Model { round, holes: ranges(dice) },
        _ => Holding::Round { round },
    }
}

fn hello(dice: &mut Dice) -> Hello {
    let some = |dice: &mut Dice| dice.below(2) == 1;
    Hello {
        version: dice.any() as u16,
        name: dice.text(40),
        instance: dice.any(),
        nonce: dice.bytes(),
        proof: some(dice).then(|| Box::new(std::array::from_fn(|_| dice.bytes()))),
        layout: some(dice).then(|| LayoutHash(dice.any())),
        holding: holding(dice),
        clock: dice.number(),
        purpose: if some(dice) { Purpose::Tasks } else { Purpose::Rounds },
    }
}

fn parcel(dice: &mut Dice) -> Parcel {
    let some = |dice: &mut Dice| dice.below(2) == 1;
    let content = match dice.below(4) {
        0 => Content::Nothing,
        1 => Content::Whole(LayoutHash(dice.any())),
        2 => Content::Subset((0..dice.below(9)).map(|_| dice.any() as u32).collect()),
        _ => Content::Tensors(layout(dice)),
    };
    Parcel {
        number: dice.any() as u32,
        pushed: some(dice),
        head: dice.text(80).into_bytes(),
        content,
        same_as: some(dice).then(|| dice.any() as u32),
        weight: dice.number() as f64 / 8.0,
        deadline: some(dice).then(|| dice.number()),
    }
}

/// One of every kind of message, with chance in its fields.
pub fn control(dice: &mut Dice) -> Control {
    let (round, clock) = (dice.any() as u32, dice.number());
    let interval = Interval { start: dice.number(), end: dice.number() };
    match dice.below(19) {
        0 => {
            let (nonce, token) = (dice.bytes(), dice.below(2) == 1);
            Control::Challenge(Challenge { versions: VERSIONS, nonce, token, clock })
        }
        1 => Control::Hello(hello(dice)),
        2 => {
            let (sender, job, layout) = (round, dice.any(), layout(dice));
            let (chunk, heartbeat, liveness) = (dice.any() as u32, dice.number(), dice.number());
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
        3 => Control::Refused { code: Refusal::Authentication, reason: dice.text(80) },
        4 => Control::End { parcel: round, sent: interval },
        5 | 6 => Control::Grant { parcel: round, wanted: ranges(dice) },
        7 => Control::Received {
            parcel: round,
            received: interval,
            duplicates: dice.number(),
            missing: dice.number(),
        },
        8 | 9 => Control::Offer(parcel(dice)),
        10 => Control::Accepted { parcel: round },
        11 => Control::Rejected { parcel: round, reason: dice.text(80) },
        12 => Control::Closed { parcel: round },
        13 => Control::Idle,
        14 => Control::Ping { clock, received: dice.number() },
        15 => Control::Pong { clock },
        16 => Control::Layout(layout(dice)),
        17 => {
            let spec = |dice: &mut Dice| TensorSpec {
                dtype: Dtype::ALL[dice.below(Dtype::ALL.len())],
                shape: (0..dice.below(17)).map(|_| dice.number()).collect(),
            };
            let spec = (dice.below(3) > 0).then(|| spec(dice));
            Control::Differs { tensor: format!("t{}", dice.text(40)), spec }
        }
        _ => Control::Bye { reason: dice.text(80) },
    }
}

/// A whole frame around `payload`.
pub fn frame(dice: &mut Dice, payload: &[u8], control: bool) -> Vec<u8> {
    let header = if control {
        FrameHeader::control(payload)
    } else {
        let (round, sender, layout) = (dice.any() as u32, dice.any() as u32, LayoutHash(dice.any()));
        let (job, offset, length) = (dice.any(), dice.number(), payload.len() as u32);
        let chunk = ChunkHeader { job, round, sender, layout, offset, length };
        FrameHeader::chunk(chunk, thalweg_wire::checksum(payload))
    };
    [&header.encode()[..], payload].concat()
}
