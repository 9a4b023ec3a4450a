//! Tests of early closing; of paths that reorder, duplicate or break; of slow ends; and of false ACKs.

use thalweg_linkmodel::Shape;
use thalweg_sending::ltp::{Ack, Closed, Piece, Rule, Sender, What};
use thalweg_sending::Time;
use thalweg_wire::Range;

use super::table::link;
use super::world::World;

const MS: Time = Time::from_millis(1);
const CHUNKS: u32 = 4_000;

fn world(shape: &Shape, rule: Rule) -> World {
    World::new(shape, &[rule], 3)
}

#[test]
fn a_deadline_ends_a_transfer_once_its_critical_chunks_have_arrived() {
    // 4000 chunks take 470 ms. The last tenth of them is critical, and is not sent before the deadline.
    let critical = |n| n % 10 == 9;
    let mut world = world(&link(40.0, 0.05), Rule { fraction: 1.0, deadline: Some(200 * MS) });
    world.begin(0, CHUNKS, critical);
    world.run(Time::from_secs(60));
    let (at, ended) = world.parties[0].ended.unwrap();
    assert_eq!(ended.why, Closed::Deadline);
    assert!(at > 200 * MS && at < 500 * MS, "{at:?}");
    let received = &world.parties[0].received;
    assert!((0..CHUNKS).filter(|&n| critical(n)).all(|n| received.contains(&n)));
    let missing = CHUNKS as usize - received.len();
    assert!(missing > 1_000 && ended.missing >= missing, "{missing}, {ended:?}");
}

#[test]
fn closed_by_fraction_every_chunk_was_sent_once() {
    for loss in [0.01, 0.1] {
        let mut world = world(&link(40.0, loss), Rule { fraction: 0.8, deadline: None });
        world.begin(0, CHUNKS, |_| false);
        world.run(Time::from_secs(60));
        // What is in flight at the end still arrives and is used.
        world.go_on(world.now + 100 * MS);
        let party = &world.parties[0];
        let (missing, expected) = (f64::from(CHUNKS) - party.received.len() as f64, f64::from(CHUNKS) * loss);
        assert!(missing < 1.3 * expected + 10.0, "{missing} of {expected} were to be lost");
        assert_eq!(party.ended.unwrap().1.why, Closed::Fraction);
        assert!(party.ended.unwrap().1.again < 10, "sent again though enough had come");
    }
}

#[test]
fn reordering_and_repetition_cost_little() {
    let path = Shape { reorder: 0.1, duplicate: 0.05, ..link(40.0, 0.0) };
    let mut world = world(&path, Rule::default());
    world.begin(0, CHUNKS, |_| false);
    world.run(Time::from_secs(60));
    let (at, ended) = world.parties[0].ended.unwrap();
    assert_eq!((ended.why, world.parties[0].received.len()), (Closed::Whole, CHUNKS as usize));
    assert!(ended.again < u64::from(CHUNKS) / 5, "{} sent again", ended.again);
    assert!(at < Time::from_millis(1600), "{at:?}");
}

#[test]
fn bursts_and_terrible_links_end_whole() {
    use thalweg_linkmodel::Burst;
    let burst = Burst { enter: 0.005, leave: 0.1, loss_bad: 1.0, loss_good: 0.0 };
    for shape in [Shape { burst: Some(burst), ..link(40.0, 0.0) }, link(40.0, 0.3), link(0.1, 0.5)] {
        let mut world = world(&shape, Rule::default());
        world.begin(0, CHUNKS, |_| false);
        world.run(Time::from_secs(120));
        let (_, ended) = world.parties[0].ended.expect("it never ends");
        assert_eq!((ended.why, ended.missing), (Closed::Whole, 0));
        assert_eq!(world.parties[0].received.len(), CHUNKS as usize);
    }
}

/// The goal for edge paths. A path of 20 Mbit/s loses 80 % of the packets and of the ACKs. A round, with 1
/// MiB down and 1 MiB up, must reach 0.15 of the goodput that this path allows.
#[test]
fn a_path_that_loses_80_percent_both_ways_carries_a_round() {
    const CHUNKS: u32 = 781;
    let mut rounds = Vec::new();
    for seed in 0..20 {
        let shape = Shape { rate: Some(20_000_000), queue_bytes: Some(250_000), ..link(40.0, 0.8) };
        let mut world = World::new(&shape, &[Rule::default()], seed);
        for _ in 0..2 {
            world.begin(0, CHUNKS, |n| n == 0 || n + 1 == CHUNKS);
            world.run(world.now + Time::from_secs(60));
            let (_, ended) = world.parties[0].ended.expect("it never ends");
            assert_eq!(
                (ended.why, world.parties[0].received.len()),
                (Closed::Whole, CHUNKS as usize),
                "{seed}"
            );
        }
        rounds.push(world.now.as_secs_f64());
    }
    let goal = 2.0 * f64::from(1 << 20) * 8.0 / (0.15 * 0.2 * 20e6);
    assert!(rounds.iter().all(|&took| took < goal), "{goal} s: {rounds:?}");
}

#[test]
fn a_peer_that_does_not_read_stops_its_sender_and_loses_nothing() {
    let mut world = world(&link(1.0, 0.0), Rule::default());
    world.parties[0].asleep = Time::from_secs(20);
    world.begin(0, 40_000, |_| false);
    world.go_on(Time::from_secs(19));
    let (window, under_way) = world.parties[0].sender.window();
    assert!(under_way <= window + 64, "{under_way} of {window}");
    assert!(world.parties[0].packets < 200, "{} packets, of which few are probes", world.parties[0].packets);
    world.run(Time::from_secs(60));
    let party = &world.parties[0];
    assert_eq!((party.received.len(), party.ended.unwrap().1.again, world.dropped), (40_000, 0, 0));
}

#[test]
fn ends_that_are_late_lose_nothing_and_keep_the_rate() {
    for late in [2, 8] {
        let mut world = world(&link(20.0, 0.0), Rule::default());
        world.parties[0].late = late * MS;
        world.begin(0, 4 * CHUNKS, |_| false);
        world.run(Time::from_secs(60));
        let (at, ended) = world.parties[0].ended.unwrap();
        assert_eq!(world.full, 0, "{late} ms: the queue overflowed");
        let share = f64::from(4 * CHUNKS) * 1464.0 * 8.0 / 1e8 / at.as_secs_f64();
        assert!(share > 0.85, "{late} ms: {share}, {ended:?}");
    }
}

#[test]
fn transfers_follow_each_other_and_an_abandoned_one_is_forgotten() {
    let mut world = world(&link(20.0, 0.02), Rule::default());
    for round in 0..4 {
        world.begin(0, 1_000, |_| false);
        if round == 1 {
            world.go_on(world.now + 30 * MS);
            world.parties[0].sender.abandon();
            assert!(world.parties[0].ended.is_none());
            continue;
        }
        world.run(world.now + Time::from_secs(10));
        assert_eq!(world.parties[0].received.len(), 1_000, "round {round}");
        assert_eq!(world.parties[0].ended.unwrap().1.missing, 0);
    }
}

#[test]
fn an_empty_transfer_has_ended() {
    let mut sender = Sender::new(Time::ZERO, 1 << 20, 1_024, 1_400);
    let number = sender.begin(Vec::new());
    let ended = sender.poll_ended().unwrap();
    assert_eq!((ended.transfer, ended.why, ended.missing), (number, Closed::Whole, 0));
    assert_eq!(sender.poll_packet(MS), None);
}

#[test]
fn an_unanswered_probe_is_sent_again_under_its_number() {
    let mut sender = Sender::new(Time::ZERO, 1 << 20, 1_024, 1_400);
    sender.request_probe();
    let first = sender.poll_packet(Time::ZERO).unwrap();
    assert_eq!(first.what, What::Probe);
    let mut pauses = Vec::new();
    let mut now = Time::ZERO;
    for _ in 0..150 {
        let at = sender.poll_timeout().unwrap();
        pauses.push(at - now);
        now = at;
        sender.handle_timeout(now);
        assert_eq!(sender.poll_packet(now), Some(first));
        assert_eq!(sender.poll_packet(now), None);
    }
    // After the first pause, in which an answer may be on its way, probes follow soon.
    assert!(pauses[1] < pauses[0] && pauses[1..].is_sorted(), "{pauses:?}");
    assert_eq!(pauses[149], pauses[0], "{pauses:?}");
    sender.handle_ack(now, &Ack { ranges: vec![Range::new(0, 1)], closed: None });
    assert_eq!(
        (sender.poll_timeout(), sender.round_trip()),
        (None, None),
        "which of them was answered is not known"
    );
}

#[test]
fn each_requested_probe_has_its_own_number() {
    let mut sender = Sender::new(Time::ZERO, 1 << 20, 1_024, 1_400);
    sender.request_probe();
    let first = sender.poll_packet(Time::ZERO).unwrap();
    sender.request_probe();
    let second = sender.poll_packet(MS).unwrap();
    assert_ne!(first.number, second.number);
    sender
        .handle_ack(10 * MS, &Ack { ranges: vec![Range::new(first.number, first.number + 1)], closed: None });
    let at = sender.poll_timeout().unwrap();
    sender.handle_timeout(at);
    assert_eq!(sender.poll_packet(at), Some(second), "the second has not been answered");
}

/// Whatever an ACK says, nothing that was not sent counts as delivered, and nothing panics.
#[test]
fn impossible_acknowledgements_are_ignored() {
    let mut sender = Sender::new(Time::ZERO, 1 << 20, 1_024, 1_400);
    sender.begin(vec![Piece { bytes: 1_400, critical: false }; 10]);
    while sender.poll_packet(MS).is_some() {}
    let before = sender.window();
    let lies: [&[(u64, u64)]; 6] =
        [&[(0, u64::MAX)], &[(0, 12)], &[(5, 5)], &[(7, 3)], &[(0, 2), (4, 6)], &[(4, 6), (2, 4)]];
    for lie in lies {
        let ranges = lie.iter().map(|&(start, end)| Range { start, end }).collect();
        sender.handle_ack(10 * MS, &Ack { ranges, closed: Some((9, Closed::Deadline)) });
        assert_eq!(sender.window(), before, "{lie:?}");
        assert_eq!(sender.poll_ended(), None);
    }
    sender.handle_ack(10 * MS, &Ack { ranges: Vec::new(), closed: Some((1, Closed::Deadline)) });
    assert_eq!(sender.poll_ended().map(|ended| (ended.why, ended.missing)), Some((Closed::Deadline, 10)));
}
