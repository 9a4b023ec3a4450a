//! Nodes of a graph over a network in virtual time. Whatever happens to chunks and links, every node goes on,
//! and the weights with which it mixes sum to 1.

mod faults;
mod fuzz;
mod segments;
mod world;

use crate::common::{Path, MS, SECOND};
use crate::round_trips::{path, round_trips, within};
use thalweg_proto::{ServerMachine, Time, Waiting, Weighing};
use world::{complete, line, ring, World};

const WAITS: [Waiting; 5] = [
    Waiting::All,
    Waiting::None,
    Waiting::FirstChunk(Time::from_millis(400)),
    Waiting::Deadline(Some(Time::from_millis(400))),
    Waiting::Deadline(None),
];

fn lossy() -> Path {
    Path {
        ordered: false,
        jitter: 20 * MS,
        loss: 0.2,
        duplicate: 0.1,
        corrupt: 0.02,
        separate: true,
        ..Path::PERFECT
    }
}

#[test]
fn all_is_the_reference_whatever_the_network_does() {
    for (edges, nodes) in [(ring(5), 5), (complete(4), 4), (line(3), 3)] {
        for (number, path) in [Path::PERFECT, lossy()].into_iter().enumerate() {
            let mut world = World::new(7, nodes, &edges, Waiting::All);
            world.path = path;
            world.run_until("ten iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 10));
            let expected = world.reference(10);
            for (party, expected) in world.parties.iter().zip(&expected) {
                let found = &party.after[&10];
                let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 1e-12, "{off} at {} of path {number}", party.name);
                assert!(party.reports.iter().all(|report| report.whole && !report.timed_out));
            }
        }
    }
}

/// Of 200 elements of 8 bytes, 64 are sent at a time: 8 of 25 units of 64 bytes.
const SENT: usize = 64;

#[test]
fn parts_of_models_are_averaged_in_turn() {
    for path in [Path::PERFECT, lossy()] {
        let mut world = World::sharing(7, 5, &ring(5), Waiting::All, 0.3, Weighing::Arrival);
        world.path = path;
        world.run_until("ten iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 10));
        let is_sent = |iteration: usize, element: usize| {
            let first = iteration * SENT % 200;
            (element + 200 - first) % 200 < SENT
        };
        for (party, expected) in world.parties.iter().zip(world.reference_of(10, is_sent)) {
            let off = party.after[&10].iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(off < 1e-12, "{off} at {}", party.name);
            assert!(party.reports.iter().all(|report| report.whole && report.used == 1.0));
        }
    }
}

#[test]
fn parts_of_models_go_with_each_wait_and_weight() {
    for weighing in [Weighing::Arrival, Weighing::Senders, Weighing::Mutual] {
        for waiting in WAITS {
            let mut world = World::sharing(5, 6, &ring(6), waiting, 0.3, weighing);
            world.path = lossy();
            world.parties[0].model.fill(0.7);
            let start: f64 = world.parties[0].model.iter().sum();
            world.run_until("20 iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 20));
            let (least, most) = (world.extremes().0.min(0.7), world.extremes().1.max(0.7));
            let inside = |v: &f64| (least - 1e-9..=most + 1e-9).contains(v);
            assert!(world.parties.iter().all(|party| party.model.iter().all(inside)), "{waiting:?}");
            let moved = (world.parties[0].model.iter().sum::<f64>() - start).abs();
            assert!(
                moved > 1.0 || waiting == Waiting::None,
                "{weighing:?} {waiting:?}: it is averaged: {moved}"
            );
        }
    }
}

#[test]
fn what_came_before_a_node_had_begun_is_asked_for() {
    for rest in [50, 60, 80, 200, 3000] {
        let mut world = World::new(11, 4, &ring(4), Waiting::All);
        world.parties[2].rest = Time::from_millis(rest);
        world.run_until("five iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 5));
        assert!(world.parties.iter().all(|party| party.reports.iter().all(|report| report.whole)), "{rest}");
    }
}

/// Without loss and with enough time to wait, each model is used whole, no matter how much earlier its sender
/// has begun.
#[test]
fn what_came_before_a_node_had_begun_is_kept() {
    for weighing in [Weighing::Arrival, Weighing::Senders, Weighing::Mutual] {
        for rest in [1, 50, 60, 200, 3000] {
            let mut world = World::weighed(11, 4, &ring(4), Waiting::Deadline(Some(10 * SECOND)), weighing);
            kept(world.resting(rest), 8, &format!("{weighing:?} {rest}"));
        }
        for rest in [1, 50, 60, 200] {
            let mut world = World::weighed(11, 4, &ring(4), Waiting::Deadline(None), weighing);
            kept(world.resting(rest), 5, &format!("{weighing:?} {rest}, adaptive"));
        }
    }
}

/// Where weights change, a node knows them for as many iterations as it keeps chunks of. Here senders do not
/// wait for their receivers, so they are up to two iterations ahead.
#[test]
fn what_came_early_on_a_graph_that_changes_is_kept() {
    for rest in [1, 50, 60, 200, 3000] {
        let mut world = World::one_peer(11, 6, Waiting::Deadline(Some(10 * SECOND)), 2);
        kept(world.resting(rest), 8, &format!("one peer {rest}"));
    }
}

/// Chunks that arrive earlier than the bound allows are dropped and counted. The node does not wait for them.
#[test]
fn what_came_earlier_than_is_kept_is_counted_and_not_waited_for() {
    let mut world = World::one_peer(11, 6, Waiting::Deadline(Some(10 * SECOND)), 1);
    world
        .resting(3000)
        .run_until("eight iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 8));
    let reports = || world.parties.iter().flat_map(|party| &party.reports);
    assert!(reports().all(|report| !report.timed_out), "it waits for a model that was dropped");
    let dropped: u64 = world.parties.iter().map(|party| party.early).sum();
    let missing: f64 = reports().map(|report| (1.0 - report.used) * 13.0).sum();
    assert!(dropped > 0 && (dropped as f64 - missing).abs() < 1e-9, "{dropped} dropped, {missing} missing");
}

/// Asserts that at least `waited` of each node's eight iterations ended before the deadline, and that these
/// used whole models.
fn kept(world: &mut World, waited: usize, what: &str) {
    world.run_until("eight iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 8));
    for party in &world.parties {
        assert_eq!(party.early, 0, "{what} at {}", party.name);
        let reports = party.reports[..8].iter().filter(|report| !report.timed_out);
        for report in reports.clone() {
            assert!(report.whole && report.used == 1.0, "{what}: {} used at {}", report.used, party.name);
        }
        assert!(reports.count() >= waited, "{what}: deadlines end the iterations of {}", party.name);
    }
}

/// A node goes on with the first chunk of each neighbour, so it uses only part of their models. But it drops
/// no chunk because it arrived before its iteration.
#[test]
fn a_first_chunk_that_came_before_a_node_had_begun_is_heard() {
    for rest in [1, 50, 60, 200, 3000] {
        let mut world = World::new(11, 4, &ring(4), Waiting::FirstChunk(10 * SECOND));
        world
            .resting(rest)
            .run_until("eight iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 8));
        for party in &world.parties {
            assert_eq!(party.early, 0, "{rest} at {}", party.name);
            assert!(
                party.reports.iter().all(|report| report.heard.len() == 2 && !report.timed_out),
                "{rest}"
            );
        }
    }
}

#[test]
fn every_wait_goes_on_and_keeps_models_between_the_least_and_the_most() {
    for seed in 0..4 {
        for waiting in WAITS {
            for (edges, nodes) in [(ring(6), 6), (line(4), 4), (complete(5), 5)] {
                let mut world = World::new(seed, nodes, &edges, waiting);
                world.path = lossy();
                let (least, most) = world.extremes();
                world.run_until("20 iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 20));
                for party in &world.parties {
                    let inside = party.model.iter().all(|v| (least - 1e-9..=most + 1e-9).contains(v));
                    assert!(inside, "{waiting:?}: weights do not sum to 1 at {}", party.name);
                    assert_eq!(party.numbers.windows(2).filter(|w| w[0] >= w[1]).count(), 0, "numbers rise");
                }
            }
        }
    }
}

#[test]
fn what_all_have_alike_stays_as_it_is() {
    for waiting in WAITS {
        let mut world = World::new(3, 6, &ring(6), waiting);
        world.path = lossy();
        world.parties.iter_mut().for_each(|party| party.model.fill(0.7));
        world.run_until("20 iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 20));
        for party in &world.parties {
            assert!(party.model.iter().all(|v| (v - 0.7).abs() < 1e-12), "{waiting:?}");
        }
    }
}

/// The mean of all models after an iteration, for each element. A node that was not in it counts with its
/// latest earlier model.
fn mean_after(world: &World, round: u32) -> Vec<f64> {
    let latest = |index: usize| {
        let after = &world.parties[index].after;
        after.range(..=round).next_back().map_or(&world.start[index], |(_, model)| model)
    };
    let all: Vec<_> = (0..world.parties.len()).map(latest).collect();
    (0..all[0].len()).map(|e| all.iter().map(|model| model[e]).sum::<f64>() / all.len() as f64).collect()
}

#[test]
fn symmetric_weights_keep_the_mean_under_loss() {
    for seed in 0..3 {
        for waiting in WAITS {
            for (edges, nodes) in [(ring(6), 6), (line(4), 4), (complete(5), 5)] {
                let mut world = World::weighed(seed, nodes, &edges, waiting, Weighing::Mutual);
                world.path = lossy();
                world.hiccup = 30 * MS;
                world.run_until("20 iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 20));
                let last = |party: &world::Party| *party.numbers.last().unwrap();
                let common = world.parties.iter().map(last).min().unwrap() - 1;
                let start = mean_after(&world, 0);
                let drift = |round| {
                    mean_after(&world, round).iter().zip(&start).map(|(a, b)| (a - b).abs()).sum::<f64>()
                };
                let most = (1..=common).map(drift).fold(0.0, f64::max);
                assert!(most < 1e-7, "{waiting:?}: the mean moves by {most}");
                let lossless = waiting == Waiting::All;
                let used = world.parties.iter().flat_map(|p| &p.reports).map(|r| r.used).fold(0.0, f64::max);
                assert!(used > 0.1 || waiting == Waiting::None, "{waiting:?}: something is mixed: {used}");
                assert!(!lossless || used == 1.0);
            }
        }
    }
}

#[test]
fn neighbours_use_the_same_bytes_of_each_other() {
    let mut world = World::weighed(4, 5, &complete(5), Waiting::Deadline(None), Weighing::Mutual);
    world.path = lossy();
    world.run_until("30 iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 30));
    let (mut same, mut lost) = (0, 0);
    for (index, party) in world.parties.iter().enumerate() {
        for (report, round) in party.reports.iter().zip(&party.numbers).take(29) {
            for (&other, portion) in &report.portions {
                let theirs = &world.parties[other];
                let at = theirs.numbers.iter().position(|number| number == round).unwrap();
                assert_eq!(
                    theirs.reports[at].portions.get(&index),
                    Some(portion),
                    "{index} and {other}, {round}"
                );
                (same, lost) = (same + 1, lost + u32::from(portion.1.bytes() < world::layout(200).bytes()));
            }
        }
    }
    assert!(same > 300 && lost > 200, "{same} {lost}");
}

#[test]
fn the_papers_weights_follow_from_how_many_were_heard() {
    let star: Vec<_> = (1..6).map(|leaf| (0, leaf)).collect();
    let mut world = World::weighed(4, 6, &star, Waiting::All, Weighing::Senders);
    world.run_until("10 iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 10));
    for (party, expected) in world.parties.iter().zip(world.reference(10)) {
        let off = party.after[&10].iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-12, "{off}: without loss they are Metropolis-Hastings");
    }
    let mut world = World::weighed(5, 6, &star, Waiting::FirstChunk(60 * MS), Weighing::Senders);
    world.path = lossy();
    world.hiccup = 200 * MS;
    world.run_until("30 iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 30));
    let mut larger = 0;
    for (index, party) in world.parties.iter().enumerate() {
        for report in &party.reports {
            let heard = report.portions.len();
            for (&other, (weight, _)) in &report.portions {
                let expected = 1.0 / (1 + world.neighbours(other).len().max(heard)) as f64;
                assert_eq!(*weight, expected, "{index} hears {heard}");
                larger += u32::from(*weight > world.weight(index, other));
            }
        }
    }
    assert!(larger > 10, "where few are heard they weigh more: {larger}");
}

#[test]
fn what_all_have_alike_stays_whenever_weights_are_known() {
    for weighing in [Weighing::Senders, Weighing::Mutual] {
        for waiting in WAITS {
            let mut world = World::weighed(3, 6, &[&ring(6)[..], &[(0, 3)]].concat(), waiting, weighing);
            world.path = lossy();
            world.parties.iter_mut().for_each(|party| party.model.fill(0.7));
            world.run_until("20 iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 20));
            let alike = |party: &world::Party| party.model.iter().all(|v| (v - 0.7).abs() < 1e-12);
            assert!(world.parties.iter().all(alike), "{weighing:?} {waiting:?}: weights do not sum to 1");
        }
    }
}

#[test]
fn nodes_that_swap_go_on_when_one_dies_or_links_break() {
    for waiting in WAITS {
        for point in 0..60 {
            let weighing = if point < 30 { Weighing::Mutual } else { Weighing::Arrival };
            let mut world = World::weighed(point, 4, &ring(4), waiting, weighing);
            world.path = if point % 2 == 0 { Path::PERFECT } else { lossy() };
            world.run_until("all have met", 60 * SECOND, World::all_met);
            for _ in 0..point % 5 {
                world.pass(Time::from_millis(7 * point));
                world.cut_one();
            }
            world.kill(1);
            let before: Vec<u32> = world.parties.iter().map(|p| p.done()).collect();
            world.run_until("ten more iterations of the others", 600 * SECOND, |w| {
                [0, 2, 3].iter().all(|&i| w.parties[i].done() >= before[i] + 10)
            });
        }
    }
}

#[test]
fn one_peer_graphs_send_one_model_an_iteration() {
    for nodes in [2, 5, 8] {
        for waiting in WAITS {
            let mut world = World::one_peer(3, nodes, waiting, 1);
            if waiting != Waiting::All {
                world.path = lossy();
            }
            world.run_until("12 iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 12));
            for (index, party) in world.parties.iter().enumerate() {
                for (report, round) in party.reports.iter().zip(1..) {
                    let from = (index + nodes - world::step(nodes, round)) % nodes;
                    assert!(report.heard.iter().all(|&heard| heard == from), "{waiting:?} {round}");
                    assert!(waiting != Waiting::All || report.whole);
                }
            }
        }
    }
    // After k iterations, the models of all 2^k nodes are equal.
    let mut world = World::one_peer(3, 8, Waiting::All, 1);
    let mean = mean_after(&world, 0);
    world.run_until("3 iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 3));
    for party in &world.parties {
        assert!(party.after[&3].iter().zip(&mean).all(|(a, b)| (a - b).abs() < 1e-12));
    }
}

#[test]
fn a_node_alone_goes_on() {
    for waiting in WAITS {
        let mut world = World::new(1, 1, &[], waiting);
        let before = world.parties[0].model.clone();
        world.run_until("5 iterations", 10 * SECOND, |w| w.parties[0].done() >= 5);
        assert_eq!(world.parties[0].model, before, "nothing came: nothing changes");
    }
}

#[test]
fn the_others_go_on_when_a_node_dies_at_any_point() {
    for waiting in WAITS {
        for point in 0..40 {
            let mut world = World::new(point, 4, &ring(4), waiting);
            world.path = if point % 2 == 0 { Path::PERFECT } else { lossy() };
            world.run_until("all have met", 60 * SECOND, World::all_met);
            world.pass(Time::from_millis(13 * point));
            world.kill(1);
            let before: Vec<u32> = world.parties.iter().map(|p| p.done()).collect();
            world.run_until("ten more iterations of the others", 600 * SECOND, |w| {
                [0, 2, 3].iter().all(|&i| w.parties[i].done() >= before[i] + 10)
            });
        }
    }
}

#[test]
fn a_node_that_hangs_is_let_go_by_liveness() {
    for waiting in [Waiting::All, Waiting::Deadline(None)] {
        let mut world = World::new(5, 4, &ring(4), waiting);
        world.run_until("3 iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 3));
        world.parties[2].hangs = true;
        let before = world.parties[1].done();
        world.run_until("20 more", 120 * SECOND, |w| w.parties[1].done() >= before + 20);
    }
}

#[test]
fn one_that_comes_back_is_heard_again_and_takes_its_neighbours_models() {
    for waiting in [Waiting::All, Waiting::Deadline(None), Waiting::Deadline(Some(400 * MS))] {
        let mut world = World::new(9, 4, &ring(4), waiting);
        world.run_until("5 iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 5));
        world.kill(3);
        let at = world.parties[0].done();
        world.run_until("20 without it", 600 * SECOND, |w| w.parties[0].done() >= at + 20);
        world.restart(3);
        world.parties[3].model.fill(1e6);
        let at = world.parties[0].done();
        world.run_until("it is heard by both neighbours", 600 * SECOND, |w| {
            let heard =
                |i: usize| w.parties[i].reports.iter().skip(at as usize).any(|r| r.heard.contains(&3));
            heard(0) && heard(2) && w.parties[3].done() > 3
        });
        let back = &world.parties[3];
        assert!(back.reports.iter().any(|report| report.fresh && !report.heard.is_empty()), "{waiting:?}");
        assert!(back.numbers[0] > 20, "it skips to its neighbours' number");
        let most = back.model.iter().fold(0.0_f64, |most, v| most.max(v.abs()));
        assert!(most < 1e5, "{waiting:?}: its old model is forgotten, {most}");
    }
}

#[test]
fn a_slow_node_is_heard_and_costs_at_most_one_more_iteration() {
    let mut world = World::new(2, 6, &complete(6), Waiting::Deadline(None));
    world.parties.iter_mut().for_each(|party| party.train = 100 * MS);
    world.parties[5].train = 2000 * MS;
    world.run_until("100 iterations", 600 * SECOND, |w| w.parties[0].done() >= 100);
    let fast = &world.parties[0];
    let took = (fast.mixed_at[99] - fast.mixed_at[49]) / 50;
    assert!(took <= 200 * MS, "an iteration of the others takes {took:?}");
    let heard = fast.reports.iter().filter(|report| report.heard.contains(&5)).count();
    let slow = &world.parties[5];
    assert!(slow.done() >= 4, "{}", slow.done());
    assert!(heard + 2 >= slow.done() as usize, "{heard} of its {} models were heard", slow.done());
    assert!(slow.reports.iter().all(|report| !report.fresh));
}

#[test]
fn without_training_the_adaptive_limit_waits_for_whole_models() {
    let unordered = Path { ordered: false, separate: true, jitter: 4 * MS, ..Path::PERFECT };
    for (rate, delay) in [(10_000_000, Time::from_micros(100)), (300_000, MS), (30_000, 20 * MS)] {
        for path in [Path::PERFECT, unordered, Path { loss: 0.2, ..unordered }] {
            for (edges, nodes) in [(ring(6), 6), (complete(5), 5)] {
                let mut world = World::new(3, nodes, &edges, Waiting::Deadline(None));
                world.path = Path { rate, delay, ..path };
                world.hiccup = 30 * MS;
                world.parties.iter_mut().for_each(|party| party.train = Time::from_micros(100));
                world
                    .run_until("200 iterations", 600 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 200));
                let late = world.parties.iter().flat_map(|party| &party.reports[100..]);
                let (count, used) = late.fold((0.0, 0.0), |(n, sum), r| (n + 1.0, sum + r.used));
                let share = used / count;
                assert!(
                    share >= 0.85 * (1.0 - path.loss),
                    "{share} used of {nodes} nodes at {rate}, {path:?}"
                );
            }
        }
    }
}

#[test]
fn a_broken_link_is_made_anew() {
    for waiting in WAITS {
        let mut world = World::new(4, 3, &ring(3), waiting);
        for _ in 0..20 {
            world.pass(37 * MS);
            world.cut_one();
        }
        let before: Vec<u32> = world.parties.iter().map(|p| p.done()).collect();
        world.run_until("all go on together", 300 * SECOND, |w| {
            w.parties.iter().zip(&before).all(|(p, &b)| p.done() >= b + 10) && w.all_met()
        });
    }
}

#[test]
fn other_plans_graphs_starts_and_layouts_are_refused_by_name() {
    type Change = fn(&mut thalweg_proto::NodeConfig);
    let changes: [(&str, Change); 4] = [
        ("plan", |c| c.alike.plan = 9),
        ("graph", |c| c.alike.graph = 9),
        ("initial model", |c| c.alike.start = Some(9)),
        ("at the ", |c| c.layout = world::layout(17)),
    ];
    for (word, change) in changes {
        let mut world = World::changed(1, 2, &[(0, 1)], Waiting::All, 0, change);
        world.pass(5 * SECOND);
        let said = world.parties[1].refused.join(" ");
        assert!(said.contains(word), "{word}: {said}");
        assert!(!world.all_met());
        let told = world.parties[0].finished.join(" ");
        assert!(told.contains(word), "the one that dialled hears it too: {told}");
    }
}

#[test]
fn both_neighbours_name_the_tensor_that_differs() {
    let mut world = World::changed(1, 2, &[(0, 1)], Waiting::All, 0, |c| c.layout = world::layout(17));
    world.pass(5 * SECOND);
    let [dialled] = &world.parties[1].refused[..] else { unreachable!("one refusal") };
    let [dialler] = &world.parties[0].finished[..] else { unreachable!("one end") };
    let hint = "use the same model and the same tensors at both ends";
    let ours =
        format!("its model differs: w is float64 [200] here and float64 [17] at the neighbour; {hint}");
    assert!(dialled.ends_with(&format!("is not let in: {ours}")), "{dialled}");
    let theirs = "w is float64 [17] here and float64 [200] at the neighbour";
    assert_eq!(*dialler, format!("this model differs from the neighbour's: {theirs}; {hint}"));
}

#[test]
fn strangers_are_turned_away_and_may_come_again() {
    let mut world = World::new(1, 3, &[(0, 2)], Waiting::All);
    world.meet_only(1, 2);
    world.pass(SECOND);
    assert!(world.parties[2].refused.iter().any(|said| said.contains("no neighbour")));
    world.meet_only(2, 1);
    world.run_until("it is let in", 60 * SECOND, |w| w.parties[1].node.connected_count() == 1);
}

#[test]
fn a_thousand_nodes() {
    let mut world = World::new(1, 1000, &ring(1000), Waiting::All);
    world.run_until("two iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 2));
    let expected = world.reference(2);
    let off = |party: &world::Party, expected: &[f64]| {
        party.after[&2].iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    assert!(world.parties.iter().zip(&expected).all(|(party, expected)| off(party, expected) < 1e-12));
}

/// The neighbours of a node answer late, and are not gone.
#[test]
fn an_iteration_takes_a_few_round_trips_and_no_neighbour_is_lost() {
    for round_trip in round_trips() {
        for waiting in WAITS {
            let mut world = World::new(7, 3, &ring(3), waiting);
            world.path = path(round_trip);
            world.run_until("all have met", within(4, round_trip), World::all_met);
            let all = |w: &World, count| w.parties.iter().all(|party| party.done() >= count);
            for count in 1..=4 {
                world.run_until("an iteration", within(3, round_trip), |w| all(w, count));
            }
            for party in &world.parties {
                assert!(party.left.is_empty(), "{round_trip:?} {waiting:?}: {:?}", party.left);
                let whole = party.reports.iter().all(|report| report.whole && !report.timed_out);
                assert!(whole || waiting != Waiting::All, "{round_trip:?}");
            }
        }
    }
}

/// A neighbour that falls silent is still noticed: after ten of its round trips, and not before the floor.
#[test]
fn a_neighbour_that_falls_silent_is_gone_after_ten_round_trips() {
    for round_trip in round_trips() {
        let mut world = World::new(7, 3, &ring(3), Waiting::All);
        world.path = path(round_trip);
        world
            .run_until("two iterations", within(12, round_trip), |w| w.parties.iter().all(|p| p.done() >= 2));
        world.parties[1].hangs = true;
        let began = world.now;
        world.run_until("it is let go", 600 * SECOND, |w| !w.parties[0].left.is_empty());
        let waited = world.now - began;
        let limit = (10 * round_trip).max(10 * SECOND);
        // What it sent before may still arrive, half a round trip later. Timers are checked once in a while, hence
        // 3 s in both directions.
        let off = format!("{round_trip:?}: {waited:?}, {:?}", world.parties[0].left);
        assert!(waited + 3 * SECOND >= limit && waited <= limit + round_trip + 3 * SECOND, "{off}");
        assert_eq!(world.parties[0].left[0].0, world.parties[1].name, "{off}");
    }
}
