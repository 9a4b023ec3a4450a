//! Tests of repair packets. A table under version control has their cost and gain. Other tests check that
//! they lose nothing.
//!
//! `THALWEG_REWRITE=1 cargo test -p thalweg-sending --test ltp repair` writes the table anew.

use std::fmt::Write;

use thalweg_linkmodel::{Burst, Shape};
use thalweg_rng::Rng;
use thalweg_sending::ltp::{Ack, Block, Closed, Piece, Rule, Sender, What, MAX_BLOCK};
use thalweg_sending::Time;
use thalweg_wire::Range;

use super::recorded::assert_recorded;
use super::table::link;
use super::world::World;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/ltp-repair.txt");
const MS: Time = Time::from_millis(1);
const SEEDS: u64 = 10;

/// Results of one transfer: seconds, retransmitted chunks, rebuilt chunks, and repair packets.
fn run(chunks: u32, rtt: f64, loss: f64, share: f64, seed: u64) -> [f64; 4] {
    let mut world = World::new(&link(rtt, loss), &[Rule::default()], seed).with_repair(share);
    world.begin(0, chunks, |n| n == 0 || n + 1 == chunks);
    world.run(Time::from_secs(600));
    let party = &world.parties[0];
    let (at, ended) = party.ended.unwrap();
    assert_eq!(party.received.len(), chunks as usize, "{chunks} {loss} {share} {seed}");
    [at.as_secs_f64(), ended.again as f64, party.rebuilt as f64, ended.repair as f64]
}

fn row(chunks: u32, rtt: f64, loss: f64, share: f64) -> String {
    let runs: Vec<_> = (0..SEEDS).map(|seed| run(chunks, rtt, loss, share, seed)).collect();
    let mean = |at: usize| runs.iter().map(|run| run[at]).sum::<f64>() / SEEDS as f64;
    let last = runs.iter().map(|run| run[0]).fold(0.0, f64::max);
    format!(
        "{chunks:>6} {rtt:>4} {:>6.1} {share:>6.2} {:>8.3} {last:>8.3} {:>10.1} {:>8.1} {:>8.1}",
        loss * 100.0,
        mean(0),
        mean(1),
        mean(2),
        mean(3),
    )
}

fn table() -> String {
    let mut table = String::from(
        "All of an update over 100 Mbit/s with a queue of 40 ms, loss both ways: means of 10 seeds, and the longest.\n\n\
         chunks  rtt loss %  share  seconds  longest sent again  rebuilt   repair\n",
    );
    for (chunks, rtt) in [(100, 40.0), (780, 40.0), (9_600, 40.0), (780, 200.0)] {
        for loss in [0.0, 0.01, 0.02, 0.05] {
            for share in [0.0, 0.05, 0.1, 0.2] {
                writeln!(table, "{}", row(chunks, rtt, loss, share)).expect("a string grows");
            }
        }
    }
    table
}

#[test]
fn repair_packets_cost_and_save_as_recorded() {
    assert_recorded(TABLE, &table());
}

#[test]
fn all_chunks_arrive_once_whatever_is_lost() {
    for seed in 0..60 {
        let mut rng = Rng::new(&[seed]);
        let burst = Burst { enter: 0.01, leave: 0.2, loss_bad: 1.0, loss_good: 0.0 };
        let (bursts, loss) = (rng.hits(0.3), 0.3 * rng.unit());
        let shape = Shape {
            burst: Some(burst).filter(|_| bursts),
            reorder: 0.1 * rng.unit(),
            duplicate: 0.05 * rng.unit(),
            ..link(1.0 + 80.0 * rng.unit(), if bursts { 0.0 } else { loss })
        };
        let share = rng.unit();
        let mut world = World::new(&shape, &[Rule::default()], seed).with_repair(share);
        for _ in 0..2 {
            let chunks = rng.up_to(600) as u32;
            world.begin(0, chunks, |n| n % 7 == 0);
            world.run(world.now + Time::from_secs(120));
            let party = &mut world.parties[0];
            let (_, ended) = party.ended.expect("it never ends");
            assert_eq!((ended.why, ended.missing), (Closed::Whole, 0), "{seed}");
            party.received.sort_unstable();
            assert!(party.received.iter().copied().eq(0..chunks), "{seed}: a chunk came twice, or never");
        }
    }
}

#[test]
fn without_loss_nothing_is_sent_again_and_only_the_end_is_covered() {
    let [_, again, rebuilt, repair] = run(9_600, 40.0, 0.0, 0.1, 3);
    assert_eq!((again, rebuilt), (0.0, 0.0));
    // Repair packets protect only the last cwnd and the block that began before it. The cwnd is 600 packets:
    // the rate times 1.25 round trips and 20 ms.
    assert!((10.0..=70.0).contains(&repair), "{repair}");
}

/// Sends all packets that may leave now, and returns them.
fn sent(sender: &mut Sender, now: Time) -> Vec<What> {
    std::iter::from_fn(|| sender.poll_packet(now)).map(|packet| packet.what).collect()
}

fn ack(ranges: &[(u64, u64)]) -> Ack {
    Ack { ranges: ranges.iter().map(|&(start, end)| Range::new(start, end)).collect(), closed: None }
}

fn indexes(sent: &[What]) -> Vec<u32> {
    let index = |what: &What| if let What::Chunk(part) = what { Some(part.index) } else { None };
    sent.iter().filter_map(index).collect()
}

#[test]
fn a_packet_is_not_retransmitted_while_it_may_still_be_rebuilt() {
    let mut sender = Sender::new(Time::ZERO, 1 << 20, 1_024, 1_400).with_repair(0.2);
    sender.begin(vec![Piece { bytes: 1_400, critical: false }; 10]);
    let first = sent(&mut sender, Time::ZERO);
    let block = Block { first: 0, count: 10 };
    assert_eq!(first[10..], [What::Repair(block, 0), What::Repair(block, 1), What::Probe]);
    // Packets 2 and 4 are lost. The other packets of the block have arrived.
    sender.handle_ack(40 * MS, &ack(&[(5, 10), (3, 4), (0, 2)]));
    assert_eq!((sent(&mut sender, 40 * MS), sender.lost()), (vec![], 0));
    // The repair packets are lost too. A probe after them has arrived, and time passes.
    sender.handle_ack(41 * MS, &ack(&[(12, 13), (5, 10), (3, 4), (0, 2)]));
    assert_eq!(indexes(&sent(&mut sender, 41 * MS)), []);
    sender.handle_timeout(60 * MS);
    let again = sent(&mut sender, 60 * MS);
    assert_eq!((indexes(&again), sender.lost()), (vec![2, 4], 4));
    assert!(again.contains(&What::Repair(Block { first: 13, count: 2 }, 0)), "{again:?}");
    // The receiver rebuilt the two packets, and acknowledges them as if they had arrived.
    sender.handle_ack(100 * MS, &ack(&[(12, 17), (0, 10)]));
    let ended = sender.poll_ended().unwrap();
    assert_eq!((ended.why, ended.again, ended.repair), (Closed::Whole, 2, 3));
}

#[test]
fn a_block_whose_packets_are_all_lost_does_not_keep_the_window_shut() {
    let mut sender = Sender::new(Time::ZERO, 1 << 20, 1_024, 1_400).with_repair(1.0);
    sender.begin(vec![Piece { bytes: 1_400, critical: false }; 33]);
    let first = sent(&mut sender, Time::ZERO);
    assert_eq!(indexes(&first).len(), 32, "the window of the beginning");
    assert!(!first.iter().any(|what| matches!(what, What::Repair(..))), "the block is still open");
    // The receiver acknowledges only the probe that follows.
    let mut now = sender.poll_timeout().unwrap();
    sender.handle_timeout(now);
    assert_eq!(sent(&mut sender, now), [What::Probe]);
    now += 40 * MS;
    sender.handle_ack(now, &ack(&[(32, 33)]));
    for _ in 0..10 {
        if !indexes(&sent(&mut sender, now)).is_empty() {
            return;
        }
        now = now.max(sender.poll_timeout().unwrap());
        sender.handle_timeout(now);
    }
    panic!("nothing is sent any more");
}

#[test]
fn closed_updates_and_those_that_are_given_up_are_not_repaired() {
    for closed in [true, false] {
        let mut sender = Sender::new(Time::ZERO, 1 << 20, 1_024, 1_400).with_repair(1.0);
        let number = sender.begin(vec![Piece { bytes: 1_400, critical: false }; 10]);
        for _ in 0..5 {
            sender.poll_packet(Time::ZERO).unwrap();
        }
        if closed {
            sender.handle_ack(MS, &Ack { closed: Some((number, Closed::Fraction)), ..ack(&[(0, 5)]) });
        } else {
            sender.abandon();
        }
        let rest = sent(&mut sender, 2 * MS);
        assert!(!rest.iter().any(|what| matches!(what, What::Repair(..))), "{rest:?}");
        assert_eq!(indexes(&rest).len(), if closed { 5 } else { 0 });
    }
}

#[test]
fn blocks_are_no_longer_than_they_may_be() {
    let mut sender = Sender::new(Time::ZERO, 16 << 20, 1_024, 1_400).with_repair(0.01);
    sender.begin(vec![Piece { bytes: 100, critical: false }; 400]);
    let mut now = Time::ZERO;
    let mut packets = 0;
    while sender.poll_ended().is_none() {
        while let Some(packet) = sender.poll_packet(now) {
            packets = packet.number + 1;
            if let What::Repair(block, which) = packet.what {
                assert!(block.count <= MAX_BLOCK && block.end() <= packet.number && which == 0);
            }
        }
        now += 10 * MS;
        sender.handle_ack(now, &ack(&[(0, packets)]));
    }
}
