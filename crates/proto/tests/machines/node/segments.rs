//! Averaging by segments: the mean of whole models, with the same bits at all nodes, for fewer bytes; and whole
//! models wherever something fails.

use thalweg_proto::Time;

use super::lossy;
use super::world::{complete, ring, Party, World};
use crate::common::{End, Path, MS, SECOND};

fn reordering() -> Path {
    Path { ordered: false, jitter: 30 * MS, separate: true, ..Path::PERFECT }
}

/// Asserts that a node's model is the mean that whole models give.
fn check(world: &World, iterations: u32, is_sent: impl Fn(usize, usize) -> bool, what: &str) {
    let expected = world.reference_of(iterations as usize, is_sent);
    for (party, expected) in world.parties.iter().zip(&expected) {
        let found = &party.after[&iterations];
        let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-9, "{off} at {}, {what}", party.name);
    }
}

fn bits(party: &Party, iteration: u32) -> Vec<u64> {
    party.after[&iteration].iter().map(|value| value.to_bits()).collect()
}

#[test]
fn all_nodes_get_the_same_bits_of_the_mean_of_whole_models() {
    for nodes in [3, 4, 7] {
        for elements in [1, 5, 17, 200, 20_000] {
            for (number, path) in [Path::PERFECT, reordering(), lossy()].into_iter().enumerate() {
                let what = format!("{nodes} nodes, {elements} elements, path {number}");
                let mut world = World::segmented(number as u64, nodes, elements, 1.0);
                world.path = path;
                let count = 4;
                world.run_until(&what, 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= count));
                check(&world, count, |_, _| true, &what);
                for party in &world.parties {
                    let reports = || party.reports.iter();
                    assert!(reports().all(|report| report.by_segments && report.whole && report.used == 1.0));
                    assert!(reports()
                        .all(|report| report.heard.len() == nodes - 1 || elements < 8 * nodes as u64));
                    (1..=count)
                        .for_each(|at| assert_eq!(bits(party, at), bits(&world.parties[0], at), "{what}"));
                }
            }
        }
    }
}

/// Of 200 elements of 8 bytes, 64 are sent at a time: 8 of 25 units of 64 bytes.
#[test]
fn parts_of_models_are_averaged_by_segments_too() {
    for path in [Path::PERFECT, lossy()] {
        let mut world = World::segmented(7, 4, 200, 0.3);
        world.path = path;
        world.run_until("ten iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 10));
        let is_sent = |iteration: usize, element: usize| (element + 200 - iteration * 64 % 200) % 200 < 64;
        check(&world, 10, is_sent, "a part");
        assert!(world
            .parties
            .iter()
            .flat_map(|p| &p.reports)
            .all(|report| report.by_segments && report.used == 1.0));
    }
}

#[test]
fn a_node_sends_two_models_less_its_segments() {
    let (nodes, elements, iterations) = (4, 800, 5);
    let sent = |mut world: World| {
        world.run_until("five iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= iterations));
        world.pass(10 * MS); // nobody has trained for the next one yet
        let both = |client| world.net.payload(client, End::Server) + world.net.payload(client, End::Client);
        (0..nodes).map(both).sum::<u64>()
    };
    let model = elements * 8 * u64::from(iterations);
    let whole =
        World::made(1, nodes, &complete(nodes), |config, _| config.layout = super::world::layout(elements));
    assert_eq!(sent(whole), 4 * 3 * model);
    assert_eq!(sent(World::segmented(1, nodes, elements, 1.0)), 2 * 3 * model);
}

#[test]
fn the_others_go_on_when_a_node_dies_at_any_point() {
    let mut torn = 0;
    for point in 0..120 {
        let mut world = World::segmented(point, 4, 20_000, 1.0);
        let slow = Path { rate: 4_000_000, ..Path::PERFECT };
        world.path = [slow, lossy(), Path { rate: 4_000_000, ..reordering() }][point as usize % 3];
        world.run_until("all have met", 60 * SECOND, World::all_met);
        world.pass(Time::from_millis(3 * point));
        world.kill(1);
        let (least, most) = world.extremes();
        let before: Vec<u32> = world.parties.iter().map(|p| p.done()).collect();
        world.run_until("ten more iterations of the others", 600 * SECOND, |w| {
            [0, 2, 3].iter().all(|&i| w.parties[i].done() >= before[i] + 10)
        });
        for index in [0, 2, 3] {
            let party = &world.parties[index];
            let inside = party.model.iter().all(|v| (least - 1e-9..=most + 1e-9).contains(v));
            assert!(inside, "weights do not sum to 1 at {} of point {point}", party.name);
            let with_passed = |(number, report): (&u32, &super::world::Report)| {
                !report.by_segments && party.passed.contains(number)
            };
            torn += u32::from(party.numbers.iter().zip(&party.reports).any(with_passed));
        }
    }
    assert!(torn > 10, "nodes fall back after they have averaged pieces: {torn}");
}

#[test]
fn links_that_break_in_any_phase_cost_only_the_saving() {
    for point in 0..60 {
        let mut world = World::segmented(point, 4, 20_000, 1.0);
        world.path = if point % 2 == 0 { Path { rate: 4_000_000, ..Path::PERFECT } } else { lossy() };
        world.run_until("all have met", 60 * SECOND, World::all_met);
        for _ in 0..3 {
            world.pass(Time::from_millis(5 + 7 * point));
            world.cut_one();
        }
        let before: Vec<u32> = world.parties.iter().map(|p| p.done()).collect();
        world.run_until("all go on together, by segments again", 300 * SECOND, |w| {
            let goes_on = |(p, &b): (&Party, &u32)| {
                p.done() >= b + 5 && p.reports.last().is_some_and(|r| r.by_segments)
            };
            w.parties.iter().zip(&before).all(goes_on) && w.all_met()
        });
    }
}

#[test]
fn where_one_node_sends_whole_models_all_do() {
    for path in [Path::PERFECT, lossy()] {
        let mut world =
            World::made(3, 4, &complete(4), |config, index| config.segments = (index != 2).then_some(0));
        world.path = path;
        world.run_until("ten iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 10));
        check(&world, 10, |_, _| true, "one sends whole models");
        assert!(world
            .parties
            .iter()
            .flat_map(|p| &p.reports)
            .all(|report| !report.by_segments && report.whole));
    }
}

#[test]
fn nodes_with_other_neighbours_do_not_use_each_others_means() {
    for nodes in [4, 5, 8] {
        for path in [Path::PERFECT, lossy()] {
            let mut world = World::made(3, nodes, &ring(nodes), |config, _| config.segments = Some(0));
            world.path = path;
            world.run_until("ten iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 10));
            check(&world, 10, |_, _| true, "a ring has equal weights, too");
        }
    }
}

#[test]
fn sums_that_give_no_mean_are_left_to_whole_models() {
    let mut world = World::segmented(3, 4, 2000, 1.0);
    world.parties[2].averages_nothing = true;
    world.run_until("ten iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 10));
    check(&world, 10, |_, _| true, "one averages nothing");
    assert!(world.parties[2].reports.iter().all(|report| !report.by_segments));
}

#[test]
fn small_models_are_sent_whole() {
    // By segments, each of 4 nodes sends 1.5 models of 1600 bytes less.
    for (least, expected) in [(2400, true), (2401, false)] {
        let mut world = World::made(3, 4, &complete(4), |config, _| config.segments = Some(least));
        world.run_until("two iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 2));
        assert!(world.parties.iter().flat_map(|p| &p.reports).all(|report| report.by_segments == expected));
    }
}

#[test]
fn one_that_comes_back_takes_part_again() {
    let mut world = World::segmented(9, 4, 200, 1.0);
    world.run_until("5 iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 5));
    world.kill(3);
    let at = world.parties[0].done();
    world.run_until("10 without it", 600 * SECOND, |w| w.parties[0].done() >= at + 10);
    world.restart(3);
    world.run_until("all average by segments", 600 * SECOND, |w| {
        w.parties.iter().all(|p| p.reports.last().is_some_and(|report| report.by_segments))
    });
}
