//! Tests of the network without IO, in virtual time.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{fabric, ms, Made, SMALL, SUPER};
use thalweg_lab::{Fabric, LineStatus, Spec};
use thalweg_linkmodel::Shape;

const PAIR: &str = r#""hosts": [{"name": "a"}, {"name": "b"}]"#;

fn pair(shape: &str) -> Fabric {
    fabric(&format!(r#"{{{PAIR}, "links": [{{"name": "l", "a": "a", "b": "b", "ab": {shape}}}]}}"#))
}

/// All arrivals until `until`: time, host and number of segments.
fn run(fabric: &mut Fabric, until: Duration) -> Vec<(Duration, usize, usize)> {
    let mut seen = Vec::new();
    while let Some(due) = fabric.next_due(0).filter(|&due| due <= until) {
        while let Some(arrival) = fabric.output(due, 0) {
            seen.push((due, arrival.host, arrival.packet.segments()));
        }
    }
    seen
}

fn line(fabric: &mut Fabric, link: &str, direction: &str) -> LineStatus {
    let all = fabric.status(ms(0.0));
    all.into_iter().find(|line| line.link == link && line.direction == direction).unwrap()
}

#[test]
fn a_superpacket_goes_whole_where_nothing_stops_it() {
    let mut fabric = pair(r#"{"delay": 0.02}"#);
    fabric.input(ms(1.0), 0, SUPER.packet());
    assert_eq!(run(&mut fabric, ms(100.0)), [(ms(21.0), 1, 44)]);
    let line = line(&mut fabric, "l", "ab");
    assert_eq!(
        (line.counters.packets_in, line.counters.packets_out, line.counters.bytes_out),
        (44, 44, 65_900)
    );
    assert_eq!((line.source.as_str(), line.target.as_str()), ("a", "b"));
}

#[test]
fn a_slow_link_hands_over_no_more_than_a_millisecond_at_once() {
    let mut fabric = pair(r#"{"rate": 100000000}"#);
    fabric.input(ms(0.0), 0, SUPER.packet());
    let seen = run(&mut fabric, ms(100.0));
    // 1500 bytes take 0.12 ms, so at most 9 segments are within 1 ms.
    assert!(seen.iter().all(|(_, _, segments)| *segments <= 9), "{seen:?}");
    assert_eq!(seen.iter().map(|(_, _, segments)| segments).sum::<usize>(), 44);
    let last = seen.last().unwrap().0;
    assert!((last.as_secs_f64() - 65_900.0 * 8.0 / 1e8).abs() < 1e-6, "{last:?}");
}

#[test]
fn losses_cut_a_superpacket_into_the_runs_around_them() {
    let mut fabric = pair(r#"{"loss": 0.1}"#);
    for i in 0..100 {
        fabric.input(ms(f64::from(i)), 0, SUPER.packet());
        run(&mut fabric, ms(f64::from(i)));
    }
    let line = line(&mut fabric, "l", "ab").counters;
    assert_eq!(line.packets_in, 4400);
    assert_eq!(line.packets_out + line.lost, 4400);
    assert!((370..510).contains(&line.lost), "{}", line.lost);
}

#[test]
fn a_full_queue_takes_what_it_can_of_a_superpacket() {
    let mut fabric = pair(r#"{"rate": 12000000, "queue_packets": 10}"#);
    fabric.input(ms(0.0), 0, SUPER.packet());
    assert_eq!(run(&mut fabric, ms(100.0)).iter().map(|(_, _, s)| s).sum::<usize>(), 10);
    let line = line(&mut fabric, "l", "ab").counters;
    assert_eq!((line.queue_drops, line.queue_bytes_max), (34, 15_000));
}

#[test]
fn packets_find_their_way_over_switches_and_share_them() {
    let mut fabric = fabric(
        r#"{"hosts": [{"name": "server"}, {"name": "c1"}, {"name": "c2"}], "switches": ["s"], "links": [
            {"name": "up", "a": "s", "b": "server", "ab": {"rate": 12000000, "delay": 0.001}},
            {"name": "one", "a": "c1", "b": "s", "ab": {"delay": 0.005}},
            {"name": "two", "a": "c2", "b": "s", "ab": {"delay": 0.005}}]}"#,
    );
    fabric.input(ms(0.0), 1, Made { from: 1, to: 0, ..SMALL }.packet());
    fabric.input(ms(0.0), 2, Made { from: 2, to: 0, v6: true, payload: 1428, ..SMALL }.packet());
    fabric.input(ms(0.0), 1, Made { from: 1, to: 2, ..SMALL }.packet());
    let seen = run(&mut fabric, ms(100.0));
    assert_eq!(seen, [(ms(5.0), 2, 1), (ms(7.0), 0, 1), (ms(8.0), 0, 1)]);
    assert_eq!(line(&mut fabric, "up", "ab").counters.packets_out, 2);
}

#[test]
fn what_goes_nowhere_is_counted() {
    let mut fabric = pair("{}");
    fabric.input(ms(0.0), 0, Made { to: 7, ..SMALL }.packet());
    fabric.input(ms(0.0), 0, Made { to: 0, ..SMALL }.packet());
    assert_eq!((run(&mut fabric, ms(10.0)).len(), fabric.astray()), (0, 2));
}

#[test]
fn changes_happen_at_their_time_after_the_start() {
    let mut fabric = fabric(&format!(
        r#"{{{PAIR}, "links": [{{"name": "l", "a": "a", "b": "b"}}], "changes": [
            {{"at": 2, "link": "l", "shape": {{}}}},
            {{"at": 1, "link": "l", "direction": "ab", "shape": {{"down": true}}}}]}}"#
    ));
    let passes = |fabric: &mut Fabric, at: f64| {
        while fabric.output(ms(at), 0).is_some() {}
        fabric.input(ms(at), 0, SMALL.packet());
        run(fabric, ms(at)).len()
    };
    assert_eq!(passes(&mut fabric, 5000.0), 1, "nothing changes before the start");
    fabric.start(ms(6000.0));
    assert_eq!(fabric.next_due(0), Some(ms(7000.0)));
    assert_eq!(passes(&mut fabric, 6999.0), 1);
    assert_eq!(passes(&mut fabric, 7000.0), 0);
    assert_eq!(passes(&mut fabric, 8001.0), 1);
    assert_eq!(line(&mut fabric, "l", "ab").counters.down_drops, 1);
}

#[test]
fn a_running_link_can_be_changed() {
    let mut fabric = pair("{}");
    fabric.set("l", None, &Shape { delay: 0.5, ..Shape::default() }).unwrap();
    assert_eq!(line(&mut fabric, "l", "ba").shape.delay, 0.5);
    let error = fabric.set("m", None, &Shape::default()).unwrap_err().to_string();
    assert!(error.contains("\"m\"") && error.contains("there are l"), "{error}");
    assert!(fabric.set("l", None, &Shape { loss: 7.0, ..Shape::default() }).is_err());
}

#[test]
fn samples_are_those_of_busy_links() {
    let mut fabric = pair(r#"{"rate": 12000000}"#);
    fabric.start(ms(0.0));
    assert_eq!(fabric.next_sample(), None);
    fabric.input(ms(1.0), 0, SUPER.packet());
    assert_eq!(fabric.next_sample(), Some(ms(10.0)));
    fabric.sample(ms(5.0));
    fabric.sample(ms(10.0));
    run(&mut fabric, ms(15.0));
    fabric.sample(ms(20.0));
    let samples = fabric.take_samples();
    assert_eq!(samples.len(), 2);
    let (link, direction, sample) = &samples[0];
    assert_eq!((link.as_str(), *direction, sample.seconds, sample.rate), ("l", "ab", 0.01, Some(12_000_000)));
    assert_eq!(sample.queue_packets, 35);
    assert!(samples[1].2.bytes_out > 0 && samples[1].2.queue_bytes < sample.queue_bytes);
    assert!(fabric.take_samples().is_empty());
}

#[test]
fn a_link_that_is_down_is_sampled_with_a_rate_of_nothing() {
    let down = r#"[{"at": 0.02, "link": "l", "shape": {"rate": 12000000, "down": true}}]"#;
    let link = r#"{"name": "l", "a": "a", "b": "b", "ab": {"rate": 12000000}, "ba": {"rate": 12000000}}"#;
    let mut fabric = fabric(&format!(r#"{{{PAIR}, "links": [{link}], "changes": {down}}}"#));
    fabric.start(ms(0.0));
    run(&mut fabric, ms(20.0));
    assert_eq!(fabric.next_sample(), Some(ms(10.0)), "nothing was sent, and yet there is something to tell");
    fabric.sample(ms(30.0));
    let rates: Vec<_> =
        fabric.take_samples().into_iter().map(|(_, way, s)| (way, s.rate, s.bytes_out)).collect();
    assert_eq!(rates, [("ab", Some(0), 0), ("ba", Some(0), 0)]);
    fabric.set("l", None, &Shape { rate: Some(5_000_000), ..Shape::default() }).unwrap();
    fabric.sample(ms(40.0));
    assert!(fabric.take_samples().iter().all(|(_, _, s)| s.rate == Some(5_000_000)));
}

#[test]
fn a_seed_repeats_a_network() {
    let outcome = |seed: u64| {
        let shape = r#"{"delay": 0.01, "jitter": 0.005, "loss": 0.2, "duplicate": 0.1, "reorder": 0.1}"#;
        let link = format!(r#"{{"name": "l", "a": "a", "b": "b", "ab": {shape}}}"#);
        let mut fabric = fabric(&format!(r#"{{"seed": {seed}, {PAIR}, "links": [{link}]}}"#));
        (0..50).for_each(|i| fabric.input(ms(f64::from(i)), 0, SUPER.packet()));
        run(&mut fabric, ms(1000.0))
    };
    assert_eq!(outcome(1), outcome(1));
    assert_ne!(outcome(1), outcome(2));
}

fn limited(rate: u64, burst: u32, queue: u32) -> String {
    format!(
        r#"{{"links": [], "hosts": [{{"name": "a", "egress":
            {{"rate": {rate}, "burst_bytes": {burst}, "queue_bytes": {queue}}}}}]}}"#
    )
}

#[test]
fn impossible_labs_are_refused() {
    let link = r#"{"name": "l", "a": "a", "b": "b"}"#;
    for (json, word) in [
        ("{".to_owned(), "JSON"),
        (r#"{"hosts": [], "links": []}"#.into(), "0 hosts"),
        (r#"{"hosts": [{"name": "a"}, {"name": "a"}], "links": []}"#.into(), "\"a\""),
        (r#"{"hosts": [{"name": "a/b"}], "links": []}"#.into(), "a/b"),
        (format!(r#"{{{PAIR}, "links": [{link}, {link}]}}"#), "two links"),
        (format!(r#"{{{PAIR}, "links": [{{"name": "l", "a": "a", "b": "z"}}]}}"#), "\"z\""),
        (format!(r#"{{{PAIR}, "links": [{{"name": "l", "a": "a", "b": "a"}}]}}"#), "itself"),
        (
            format!(r#"{{{PAIR}, "links": [{{"name": "l", "a": "a", "b": "b", "ab": {{"loss": 2}}}}]}}"#),
            "loss is 2",
        ),
        (format!(r#"{{{PAIR}, "mtu": 10, "links": []}}"#), "MTU of 10"),
        (limited(0, 1600, 3000), "0 bit/s"),
        (limited(8000, 1499, 3000), "burst of 1499"),
        (limited(8000, 1600, 1599), "queue of 1599"),
        (
            format!(r#"{{{PAIR}, "links": [{link}], "changes": [{{"at": 1, "link": "x", "shape": {{}}}}]}}"#),
            "\"x\"",
        ),
        (
            format!(
                r#"{{{PAIR}, "links": [{link}], "changes": [{{"at": -1, "link": "l", "shape": {{}}}}]}}"#
            ),
            "-1 sec",
        ),
    ] {
        let error = Spec::parse(&json).unwrap_err().to_string();
        assert!(error.contains(word), "{json}: {error}");
    }
}
