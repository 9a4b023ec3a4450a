//! Tests of both ends of one-sided transfers in virtual time. Completions come in any order, and pairs are
//! lost.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use thalweg_rdma_proto::{count, Config, Cut, Flight, Grant, Job, Mover, Outcome, Task, Verdict};
use thalweg_rng::Rng;
use thalweg_wire::Ranges;

const MS: Duration = Duration::from_millis(1);

/// The peer's memory as a device would write it: the bytes moved for each grant, and the grants committed.
#[derive(Default)]
struct Peer {
    moved: BTreeMap<u64, Ranges>,
    /// Bytes that were moved more than once.
    again: u64,
    committed: Vec<u64>,
}

impl Peer {
    fn take(&mut self, job: &Job) {
        match job.task {
            Task::Move(range) => {
                assert!(range.end <= job.grant.length, "beyond the grant: {job:?}");
                let fresh: u64 = self
                    .moved
                    .entry(job.grant.number)
                    .or_default()
                    .insert(range)
                    .iter()
                    .map(|r| r.len())
                    .sum();
                self.again += range.len() - fresh;
            }
            Task::Commit(_) => {
                let moved = self.moved.get(&job.grant.number).map_or(0, Ranges::bytes);
                assert_eq!(moved, job.grant.length, "committed before all was there");
                self.committed.push(job.grant.number);
            }
        }
    }
}

fn grant(number: u64, length: u64) -> Grant {
    Grant { number, length, address: number << 32, key: 7 }
}

fn configs() -> impl Strategy<Value = Config> {
    let cuts = prop_oneof![
        Just(Cut::Adaptive),
        Just(Cut::Whole),
        (1_000_u64..2_000_000, prop::option::of(Just(4096)))
            .prop_map(|(piece, link_enable)| Cut::Fixed { piece, link_enable }),
        (1_000_u64..2_000_000, prop::option::of(Just(4096)))
            .prop_map(|(piece, link_enable)| Cut::Forward { piece, link_enable }),
    ];
    let flights = prop_oneof![
        Just(Flight::Window),
        Just(Flight::All),
        Just(Flight::One(Duration::ZERO)),
        Just(Flight::One(MS))
    ];
    let longest = prop_oneof![Just(u64::MAX), 1_000_u64..2_000_000];
    let made =
        |(cut, flight, pieces, slots, notes, longest)| Config { cut, flight, pieces, slots, notes, longest };
    (cuts, flights, 1_usize..40, 1_usize..5, 0_usize..4, longest).prop_map(made)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Completions come in any order, a pair is lost now and then, and the receiver takes chunks and reads notes
    /// late.
    #[test]
    fn every_byte_is_moved_once(
        config in configs(),
        lengths in prop::collection::vec(0_u64..5_000_000, 1..8),
        seed: u64,
        lossy: bool,
    ) {
        let mut rng = Rng::new(&[seed]);
        let (mut mover, mut peer, mut now) = (Mover::new(config), Peer::default(), Duration::ZERO);
        let grants: Vec<Grant> = (0..).zip(&lengths).map(|(number, &length)| grant(number, length)).collect();
        grants.iter().for_each(|&grant| mover.handle_grant(grant));
        let (mut flying, mut taken, mut lost_bytes, mut losses) = (Vec::<Job>::new(), Vec::new(), 0, 0);
        let mut unread = 0;
        for _ in 0..100_000 {
            if taken.len() == grants.len() {
                break;
            }
            now += Duration::from_micros(50);
            while let Some(job) = mover.poll_work(now) {
                let before: u64 = flying.iter().map(bytes).sum();
                prop_assert!(before == 0 || bytes(&job) == 0 || before + bytes(&job) <= mover.window(), "beyond the window");
                // A pair keeps the order of its work requests, so this write lands before all later ones.
                peer.take(&job);
                flying.push(job);
                prop_assert!(flying.len() <= config.pieces);
                unread += usize::from(config.notes > 0 && matches!(job.task, Task::Move(_)));
                prop_assert!(unread <= config.notes, "the receiver has no room for another note");
            }
            prop_assert!(mover.poll_timeout(now).is_none_or(|at| at > now), "it does nothing, and says no later time");
            prop_assert_eq!(flying.iter().map(bytes).sum::<u64>(), mover.under_way());
            if lossy && losses < 2 && rng.hits(0.02) && !flying.is_empty() {
                losses += 1;
                // What was not acknowledged is moved again.
                lost_bytes += flying.drain(..).map(|job| bytes(&job)).sum::<u64>();
                let verdict = mover.handle_lost_pair(now);
                unread = 0;
                peer.committed.retain(|number| taken.contains(number));
                if verdict == Verdict::Again {
                    grants.iter().filter(|g| !taken.contains(&g.number)).for_each(|&g| mover.handle_grant(g));
                }
            } else if !flying.is_empty() && rng.hits(0.7) {
                let job = flying.swap_remove(rng.up_to(flying.len() as u64) as usize - 1);
                mover.handle_done(now, job.piece, Outcome::Done);
            }
            while mover.poll_ended().is_some() {}
            if unread > 0 && rng.hits(0.5) {
                let read = rng.up_to(unread as u64) as usize;
                prop_assert!(mover.handle_noted(read));
                unread -= read;
            }
            if let Some(&number) = peer.committed.iter().find(|number| !taken.contains(number)).filter(|_| rng.hits(0.3)) {
                mover.handle_taken(number);
                taken.push(number);
            }
        }
        prop_assert_eq!(taken.len(), grants.len(), "it has stopped: {:?}", mover);
        for grant in &grants {
            prop_assert_eq!(peer.moved.get(&grant.number).map_or(0, Ranges::bytes), grant.length);
        }
        // After a loss only what is missing is sent.
        prop_assert!(peer.again <= lost_bytes, "{} bytes again for {} lost", peer.again, lost_bytes);
    }
}

fn bytes(job: &Job) -> u64 {
    if let Task::Move(range) = job.task {
        range.len()
    } else {
        0
    }
}

fn window() -> Mover {
    Mover::new(Config {
        cut: Cut::Adaptive,
        flight: Flight::Window,
        pieces: 128,
        slots: 256,
        notes: 0,
        longest: u64::MAX,
    })
}

/// Pairs of one sender start with as few bytes in flight as one pair does, as far as one piece each allows. They
/// still do so after a loss.
#[test]
fn pairs_share_the_initial_window() {
    let config = Config {
        cut: Cut::Adaptive,
        flight: Flight::Window,
        pieces: 128,
        slots: 256,
        notes: 0,
        longest: u64::MAX,
    };
    let one = Mover::new(config).window();
    for (pairs, share) in [(1, 1), (2, 2), (4, 4), (16, 4)] {
        let mut mover = Mover::sharing(config, pairs);
        assert_eq!(mover.window(), one / share, "{pairs} pairs");
        mover.handle_grant(grant(1, 1 << 20));
        assert_eq!(mover.handle_lost_pair(MS), Verdict::Again);
        assert!(mover.window() <= one / share, "{pairs} pairs, after a loss");
    }
}

#[test]
fn three_losses_without_progress_end_the_link() {
    let mut mover = window();
    mover.handle_grant(grant(1, 1 << 20));
    assert_eq!([(); 2].map(|()| mover.handle_lost_pair(MS)), [Verdict::Again; 2]);
    mover.handle_taken(0);
    assert_eq!([(); 2].map(|()| mover.handle_lost_pair(MS)), [Verdict::Again; 2]);
    assert_eq!(mover.handle_lost_pair(MS), Verdict::End);
}

/// A piece that has arrived is not moved again, so an update of many pieces outlives many losses.
#[test]
fn a_piece_that_arrives_between_losses_is_progress() {
    let cut = Cut::Fixed { piece: 1_000, link_enable: None };
    let flight = Flight::One(Duration::ZERO);
    let mut mover = Mover::new(Config { cut, flight, pieces: 9, slots: 1, notes: 0, longest: u64::MAX });
    let mut moved = Ranges::new();
    for loss in 0..9 {
        mover.handle_grant(grant(1, 10_000));
        let job = mover.poll_work(MS).unwrap();
        let Task::Move(range) = job.task else { panic!("{job:?}") };
        assert_eq!(moved.insert(range).len(), 1, "moved again");
        mover.handle_done(MS, job.piece, Outcome::Done);
        assert!(mover.poll_work(MS).is_some());
        assert_eq!(mover.handle_lost_pair(MS), Verdict::Again, "loss {loss}");
    }
    assert_eq!([(); 2].map(|()| mover.handle_lost_pair(MS)), [Verdict::Again, Verdict::End]);
}

#[test]
fn nothing_moves_before_a_grant_nor_after_it_was_withdrawn() {
    let mut mover = window();
    assert_eq!(mover.poll_work(MS), None);
    mover.handle_grant(grant(1, 1 << 20));
    let job = mover.poll_work(MS).unwrap();
    assert!(!mover.withdraw(1), "it was not committed");
    assert_eq!((mover.poll_work(MS), mover.flying(1)), (None, 1));
    mover.handle_done(2 * MS, job.piece, Outcome::Done);
    assert_eq!((mover.under_way(), mover.flying(1)), (0, 0));
}

/// How long a transfer takes over a path of `rate` bytes per second and round-trip time `trip`, and its work
/// requests.
fn transfer(config: Config, bytes: u64, rate: f64, trip: Duration) -> (Duration, usize) {
    let (mut mover, mut now, mut pipe) = (Mover::new(config), Duration::ZERO, Vec::<(Duration, u64)>::new());
    mover.handle_grant(grant(1, bytes));
    let (mut free, mut jobs) = (Duration::ZERO, 0);
    loop {
        while let Some(job) = mover.poll_work(now) {
            free = free.max(now) + Duration::from_secs_f64(self::bytes(&job) as f64 / rate);
            pipe.push((free + trip, job.piece));
            jobs += 1;
        }
        let next = pipe
            .first()
            .map(|&(at, _)| at)
            .into_iter()
            .chain(mover.poll_timeout(now).filter(|&at| at > now))
            .min();
        now = next.unwrap();
        while pipe.first().is_some_and(|&(at, _)| at <= now) {
            let (_, piece) = pipe.remove(0);
            mover.handle_done(now, piece, Outcome::Done);
        }
        if mover.poll_ended().is_some() {
            return (now, jobs);
        }
    }
}

/// Table 2 at 10 Gbit/s and 20 ms: n (RTT + s/B).
#[test]
fn one_piece_at_a_time_takes_a_round_trip_each() {
    let cut = Cut::Fixed { piece: 4 << 20, link_enable: Some(4096) };
    let config = Config {
        cut,
        flight: Flight::One(Duration::ZERO),
        pieces: 128,
        slots: 256,
        notes: 0,
        longest: u64::MAX,
    };
    let (time, jobs) = transfer(config, 1 << 30, 1.25e9, 20 * MS);
    let model = jobs as f64 * 0.02 + f64::from(1 << 30) / 1.25e9;
    assert!((time.as_secs_f64() / model - 1.0).abs() < 0.001, "{time:?}, not {model}");
    assert_eq!(jobs, 259, "256 pieces and the header's, Link-Enable, the commit record");
}

/// Table 3: the paper's update sizes and chunk counts, and the work requests of the machine that moves them. The
/// last one is the commit record. Where the paper's header has a chunk of its own, the record takes its place.
#[test]
fn work_requests_are_those_of_table_3() {
    let cut = Cut::Fixed { piece: 4 << 20, link_enable: Some(4096) };
    let config = Config {
        cut,
        flight: Flight::One(Duration::ZERO),
        pieces: 128,
        slots: 256,
        notes: 0,
        longest: u64::MAX,
    };
    let rows = [
        (1.1, 1, 2),
        (2.3, 2, 3),
        (4.5, 4, 4),
        (9.0, 5, 5),
        (18.0, 7, 7),
        (36.0, 12, 12),
        (72.0, 21, 21),
        (144.0, 39, 39),
        (288.0, 75, 75),
    ];
    for (mib, chunks, works) in rows {
        let bytes = (mib * f64::from(1 << 20)) as u64;
        let (_, jobs) = transfer(config, bytes, 1.25e9, 20 * MS);
        assert_eq!((count(bytes, 4 << 20, Some(4096)), jobs), (chunks, works), "{mib} MiB");
    }
}

/// A device moves at most so many bytes by one work request.
#[test]
fn a_whole_update_is_no_longer_than_the_device_takes() {
    let config =
        Config { cut: Cut::Whole, flight: Flight::All, pieces: 128, slots: 256, notes: 0, longest: 1 << 30 };
    assert_eq!(transfer(config, (5 << 30) + 1, 1.25e9, 20 * MS).1, 7, "six pieces and the record");
}

#[test]
fn a_window_fills_the_path() {
    let config = Config {
        cut: Cut::Adaptive,
        flight: Flight::Window,
        pieces: 256,
        slots: 256,
        notes: 0,
        longest: u64::MAX,
    };
    for (rate, most) in [(1.25e8, 9.7), (1.25e9, 1.2), (1.25e10, 0.31)] {
        let (time, _) = transfer(config, 1 << 30, rate, 20 * MS);
        assert!(time.as_secs_f64() < most, "{rate}: {time:?}");
    }
}

/// A withdrawn grant is neither moved nor committed by the pair that follows a loss.
#[test]
fn what_is_withdrawn_stays_so() {
    let mut mover = window();
    mover.handle_grant(grant(1, 1 << 20));
    let job = mover.poll_work(MS).unwrap();
    assert!(!mover.withdraw(1) && mover.poll_work(MS).is_none());
    assert_eq!(mover.flying(1), 1);
    mover.handle_grant(grant(1, 1 << 20));
    assert!(mover.poll_work(MS).is_none(), "granted again, and moved");
    mover.handle_done(MS, job.piece, Outcome::Done);
    assert_eq!((mover.poll_ended(), mover.under_way()), (None, 0));
    assert_eq!(mover.handle_lost_pair(MS), Verdict::Again);
    assert!(mover.poll_work(MS).is_none());
}

/// FedRDMA's first version: pieces that were overwritten at the receiver are moved again, and then the grant
/// ends again.
#[test]
fn what_is_missing_is_moved_again() {
    let cut = Cut::Forward { piece: 1_000, link_enable: None };
    let mut mover = Mover::new(Config {
        cut,
        flight: Flight::One(Duration::ZERO),
        pieces: 9,
        slots: 0,
        notes: 0,
        longest: u64::MAX,
    });
    mover.handle_grant(grant(1, 3_000));
    let all = |mover: &mut Mover| {
        let mut ranges = Vec::new();
        while let Some(job) = mover.poll_work(MS) {
            if let Task::Move(range) = job.task {
                ranges.push((range.start, range.end));
            }
            mover.handle_done(MS, job.piece, Outcome::Done);
        }
        (ranges, mover.poll_ended())
    };
    assert_eq!(all(&mut mover), (vec![(0, 1_000), (1_000, 2_000), (2_000, 3_000)], Some(1)));
    mover.again(1, thalweg_wire::Range::new(500, 2_000));
    mover.again(9, thalweg_wire::Range::new(0, 1));
    assert_eq!(all(&mut mover), (vec![(500, 1_500), (1_500, 2_000)], Some(1)));
    mover.handle_taken(1);
    mover.again(1, thalweg_wire::Range::new(0, 1_000));
    assert_eq!(all(&mut mover), (vec![], None), "what was taken is over");
}

/// A piece with a note is posted only if the receiver has room for the note. So each posted piece completes,
/// whether or not the receiver reads notes, and a grant can be withdrawn at any time.
#[test]
fn a_piece_waits_until_the_receiver_has_room_for_its_note() {
    let cut = Cut::Forward { piece: 1_000, link_enable: None };
    let mut mover =
        Mover::new(Config { cut, flight: Flight::All, pieces: 9, slots: 0, notes: 3, longest: u64::MAX });
    mover.handle_grant(grant(1, 20_000));
    let post = |mover: &mut Mover| std::iter::from_fn(|| mover.poll_work(MS)).collect::<Vec<_>>();
    let jobs = post(&mut mover);
    assert_eq!((jobs.len(), mover.poll_timeout(MS)), (3, None));
    for job in jobs {
        mover.handle_done(MS, job.piece, Outcome::Done);
    }
    assert_eq!((mover.poll_work(MS), mover.poll_timeout(MS)), (None, None), "completed, but not read");
    assert!(mover.handle_noted(2));
    assert_eq!(post(&mut mover).len(), 2);
    assert!(!mover.handle_noted(4), "three are unread");
    assert_eq!(post(&mut mover).len(), 3);
    assert_eq!(mover.handle_lost_pair(MS), Verdict::Again);
    mover.handle_grant(grant(1, 20_000));
    assert_eq!(post(&mut mover).len(), 3, "nothing is unread of a new pair");
    assert!(!mover.withdraw(1));
    mover.handle_grant(grant(2, 1_000));
    assert_eq!(mover.poll_work(MS), None, "pieces of a withdrawn grant have notes too");
}

/// A device with few reads in flight uses pieces long enough to fill the path, but no longer than the limit.
#[test]
fn few_pieces_fill_the_path() {
    let config = Config {
        cut: Cut::Adaptive,
        flight: Flight::Window,
        pieces: 16,
        slots: 0,
        notes: 0,
        longest: u64::MAX,
    };
    let (time, jobs) = transfer(config, 1 << 30, 1.25e9, 20 * MS);
    assert!(time.as_secs_f64() < 1.2, "{time:?} in {jobs} pieces");
    assert!(jobs >= 256, "{jobs} pieces, some longer than 4 MiB");
}
