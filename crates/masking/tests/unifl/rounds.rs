//! Rounds of many senders on one path, and many flows at one endpoint.

use std::fmt::Write;

use thalweg_linkmodel::Shape;
use thalweg_masking::Time;
use thalweg_masking::{Config, Policy, Rate};
use thalweg_rng::Rng;

use super::allocator;
use super::congestion::Kind;
use super::recorded::assert_recorded;
use super::sender::{Sender, FIRST};
use super::table;
use super::world::World;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/unifl_rounds.txt");
const INCAST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/unifl_incast.txt");
const EACH: u64 = 3 << 20;
const SHARED: u64 = 60_000_000;

/// Jain's fairness index: 1 for equal rates, 1/n if one flow has all.
fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    sum * sum / (rates.len() as f64 * rates.iter().map(|r| r * r).sum::<f64>())
}

/// Eight senders of 50 Mbit/s each, with an RTT of 40 ms, share a link of 60 Mbit/s. Returns the slowest time
/// as a multiple of the ideal, Jain's index of what had arrived when the first sender was done, and what
/// queues dropped.
fn round(mixed: bool, group: bool, loss: f64, seed: u64) -> (f64, f64, u64, f64) {
    let kind = |i: u16| if mixed && i.is_multiple_of(2) { Kind::Reno } else { Kind::Cubic };
    let senders = (0..8).map(|i| Sender::new(FIRST + i, kind(i), EACH)).collect();
    let queue = Some((SHARED as f64 / 8.0 * 0.04) as u64);
    let shared = Shape { rate: Some(SHARED), queue_bytes: queue, ..Shape::default() };
    let config = Config { flows: 8, ..table::config(0.0) };
    let mut world = World::new(config, senders, &table::link(40.0, loss), Some(shared), seed);
    if group {
        world = world.grouped();
    }
    world.run(Time::from_secs(60));
    assert!(world.apps.iter().all(|app| app.finished == Some(EACH)), "everybody finishes");
    let ends: Vec<f64> = world.ends.iter().flatten().map(Time::as_secs_f64).collect();
    assert_eq!(ends.len(), 8);
    let rates: Vec<f64> = ends.iter().map(|end| EACH as f64 / end).collect();
    let jain = jain(&rates);
    let ideal = (8 * EACH) as f64 * 8.0 / (SHARED as f64 * 1448.0 / 1500.0);
    let missing: u64 = world.apps.iter().map(|app| app.missing()).sum();
    (ends.iter().copied().fold(0.0, f64::max) / ideal, jain, world.full, missing as f64 / (8 * EACH) as f64)
}

#[test]
fn rounds_are_as_recorded_and_fair() {
    let mut now = String::from(
        "Eight updates of 3 MiB at once, 50 Mbit/s and 40 ms each, over one link of 60 Mbit/s with a queue of 40 ms.\n\
         Round: the slowest one's time over the ideal. Jain: of the senders' rates.\n\n\
         senders  group loss %  round   jain holes %   full\n",
    );
    for mixed in [false, true] {
        for group in [false, true] {
            for loss in [0.0, 0.001, 0.01] {
                let (round, jain, full, missing) = round(mixed, group, loss, 11);
                let senders = if mixed { "mixed" } else { "cubic" };
                let (loss, missing) = (loss * 100.0, missing * 100.0);
                writeln!(
                    now,
                    "{senders:>7} {group:>6} {loss:>6.1} {round:>6.3} {jain:>6.3} {missing:>7.3} {full:>6}"
                )
                .expect("a string grows");
                assert!(round < 1.25 && jain > 0.9, "{now}");
            }
        }
    }
    assert_recorded(TABLE, &now);
}

/// Number of flows on one endpoint.
const FLOWS: u16 = 1000;

/// Flows in memory, entries of their tables, and bytes that the window allows beyond what is acknowledged.
fn held(world: &World) -> (usize, usize, usize, u64) {
    let stats = world.apps.iter().filter_map(|app| world.endpoint.stats(app.flow?));
    stats.fold((world.endpoint.flows(), 0, 0, 0), |(flows, gaps, masks, promised), stats| {
        assert_eq!(stats.unacknowledged, 0, "nothing is on the way back");
        let (more_gaps, more_masks) = stats.tables;
        let room = stats.right_edge - stats.acknowledged;
        (flows, gaps + more_gaps, masks + more_masks, promised + room)
    })
}

/// A thousand senders of 50 Mbit/s each, with an RTT of 40 ms, begin within 200 ms. They share a link of 1
/// Gbit/s with a queue of 60 ms. Segments are small, so that each flow has many. Returns the world, when each
/// sender began, and the most that the endpoint held.
fn thousand(each: u64) -> (World, Vec<f64>, (usize, usize, usize, u64)) {
    let mut rng = Rng::new(&[FLOWS.into(), 1]);
    let starts: Vec<f64> = (0..FLOWS).map(|_| 0.2 * rng.unit()).collect();
    let sender = |(i, &start): (u16, &f64)| {
        let kind = if i.is_multiple_of(2) { Kind::Reno } else { Kind::Cubic };
        let mut sender = Sender::new(FIRST + i, kind, each);
        sender.deadline = Some(Time::from_secs_f64(start));
        sender
    };
    let senders = (0..FLOWS).zip(&starts).map(sender).collect();
    let rate = 1_000_000_000;
    let shared = Shape { rate: Some(rate), queue_bytes: Some(rate / 8 * 6 / 100), ..Shape::default() };
    // More concurrent handshakes than the default allows.
    let flows = FLOWS.into();
    let config = Config { flows, half_open: flows, mtu: 576, ..table::config(0.0) };
    let path = table::link(40.0, 0.01);
    let mut world = World::new(config, senders, &path, Some(shared), 2).grouped().settled();
    let mut most = (0, 0, 0, 0);
    for step in 1..=200 {
        world.run(Time::from_millis(50 * step));
        let now = held(&world);
        most = (most.0.max(now.0), most.1.max(now.1), most.2.max(now.2), most.3.max(now.3));
    }
    (world, starts, most)
}

#[test]
fn a_thousand_flows_finish_in_bounds_and_share_fairly() {
    const EACH: u64 = 80_000;
    let (peak, (world, starts, most)) = allocator::peak(|| thousand(EACH));
    assert!(world.is_over() && world.apps.iter().all(|app| app.finished == Some(EACH)));
    assert_eq!((world.endpoint.flows(), world.endpoint.counters().evicted), (FLOWS.into(), 0));
    let times = world.ends.iter().flatten().zip(&starts).map(|(end, start)| end.as_secs_f64() - start);
    let rates: Vec<f64> = times.map(|took| EACH as f64 / took).collect();
    let jain = jain(&rates);
    let missing: u64 = world.apps.iter().map(|app| app.missing()).sum();
    let missing = missing as f64 / (u64::from(FLOWS) * EACH) as f64;
    println!("{most:?}, {peak} bytes, jain {jain:.4}, missing {missing:.4}, full {}", world.full);
    // Measured: at most 85 gaps, 6330 masked holes and 46.7 MB of window. With all senders and packets in
    // flight, 23.6 MB.
    let (flows, gaps, masks, promised) = most;
    assert!(flows == FLOWS.into() && gaps < 500 && masks < 12_000 && promised < 50 << 20, "{most:?}");
    assert!(peak < 40 << 20, "{peak} bytes");
    // Measured: 0.965, and 0.135 missing. Nearly all of that is lost while all senders begin at once.
    assert!(jain > 0.93 && missing < 0.16, "{jain} {missing}");
}

/// Result of a round of eight, in seconds.
#[derive(Debug)]
struct Incast {
    /// When the last sender was done.
    took: f64,
    /// The same without the time spent waiting for a lost tail, which only the sender's timer detects (trap
    /// 7).
    carried: f64,
    /// The longest such wait; then retransmissions and reductions of all senders.
    waited: f64,
    repairs: [u64; 2],
    full: u64,
}

/// Eight senders of 100 Mbit/s each, with RTTs of 30 to 50 ms, begin at once. They share a link of 400 Mbit/s
/// with a queue of 40 ms. Rates are a fifth of the real ones, in packets a second. One packet in a hundred is
/// lost.
fn incast(seed: u64) -> Incast {
    const EACH: u64 = 430_000;
    let kind = |i: u16| if i.is_multiple_of(2) { Kind::Reno } else { Kind::Cubic };
    let senders = (0..8).map(|i| Sender::new(FIRST + i, kind(i), EACH)).collect();
    let link = |rate: u64| Shape { rate: Some(rate), queue_bytes: Some(rate / 8 / 25), ..Shape::default() };
    let (own, shared) = (Shape { loss: 0.01, ..link(7_680_000) }, link(30_720_000));
    let config = Config { mtu: 576, ..table::config(0.0) };
    let delay = |i: usize| 0.015 + 0.01 * Rng::new(&[seed, i as u64]).unit();
    let world = World::new(config, senders, &own, Some(shared), seed);
    let mut world = world.delayed(delay).grouped().settled();
    world.run(Time::from_secs(60));
    assert!(world.apps.iter().all(|app| app.finished == Some(EACH)), "everybody finishes");
    let ends = || world.ends.iter().flatten().map(Time::as_secs_f64);
    let waits = || world.senders.iter().map(|sender| sender.tally.waited.as_secs_f64());
    let most = |a: f64, b: f64| a.max(b);
    let sum = |of: fn(&Sender) -> u64| world.senders.iter().map(of).sum();
    Incast {
        took: ends().fold(0.0, most),
        carried: ends().zip(waits()).map(|(end, waited)| end - waited).fold(0.0, most),
        waited: waits().fold(0.0, most),
        repairs: [sum(|s| s.tally.retransmissions), sum(|s| s.tally.reductions)],
        full: world.full,
    }
}

/// A round at full size takes 4.7 s, and a lost tail is a small part of that. In these rounds it is a fifth,
/// so it is counted separately.
#[test]
fn no_incast_round_is_far_from_the_median() {
    let rounds: Vec<Incast> = (0..200).map(incast).collect();
    let sorted = |of: fn(&Incast) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        move |percent: usize| all[(all.len() - 1) * percent / 100]
    };
    let (took, carried, waited) = (sorted(|r| r.took), sorted(|r| r.carried), sorted(|r| r.waited));
    let mut now = String::from(
        "200 incast rounds of eight senders with 1 % loss, in seconds by percentile: until the last is done, the same\n\
         without waits for a lost tail, and the longest such wait.\n\n   %    took carried  waited\n",
    );
    for percent in [0, 10, 50, 90, 95, 99, 100] {
        let (took, carried, waited) = (took(percent), carried(percent), waited(percent));
        writeln!(now, "{percent:>4} {took:>7.3} {carried:>7.3} {waited:>7.3}").expect("a string grows");
    }
    let sum = |of: fn(&Incast) -> u64| rounds.iter().map(of).sum::<u64>();
    let (again, reduced, full) = (sum(|r| r.repairs[0]), sum(|r| r.repairs[1]), sum(|r| r.full));
    writeln!(now, "\n{again} segments sent again, {reduced} reductions, {full} found a queue full")
        .expect("a string grows");
    assert!(carried(100) <= 1.25 * carried(50) && waited(100) < 0.25 * 4.7, "{now}");
    assert_eq!(reduced, 0, "no loss but of a tail is visible");
    assert_recorded(INCAST, &now);
}

/// Trap 15: the queue does not oscillate. The base delay is still that of the path after it has expired
/// twice.
#[test]
fn trap_15_the_queue_stays_at_its_aim() {
    let shared = Shape { rate: Some(20_000_000), queue_bytes: Some(100_000), ..Shape::default() };
    let path = table::link(40.0, 0.01);
    let sender = vec![Sender::new(FIRST, Kind::Cubic, 1 << 30)];
    let mut world = World::new(table::config(0.0), sender, &path, Some(shared), 6);
    let mut waits = |from: u64, to: u64| {
        let mut all: Vec<f64> = (from * 100..to * 100)
            .map(|tick| {
                world.run(Time::from_millis(10 * tick));
                world.queued() as f64 * 8.0 / 20e6
            })
            .collect();
        all.sort_by(f64::total_cmp);
        [1, 50, 99].map(|percent| 1e3 * all[(all.len() - 1) * percent / 100])
    };
    // The target is 8 ms at 100 Mbit/s. At 20 Mbit/s it is longer by the fourth root of five.
    let aim = 8.0 * 5f64.powf(0.25);
    for (from, to) in [(2, 12), (110, 130)] {
        let [few, half, most] = waits(from, to);
        println!("{from} to {to} s: {few:.1}, {half:.1}, {most:.1} ms in the queue");
        let near = (0.75 * aim..=1.25 * aim).contains(&half);
        assert!(near && few > 0.5 * aim && most < 1.75 * aim, "{few} {half} {most}");
    }
}

/// Masked Cubic senders share a link of 20 Mbit/s, with an RTT of 40 ms and a queue of `queue` seconds. If
/// `ordinary` is not 0, an ordinary sender of that many bytes is beside them. The flows are in no group.
fn beside(masked: u16, ordinary: u64, queue: f64) -> World {
    let count = masked + u16::from(ordinary > 0);
    let total = |i| if i < masked { 1 << 30 } else { ordinary };
    let senders = (0..count).map(|i| Sender::new(FIRST + i, Kind::Cubic, total(i))).collect();
    let queue = Some((20e6 / 8.0 * queue) as u64);
    let shared = Shape { rate: Some(20_000_000), queue_bytes: queue, ..Shape::default() };
    let world = World::new(table::config(0.0), senders, &table::link(40.0, 0.0), Some(shared), 4);
    let mut plain = Config { policy: Policy::critical(), rate: Rate::Fixed(4 << 20), ..table::config(0.0) };
    plain.undo.eifel = false;
    world.apart(masked.into(), plain)
}

/// Bits a second of each flow, from second `from` to `to`.
fn gets(world: &mut World, from: u64, to: u64) -> Vec<f64> {
    let mut delivered = |seconds| {
        world.run(Time::from_secs(seconds));
        world.apps.iter().map(|app| app.got.bytes() as f64).collect::<Vec<_>>()
    };
    let (before, after) = (delivered(from), delivered(to));
    after.iter().zip(&before).map(|(after, before)| (after - before) * 8.0 / (to - from) as f64).collect()
}

/// Trap 16: a masked and an ordinary flow share a bottleneck, and both use Cubic. Neither starves.
#[test]
fn trap_16_an_ordinary_flow_keeps_its_part_and_so_does_the_masked() {
    for queue in [0.02, 0.04, 0.1] {
        let mut world = beside(1, 1 << 30, queue);
        let rates = gets(&mut world, 10, 60);
        let share = rates[0] / (rates[0] + rates[1]);
        let missing = world.apps[0].missing() as f64 / world.apps[0].got.bytes() as f64;
        println!("queue of {queue} s: the masked flow has {share:.3} of the path, {missing:.4} missing");
        assert!(rates.iter().sum::<f64>() > 0.85 * 20e6, "the path is used: {rates:?}");
        // Measured: 0.23, 0.41 and 0.30. The bytes that are missing were lost when both began.
        assert!((0.2..=0.6).contains(&share) && missing < 0.02, "{queue}: {share}, {missing}");
    }
}

/// A queue shorter than the target would always overflow. With a queue of 3 ms, a third of the bytes would be
/// lost.
#[test]
fn trap_15_a_short_queue_is_not_kept_full() {
    for queue in [0.003, 0.006, 0.01] {
        let shared = Shape {
            rate: Some(20_000_000),
            queue_bytes: Some((20e6 / 8.0 * queue) as u64),
            ..Shape::default()
        };
        let sender = vec![Sender::new(FIRST, Kind::Cubic, 1 << 30)];
        let mut world = World::new(table::config(0.0), sender, &table::link(40.0, 0.0), Some(shared), 4);
        world.run(Time::from_secs(2));
        let before = world.apps[0].missing();
        let rate = gets(&mut world, 2, 30)[0];
        let missing = (world.apps[0].missing() - before) as f64 / (rate / 8.0 * 28.0);
        println!("queue of {queue} s: {:.2} Mbit/s, {missing:.4} missing", rate / 1e6);
        assert!(rate > 0.85 * 20e6 && missing < 0.01, "{queue}: {rate}, {missing}");
    }
}

/// Masked flows do not mistake each other for flows that fill the queue.
#[test]
fn masked_flows_that_do_not_know_each_other_share_and_lose_nothing() {
    let mut world = beside(4, 0, 0.04);
    // They begin while the queue has different lengths. After ten seconds, each has seen it drained.
    gets(&mut world, 0, 12);
    let full = world.full;
    let rates = gets(&mut world, 12, 40);
    println!("{rates:.0?}, jain {:.3}, full {full}", jain(&rates));
    assert!(jain(&rates) > 0.9 && world.full == full, "{rates:?}: {} after {full}", world.full);
}

/// After the ordinary flow has ended, the masked one keeps the queue short again.
#[test]
fn the_queue_is_short_again_when_the_ordinary_flow_is_gone() {
    let mut world = beside(1, 20 << 20, 0.04);
    let rates = gets(&mut world, 4, 8);
    assert!(rates[1] > 3e6 && world.ends[1].is_none(), "both send: {rates:?}");
    world.run(Time::from_secs(30));
    assert!(world.ends[1].is_some(), "the ordinary flow is done");
    let longest = (300..500u64).map(|tick| {
        world.run(Time::from_millis(100 * tick));
        world.queued() as f64 * 8.0 / 20e6
    });
    let longest = longest.fold(0.0, f64::max);
    assert!(longest < 0.025, "{longest} s in the queue");
}

/// Four senders begin one second after the first. They share a link of 100 Mbit/s with a queue of 40 ms.
/// Returns the bits a second of each flow, in quarters of a second, and the drops of the queue.
fn late(seed: u64) -> (Vec<[f64; 5]>, u64) {
    let kind = |i: u16| if i.is_multiple_of(2) { Kind::Reno } else { Kind::Cubic };
    let sender = |i: u16| {
        let mut sender = Sender::new(FIRST + i, kind(i), 1 << 30);
        let start = if i == 0 { 0.0 } else { 1.0 + 0.2 * Rng::new(&[seed, 7, i.into()]).unit() };
        sender.deadline = Some(Time::from_secs_f64(start));
        sender
    };
    let link = |rate: u64| Shape { rate: Some(rate), queue_bytes: Some(rate / 8 / 25), ..Shape::default() };
    let (own, shared) = (Shape { loss: 0.001, ..link(1_000_000_000) }, link(100_000_000));
    let delay = |i: usize| 0.015 + 0.01 * Rng::new(&[seed, i as u64]).unit();
    let world = World::new(table::config(0.0), (0..5).map(sender).collect(), &own, Some(shared), seed);
    let mut world = world.delayed(delay).grouped().settled();
    let mut before = [0; 5];
    let quarter = |quarter: u64| {
        world.run(Time::from_millis(250 * quarter));
        std::array::from_fn(|i| {
            let delivered = world.apps[i].got.bytes();
            (delivered - std::mem::replace(&mut before[i], delivered)) as f64 * 8.0 / 0.25
        })
    };
    ((1..=16).map(quarter).collect(), world.full)
}

/// Flows that begin later have a higher target until they have their share. The first flow must not mistake
/// them for flows that fill the queue. Otherwise it would keep half of the link.
#[test]
fn a_flow_gives_way_to_those_that_come_later() {
    for seed in 0..6 {
        let (quarters, full) = late(seed);
        let [alone, soon, then] = [3, 8, 15].map(|i: usize| quarters[i]);
        println!("{seed}: {:.2} then {:.2}, {then:.0?}, {full} dropped", jain(&soon), jain(&then));
        assert!(alone[0] > 90e6, "{alone:?}");
        // Measured: at least 0.79 and 0.955. No packet was dropped, except 9 with one seed.
        assert!(jain(&soon) > 0.7 && jain(&then) > 0.93 && full < 20, "{soon:?} {then:?} {full}");
    }
}
