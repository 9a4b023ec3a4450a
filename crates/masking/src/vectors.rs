//! Runs the test vectors that both back ends of masking must pass (tests/vectors). The crate ebpf tests the
//! eBPF programs with them. The crate unifl, which follows frames, runs the vectors of frames.

use serde_json::Value;

use super::segment::{Offload, Segment};
use super::stamps::{AckContent, Stamps};
use super::Time;

fn cases(vectors: &str) -> (Value, Vec<Value>) {
    let vectors: Value = serde_json::from_str(vectors).unwrap();
    let cases = vectors["cases"].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    (vectors, cases)
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = (0..hex.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn facts(segment: &Segment) -> Value {
    let (options, payload) = (&segment.options, &segment.payload);
    let blocks: Vec<(u32, u32)> = options.blocks.iter().flatten().copied().collect();
    serde_json::json!({
        "sequence": segment.sequence,
        "acknowledgement": segment.acknowledgement,
        "flags": segment.flags,
        "window": segment.window,
        "payload": [payload.start, payload.end],
        "stamps": options.stamps,
        "sack": blocks,
        "scale": options.scale.unwrap_or_default(),
        "largest": options.segment.unwrap_or_default(),
    })
}

#[test]
fn segments_are_read_as_the_vectors_say() {
    let (_, cases) = cases(include_str!("../tests/vectors/segments.json"));
    for case in cases {
        let packet = bytes(case["packet"].as_str().unwrap());
        let read = Segment::read(&packet, Offload::default());
        let read = read.map_or(Value::Null, |segment| facts(&segment));
        assert_eq!(read, case["expect"], "{}", case["name"]);
    }
}

#[test]
fn echoes_are_chosen_as_the_vectors_say() {
    let (vectors, cases) = cases(include_str!("../tests/vectors/echoes.json"));
    let number = |name: &str| vectors[name].as_u64().unwrap();
    let trip = Time::from_millis(number("trip"));
    let (oldest, at_the_end) = (number("oldest_echo") as u32, number("oldest_at_the_end") as u32);
    for case in cases {
        let mut stamps = Stamps::new(Time::ZERO, 0, case["first"].as_u64().unwrap() as u32);
        for step in case["steps"].as_array().unwrap() {
            let of = |name: &str| -> Option<Vec<u64>> {
                let values = step.get(name)?.as_array().unwrap().iter();
                Some(values.map(|value| value.as_u64().unwrap()).collect())
            };
            let is_set = |name: &str| step[name].as_bool().unwrap_or(false);
            if let Some(data) = of("data").or_else(|| of("fills")) {
                let (now, clocks) = (Time::from_millis(data[0]), (data[1] as u32, data[2] as u32));
                if stamps.repairing() {
                    stamps.held(now, clocks, data[3], step.get("fills").is_some(), oldest);
                } else {
                    stamps.arrived(now, clocks.0, false);
                }
            } else if let Some(report) = of("told") {
                stamps.hold(Time::from_millis(report[0]), report[1], report[2], trip);
            } else {
                let ack = of("ack").unwrap();
                let (acknowledged, highest) = (ack[1], ack[2]);
                let (holding, goes_on) = (is_set("missing"), is_set("goes_on"));
                let content = AckContent { acknowledged, highest, holding, goes_on, oldest: at_the_end };
                let echo = stamps.echoed(Time::from_millis(ack[0]), content);
                assert_eq!(u64::from(echo), step["echo"].as_u64().unwrap(), "{}: {step}", case["name"]);
                assert_eq!(stamps.repairing(), !is_set("ends"), "{}: {step}", case["name"]);
            }
        }
    }
}
