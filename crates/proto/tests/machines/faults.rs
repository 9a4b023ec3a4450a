//! Loss, reordering, duplicates, damage and cuts, over many seeds.

use crate::common::{plan, profile, Path, Profile, Rng, Setup, World, MS, SECOND};
use thalweg_proto::{Choice, Fanout, Gather, Partial, RoundPlan, State, Verdict};

/// A path that can have every fault, drawn from `rng`.
fn faulty(rng: &mut Rng, ordered: bool) -> Path {
    let cut = rng.chance(0.5).then(|| 1 + rng.below(6000));
    Path {
        rate: 20_000 + rng.below(2_000_000),
        delay: rng.time(80 * MS),
        jitter: rng.time(120 * MS),
        loss: if ordered { 0.0 } else { rng.below(30) as f64 / 100.0 },
        holes: rng.below(30) as f64 / 100.0,
        duplicate: rng.below(20) as f64 / 100.0,
        corrupt: rng.below(15) as f64 / 100.0,
        ordered,
        separate: rng.chance(0.3),
        cut_after: cut,
    }
}

fn faulty_client(rng: &mut Rng, index: u64) -> Profile {
    let ordered = rng.chance(0.3);
    let mut paths: Vec<(Path, Path)> =
        (0..rng.below(6)).map(|_| (faulty(rng, ordered), faulty(rng, ordered))).collect();
    let last = Path { cut_after: None, ..faulty(rng, ordered) };
    paths.push((last, last));
    Profile {
        samples: 1 + rng.below(50),
        train: rng.time(2 * SECOND),
        skew: rng.time(100 * SECOND),
        paths,
        ..profile(&format!("c{index}"))
    }
}

pub fn faulty_world(seed: u64) -> (World, u32) {
    let mut rng = Rng::new(seed);
    let clients = 1 + rng.below(5);
    let setup = Setup {
        seed,
        partial: if rng.chance(0.5) { Partial::Discard } else { Partial::Keep },
        places: 1 + rng.below(clients),
        elements: 300 + rng.below(900),
        chunk: 64 << rng.below(4),
        folding: rng.time(50 * MS),
        recut: rng.chance(0.5),
        ..Setup::default()
    };
    let mut world = World::new(&setup);
    for index in 0..clients {
        world.add(faulty_client(&mut rng, index));
    }
    (world, clients as u32)
}

/// Uses all ways to serve and to choose clients in turn, by seed.
fn in_some_order(seed: u64, plan: RoundPlan) -> RoundPlan {
    let fanout = if seed.is_multiple_of(2) { Fanout::Concurrent } else { Fanout::Sequential };
    let gather = if seed % 4 < 2 { Gather::Concurrent } else { Gather::InOrder };
    let choice = if seed % 8 < 4 { Choice::ByName } else { Choice::ByLot { seed } };
    RoundPlan { fanout, gather, choice, ..plan }
}

/// Links break and are made anew. Every client comes back in time, so every round ends complete.
#[test]
fn every_round_ends_complete_over_faulty_links() {
    for seed in 0..300 {
        let (mut world, clients) = faulty_world(seed);
        for number in 1..=2 {
            let result = world.round(in_some_order(seed, plan(number, clients)), 300 * SECOND);
            world.check(&result);
            assert!(result.outcome.complete, "seed {seed}: {:?}", result.outcome);
        }
        world.pass(20 * SECOND);
        for client in &world.clients {
            assert_eq!(client.seen.verdicts, [1, 2].map(|n| (n, Verdict::Accepted)), "seed {seed}");
        }
    }
}

/// The same with a deadline, restarted processes, and processes that never come back.
#[test]
fn every_round_ends_and_says_how_when_processes_die_as_well() {
    let mut endings = [0; 3];
    for seed in 1000..1300 {
        let (mut world, clients) = faulty_world(seed);
        let mut rng = Rng::new(seed);
        for number in 1..=3 {
            let enough = 1 + rng.below(u64::from(clients)) as u32;
            let deadline = rng.chance(0.7).then(|| rng.time(6 * SECOND));
            let before = world.server.results.len();
            let (grace, outage) = (rng.time(6 * SECOND), rng.time(12 * SECOND));
            let asked = RoundPlan { enough, deadline, grace, outage, ..plan(number, clients) };
            world.start(in_some_order(seed, asked));
            while world.server.results.len() == before && rng.chance(0.6) {
                world.pass(rng.time(SECOND));
                let victim = rng.below(u64::from(clients)) as usize;
                world.kill(victim);
                if rng.chance(0.6) {
                    world.pass(rng.time(SECOND));
                    world.restart(victim);
                }
            }
            if world.server.results.len() == before {
                world.finish_round(300 * SECOND);
            }
            let result = world.server.results[before].clone();
            world.check(&result);
            endings
                [usize::from(result.outcome.complete) + 2 * usize::from(result.outcome.failure.is_some())] +=
                1;
            let whole = result.outcome.participants.iter().filter(|p| p.state == State::Whole).count();
            assert_eq!(result.outcome.failure.is_none(), whole >= enough as usize, "seed {seed}");
        }
    }
    assert!(endings.iter().all(|&n| n > 60), "partly, complete, failed: {endings:?}");
}

/// A download, then an upload, is cut at any byte. Bytes that have arrived are not sent again.
#[test]
fn after_a_cut_only_what_is_missing_is_sent() {
    for partial in [Partial::Discard, Partial::Keep] {
        for cut in (1..4000).step_by(211) {
            let broken = Path { cut_after: Some(cut), delay: 5 * MS, rate: 50_000, ..Path::PERFECT };
            for (up, down) in [(broken, Path::PERFECT), (Path::PERFECT, broken)] {
                let paths = vec![(up, down), (Path::PERFECT, Path::PERFECT)];
                let client = Profile { paths, ..profile("torn") };
                let mut world = World::joined(&Setup { partial, ..Setup::default() }, [client]);
                let result = world.round(plan(1, 1), 10 * SECOND);
                world.check(&result);
                let bytes = world.server.bytes() as u64;
                let sent = [crate::common::End::Server, crate::common::End::Client]
                    .map(|end| world.net.payload(0, end));
                // Only the chunks in flight when the link broke are sent twice: 5 ms at 50 kB/s, and one
                // more.
                let again = 250 + 2 * u64::from(world.server.chunk);
                for bytes_sent in sent {
                    assert!((bytes..=bytes + again).contains(&bytes_sent), "{cut}: {bytes_sent} of {bytes}");
                }
                assert_eq!(world.clients[0].seen.connections, 2);
                let resumed: u32 = result.outcome.transfers.iter().map(|t| t.resumed).sum();
                let some_came = cut > u64::from(world.server.chunk);
                assert!(resumed == 1 || !some_came, "cut at {cut}: {:?}", result.outcome.transfers);
                let wire = result.outcome.bytes_down + result.outcome.bytes_up;
                let least = sent[0] + sent[1] - again;
                assert!(wire >= least, "{wire} bytes told, at least {least} sent before and after the cut");
            }
        }
    }
}

/// A chunk is a 64th of a small update. So a link that breaks costs less than 2 % of the update, beside what is on its
/// way: the server asks for all that it has not stored.
#[test]
fn a_cut_costs_a_64th_of_an_update() {
    let setup = Setup { elements: 8192, chunk: 512, ..Setup::default() };
    for cut in (1..32_768).step_by(997) {
        let broken = Path { cut_after: Some(cut), rate: 100_000, ..Path::PERFECT };
        let paths = vec![(broken, Path::PERFECT), (Path::PERFECT, Path::PERFECT)];
        let mut world = World::joined(&setup, [Profile { paths, ..profile("torn") }]);
        let result = world.round(plan(1, 1), 10 * SECOND);
        world.check(&result);
        let (bytes, sent) = (world.server.bytes() as u64, world.net.payload(0, crate::common::End::Client));
        assert!(100 * (sent - bytes) < 2 * bytes, "{cut}: {sent} of {bytes}");
    }
}

/// One kind of fault at a time, in one direction. Each is counted as what it is.
#[test]
fn transfers_count_duplicates_and_damage() {
    let unordered = Path { ordered: false, jitter: 5 * MS, ..Path::PERFECT };
    let doubled = Path { duplicate: 1.0, ..unordered };
    let damaged = Path { corrupt: 0.2, ..unordered };
    for (path, duplicates, corrupt) in
        [(unordered, false, false), (doubled, true, false), (damaged, false, true)]
    {
        let client = Profile { paths: vec![(path, path)], ..profile("c") };
        let mut world = World::joined(&Setup { chunk: 128, ..Setup::default() }, [client]);
        let result = world.round(plan(1, 1), 30 * SECOND);
        world.check(&result);
        let up =
            result.outcome.transfers.iter().find(|t| t.direction == thalweg_proto::Direction::Up).unwrap();
        assert_eq!((up.duplicates > 0, up.corrupt > 0), (duplicates, corrupt), "{up:?}");
    }
}

/// Chunks that arrive after an update's End, but within the settling time, are not asked for again.
#[test]
fn stragglers_of_an_unordered_link_are_not_asked_for_again() {
    let path = Path { ordered: false, jitter: 40 * MS, rate: 100_000_000, ..Path::PERFECT };
    let client = Profile { paths: vec![(path, path)], ..profile("c") };
    let mut world = World::joined(&Setup { chunk: 64, ..Setup::default() }, [client]);
    let result = world.round(plan(1, 1), 5 * SECOND);
    world.check(&result);
    let bytes = world.server.bytes() as u64;
    assert_eq!(world.net.payload(0, crate::common::End::Server), bytes);
    assert_eq!(world.net.payload(0, crate::common::End::Client), bytes);
    let span = result.outcome.span;
    assert!(span.end - span.start < 210 * MS, "whole is whole: nothing to settle for, {span:?}");
}
